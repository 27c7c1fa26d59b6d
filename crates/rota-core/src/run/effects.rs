//! What follows from a change of a run, whoever makes it and whatever for.
//!
//! A run that changes may give its slot back or ask for one, open joins, re-arm its
//! schedule, become a dead letter, start other jobs, count in the statistics. All of it is
//! decided here, change by change, and gathered in [`Effects`]. A store writes what was
//! gathered in the transaction of the changes themselves, each in its own set-based way.
//!
//! What a store finds out only while it writes (who waits for a slot that is free, which
//! runs waited for one that ended) are changes of their own, decided by [`Run`] and taken
//! in like any other.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Block, Change, Finish, Hold, NewRun, Run, RunState, SlotClaim, SlotUse, Status, Verdict, WaitFor};
use crate::{
    ids::{JobId, RunId, ScheduleId},
    rollup::{Ended, Rollup, hour_of},
    slot::{Shift, SlotKey},
    store::EndedRun,
};

/// What a row says of a live run besides [`Run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// Other runs wait for its end.
    pub needed: bool,
    /// Its end re-arms its schedule.
    pub rearms: bool,
}

/// A run as it is before it ends, as far as anything follows from that.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub id: RunId,
    pub job: JobId,
    pub ready_at: Timestamp,
    pub schedule: Option<ScheduleId>,
    pub parent: Option<RunId>,
    pub slot: Option<SlotClaim>,
    pub slot_use: SlotUse,
    pub duties: Duties,
}

impl Ending {
    pub fn of(run: &Run, duties: Duties) -> Self {
        Self {
            id: run.id,
            job: run.job,
            ready_at: run.ready_at,
            schedule: run.trigger.schedule,
            parent: run.parent.map(|parent| parent.run),
            slot: run.slot,
            slot_use: run.state.slot_use(),
            duties,
        }
    }
}

/// Whether the counters of a slot are right already, because whoever decided the change
/// asked the slot itself: [`Slot::reenter`](crate::slot::Slot::reenter),
/// [`admit`](crate::slot::Slot::admit) or [`enter`](crate::slot::Slot::enter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    ToCount,
    Counted,
}

/// The end of a run whose `after_finish` schedule counts from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rearm {
    pub schedule: ScheduleId,
    pub run: RunId,
    pub ended_at: Timestamp,
}

/// An end that jobs may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    pub job: JobId,
    pub run: RunId,
    pub verdict: Verdict,
    pub at: Timestamp,
}

/// What follows from the changes of a transaction and is yet to be written.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// What the changes do to the counters of each key, and the limit to make one with.
    pub slots: BTreeMap<SlotKey, (u32, Shift)>,
    /// Ended runs that others wait for.
    pub needed: Vec<RunId>,
    /// How many steps of each parent have ended.
    pub parents: BTreeMap<RunId, u32>,
    pub rearm: Vec<Rearm>,
    pub rollups: BTreeMap<(JobId, i64), Rollup>,
    pub over: Vec<Over>,
    /// Runs that follow those that have died.
    pub followers: Vec<NewRun>,
    /// Runs that have died and wait for somebody, with their ends.
    pub dead: Vec<(RunId, Timestamp)>,
    /// Runs that became ready, by the last of their changes.
    pub ready: BTreeMap<RunId, Run>,
    /// Runs that now wait for their time.
    pub delayed: Vec<RunId>,
    /// Runs whose owner is asked to stop them.
    pub stopping: Vec<Run>,
    /// Runs that ended otherwise than by being settled: whoever settles knows.
    pub ends: Vec<EndedRun>,
}

impl Effects {
    /// Takes in a change of a run that is known whole. Answers the run as it is after.
    pub fn change(&mut self, run: &Run, duties: Duties, change: &Change, slots: Slots) -> Run {
        let mut after = run.clone();
        after.apply(change);
        match change {
            Change::Finish(finish) => {
                self.ends.push(EndedRun::of(run, finish));
                self.end(&Ending::of(run, duties), finish, slots);
            }
            Change::Move(_) => self.step(run, &after, slots),
        }
        after
    }

