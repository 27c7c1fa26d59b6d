//! Definitions: tenants, lanes, jobs, schedules, calendars, pauses.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Guarded, StoreError, Write};
use crate::{
    after::AfterRefusal,
    fire::{self, Cursor, Progress, SkipRange, Stored},
    ids::{JobId, Partition, RunId, ScheduleId, TenantId},
    job::After,
    lane::{Lane, LaneKey, LaneMode},
    quota::Held,
    run::{CancelAsk, Status},
};

/// A tenant's class, which sets its weight and its [quotas](crate::quota).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Free,
    Pro,
    Enterprise,
    /// The one tenant of a single-user install.
    Unlimited,
}

impl Tier {
    /// The share of the workers relative to others.
    pub const fn weight(self) -> u32 {
        match self {
            Self::Free => 1,
            Self::Pro => 3,
            Self::Enterprise | Self::Unlimited => 10,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TenantPut {
    pub name: String,
    pub tier: Tier,
    /// Quotas that differ from the tier's, JSON.
    pub quotas: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    pub id: TenantId,
    pub name: String,
    pub tier: Tier,
    pub quotas: Option<String>,
}

/// A job is deleted, and its live runs with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    pub job: JobId,
    /// What its runs are told.
    pub ask: CancelAsk,
    /// What runs may go on to its end.
    pub keep_running: bool,
}

impl Deletion {
    /// The runs that are to stop.
    pub fn stops(&self) -> Vec<Status> {
        let mut stops = vec![Status::Scheduled, Status::Blocked, Status::Queued];
        if !self.keep_running {
            stops.extend([Status::Running, Status::Waiting]);
        }
        stops
    }
}

/// What the saver believes to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Anything,
    Nothing,
    Version(i32),
}

/// A job to be saved. The document was validated by its saver.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPut {
    pub tenant: TenantId,
    pub name: String,
    /// Canonical JSON.
    pub document: String,
    /// Of the document: an identical one makes no new version.
    pub hash: [u8; 32],
    pub queue: String,
    pub tags: Vec<String>,
    pub enabled: bool,
    pub by: Option<String>,
    pub expect: Expect,
    /// What it starts after, for the store to know who waits for whom.
    pub after: Option<After>,
    /// What becomes of its schedules; none leaves them as they are.
    pub schedules: Option<SchedulesPut>,
}

/// What becomes of a job's schedules as it is saved, all of it with the job or not at
/// all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulesPut {
    /// The revision of the job that this was decided by; none where there was no job.
    pub seen: Option<i32>,
    /// New and edited ones. They become the job's, whatever job they name.
    pub saved: Vec<SchedulePut>,
    pub ended: Vec<ScheduleId>,
}

impl SchedulesPut {
    pub fn is_empty(&self) -> bool {
        self.saved.is_empty() && self.ended.is_empty()
    }
}

impl JobPut {
    /// The names of the jobs that it starts after.
    pub fn after(&self) -> &[String] {
        self.after.as_ref().map_or(&[], |after| &after.jobs)
    }

    /// Whether its schedules were decided by another revision than the one that is
    /// there.
    pub fn has_moved(&self, revision: Option<i32>) -> bool {
        self.schedules.as_ref().is_some_and(|schedules| schedules.seen != revision)
    }

    /// Whether it changes schedules.
    pub fn has_schedules(&self) -> bool {
        self.schedules.as_ref().is_some_and(|schedules| !schedules.is_empty())
    }
}

