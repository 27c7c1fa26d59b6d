//! The load: what a benchmark's runs look like.
//!
//! Mixed is the load that figures are given for: 100 tenants on three queues,
//! 1,000 jobs, a tenth of the runs under a concurrency key, one in a hundred
//! failing once, 200-byte payloads unless told otherwise. Plain is one tenant and nothing else, so
//! that what the rest costs can be seen.

use jiff::Timestamp;
use rota_core::{
    ids::{JobId, LaneId, Partition, RunId, TenantId},
    lane::LaneKey,
    order::Priority,
    run::{Labels, NewRun, Source, Trigger},
    slot::{SlotAsk, SlotKey, WhenFull},
    store::{Store, StoreError, TenantPut, Tier},
};
use uuid::Uuid;

use super::Drive;

const KEYS: u64 = 1_000;

/// What the runs of a benchmark look like.
pub struct Load {
    tenants: Vec<TenantId>,
    lanes: Vec<LaneId>,
    jobs: u64,
    mixed: bool,
    payload: Box<str>,
    /// Where this load's concurrency keys begin: none that a load which was cut
    /// short still holds.
    keys_from: i64,
}

impl Load {
    /// Makes the tenants and lanes that the load needs.
    pub async fn prepare(store: &dyn Store, drive: &Drive, now: Timestamp) -> Result<Self, StoreError> {
        let Drive { mixed, mode, payload, .. } = *drive;
        let (tenants, queues, jobs) = if mixed { (100, 3, 1_000) } else { (1, 1, 1_000) };
        let puts: Vec<TenantPut> = (0..tenants)
            .map(|n| TenantPut {
                name: format!("bench-{n}"),
                tier: [Tier::Free, Tier::Pro, Tier::Enterprise][n % 3],
                quotas: None,
            })
            .collect();
        let keys: Vec<LaneKey> = (0..queues).map(|n| LaneKey::new(&format!("bench-{mode:?}-{n}"), None, &[])).collect();
        Ok(Self {
            tenants: store.put_tenants(&puts, now).await?,
            lanes: store.lanes(&keys, mode).await?.into_iter().map(|lane| lane.id).collect(),
            jobs,
            mixed,
            keys_from: Uuid::now_v7().as_u64_pair().1 as i64,
            payload: rota_store::RawLoad::payload(payload).into(),
        })
    }

    pub fn lanes(&self) -> &[LaneId] {
        &self.lanes
    }

    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, u32)> + '_ {
        self.tenants.iter().enumerate().map(|(n, tenant)| (*tenant, [1, 3, 10][n % 3]))
    }

    /// The run with this number, to be made in `part`.
    pub fn run(&self, number: u64, part: Partition, now: Timestamp) -> NewRun {
        let dice = scatter(number);
        let tenant = self.tenants[(dice % self.tenants.len() as u64) as usize];
        let job = JobId((dice >> 8) as i64 % self.jobs as i64 + 1);
        let keyed = self.mixed && (dice >> 20).is_multiple_of(10);
        NewRun {
            id: RunId(Uuid::now_v7()),
            tenant,
            job,
            version: 1,
            lane: self.lanes[((dice >> 32) % self.lanes.len() as u64) as usize],
            part,
            priority: Priority::default(),
            ready_at: now,
            expires_at: None,
            deadline_at: None,
            trigger: Trigger::plain(Source::Api),
            labels: Labels::new(),
            payload: Some(self.payload.clone()),
            slot: keyed.then(|| SlotAsk {
                key: SlotKey(self.keys_from.wrapping_add(((dice >> 40) % KEYS) as i64)),
                limit: 1,
                when_full: WhenFull::Queue,
                max_queued: None,
                grace: rota_core::duration::Span::secs(30),
            }),
            unique: None,
            once: None,
            parent: None,
            after: Vec::new(),
            follows: false,
            rearms: false,
            redrive: None,
        }
    }

    /// Whether a run's first attempt fails.
    pub fn fails_first(&self, run: RunId) -> bool {
        self.mixed && scatter(run.0.as_u64_pair().1).is_multiple_of(100)
    }
}

/// Spreads numbers without a pattern (the finaliser of `SplitMix64`).
pub fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
