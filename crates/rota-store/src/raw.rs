//! The load of a store's raw loop: runs spread as a benchmark's are, and written by
//! hand.

use jiff::Timestamp;
use rota_core::{
    ids::JobId,
    rollup::{Ended, hour_of},
    run::Verdict,
};
use uuid::Uuid;

use crate::rollup::{Rollups, encode};

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
    /// Bytes of each payload.
    pub payload: usize,
}

/// Where a run of a raw loop belongs.
pub struct RawRun {
    pub tenant: i32,
    pub job: i64,
    pub lane: i32,
    pub slot: Option<i64>,
}

impl RawLoad {
    /// A document of so many bytes.
    pub fn payload(bytes: usize) -> String {
        format!("{{\"text\":\"{}\"}}", "x".repeat(bytes.saturating_sub(11)))
    }

    /// As the runs of the driven store are spread: without a pattern.
    pub fn place(self, id: Uuid) -> RawRun {
        let dice = id.as_u64_pair().1 as u32;
        let job = i64::from((dice >> 7) % 1_000) + 1;
        if !self.mixed {
            return RawRun { tenant: 1, job, lane: 1, slot: None };
        }
        let slot = (dice >> 19).is_multiple_of(10).then(|| i64::from((dice >> 22) % 1_000) + 1);
        RawRun { tenant: (dice % 100) as i32 + 1, job, lane: ((dice >> 17) % 3) as i32 + 1, slot }
    }

    /// The counts of a batch, as large as those of one that touches half of the jobs.
    pub fn counts(self, now: Timestamp) -> Vec<u8> {
        let ended = Ended {
            verdict: Verdict::Succeeded,
            ready_at: now,
            started_at: Some(now),
            ended_at: now,
            attempts: 1,
            losses: 0,
        };
        let mut counts = Rollups::new();
        for job in (1..=self.batch.min(1_000) as i64).step_by(2) {
            let hour = hour_of(now);
            counts.entry((JobId(job), hour)).or_default().add(&ended);
        }
        encode(&counts)
    }
}