/// What became of a job to be saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobSaved {
    Saved {
        id: JobId,
        version: i32,
        revision: i32,
        changed: bool,
    },
    /// What is there is not what the saver expected.
    Conflict {
        version: Option<i32>,
    },
    /// It starts after what is not there, or after what starts after it.
    Refused(AfterRefusal),
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    pub id: JobId,
    pub tenant: TenantId,
    pub name: String,
    pub version: i32,
    /// Rises with every edit, pause and resume.
    pub revision: i32,
    pub document: String,
    pub queue: String,
    pub tags: Vec<String>,
    pub enabled: bool,
    pub pause: Option<Pause>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub deleted: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobVersion {
    pub version: i32,
    pub document: String,
    pub at: Timestamp,
    pub by: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobQuery {
    pub tenant: Option<TenantId>,
    pub tag: Option<String>,
    pub queue: Option<String>,
    /// Names that start so.
    pub prefix: Option<String>,
    pub enabled: Option<bool>,
    pub after: Option<JobCursor>,
    pub limit: u32,
}

/// Jobs are listed by tenant and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCursor {
    pub tenant: TenantId,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobPage {
    pub jobs: Vec<JobRecord>,
    pub next: Option<JobCursor>,
}

/// A schedule to be saved, armed by its saver.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePut {
    /// Reserved before for a new one.
    pub id: ScheduleId,
    pub job: JobId,
    pub tenant: TenantId,
    pub name: String,
    /// The [`crate::schedule::ScheduleSpec`], JSON.
    pub spec: String,
    /// As its job allows: a schedule of a job that is off is off.
    pub enabled: bool,
    /// Its cursor, and what is behind it with this definition; nothing for a new
    /// one. One that waits for its run keeps being armed by it.
    pub stored: Stored,
    /// Instants that the change leaves out.
    pub skips: Vec<SkipRange>,
    /// What the saver read; none for a new schedule.
    pub guard: Option<ScheduleGuard>,
}

impl SchedulePut {
    /// A stored schedule as it is, with another cursor in the place of `held`.
    pub fn moving(record: ScheduleRecord, held: Option<Cursor>, cursor: Option<Cursor>) -> Self {
        let guard = record.guard(held);
        let stored = Stored { cursor, behind: record.progress, waits_for_run: false };
        let ScheduleRecord { id, job, tenant, name, spec, enabled, .. } = record;
        Self { id, job, tenant, name, spec, enabled, stored, skips: Vec::new(), guard: Some(guard) }
    }
}

/// A schedule as read, so that a change made meanwhile is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleGuard {
    pub revision: i32,
    pub cursor: Option<Cursor>,
    /// Tells of a fire and the end of its run that came between, where there is
    /// no cursor before or after.
    pub behind: Progress,
    /// Tells of the end of a run that arms nothing, because the schedule is off.
    pub armed_by: Option<RunId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleSaved {
    Saved {
        revision: i32,
    },
    /// It was fired or changed since it was read, or the name is taken.
    Stale,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleRecord {
    pub id: ScheduleId,
    pub job: JobId,
    pub tenant: TenantId,
    pub name: String,
    pub part: Partition,
    pub revision: i32,
    pub spec: String,
    /// As its job allows: a schedule of a job that is off is off.
    pub enabled: bool,
    pub pause: Option<Pause>,
    /// What is behind it: all while it has no cursor, as its run lives or it
    /// ended; beside a cursor, what its former definitions decided.
    pub progress: Progress,
    /// The run whose end re-arms an `after_finish` schedule.
    pub armed_by: Option<RunId>,
    pub deleted: bool,
}

impl ScheduleRecord {
    /// What a change of it rests on, with the cursor that was read beside it.
    pub fn guard(&self, cursor: Option<Cursor>) -> ScheduleGuard {
        ScheduleGuard { revision: self.revision, cursor, behind: self.progress, armed_by: self.armed_by }
    }

    /// What of it an edit goes by.
    pub fn stored(&self, cursor: Option<Cursor>) -> Stored {
        Stored { cursor, behind: self.progress, waits_for_run: self.armed_by.is_some() }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScheduleQuery {
    pub tenant: Option<TenantId>,
    pub job: Option<JobId>,
    pub enabled: Option<bool>,
    pub after: Option<ScheduleId>,
    pub limit: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePage {
    pub schedules: Vec<ScheduleRecord>,
    pub next: Option<ScheduleId>,
}

/// A schedule's cursor with what guards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DueCursor {
    pub schedule: ScheduleId,
    pub part: Partition,
    pub revision: i32,
    pub cursor: Cursor,
}

/// A recorded stretch of skipped instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipRecord {
    pub schedule: ScheduleId,
    pub range: SkipRange,
}

/// A pause and why. One that has ended is kept with its end, and so are those
/// before it: the instants inside them are recorded as paused only while planning is
/// told of them, and would otherwise be caught up with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Pauses of the same thing that ended before this one began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<fire::Pause>,
}

/// Ended pauses that are kept with the last one. What they covered is decided
/// within seconds of their end, unless no scheduler runs.
const PAST_MAX: usize = 8;

impl Pause {
    /// The times that it and those before it cover, which is all that planning
    /// needs of them.
    pub fn spans(&self) -> impl Iterator<Item = fire::Pause> {
        self.past.iter().copied().chain([self.span()])
    }

    fn span(&self) -> fire::Pause {
        fire::Pause { since: self.since, until: self.until }
    }

    /// Whether it is in force. It is from when it was written, by whatever clock: one
    /// that is behind, or was set back since, must neither lift it nor keep anybody
    /// from lifting it.
    pub fn holds(&self, at: Timestamp) -> bool {
        self.until.is_none_or(|until| at < until)
    }

    /// This pause in the place of `old`. One that is in force goes on, with another
    /// end: what it has covered so far stays covered.
    #[must_use]
    pub fn over(mut self, old: Option<Self>) -> Self {
        let Some(old) = old else { return self };
        let goes_on = old.until.is_none_or(|until| self.since <= until);
        let span = old.span();
        self.past = old.past;
        if goes_on {
            self.since = self.since.min(old.since);
        } else {
            self.past.push(span);
        }
        if self.past.len() > PAST_MAX {
            let oldest = self.past.remove(0);
            self.past[0].since = oldest.since;
        }
        self
    }

    /// This pause, lifted at `now`.
    #[must_use]
    pub fn lifted(self, now: Timestamp) -> Self {
        let until = self.until.map_or(now, |until| until.min(now)).max(self.since);
        Self { until: Some(until), ..self }
    }
}

/// What can be paused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseTarget {
    Tenant(TenantId),
    Queue(TenantId, String),
    Job(JobId),
    Schedule(ScheduleId),
}

