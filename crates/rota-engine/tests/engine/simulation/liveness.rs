//! Liveness, exactly: every schedule has the cursor that its definition, its job, its
//! last run and the pauses imply, and fires when its instant comes.

use std::sync::Arc;

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::{self, Around, LastRun, SkipReason},
    ids::ScheduleId,
    run::RunState,
    store::*,
};
use rota_engine::catalog::{JobEntry, JobVersion, ScheduleEntry};

use super::witness::{LOSSES_MAX, Seen, Witness};
use crate::faulty::wait;

/// An instant is fired so soon when nothing is wrong.
const LATE_MAX: Span = Span::millis(2_500);

impl Seen {
    /// The targets whose pauses hold for a schedule.
    fn targets(&self, schedule: ScheduleId) -> Vec<PauseTarget> {
        let Some(book) = self.books.get(&schedule) else { return Vec::new() };
        let Some(job) = self.jobs.get(&book.job) else { return Vec::new() };
        vec![
            PauseTarget::Schedule(schedule),
            PauseTarget::Job(book.job),
            PauseTarget::Tenant(book.tenant),
            PauseTarget::Queue(book.tenant, job.document.queue_name().to_owned()),
        ]
    }

    pub fn is_paused(&self, schedule: ScheduleId, now: Timestamp) -> bool {
        let holds = |target: &PauseTarget| self.pauses.get(target).is_some_and(|pause| pause.holds(now));
        self.targets(schedule).iter().any(holds)
    }

    /// The schedules that a pause of these targets puts to sleep.
    pub fn covered_by(&self, targets: &[PauseTarget]) -> Vec<ScheduleId> {
        let is_covered = |schedule: &ScheduleId| self.targets(*schedule).iter().any(|target| targets.contains(target));
        self.books.keys().copied().filter(is_covered).collect()
    }
}

impl Witness {
    /// Whether a schedule's cursor is the one that everything else implies.
    pub fn implied(&self, record: &ScheduleRecord, held: Option<DueCursor>, now: Timestamp) -> Result<(), String> {
        let id = record.id;
        let job = wait(self.store.jobs(&[record.job])).unwrap().pop().flatten();
        let Some(job) = job.filter(|job| !job.deleted && !record.deleted) else {
            return held.map_or(Ok(()), |held| Err(format!("schedule {id} is gone and has {held:?}")));
        };
        self.enabled_as_saved(record)?;
        let entry = ScheduleEntry::read(record.clone())?;
        let version = JobVersion::read(job.id, job.version, &job.document, LOSSES_MAX)?;
        let wide = wait(self.store.pauses()).unwrap();
        let pauses = entry.pauses(&JobEntry { record: job, version: Arc::new(version) }, &wide);
        let last_run = match record.armed_by {
            None => LastRun::None,
            Some(run) => match wait(self.store.runs(&[run])).unwrap().pop().flatten().map(|found| found.run.state) {
                Some(RunState::Finished { at, .. }) => LastRun::Ended(at),
                Some(_) => LastRun::Lives,
                None => LastRun::Ended(now),
            },
        };
        let rated = self.with(|seen| seen.rates.is_limited(record.tenant));
        let cursor = held.map(|held| held.cursor);
        let around = Around { last_run, pauses: &pauses, rated };
        let implied = |now| fire::implied(&entry.schedule, id, record.stored(cursor), &around, now);
        let revision = held.is_none_or(|held| held.revision == record.revision);
        // Whoever put it to sleep may have had a clock that is ahead.
        if revision && [now, self.weather.latest()].into_iter().any(|now| implied(now) == cursor) {
            return Ok(());
        }
        let implied = implied(now);
        Err(format!("schedule {id} has {held:?} at revision {}, and {implied:?} is implied", record.revision))
    }

    /// Schedules whose own pause, or whose job's, was changed do not sleep on because of
    /// what it was before.
    pub fn awake(&self, targets: &[PauseTarget], now: Timestamp) {
        let scanned = |at: Timestamp| Span::secs(5).after(at) < self.weather.now();
        if !self.with(|seen| seen.wide_changed_at).is_none_or(scanned) {
            return;
        }
        let narrow = |target: &&PauseTarget| matches!(target, PauseTarget::Job(_) | PauseTarget::Schedule(_));
        let narrow: Vec<PauseTarget> = targets.iter().filter(narrow).cloned().collect();
        self.armed(&self.with(|seen| seen.covered_by(&narrow)), now);
    }

    /// Schedules that were just saved or woken are armed as everything else implies.
    pub fn armed(&self, ids: &[ScheduleId], now: Timestamp) {
        let cursors = wait(self.store.cursors(ids)).unwrap();
        for (record, held) in wait(self.store.schedules(ids)).unwrap().into_iter().zip(cursors) {
            let (Some(record), Some(_)) = (record, held) else { continue };
            if let Err(wrong) = self.implied(&record, held, now.max(self.weather.latest())) {
                self.with(|seen| seen.wrong(format!("after a change of it: {wrong}")));
            }
        }
    }

    /// A schedule is on if its document and its job say so.
    fn enabled_as_saved(&self, record: &ScheduleRecord) -> Result<(), String> {
        self.with(|seen| {
            let Some(job) = seen.jobs.get(&record.job) else { return Ok(()) };
            let spec = job.document.schedules.iter().find(|spec| spec.name == record.name);
            let on = spec.is_some_and(|spec| spec.enabled) && job.document.is_enabled();
            if on == record.enabled {
                return Ok(());
            }
            Err(format!("schedule {} is enabled: {}, and was saved as {on}", record.id, record.enabled))
        })
    }

    /// Every instant of the last seconds was fired on its time, or left out by a policy
    /// of its schedule.
    pub fn prompt(&self, now: Timestamp) {
        let window = (Span::secs(7).before(now), Span::secs(3).before(now));
        let ids: Vec<ScheduleId> = self.with(|seen| {
            let fires = |id: &ScheduleId| {
                let book = &seen.books[id];
                book.enabled && !book.deleted && !book.is_after_finish() && !seen.rates.is_limited(book.tenant)
            };
            let awake = |id: &ScheduleId| !seen.is_paused(*id, window.0) && !seen.is_paused(*id, now);
            seen.books.keys().copied().filter(|id| fires(id) && awake(id)).collect()
        });
        for id in ids {
            let skips = wait(self.store.skips(id, None, 100)).unwrap();
            self.with(|seen| {
                let book = &seen.books[&id];
                let wrong = book.instants(window.0, window.1).into_iter().find_map(|at| {
                    let skip = skips.iter().find(|skip| skip.range.from <= at && at <= skip.range.to);
                    match (book.fired_at.get(&at), skip.map(|skip| skip.range.reason)) {
                        (Some(fired_at), _) if *fired_at <= LATE_MAX.after(at) => None,
                        (None, Some(SkipReason::Overlap | SkipReason::Unique)) => None,
                        (fired_at, skip) => Some(format!(
                            "schedule {id} of {}: {at} was fired at {fired_at:?}, skip {skip:?}",
                            book.job
                        )),
                    }
                });
                if let Some(wrong) = wrong {
                    seen.wrong(wrong);
                }
            });
        }
    }
}
