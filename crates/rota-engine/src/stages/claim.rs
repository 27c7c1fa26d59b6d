//! Claim: leases runs of claimed lanes in writing, and starts them.
//!
//! For lanes that only some nodes can execute. Which pairs of lane and tenant
//! have something is known from what this node made itself and from a look now
//! and then; how many of each to lease is decided by the same shares as in
//! memory.
//!
//! Where runs are shorter than a claim takes to be written, more are claimed than
//! there are slots: as many as will have ended by then. They wait here for their
//! slots, and what has found none after a while is given back.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    dispatch::ahead,
    lane::LaneMode,
    run::Run,
    store::{By, Claim as ClaimAsk, StoreError, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::{
    launch::Launch,
    node::Node,
    runs::{TakenRun, pair_of},
};

/// One claim takes at most so many times what is started at once.
const AHEAD_TIMES: usize = 4;

pub struct Claim {
    node: Arc<Node>,
    launch: Launch,
    look_at: Timestamp,
    /// A claim whose answer was lost.
    pending: Option<PendingClaim>,
    /// Runs that were claimed and wait for their slots.
    waiting: VecDeque<TakenRun>,
    /// Until when they do.
    patience: Timestamp,
    pace: Pace,
}

struct PendingClaim {
    write: Write,
    claim: ClaimAsk,
    /// The uptime when it was first asked for.
    began: Duration,
}

/// What the last claim was like, for the size of the next.
#[derive(Default)]
struct Pace {
    /// Attempts that were under way when what it brought had been started.
    running: usize,
    /// When it was answered.
    answered_at: Timestamp,
    /// How many may be claimed beyond the free slots.
    ahead: usize,
}

impl Claim {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            launch: Launch::new(Arc::clone(&node)),
            node,
            look_at: Timestamp::MIN,
            pending: None,
            waiting: VecDeque::new(),
            patience: Timestamp::MIN,
            pace: Pace::default(),
        }
    }

    async fn look(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let node = &self.node;
        node.catalog.read_lanes(|key| node.is_able(key)).await?;
        let lanes = node.catalog.gate().able(LaneMode::Claimed);
        if !lanes.is_empty() {
            let pairs = self.node.store.ready_pairs(&lanes).await?;
            self.node.claims(|claims| claims.looked(pairs));
        }
        self.look_at = self.node.options.look_every.after(now);
        Ok(())
    }

    /// How many runs to claim.
    fn most(&mut self, now: Timestamp) -> usize {
        if self.node.options.look_every.after(self.pace.answered_at) <= now {
            // What an earlier time was like tells nothing.
            self.pace = Pace::default();
        }
        let most = self.node.options.dispatch_batch * AHEAD_TIMES;
        if self.launch.is_shut() { 0 } else { (self.launch.free() + self.pace.ahead).min(most) }
    }

    fn ask(&mut self, now: Timestamp) -> Option<PendingClaim> {
        let most = self.most(now) as u32;
        let gate = self.node.catalog.gate();
        let shares = self.node.claims(|claims| {
            if most == 0 || claims.is_idle() { Vec::new() } else { claims.shares_of(most, |pair| gate.open(pair, now)) }
        });
        let until = self.node.options.run_lease.after(now);
        let claim = ClaimAsk { worker: self.node.worker, until, shares, most };
        if claim.shares.is_empty() {
            return None;
        }
        Some(PendingClaim { write: self.node.write(now), claim, began: self.node.clock.uptime() })
    }

    async fn claim(&mut self, asked: PendingClaim) -> Result<Vec<TakenRun>, StoreError> {
        let runs = match self.node.store.claim(&asked.write, std::slice::from_ref(&asked.claim)).await {
            Ok(runs) => runs,
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some(asked);
                }
                return Err(error);
            }
        };
        if !runs.is_empty() {
            self.node.rights.leased(asked.began);
        }
        self.node.stats.claims.add(1);
        self.learn(&runs);
        self.node.claims(|claims| {
            for share in &asked.claim.shares {
                let of_share = |run: &&Run| run.lane == share.pair.lane && run.tenant == share.pair.tenant;
                let keys: Vec<_> = runs.iter().filter(of_share).map(Run::order_key).collect();
                claims.claimed(share, &keys);
            }
        });
        let ours = runs.into_iter().filter(|run| self.node.runs.add(run, By::Lease) || self.fly_again(run));
        Ok(ours.map(|run| TakenRun { run, by: By::Lease, suspect: false }).collect())
    }

    /// How many to claim ahead the next time.
    fn learn(&mut self, runs: &[Run]) {
        let (pace, running) = (&mut self.pace, self.node.executing.running());
        let suspects = runs.iter().any(|run| run.losses > 0);
        let ended = pace.running.saturating_sub(running);
        let most = self.node.options.dispatch_batch * AHEAD_TIMES;
        pace.ahead = ahead(pace.ahead, pace.running, ended, suspects).min(most);
        pace.answered_at = self.node.clock.now();
    }

    /// Starts what was claimed, as far as there are slots. What lost its right to
    /// start while it waited, or has waited for too long, is given back.
    async fn start(&mut self, now: Timestamp) -> Result<usize, StoreError> {
        let mut done = 0;
        while let room = self.launch.room().min(self.waiting.len())
            && room > 0
        {
            let mut starting: Vec<TakenRun> = self.waiting.drain(..room).collect();
            starting.retain(|ready| self.launch.is_ours(ready));
            let gate = self.node.catalog.gate();
            let (starting, shut): (Vec<_>, Vec<_>) =
                starting.into_iter().partition(|ready| gate.open(pair_of(&ready.run), now));
            self.launch.give_back(shut, now);
            done += self.launch.start(starting, now).await?;
            self.pace.running = self.node.executing.running();
        }
        if now >= self.patience {
            self.launch.give_back(self.waiting.drain(..), now);
        }
        Ok(done)
    }

    /// A retry may be claimed before the answer to its settlement is heard.
    /// Where the former attempt is still under way, this one is given back.
    fn fly_again(&self, run: &Run) -> bool {
        let under_way = self.node.executing.slow(|all| all.contains_key(&run.id));
        !under_way && self.node.runs.replace(run, By::Lease)
    }
}

