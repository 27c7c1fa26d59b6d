//! `rota login`, `rota logout`, `rota context`: which server, and as whom.

use clap::{Args, Subcommand};
use rota_api::access::Whoami;
use rota_client::{Url, is_here, parse_address};
use serde::Serialize;

use super::shown;
use crate::{
    clock,
    contexts::{Context, Contexts},
    failure::Failure,
    printer::{Output, Printer, plain},
    secret,
    session::{Session, SessionArgs, block_on},
    table::{Cell, Table, Tone},
    target::{Target, token_from, token_from_stdin},
    times,
};

#[derive(Args)]
pub struct LoginArgs {
    /// The server, such as `https://rota.example` or `localhost:7070`
    url: String,
    /// The name of the context [default: the server's host]
    #[arg(long)]
    name: Option<String>,
    /// `-` reads the token from standard input; other users could see a token given here
    /// in the list of processes
    #[arg(long, value_name = "-", value_parser = only_dash)]
    token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<std::path::PathBuf>,
    /// The tenant to act for, if you may choose one
    #[arg(long)]
    tenant: Option<String>,
}

fn only_dash(text: &str) -> Result<String, String> {
    secret::only_dash(text, "--token-file")
}

#[derive(Args)]
pub struct LogoutArgs {
    /// The context to remove [default: the current one]
    name: Option<String>,
}

#[derive(Subcommand)]
pub enum Command {
    /// List the servers that you have logged in to
    List {
        /// Output format
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Use this server from now on
    Use { name: String },
    /// Remove a server and its token
    Remove { name: String },
}

#[derive(Args)]
pub struct WhoamiArgs {
    #[command(flatten)]
    session: SessionArgs,
}

/// Asks the server before anything is kept, so that a context that is there
/// worked once.
pub fn login(args: &LoginArgs, printer: &mut Printer) -> Result<(), Failure> {
    let server = parse_address(&args.url)?;
    let token = match (&args.token_file, &args.token) {
        (Some(path), _) => Some(token_from(path)?),
        (None, Some(_)) => Some(token_from_stdin()?),
        (None, None) => asked()?,
    };
    let name = args.name.clone().unwrap_or_else(|| named_after(&server));
    let target = Target { server: server.clone(), token: token.clone(), tenant: args.tenant.clone() };
    if target.token.is_some() && server.scheme() == "http" && !is_here(&server) {
        printer.note("warning: the token is sent over the network unencrypted; use https if others could listen")?;
    }
    let client = target.client()?;
    let mut told: Option<Whoami> = None;
    block_on(async {
        told = Some(client.get(&["whoami"], &[]).await?);
        Ok(())
    })?;
    let mut contexts = Contexts::load()?;
    let context = Context { server: server.to_string(), token, tenant: args.tenant.clone() };
    contexts.contexts.insert(name.clone(), context);
    contexts.current = Some(name.clone());
    contexts.save()?;
    let who = told.map(|told| format!(" as {}", plain(&told.who))).unwrap_or_default();
    Ok(printer.line(&format!("logged in to {server}{who}; the current context is `{name}`"))?)
}

/// Asks for the token where somebody can answer; it is not shown.
fn asked() -> Result<Option<String>, Failure> {
    if !Printer::can_ask() {
        return Ok(None);
    }
    let token = secret::typed("Token (empty if the server has no login):", false)?;
    Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
}

fn named_after(server: &Url) -> String {
    let host = server.host_str().unwrap_or("server").trim_matches(['[', ']']);
    server.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

pub fn logout(args: &LogoutArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut contexts = Contexts::load()?;
    let name = args.name.clone().or_else(|| contexts.current.clone());
    let name = name.ok_or_else(|| Failure::not_found("you are not logged in to any server"))?;
    forget(&mut contexts, &name)?;
    Ok(printer.line(&format!("removed `{name}`; its token is still valid until it expires or is revoked"))?)
}

fn forget(contexts: &mut Contexts, name: &str) -> Result<(), Failure> {
    contexts.named(name)?;
    contexts.contexts.remove(name);
    if contexts.current.as_deref() == Some(name) {
        contexts.current = None;
    }
    contexts.save()
}

/// A context as it is listed: whether there is a token, not which.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    server: &'a str,
    tenant: Option<&'a str>,
    token: bool,
    current: bool,
}

pub fn run(command: &Command, printer: &mut Printer) -> Result<(), Failure> {
    let mut contexts = Contexts::load()?;
    match command {
        Command::List { output } => list(&contexts, *output, printer),
        Command::Use { name } => {
            contexts.named(name)?;
            contexts.current = Some(name.clone());
            contexts.save()?;
            Ok(printer.line(&format!("the current context is `{name}`"))?)
        }
        Command::Remove { name } => {
            forget(&mut contexts, name)?;
            Ok(printer.line(&format!("forgot `{name}`"))?)
        }
    }
}

fn list(contexts: &Contexts, output: Output, printer: &mut Printer) -> Result<(), Failure> {
    let listed: Vec<Listed<'_>> = contexts
        .contexts
        .iter()
        .map(|(name, context)| Listed {
            name,
            server: &context.server,
            tenant: context.tenant.as_deref(),
            token: context.token.is_some(),
            current: contexts.current.as_deref() == Some(name),
        })
        .collect();
    let drawn = |printer: &mut Printer| {
        if listed.is_empty() {
            return printer.note("no contexts yet; `rota login URL` creates one");
        }
        let mut table = Table::new(&["", "NAME", "SERVER", "TENANT", "TOKEN"]);
        for context in &listed {
            table.row([
                Cell::toned(if context.current { "*" } else { "" }, Tone::Good),
                context.name.into(),
                context.server.into(),
                context.tenant.unwrap_or("").into(),
                if context.token { "yes" } else { "no" }.into(),
            ]);
        }
        printer.table(table)
    };
    Ok(printer.answer(output, &listed, drawn)?)
}

pub fn whoami(args: &WhoamiArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut session = Session::open(&args.session, printer)?;
    let session = &mut session;
    block_on(async move {
        let who: Whoami = session.client.get(&["whoami"], &[]).await?;
        let (server, now) = (session.client.address().to_owned(), clock::now());
        session.answer(&who, |printer| {
            let mut fields = Table::fields();
            fields.field("server", server);
            fields.field("who", format!("{} (by {})", who.who, who.via));
            fields.field("tenant", format!("{} (id {})", who.tenant.name, who.tenant.id));
            fields.field("may", shown::permissions(&who.permissions));
            fields.field("reach", if who.installation { "every tenant" } else { "this tenant" });
            fields.field("until", who.expires_at.map(|at| times::from_now(at, now)).unwrap_or_default());
            printer.table(fields)
        })
    })
}
