//! Drives the store port through the whole life of runs, as an engine would,
//! with nothing to execute: create, own or claim, settle.
//!
//! Owned runs are handed over in memory and taken from the dispatch queue that
//! the engine uses; claimed ones are leased in writing by its shares. Creating
//! and settling are in flight together, so that the store's group commit has
//! something to group. Upkeep goes on beside it.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
};

use jiff::Timestamp;
use rota_core::{
    dispatch::{Backlog, ClaimPlan, Pair, Place},
    duration::Span,
    ids::{BatchId, NodeId, Partition, RunId, WorkerId},
    job::{
        failure::{ErrorKind, Failure},
        retry::{Backoff, RetryRule},
    },
    lane::LaneMode,
    run::{Change, Hold, Outcome, Run, RunState, SettlePolicy, Status},
    store::{By, Claim, Ends, Enqueued, Epoch, Guarded, NodeBeat, Settlement, Store, StoreError, Tend, Write},
};
use uuid::Uuid;

use super::load::Load;
use crate::clock;

/// Where the driver stands in the store.
pub struct Seat {
    node: NodeId,
    epochs: Vec<Epoch>,
}

impl Seat {
    /// Joins the store as a node that holds every partition.
    pub async fn take(store: &dyn Store) -> Result<Self, StoreError> {
        let node = NodeId(Uuid::now_v7());
        let now = clock::now();
        let until = Span::secs(24 * 3_600).after(now);
        for other in store.nodes(now).await? {
            store.leave(other.node).await?;
        }
        let beat = NodeBeat { node, name: "bench".into(), info: "{}".into(), until };
        store.beat(&beat, now).await?;
        let parts: Vec<Partition> = Partition::all().collect();
        let taken = store.take_partitions(node, &parts, now).await?;
        Ok(Self { node, epochs: taken.into_iter().map(|epoch| epoch.unwrap_or(Epoch(0))).collect() })
    }

    fn epoch(&self, part: Partition) -> Epoch {
        self.epochs[usize::from(part.0)]
    }

    fn write(&self, now: Timestamp) -> Write {
        Write {
            batch: BatchId(Uuid::now_v7()),
            now,
            node: Some(self.node),
            generation: 0,
            request: None,
            ends: Ends::default(),
            dry_run: false,
        }
    }
}

/// One pipeline of runs through the store.
pub struct Pipeline<'a> {
    store: &'a dyn Store,
    seat: &'a Seat,
    load: &'a Load,
    mode: LaneMode,
    batch: usize,
    /// Numbers of the runs this pipeline makes.
    next: u64,
    end: u64,
    ended: u64,
    backlog: Backlog,
    claims: ClaimPlan,
    worker: WorkerId,
    known: HashMap<RunId, Run>,
    policy: SettlePolicy,
    turn: usize,
    /// The partitions in which this pipeline makes its runs, and nobody else.
    parts: Vec<Partition>,
    /// Runs of all pipelines that have yet to end.
    left: &'a AtomicU64,
}

/// What a pipeline is to do.
pub struct Task {
    pub mode: LaneMode,
    pub batch: usize,
    pub runs: std::ops::Range<u64>,
    /// This pipeline's number, and how many there are.
    pub place: (usize, usize),
}

impl<'a> Pipeline<'a> {
    pub fn new(store: &'a dyn Store, seat: &'a Seat, load: &'a Load, left: &'a AtomicU64, task: &Task) -> Self {
        let mut backlog = Backlog::new(200_000);
        let mut claims = ClaimPlan::default();
        for (tenant, weight) in load.tenants() {
            backlog.shares().weigh(tenant, weight);
            claims.shares().weigh(tenant, weight);
        }
        let rule = RetryRule {
            max_attempts: Some(4),
            backoff: Some(Backoff::Fixed),
            initial: Some(Span::millis(1)),
            ..RetryRule::default()
        };
        Self {
            store,
            seat,
            load,
            mode: task.mode,
            batch: task.batch,
            next: task.runs.start,
            end: task.runs.end,
            ended: 0,
            backlog,
            claims,
            worker: WorkerId(Uuid::now_v7()),
            known: HashMap::new(),
            policy: SettlePolicy { retry: rule.policy(), losses_max: 5 },
            turn: 0,
            parts: Partition::all().filter(|part| usize::from(part.0) % task.place.1 == task.place.0).collect(),
            left,
        }
    }