#[async_trait]
impl Stage for Claim {
    fn name(&self) -> &'static str {
        "claim"
    }

    async fn pass(&mut self, now: Timestamp) -> Result<PassReport, StoreError> {
        if self.node.executing.is_draining() {
            self.launch.hand_back(now);
            self.launch.give_back(self.waiting.drain(..), now);
            return Ok(PassReport::idle());
        }
        let mut done = self.launch.go_on(now).await?;
        if now >= self.look_at {
            self.look(now).await?;
        }
        done += self.start(now).await?;
        let asked = match self.pending.take() {
            Some(pending) => Some(pending),
            None if self.waiting.is_empty() => self.ask(now),
            None => None,
        };
        let mut more = false;
        if let Some(asked) = asked {
            let most = asked.claim.most as usize;
            let taken = self.claim(asked).await?;
            more = taken.len() >= most;
            self.waiting.extend(taken);
            self.patience = self.node.options.look_every.after(now);
            done += self.start(now).await?;
        }
        more &= self.waiting.is_empty();
        let patience = (!self.waiting.is_empty()).then_some(self.patience);
        let next_at = self.launch.next_at().into_iter().chain([self.look_at]).chain(patience).min();
        Ok(PassReport { done, more, next_at })
    }

    fn doubt(&mut self) {
        self.look_at = Timestamp::MIN;
    }

    fn stepped(&mut self, now: Timestamp) {
        (self.look_at, self.patience) = (Timestamp::MIN, now);
        self.pace = Pace::default();
        self.launch.stepped(now);
    }
}
