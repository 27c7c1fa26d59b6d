//! Tokens, by asking a server.

use rota_api::access::{TokenMade, TokenRequest};
use serde_json::json;

use super::{Command, Wanted, drawn, meant};
use crate::{clock, failure::Failure, session::Session};

pub async fn run(session: &mut Session<'_>, command: Command) -> Result<(), Failure> {
    match command {
        Command::Create(args) => create(session, &args.wanted()?).await,
        Command::List { list, .. } => session.list(&list, &["tokens"], &[], drawn).await,
        Command::Revoke { tokens, .. } => {
            let ids = meant(&tokens, async |_| Ok(session.client.list(&["tokens"], &[], usize::MAX).await?.0)).await?;
            for id in &ids {
                session.client.delete::<()>(&["tokens", &id.to_string()], &[]).await?;
            }
            let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
            session.done(&json!({ "revoked": ids }), format_args!("revoked {}", names.join(", ")))
        }
    }
}

async fn create(session: &mut Session<'_>, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let request = TokenRequest {
        name: wanted.name.to_owned(),
        role: None,
        permissions: wanted.permissions.list().iter().map(ToString::to_string).collect(),
        expires_at: wanted.expires.map(|span| span.after(clock::now())),
        installation: wanted.installation,
    };
    let made: TokenMade = session.client.post(&["tokens"], &request).await?;
    session.done(&made, &made.secret)
}