    /// Takes in the end of a run.
    pub fn end(&mut self, run: &Ending, finish: &Finish, slots: Slots) {
        self.ready.remove(&run.id);
        self.shift(run.slot, run.slot_use, SlotUse::None, slots);
        if run.duties.needed {
            self.needed.push(run.id);
        }
        if let Some(parent) = run.parent {
            *self.parents.entry(parent).or_default() += 1;
        }
        if let Some(schedule) = run.schedule.filter(|_| run.duties.rearms) {
            self.rearm.push(Rearm { schedule, run: run.id, ended_at: finish.ended_at });
        }
        self.over.push(Over { job: run.job, run: run.id, verdict: finish.verdict, at: finish.ended_at });
        self.rollups.entry((run.job, hour_of(finish.ended_at))).or_default().add(&Ended {
            verdict: finish.verdict,
            ready_at: run.ready_at,
            started_at: finish.started_at,
            ended_at: finish.ended_at,
            attempts: finish.attempts_used.saturating_add(u16::from(finish.verdict == Verdict::Succeeded)),
            losses: finish.losses,
        });
        match &finish.follower {
            Some(new) => self.followers.push(NewRun::clone(new)),
            None if finish.verdict == Verdict::Dead => self.dead.push((run.id, finish.ended_at)),
            None => {}
        }
    }

    /// Takes in a change of a run that stays live.
    fn step(&mut self, before: &Run, after: &Run, slots: Slots) {
        self.shift(before.slot, before.state.slot_use(), after.state.slot_use(), slots);
        self.ready.remove(&after.id);
        match after.state {
            RunState::Queued => drop(self.ready.insert(after.id, after.clone())),
            RunState::Cancelling { hold, .. } => {
                // Who holds a written lease is told with the next exchange.
                let leased = matches!(hold, Some(Hold::Leased(_)));
                if !leased && before.state.status() != Status::Cancelling {
                    self.stopping.push(after.clone());
                }
            }
            RunState::Scheduled => self.delayed.push(after.id),
            RunState::Blocked(_) | RunState::Running { .. } | RunState::Waiting { .. } | RunState::Finished { .. } => {}
        }
    }

    fn shift(&mut self, claim: Option<SlotClaim>, from: SlotUse, to: SlotUse, slots: Slots) {
        let Some(claim) = claim.filter(|_| from != to && slots == Slots::ToCount) else { return };
        let (_, shift) = self.slots.entry(claim.key).or_insert((claim.limit, Shift::default()));
        *shift = shift.and(Shift::between(from, to));
    }

    /// How many of its steps a run waits for in vain, `live` being those that are left: they
    /// ended while it was on its way to wait. It is told of them by this, and no more.
    pub fn missed(&mut self, before: &Run, after: &Run, live: u64) -> u32 {
        let Some(asked) = comes_to_wait(before, after) else { return 0 };
        // Those that ended in this transaction are not among the live ones.
        self.parents.remove(&after.id);
        asked.saturating_sub(u32::try_from(live).unwrap_or(u32::MAX))
    }
}

/// For how many steps a run comes to wait by a change, if it does.
pub fn comes_to_wait(before: &Run, after: &Run) -> Option<u32> {
    match after.state {
        RunState::Waiting { on: WaitFor::Children(asked), .. } if before.state.status() != after.state.status() => {
            Some(asked)
        }
        _ => None,
    }
}

