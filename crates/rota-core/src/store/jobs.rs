//! Definitions: tenants, lanes, jobs, schedules, calendars, pauses.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Guarded, StoreError, Write};
use crate::{
    after::AfterRefusal,
    duration::Span,
    fire::{self, Cursor, Progress, SkipRange},
    ids::{JobId, LaneId, Partition, ScheduleId, TenantId},
    job::After,
    lane::{Lane, LaneKey, LaneMode},
    schedule::ScheduleSpec,
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
    pub enabled: bool,
    /// The delay of an `after_finish` schedule, in milliseconds.
    pub after_finish_ms: Option<u64>,
    pub cursor: Option<Cursor>,
    /// What is behind it with this definition; nothing for a new one.
    pub behind: Progress,
    /// Instants that the change leaves out.
    pub skips: Vec<SkipRange>,
    /// What the saver read; none for a new schedule.
    pub guard: Option<ScheduleGuard>,
}

impl SchedulePut {
    /// A stored schedule as it is, with another cursor in the place of `held`.
    pub fn moving(record: ScheduleRecord, spec: &ScheduleSpec, held: Option<Cursor>, cursor: Cursor) -> Self {
        let guard = record.guard(held);
        Self {
            id: record.id,
            job: record.job,
            tenant: record.tenant,
            name: record.name,
            spec: record.spec,
            enabled: record.enabled,
            after_finish_ms: spec.after_finish.map(Span::as_millis),
            cursor: Some(cursor),
            behind: record.progress,
            skips: Vec::new(),
            guard: Some(guard),
        }
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
    pub enabled: bool,
    pub pause: Option<Pause>,
    /// What is behind it: all while it has no cursor, as its run lives or it
    /// ended; beside a cursor, what its former definitions decided.
    pub progress: Progress,
    /// The run whose end re-arms an `after_finish` schedule.
    pub armed_by: Option<crate::ids::RunId>,
    pub deleted: bool,
}

impl ScheduleRecord {
    /// What a change of it rests on, with the cursor that was read beside it.
    pub fn guard(&self, cursor: Option<Cursor>) -> ScheduleGuard {
        ScheduleGuard { revision: self.revision, cursor, behind: self.progress }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A pause and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Pause {
    /// The time it covers, which is all that planning needs of it.
    ///
    /// To resume, set the pause again with `until` at now rather than taking it
    /// away: the instants inside it are recorded as paused only while the
    /// planner is told of it, and would else be caught up.
    pub fn span(&self) -> fire::Pause {
        fire::Pause { since: self.since, until: self.until }
    }

    /// Whether it is in force.
    pub fn holds(&self, at: Timestamp) -> bool {
        self.span().covers(at)
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

/// The pauses of tenants and queues in force, with the revision that firing
/// must know.
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
pub struct UnarmedPage {
    pub schedules: Vec<ScheduleId>,
    /// Where the next step begins; nothing when all were seen.
    pub next: Option<ScheduleId>,
}

#[async_trait]
pub trait JobStore: Send + Sync {
    /// Saves tenants by name and answers their ids.
    async fn put_tenants(&self, tenants: &[TenantPut], now: Timestamp) -> Result<Vec<TenantId>, StoreError>;

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;

    /// The lane for each key that takes new runs, made with `mode` where there
    /// is none.
    async fn lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError>;

    /// Every lane, retired ones included.
    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError>;

    /// Retires a lane and opens its successor with `mode`. A lane that is
    /// retired already, or has that mode, answers with the one in its place.
    async fn turn_lane(&self, lane: LaneId, mode: LaneMode) -> Result<Lane, StoreError>;

    /// Saves jobs by name. An identical document makes no new version. Those that
    /// would start each other for ever, as [`refusals`](crate::after::refusals)
    /// finds among all that are stored or saved with them, are refused.
    ///
    /// Their schedules are saved with them. If those of one of them are not as they
    /// were read, nothing at all is saved: [`StoreError::Moved`].
    async fn put_jobs(&self, write: &Write, jobs: &[JobPut]) -> Result<Vec<JobSaved>, StoreError>;

    /// Deletes jobs: their schedules end, the rest of their instants are
    /// recorded as deleted, history stays.
    async fn delete_jobs(&self, write: &Write, jobs: &[JobId]) -> Result<Vec<Guarded>, StoreError>;

    /// Jobs by id, deleted ones included.
    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRecord>>, StoreError>;

    /// Jobs by name; deleted ones are not found.
    async fn find_jobs(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<JobRecord>>, StoreError>;

    async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError>;

    /// The newest versions first.
    async fn job_versions(&self, job: JobId, limit: u32) -> Result<Vec<JobVersion>, StoreError>;

    /// One version's document.
    async fn job_document(&self, job: JobId, version: i32) -> Result<Option<String>, StoreError>;

    /// How many enabled schedules a tenant has, counted up to `most`.
    async fn count_schedules(&self, tenant: TenantId, most: u64) -> Result<u64, StoreError>;

    /// How many schedules are due in each of these seconds, of what they owe
    /// next; each counted up to `most`.
    async fn count_due(&self, seconds: &[Timestamp], most: u64) -> Result<Vec<u64>, StoreError>;

    /// Reserves `count` ids in a row and answers the first.
    async fn reserve_schedules(&self, count: u32) -> Result<ScheduleId, StoreError>;

    /// Saves schedules. An edited one is guarded by what its saver read.
    async fn put_schedules(&self, write: &Write, schedules: &[SchedulePut]) -> Result<Vec<ScheduleSaved>, StoreError>;

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<ScheduleRecord>>, StoreError>;

    async fn find_schedules(&self, names: &[(JobId, String)]) -> Result<Vec<Option<ScheduleRecord>>, StoreError>;

    async fn list_schedules(&self, query: &ScheduleQuery) -> Result<SchedulePage, StoreError>;

    /// The cursors of schedules, found by a look through their partitions: for
    /// edits and explanations, not for firing.
    async fn cursors(&self, schedules: &[ScheduleId]) -> Result<Vec<Option<Cursor>>, StoreError>;

    /// Looks at the next `limit` enabled schedules of these partitions, by partition
    /// and id, behind one of them: those without a cursor. They have ended, wait for
    /// the run that will arm them, or should not be so.
    async fn unarmed(
        &self,
        parts: &[Partition],
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<UnarmedPage, StoreError>;

    /// Recorded skips of a schedule, newest first, from before `before`.
    async fn skips(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<SkipRecord>, StoreError>;

    /// Sets or lifts pauses. Each bumps the revision that guards firing.
    /// False where there is no such target.
    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError>;

    /// The pauses of tenants and queues.
    async fn pauses(&self) -> Result<Pauses, StoreError>;

    async fn put_calendars(&self, calendars: &[CalendarPut], now: Timestamp) -> Result<(), StoreError>;

    async fn calendars(&self, tenant: TenantId) -> Result<Vec<Calendar>, StoreError>;
}
