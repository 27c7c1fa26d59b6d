//! How the domain is written in columns, the same in both stores.
//!
//! Numbers here are in stored rows: they are never changed, only added to.
//! Times are microseconds since the epoch.

use jiff::Timestamp;
use rota_core::{
    fire::SkipReason,
    ids::{JobId, LaneId, Partition, RunId, ScheduleId, TenantId, WorkerId},
    job::{After, AfterEnd, failure::Failure},
    lane::LaneMode,
    order::OrderKey,
    quota::Delay,
    run::{
        Block, CancelRequest, Duties, Ending, Fence, Hold, Labels, NewRun, Parent, Redrive, Run, RunState, SlotClaim,
        SlotUse, Source, Trigger, Verdict, WAITS_MAX, WaitFor,
    },
    slot::SlotKey,
    store::{DeadFate, StoreError, Tier, WorkerInfo},
    stored,
    trace::TraceParent,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// The values of `run.status`.
pub mod status {
    pub const SCHEDULED: i16 = 0;
    /// Blocked for a slot.
    pub const BLOCKED: i16 = 1;
    pub const QUEUED: i16 = 2;
    pub const RUNNING: i16 = 3;
    pub const WAITING: i16 = 4;
    pub const CANCELLING: i16 = 5;
    /// Blocked for other runs.
    pub const NEEDS: i16 = 6;
    /// Added to the status of a run whose row cannot be read. No statement looks for
    /// such a code, so the run is in nobody's way until somebody discards it.
    pub const SET_ASIDE: i16 = 100;

    /// Whether no version of Rota up to this one has written such a code.
    pub fn is_unknown(code: i16) -> bool {
        code < SET_ASIDE && !(SCHEDULED..=NEEDS).contains(&code)
    }
}

/// Codes and sets of them for statements, which are put together when they are compiled.
pub mod sql {
    use const_format::formatcp;
    use rota_core::{lane::LaneMode, run::Verdict};

    pub use super::status::{BLOCKED, CANCELLING, NEEDS, QUEUED, RUNNING, SCHEDULED};
    use super::{mode_code, status::WAITING, verdict_code};

    /// The runs that hold a slot.
    pub const HOLDING: &str = formatcp!("{QUEUED}, {RUNNING}, {WAITING}, {CANCELLING}");
    /// The runs that the counters of a slot know of.
    pub const COUNTED: &str = formatcp!("{BLOCKED}, {HOLDING}");
    /// The runs that somebody may be executing.
    pub const EXECUTED: &str = formatcp!("{QUEUED}, {BEGUN}");
    /// Those of them that are known to have been begun, or were asked to stop.
    pub const BEGUN: &str = formatcp!("{RUNNING}, {CANCELLING}");
    /// The runs that nobody can be executing.
    pub const NOT_EXECUTED: &str = formatcp!("{SCHEDULED}, {BLOCKED}, {WAITING}, {NEEDS}");

    const SUCCEEDED: i16 = verdict_code(Verdict::Succeeded);
    const CANCELLED: i16 = verdict_code(Verdict::Cancelled);
    pub const DEAD: i16 = verdict_code(Verdict::Dead);
    /// The ends that stand although a cancel was asked for.
    pub const ANSWERS_CANCEL: &str = formatcp!("{SUCCEEDED}, {CANCELLED}");

    pub const OWNED_LANE: i16 = mode_code(LaneMode::Owned);
    pub const CLAIMED_LANE: i16 = mode_code(LaneMode::Claimed);
}

/// The bits of `run.flags`.
pub mod flag {
    /// Other runs wait for this one's end.
    pub const NEEDED: i16 = 1;
    /// Its end re-arms its schedule.
    pub const REARMS: i16 = 2;
    /// Its owner marked it running, without a written lease.
    pub const OWNED: i16 = 4;
    /// An attempt at it has begun, and is over.
    pub const STARTED: i16 = 8;
}

pub fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

pub fn time(micros: i64) -> Result<Timestamp, StoreError> {
    // The last second of time has microseconds that jiff takes apart only.
    let (second, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    Timestamp::new(second, rest as i32 * 1_000).map_err(|_| corrupt("a time", micros))
}

/// No run that was made at `at` or later has a lower id: they are UUIDs of version 7.
pub fn oldest_id(at: Timestamp) -> Uuid {
    Uuid::from_u128((at.as_millisecond().max(0) as u128) << 80)
}

pub fn time_opt(micros: Option<i64>) -> Result<Option<Timestamp>, StoreError> {
    micros.map(time).transpose()
}

pub fn corrupt(what: &str, value: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("{what}: {value}"))
}

/// Refuses texts that hold a NUL. PostgreSQL cannot store one, and what one
/// store takes the other must take, or a move between them fails half-way.
pub fn without_nul<'t>(what: &'static str, texts: impl IntoIterator<Item = &'t str>) -> Result<(), StoreError> {
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(StoreError::NotApplied { what, source: "a text holds a NUL character".into() });
    }
    Ok(())
}

