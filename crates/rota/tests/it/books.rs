//! What the store holds of a job, held against what the job itself wrote down.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use rota_core::{
    ids::ScheduleId,
    store::{RunQuery, RunRecord, ScheduleQuery, SkipRecord, Store},
};
use rota_store::{
    postgres::{self, PostgresStore},
    sqlite::{self, SqliteStore},
};

/// So many schedules that every node of a few has some in its partitions.
pub const SCHEDULES: usize = 12;

/// A job whose schedules fire every second, and that writes each run and its
/// planned instant into a file.
pub fn every_second(ledger: &str) -> String {
    let schedule = |n| format!("  - {{ name: s{n}, every: 1s, overlap: allow, catch_up: {{ mode: all }} }}\n");
    let schedules: String = (0..SCHEDULES).map(schedule).collect();
    format!(
        "\
name: tick
schedules:
{schedules}steps:
  - id: write
    command:
      shell: 'echo \"$RUN $PLANNED\" >> {ledger}'
      env: {{ RUN: '{{{{ run.id }}}}', PLANNED: '{{{{ run.planned_at }}}}' }}
"
    )
}

/// The runs and skips of all schedules.
pub struct Books {
    pub runs: Vec<RunRecord>,
    pub skips: Vec<SkipRecord>,
    names: BTreeMap<String, ScheduleId>,
    listed: BTreeSet<ScheduleId>,
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work)
}

/// All skips of a schedule.
async fn skips_of(store: &dyn Store, schedule: ScheduleId) -> Vec<SkipRecord> {
    let mut skips: Vec<SkipRecord> = Vec::new();
    loop {
        let before = skips.last().map(|record| record.range.from);
        let page = store.skips(schedule, before, 1_000).await.unwrap();
        if page.is_empty() {
            return skips;
        }
        skips.extend(page);
    }
}

impl Books {
    pub fn of_sqlite(path: &Path) -> Self {
        block_on(async {
            Self::read(Arc::new(SqliteStore::open(path, sqlite::Options::default()).await.unwrap())).await
        })
    }

    pub fn of_postgres(url: &str, schema: &str) -> Self {
        let options = postgres::Options { schema: Some(schema.to_owned()), ..postgres::Options::default() };
        block_on(async { Self::read(Arc::new(PostgresStore::open(url, options).await.unwrap())).await })
    }

    async fn read(store: Arc<dyn Store>) -> Self {
        let mut runs = Vec::new();
        let mut query = RunQuery { limit: 1_000, ..RunQuery::default() };
        loop {
            let page = store.list_runs(&query).await.unwrap();
            runs.extend(page.runs);
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        let (mut skips, mut names, mut listed) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let schedules =
            store.list_schedules(&ScheduleQuery { limit: 1_000, ..ScheduleQuery::default() }).await.unwrap();
        for schedule in schedules.schedules {
            skips.extend(skips_of(store.as_ref(), schedule.id).await);
            names.insert(schedule.name, schedule.id);
            listed.insert(schedule.id);
        }
        Self { runs, skips, names, listed }
    }

    /// Those of schedules that are gone, too.
    pub fn with_skips_of(mut self, url: &str, schema: &str, gone: &[ScheduleId]) -> Self {
        let options = postgres::Options { schema: Some(schema.to_owned()), ..postgres::Options::default() };
        block_on(async {
            let store = PostgresStore::open(url, options).await.unwrap();
            for schedule in gone.iter().filter(|schedule| !self.listed.contains(schedule)) {
                self.skips.extend(skips_of(&store, *schedule).await);
            }
        });
        self
    }

    /// The schedule of this name.
    pub fn schedule(&self, name: &str) -> ScheduleId {
        self.names[name]
    }

    /// How many runs each instant of each schedule made.
    fn planned(&self) -> BTreeMap<ScheduleId, BTreeMap<Timestamp, usize>> {
        let mut planned: BTreeMap<ScheduleId, BTreeMap<Timestamp, usize>> = BTreeMap::new();
        for record in &self.runs {
            let trigger = &record.run.trigger;
            let instants = planned.entry(trigger.schedule.unwrap()).or_default();
            *instants.entry(trigger.planned_at.unwrap()).or_default() += 1;
        }
        planned
    }

    /// From the first instant of a schedule to its last, each made one run or is
    /// a recorded skip; none made two.
    pub fn each_instant_has_one_end(&self) {
        let planned = self.planned();
        assert_eq!(planned.len(), SCHEDULES);
        for (schedule, instants) in planned {
            let (first, last) = (*instants.keys().next().unwrap(), *instants.keys().next_back().unwrap());
            let mut at = first;
            while at <= last {
                let skips = self.skips.iter().filter(|record| record.schedule == schedule);
                let skipped = skips.filter(|record| record.range.from <= at && at <= record.range.to).count();
                let made = instants.get(&at).copied().unwrap_or_default();
                assert_eq!(made + skipped, 1, "{at} of schedule {schedule} made {made} runs and {skipped} skips");
                at += SignedDuration::from_secs(1);
            }
        }
    }

    /// Whatever was executed is a run of the store, for the instant it says.
    pub fn agree_with(&self, ledger: &[String]) {
        let known: BTreeSet<String> = self
            .runs
            .iter()
            .map(|record| format!("{} {}", record.run.id, record.run.trigger.planned_at.unwrap()))
            .collect();
        for line in ledger {
            assert!(known.contains(line), "`{line}` was executed and is no run of the store");
        }
    }
}
