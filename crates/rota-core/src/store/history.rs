//! What happened: runs live and ended as one list, statistics, logs, upkeep.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::{
    duration::Span,
    ids::{JobId, RunId, ScheduleId, TenantId},
    job::failure::Failure,
    rollup::{Rollup, hour_of},
    run::{Run, Status, TrailEntry},
    slot::Slot,
};

/// A run, live or ended, with all that is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    pub run: Run,
    /// When the latest attempt began.
    pub started_at: Option<Timestamp>,
    pub failure: Option<Failure>,
    /// JSON.
    pub output: Option<Box<str>>,
    /// JSON.
    pub progress: Option<Box<str>>,
    pub trail: Vec<TrailEntry>,
}

impl RunRecord {
    /// When the first attempt began. Of a run that a release before schema 19 has moved on,
    /// the first that is known.
    pub fn first_started_at(&self) -> Option<Timestamp> {
        let failed = || self.trail.iter().find_map(TrailEntry::attempt_started_at);
        self.run.first_started_at.or_else(failed).or(self.started_at)
    }
}

/// What stands before a live run. Counts stop beyond [`AHEAD_MAX`](crate::why::AHEAD_MAX).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Ready runs of its lane and tenant that come before it.
    pub ahead: u32,
    /// The counters of its concurrency key.
    pub slot: Option<Slot>,
    /// Runs that wait for the same slot and come before it.
    pub ahead_for_slot: u32,
}

/// From, inclusive, to, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
}

/// Which runs to list. Live ones come first, newest first; then ended ones by
/// their end, latest first.
///
/// Each run is on one page only, also where it ends while the pages are read: a run
/// that lived when the list began is listed by its id, whether it has ended since or
/// not, and one that had ended by its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunQuery {
    pub tenant: Option<TenantId>,
    pub job: Option<JobId>,
    /// Jobs that have this tag now.
    pub tag: Option<String>,
    pub schedule: Option<ScheduleId>,
    pub statuses: Vec<Status>,
    /// Runs that the asker knows to have begun. Where the store has one of them as
    /// queued, it counts as running.
    pub begun: Vec<RunId>,
    /// All of these labels.
    pub labels: Vec<(String, String)>,
    /// By creation for live runs, by end for ended ones.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    /// Ended runs alone: where the history that the asker may see begins.
    pub ended_from: Option<Timestamp>,
    /// When the list is begun, so that only recent history is searched for what ends
    /// meanwhile; without it, all of history is.
    pub now: Option<Timestamp>,
    pub after: Option<RunCursor>,
    pub limit: u32,
}

impl RunQuery {
    /// The earliest end that is asked for.
    pub fn earliest_end(&self) -> Option<Timestamp> {
        self.from.max(self.ended_from)
    }
}

/// Where the next page begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCursor {
    pub place: RunPlace,
    /// What had ended when the list began, as the store tells it. None where the list
    /// is of live runs alone, or of ended ones alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Box<str>>,
}

/// The last run that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPlace {
    /// Among those that lived when the list began.
    Live(RunId),
    /// Among those that had ended.
    Ended(Timestamp, RunId),
}

/// A page may hold fewer runs than asked for, or none, and still have a next:
/// a look is bounded by the rows it reads, not by those it finds.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPage {
    pub runs: Vec<RunRecord>,
    pub next: Option<RunCursor>,
}

/// Some log lines of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    pub run: RunId,
    pub attempt: u16,
    /// Rises within the attempt.
    pub seq: i32,
    pub at: Timestamp,
    /// One JSON line per log line.
    pub lines: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuery {
    pub run: RunId,
    pub attempt: Option<u16>,
    /// After this attempt and sequence.
    pub after: Option<(u16, i32)>,
    pub limit: u32,
}

/// How a dead letter was dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadFate {
    /// A new run was made of it.
    Redriven,
    /// Somebody put it away.
    Discarded,
}

/// What somebody did about a run that had ended. History itself never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMark {
    pub fate: DeadFate,
    pub by: Option<String>,
    pub at: Timestamp,
}

impl DeadMark {
    /// Marks outlive the runs they are of by this: a run that is still listed has
    /// its mark, however long its day takes to go.
    pub const KEPT_BEYOND: Span = Span::secs(2 * 86_400);
}

/// Dead letters that nobody has dealt with, of all tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenDead {
    /// How many; no more than were counted.
    pub count: u64,
    /// When the oldest of them died.
    pub oldest_at: Option<Timestamp>,
}

/// What upkeep keeps.
#[derive(Clone, Copy, Debug)]
pub struct Tend {
    pub now: Timestamp,
    pub history_keep: Span,
    pub skips_keep: Span,
    /// Batch rows: how long a lost answer may be asked for again.
    pub batches_keep: Span,
    /// The audit log, and tokens that no longer count.
    pub audit_keep: Span,
}

/// Days go whole: what is of one may be there a day longer than it is kept.
const DAY: Span = Span::secs(86_400);

