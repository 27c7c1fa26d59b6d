//! A store, and the lives that nodes lead on it until the last of them.

use std::{
    cell::{Cell, Ref, RefCell},
    collections::{BTreeMap, BTreeSet},
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
};

use jiff::{SignedDuration, Timestamp};
use rota_core::{
    ids::ScheduleId,
    run::{Status, TrailEntry, TrailKind, Verdict},
    store::RunRecord,
};
use rota_store::{
    failpoint::{Moment, Origin, Point, VARIABLE},
    postgres::{Options, PostgresStore},
};
use rustix::process::Signal;

use super::{
    load::{Ledger, STRICT, documents},
    server::Server,
};
use crate::{
    books::{Books, block_on},
    node::{Node, Place},
};

/// Where runs are kept.
pub enum Keeper {
    Sqlite(PathBuf),
    Postgres { url: String, schema: String },
}

impl Keeper {
    pub fn postgres(server: &Server) -> Self {
        Self::Postgres { url: server.url.clone(), schema: format!("t_{}", uuid::Uuid::now_v7().simple()) }
    }

    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Sqlite(_) => Vec::new(),
            Self::Postgres { url, schema } => {
                vec!["--store", url, "--postgres-schema", schema, "--postgres-connections", "3"]
            }
        }
    }

    /// Says something to the database behind Rota's back, and answers the
    /// number that comes back: what a query found, or how many rows changed.
    pub fn sql(&self, sql: &str) -> i64 {
        match self {
            Self::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                if sql.starts_with("SELECT") {
                    return connection.query_row(sql, [], |row| row.get(0)).unwrap();
                }
                connection.execute(sql, []).unwrap() as i64
            }
            Self::Postgres { url, schema } => block_on(async {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client.batch_execute(&format!("SET search_path TO {schema}")).await.unwrap();
                if sql.starts_with("SELECT") {
                    return client.query_one(sql, &[]).await.unwrap().get(0);
                }
                client.execute(sql, &[]).await.unwrap() as i64
            }),
        }
    }

    pub fn books(&self) -> Books {
        match self {
            Self::Sqlite(path) => Books::of_sqlite(path),
            Self::Postgres { url, schema } => Books::of_postgres(url, schema),
        }
    }

    pub fn forget(&self) {
        if let Self::Postgres { url, schema } = self {
            let options = Options { schema: Some(schema.clone()), ..Options::default() };
            block_on(async { PostgresStore::open(url, options).await.unwrap().drop_schema().await.unwrap() });
        }
    }
}

pub struct Scene {
    pub place: Place,
    pub keeper: Keeper,
    lives: usize,
    ledger: RefCell<Ledger>,
}

impl Scene {
    pub fn on_sqlite() -> Self {
        let place = Place::in_memory();
        let keeper = Keeper::Sqlite(place.path("data/rota.db"));
        Self { place, keeper, lives: 0, ledger: RefCell::default() }
    }

    pub fn on_postgres(server: &Server) -> Self {
        Self::on(Keeper::postgres(server))
    }

    fn on(keeper: Keeper) -> Self {
        Self { place: Place::in_memory(), keeper, lives: 0, ledger: RefCell::default() }
    }

    pub fn ledger(&self) -> Ref<'_, Ledger> {
        self.ledger.borrow_mut().read_on(&self.place);
        self.ledger.borrow()
    }

    /// Starts the next node.
    pub fn live(&mut self, firing: bool, environment: &[(&str, &str)]) -> Node {
        self.lives += 1;
        documents(&self.place, self.lives, firing);
        self.again(environment)
    }

    /// Starts a node with the documents of the last.
    pub fn again(&self, environment: &[(&str, &str)]) -> Node {
        let jobs = self.place.text("jobs");
        let fixed = ["--jobs", &jobs, "--commands-policy", "any", "--traits", "gpu"];
        let leases = ["--leases-node", "2s", "--leases-run", "3s"];
        Node::start_with(&self.place, &[&self.keeper.arguments()[..], &fixed, &leases].concat(), environment)
    }

    /// A node that dies at a point. One that does not get there fails the test.
    pub fn die_at(&mut self, point: Point, moment: Moment) {
        let armed = point.armed(moment, 1);
        if point.origin == Origin::Repair {
            assert_eq!(self.keeper.sql("INSERT INTO slot (key, lim, held, waiting) VALUES (1, 1, 1, 0)"), 1);
            let nobody = match self.keeper {
                Keeper::Sqlite(_) => "x'00000000000000000000000000000001'",
                Keeper::Postgres { .. } => "'00000000-0000-0000-0000-000000000001'",
            };
            let tie = format!("INSERT INTO need (needed, waiter) VALUES ({nobody}, {nobody})");
            assert_eq!(self.keeper.sql(&tie), 1);
        }
        let node = self.live(true, &[(VARIABLE, &armed)]);
        let told = Cell::new(false);
        let (status, _, log) = node.end_while(|node| {
            // It must have something to leave.
            let at_work = ["\"serving\"", "\"took partitions\""]
                .iter()
                .all(|said| node.log.iter().any(|line| line.contains(said)));
            let leaves = point.origin == Origin::Leaving && at_work && self.ledger().is_long_in_flight(node.id());
            if leaves && !told.replace(true) {
                node.signal(Signal::TERM);
            }
        });
        let died = log.iter().any(|line| line.contains("dying at a failpoint"));
        assert!(died && status.signal() == Some(6), "{armed}: {status:?}\n{}", log.join("\n"));
    }

    /// A node that finds what others left and catches up, and is killed in the
    /// midst of what came since.
    pub fn recover(&mut self) {
        let last = self.ledger().last();
        let mut node = self.live(true, &[]);
        node.wait_for("the instants that were owed", |_| self.ledger().has_caught_up_with(&last));
        // Whoever lost a worker before must not lose this one as well, or it
        // would rightly end as a dead letter.
        let scarred = "SELECT count(*) FROM run WHERE losses > 0";
        node.wait_for("the node to be in the midst of new runs", |_| {
            self.ledger().is_busy() && self.keeper.sql(scarred) == 0
        });
        node.signal(Signal::KILL);
        drop(node.end());
    }

    /// The last node: it fires nothing, and ends when nothing is left.
    pub fn drain(&mut self) {
        let mut node = self.live(false, &[]);
        // What was owed until then may still be fired.
        node.wait_for("schedules to be off", |_| self.keeper.sql("SELECT count(*) FROM cursor") == 0);
        node.wait_for("everything to drain", |_| self.keeper.sql("SELECT count(*) FROM run") == 0);
        node.wait_for("slots to be free", |_| {
            self.keeper.sql("SELECT count(*) FROM slot WHERE held <> 0 OR waiting <> 0") == 0
        });
        assert_eq!(node.stop().0.code(), Some(0));
    }

    /// Looks through the books, and takes the store away.
    pub fn close(self) {
        drop(self.ledger());
        Audit { books: self.keeper.books(), ledger: self.ledger.take() }.all();
        self.keeper.forget();
    }
}