/// A count in a two-byte column.
pub fn small(count: u16) -> i16 {
    count.min(i16::MAX as u16) as i16
}

/// How many runs one waits for, in a two-byte column: nobody waits for more.
fn waits(left: u32) -> i16 {
    left.min(WAITS_MAX) as i16
}

pub const fn verdict_code(verdict: Verdict) -> i16 {
    match verdict {
        Verdict::Succeeded => 0,
        Verdict::Failed => 1,
        Verdict::TimedOut => 2,
        Verdict::Cancelled => 3,
        Verdict::Dead => 4,
        Verdict::Expired => 5,
        Verdict::Skipped => 6,
    }
}

pub fn verdict(code: i16) -> Result<Verdict, StoreError> {
    Verdict::ALL.into_iter().find(|v| verdict_code(*v) == code).ok_or_else(|| corrupt("a verdict", code))
}

/// The ends that count for a job that starts after others, a bit for each verdict.
pub fn ends_mask(after: &After) -> i16 {
    let on = after.on.unwrap_or(AfterEnd::Succeeded);
    Verdict::ALL.into_iter().filter(|verdict| on.counts(*verdict)).fold(0, |mask, one| mask | 1 << verdict_code(one))
}

pub const fn source_code(source: Source) -> i16 {
    match source {
        Source::Schedule => 0,
        Source::Manual => 1,
        Source::Api => 2,
        Source::Webhook => 3,
        Source::Job => 4,
        Source::Backfill => 5,
        Source::Redrive => 6,
        Source::Retry => 7,
    }
}

pub fn source(code: i16) -> Result<Source, StoreError> {
    Ok(match code {
        0 => Source::Schedule,
        1 => Source::Manual,
        2 => Source::Api,
        3 => Source::Webhook,
        4 => Source::Job,
        5 => Source::Backfill,
        6 => Source::Redrive,
        7 => Source::Retry,
        _ => return Err(corrupt("a source", code)),
    })
}

pub const fn mode_code(mode: LaneMode) -> i16 {
    match mode {
        LaneMode::Owned => 0,
        LaneMode::Claimed => 1,
    }
}

pub fn mode(code: i16) -> Result<LaneMode, StoreError> {
    match code {
        0 => Ok(LaneMode::Owned),
        1 => Ok(LaneMode::Claimed),
        _ => Err(corrupt("a lane's mode", code)),
    }
}

pub const fn tier_code(tier: Tier) -> i16 {
    match tier {
        Tier::Free => 0,
        Tier::Pro => 1,
        Tier::Enterprise => 2,
        Tier::Unlimited => 3,
    }
}

pub fn tier(code: i16) -> Result<Tier, StoreError> {
    let all = [Tier::Free, Tier::Pro, Tier::Enterprise, Tier::Unlimited];
    all.into_iter().find(|tier| tier_code(*tier) == code).ok_or_else(|| corrupt("a tier", code))
}