/// Longer than any schedule catches up with, unless it was told to.
const PAUSES_KEPT: Span = Span::secs(366 * 86_400);

impl Tend {
    /// Finished runs that ended before this go, and their logs with them.
    pub fn history_before(&self) -> Timestamp {
        self.history_keep.before(self.now)
    }

    /// Roll-ups of hours before this one go: whatever window of statistics ends in
    /// kept history is whole.
    pub fn rollups_before(&self) -> i64 {
        hour_of(Rollup::KEPT_BEYOND.before(self.history_before()))
    }

    /// Jobs and schedules that were deleted before this go: nothing that is kept of
    /// them is younger, neither runs nor skips.
    pub fn deleted_before(&self) -> Timestamp {
        DAY.before(self.history_before()).min(self.skips_keep.before(self.now))
    }

    /// Versions that nothing has used since go. A run that was made of one just
    /// before may have lived as long as history is kept, and is then kept as long
    /// again; one that lives longer is seen to use it.
    pub fn versions_before(&self) -> Timestamp {
        DAY.before(self.history_keep.before(self.history_before()))
    }

    /// Runs that were made before this and live still may be of a version that goes.
    pub fn old_runs_before(&self) -> Timestamp {
        self.history_before()
    }

    /// Pauses of tenants and queues that ended before this go, once nothing is left to
    /// be decided of the time that they covered.
    pub fn pauses_before(&self) -> Timestamp {
        PAUSES_KEPT.before(self.now)
    }
}

/// What a slice of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tended {
    pub folded: u64,
    pub indexed: u64,
    pub purged: u64,
    /// There is more to do.
    pub more: bool,
}

/// A row that cannot be read: reads leave it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    /// As the database calls it; `history` for all tables of ended runs.
    pub table: String,
    pub key: String,
    pub reason: String,
}

/// What became of a row that was to be discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    Gone,
    /// There is no such row, or it can be read.
    NotFound,
    /// Rows of its table are not discarded: why not, and what to do instead.
    Refused(&'static str),
}

/// Runs, live and ended, as one list.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Runs by id, live or ended.
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError>;

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError>;
}

/// How runs have gone, by the hour.
#[async_trait]
pub trait RollupStore: Send + Sync {
    /// A job's roll-ups by hour since the epoch, settled batches not yet folded
    /// included.
    async fn rollups(&self, job: JobId, from_hour: i64, to_hour: i64) -> Result<Vec<(i64, Rollup)>, StoreError>;
}

/// What attempts have logged.
#[async_trait]
pub trait LogStore: Send + Sync {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<(), StoreError>;

    async fn logs(&self, query: &LogQuery) -> Result<Vec<LogChunk>, StoreError>;
}

/// Dead letters, and what became of them.
#[async_trait]
pub trait DeadStore: Send + Sync {
    /// What was done about runs that had ended; none where nobody did anything. A run
    /// that is made again is marked in the transaction that makes it
    /// ([`Trigger::redrives`](crate::run::Trigger::redrives)).
    async fn dead_marks(&self, runs: &[RunId]) -> Result<Vec<Option<DeadMark>>, StoreError>;

    /// Dead letters that nobody has dealt with, counted up to `most`. What it costs
    /// depends on them alone and not on how long history is.
    async fn open_dead(&self, most: u32) -> Result<OpenDead, StoreError>;

    /// Puts ended runs away. What was marked before stays as it was; answers whether
    /// each is put away now, however often it is asked.
    async fn discard(&self, runs: &[RunId], by: &str, now: Timestamp) -> Result<Vec<bool>, StoreError>;
}

/// Rows that cannot be read.
#[async_trait]
pub trait UnreadableStore: Send + Sync {
    /// Rows that cannot be read, named: the live runs that were set aside for it, and
    /// what else this store has met since it was opened. No more than a hundred.
    async fn unreadable(&self) -> Result<Vec<UnreadableRow>, StoreError>;

    /// Notes why a definition that was read cannot be understood, or that it can be. Only
    /// who uses it can tell; those that cannot be are named by [`Self::unreadable`].
    fn note_definition(&self, table: &'static str, key: &str, broken: Option<&str>);

    /// The columns of a row that [`Self::unreadable`] can name, as they are stored, but for
    /// secrets.
    async fn raw_row(&self, table: &str, key: &str) -> Result<Option<serde_json::Value>, StoreError>;

    /// Deletes a row that cannot be read, where nothing depends on it. Slots and joins of a
    /// live run are put right by the next recount, and a schedule without a cursor by the
    /// scanner.
    async fn discard_row(&self, table: &str, key: &str) -> Result<Discarded, StoreError>;
}

/// What is cleared away and counted in the background.
#[async_trait]
pub trait UpkeepStore: Send + Sync {
    /// Does one short slice of upkeep: folds roll-ups, orders indexes, drops
    /// what is too old. Never holds the writer for more than about 10 ms.
    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError>;
}
