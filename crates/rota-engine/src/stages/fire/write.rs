//! A batch of fired schedules on its way to the store.

use std::sync::Arc;

use futures_util::{StreamExt, stream::FuturesUnordered};
use rota_core::{
    ids::{JobId, TenantId},
    store::{FireItem, Fired, StoreError, Write},
};

use crate::node::Node;

/// One batch on its way to the store.
pub(super) struct Commit {
    pub write: Write,
    pub pauses_revision: i64,
    pub items: Vec<FireItem>,
    /// Whose each item is.
    pub of: Vec<(JobId, TenantId)>,
}

/// A batch with what the store answered to it.
pub(super) struct Written {
    pub commit: Commit,
    pub answers: Result<Vec<Fired>, StoreError>,
}

pub(super) async fn write(node: Arc<Node>, commit: Commit) -> Written {
    let writing = node.store.fire(&commit.write, commit.pauses_revision, &commit.items);
    let answers = node.timed(commit.items.len(), writing).await;
    Written { commit, answers }
}

/// Does `work` while others are written.
pub(super) async fn beside<T>(
    work: impl Future<Output = T>,
    writing: &mut FuturesUnordered<impl Future<Output = Written>>,
    written: &mut Vec<Written>,
) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            // What is to be written comes first: planning is long.
            biased;
            Some(next) = writing.next() => written.push(next),
            done = &mut work => return done,
        }
    }
}
