//! Cancelling: at once where nobody executes, else asked and answered.

use rota_core::{
    run::{NewRun, Outcome, RunState, Status, TrailKind, Verdict, WaitFor},
    store::{CancelAnswer, Guarded, Write},
};

use crate::harness::*;

/// Before it runs nobody has to be told.
pub async fn a_run_that_was_not_started_is_cancelled_at_once(h: &Harness) {
    let queued = h.make(h.new_run(h.claimed), at(0)).await;
    let delayed = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.owned) }, at(0)).await;
    let joined = h.make(NewRun { after: vec![delayed], ..h.new_run(h.owned) }, at(0)).await;
    h.enqueue(&[h.keyed(1, 1)], at(0)).await;
    let blocked = h.make(h.keyed(1, 1), at(0)).await;
    for id in [queued, joined, delayed, blocked] {
        assert_eq!(h.cancel(id, at(1)).await, CancelAnswer::Cancelled);
        let record = h.record(id).await;
        assert_eq!(record.run.state, RunState::Finished { at: at(1), verdict: Verdict::Cancelled });
        assert_eq!(record.started_at, None);
        let asked = TrailKind::CancelRequested { by: ask().by, reason: ask().reason };
        assert!(record.trail.iter().any(|entry| entry.kind == asked), "who and why is kept: {:?}", record.trail);
        assert_eq!(h.cancel(id, at(2)).await, CancelAnswer::Ended);
    }
    assert_eq!(h.cancel(h.run_id(), at(1)).await, CancelAnswer::NotFound);
}

/// A parked run has nobody to tell, whatever its lane.
pub async fn a_parked_run_is_cancelled_at_once(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    h.settle(&run, Outcome::Parked { on: WaitFor::Callback, until: None }, at(1)).await;
    assert_eq!(h.cancel(run.id, at(2)).await, CancelAnswer::Cancelled);
    assert_eq!(h.record(run.id).await.started_at, Some(at(0)));
    assert_eq!(h.store.wake(&h.write(at(3)), &[run.id]).await.unwrap(), [Guarded::Stale]);
}

/// A running one is told, keeps its lease, and asking twice changes nothing.
pub async fn a_running_run_is_asked_once(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    assert_eq!(h.cancel(run.id, at(1)).await, CancelAnswer::Asked);
    let asked = h.record(run.id).await;
    assert_eq!(asked.run.state.status(), Status::Cancelling);
    assert_eq!(asked.run.fence, run.fence, "its worker can still answer");
    let request = asked.run.cancel.clone().unwrap();
    assert_eq!((request.at, request.grace_until), (at(1), at(30_001)));
    assert_eq!((request.by, request.reason), (ask().by, ask().reason));
    assert_eq!(h.cancel(run.id, at(2)).await, CancelAnswer::AlreadyAsked);
    assert_eq!(h.record(run.id).await, asked);
}

/// Success while cancelling is success; any other end is cancelled.
pub async fn each_end_while_cancelling_is_as_the_spec_says(h: &Harness) {
    let cases = [
        (succeeded(), Verdict::Succeeded),
        (failed(), Verdict::Cancelled),
        (broken(), Verdict::Cancelled),
        (Outcome::Cancelled, Verdict::Cancelled),
        (Outcome::Parked { on: WaitFor::Sleep, until: Some(at(9)) }, Verdict::Cancelled),
        (Outcome::Deferred { until: at(9), reason: "x".into() }, Verdict::Cancelled),
    ];
    for (outcome, verdict) in cases {
        let (_, run) = h.leased(at(0)).await;
        h.cancel(run.id, at(1)).await;
        let asked = h.record(run.id).await.run;
        assert_eq!(h.settle(&asked, outcome.clone(), at(2)).await, Guarded::Applied);
        assert_eq!(h.status(run.id).await, Status::Ended(verdict), "{outcome:?}");
    }
}

