//! `rota token`: tokens for the API, made, listed and revoked.
//!
//! A server is asked, as for everything else. With `--direct`, or where flags say
//! which store is meant, the command works on the store itself: this is how an
//! installation gets its first token, and how one gets in again when all are lost.

mod asked;
mod direct;

use std::io;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use rota_api::access::Token;
use rota_core::{
    access::{Permission, Permissions, Role, check_name},
    duration::Span,
};
use uuid::Uuid;

use super::shown;
use crate::{
    config::StoreFlags,
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Session, SessionArgs, block_on},
    table::{Cell, Table, Tone},
    times,
};

#[derive(Args)]
pub struct TokenArgs {
    #[command(flatten)]
    session: SessionArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a token and print it; it is shown only once
    Create(CreateArgs),
    /// List the tokens of a tenant, the newest first
    List {
        #[command(flatten)]
        list: ListArgs,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Revoke tokens; the next request with one of them is refused
    Revoke {
        /// Their ids or names, as listed; a name that several valid tokens have is refused
        #[arg(required = true, value_name = "ID|NAME")]
        tokens: Vec<String>,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

#[derive(Args)]
struct CreateArgs {
    /// A name for it, such as ci or ann
    name: String,
    /// A token for an administrator of the whole installation
    #[arg(long, conflicts_with_all = ["role", "permission"])]
    admin: bool,
    /// Its role in its tenant: viewer, operator, editor or admin
    #[arg(long, conflicts_with = "permission")]
    role: Option<Role>,
    /// A single permission, such as job:read; may be repeated
    #[arg(long)]
    permission: Vec<Permission>,
    /// It may act for every other tenant too
    #[arg(long)]
    installation: bool,
    /// How long it is valid, such as 90d
    #[arg(long, value_name = "DURATION")]
    expires: Option<Span>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Where the tokens are.
#[derive(Args)]
struct PlaceArgs {
    /// Work on the store itself instead of through a server; the flags below imply this
    #[arg(long, help_heading = "Store")]
    direct: bool,
    #[command(flatten)]
    store: StoreFlags,
}

impl Command {
    const fn place(&self) -> &PlaceArgs {
        match self {
            Self::Create(CreateArgs { place, .. }) | Self::List { place, .. } | Self::Revoke { place, .. } => place,
        }
    }
}

/// What is to be made, checked before anybody is asked.
struct Wanted<'a> {
    name: &'a str,
    permissions: Permissions,
    installation: bool,
    expires: Option<Span>,
}

impl CreateArgs {
    fn wanted(&self) -> Result<Wanted<'_>, Failure> {
        check_name(&self.name).map_err(|why| Failure::bad_input("bad_name", format!("name: {why}")))?;
        let named: Permissions = self.permission.iter().copied().collect();
        let permissions = match (self.admin, self.role, named.is_empty()) {
            (true, ..) => Role::Admin.permissions(),
            (false, Some(role), _) => role.permissions(),
            (false, None, false) => named,
            (false, None, true) => {
                let message = "the token has no permissions: give --admin, --role or --permission".to_owned();
                return Err(Failure::bad_input("no_permissions", message));
            }
        };
        let installation = self.admin || self.installation;
        Ok(Wanted { name: &self.name, permissions, installation, expires: self.expires })
    }
}

pub fn run(args: TokenArgs, printer: &mut Printer) -> Result<(), Failure> {
    let place = args.command.place();
    if !place.direct && place.store.0.is_empty() {
        let mut session = Session::open(&args.session, printer)?;
        return block_on(asked::run(&mut session, args.command)).map_err(hinted);
    }
    let server = &args.session.server;
    if server.server.is_some() || server.context.is_some() || server.token_file.is_some() {
        let message = "--server, --context and --token-file cannot be combined with --direct".to_owned();
        return Err(Failure::bad_input("bad_flags", message));
    }
    block_on(direct::run(&args.session, args.command, printer))
}

/// Whoever has no token yet is told how to make one.
fn hinted(failure: Failure) -> Failure {
    const DIRECT: &str = "with --direct the command works on the store itself";
    match failure {
        Failure::Refused(mut problem) if problem.status == 401 => {
            problem.detail = format!("{}; {DIRECT}", problem.detail);
            Failure::Refused(problem)
        }
        Failure::Unreachable { server, why } => Failure::Unreachable { server, why: format!("{why}; {DIRECT}") },
        other => other,
    }
}

/// The tokens that ids and names mean. `named` finds those of a name.
async fn meant(
    tokens: &[String],
    mut named: impl AsyncFnMut(&str) -> Result<Vec<Token>, Failure>,
) -> Result<Vec<Uuid>, Failure> {
    let mut ids = Vec::with_capacity(tokens.len());
    for token in tokens {
        if let Ok(id) = token.parse() {
            ids.push(id);
            continue;
        }
        let mut found = named(token).await?;
        found.retain(|found| found.name == *token && found.revoked_at.is_none());
        match found.as_slice() {
            [one] => ids.push(one.id),
            [] => return Err(Failure::not_found(format!("there is no valid token `{token}`; see `rota token list`"))),
            many => {
                let listed: Vec<String> = many.iter().map(|token| token.id.to_string()).collect();
                let message = format!("{} tokens are named `{token}`: give an id of {}", many.len(), listed.join(", "));
                return Err(Failure::bad_input("ambiguous_name", message));
            }
        }
    }
    Ok(ids)
}

fn drawn(tokens: &[Token], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if tokens.is_empty() {
        return printer.note("no tokens; `rota token create NAME --role viewer` creates one");
    }
    let mut table = Table::new(&["TOKEN", "NAME", "MAY", "REACH", "CREATED", "USED", "STATE"])
        .narrowed(&["CREATED", "USED", "REACH"], "MAY");
    for token in tokens {
        table.row([
            token.id.to_string().into(),
            token.name.clone().into(),
            shown::permissions(&token.permissions).into(),
            if token.installation { "installation" } else { "tenant" }.into(),
            times::from_now(token.created_at, now).into(),
            token.last_used_at.map_or_else(|| "never".to_owned(), |at| times::from_now(at, now)).into(),
            state(token, now),
        ]);
    }
    printer.table(table)
}

fn state(token: &Token, now: Timestamp) -> Cell {
    match (token.revoked_at, token.expires_at) {
        (Some(_), _) => Cell::toned("revoked", Tone::Bad),
        (None, Some(at)) if at <= now => Cell::toned("expired", Tone::Bad),
        (None, Some(at)) => Cell::toned(format!("ends {}", times::from_now(at, now)), Tone::Good),
        (None, None) => Cell::toned("valid", Tone::Good),
    }
}
