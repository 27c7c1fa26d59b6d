//! The ends of runs whose attempts have not begun.

use jiff::Timestamp;
use rota_core::{
    job::{
        failure::{ErrorKind, Failure},
        retry::RetryPolicy,
    },
    run::{Hold, Outcome, Run, RunState, SettlePolicy},
    store::By,
};

use crate::{
    node::Node,
    outbox::{End, Ended},
    runs::TakenRun,
    supervise::running,
};

/// The end of a run in hand whose attempt must not begin any more. A lease changes nothing
/// about that.
pub(crate) fn overdue(run: &Run, by: By, now: Timestamp) -> Option<Ended> {
    run.start_by().filter(|at| *at <= now)?;
    let change = Run { state: RunState::Queued, ..run.clone() }.overdue(now).ok()?;
    Some(Ended::decided(run.clone(), by, End::Decided(Box::new(change)), now))
}

/// A run that was asked to stop before it began.
pub(super) fn cancelled(taken: TakenRun, now: Timestamp) -> Ended {
    let mut run = taken.run;
    run.state = RunState::Cancelling { hold: None, started_at: None };
    Ended::decided(run, taken.by, End::Outcome(Outcome::Cancelled), now)
}

/// A leased suspect that cannot be alone yet, for others are before it: later,
/// at no cost.
pub(super) fn put_off(node: &Node, taken: TakenRun, now: Timestamp) -> Ended {
    let run = running(taken.run, Hold::Leased(node.worker), now);
    let until = node.options.run_lease.after(now);
    let end = End::Outcome(Outcome::Deferred { until, reason: "it waits to run alone".into() });
    Ended::decided(run, taken.by, end, now)
}

/// A run whose job's version cannot be read can never be executed.
pub(super) fn unreadable(run: Run, by: By, now: Timestamp) -> Ended {
    let failure = Failure::new(ErrorKind::InvalidInput, "the version of its job cannot be read");
    let policy = SettlePolicy { retry: RetryPolicy::once(), losses_max: 1 };
    let change = run.settle(run.lease(), Outcome::Failed(failure), &policy, 0.5, now);
    let end = change.map_or(End::HandedBack, |change| End::Decided(Box::new(change)));
    Ended::decided(run, by, end, now)
}