pub const fn skip_reason_code(reason: SkipReason) -> i16 {
    match reason {
        SkipReason::Overlap => 0,
        SkipReason::CatchUp => 1,
        SkipReason::Paused => 2,
        SkipReason::Calendar => 3,
        SkipReason::Quota => 4,
        SkipReason::Unique => 5,
        SkipReason::Edited => 6,
        SkipReason::Deleted => 7,
        SkipReason::Ended => 8,
    }
}

pub fn skip_reason(code: i16) -> Result<SkipReason, StoreError> {
    let found = SkipReason::ALL.iter().copied().find(|reason| skip_reason_code(*reason) == code);
    found.ok_or_else(|| corrupt("a reason to skip", code))
}

/// As SQLite has it.
pub fn skip_reason_named(name: &str) -> Result<SkipReason, StoreError> {
    let found = SkipReason::ALL.iter().copied().find(|reason| reason.as_str() == name);
    found.ok_or_else(|| corrupt("a reason to skip", name))
}

fn wait_code(wait: WaitFor) -> i16 {
    match wait {
        WaitFor::Callback => 0,
        WaitFor::Approval => 1,
        WaitFor::Sleep => 2,
        WaitFor::Signal => 3,
        // Below zero: how many steps are left.
        WaitFor::Children(left) => -waits(left) - 1,
    }
}

fn wait(code: i16) -> Result<WaitFor, StoreError> {
    Ok(match code {
        0 => WaitFor::Callback,
        1 => WaitFor::Approval,
        2 => WaitFor::Sleep,
        3 => WaitFor::Signal,
        left if left < 0 => WaitFor::Children((-(left + 1)).unsigned_abs().into()),
        _ => return Err(corrupt("a wait", code)),
    })
}

/// What few runs have, in one nullable JSON column (`extra`), because a column
/// that is null costs nothing and a column per rarity costs every reader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Extra {
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redrive: Option<Redrive>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// Not the type itself: a text that some release takes for valid must not make the row
    /// unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Extra {
    fn trace(&self) -> Option<TraceParent> {
        self.traceparent.as_deref().and_then(TraceParent::parse)
    }
}

pub fn extra_text(run: &NewRun) -> Option<String> {
    let NewRun { labels, trigger, redrive, deadline_at, .. } = run;
    let Trigger { by, metadata, delay, traceparent, .. } = trigger;
    let plain = labels.is_empty() && by.is_none() && metadata.is_none() && traceparent.is_none();
    if plain && redrive.is_none() && delay.is_none() && deadline_at.is_none() {
        return None;
    }
    let extra = Extra {
        labels: labels.clone(),
        by: by.clone(),
        metadata: metadata.clone(),
        redrive: *redrive,
        delay: *delay,
        deadline_at: *deadline_at,
        traceparent: traceparent.map(String::from),
    };
    serde_json::to_string(&extra).ok()
}

fn extra(text: Option<&str>) -> Result<Extra, StoreError> {
    text.map_or_else(|| Ok(Extra::default()), |text| stored::read(text).map_err(|e| corrupt("a run's extra", e)))
}

pub fn cancel_text(cancel: Option<&CancelRequest>) -> Option<String> {
    cancel.and_then(|request| serde_json::to_string(request).ok())
}

/// What a run with this status has to do with its slot.
pub const fn slot_use(status: i16) -> SlotUse {
    match status {
        status::BLOCKED => SlotUse::Waits,
        status::QUEUED | status::RUNNING | status::WAITING | status::CANCELLING => SlotUse::Holds,
        _ => SlotUse::None,
    }
}

pub const fn duties(flags: i16) -> Duties {
    Duties { needed: flags & flag::NEEDED != 0, rearms: flags & flag::REARMS != 0 }
}