/// The store's books against the ledger.
struct Audit {
    books: Books,
    ledger: Ledger,
}

impl Audit {
    fn all(&self) {
        let runs: BTreeMap<String, &RunRecord> =
            self.books.runs.iter().map(|record| (record.run.id.to_string(), record)).collect();
        self.each_line_is_of_a_run(&runs);
        self.each_instant_was_executed();
        self.each_run_ended_as_it_should(&runs);
        self.fences_rise(&runs);
    }

    fn each_line_is_of_a_run(&self, runs: &BTreeMap<String, &RunRecord>) {
        for line in &self.ledger.lines {
            let record = runs.get(&line.run).unwrap_or_else(|| panic!("{line:?} is of no run of the store"));
            assert_eq!(record.run.trigger.planned_at, Some(line.planned_at), "{line:?}");
            assert!(record.run.fence.0 >= line.fence, "{line:?} and the store has {:?}", record.run.fence);
        }
    }

    /// From the first instant to the last: one run and no second, executed to
    /// its end; or recorded as skipped, and not executed.
    fn each_instant_was_executed(&self) {
        let mut made: BTreeMap<ScheduleId, BTreeMap<Timestamp, usize>> = BTreeMap::new();
        for record in &self.books.runs {
            let trigger = &record.run.trigger;
            *made.entry(trigger.schedule.unwrap()).or_default().entry(trigger.planned_at.unwrap()).or_default() += 1;
        }
        for (schedule, instants) in &made {
            for (at, count) in instants {
                assert_eq!(*count, 1, "{at} of schedule {schedule} made {count} runs");
            }
        }
        for (name, seconds) in STRICT {
            let schedule = self.books.schedule(name);
            let (instants, ended) = (&made[&schedule], self.ledger.ended(name));
            let (mut at, last) = (*instants.keys().next().unwrap(), *instants.keys().next_back().unwrap());
            while at <= last {
                let skips = self.books.skips.iter().filter(|record| record.schedule == schedule);
                let skipped = skips.filter(|record| record.range.from <= at && at <= record.range.to).count();
                let found = (instants.contains_key(&at), skipped, ended.contains(&at));
                let of_it = |record: &&RunRecord| {
                    record.run.trigger.schedule == Some(schedule) && record.run.trigger.planned_at == Some(at)
                };
                let record = self.books.runs.iter().find(of_it);
                assert_eq!(found, (true, 0, true), "{at} of {name}: (made, skipped, executed)\n{record:?}");
                at += SignedDuration::from_secs(seconds);
            }
            assert_eq!(ended.len(), instants.len(), "{name} was executed for an instant that made no run");
        }
    }

    fn each_run_ended_as_it_should(&self, runs: &BTreeMap<String, &RunRecord>) {
        let strict: BTreeSet<ScheduleId> = STRICT.iter().map(|(name, _)| self.books.schedule(name)).collect();
        for record in runs.values() {
            let run = &record.run;
            let Status::Ended(verdict) = run.state.status() else { panic!("{run:?} was left") };
            let strict = strict.contains(&run.trigger.schedule.unwrap());
            let fine = verdict == Verdict::Succeeded || (!strict && verdict == Verdict::Cancelled);
            assert!(fine, "{verdict:?}: {record:?}");
        }
    }

    /// Whoever executes a run again has a greater fence, and is another process,
    /// or makes another attempt, or has on record that the run was given up.
    fn fences_rise(&self, runs: &BTreeMap<String, &RunRecord>) {
        let mut before: BTreeMap<&str, (i32, u32, u32)> = BTreeMap::new();
        for line in self.ledger.lines.iter().filter(|line| line.began) {
            let record = runs[&line.run];
            assert!(line.attempt <= u32::from(record.run.attempts_used) + 1, "{line:?} is an attempt off the record");
            let Some((fence, attempt, process)) = before.insert(&line.run, (line.fence, line.attempt, line.process))
            else {
                continue;
            };
            assert!(line.fence > fence, "{line:?} after fence {fence}");
            let given_up =
                |entry: &TrailEntry| matches!(entry.kind, TrailKind::WorkerLost { .. } | TrailKind::HandedBack { .. });
            let explained = line.process != process || line.attempt > attempt || record.trail.iter().any(given_up);
            assert!(explained, "{line:?} was executed twice by the same process");
        }
    }
}