/// The pauses of tenants and queues, ended ones among them, with the revision that
/// firing must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pauses {
    pub revision: i64,
    pub pauses: Vec<(PauseTarget, Pause)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CalendarPut {
    pub tenant: TenantId,
    pub name: String,
    /// JSON.
    pub spec: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    pub tenant: TenantId,
    pub name: String,
    pub spec: String,
    pub revision: i32,
}

/// What a step of a walk through the schedules of partitions found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewPage {
    pub schedules: Vec<ScheduleId>,
    /// Where the next step begins; nothing when all were seen.
    pub next: Option<ScheduleId>,
}

/// Tenants, by name.
#[async_trait]
pub trait TenantStore: Send + Sync {
    /// Saves tenants by name and answers their ids.
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError>;

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;

    /// How many of something that counts at `now` a tenant has, counted up to `most`.
    async fn count_held(&self, tenant: TenantId, what: Held, most: u64, now: Timestamp) -> Result<u64, StoreError>;
}

/// Lanes, by what they take.
#[async_trait]
pub trait LaneStore: Send + Sync {
    /// The lane for each key that takes new runs, made with `mode` where there
    /// is none.
    async fn lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError>;

    /// Every lane, retired ones included.
    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError>;
}

/// Jobs as they are stored.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Deletions whose runs may still live, each with when it was; longest ago first.
    async fn deletions(&self, limit: u32) -> Result<Vec<(Timestamp, Deletion)>, StoreError>;

    /// Nothing of these deleted jobs lives any more. From `now` on they are kept only
    /// for as long as what is known of their runs.
    async fn forget_deletions(&self, jobs: &[JobId], now: Timestamp) -> Result<(), StoreError>;

    /// Jobs by id, deleted ones included.
    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError>;

    /// Jobs by name; deleted ones are not found.
    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError>;

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError>;

    /// The newest versions first.
    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError>;

    /// One version's document.
    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError>;
}

/// Schedules and their cursors as they are stored.
#[async_trait]
pub trait ScheduleStore: Send + Sync {
    /// How many schedules are due in each of these seconds, of what they owe
    /// next; each counted up to `most`.
    async fn count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError>;

    /// Reserves `count` ids in a row and answers the first.
    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError>;

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError>;

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError>;

    /// The cursors of schedules, of those that are off or gone as well.
    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<DueCursor>>, StoreError>;

    /// Recorded skips of a schedule, newest first, from before `before`.
    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError>;
}

/// Changes of jobs, each under the name of its batch.
#[async_trait]
pub trait JobChanges: Send + Sync {
    /// Saves jobs by name. An identical document makes no new version. Those that
    /// would start each other for ever, as [`refusals`](crate::after::refusals)
    /// finds among all that are stored or saved with them, are refused.
    ///
    /// Their schedules are saved with them. If those of one of them are not as they
    /// were read, nothing at all is saved: [`StoreError::Moved`].
    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError>;

