//! The steps a run takes towards its worker: promoted when its time has come,
//! admitted to its slot, joined when what it needs is done, leased, woken, and
//! expired when it waited too long.

use jiff::Timestamp;

use super::{
    Block, Change, Finish, Hold, Lease, Move, Refusal, Run, RunState, SlotClaim, TrailEntry, TrailKind, Verdict,
    WAITS_MAX, WaitFor,
};
use crate::{
    ids::{RunId, WorkerId},
    job::failure::{ErrorKind, Failure},
    slot::Entry,
};

impl Run {
    /// A delayed run whose time has come; `entry` is its slot's answer.
    pub fn promote(&self, entry: Option<Entry>, now: Timestamp) -> Result<Change, Refusal> {
        self.expect(&RunState::Scheduled)?;
        if self.ready_at > now {
            return Err(Refusal::NotYet);
        }
        Ok(Change::Move(self.walk(entered(entry))))
    }

    /// A run that waited for a slot and got it.
    pub fn admit(&self) -> Result<Change, Refusal> {
        self.expect(&RunState::Blocked(Block::Slot))?;
        Ok(Change::Move(self.walk(RunState::Queued)))
    }

    /// `done` of the runs it waits for have ended. `entry` is its slot's
    /// answer, to be had where [`Run::enters_on_join`] names one. A run that
    /// is also delayed goes on to wait for its time; a parent that waits for
    /// its steps kept its slot and is ready.
    pub fn join(&self, done: u32, entry: Option<Entry>, now: Timestamp) -> Result<Change, Refusal> {
        match self.state {
            RunState::Blocked(Block::Needs(left)) if left > done => {
                Ok(Change::Move(self.walk(RunState::Blocked(Block::Needs(left - done)))))
            }
            RunState::Blocked(Block::Needs(_)) if self.ready_at > now => {
                Ok(Change::Move(self.walk(RunState::Scheduled)))
            }
            RunState::Blocked(Block::Needs(_)) => Ok(Change::Move(Move { ready_at: now, ..self.walk(entered(entry)) })),
            RunState::Waiting { on: WaitFor::Children(left), until, started_at } if left > done => {
                let on = WaitFor::Children(left - done);
                Ok(Change::Move(self.walk(RunState::Waiting { on, until, started_at })))
            }
            RunState::Waiting { on: WaitFor::Children(_), .. } => Ok(Change::Move(self.walk(RunState::Queued))),
            RunState::Finished { .. } => Err(Refusal::Ended),
            RunState::Scheduled
            | RunState::Blocked(Block::Slot)
            | RunState::Queued
            | RunState::Running { .. }
            | RunState::Waiting { .. }
            | RunState::Cancelling { .. } => Err(Refusal::WrongState),
        }
    }

    /// It waits for others besides, whose place before it became vacant.
    pub fn wait_for_more(&self, more: u32) -> Result<Change, Refusal> {
        match self.state {
            RunState::Blocked(Block::Needs(left)) => {
                let left = left.saturating_add(more).min(WAITS_MAX);
                Ok(Change::Move(self.walk(RunState::Blocked(Block::Needs(left)))))
            }
            RunState::Finished { .. } => Err(Refusal::Ended),
            _ => Err(Refusal::WrongState),
        }
    }

    /// The slot this run must ask for now that `done` of those it waits for
    /// have ended: none while others are left, or while its time has not come.
    pub fn enters_on_join(&self, done: u32, now: Timestamp) -> Option<SlotClaim> {
        match self.state {
            RunState::Blocked(Block::Needs(left)) if left <= done && self.ready_at <= now => self.slot,
            _ => None,
        }
    }

    /// A worker takes it, in writing. The fence rises, so whoever held the run
    /// before can change nothing any more.
    pub fn claim(&self, worker: WorkerId, now: Timestamp) -> Result<Change, Refusal> {
        self.expect(&RunState::Queued)?;
        Ok(Change::Move(self.to(RunState::Running { hold: Hold::Leased(worker), started_at: now })))
    }

    /// Its owner executes it and says so, because it takes long.
    pub fn mark_running(&self, lease: Lease, started_at: Timestamp) -> Result<Change, Refusal> {
        self.expect(&RunState::Queued)?;
        if lease != self.lease() {
            return Err(Refusal::LeaseLost);
        }
        Ok(Change::Move(self.walk(RunState::Running { hold: Hold::Owned, started_at })))
    }

