//! Once: a write that is asked for again changes nothing more.
//!
//! The batch's row commits with the write. Asked again, the work is done again
//! and its batch row collides with the first one: everything rolls back and the
//! first answer is read. A first write still in flight makes the second wait on
//! that row, so there is no moment at which both could pass. Request keys of
//! outside callers work the same way, until they expire.
//!
//! A dry run does the same work and rolls it back: the answer is the real one.

use std::{future::Future, sync::Arc};

use jiff::Timestamp;
use rota_core::store::{Request, StoreError, Write};
use tokio_postgres::Row;

use super::{
    Postgres,
    fault::Fault,
    tx::{Ending, Tx},
};
use crate::{codec::micros, failpoint};

/// What a write answered: now, or when it was made.
pub(super) enum Once<T> {
    /// With the rows of the statements that travelled with the commit.
    New(T, Vec<Vec<Row>>),
    /// The stored answer; none stands for the plain one.
    Known(Option<Vec<u8>>),
}

/// So often a lost race is run again.
const TRIES_MAX: u32 = 8;

impl Postgres {
    pub(super) async fn once<T, F, Fut>(
        &self,
        write: &Write,
        what: &'static str,
        work: F,
    ) -> Result<Once<T>, StoreError>
    where
        F: Fn(Arc<Tx>) -> Fut,
        Fut: Future<Output = Result<(T, Ending), Fault>>,
    {
        let mut tries = 0;
        loop {
            let fault = match failpoint::named(what, self.once_tried(write, &work)).await {
                Ok((value, late)) => {
                    self.set_aside().await;
                    return Ok(Once::New(value, late));
                }
                Err(fault) => fault,
            };
            tries += 1;
            // A write that was applied before is no longer decided by what is there.
            if (fault.is_known() || fault.has_moved())
                && let Some(answer) = self.recall(write, what).await?
            {
                return Ok(Once::Known(answer));
            }
            if fault.lacks_a_day() {
                self.days.forget();
            } else if !fault.is_transient() && !fault.is_known() {
                return Err(fault.told(what));
            }
            if tries >= TRIES_MAX {
                return Err(fault.told(what));
            }
        }
    }

    async fn once_tried<T, F, Fut>(&self, write: &Write, work: &F) -> Result<(T, Vec<Vec<Row>>), Fault>
    where
        F: Fn(Arc<Tx>) -> Fut,
        Fut: Future<Output = Result<(T, Ending), Fault>>,
    {
        self.have_day(micros(write.now)).await?;
        let tx = Arc::new(Tx::on(&self.work).await?);
        let (value, mut ending) = work(Arc::clone(&tx)).await?;
        if write.dry_run {
            let late = tx.now(&ending.late).await?;
            tx.roll_back().await?;
            return Ok((value, late));
        }
        let finished = tx.finish(write, &ending).await;
        // A commit whose answer is lost may have been made. If it was, this is
        // who ended by it: asked again, the work finds them gone.
        if matches!(finished, Ok(_) | Err(Fault::Lost(_))) {
            write.ends.put(std::mem::take(&mut ending.ends));
        }
        Ok((value, finished?))
    }

    /// The answer of the batch, or of the request, if it was given before.
    #[allow(clippy::option_option, reason = "absent, and present with the plain answer, are two things")]
    async fn recall(&self, write: &Write, what: &'static str) -> Result<Option<Option<Vec<u8>>>, StoreError> {
        let told = |fault: Fault| fault.told(what);
        let rows = self.read("SELECT answer FROM batch WHERE id = $1", &[&write.batch.0]).await.map_err(told)?;
        if let Some(row) = rows.first() {
            return Ok(Some(row.try_get(0).map_err(|e| told(e.into()))?));
        }
        match &write.request {
            Some(request) => self.known_request(request, write.now, what).await,
            None => Ok(None),
        }
    }

    /// The answer kept under a request's key.
    #[allow(clippy::option_option, reason = "absent, and present with the plain answer, are two things")]
    pub(super) async fn known_request(
        &self,
        request: &Request,
        now: Timestamp,
        what: &'static str,
    ) -> Result<Option<Option<Vec<u8>>>, StoreError> {
        let told = |fault: Fault| fault.told(what);
        let sql = "SELECT fingerprint, answer FROM request WHERE tenant = $1 AND key = $2 AND expires_at > $3";
        let rows = self.read(sql, &[&request.tenant.0, &request.key, &micros(now)]).await.map_err(told)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let fingerprint: Vec<u8> = row.try_get(0).map_err(|e| told(e.into()))?;
        if fingerprint != request.fingerprint {
            return Err(StoreError::RequestDiffers);
        }
        Ok(Some(row.try_get(1).map_err(|e| told(e.into()))?))
    }
}