/// Whether a run that ends leaves a place in the chain of its schedule: whoever is behind it
/// waits for those whom it waited for ([`inherited`](super::inherited)).
pub fn leaves_a_place(state: &RunState) -> bool {
    matches!(state, RunState::Blocked(Block::Needs(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{LaneId, Partition, TenantId, WorkerId},
        order::Priority,
        run::{Fence, Labels, Move, Parent, Source, Trigger},
    };
    use uuid::Uuid;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_767_607_200 + secs).unwrap()
    }

    fn id(n: u64) -> RunId {
        RunId(Uuid::from_u64_pair(0, n))
    }

    fn run_in(state: RunState) -> Run {
        let trigger = Trigger { schedule: Some(ScheduleId(9)), ..Trigger::plain(Source::Schedule) };
        Run {
            id: id(1),
            tenant: TenantId(1),
            job: JobId(2),
            version: 1,
            lane: LaneId(1),
            part: Partition(0),
            priority: Priority::default(),
            created_at: at(0),
            ready_at: at(0),
            expires_at: None,
            deadline_at: None,
            trigger,
            labels: Labels::new(),
            payload: None,
            slot: Some(SlotClaim { key: SlotKey(7), limit: 3 }),
            parent: Some(Parent { run: id(5), step: 0, item: None }),
            attempts_used: 0,
            losses: 0,
            started: false,
            first_started_at: None,
            fence: Fence(1),
            cancel: None,
            redrive: None,
            state,
        }
    }

    fn states() -> Vec<(RunState, SlotUse)> {
        let hold = Hold::Leased(WorkerId(Uuid::nil()));
        let started_at = at(1);
        vec![
            (RunState::Scheduled, SlotUse::None),
            (RunState::Blocked(Block::Needs(1)), SlotUse::None),
            (RunState::Blocked(Block::Slot), SlotUse::Waits),
            (RunState::Queued, SlotUse::Holds),
            (RunState::Running { hold, started_at }, SlotUse::Holds),
            (RunState::Waiting { on: WaitFor::Sleep, until: None, started_at }, SlotUse::Holds),
            (RunState::Cancelling { hold: Some(hold), started_at: Some(started_at) }, SlotUse::Holds),
        ]
    }

    fn finish(verdict: Verdict) -> Finish {
        Finish {
            verdict,
            started_at: Some(at(1)),
            ended_at: at(3),
            attempts_used: 0,
            losses: 0,
            failure: None,
            output: None,
            trail: None,
            follower: None,
        }
    }

    fn to(run: &Run, state: RunState) -> Change {
        Change::Move(Move {
            state,
            ready_at: run.ready_at,
            attempts_used: 0,
            losses: 0,
            started: false,
            first_started_at: None,
            fence: run.fence,
            cancel: None,
            trail: None,
        })
    }

    const NEEDED: Duties = Duties { needed: true, rearms: true };

    fn taken_in(run: &Run, change: &Change, slots: Slots) -> Effects {
        let mut effects = Effects::default();
        effects.change(run, NEEDED, change, slots);
        effects
    }

    /// Whatever a run was doing, its end gives back what it held and tells all that wait.
    #[test]
    fn an_end_has_the_same_consequences_from_every_state() {
        for (state, slot_use) in states() {
            for verdict in Verdict::ALL {
                let run = run_in(state.clone());
                let effects = taken_in(&run, &Change::Finish(finish(verdict)), Slots::ToCount);
                let shift = match slot_use {
                    SlotUse::None => None,
                    SlotUse::Waits => Some(Shift { held: 0, waiting: -1 }),
                    SlotUse::Holds => Some(Shift { held: -1, waiting: 0 }),
                };
                let what = format!("{state:?} {verdict}");
                assert_eq!(effects.slots.get(&SlotKey(7)).map(|(_, shift)| *shift), shift, "{what}");
                assert_eq!(effects.needed, [run.id], "{what}");
                assert_eq!(effects.parents, BTreeMap::from([(id(5), 1)]), "{what}");
                let rearm = Rearm { schedule: ScheduleId(9), run: run.id, ended_at: at(3) };
                assert_eq!(effects.rearm, [rearm], "{what}");
                assert_eq!(effects.over, [Over { job: JobId(2), run: run.id, verdict, at: at(3) }], "{what}");
                assert_eq!(effects.ends.len(), 1, "{what}");
                let rollup = &effects.rollups[&(JobId(2), hour_of(at(3)))];
                assert_eq!((rollup.runs(), rollup.of(verdict)), (1, 1), "{what}");
                assert_eq!(rollup.attempts, u64::from(verdict == Verdict::Succeeded), "{what}");
                assert_eq!(effects.dead.len(), usize::from(verdict == Verdict::Dead), "{what}");
                assert!(effects.ready.is_empty() && effects.followers.is_empty(), "{what}");
            }
        }
    }

    #[test]
    fn a_run_that_is_made_again_by_itself_is_no_open_dead_letter() {
        let run = run_in(RunState::Queued);
        let follower = NewRun { id: id(8), ..new_run() };
        let end = Finish { follower: Some(Box::new(follower)), ..finish(Verdict::Dead) };
        let effects = taken_in(&run, &Change::Finish(end), Slots::ToCount);
        assert_eq!((effects.dead.len(), effects.followers.len(), effects.followers[0].id), (0, 1, id(8)));
    }

    fn new_run() -> NewRun {
        let run = run_in(RunState::Queued);
        NewRun {
            id: run.id,
            tenant: run.tenant,
            job: run.job,
            version: 1,
            lane: run.lane,
            part: run.part,
            priority: run.priority,
            ready_at: at(9),
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Redrive),
            labels: Labels::new(),
            payload: None,
            slot: None,
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        }
    }

    /// From each state to each other one, also where no rule goes that way today.
    #[test]
    fn a_move_counts_in_its_slot_what_it_changes_and_tells_where_it_leads() {
        for (from, used) in states() {
            for (state, uses) in states() {
                let run = run_in(from.clone());
                let effects = taken_in(&run, &to(&run, state.clone()), Slots::ToCount);
                let what = format!("{from:?} to {state:?}");
                let held = i32::from(uses == SlotUse::Holds) - i32::from(used == SlotUse::Holds);
                let waiting = i32::from(uses == SlotUse::Waits) - i32::from(used == SlotUse::Waits);
                let shift = effects.slots.get(&SlotKey(7)).map_or((0, 0), |(_, shift)| (shift.held, shift.waiting));
                assert_eq!(shift, (held, waiting), "{what}");
                assert_eq!(effects.ready.len(), usize::from(state == RunState::Queued), "{what}");
                assert_eq!(effects.delayed.len(), usize::from(state == RunState::Scheduled), "{what}");
                assert!(effects.stopping.is_empty(), "its worker is told, not its owner: {what}");
                assert!(effects.needed.is_empty() && effects.over.is_empty() && effects.rollups.is_empty(), "{what}");
                let counted = taken_in(&run, &to(&run, state), Slots::Counted);
                assert!(counted.slots.is_empty(), "{what}");
            }
        }
    }

    #[test]
    fn the_owner_of_a_run_that_nobody_holds_by_a_lease_is_told_once_to_stop_it() {
        let asked = |hold| RunState::Cancelling { hold, started_at: None };
        for hold in [None, Some(Hold::Owned)] {
            let queued = run_in(RunState::Queued);
            assert_eq!(taken_in(&queued, &to(&queued, asked(hold)), Slots::ToCount).stopping.len(), 1);
            let before = run_in(asked(None));
            assert_eq!(taken_in(&before, &to(&before, asked(hold)), Slots::ToCount).stopping.len(), 0);
        }
    }

    /// What several changes of one transaction do to a key adds up, and the last of them
    /// says whether a run is ready.
    #[test]
    fn changes_of_one_run_add_up() {
        let mut effects = Effects::default();
        let run = run_in(RunState::Scheduled);
        let ready = effects.change(&run, NEEDED, &to(&run, RunState::Queued), Slots::ToCount);
        assert_eq!((effects.ready.len(), effects.slots[&SlotKey(7)]), (1, (3, Shift { held: 1, waiting: 0 })));
        effects.change(&ready, NEEDED, &Change::Finish(finish(Verdict::Cancelled)), Slots::ToCount);
        assert_eq!((effects.ready.len(), effects.slots[&SlotKey(7)]), (0, (3, Shift::default())));
    }

    #[test]
    fn steps_that_ended_before_their_parent_waited_are_counted_once() {
        let mut effects = Effects::default();
        let parent = Run { id: id(5), parent: None, ..run_in(RunState::Queued) };
        let step = run_in(RunState::Queued);
        effects.change(&step, Duties::default(), &Change::Finish(finish(Verdict::Succeeded)), Slots::ToCount);
        let waits = RunState::Waiting { on: WaitFor::Children(3), until: None, started_at: at(1) };
        let after = effects.change(&parent, Duties::default(), &to(&parent, waits), Slots::ToCount);
        assert_eq!(effects.missed(&parent, &after, 1), 2, "one lives, two have ended");
        assert_eq!(effects.parents, BTreeMap::new(), "and it is not told of them again");
        assert_eq!(effects.missed(&after, &after, 1), 0, "one that waits already is told of each");
    }

    #[test]
    fn only_one_that_waits_for_others_leaves_a_place() {
        for (state, _) in states() {
            let needs = matches!(state, RunState::Blocked(Block::Needs(_)));
            assert_eq!(leaves_a_place(&state), needs, "{state:?}");
        }
    }
}
