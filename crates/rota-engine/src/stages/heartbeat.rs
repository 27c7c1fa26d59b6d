//! Heartbeat: tells the store about the attempts under way, and hears what it has to say.
//!
//! Attempts run by themselves (see `supervise`); a pass does for all of them
//! together what each would need: those that last get a written mark, written
//! leases are extended in one statement, and what attempts say is written away.
//! The answers tell which runs are not ours any more, and which were asked to
//! stop.
//!
//! While the store is away attempts go on, for nobody else can take them; those
//! marked `exclusive` are stopped by `withdraw`.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::RunId,
    run::Lease,
    store::{By, Guarded, RunningMark, StoreError, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::{
    executing::Why,
    node::Node,
    outbox::{End, Ended},
    reports,
    runs::Handover,
};

pub struct Heartbeat {
    node: Arc<Node>,
    extended_at: Option<Timestamp>,
    /// Marks asked for whose answer was lost.
    marking: Option<(Write, Vec<RunningMark>)>,
    /// Leases that the store had for us and we had not, at the last look.
    unlisted: HashSet<Lease>,
}

impl Heartbeat {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, extended_at: None, marking: None, unlisted: HashSet::new() }
    }

    fn to_be_marked(&self, now: Timestamp) -> Vec<RunningMark> {
        let long_ago = self.node.options.mark_after.before(now);
        self.node.executing.slow(|slow| {
            let marks = slow.values().filter(|slow| !slow.marked && slow.started_at <= long_ago);
            marks
                .filter_map(|slow| {
                    let By::Owner(epoch) = slow.by else { return None };
                    Some(RunningMark { lease: slow.lease, part: slow.part, epoch, started_at: slow.started_at })
                })
                .collect()
        })
    }

    async fn mark(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let asked = self.marking.take();
        let again = asked.is_some();
        let (write, marks) = asked.unwrap_or_else(|| (self.node.write(now), self.to_be_marked(now)));
        if marks.is_empty() {
            return Ok(0);
        }
        let answers = match self.node.store.mark_running(&write, &marks).await {
            Ok(answers) => answers,
            Err(error) => {
                // A repeat that is refused says nothing of the first: under another name, what is
                // marked already would be taken for another's, and its attempt stopped.
                if again || is_unknown(&error) {
                    self.marking = Some((write, marks));
                }
                return Err(error);
            }
        };
        for (mark, answer) in marks.iter().zip(&answers) {
            match answer {
                // Asked to stop: its notice will tell.
                Guarded::Applied | Guarded::CancelAsked => self.node.executing.slow(|slow| {
                    if let Some(slow) = slow.get_mut(&mark.lease.run).filter(|slow| slow.lease == mark.lease) {
                        slow.marked = true;
                    }
                }),
                // Its partition is being given away, and it is kept by a lease.
                Guarded::Stale if matches!(self.node.runs.handover(mark.lease), Handover::Asked | Handover::Leased) => {
                }
                // One that ended meanwhile is out of reach, and settled.
                Guarded::Stale => {
                    self.node.runs.refuse([(mark.lease, By::Owner(mark.epoch))]);
                    self.node.executing.lose(mark.lease);
                }
            }
        }
        Ok(answers.len())
    }

    async fn extend(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let options = &self.node.options;
        let asked = self.node.coming.take_cancel_asked();
        if !asked && self.extended_at.is_some_and(|at| now < options.extend_every.after(at)) {
            return Ok(0);
        }
        let held = self.node.runs.leases();
        let (began, until) = (self.node.clock.uptime(), options.run_lease.after(self.node.clock.latest()));
        if held.is_empty() && self.unlisted.is_empty() {
            self.extended_at = Some(now);
            self.node.rights.extended(now, began);
            return Ok(0);
        }
        let extended = self.node.store.extend(self.node.worker, until, &held, now).await?;
        self.extended_at = Some(now);
        self.node.rights.extended(now, began);
        self.node.rights.leased(began);
        let by_run: HashMap<RunId, Lease> = held.iter().map(|lease| (lease.run, *lease)).collect();
        for run in &extended.lost {
            if !self.node.executing.stop(*run, Why::Lost)
                && let Some(lease) = by_run.get(run)
            {
                // Held back, or already on its way to be settled.
                self.node.drop_in_flight([*lease]);
            }
        }
        self.tell_cancelled(&extended.cancelling, now).await?;
        self.give_back_unlisted(extended.unlisted, now).await?;
        Ok(held.len())
    }

    async fn tell_cancelled(&self, runs: &[RunId], now: Timestamp) -> Result<(), StoreError> {
        let known = self.node.runs.cancels(runs.iter());
        // This node knows it from whoever asked it, and the attempt does not yet.
        for (run, request) in &known {
            self.node.executing.stop(*run, Why::Cancelled { grace_until: request.grace_until.max(now) });
        }
        let news: Vec<RunId> = runs.iter().copied().filter(|run| !known.contains_key(run)).collect();
        if news.is_empty() {
            return Ok(());
        }
        for record in self.node.store.runs(&news).await?.into_iter().flatten() {
            let Some(request) = record.run.cancel else { continue };
            let grace_until = request.grace_until.max(now);
            self.node.runs.note_cancel(record.run.id, request);
            if !self.node.executing.stop(record.run.id, Why::Cancelled { grace_until }) {
                self.node.wake.dispatch.notify_one();
                self.node.wake.claim.notify_one();
            }
        }
        Ok(())
    }

    /// A claim whose answer never came left leases that nobody knows of. One
    /// that is not listed twice is not just on its way.
    async fn give_back_unlisted(&mut self, unlisted: Vec<Lease>, now: Timestamp) -> Result<(), StoreError> {
        let again: Vec<RunId> = unlisted
            .iter()
            .filter(|lease| self.unlisted.contains(lease) && self.node.runs.in_flight(lease.run).is_none())
            .map(|lease| lease.run)
            .collect();
        self.unlisted = unlisted.into_iter().collect();
        if again.is_empty() {
            return Ok(());
        }
        let records = self.node.store.runs(&again).await?;
        let mut ended = Vec::new();
        for run in records.into_iter().flatten().map(|record| record.run) {
            if self.unlisted.contains(&run.lease()) && self.node.runs.add(&run, By::Lease) {
                ended.push(Ended::decided(run, By::Lease, End::HandedBack, now));
            }
        }
        self.node.post(ended);
        Ok(())
    }

    /// Writes away the latest progress of each attempt. It may be the last one, so
    /// it is kept where the store cannot be reached, or does not know yet that the attempt
    /// has begun.
    async fn write_progress(&self) -> Result<usize, StoreError> {
        let latest = self.node.reports.take_progress();
        if latest.is_empty() {
            return Ok(0);
        }
        let said: Vec<(Lease, String)> =
            latest.iter().map(|(lease, progress)| (*lease, reports::text(progress))).collect();
        let answers = match self.node.store.progress(&said).await {
            Ok(answers) => answers,
            Err(error) => {
                self.node.reports.keep_progress(latest);
                return Err(error);
            }
        };
        let count = latest.len();
        let goes_on = |lease: &Lease| self.node.runs.in_flight(lease.run) == Some(*lease);
        let untaken = latest.into_iter().zip(answers).filter(|(_, answer)| *answer == Guarded::Stale);
        self.node.reports.keep_progress(untaken.map(|(progress, _)| progress).filter(|(lease, _)| goes_on(lease)));
        Ok(count)
    }

    /// Writes away what attempts have said. Also asked for before a stop.
    pub async fn write_reports(&self) -> Result<usize, StoreError> {
        let mut done = self.write_progress().await?;
        done += self.node.reports.write_logs(self.node.store.as_ref()).await?;
        Ok(done)
    }
}

#[async_trait]
impl Stage for Heartbeat {
    fn name(&self) -> &'static str {
        "heartbeat"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        let mut done = self.extend(now).await?;
        done += self.mark(now).await?;
        done += self.write_reports().await?;
        Ok(PassReport { done, more: false, next_at: Some(self.node.options.watch_every.after(now)) })
    }

    fn stepped(&mut self, _now: Timestamp) {
        self.extended_at = None;
    }
}