    /// Deletes jobs: their schedules end, the rest of their instants are
    /// recorded as deleted, history stays. What is to become of their live runs is
    /// remembered, until [`forget_deletions`](Self::forget_deletions).
    async fn delete_jobs(&self, write: &Write, jobs: &[Deletion]) -> Result<Vec<Guarded>, StoreError>;
}

/// Changes of schedules and of their cursors, and which of them deserve one.
#[async_trait]
pub trait ScheduleChanges: Send + Sync {
    /// Saves schedules. An edited one is guarded by what its saver read.
    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError>;

    /// Looks at the next `limit` schedules of these partitions, by partition and id,
    /// behind one of them, and answers those that deserve a closer look: enabled ones
    /// without a cursor, and cursors that wake at another time than their instant, are
    /// of another revision than their schedule, or of one that is off or gone.
    async fn review(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<ReviewPage, StoreError>;

    /// Has cursors that are still as read wake at another time, or takes them away.
    async fn wake_at(
        &self,
        write: &Write,
        cursors: &[(DueCursor, Option<Timestamp>)],
    ) -> Result<Vec<Guarded>, StoreError>;
}

/// Pauses of tenants, queues, jobs and schedules.
#[async_trait]
pub trait PauseStore: Send + Sync {
    /// Sets pauses, as [`Pause::over`] says, or lifts those that are in force, as
    /// [`Pause::lifted`] does. Each bumps the revision that guards firing. Schedules
    /// that sleep because of the target's own pause wake at their instant; those of a
    /// tenant or queue are for whoever looks after schedules.
    ///
    /// False where there is no such target, or nothing to be lifted.
    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError>;

    /// The pauses of tenants and queues.
    async fn pauses(&self) -> Result<Pauses, StoreError>;
}

/// Calendars, by name.
#[async_trait]
pub trait CalendarStore: Send + Sync {
    async fn put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError>;

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_607_200 + second).unwrap()
    }

    fn pause(since: i64, until: Option<i64>) -> Pause {
        Pause { since: at(since), until: until.map(at), ..Pause::default() }
    }

    fn covered(pause: &Pause) -> Vec<(i64, Option<i64>)> {
        let second = |at: Timestamp| at.as_second() - 1_767_607_200;
        pause.spans().map(|span| (second(span.since), span.until.map(second))).collect()
    }

    /// What a pause has covered so far must not be caught up with because somebody
    /// gave it another end.
    #[test]
    fn a_pause_in_force_that_is_set_again_goes_on() {
        for (old, new, expected) in [
            (pause(0, None), pause(30, Some(60)), vec![(0, Some(60))]),
            (pause(0, Some(90)), pause(30, Some(60)), vec![(0, Some(60))]),
            (pause(0, Some(30)), pause(30, None), vec![(0, None)]),
            (pause(0, Some(10)), pause(30, None), vec![(0, Some(10)), (30, None)]),
        ] {
            assert_eq!(covered(&new.clone().over(Some(old.clone()))), expected, "{old:?} {new:?}");
        }
        assert_eq!(covered(&pause(0, None).lifted(at(7))), [(0, Some(7))]);
        assert_eq!(covered(&pause(0, Some(5)).lifted(at(7))), [(0, Some(5))]);
        assert_eq!(covered(&pause(9, None).lifted(at(7))), [(9, Some(9))], "by a clock that is behind");
    }

    /// A clock that is behind must not start what is paused, nor keep it paused for
    /// good because it cannot see what there is to lift.
    #[test]
    fn a_pause_is_in_force_by_a_clock_that_is_behind() {
        assert!(pause(9, None).holds(at(7)) && pause(9, Some(20)).holds(at(7)));
        assert!(!pause(0, Some(5)).holds(at(7)));
    }

    /// Somebody who pauses and resumes all day must not grow the row without end.
    #[test]
    fn pauses_that_ended_are_kept_up_to_a_bound() {
        let all = (0..100).fold(None, |old, n| Some(pause(n * 10, Some(n * 10 + 5)).over(old))).unwrap();
        let covered = covered(&all);
        assert_eq!((covered.len(), covered[0], covered[PAST_MAX]), (PAST_MAX + 1, (0, Some(915)), (990, Some(995))));
    }
}
