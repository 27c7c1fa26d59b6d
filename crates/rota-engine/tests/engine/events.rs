//! What subscribers hear.

use std::sync::Arc;

use rota_core::{
    duration::Span,
    ids::RunId,
    ports::{Heard, News, Relay},
    run::Verdict,
};
use rota_engine::{
    Cancel, Event, FeedItem, JobRef, Made, Options, RunAsk,
    stages::{Stage, forward::Forward},
};
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, Receiver, error::TryRecvError};

use crate::bed::*;

/// What was told since the last call.
fn heard(feed: &mut Receiver<Event>) -> Vec<Event> {
    let mut heard = Vec::new();
    loop {
        match feed.try_recv() {
            Ok(event) => heard.push(event),
            Err(TryRecvError::Empty) => return heard,
            Err(error) => panic!("{error}"),
        }
    }
}

fn ends(feed: &mut Receiver<Event>) -> Vec<(RunId, Verdict)> {
    let end = |event| if let Event::RunEnded { run, verdict, .. } = event { Some((run, verdict)) } else { None };
    heard(feed).into_iter().filter_map(end).collect()
}

/// One run at a time, held until the gate opens.
fn one_at_a_time(name: &str, when_full: &str, extra: Value) -> Value {
    let job = with(job(name, "wait"), json!({ "concurrency": { "limit": 1, "when_full": when_full } }));
    with(job, extra)
}

/// A page that waits for a run must not wait for ever because nobody ever
/// executed it.
#[tokio::test]
async fn every_end_is_told_once_whatever_brought_it() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let mut feed = node.node.events.subscribe();
    bed.save(&node.node, one_at_a_time("newest", "replace", json!({}))).await;
    bed.save(&node.node, one_at_a_time("late", "queue", json!({ "start_deadline": "5s" }))).await;
    let (first, second) = (node.enqueue(&bed, "newest").await, node.enqueue(&bed, "late").await);
    node.dispatch().await;
    bed.work.wait_for_going(2).await;

    let displaced = node.enqueue(&bed, "newest").await;
    assert_eq!(ends(&mut feed), []);
    node.enqueue(&bed, "newest").await;
    assert_eq!(ends(&mut feed), [(displaced, Verdict::Skipped)], "displaced by a newer one");

    let expired = node.enqueue(&bed, "late").await;
    bed.go(6_000);
    node.sweep().await;
    assert_eq!(ends(&mut feed), [(expired, Verdict::Expired)], "swept");

    bed.work.open();
    node.drain().await;
    node.lead().await;
    node.settle().await;
    let mut settled = ends(&mut feed);
    settled.sort();
    let mut both = [(first, Verdict::Succeeded), (second, Verdict::Succeeded)];
    both.sort();
    assert_eq!(settled, both, "settled");
    assert_eq!(node.node.stats.ended_in_all(), 4, "and each is counted");
}

/// An instant whose run was refused is as skipped as one that was too late to be
/// tried; here there is one of either.
#[tokio::test]
async fn a_refused_instant_is_told_as_skipped() {
    let bed = Bed::new().await;
    let mut node = bed.node().await;
    let schedules = json!({ "schedules": [{ "name": "m", "every": "1m", "overlap": "allow" }] });
    let saved = bed.save(&node.node, one_at_a_time("busy", "skip", schedules)).await;
    let mut feed = node.node.events.subscribe();
    node.enqueue(&bed, "busy").await;
    bed.go(60_000);
    node.fire().await;
    let skipped = |event: &Event| matches!(event, Event::InstantsSkipped { job, count: 2, .. } if *job == saved.job);
    let told = heard(&mut feed);
    assert!(told.iter().any(skipped), "{told:?}");
}

/// Through the handle, as the API does it.
#[tokio::test]
async fn a_cancel_before_the_start_is_told_and_counted() {
    let bed = Bed::new().await;
    let engine = bed.builder(Options::default()).start().await.unwrap();
    bed.save(engine.node(), job("hello", "noop")).await;
    let ask = RunAsk::of(bed.tenant, JobRef::Name("hello".into())).at(at(60_000));
    let made = engine.enqueue(vec![ask]).await.unwrap().remove(0);
    let Made::Run { id, .. } = made else { panic!("{made:?}") };
    let mut feed = engine.subscribe();
    let stop = Cancel { by: None, reason: None, grace: Some(Span::secs(1)) };
    engine.cancel(&[id], &stop).await.unwrap();
    assert_eq!(ends(&mut feed), [(id, Verdict::Cancelled)]);
    assert_eq!(engine.stats().ended_as(Verdict::Cancelled), 1);
}

/// A relay inside one process: each end hears what the others forward.
struct Hub(broadcast::Sender<(usize, Heard)>);

struct HubEnd {
    own: usize,
    hub: Arc<Hub>,
}

struct HubNews {
    own: usize,
    feed: Receiver<(usize, Heard)>,
}

impl Relay for HubEnd {
    fn tell(&self, line: String) {
        drop(self.hub.0.send((self.own, Heard::Line(line.into()))));
    }

    fn miss(&self) {
        drop(self.hub.0.send((self.own, Heard::Gap)));
    }

    fn hear(&self) -> Box<dyn News> {
        Box::new(HubNews { own: self.own, feed: self.hub.0.subscribe() })
    }
}

#[async_trait::async_trait]
impl News for HubNews {
    async fn next(&mut self) -> Heard {
        loop {
            match self.feed.recv().await.unwrap() {
                (from, heard) if from != self.own => return heard,
                _ => {}
            }
        }
    }
}

/// Prevents: a page that shows one node's runs as if they were all. Also: lines
/// being made up for nobody.
#[tokio::test]
async fn one_follower_hears_of_every_node_and_nobody_tells_without_one() {
    let bed = Bed::new().await;
    let hub = Arc::new(Hub(broadcast::Sender::new(1_000)));
    let mut lines = hub.0.subscribe();
    let end = |own| Arc::new(HubEnd { own, hub: Arc::clone(&hub) });
    let one = bed.builder(Options::default()).relay(end(1)).start().await.unwrap();
    let other = bed.node_with(Options::default()).await;
    let mut forward = Forward::new(Arc::clone(&other.node), end(2));
    bed.save(&other.node, job("hello", "noop")).await;

    other.node.events.subscribe();
    other.enqueue(&bed, "hello").await;
    forward.pass(bed.now()).await.unwrap();
    assert!(lines.try_recv().is_err(), "nobody follows");

    let mut feed = one.follow();
    // The hint that somebody follows.
    forward.doubt();
    forward.pass(bed.now()).await.unwrap();
    let id = other.enqueue(&bed, "hello").await;
    other.node.events.emit(|| Event::PartitionsLost { parts: Vec::new() });
    forward.pass(bed.now()).await.unwrap();
    match feed.next().await.unwrap() {
        FeedItem::There(Event::RunMade { run, .. }) => assert_eq!(run, id),
        told => panic!("{told:?}"),
    }
    drop(hub.0.send((2, Heard::Line("{\"from\":\"a newer release\"}".into()))));
    assert_eq!(feed.next().await, Some(FeedItem::Reset), "what cannot be read was missed");

    drop(feed);
    bed.go(31_000);
    forward.pass(bed.now()).await.unwrap();
    while lines.try_recv().is_ok() {}
    other.enqueue(&bed, "hello").await;
    forward.pass(bed.now()).await.unwrap();
    assert!(lines.try_recv().is_err(), "its follower is gone");
}