fn slot_claim(key: Option<i64>, limit: Option<i32>) -> Option<SlotClaim> {
    key.map(|key| SlotClaim { key: SlotKey(key), limit: limit.unwrap_or(1).max(0) as u32 })
}

/// The columns of a live run by which its end has consequences.
#[derive(Clone, Copy, Debug)]
pub struct EndingColumns {
    pub id: Uuid,
    pub job: i64,
    pub ready_at: i64,
    pub schedule: Option<i64>,
    pub parent: Option<Uuid>,
    pub slot: Option<i64>,
    pub slot_limit: Option<i32>,
    pub status: i16,
    pub flags: i16,
}

impl EndingColumns {
    /// A time that cannot be read spoils a statistic, and no end.
    pub fn ending(&self) -> Ending {
        Ending {
            id: RunId(self.id),
            job: JobId(self.job),
            ready_at: time(self.ready_at).unwrap_or_default(),
            schedule: self.schedule.map(ScheduleId),
            parent: self.parent.map(RunId),
            slot: slot_claim(self.slot, self.slot_limit),
            slot_use: slot_use(self.status),
            duties: duties(self.flags),
        }
    }
}

/// A live run's columns, as either store reads them.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub id: Uuid,
    pub tenant: i32,
    pub job: i64,
    pub version: i32,
    pub lane: i32,
    pub part: i16,
    pub status: i16,
    pub flags: i16,
    pub order_key: i64,
    pub ready_at: i64,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub started_at: Option<i64>,
    /// Null where it is `started_at`, and in what a release before schema 19 wrote.
    pub first_started_at: Option<i64>,
    pub attempt: i16,
    pub losses: i16,
    pub fence: i32,
    pub source: i16,
    pub schedule: Option<i64>,
    pub planned_at: Option<i64>,
    pub slot: Option<i64>,
    pub slot_limit: Option<i32>,
    pub parent: Option<Uuid>,
    pub step: Option<i16>,
    pub item: Option<i32>,
    /// Of a run blocked for others: how many. Of a waiting run: what for.
    pub pending: Option<i16>,
    pub holder: Option<Uuid>,
    /// Only read back for waiting runs: the end of the wait.
    pub due_at: Option<i64>,
    pub payload: Option<String>,
    pub extra: Option<String>,
    pub cancel: Option<String>,
}

/// The columns that a change of state writes.
#[derive(Clone, Debug)]
pub struct StateColumns {
    pub status: i16,
    pub flags: i16,
    pub pending: Option<i16>,
    pub holder: Option<Uuid>,
    pub started_at: Option<i64>,
    pub due_at: Option<i64>,
}

/// How a live run's state is written. `flags` are the row's own; the owned bit
/// among them is part of the state. Nothing for a run that ended: it has no row.
pub fn state_columns(run: &Run, flags: i16) -> Option<StateColumns> {
    let started = if run.started { flag::STARTED } else { 0 };
    columns_of(&run.state, run.due_at(), flags & !flag::STARTED | started)
}

/// The same for a state on its own.
pub fn columns_of(state: &RunState, due_at: Option<Timestamp>, flags: i16) -> Option<StateColumns> {
    let mut columns = StateColumns {
        status: status::SCHEDULED,
        flags: flags & !flag::OWNED,
        pending: None,
        holder: None,
        started_at: state.started_at().map(micros),
        due_at: due_at.map(micros),
    };
    let mut held = |hold: Hold| match hold {
        Hold::Owned => columns.flags |= flag::OWNED,
        Hold::Leased(worker) => columns.holder = Some(worker.0),
    };
    columns.status = match *state {
        RunState::Scheduled => status::SCHEDULED,
        RunState::Blocked(Block::Slot) => status::BLOCKED,
        RunState::Blocked(Block::Needs(left)) => {
            columns.pending = Some(waits(left));
            status::NEEDS
        }
        RunState::Queued => status::QUEUED,
        RunState::Running { hold, .. } => {
            held(hold);
            status::RUNNING
        }
        RunState::Waiting { on, .. } => {
            columns.pending = Some(wait_code(on));
            status::WAITING
        }
        RunState::Cancelling { hold, .. } => {
            if let Some(hold) = hold {
                held(hold);
            }
            status::CANCELLING
        }
        RunState::Finished { .. } => return None,
    };
    Some(columns)
}