    /// Runs until everything it made has ended; answers how many that were.
    pub async fn run(mut self, progress: impl Fn(u64)) -> Result<u64, StoreError> {
        let mut ready: Vec<Run> = Vec::new();
        loop {
            let now = clock::now();
            let (settled, made, claimed) = {
                let settlements = self.settlements(std::mem::take(&mut ready), now);
                let new = self.new_runs(now);
                let claim = self.claim(now);
                let (store, seat) = (self.store, self.seat);
                tokio::try_join!(
                    async {
                        if settlements.is_empty() {
                            return Ok((settlements, None));
                        }
                        let answer = store.settle(&seat.write(now), &settlements).await?;
                        Ok((settlements, Some(answer)))
                    },
                    async {
                        let answers = if new.is_empty() {
                            Vec::new()
                        } else {
                            store.enqueue(&seat.write(now), &new, &[]).await?
                        };
                        Ok::<_, StoreError>((new, answers))
                    },
                    async {
                        let Some(claim) = claim else { return Ok((None, Vec::new())) };
                        let runs = store.claim(&seat.write(now), std::slice::from_ref(&claim)).await?;
                        Ok((Some(claim), runs))
                    }
                )?
            };
            let before = self.ended;
            self.take_settled(&settled.0, settled.1);
            self.take_made(made.0, &made.1, now);
            ready = match claimed.0 {
                Some(claim) => self.take_claimed(&claim, claimed.1),
                None => self.dispatch(now),
            };
            let ended = self.ended - before;
            progress(ended);
            if self.left.fetch_sub(ended, Ordering::Relaxed) == ended {
                return Ok(self.ended);
            }
            self.turn += 1;
            if self.next >= self.end && ready.is_empty() {
                if self.left.load(Ordering::Relaxed) == 0 {
                    return Ok(self.ended);
                }
                self.look(now).await?;
            } else if self.turn.is_multiple_of(16) {
                self.promote(now).await?;
            }
        }
    }

    fn new_runs(&mut self, now: Timestamp) -> Vec<rota_core::run::NewRun> {
        let part = self.parts[self.turn % self.parts.len()];
        let upto = self.end.min(self.next + self.batch as u64);
        let runs = (self.next..upto).map(|number| self.load.run(number, part, now)).collect();
        self.next = upto;
        runs
    }

    fn settlements(&self, ready: Vec<Run>, now: Timestamp) -> Vec<Settlement> {
        ready
            .into_iter()
            .filter_map(|run| {
                let outcome = if run.attempts_used == 0 && self.load.fails_first(run.id) {
                    Outcome::Failed(Failure::new(ErrorKind::Handler, "told to fail once"))
                } else {
                    Outcome::Succeeded { output: None }
                };
                let change = run.settle(run.lease(), outcome, &self.policy, 0.5, now).ok()?;
                let by = match self.mode {
                    LaneMode::Owned => By::Owner(self.seat.epoch(run.part)),
                    LaneMode::Claimed => By::Lease,
                };
                Some(Settlement { lease: run.lease(), part: run.part, by, change })
            })
            .collect()
    }

    fn take_settled(&mut self, asked: &[Settlement], settled: Option<rota_core::store::Settled>) {
        let Some(settled) = settled else { return };
        for (settlement, answer) in asked.iter().zip(&settled.answers) {
            if *answer == Guarded::Applied && matches!(settlement.change, Change::Finish(_)) {
                self.ended += 1;
            }
        }
        for woken in settled.woken {
            self.ready(woken.run);
        }
    }

