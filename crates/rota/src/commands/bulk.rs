//! Many at once, by a filter: counted, asked about, then done.

use rota_api::bulk::BulkDone;
use serde::Serialize;

use crate::{failure::Failure, session::Session};

/// What is done to many, in words.
pub struct Words {
    /// As in the path of the request.
    pub verb: &'static str,
    pub things: &'static str,
    /// What would become of them.
    pub would: &'static str,
    pub done: &'static str,
}

/// Whether only to count, and whether to ask before it is done.
#[derive(Clone, Copy)]
pub struct Asked {
    pub dry_run: bool,
    pub yes: bool,
}

/// Counts what the filter finds, asks, and does it.
pub async fn bulk<R: Serialize + Sync>(
    session: &mut Session<'_>,
    words: &Words,
    asked: Asked,
    request: impl Fn(bool) -> R,
) -> Result<(), Failure> {
    let path = ["bulk", words.verb];
    let found: BulkDone = session.client.post(&path, &request(true)).await?;
    if asked.dry_run {
        return counted(session, &format!("would be {}", words.would), &found);
    }
    let mut verb = words.verb.to_owned();
    verb[..1].make_ascii_uppercase();
    session.confirm(asked.yes, &format!("{verb} {} {}?", found.done, words.things))?;
    let done: BulkDone = session.client.post(&path, &request(false)).await?;
    counted(session, words.done, &done)
}

/// Says what a request by filter did.
fn counted(session: &mut Session<'_>, what: &str, done: &BulkDone) -> Result<(), Failure> {
    let more = if done.more { "; there are more: run the command again" } else { "" };
    let left = if done.done < done.matched {
        let others = if done.dry_run { "would be" } else { "were" };
        format!(" of {} found; the others {others} left unchanged", done.matched)
    } else {
        String::new()
    };
    session.done(done, format_args!("{} {what}{left}{more}", done.done))
}
