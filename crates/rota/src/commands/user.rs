//! `rota user`: people who log in with a password.

use std::{io, path::PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use rota_api::access::{User, UserPatch, UserRequest};
use rota_core::access::Role;
use serde_json::json;

use crate::{
    clock,
    failure::Failure,
    printer::Printer,
    secret,
    session::{ListArgs, Noun, Session},
    table::Table,
    times,
};

pub type UserArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List users by name
    List(ListArgs),
    /// Show a user
    Show {
        /// The user's name
        user: String,
    },
    /// Create a user who logs in with a password
    Create {
        /// The user's name
        user: String,
        /// The role in the tenant: viewer, operator, editor or admin
        #[arg(long)]
        role: Role,
        /// The role applies in every other tenant too
        #[arg(long)]
        installation: bool,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Change a user's role, from the next request on
    Set {
        /// The user's name
        user: String,
        /// The role in the tenant: viewer, operator, editor or admin
        #[arg(long, required_unless_present = "installation")]
        role: Option<Role>,
        /// The role applies in every other tenant too, or with `=false` only in their own
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        installation: Option<bool>,
    },
    /// Set a user's password, and end all of the user's sessions
    Password {
        /// The user's name
        user: String,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Delete users; they lose access at once
    Delete {
        /// The users' names
        #[arg(required = true, value_name = "USER")]
        users: Vec<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Where the password comes from; a terminal is asked.
#[derive(Args)]
pub struct PasswordArgs {
    /// `-` reads the password from standard input; other users could see a password given
    /// here in the list of processes
    #[arg(long, value_name = "-", value_parser = only_dash)]
    password: Option<String>,
    /// Read the password from this file
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<PathBuf>,
}

fn only_dash(text: &str) -> Result<String, String> {
    secret::only_dash(text, "--password-file")
}

impl PasswordArgs {
    fn read(&self) -> Result<String, Failure> {
        match (&self.password_file, &self.password) {
            (Some(path), _) => secret::from_file("password", path),
            (None, Some(_)) => secret::from_stdin("password"),
            (None, None) if Printer::can_ask() => secret::typed("Password:", true),
            (None, None) => {
                let message = "cannot ask for the password without a terminal: give it on standard input with --password -, \
                     or use --password-file";
                Err(Failure::bad_input("no_password", message.to_owned()))
            }
        }
    }
}

pub fn run(args: UserArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(list) => session.list(&list, &["users"], &[], drawn).await,
        Command::Show { user } => show(session, &user).await,
        Command::Create { user, role, installation, password } => {
            let password = password.read()?;
            let request = UserRequest { name: user, password, role: role.to_string(), installation };
            let made: User = session.client.post(&["users"], &request).await?;
            session.done(&made, format_args!("created {} ({})", made.name, made.role))
        }
        Command::Set { user, role, installation } => {
            let patch = UserPatch { password: None, role: role.map(|role| role.to_string()), installation };
            let user: User = session.client.patch(&["users", &user], &patch).await?;
            let reach = if user.installation { " in every tenant" } else { "" };
            session.done(&user, format_args!("{} is {}{reach}", user.name, user.role))
        }
        Command::Password { user, password } => {
            let patch = UserPatch { password: Some(password.read()?), ..UserPatch::default() };
            let user: User = session.client.patch(&["users", &user], &patch).await?;
            session.done(&user, format_args!("the password of {} is changed, and all sessions have ended", user.name))
        }
        Command::Delete { users, yes } => delete(session, &users, yes).await,
    })
}

async fn show(session: &mut Session<'_>, user: &str) -> Result<(), Failure> {
    let user: User = session.client.get(&["users", user], &[]).await?;
    let now = clock::now();
    session.answer(&user, |printer| {
        let mut fields = Table::fields();
        fields.field("user", user.name.as_str());
        fields.field("role", user.role.as_str());
        fields.field("reach", reach(&user));
        fields.field("created", times::from_now(user.created_at, now));
        fields.field("changed", times::from_now(user.updated_at, now));
        printer.table(fields)
    })
}

async fn delete(session: &mut Session<'_>, users: &[String], yes: bool) -> Result<(), Failure> {
    let names = users.join(", ");
    session.confirm(yes, &format!("Delete {names}?"))?;
    for user in users {
        session.client.delete::<()>(&["users", user], &[]).await?;
    }
    session.done(&json!({ "deleted": users }), format_args!("deleted {names}"))
}

fn drawn(users: &[User], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if users.is_empty() {
        return printer.note("no users; `rota user create NAME --role viewer` creates one");
    }
    let mut table = Table::new(&["USER", "ROLE", "REACH", "CREATED", "CHANGED"]);
    for user in users {
        table.row([
            user.name.clone().into(),
            user.role.clone().into(),
            reach(user).into(),
            times::from_now(user.created_at, now).into(),
            times::from_now(user.updated_at, now).into(),
        ]);
    }
    printer.table(table)
}

const fn reach(user: &User) -> &'static str {
    if user.installation { "installation" } else { "tenant" }
}