    /// Its owner gives its partition away and keeps the attempt that is under way: by a
    /// written lease from now on, under the fence that the attempt began with. A request
    /// to stop stays what it is.
    pub fn lease_running(&self, lease: Lease, worker: WorkerId, started_at: Timestamp) -> Result<Change, Refusal> {
        let hold = Hold::Leased(worker);
        let state = match self.state {
            RunState::Queued => RunState::Running { hold, started_at },
            RunState::Running { hold: Hold::Owned, started_at } => RunState::Running { hold, started_at },
            RunState::Cancelling { hold: None | Some(Hold::Owned), started_at: known } => {
                RunState::Cancelling { hold: Some(hold), started_at: known.or(Some(started_at)) }
            }
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Scheduled
            | RunState::Blocked(_)
            | RunState::Running { hold: Hold::Leased(_), .. }
            | RunState::Waiting { .. }
            | RunState::Cancelling { hold: Some(Hold::Leased(_)), .. } => return Err(Refusal::WrongState),
        };
        if lease != self.lease() {
            return Err(Refusal::LeaseLost);
        }
        Ok(Change::Move(self.walk(state)))
    }

    /// What it waited for outside has come, or its time is up.
    pub fn wake(&self) -> Result<Change, Refusal> {
        match self.state {
            RunState::Waiting { .. } => Ok(Change::Move(self.walk(RunState::Queued))),
            RunState::Finished { .. } => Err(Refusal::Ended),
            RunState::Scheduled
            | RunState::Blocked(_)
            | RunState::Queued
            | RunState::Running { .. }
            | RunState::Cancelling { .. } => Err(Refusal::WrongState),
        }
    }

    /// Ends a run that was not started by its deadline.
    pub fn expire(&self, now: Timestamp) -> Result<Change, Refusal> {
        match self.state {
            RunState::Scheduled | RunState::Blocked(_) | RunState::Queued => {}
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Running { .. } | RunState::Waiting { .. } | RunState::Cancelling { .. } => {
                return Err(Refusal::WrongState);
            }
        }
        if self.start_deadline().is_none_or(|at| now < at) {
            return Err(Refusal::NotYet);
        }
        Ok(Change::Finish(self.finish(Verdict::Expired, now)))
    }

    /// Ends a run whose deadline has passed while nobody executed it.
    pub fn deadline_over(&self, now: Timestamp) -> Result<Change, Refusal> {
        match self.state {
            RunState::Scheduled | RunState::Blocked(_) | RunState::Queued | RunState::Waiting { .. } => {}
            RunState::Finished { .. } => return Err(Refusal::Ended),
            RunState::Running { .. } | RunState::Cancelling { .. } => return Err(Refusal::WrongState),
        }
        if !self.is_over_at(now) {
            return Err(Refusal::NotYet);
        }
        let failure = Some(Failure::new(ErrorKind::Timeout, "its deadline passed while it waited"));
        Ok(Change::Finish(Finish { failure, ..self.finish(Verdict::TimedOut, now) }))
    }

    /// What becomes of a run that is [due](Run::due_at): its grace or its deadline is
    /// over, it was not started in time, or its wait has come to its end.
    pub fn overdue(&self, now: Timestamp) -> Result<Change, Refusal> {
        match self.state {
            RunState::Cancelling { .. } => self.grace_over(now),
            RunState::Waiting { until, .. } => match self.deadline_over(now) {
                Err(Refusal::NotYet) if until.is_some_and(|until| until <= now) => self.wake(),
                decided => decided,
            },
            RunState::Scheduled
            | RunState::Blocked(_)
            | RunState::Queued
            | RunState::Running { .. }
            | RunState::Finished { .. } => self.expire(now).or_else(|_| self.deadline_over(now)),
        }
    }

    /// Ends a waiting run whose place a newer one takes.
    pub fn displace(&self, by: RunId, now: Timestamp) -> Result<Change, Refusal> {
        self.expect(&RunState::Blocked(Block::Slot))?;
        let trail = Some(TrailEntry { at: now, kind: TrailKind::Displaced { by } });
        Ok(Change::Finish(Finish { trail, ..self.finish(Verdict::Skipped, now) }))
    }

    /// Ends a run that is not to start, as soon as it is made.
    pub fn skip(&self, reason: &str, now: Timestamp) -> Result<Change, Refusal> {
        self.expect(&RunState::Scheduled)?;
        let trail = Some(TrailEntry { at: now, kind: TrailKind::Skipped { reason: reason.to_owned() } });
        Ok(Change::Finish(Finish { trail, ..self.finish(Verdict::Skipped, now) }))
    }

    /// Another state under the same fence: nobody held it, so nobody's right
    /// to it changes.
    fn walk(&self, state: RunState) -> Move {
        Move { fence: self.fence, ..self.to(state) }
    }

    fn expect(&self, state: &RunState) -> Result<(), Refusal> {
        match &self.state {
            RunState::Finished { .. } => Err(Refusal::Ended),
            current if current == state => Ok(()),
            _ => Err(Refusal::WrongState),
        }
    }
}

fn entered(entry: Option<Entry>) -> RunState {
    match entry {
        None | Some(Entry::Holds) => RunState::Queued,
        Some(Entry::Waits | Entry::WaitsAlone | Entry::WaitsForCancel | Entry::Refused) => {
            RunState::Blocked(Block::Slot)
        }
    }
}
