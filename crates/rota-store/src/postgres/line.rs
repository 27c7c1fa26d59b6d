//! A connection for a while, and how long the server may take on it.
//!
//! A server that is gone without a word, or a box on the way that answers for it,
//! leaves a statement waiting for ever. The server is told to give a statement up
//! after its limit, and says so; where not even that is heard, the connection is
//! given up here a moment later. Nobody is handed it again.

use std::{
    ops::Deref,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use deadpool_postgres::Object;
use tokio_postgres::Statement;

use super::fault::Fault;

/// The server's own word is waited for by so much longer than a statement may take.
const WORD: Duration = Duration::from_secs(1);

/// Nothing was heard.
#[derive(Debug, thiserror::Error)]
#[error("the database did not answer within {} seconds", .0.as_secs_f64())]
pub(super) struct Silence(Duration);

pub(super) struct Line {
    client: Option<Object>,
    limit: Duration,
    /// Its state is not known: it goes, instead of back to the others.
    broken: AtomicBool,
}

impl Line {
    pub(super) fn new(client: Object, limit: Duration) -> Self {
        Self { client: Some(client), limit, broken: AtomicBool::new(false) }
    }

    /// Closing the connection is the only rollback that cannot be missed.
    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// What the server answers, if it does in time.
    pub(super) async fn within<T>(&self, answer: impl Future<Output = T>) -> Result<T, Silence> {
        let limit = self.limit + WORD;
        tokio::time::timeout(limit, answer).await.map_err(|_| {
            self.give_up();
            Silence(limit)
        })
    }

    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, Fault> {
        Ok(self.within(self.prepare_cached(sql)).await??)
    }
}

impl Deref for Line {
    type Target = Object;

    fn deref(&self) -> &Object {
        match &self.client {
            Some(client) => client,
            None => unreachable!("the connection is only taken out by drop"),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let (Some(client), true) = (self.client.take(), self.broken.load(Ordering::Relaxed)) {
            drop(Object::take(client));
        }
    }
}
