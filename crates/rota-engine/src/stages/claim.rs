//! Claim: leases runs of claimed lanes in writing, and starts them.
//!
//! For lanes that only some nodes can execute. Which pairs of lane and tenant
//! have something is known from what this node made itself and from a look now
//! and then; how many of each to lease is decided by the same shares as in
//! memory.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    lane::LaneMode,
    run::Run,
    store::{By, Claim as ClaimAsk, StoreError, Write},
};

use super::{PassReport, Stage, is_unknown};
use crate::{desk::Ready, launch::Launch, node::Node};

pub struct Claim {
    node: Arc<Node>,
    launch: Launch,
    look_at: Timestamp,
    pending: Option<(Write, ClaimAsk)>,
}

impl Claim {
    pub fn new(node: Arc<Node>) -> Self {
        Self { launch: Launch::new(Arc::clone(&node)), node, look_at: Timestamp::MIN, pending: None }
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

    fn ask(&self, now: Timestamp) -> Option<(Write, ClaimAsk)> {
        let most = self.launch.room() as u32;
        let gate = self.node.catalog.gate();
        let shares = self.node.claims(|claims| {
            if most == 0 || claims.is_idle() { Vec::new() } else { claims.shares_of(most, |pair| gate.open(pair, now)) }
        });
        let until = self.node.options.run_lease.after(now);
        let ask = ClaimAsk { worker: self.node.worker, until, shares, most };
        (!ask.shares.is_empty()).then(|| (self.node.write(now), ask))
    }

    async fn claim(&mut self, write: Write, ask: ClaimAsk) -> Result<Vec<Ready>, StoreError> {
        let runs = match self.node.store.claim(&write, &ask).await {
            Ok(runs) => runs,
            Err(error) => {
                if is_unknown(&error) {
                    self.pending = Some((write, ask));
                }
                return Err(error);
            }
        };
        self.node.stats.claims.add(1);
        self.node.claims(|claims| {
            for share in &ask.shares {
                let of_share = |run: &&Run| run.lane == share.pair.lane && run.tenant == share.pair.tenant;
                let keys: Vec<_> = runs.iter().filter(of_share).map(Run::order_key).collect();
                claims.claimed(share, &keys);
            }
        });
        let ours = runs.into_iter().filter(|run| self.node.desk.fly(run, By::Lease) || self.fly_again(run));
        Ok(ours.map(|run| Ready { run, by: By::Lease, suspect: false }).collect())
    }

    /// A retry may be claimed before the answer to its settlement is heard.
    /// Where the former attempt is still under way, this one is given back.
    fn fly_again(&self, run: &Run) -> bool {
        let under_way = self.node.executing.slow(|all| all.contains_key(&run.id));
        !under_way && self.node.desk.fly_again(run, By::Lease)
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
            return Ok(PassReport::idle());
        }
        let mut done = self.launch.go_on(now).await?;
        if now >= self.look_at {
            self.look(now).await?;
        }
        let ask = match self.pending.take() {
            Some(pending) => Some(pending),
            None => self.ask(now),
        };
        let mut more = false;
        if let Some((write, ask)) = ask {
            let most = ask.most as usize;
            let taken = self.claim(write, ask).await?;
            more = taken.len() >= most;
            done += self.launch.start(taken, now).await?;
        }
        let next_at = self.launch.next_at().into_iter().chain([self.look_at]).min();
        Ok(PassReport { done, more, next_at })
    }

    fn doubt(&mut self) {
        self.look_at = Timestamp::MIN;
    }
}
