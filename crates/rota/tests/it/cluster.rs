//! Nodes that share a PostgreSQL database, found by `ROTA_TEST_POSTGRES`. Each
//! test has a schema of its own.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use jiff::Timestamp;
use rota_core::run::{Status, Verdict};
use rota_store::{
    failpoint::{Moment, VARIABLE, WRITES},
    postgres::{Options, PostgresStore},
};
use rustix::process::Signal;

use crate::{
    books::{Books, SCHEDULES, every_second},
    node::{Node, Place, TODAY, ledger},
    proxy::Proxy,
    storm::chance::now,
};

/// Failover is promised within this.
const FAILOVER_MAX: Duration = Duration::from_secs(5);

struct Cluster {
    url: String,
    schema: String,
    place: Place,
}

impl Cluster {
    fn new() -> Self {
        Self::with(|place| every_second(&place.text("ledger")))
    }

    fn with(job: impl Fn(&Place) -> String) -> Self {
        let url = std::env::var("ROTA_TEST_POSTGRES")
            .expect("ROTA_TEST_POSTGRES names no server: run `make test`, or `eval \"$(scripts/services env)\"` first");
        let place = Place::new();
        place.write("jobs/job.yaml", &job(&place));
        Self { url, schema: format!("t_{}", uuid::Uuid::now_v7().simple()), place }
    }

    fn node(&self, name: &str) -> Node {
        self.node_at(name, &self.url)
    }

    fn node_at(&self, name: &str, url: &str) -> Node {
        self.node_with(name, url, &[])
    }

    fn node_with(&self, name: &str, url: &str, environment: &[(&str, &str)]) -> Node {
        self.node_of(TODAY, name, url, environment)
    }

    fn node_of(&self, binary: &str, name: &str, url: &str, environment: &[(&str, &str)]) -> Node {
        let jobs = self.place.text("jobs");
        let store = ["--store", url, "--postgres-schema", &self.schema, "--postgres-connections", "3"];
        let rest = ["--name", name, "--jobs", &jobs, "--commands-policy", "any"];
        Node::start_of(binary, &self.place, &[&store[..], &rest].concat(), environment)
    }

    /// The address of the server, as it stands in its URL.
    fn server(&self) -> SocketAddr {
        let authority = self.url.rsplit_once('@').unwrap().1;
        authority.split('/').next().unwrap().parse().unwrap()
    }

    fn ledger(&self) -> Vec<String> {
        ledger(&self.place.path("ledger"))
    }

    /// Looks through the books, and takes the schema away.
    fn close(self) {
        let books = self.books();
        books.each_instant_has_one_end();
        books.agree_with(&self.ledger());
        self.vanish();
    }

    fn books(&self) -> Books {
        Books::of_postgres(&self.url, &self.schema)
    }

    fn vanish(self) {
        let options = Options { schema: Some(self.schema), ..Options::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { PostgresStore::open(&self.url, options).await.unwrap().drop_schema().await.unwrap() });
    }
}

#[test]
fn a_node_on_postgres_fires_and_goes_on_after_a_kill() {
    let cluster = Cluster::new();
    let mut node = cluster.node("a");
    node.until_ready();
    node.wait_for("runs", |_| cluster.ledger().len() >= 2 * SCHEDULES);
    node.signal(Signal::KILL);
    drop(node.end());
    let mut node = cluster.node("b");
    node.until_ready();
    let before = cluster.ledger().len();
    node.wait_for("more runs", |_| cluster.ledger().len() >= before + 2 * SCHEDULES);
    assert_eq!(node.stop().0.code(), Some(0));
    cluster.close();
}

