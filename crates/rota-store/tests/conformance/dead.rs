//! Dead letters: what was done about runs that had ended.

use rota_core::{
    ids::RunId,
    run::{NewRun, Source, Trigger, UniqueAsk},
    slot::UniqueKey,
    store::{DeadFate, DeadMark, Enqueued},
};

use crate::{harness::*, upkeep::tend_all};

const DAY: i64 = 86_400_000;

/// A run that is made of another again, once.
fn again(h: &Harness, from: RunId) -> NewRun {
    let metadata = Some(serde_json::json!({ "from": from }));
    let trigger = Trigger { by: Some("ann".into()), metadata, ..Trigger::plain(Source::Redrive) };
    let key = UniqueKey::new(h.tenant, h.job, &format!("redrive/{from}"));
    NewRun { trigger, unique: Some(UniqueAsk { key, until: at(365 * DAY) }), ..h.new_run(h.claimed) }
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
