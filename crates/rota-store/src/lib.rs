//! Rota's stores behind the port of `rota-core`: SQLite in one file, and
//! PostgreSQL for a cluster. Same semantics, same file names, one conformance
//! suite.

mod abandoned;
mod codec;
pub mod failpoint;
mod filter;
mod fired;
pub mod guests;
pub mod postgres;
mod rollup;
pub mod sqlite;

/// What a store is to somebody who only looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The version of its schema; none where Rota has not used it yet.
    pub schema: Option<i64>,
    /// The newest that this release knows.
    pub known: i64,
    /// What its clock says; none where it is this machine's own.
    pub clock: Option<jiff::Timestamp>,
}

/// What a store's raw loop is to do.
#[derive(Clone, Copy, Debug)]
pub struct RawLoad {
    pub runs: u64,
    pub batch: u64,
    /// Whether each run is leased in writing before it is moved to history.
    pub claimed: bool,
    /// Many tenants on three queues and a tenth of the runs under a key; else one
    /// tenant and nothing else.
    pub mixed: bool,
}

/// Where a run of a raw loop belongs.
struct RawRun {
    tenant: i32,
    job: i64,
    lane: i32,
    slot: Option<i64>,
}

impl RawLoad {
    /// As the runs of the driven store are spread: without a pattern.
    fn place(self, id: uuid::Uuid) -> RawRun {
        let dice = id.as_u64_pair().1 as u32;
        let job = i64::from((dice >> 7) % 1_000) + 1;
        if !self.mixed {
            return RawRun { tenant: 1, job, lane: 1, slot: None };
        }
        let slot = (dice >> 19).is_multiple_of(10).then(|| i64::from((dice >> 22) % 1_000) + 1);
        RawRun { tenant: (dice % 100) as i32 + 1, job, lane: ((dice >> 17) % 3) as i32 + 1, slot }
    }

    /// The counts of a batch, as large as those of one that touches half of the jobs.
    fn counts(self, now: jiff::Timestamp) -> Vec<u8> {
        let ended = rota_core::rollup::Ended {
            verdict: rota_core::run::Verdict::Succeeded,
            ready_at: now,
            started_at: Some(now),
            ended_at: now,
            attempts: 1,
            losses: 0,
        };
        let mut counts = rollup::Rollups::new();
        for job in (1..=self.batch.min(1_000) as i64).step_by(2) {
            let hour = rota_core::rollup::hour_of(now);
            counts.entry((rota_core::ids::JobId(job), hour)).or_default().add(&ended);
        }
        rollup::encode(&counts)
    }
}