#[test]
fn a_node_that_goes_hands_over_at_once() {
    let cluster = Cluster::new();
    let (mut a, mut b) = (cluster.node("a"), cluster.node("b"));
    a.until_ready();
    b.until_ready();
    b.wait_for("partitions to be shared", |b| b.partitions() + a.partitions() == 256 && b.partitions() > 0);
    assert_eq!(a.stop().0.code(), Some(0));
    // Less than a lease: nobody had to be presumed dead.
    b.wait_within(Duration::from_secs(2), "all partitions", |b| b.partitions() == 256);
    let before = cluster.ledger().len();
    b.wait_for("runs on the other node", |_| cluster.ledger().len() >= before + 2 * SCHEDULES);
    assert_eq!(b.stop().0.code(), Some(0));
    cluster.close();
}

/// A node kept its partitions for as long as attempts were in flight in them, and all their
/// schedules were late by that.
#[test]
fn nothing_is_late_for_a_node_that_drains_with_attempts_in_flight() {
    let cluster = Cluster::with(|place| {
        let schedule = |n| format!("  - {{ name: l{n}, every: 1s, overlap: skip, catch_up: {{ mode: none }} }}\n");
        let schedules: String = (0..SCHEDULES).map(schedule).collect();
        let (ledger, long, gate) = (place.text("ledger"), place.text("long"), place.text("gate"));
        format!(
            "{}---\nname: long\nschedules:\n{schedules}steps:\n  - id: wait\n    command:\n      \
             shell: 'echo \"begun $RUN\" >> {long}; [ -e {gate} ] || sleep 20; echo \"ended $RUN\" >> {long}'\n      \
             env: {{ RUN: '{{{{ run.id }}}}' }}\n",
            every_second(&ledger)
        )
    });
    let those = |word: &str| -> Vec<String> {
        let lines = ledger(&cluster.place.path("long"));
        lines.iter().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect()
    };
    let mut a = cluster.node("a");
    a.wait_for("an attempt of each schedule", |_| those("begun ").len() == SCHEDULES);
    let long = those("begun ");
    std::fs::File::create(cluster.place.path("gate")).unwrap();
    let mut b = cluster.node("b");
    b.until_ready();
    b.wait_for("partitions to be shared", |b| b.partitions() > 0 && b.partitions() + a.partitions() == 256);
    a.signal(Signal::TERM);
    let told_at = now();
    let ended = || those("ended ").into_iter().filter(|run| long.contains(run)).count();
    b.wait_for("all partitions", |b| b.partitions() == 256);
    // A whole row of instants that came after it was told to go.
    let fired = || {
        let mut planned: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for line in cluster.ledger() {
            *planned.entry(line.split_once(' ').unwrap().1.parse().unwrap()).or_default() += 1;
        }
        planned.range(told_at..).any(|(_, count)| *count == SCHEDULES)
    };
    b.wait_for("every schedule to fire", |_| fired());
    assert_eq!(ended(), 0, "everything fires although the attempts are in flight");
    b.wait_for("the attempts to end", |_| ended() == SCHEDULES);
    assert_eq!(a.end().0.code(), Some(0));
    assert_eq!(b.stop().0.code(), Some(0));

    let (begun, books) = (those("begun "), cluster.books());
    for run in &long {
        assert_eq!(begun.iter().filter(|other| *other == run).count(), 1, "{run} was begun again");
        let record = books.runs.iter().find(|record| record.run.id.to_string() == *run).unwrap();
        assert_eq!(record.run.state.status(), Status::Ended(Verdict::Succeeded), "{run}");
        assert_eq!((record.run.losses, record.run.attempts_used), (0, 0), "{run}");
    }
    for n in 0..SCHEDULES {
        let schedule = books.schedule(&format!("s{n}"));
        assert!(!books.skips.iter().any(|skipped| skipped.schedule == schedule), "nothing was skipped");
    }
    cluster.vanish();
}

