//! Dead letters: what was done about runs that had ended.

use rota_core::{
    duration::Span,
    ids::RunId,
    run::{NewRun, Redrive, Run, RunState, Source, Status, Trigger, UniqueAsk, Verdict},
    store::{By, DeadFate, DeadMark, Enqueued, Guarded, OpenDead, Reap, RunQuery, Settlement},
};

use crate::{harness::*, upkeep::tend_all};

const DAY: i64 = 86_400_000;

/// A run that is made of another again, once.
fn again(h: &Harness, from: RunId) -> NewRun {
    let unique = Some(UniqueAsk::redrive(h.tenant, h.job, from, at(0)));
    NewRun { trigger: Trigger::redrive(from, Some("ann".into())), unique, ..h.new_run(h.claimed) }
}

async fn fates(h: &Harness, runs: &[RunId]) -> Vec<Option<DeadFate>> {
    h.store.dead_marks(runs).await.unwrap().into_iter().map(|mark| mark.map(|mark| mark.fate)).collect()
}

/// Whoever made a run again must not find it among those that wait for somebody.
pub async fn a_run_that_is_made_again_is_marked_with_its_maker(h: &Harness) {
    let (first, second) = (h.run_id(), h.run_id());
    assert_eq!(h.store.dead_marks(&[first, second]).await.unwrap(), [None, None]);
    h.enqueue(&[again(h, first)], at(5)).await;
    let mark = DeadMark { fate: DeadFate::Redriven, by: Some("ann".into()), at: at(5) };
    assert_eq!(h.store.dead_marks(&[second, first]).await.unwrap(), [None, Some(mark)]);
}

/// A run that was refused made nothing, and leaves no mark.
pub async fn a_run_that_is_not_made_marks_nothing(h: &Harness) {
    let from = h.run_id();
    let taken = again(h, from);
    let stranger = NewRun { trigger: Trigger::plain(Source::Api), ..taken.clone() };
    h.enqueue(&[NewRun { id: h.run_id(), ..stranger }], at(0)).await;
    let answers = h.enqueue(&[taken], at(1)).await;
    assert!(matches!(answers[..], [Enqueued::Duplicate { .. }]), "{answers:?}");
    assert_eq!(fates(h, &[from]).await, [None]);
}

/// Asked again, because the answer was lost or two people did it, the answer is
/// the same and the first one's name stays.
pub async fn a_dead_letter_is_put_away_once(h: &Harness) {
    let runs = [h.run_id(), h.run_id()];
    assert_eq!(h.store.discard(&runs[..1], "ann", at(1)).await.unwrap(), [true]);
    assert_eq!(h.store.discard(&runs, "bob", at(2)).await.unwrap(), [true, true]);
    let mark = |by: &str, millis| Some(DeadMark { fate: DeadFate::Discarded, by: Some(by.into()), at: at(millis) });
    assert_eq!(h.store.dead_marks(&runs).await.unwrap(), [mark("ann", 1), mark("bob", 2)]);
    assert_eq!(h.store.discard(&[], "bob", at(2)).await.unwrap(), Vec::<bool>::new());
}

/// What was made again cannot be put away; what was put away can be made again by
/// whoever names it.
pub async fn a_redrive_counts_more_than_a_discard(h: &Harness) {
    let (made, put_away) = (h.run_id(), h.run_id());
    h.enqueue(&[again(h, made)], at(0)).await;
    assert_eq!(h.store.discard(&[made, put_away], "ann", at(1)).await.unwrap(), [false, true]);
    h.enqueue(&[again(h, put_away)], at(2)).await;
    assert_eq!(fates(h, &[made, put_away]).await, [Some(DeadFate::Redriven), Some(DeadFate::Redriven)]);
}

/// A mark must not go before its run, or a dead letter would come back; nor stay
/// for ever.
pub async fn a_mark_goes_after_its_run(h: &Harness) {
    let run = h.run_id();
    h.store.discard(&[run], "ann", at(0)).await.unwrap();
    tend_all(h, at(8 * DAY)).await;
    assert_eq!(fates(h, &[run]).await, [Some(DeadFate::Discarded)], "history may still hold the run");
    tend_all(h, at(9 * DAY + 1)).await;
    assert_eq!(fates(h, &[run]).await, [None]);
}