/// A settlement decided before the cancel arrived must not retry the run.
pub async fn a_settlement_that_does_not_know_of_the_cancel_is_told(h: &Harness) {
    let parked = Outcome::Parked { on: WaitFor::Sleep, until: None };
    for outcome in [failed(), broken(), parked] {
        let (_, run) = h.leased(at(0)).await;
        h.cancel(run.id, at(1)).await;
        let before = h.record(run.id).await;
        assert_eq!(h.settle(&run, outcome.clone(), at(2)).await, Guarded::CancelAsked, "{outcome:?}");
        assert_eq!(h.record(run.id).await, before, "nothing was changed");
        assert_eq!(h.settle(&before.run, outcome, at(3)).await, Guarded::Applied);
        assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Cancelled));
    }
    let (_, run) = h.leased(at(0)).await;
    h.cancel(run.id, at(1)).await;
    assert_eq!(h.settle(&run, succeeded(), at(2)).await, Guarded::Applied, "success answers a cancel");
    assert_eq!(h.status(run.id).await, Status::Ended(Verdict::Succeeded));
}

/// The same for an owner that executes without a written mark.
pub async fn an_owner_that_does_not_know_of_the_cancel_is_told(h: &Harness) {
    let owner = h.owner(at(0)).await;
    for outcome in [failed(), broken()] {
        let id = h.make(h.new_run(h.owned), at(0)).await;
        let run = h.own(&owner.parts(), 10).await.remove(0);
        assert_eq!(h.cancel(id, at(1)).await, CancelAnswer::Asked);
        let end = owner.executes(&run, outcome, at(2));
        let settled = h.store.settle(&h.write_of(owner.node, at(2)), &[end]).await.unwrap();
        assert_eq!(settled.answers, [Guarded::CancelAsked]);
        let end = owner.executes(&h.record(id).await.run, Outcome::Cancelled, at(3));
        let settled = h.store.settle(&h.write_of(owner.node, at(3)), &[end]).await.unwrap();
        assert_eq!(settled.answers, [Guarded::Applied]);
    }
    let id = h.make(h.new_run(h.owned), at(0)).await;
    let run = h.own(&owner.parts(), 10).await.remove(0);
    h.cancel(id, at(1)).await;
    let end = owner.executes(&run, succeeded(), at(2));
    let settled = h.store.settle(&h.write_of(owner.node, at(2)), &[end]).await.unwrap();
    assert_eq!(settled.answers, [Guarded::Applied]);
    assert_eq!(h.status(id).await, Status::Ended(Verdict::Succeeded));
}

/// A worker that never answers must not hold a run in `cancelling` for ever.
pub async fn a_grace_that_ran_out_ends_the_run(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    h.cancel(run.id, at(1)).await;
    assert_eq!(h.sweep(at(30_000)).await, []);
    let swept = h.sweep(at(30_001)).await;
    assert_eq!(swept.len(), 1);
    assert_eq!((swept[0].id, swept[0].status), (run.id, Status::Ended(Verdict::Cancelled)));
    let record = h.record(run.id).await;
    assert!(record.trail.iter().any(|entry| entry.kind == TrailKind::GraceOver));
    assert_eq!(h.settle(&run, succeeded(), at(30_002)).await, Guarded::Stale);
}

/// A batch may name a run twice, and runs of every state.
pub async fn a_batch_answers_each_in_order(h: &Harness) {
    let (_, running) = h.leased(at(0)).await;
    let queued = h.make(h.new_run(h.claimed), at(0)).await;
    let unknown = h.run_id();
    let ids = [running.id, queued, unknown, running.id, queued];
    let answers = h.store.request_cancel(&h.write(at(1)), &ids, &ask()).await.unwrap();
    use CancelAnswer::{AlreadyAsked, Asked, Cancelled, Ended, NotFound};
    assert_eq!(answers, [Asked, Cancelled, NotFound, AlreadyAsked, Ended]);
}