/// An upgrade node by node, with a restart of the release before in the midst of it, and all
/// the way back. `make test-long` has the release before; without it both are today's.
#[test]
fn releases_take_turns_on_one_database_and_no_instant_is_lost() {
    let cluster = Cluster::new();
    let before = std::env::var("ROTA_TEST_PREVIOUS").unwrap_or_else(|_| TODAY.to_owned());
    let names = ["a", "b"];
    let mut nodes = names.map(|name| cluster.node_of(&before, name, &cluster.url, &[]));
    for node in &mut nodes {
        node.until_ready();
    }
    for (at, binary) in [(1, TODAY), (0, &before), (0, TODAY), (1, &before), (0, &before), (1, TODAY), (0, TODAY)] {
        let next = cluster.node_of(binary, names[at], &cluster.url, &[]);
        assert_eq!(std::mem::replace(&mut nodes[at], next).stop().0.code(), Some(0));
        nodes[at].until_ready();
        let [a, b] = &mut nodes;
        a.wait_for("partitions to be shared", |a| {
            let (a, b) = (a.partitions(), b.partitions());
            a > 0 && b > 0 && a + b == 256
        });
        let before = cluster.ledger().len();
        a.wait_for("runs on both nodes", |_| cluster.ledger().len() >= before + 2 * SCHEDULES);
    }
    for node in nodes {
        assert_eq!(node.stop().0.code(), Some(0));
    }
    cluster.close();
}

/// A node that stands still past its lease is taken over; what it still
/// believes when it wakes up changes nothing.
#[test]
fn a_frozen_node_is_taken_over_and_changes_nothing_when_it_wakes() {
    let cluster = Cluster::new();
    let (mut a, mut b) = (cluster.node("a"), cluster.node("b"));
    a.until_ready();
    b.until_ready();
    b.wait_for("partitions to be shared", |b| {
        let (a, b) = (a.partitions(), b.partitions());
        a > 0 && b > 0 && a + b == 256
    });
    // It must have something to be wrong about.
    a.wait_for("the first node to fire", |a| a.metric("rota_fires_total").is_some_and(|fires| fires > 0.0));
    a.signal(Signal::STOP);
    let took = b.wait_for("the other node to take over", |b| b.partitions() == 256);
    assert!(took < FAILOVER_MAX, "the take-over took {took:?}");
    let before = cluster.ledger().len();
    b.wait_for("runs on the other node", |_| cluster.ledger().len() >= before + 3 * SCHEDULES);
    a.signal(Signal::CONT);
    a.wait_for("the frozen node to see that it was presumed dead", |a| {
        a.log.iter().any(|line| line.contains("no longer holds partitions"))
    });
    a.wait_for("partitions to be shared again", |a| {
        let (a, b) = (a.partitions(), b.partitions());
        a > 0 && b > 0 && a + b == 256
    });
    let before = cluster.ledger().len();
    a.wait_for("runs on both nodes", |_| cluster.ledger().len() >= before + 2 * SCHEDULES);
    assert_eq!(a.stop().0.code(), Some(0));
    assert_eq!(b.stop().0.code(), Some(0));
    cluster.close();
}

/// The same with the locks of a write in its hands.
#[test]
fn a_node_that_freezes_in_the_midst_of_a_write_holds_nobody_up() {
    std::thread::scope(|scope| {
        for write in ["take partitions", "fire schedules", "settle runs"] {
            scope.spawn(move || frozen_amid(write, 1));
        }
        // Without its first a node does not start.
        scope.spawn(move || frozen_amid("record a heartbeat", 2));
    });
}

fn frozen_amid(write: &str, passage: u32) {
    let cluster = Cluster::new();
    let mut b = cluster.node("b");
    b.until_ready();
    b.wait_for("all partitions", |b| b.partitions() == 256);
    let point = WRITES.iter().find(|point| point.write == write).unwrap();
    let mut a = cluster.node_with("a", &cluster.url, &[(VARIABLE, &point.still(Moment::Written, passage))]);
    a.wait_for("the node to stand still", |a| a.log.iter().any(|line| line.contains("standing still at a failpoint")));
    b.wait_for("the other node to take over", |b| b.partitions() == 256);
    let before = cluster.ledger().len();
    b.wait_for("runs on the other node", |_| cluster.ledger().len() >= before + 3 * SCHEDULES);
    a.signal(Signal::CONT);
    a.wait_for("partitions to be shared", |a| {
        let (a, b) = (a.partitions(), b.partitions());
        a > 0 && b > 0 && a + b == 256
    });
    assert_eq!(a.stop().0.code(), Some(0));
    assert_eq!(b.stop().0.code(), Some(0));
    cluster.close();
}

