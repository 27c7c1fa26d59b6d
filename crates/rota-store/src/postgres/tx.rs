//! One transaction on one pooled connection.
//!
//! `BEGIN` travels with the first statement and the batch row with `COMMIT`, so
//! an ordinary write costs two round trips. A transaction that is dropped
//! half-way takes its connection with it: the server rolls back, and no one
//! else is handed a connection in an unknown state.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::future::{BoxFuture, join_all};
use rota_core::store::{EndedRun, Write};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Connections,
    fault::{Fault, refused},
    line::Line,
};
use crate::{
    codec::micros,
    failpoint::{self, Moment},
    unreadable::Notes,
};

/// A bound parameter.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

/// A statement and its parameters.
pub(super) type Bound<'a> = (&'a str, &'a [Param<'a>]);

/// A statement whose answer nobody waits for: it travels with the commit.
pub(super) struct Late {
    pub sql: &'static str,
    pub params: Vec<Box<dyn ToSql + Sync + Send>>,
}

/// Parameters that a [`Late`] statement keeps.
macro_rules! params {
    ($($param:expr),* $(,)?) => {
        vec![$(Box::new($param) as Box<dyn tokio_postgres::types::ToSql + Sync + Send>),*]
    };
}
pub(super) use params;

impl Late {
    fn bound(&self) -> (&str, Vec<Param<'_>>) {
        (self.sql, self.params.iter().map(|param| param.as_ref() as Param<'_>).collect())
    }
}

/// What a write leaves behind besides its own rows.
#[derive(Default)]
pub(super) struct Ending {
    /// Written before all else; their rows are in the answer of the end.
    pub late: Vec<Late>,
    /// What to answer when asked again; none stands for the plain answer.
    pub answer: Option<Vec<u8>>,
    /// Who ended by it, to be told with the answer.
    pub ends: Vec<EndedRun>,
    /// What was settled, for the roll-ups.
    pub delta: Option<Vec<u8>>,
    /// Nothing was written, so nothing need be remembered.
    pub idle: bool,
}

pub(super) struct Tx {
    /// Where rows are noted that cannot be read.
    pub notes: Arc<Notes>,
    line: Line,
    /// From `BEGIN` to a known end. What is dropped in between is in doubt.
    open: AtomicBool,
}

impl Tx {
    pub(super) async fn on(pool: &Connections) -> Result<Self, Fault> {
        Ok(Self { notes: Arc::clone(&pool.notes), line: pool.get().await?, open: AtomicBool::new(false) })
    }

    /// Runs statements in one round trip, `BEGIN` before the first of all.
    pub(super) async fn pipe(&self, statements: &[Bound<'_>]) -> Result<Vec<Vec<Row>>, Fault> {
        let client = &self.line;
        let mut prepared = Vec::with_capacity(statements.len());
        for (sql, _) in statements {
            prepared.push(client.prepare(sql).await?);
        }
        let begin = !self.open.swap(true, Ordering::Relaxed);
        let mut flights: Vec<BoxFuture<'_, Result<Vec<Row>, tokio_postgres::Error>>> = Vec::new();
        if begin {
            flights.push(Box::pin(async { client.batch_execute("BEGIN").await.map(|()| Vec::new()) }));
        }
        for (statement, (_, params)) in prepared.iter().zip(statements) {
            flights.push(Box::pin(client.query(statement, params)));
        }
        let landed = client.within(join_all(flights)).await?;
        let mut answers = Vec::with_capacity(statements.len());
        for (n, rows) in landed.into_iter().enumerate() {
            let rows = rows?;
            if n >= usize::from(begin) {
                answers.push(rows);
            }
        }
        Ok(answers)
    }

    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        Ok(self.pipe(&[(sql, params)]).await?.pop().unwrap_or_default())
    }

    /// Commits what was done together with the batch's name, so that asking
    /// again finds it. A batch that is there already makes this a rollback.
    pub(super) async fn finish(&self, write: &Write, ending: &Ending) -> Result<Vec<Vec<Row>>, Fault> {
        let at = micros(write.now);
        let batch: Bound<'_> =
            ("INSERT INTO batch (id, at, answer) VALUES ($1, $2, $3)", &[&write.batch.0, &at, &ending.answer]);
        if ending.idle && write.request.is_none() {
            return self.end("ROLLBACK", &[batch]).await;
        }
        let late: Vec<(&str, Vec<Param<'_>>)> = ending.late.iter().map(Late::bound).collect();
        let mut last: Vec<Bound<'_>> = late.iter().map(|(sql, params)| (*sql, &params[..])).collect();
        let delta: [Param<'_>; 2] = [&at, &ending.delta];
        if ending.delta.is_some() {
            last.push(("INSERT INTO rollup_delta (at, body) VALUES ($1, $2)", &delta[..]));
        }
        let (request, expires_at, fingerprint);
        let (stale, named): ([Param<'_>; 3], [Param<'_>; 5]);
        if let Some(asked) = &write.request {
            (request, expires_at, fingerprint) = (asked, micros(asked.expires_at), asked.fingerprint.as_slice());
            stale = [&request.tenant.0, &request.key, &at];
            named = [&request.tenant.0, &request.key, &expires_at, &fingerprint, &ending.answer];
            last.push(("DELETE FROM request WHERE tenant = $1 AND key = $2 AND expires_at <= $3", &stale[..]));
            last.push((
                "INSERT INTO request (tenant, key, expires_at, fingerprint, answer) VALUES ($1, $2, $3, $4, $5)",
                &named[..],
            ));
        }
        last.push(batch);
        self.end_for_good(&last).await
    }

    /// Commits a write that is the same however often it is made.
    pub(super) async fn commit(&self) -> Result<(), Fault> {
        self.end_for_good(&[]).await.map(drop)
    }

    /// Runs statements and commits them, in one round trip.
    pub(super) async fn commit_with(&self, statements: &[Bound<'_>]) -> Result<Vec<Vec<Row>>, Fault> {
        self.end_for_good(statements).await
    }

    /// Undoes all of it, and keeps the connection.
    pub(super) async fn roll_back(&self) -> Result<(), Fault> {
        self.end("ROLLBACK", &[]).await.map(drop)
    }

    /// Runs statements that could have waited for the end, but must not.
    pub(super) async fn now(&self, late: &[Late]) -> Result<Vec<Vec<Row>>, Fault> {
        if late.is_empty() {
            return Ok(Vec::new());
        }
        let late: Vec<(&str, Vec<Param<'_>>)> = late.iter().map(Late::bound).collect();
        let statements: Vec<Bound<'_>> = late.iter().map(|(sql, params)| (*sql, &params[..])).collect();
        self.pipe(&statements).await
    }

    async fn end_for_good(&self, last: &[Bound<'_>]) -> Result<Vec<Vec<Row>>, Fault> {
        failpoint::pass_named(Moment::Written);
        let rows = self.end("COMMIT", last).await?;
        failpoint::pass_named(Moment::Committed);
        Ok(rows)
    }

    /// Sends the last statements with the end behind them, and answers their
    /// rows.
    async fn end(&self, how: &str, last: &[Bound<'_>]) -> Result<Vec<Vec<Row>>, Fault> {
        let client = &self.line;
        if !self.open.load(Ordering::Relaxed) && last.is_empty() {
            return Ok(Vec::new());
        }
        let mut prepared = Vec::with_capacity(last.len());
        for (sql, _) in last {
            prepared.push(client.prepare(sql).await?);
        }
        let mut flights: Vec<BoxFuture<'_, Result<Vec<Row>, tokio_postgres::Error>>> = Vec::new();
        let begin = !self.open.swap(true, Ordering::Relaxed);
        if begin {
            flights.push(Box::pin(async { client.batch_execute("BEGIN").await.map(|()| Vec::new()) }));
        }
        for (statement, (_, params)) in prepared.iter().zip(last) {
            flights.push(Box::pin(client.query(statement, params)));
        }
        flights.push(Box::pin(async { client.batch_execute(how).await.map(|()| Vec::new()) }));
        let landed = client.within(join_all(flights)).await;
        let mut landed = landed.map_err(|silence| Fault::Lost(Box::new(silence)))?;
        let ended = landed.pop().unwrap_or(Ok(Vec::new()));
        let mut answers = Vec::with_capacity(landed.len());
        for answer in landed {
            match answer {
                Ok(rows) => answers.push(rows),
                Err(error) => {
                    // The server refused a statement, so what followed was a
                    // rollback; or the line broke after the commit was sent.
                    let known = error.as_db_error().is_some();
                    if known && ended.is_ok() {
                        self.open.store(false, Ordering::Relaxed);
                    }
                    return Err(if known { Fault::Db(error) } else { Fault::Lost(Box::new(error)) });
                }
            }
        }
        match ended {
            Ok(_) => {
                self.open.store(false, Ordering::Relaxed);
                Ok(answers.split_off(usize::from(begin)))
            }
            Err(error) if refused(&error) => Err(Fault::Db(error)),
            Err(error) => Err(Fault::Lost(Box::new(error))),
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.open.load(Ordering::Relaxed) {
            self.line.give_up();
        }
    }
}
