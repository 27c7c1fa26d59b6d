//! `rota token`: tokens for the API, made, listed and revoked in the store itself.
//!
//! This is how an installation gets its first token, and how one gets in again
//! when all are lost: whoever can open the store may do anything anyway. An SQLite
//! file is open to one process at a time, so a node that runs on it is stopped
//! first, or asked over HTTP (`POST /api/v1/tokens`).

use anyhow::Context;
use clap::{Args, Subcommand};
use rota_core::{
    access::{Permission, Permissions, Role, SecretKind, check_name},
    duration::Span,
    ids::{AuditId, TenantId, TokenId},
    ports::{Random, Seeded},
    store::{AuditEntry, Guarded, Store, Token, TokenQuery},
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    clock,
    config::{self, Flags},
    failure::Failure,
    printer::Printer,
    wire,
};

/// As the audit log calls whoever works on the store itself.
const WHO: &str = "command line";
/// Tokens of one page.
const PAGE: u32 = 1_000;

#[derive(Subcommand)]
pub enum Command {
    /// Make a token and print it; it is shown this once
    Create(CreateArgs),
    /// List the tokens of a tenant, the newest first
    List(ListArgs),
    /// Revoke a token; the next request with it is refused
    Revoke(RevokeArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// What it is for, such as ci or ann
    #[arg(id = "token-name", value_name = "NAME")]
    name: String,
    /// For an administrator of the whole installation
    #[arg(long, conflicts_with_all = ["role", "permission"])]
    admin: bool,
    /// What it may do: viewer, operator, editor or admin of its tenant
    #[arg(long, conflicts_with = "permission")]
    role: Option<Role>,
    /// A single permission, such as job:read; may be repeated
    #[arg(long)]
    permission: Vec<Permission>,
    /// The tenant it speaks for
    #[arg(long)]
    tenant: Option<String>,
    /// It may speak for every other tenant too
    #[arg(long)]
    installation: bool,
    /// It ends by itself after so long, such as 90d
    #[arg(long)]
    expires: Option<Span>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Args)]
pub struct ListArgs {
    /// The tenant whose tokens are listed
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Args)]
pub struct RevokeArgs {
    /// Its id, as listed
    id: Uuid,
    #[command(flatten)]
    flags: Flags,
}

pub fn run(command: &Command, printer: &mut Printer) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Create(args) => {
            let permissions = permissions(args)?;
            check_name(&args.name).map_err(|why| Failure::bad_input("bad_name", format!("name: {why}")))?;
            let config = config::load(&args.flags)?;
            runtime.block_on(create(args, permissions, &config, printer))
        }
        Command::List(args) => runtime.block_on(list(args, &config::load(&args.flags)?, printer)),
        Command::Revoke(args) => runtime.block_on(revoke(args, &config::load(&args.flags)?, printer)),
    }
}

fn permissions(args: &CreateArgs) -> Result<Permissions, Failure> {
    let named: Permissions = args.permission.iter().copied().collect();
    match (args.admin, args.role, named.is_empty()) {
        (true, ..) => Ok(Role::Admin.permissions()),
        (false, Some(role), _) => Ok(role.permissions()),
        (false, None, false) => Ok(named),
        (false, None, true) => {
            let message = "say what the token may do: --admin, --role or --permission".to_owned();
            Err(Failure::bad_input("no_permissions", message))
        }
    }
}

async fn create(
    args: &CreateArgs,
    permissions: Permissions,
    config: &config::Config,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let store = wire::store(config).await?.store;
    let (random, now) = (random(), clock::now());
    let secret = rota_server::new_secret(SecretKind::Token);
    let token = Token {
        id: TokenId::new(&random, now),
        tenant: tenant(store.as_ref(), args.tenant.as_deref()).await?,
        installation: args.admin || args.installation,
        name: args.name.clone(),
        digest: secret.digest(),
        permissions,
        created_at: now,
        created_by: WHO.to_owned(),
        expires_at: args.expires.map(|span| span.after(now)),
        revoked_at: None,
        last_used_at: None,
    };
    store.put_tokens(std::slice::from_ref(&token)).await.context("cannot keep the token")?;
    audit(store.as_ref(), "token.create", &token, &random).await?;
    printer.line(secret.expose())?;
    Ok(())
}

async fn list(args: &ListArgs, config: &config::Config, printer: &mut Printer) -> Result<(), Failure> {
    let store = wire::store(config).await?.store;
    let tenant = tenant(store.as_ref(), args.tenant.as_deref()).await?;
    let mut query = TokenQuery { tenant, after: None, limit: PAGE };
    loop {
        let page = store.list_tokens(&query).await.context("cannot list the tokens")?;
        for token in &page.tokens {
            printer.line(&shown(token))?;
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(()),
        }
    }
}

fn shown(token: &Token) -> String {
    let names: Vec<&str> = token.permissions.list().iter().map(|permission| permission.as_str()).collect();
    let end = match (token.revoked_at, token.expires_at) {
        (Some(at), _) => format!("  revoked {at}"),
        (None, Some(at)) => format!("  expires {at}"),
        (None, None) => String::new(),
    };
    let reach = if token.installation { "  installation" } else { "" };
    format!("{}  {}  {}{reach}{end}", token.id, token.name, names.join(","))
}

async fn revoke(args: &RevokeArgs, config: &config::Config, printer: &mut Printer) -> Result<(), Failure> {
    let store = wire::store(config).await?.store;
    let ids = [TokenId(args.id)];
    let token = store.tokens(&ids).await.context("cannot find the token")?.pop().flatten();
    let Some(token) = token else {
        return Err(Failure::bad_input("no_such_token", format!("there is no token {}", args.id)));
    };
    let done = store.revoke_tokens(&ids, clock::now()).await.context("cannot revoke the token")?;
    if done == [Guarded::Applied] {
        audit(store.as_ref(), "token.revoke", &token, &random()).await?;
        printer.line(&format!("revoked {}", token.name))?;
    } else {
        printer.line(&format!("{} was revoked before", token.name))?;
    }
    Ok(())
}

/// Ids are drawn like the secrets themselves.
fn random() -> Seeded {
    let bytes = rota_server::new_secret(SecretKind::Session).digest().0;
    Seeded::new(u64::from_le_bytes(std::array::from_fn(|n| bytes[n])))
}

/// The tenant of a name; without one the tenant of an installation that knows
/// only one.
async fn tenant(store: &dyn Store, name: Option<&str>) -> Result<TenantId, Failure> {
    let own = wire::tenant(store, clock::now()).await?;
    let Some(name) = name else { return Ok(own) };
    let known = store.tenants().await.context("cannot read the tenants")?;
    let found = known.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.id);
    found.ok_or_else(|| Failure::bad_input("no_such_tenant", format!("there is no tenant `{}`", name.escape_debug())))
}

async fn audit(store: &dyn Store, action: &str, token: &Token, random: &dyn Random) -> Result<(), Failure> {
    let now = clock::now();
    let after = json!({ "name": token.name, "permissions": token.permissions, "installation": token.installation });
    let entry = AuditEntry {
        id: AuditId::new(random, now),
        at: now,
        tenant: token.tenant,
        who: WHO.to_owned(),
        action: action.to_owned(),
        object: format!("token/{}", token.id),
        before: None,
        after: Some(after.to_string()),
        address: None,
    };
    store.append_audit(&[entry]).await.context("cannot add to the audit log")?;
    Ok(())
}