const DEAD: Status = Status::Ended(Verdict::Dead);

/// A run that is made again by itself, a minute after it died.
fn followed(h: &Harness, left: u16) -> NewRun {
    let redrive = Some(Redrive { after: Span::secs(60), left, start_within: None, end_within: None });
    NewRun { redrive, payload: Some("[1]".into()), ..h.keyed(5, 1) }
}

/// The end of a run that is given up.
pub fn dies(run: &Run, millis: i64) -> Settlement {
    Settlement { lease: run.lease(), part: run.part, by: By::Lease, change: run.lose(1, at(millis)).unwrap() }
}

/// Makes a run, and leases it.
async fn leased(h: &Harness, new: NewRun) -> Run {
    let id = h.make(new, at(0)).await;
    let run = h.claim(h.worker(), 1, at(0)).await.remove(0);
    assert_eq!(run.id, id);
    run
}

fn open(count: u64, oldest_at: Option<i64>) -> OpenDead {
    OpenDead { count, oldest_at: oldest_at.map(at) }
}

/// Whoever watches must see what waits for a person, and nothing that was dealt with.
pub async fn a_dead_letter_is_open_until_somebody_deals_with_it(h: &Harness) {
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(0, None));
    let mut dead = Vec::new();
    for millis in [30, 10, 20] {
        let run = leased(h, h.new_run(h.claimed)).await;
        h.settle_all(&[dies(&run, millis)], at(40)).await;
        dead.push(run.id);
    }
    let failed = leased(h, h.new_run(h.claimed)).await;
    h.settle(&failed, broken(), at(5)).await;
    let followed = leased(h, followed(h, 1)).await;
    h.settle_all(&[dies(&followed, 5)], at(40)).await;
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(3, Some(10)));
    assert_eq!(h.store.open_dead(2).await.unwrap(), open(2, Some(10)), "no more than asked for is counted");
    h.enqueue(&[again(h, dead[1])], at(50)).await;
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(2, Some(20)), "it was made again");
    h.store.discard(&[dead[2], dead[1]], "ann", at(60)).await.unwrap();
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(1, Some(30)), "it was put away");
    let lost = h.claim(h.worker(), 1, at(70)).await.remove(0);
    h.store.reap(&h.write(at(90_000)), &Reap { before: at(90_000), losses_max: 1, limit: 10 }).await.unwrap();
    assert_eq!(h.status(lost.id).await, DEAD);
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(2, Some(30)));
}

pub async fn open_dead_letters_go_with_their_history(h: &Harness) {
    let run = leased(h, h.new_run(h.claimed)).await;
    h.settle_all(&[dies(&run, 10)], at(40)).await;
    tend_all(h, at(6 * DAY)).await;
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(1, Some(10)));
    tend_all(h, at(7 * DAY + 11)).await;
    assert_eq!(h.store.open_dead(10).await.unwrap(), open(0, None));
}

/// The end and the run that follows it are one write: neither without the other,
/// and no second one whoever asks again.
pub async fn a_run_that_dies_is_followed_by_one_run(h: &Harness) {
    let run = leased(h, followed(h, 1)).await;
    let (end, write) = (dies(&run, 5), h.write(at(7)));
    for _ in 0..2 {
        assert_eq!(h.store.settle(&write, std::slice::from_ref(&end)).await.unwrap().answers, [Guarded::Applied]);
    }
    assert_eq!(h.settle_all(&[end], at(8)).await.answers, [Guarded::Stale]);
    assert_eq!(h.settle_all(&[dies(&run, 9)], at(9)).await.answers, [Guarded::Stale]);
    let dead = h.record(run.id).await.run;
    let (id, ready_at) = dead.followed_by().expect("it is followed");
    let new = h.record(id).await.run;
    assert_eq!((dead.state.status(), &new.state, new.ready_at), (DEAD, &RunState::Scheduled, ready_at));
    assert_eq!((ready_at, new.created_at), (at(60_005), at(7)));
    assert_eq!((new.trigger.source, new.trigger.redrives()), (Source::Redrive, Some(run.id)));
    assert_eq!((&new.payload, new.slot, new.version), (&run.payload, run.slot, run.version));
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 2, "the dead one and the new one");
}