/// Whoever wins, the answer is what is stored.
pub async fn cancel_against_settle_gives_one_verdict_as_answered(h: &Harness) {
    let second = h.second().await;
    for n in 0..20 {
        let (_, run) = h.leased(at(0)).await;
        let outcome = if n % 2 == 0 { succeeded() } else { broken() };
        let (cancel, settle) = (h.write(at(1)), h.write(at(1)));
        let (store, end, id) = (second.clone(), by_lease(&run, outcome, at(1)), run.id);
        let settling = tokio::spawn(async move { store.settle(&settle, &[end]).await.unwrap().answers[0] });
        let answer = h.store.request_cancel(&cancel, &[id], &ask()).await.unwrap()[0];
        let settled = settling.await.unwrap();
        let status = h.status(id).await;
        match (answer, settled) {
            (CancelAnswer::Ended | CancelAnswer::Asked, Guarded::Applied) => {
                assert!(n % 2 == 0 || answer == CancelAnswer::Ended, "a failure is no answer to a cancel");
                assert_eq!(status, Status::Ended(if n % 2 == 0 { Verdict::Succeeded } else { Verdict::Failed }));
            }
            (CancelAnswer::Asked, Guarded::CancelAsked) => {
                assert_eq!((n % 2, status), (1, Status::Cancelling));
                let asked = h.record(id).await.run;
                h.settle(&asked, broken(), at(2)).await;
                assert_eq!(h.status(id).await, Status::Ended(Verdict::Cancelled));
            }
            other => panic!("no order of the two gives {other:?}"),
        }
    }
}

/// A claim and a cancel at once: cancelled before it ran, or asked to stop.
pub async fn cancel_against_claim_leaves_no_one_in_doubt(h: &Harness) {
    let second = h.second().await;
    for _ in 0..20 {
        let id = h.make(h.new_run(h.claimed), at(0)).await;
        let (write, claim) = (h.write(at(1)), h.claim_of(h.worker(), 1, at(1)));
        let store = second.clone();
        let claiming = tokio::spawn(async move { store.claim(&write, std::slice::from_ref(&claim)).await.unwrap() });
        let answer = h.cancel(id, at(1)).await;
        let claimed = claiming.await.unwrap();
        match answer {
            CancelAnswer::Cancelled => assert_eq!(claimed, [], "a cancelled run is given to nobody"),
            CancelAnswer::Asked => {
                assert_eq!(claimed.len(), 1);
                assert_eq!(h.status(id).await, Status::Cancelling);
                let asked = h.record(id).await.run;
                h.settle(&asked, Outcome::Cancelled, at(2)).await;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(h.status(id).await, Status::Ended(Verdict::Cancelled));
    }
}

/// Whoever asks first how many a cancel would stop is told what it would do, those that it
/// would leave alone included, and has stopped nobody.
pub async fn a_cancel_in_a_dry_run_answers_as_the_act_and_stops_nobody(h: &Harness) {
    let delayed = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.owned) }, at(0)).await;
    h.enqueue(&[h.keyed(1, 1)], at(0)).await;
    let holder = h.claim(h.worker(), 1, at(0)).await.remove(0).id;
    let waiting = h.make(h.keyed(1, 1), at(0)).await;
    let (_, asked) = h.leased(at(0)).await;
    h.cancel(asked.id, at(1)).await;
    let (_, over) = h.leased(at(0)).await;
    h.succeed(&over, at(1)).await;
    let runs = [delayed, holder, waiting, asked.id, over.id, h.run_id()];
    let before = h.store.runs(&runs).await.unwrap();
    let dry = Write { dry_run: true, ..h.write(at(2)) };
    let would = h.store.request_cancel(&dry, &runs, &ask()).await.unwrap();
    use CancelAnswer::{AlreadyAsked, Asked, Cancelled, Ended, NotFound};
    assert_eq!(would, [Cancelled, Asked, Cancelled, AlreadyAsked, Ended, NotFound]);
    assert_eq!(h.store.runs(&runs).await.unwrap(), before);
    assert_eq!(h.store.request_cancel(&h.write(at(2)), &runs, &ask()).await.unwrap(), would);
}