    fn take_made(&mut self, new: Vec<rota_core::run::NewRun>, answers: &[Enqueued], now: Timestamp) {
        for (run, answer) in new.into_iter().zip(answers) {
            if let Enqueued::Made { status: Status::Queued, .. } = answer {
                self.ready(run.born(RunState::Queued, now));
            }
        }
    }

    fn ready(&mut self, run: Run) {
        let pair = Pair { lane: run.lane, tenant: run.tenant };
        match self.mode {
            LaneMode::Owned => {
                if self.backlog.offer(pair, (run.order_key(), run.id)) {
                    self.known.insert(run.id, run);
                }
            }
            LaneMode::Claimed => self.claims.note(pair, run.order_key()),
        }
    }

    /// How many runs are taken in a turn: a little more than are made, or what was
    /// retried and admitted piles up.
    fn most(&self) -> usize {
        self.batch + self.batch / 8
    }

    /// Takes the next runs from memory, as started now.
    fn dispatch(&mut self, now: Timestamp) -> Vec<Run> {
        let taken = self.backlog.take(self.most(), |_| true);
        taken
            .into_iter()
            .filter_map(|(_, (_, id))| {
                let mut run = self.known.remove(&id)?;
                run.state = RunState::Running { hold: Hold::Owned, started_at: now };
                Some(run)
            })
            .collect()
    }

    fn claim(&mut self, now: Timestamp) -> Option<Claim> {
        if self.mode == LaneMode::Owned {
            return None;
        }
        let most = self.most() as u32;
        let shares = self.claims.shares_of(most, |_| true);
        let until = Span::secs(60).after(now);
        Some(Claim { worker: self.worker, until, shares, most })
    }

    fn take_claimed(&mut self, claim: &Claim, runs: Vec<Run>) -> Vec<Run> {
        for share in &claim.shares {
            let of_share = |run: &&Run| run.lane == share.pair.lane && run.tenant == share.pair.tenant;
            let keys: Vec<_> = runs.iter().filter(of_share).map(Run::order_key).collect();
            self.claims.claimed(share, &keys);
        }
        runs
    }

    async fn promote(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let promoted = self.store.promote(&self.seat.write(now), &self.parts, self.batch as u32).await?;
        for woken in promoted.woken {
            self.ready(woken.run);
        }
        Ok(())
    }

    /// With nothing left in memory: waits a moment for what is in backoff, and
    /// looks into the store.
    async fn look(&mut self, now: Timestamp) -> Result<(), StoreError> {
        clock::sleep(Span::millis(1)).await;
        self.promote(now).await?;
        match self.mode {
            LaneMode::Claimed => {
                let pairs = self.store.ready_pairs(self.load.lanes()).await?;
                self.claims.looked(pairs);
            }
            LaneMode::Owned => {
                let windows = self.backlog.wanted();
                let read = self.store.own(&self.parts, &windows).await?;
                for (window, runs) in windows.iter().zip(read) {
                    let places: Vec<Place> = runs.iter().map(|run| (run.order_key(), run.id)).collect();
                    self.backlog.read(window, &places, |_| false);
                    self.known.extend(runs.into_iter().map(|run| (run.id, run)));
                }
            }
        }
        Ok(())
    }
}

/// Gives upkeep its slices, as a node's stage does, for as long as it is let.
pub async fn tend(store: &dyn Store) -> Result<Infallible, StoreError> {
    let keep = Span::secs(7 * 24 * 3_600);
    loop {
        let ask =
            Tend { now: clock::now(), history_keep: keep, skips_keep: keep, batches_keep: keep, audit_keep: keep };
        while store.tend(&ask).await?.more {}
        clock::sleep(Span::secs(1)).await;
    }
}
