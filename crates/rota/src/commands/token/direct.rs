//! Tokens, in the store itself.
//!
//! Whoever can open the store may do anything anyway. An SQLite file is open to one
//! process at a time, so a node that runs on it is stopped first, or asked.

use anyhow::Context as _;
use rota_api::access::TokenMade;
use rota_core::{
    access::SecretKind,
    ids::{AuditId, TenantId, TokenId},
    ports::{Random, Seeded},
    store::{AuditEntry, Guarded, Store, Token, TokenQuery},
};
use rota_server::token_on_wire;
use serde_json::json;
use uuid::Uuid;

use super::{Command, Wanted, drawn, meant};
use crate::{
    clock, config,
    failure::Failure,
    printer::{Output, Printer},
    session::{ListArgs, SessionArgs},
    wire,
};

/// As the audit log calls whoever works on the store itself.
const WHO: &str = "command line";
/// Tokens of one page.
const PAGE: u32 = 1_000;

/// The store, whose tenant, and how to answer.
struct Desk<'a> {
    store: std::sync::Arc<dyn Store>,
    tenant: TenantId,
    output: Output,
    printer: &'a mut Printer,
}

pub async fn run(args: &SessionArgs, command: Command, printer: &mut Printer) -> Result<(), Failure> {
    // What is wrong is said before a store is opened, and perhaps made.
    if let Command::Create(args) = &command {
        args.wanted()?;
    }
    let config = config::load(&command.place().store.0)?;
    let store = wire::store(&config).await?.store;
    let tenant = tenant(store.as_ref(), args.server.tenant.as_deref()).await?;
    let mut desk = Desk { store, tenant, output: args.output, printer };
    match command {
        Command::Create(args) => desk.create(&args.wanted()?).await,
        Command::List { list, .. } => desk.list(&list).await,
        Command::Revoke { tokens, .. } => {
            let ids = meant(&tokens, async |_| desk.tokens(usize::MAX).await).await?;
            for id in ids {
                desk.revoke(id).await?;
            }
            Ok(())
        }
    }
}

impl Desk<'_> {
    async fn create(&mut self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        let (random, now) = (random(), clock::now());
        let secret = rota_server::new_secret(SecretKind::Token);
        let token = Token {
            id: TokenId::new(&random, now),
            tenant: self.tenant,
            installation: wanted.installation,
            name: wanted.name.to_owned(),
            digest: secret.digest(),
            permissions: wanted.permissions,
            created_at: now,
            created_by: WHO.to_owned(),
            expires_at: wanted.expires.map(|span| span.after(now)),
            revoked_at: None,
            last_used_at: None,
        };
        self.store.put_tokens(std::slice::from_ref(&token)).await.context("cannot store the token")?;
        self.audit("token.create", &token, &random).await?;
        let made = TokenMade { secret: secret.expose().to_owned(), token: token_on_wire(&token) };
        Ok(self.printer.answer(self.output, &made, |printer| printer.line(&made.secret))?)
    }

    async fn list(&mut self, args: &ListArgs) -> Result<(), Failure> {
        if args.watches() {
            return Err(Failure::bad_input(
                "bad_flags",
                "--watch needs a server; it does not work with --direct".to_owned(),
            ));
        }
        let tokens = self.tokens(args.limit()).await?;
        Ok(self.printer.answer(self.output, &tokens, |printer| drawn(&tokens, clock::now(), printer))?)
    }

    async fn tokens(&self, limit: usize) -> Result<Vec<rota_api::access::Token>, Failure> {
        let mut query = TokenQuery { tenant: self.tenant, after: None, limit: PAGE };
        let mut tokens = Vec::new();
        loop {
            let page = self.store.list_tokens(&query).await.context("cannot list the tokens")?;
            tokens.extend(page.tokens.iter().map(token_on_wire));
            match page.next {
                Some(next) if tokens.len() < limit => query.after = Some(next),
                _ => break,
            }
        }
        tokens.truncate(limit);
        Ok(tokens)
    }

    async fn revoke(&mut self, id: Uuid) -> Result<(), Failure> {
        let ids = [TokenId(id)];
        let token = self.store.tokens(&ids).await.context("cannot find the token")?.pop().flatten();
        let token = token.ok_or_else(|| Failure::not_found(format!("there is no token {id}")))?;
        let done = self.store.revoke_tokens(&ids, clock::now()).await.context("cannot revoke the token")?;
        let words = if done == [Guarded::Applied] {
            self.audit("token.revoke", &token, &random()).await?;
            format!("revoked {} ({id})", token.name)
        } else {
            format!("{} ({id}) was already revoked", token.name)
        };
        Ok(self.printer.answer(self.output, &json!({ "revoked": [id] }), |printer| printer.line(&words))?)
    }

    async fn audit(&self, action: &str, token: &Token, random: &dyn Random) -> Result<(), Failure> {
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
        self.store.append_audit(&[entry]).await.context("cannot add to the audit log")?;
        Ok(())
    }
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
    found.ok_or_else(|| Failure::not_found(format!("there is no tenant `{}`", name.escape_debug())))
}
