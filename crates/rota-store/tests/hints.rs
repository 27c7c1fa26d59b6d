//! Hints and news between nodes on PostgreSQL, over real connections. The clock
//! is turned by hand, so what is paced by it happens when a test says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rota_core::ports::{Clock, Heard, Hints, Listener, News, Relay, Topic};
use rota_store::postgres::{Options, PostgresHints, PostgresStore};
use tokio::sync::{mpsc, watch};
use tokio_postgres::AsyncMessage;
use uuid::Uuid;

struct HandClock(watch::Sender<Timestamp>);

impl HandClock {
    fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Timestamp::from_second(1_767_607_200).unwrap())))
    }

    fn turn(&self) {
        self.0.send_modify(|now| *now += SignedDuration::from_secs(1));
    }
}

#[async_trait]
impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        *self.0.borrow()
    }

    async fn sleep_until(&self, at: Timestamp) {
        self.0.subscribe().wait_for(|now| *now >= at).await.unwrap();
    }
}

/// The hints inside a process, counted.
#[derive(Default)]
struct Inside {
    wakes: [AtomicU64; Topic::ALL.len()],
    said: watch::Sender<u64>,
}

impl Inside {
    fn count(&self, topic: Topic) -> u64 {
        self.wakes[topic as usize].load(Ordering::SeqCst)
    }

    /// Returns when the topic was woken so often.
    async fn woken(&self, topic: Topic, count: u64) {
        let mut said = self.said.subscribe();
        said.wait_for(|_| self.count(topic) >= count).await.unwrap();
    }
}

impl Hints for Inside {
    fn wake(&self, topic: Topic) {
        self.wakes[topic as usize].fetch_add(1, Ordering::SeqCst);
        self.said.send_modify(|said| *said += 1);
    }

    fn listen(&self, _: Topic) -> Box<dyn Listener> {
        unreachable!("nobody listens here")
    }
}

/// One node: its store, its hints, and what is heard inside it.
struct Side {
    store: PostgresStore,
    hints: PostgresHints,
    inside: Arc<Inside>,
    news: Box<dyn News>,
}

fn url() -> String {
    std::env::var("ROTA_TEST_POSTGRES").expect("`scripts/services up` starts a server for tests")
}

struct Bed {
    schema: String,
    clock: Arc<HandClock>,
}

impl Bed {
    fn new() -> Self {
        Self { schema: format!("t_{}", Uuid::now_v7().simple()), clock: HandClock::new() }
    }

    /// A node that has said and heard what comes with a new connection.
    async fn side(&self) -> Side {
        let options = Options { schema: Some(self.schema.clone()), work_connections: 2, ..Options::default() };
        let store = PostgresStore::open(&url(), options).await.unwrap();
        let inside = Arc::<Inside>::default();
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let hints = store.hints(Arc::clone(&inside) as Arc<dyn Hints>, clock);
        hints.connected().await;
        let news = hints.hear();
        Side { store, hints, inside, news }
    }

    /// Two nodes, all of whose first words were heard.
    async fn pair(&self) -> (Side, Side) {
        let (mut one, mut other) = (self.side().await, self.side().await);
        self.passes(&one.hints, &mut other).await;
        self.passes(&other.hints, &mut one).await;
        (one, other)
    }

    /// Returns when a word of `from` has come to `to`, with all before it.
    async fn passes(&self, from: &PostgresHints, to: &mut Side) {
        let word = Uuid::now_v7().to_string();
        self.clock.turn();
        from.tell(word.clone());
        while to.news.next().await != Heard::Line(word.as_str().into()) {}
    }

    /// Everything that is sent from now on.
    async fn messages(&self) -> mpsc::UnboundedReceiver<String> {
        let (client, mut connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
        let (say, messages) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(said) = message
                    && say.send(said.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        client.batch_execute(&format!("LISTEN \"rota:{}\"", self.schema)).await.unwrap();
        // The connection lives as long as its client.
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(client);
        });
        messages
    }

    async fn close(&self, side: &Side) {
        side.store.drop_schema().await.unwrap();
    }
}