impl RunRow {
    pub fn run(&self) -> Result<Run, StoreError> {
        let extra = extra(self.extra.as_deref())?;
        let state = self.state(extra.deadline_at)?;
        let ready_at = time(self.ready_at)?;
        Ok(Run {
            id: RunId(self.id),
            tenant: TenantId(self.tenant),
            job: JobId(self.job),
            version: self.version,
            lane: LaneId(self.lane),
            part: Partition(self.part as u8),
            priority: OrderKey(self.order_key).priority(ready_at),
            created_at: time(self.created_at)?,
            ready_at,
            expires_at: time_opt(self.expires_at)?,
            deadline_at: extra.deadline_at,
            trigger: Trigger {
                traceparent: extra.trace(),
                source: source(self.source)?,
                schedule: self.schedule.map(ScheduleId),
                planned_at: time_opt(self.planned_at)?,
                by: extra.by,
                metadata: extra.metadata,
                delay: extra.delay,
            },
            labels: extra.labels,
            payload: self.payload.as_deref().map(Into::into),
            slot: slot_claim(self.slot, self.slot_limit),
            parent: self.parent.map(|run| Parent {
                run: RunId(run),
                step: self.step.unwrap_or(0),
                item: self.item.map(i32::cast_unsigned),
            }),
            attempts_used: self.attempt.max(0) as u16,
            losses: self.losses.max(0) as u16,
            started: self.flags & flag::STARTED != 0,
            first_started_at: time_opt(self.first_started_at)?,
            fence: Fence(self.fence),
            cancel: self
                .cancel
                .as_deref()
                .map(|text| stored::read(text).map_err(|e| corrupt("a cancel request", e)))
                .transpose()?,
            redrive: extra.redrive,
            state,
        })
    }

    fn hold(&self) -> Option<Hold> {
        match self.holder {
            Some(worker) => Some(Hold::Leased(WorkerId(worker))),
            None if self.flags & flag::OWNED != 0 => Some(Hold::Owned),
            None => None,
        }
    }

    fn state(&self, deadline_at: Option<Timestamp>) -> Result<RunState, StoreError> {
        let started_at = time_opt(self.started_at)?;
        let pending = self.pending.unwrap_or(0);
        let missing = |what| corrupt(what, self.id);
        Ok(match self.status {
            status::SCHEDULED => RunState::Scheduled,
            status::BLOCKED => RunState::Blocked(Block::Slot),
            status::NEEDS => RunState::Blocked(Block::Needs(pending.max(0).unsigned_abs().into())),
            status::QUEUED => RunState::Queued,
            status::RUNNING => RunState::Running {
                hold: self.hold().ok_or_else(|| missing("a running run without a holder"))?,
                started_at: started_at.ok_or_else(|| missing("a running run without a start"))?,
            },
            status::WAITING => RunState::Waiting {
                on: wait(pending)?,
                // Whichever comes first is kept.
                until: time_opt(self.due_at)?.filter(|at| Some(*at) != deadline_at),
                started_at: started_at.ok_or_else(|| missing("a waiting run without a start"))?,
            },
            status::CANCELLING => RunState::Cancelling { hold: self.hold(), started_at },
            code => return Err(corrupt("a status", code)),
        })
    }
}

pub fn failure(text: Option<String>) -> Result<Option<Failure>, StoreError> {
    text.map(|text| stored::read(&text).map_err(|error| corrupt("a failure", error))).transpose()
}

