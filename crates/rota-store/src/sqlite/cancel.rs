//! Changes that are decided on the row itself, inside its transaction: cancel and wake.

use async_trait::async_trait;
use rota_core::{
    ids::RunId,
    run::{CancelAsk, Change, Refusal, Run, Slots},
    store::{CancelAnswer, CancelStore, Guarded, Reaped, StoreError, Write},
};

use super::{
    SqliteStore,
    apply::Work,
    history,
    insert::cancel_one,
    once::once,
    own::guarded,
    rows::{Live, live_row},
    writer::Urgency,
};
use crate::kept;

/// Applies what `choose` decides on a live run; none where it refuses.
pub fn decide(
    work: &mut Work<'_>,
    row: &Live,
    choose: impl FnOnce(&Run) -> Result<Change, Refusal>,
) -> Result<Option<Reaped>, StoreError> {
    decide_counted(work, row, Slots::ToCount, choose)
}

pub fn decide_counted(
    work: &mut Work<'_>,
    row: &Live,
    slots: Slots,
    choose: impl FnOnce(&Run) -> Result<Change, Refusal>,
) -> Result<Option<Reaped>, StoreError> {
    let mut run = row.run.clone();
    let Ok(change) = choose(&run) else { return Ok(None) };
    work.change(row, &run, &change, slots)?;
    run.apply(&change);
    Ok(Some(Reaped { id: run.id, job: run.job, tenant: run.tenant, status: run.state.status() }))
}

fn cancel(work: &mut Work<'_>, id: RunId, ask: &CancelAsk) -> Result<CancelAnswer, StoreError> {
    let Some(row) = work.row(id.0)? else {
        let ended = history::table_of(work.connection, id.0)?.is_some();
        return Ok(if ended { CancelAnswer::Ended } else { CancelAnswer::NotFound });
    };
    let run = row.run;
    if !cancel_one(work, &run, ask)? {
        return Ok(CancelAnswer::AlreadyAsked);
    }
    let gone = work.row(id.0)?.is_none();
    Ok(if gone { CancelAnswer::Cancelled } else { CancelAnswer::Asked })
}

#[async_trait]
impl CancelStore for SqliteStore {
    async fn request_cancel(
        &self,
        write: &Write,
        runs: &[RunId],
        ask: &CancelAsk,
    ) -> Result<Vec<CancelAnswer>, StoreError> {
        let (write, runs, ask) = (write.clone(), runs.to_vec(), ask.clone());
        self.writer
            .write("cancel runs", Urgency::Prompt, move |connection| {
                once(
                    connection,
                    &write,
                    kept::json,
                    |_, kept| kept::json_again(kept),
                    |connection| {
                        let mut work = Work::new(connection, &write);
                        let answers =
                            runs.iter().map(|id| cancel(&mut work, *id, &ask)).collect::<Result<Vec<_>, _>>()?;
                        work.done_unnamed()?;
                        Ok(answers)
                    },
                )
            })
            .await
    }

    async fn wake(&self, write: &Write, runs: &[RunId]) -> Result<Vec<Guarded>, StoreError> {
        let (write, runs) = (write.clone(), runs.to_vec());
        let count = runs.len();
        self.writer
            .write("wake runs", Urgency::Prompt, move |connection| {
                guarded(connection, &write, count, |connection| {
                    let mut work = Work::new(connection, &write);
                    let mut answers = Vec::with_capacity(runs.len());
                    for id in &runs {
                        let row = live_row(connection, id.0)?;
                        let changed = row.map(|row| decide(&mut work, &row, Run::wake)).transpose()?.flatten();
                        answers.push(if changed.is_some() { Guarded::Applied } else { Guarded::Stale });
                    }
                    work.done_unnamed()?;
                    Ok(answers)
                })
            })
            .await
    }
}