/// Somebody who finds the dead letter must not make it again as well.
pub async fn a_dead_run_that_is_followed_counts_as_made_again(h: &Harness) {
    let run = leased(h, followed(h, 1)).await;
    h.settle_all(&[dies(&run, 5)], at(7)).await;
    let mark = DeadMark { fate: DeadFate::Redriven, by: None, at: at(7) };
    assert_eq!(h.store.dead_marks(&[run.id]).await.unwrap(), [Some(mark)]);
    let (follower, _) = h.record(run.id).await.run.followed_by().unwrap();
    assert_eq!(h.enqueue(&[again(h, run.id)], at(8)).await, [Enqueued::Duplicate { of: follower }]);
    assert_eq!(h.store.discard(&[run.id], "ann", at(9)).await.unwrap(), [false]);
}

/// A follower is delayed like any run: it starts when its time has come and its key
/// has a slot, and is not refused.
pub async fn a_follower_waits_for_its_time_and_its_slot(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let run = leased(h, followed(h, 1)).await;
    h.settle_all(&[dies(&run, 0)], at(0)).await;
    let (follower, _) = h.record(run.id).await.run.followed_by().unwrap();
    let other = leased(h, h.keyed(5, 1)).await;
    for (millis, moved) in [(59_999, 0), (60_000, 1)] {
        let promoted = h.store.promote(&h.write_of(owner.node, at(millis)), &[run.part], 10).await.unwrap();
        assert_eq!(promoted.moved, moved);
    }
    assert_eq!(h.status(follower).await, Status::Blocked, "another holds the slot");
    h.succeed(&other, at(60_001)).await;
    assert_eq!(h.status(follower).await, Status::Queued);
}

/// An end that was long on its way, because the store was away, must not skip what
/// every run goes through: its slot.
pub async fn a_follower_begins_as_scheduled_however_late_the_end_is_written(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let run = leased(h, followed(h, 1)).await;
    h.settle_all(&[dies(&run, 0)], at(3_600_000)).await;
    let (follower, _) = h.record(run.id).await.run.followed_by().unwrap();
    assert_eq!(h.status(follower).await, Status::Scheduled);
    let promoted = h.store.promote(&h.write_of(owner.node, at(3_600_001)), &[run.part], 10).await.unwrap();
    assert_eq!(promoted.woken.iter().map(|woken| woken.run.id).collect::<Vec<_>>(), [follower]);
}

/// A run whose workers vanish is given up by the store's own hand: the terms must
/// hold there too, and so must their end.
pub async fn a_run_that_is_reaped_for_good_is_followed_as_often_as_its_terms_say(h: &Harness) {
    let owner = h.owner(at(0)).await;
    let mut run = leased(h, followed(h, 2)).await;
    let mut now = 0;
    for left in [2, 1, 0] {
        assert_eq!(run.redrive.map(|redrive| redrive.left), Some(left));
        now += 100_000;
        let (write, reap) = (h.write(at(now)), Reap { before: at(now), losses_max: 1, limit: 10 });
        for _ in 0..2 {
            assert_eq!(h.store.reap(&write, &reap).await.unwrap()[0].status, DEAD);
        }
        let dead = h.record(run.id).await.run;
        let Some((follower, _)) = dead.followed_by() else { break };
        let told = write.ends.take();
        assert_eq!(told[0].follower, dead.followed_by(), "whoever looks is told of the new run");
        now += 100_000;
        h.store.promote(&h.write_of(owner.node, at(now)), &[run.part], 10).await.unwrap();
        run = h.claim(h.worker(), 1, at(now)).await.remove(0);
        assert_eq!(run.id, follower);
    }
    assert_eq!(h.store.dead_marks(&[run.id]).await.unwrap(), [None], "the last one waits for a person");
    assert_eq!(h.list(RunQuery { limit: 100, ..Default::default() }).await.len(), 3);
}