pub fn worker_info_text(info: &WorkerInfo) -> Result<String, StoreError> {
    to_json(info)
}

pub fn worker_info(text: &str) -> Result<WorkerInfo, StoreError> {
    stored::read(text).map_err(|error| corrupt("what a worker offers", error))
}

/// JSON for a column that the store itself reads back.
pub fn to_json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| corrupt("a value that JSON cannot hold", error))
}

pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    stored::read(text).map_err(|error| corrupt("stored JSON", error))
}

pub const fn fate_code(fate: DeadFate) -> i16 {
    match fate {
        DeadFate::Redriven => 0,
        DeadFate::Discarded => 1,
    }
}

pub fn fate(code: i16) -> Result<DeadFate, StoreError> {
    match code {
        0 => Ok(DeadFate::Redriven),
        1 => Ok(DeadFate::Discarded),
        other => Err(StoreError::Corrupt(format!("{other} is no fate of a dead letter"))),
    }
}

#[cfg(test)]
mod tests {
    use rota_core::run::Status;

    use super::{status::WAITING, *};

    /// The statuses of live runs, as stored and as the core has them.
    const LIVE: [(i16, Status); 7] = [
        (status::SCHEDULED, Status::Scheduled),
        (status::BLOCKED, Status::Blocked),
        (status::NEEDS, Status::Blocked),
        (status::QUEUED, Status::Queued),
        (status::RUNNING, Status::Running),
        (WAITING, Status::Waiting),
        (status::CANCELLING, Status::Cancelling),
    ];

    fn set(codes: impl IntoIterator<Item = i16>) -> String {
        let mut codes: Vec<i16> = codes.into_iter().collect();
        codes.sort_unstable();
        codes.iter().map(i16::to_string).collect::<Vec<_>>().join(", ")
    }

    fn sorted(codes: &str) -> String {
        set(codes.split(", ").map(|code| code.parse().unwrap()))
    }

    /// A trace is not worth a run that nobody can read.
    #[test]
    fn a_traceparent_that_is_not_valid_is_left_out() {
        let read = |text: &str| extra(Some(text)).unwrap();
        assert_eq!(read("{\"traceparent\":\"00-other\"}").trace(), None);
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let found = read(&format!("{{\"traceparent\":\"{valid}\"}}")).trace();
        assert_eq!(found.map(String::from).as_deref(), Some(valid));
        assert_eq!(read("{\"by\":\"ann\"}").trace(), None);
    }

    /// A count that wrapped around would open a join too early, or never.
    #[test]
    fn as_many_as_a_run_may_wait_for_are_stored() {
        for left in [1, 10_000, WAITS_MAX] {
            assert_eq!(wait(wait_code(WaitFor::Children(left))).unwrap(), WaitFor::Children(left));
            let columns = columns_of(&RunState::Blocked(Block::Needs(left)), None, 0).unwrap();
            assert_eq!(columns.pending.map(u32::try_from), Some(Ok(left)));
        }
    }

    /// What a statement takes for granted is what the core decides by.
    #[test]
    fn the_sets_of_statements_are_those_of_the_core() {
        let live = |keep: fn(i16, Status) -> bool| {
            set(LIVE.into_iter().filter(|(code, status)| keep(*code, *status)).map(|(code, _)| code))
        };
        assert_eq!(sorted(sql::HOLDING), live(|code, _| slot_use(code) == SlotUse::Holds));
        assert_eq!(sorted(sql::COUNTED), live(|code, _| slot_use(code) != SlotUse::None));
        assert_eq!(sorted(sql::EXECUTED), live(|_, status| status.may_be_executed()));
        assert_eq!(sorted(sql::NOT_EXECUTED), live(|_, status| !status.may_be_executed()));
        let answers = Verdict::ALL.into_iter().filter(|verdict| verdict.answers_a_cancel());
        assert_eq!(sorted(sql::ANSWERS_CANCEL), set(answers.map(verdict_code)));
    }
}
