//! Ends: every write names the runs that ended by it, whatever it was for.

use rota_core::{
    ids::RunId,
    run::{NewRun, Verdict},
    slot::{SlotAsk, WhenFull},
    store::{EndedRun, Reap, Write},
};

use crate::harness::*;

fn told(h: &Harness, write: &Write) -> Vec<(RunId, Verdict)> {
    let mut ended = write.ends.take();
    ended.sort_by_key(|one| one.id);
    for EndedRun { job, tenant, at: ended_at, .. } in &ended {
        assert_eq!((*job, *tenant, *ended_at), (h.job, h.tenant, write.now), "whose it is and when it was");
    }
    ended.into_iter().map(|one| (one.id, one.verdict)).collect()
}

/// Whoever follows a run must hear of its end also when nobody ever held it.
pub async fn a_cancel_names_those_it_ended_at_once(h: &Harness) {
    let delayed = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.owned) }, at(0)).await;
    let (_, running) = h.leased(at(0)).await;
    let write = h.write(at(1));
    h.store.request_cancel(&write, &[delayed, running.id, h.run_id()], &ask()).await.unwrap();
    assert_eq!(told(h, &write), [(delayed, Verdict::Cancelled)], "one that was only asked has not ended");
}

pub async fn a_sweep_names_those_it_ended(h: &Harness) {
    let late = NewRun { ready_at: at(50_000), expires_at: Some(at(5)), ..h.new_run(h.owned) };
    let late = h.make(late, at(0)).await;
    let (_, running) = h.leased(at(0)).await;
    h.cancel(running.id, at(0)).await;
    let write = h.write(at(40_000));
    h.store.sweep(&write, 100).await.unwrap();
    let mut expected = [(late, Verdict::Expired), (running.id, Verdict::Cancelled)];
    expected.sort_by_key(|(id, _)| *id);
    assert_eq!(told(h, &write), expected);
}

pub async fn a_reap_names_those_it_ended(h: &Harness) {
    let (_, first) = h.leased(at(0)).await;
    let write = h.write(at(60_000));
    let reaped = h.store.reap(&write, &Reap { before: at(60_000), losses_max: 1, limit: 100 }).await.unwrap();
    assert_eq!((reaped[0].id, reaped[0].job, reaped[0].tenant), (first.id, h.job, h.tenant));
    assert_eq!(told(h, &write), [(first.id, Verdict::Dead)]);
}

fn newer(h: &Harness, when_full: WhenFull) -> NewRun {
    NewRun { slot: Some(SlotAsk { when_full, ..slot(1, 1) }), ..h.new_run(h.claimed) }
}

/// A newcomer that displaces others, or has them cancelled, answers for them.
pub async fn a_newcomer_names_those_that_made_room(h: &Harness) {
    let holder = h.make(h.keyed(1, 1), at(0)).await;
    let waits = h.make(h.keyed(1, 1), at(0)).await;
    let write = h.write(at(1));
    let replacing = newer(h, WhenFull::Replace);
    h.store.enqueue(&write, std::slice::from_ref(&replacing), &[]).await.unwrap();
    assert_eq!(told(h, &write), [(waits, Verdict::Skipped)]);
    let write = h.write(at(2));
    h.store.enqueue(&write, &[newer(h, WhenFull::CancelRunning)], &[]).await.unwrap();
    assert_eq!(told(h, &write), [(holder, Verdict::Cancelled)]);
}

/// A write that is asked again has told what it did, and ends nobody twice.
pub async fn a_write_asked_again_names_nobody_else(h: &Harness) {
    let delayed = h.make(NewRun { ready_at: at(60_000), ..h.new_run(h.owned) }, at(0)).await;
    let write = h.write(at(1));
    let first = h.store.request_cancel(&write, &[delayed], &ask()).await.unwrap();
    let again = h.store.request_cancel(&write, &[delayed], &ask()).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(told(h, &write), [(delayed, Verdict::Cancelled)], "still there for one whose answer was lost");
    h.store.request_cancel(&write, &[delayed], &ask()).await.unwrap();
    assert_eq!(told(h, &write), []);
}

/// A settlement's own runs are its caller's to tell.
pub async fn a_settlement_names_nobody(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let write = h.write(at(1));
    h.store.settle(&write, &[by_lease(&run, succeeded(), at(1))]).await.unwrap();
    assert_eq!(told(h, &write), []);
}