/// An outage is waited out: the node says that it is not ready, lives on, and
/// catches up with what it owed.
#[test]
fn a_node_whose_database_goes_away_says_so_and_goes_on_when_it_is_back() {
    let cluster = Cluster::new();
    let proxy = Proxy::before(cluster.server());
    let url = cluster.url.replace(&cluster.server().to_string(), &proxy.address().to_string());
    let mut node = cluster.node_at("a", &url);
    node.until_ready();
    node.wait_for("a run", |_| !cluster.ledger().is_empty());
    proxy.cut();
    node.wait_for("the node to notice", |node| {
        node.get("/readyz").is_some_and(|(status, why)| status == 503 && why.contains("the store does not answer"))
    });
    assert_eq!(node.get("/healthz").unwrap().0, 200);
    assert!(node.metric("rota_store_errors_total").unwrap() >= 1.0);
    proxy.mend();
    node.until_ready();
    let before = cluster.ledger().len();
    node.wait_for("runs after the outage", |_| cluster.ledger().len() >= before + 2 * SCHEDULES);
    assert_eq!(node.stop().0.code(), Some(0));
    cluster.close();
}

/// Ten times as long as a lease holds: attempts go on and end, they are settled when
/// the database is back, and neither node begins one anew.
#[test]
fn attempts_outlive_thirty_seconds_without_the_database() {
    let cluster = Cluster::with(|place| {
        let schedule = |n| format!("  - {{ name: s{n}, every: 1s, overlap: skip, catch_up: {{ mode: none }} }}\n");
        let schedules: String = (0..SCHEDULES).map(schedule).collect();
        let (ledger, gate) = (place.text("ledger"), place.text("gate"));
        format!(
            "name: long\nschedules:\n{schedules}steps:\n  - id: wait\n    command:\n      \
             shell: 'echo \"begun $RUN\" >> {ledger}; [ -e {gate} ] || sleep 30; echo \"ended $RUN\" >> {ledger}'\n      \
             env: {{ RUN: '{{{{ run.id }}}}' }}\n"
        )
    });
    let proxy = Proxy::before(cluster.server());
    let url = cluster.url.replace(&cluster.server().to_string(), &proxy.address().to_string());
    let (mut a, mut b) = (cluster.node_at("a", &url), cluster.node_at("b", &url));
    a.until_ready();
    b.until_ready();
    let those = |word: &str| -> Vec<String> {
        cluster.ledger().iter().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect()
    };
    a.wait_for("an attempt of each schedule", |_| those("begun ").len() == SCHEDULES);
    let long = those("begun ");
    proxy.cut();
    std::fs::File::create(cluster.place.path("gate")).unwrap();
    a.wait_within(Duration::from_mins(2), "the attempts to end", |_| those("ended ").len() == SCHEDULES);
    proxy.mend();
    a.until_ready();
    b.until_ready();
    for run in &long {
        let path = format!("/api/v1/runs/{run}");
        a.wait_for("it to be settled", |a| a.get(&path).is_some_and(|(_, run)| run.contains("\"succeeded\"")));
    }
    assert_eq!(a.stop().0.code(), Some(0));
    assert_eq!(b.stop().0.code(), Some(0));
    let (begun, books) = (those("begun "), cluster.books());
    for run in &long {
        assert_eq!(begun.iter().filter(|other| *other == run).count(), 1, "{run} was begun again");
        let record = books.runs.iter().find(|record| record.run.id.to_string() == *run).unwrap();
        assert_eq!((record.run.losses, record.run.attempts_used), (0, 0), "{run}");
    }
    cluster.vanish();
}