/// Prevents: a schedule saved on one node waiting for the other's next look.
#[tokio::test]
async fn a_hint_wakes_this_process_at_once_and_the_others_too() {
    let bed = Bed::new();
    let (one, other) = bed.pair().await;
    let (here, there) = (one.inside.count(Topic::Schedules), other.inside.count(Topic::Schedules));
    bed.clock.turn();
    one.hints.wake(Topic::Schedules);
    assert_eq!(one.inside.count(Topic::Schedules), here + 1, "before anything was sent");
    other.inside.woken(Topic::Schedules, there + 1).await;
    bed.close(&one).await;
}

/// Prevents: a busy node's every write being a notification, whose lock all
/// commits of the server share.
#[tokio::test]
async fn hints_in_a_burst_are_told_once() {
    let bed = Bed::new();
    let (one, mut other) = bed.pair().await;
    let mut messages = bed.messages().await;
    let (here, before) = (one.inside.count(Topic::Ready), other.inside.count(Topic::Ready));
    for n in 0..10_000 {
        one.hints.wake(Topic::Ready);
        one.hints.wake(Topic::Delayed);
        if n % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // Behind the hints, by the same way.
    bed.passes(&one.hints, &mut other).await;
    let mut told = 0;
    while let Some(message) = messages.recv().await
        && !message.starts_with("news")
    {
        told += usize::from(message.contains("ready"));
    }
    assert_eq!(told, 1, "one message, however often it was said");
    other.inside.woken(Topic::Ready, before + 1).await;
    assert_eq!(one.inside.count(Topic::Ready), here + 10_000, "its own words do not come back to it");
    bed.close(&one).await;
}

/// Prevents: schedules being late while nobody has their partitions, because somebody spoke
/// of something else a moment before.
#[tokio::test]
async fn free_partitions_are_told_out_of_turn() {
    let bed = Bed::new();
    let (one, other) = bed.pair().await;
    let (ready, free) = (other.inside.count(Topic::Ready), other.inside.count(Topic::Partitions));
    bed.clock.turn();
    one.hints.wake(Topic::Ready);
    other.inside.woken(Topic::Ready, ready + 1).await;
    // Both have had their turn, and the clock stands still.
    for times in 1..=3 {
        one.hints.wake(Topic::Partitions);
        other.inside.woken(Topic::Partitions, free + times).await;
    }
    bed.close(&one).await;
}

/// Prevents: a node that is deaf for ever after its line broke, and followers
/// that believe they have seen everything.
#[tokio::test]
async fn a_lost_connection_is_made_again_and_everyone_looks() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.pair().await;
    let before = other.inside.count(Topic::Ready);
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rota hints {}'",
        bed.schema
    );
    one.store.execute_raw(&cut).await.unwrap();
    assert_eq!(one.news.next().await, Heard::Gap);
    assert_eq!(other.news.next().await, Heard::Gap);
    other.inside.woken(Topic::Ready, before + 1).await;
    one.hints.connected().await;
    other.hints.connected().await;
    bed.passes(&one.hints, &mut other).await;
    bed.passes(&other.hints, &mut one).await;
    bed.close(&one).await;
}

/// Prevents: a node that does more than can be told holding up anything, or
/// hiding that it left something out.
#[tokio::test]
async fn news_beyond_what_fits_are_a_gap() {
    let bed = Bed::new();
    let (one, mut other) = bed.pair().await;
    for n in 0..5_000 {
        one.hints.tell(format!("{n:0200}"));
    }
    bed.clock.turn();
    let (mut lines, mut gaps) = (0, 0);
    while gaps == 0 || lines == 0 {
        match other.news.next().await {
            Heard::Line(_) => lines += 1,
            Heard::Gap => gaps += 1,
        }
    }
    bed.passes(&one.hints, &mut other).await;
    bed.close(&one).await;
}

/// Prevents: two installations in one database waking each other.
#[tokio::test]
async fn another_schema_hears_nothing() {
    let (bed, elsewhere) = (Bed::new(), Bed::new());
    let (one, mut other) = bed.pair().await;
    let (stranger, mut second) = elsewhere.pair().await;
    let before = second.inside.count(Topic::Inbox);
    bed.clock.turn();
    one.hints.wake(Topic::Inbox);
    bed.passes(&one.hints, &mut other).await;
    elsewhere.passes(&stranger.hints, &mut second).await;
    elsewhere.clock.turn();
    elsewhere.passes(&stranger.hints, &mut second).await;
    assert_eq!(second.inside.count(Topic::Inbox), before);
    bed.close(&one).await;
    elsewhere.close(&stranger).await;
}
