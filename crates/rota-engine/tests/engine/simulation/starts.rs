//! By what right processes execute attempts.
//!
//! A written lease is executed once, by the worker that it names. Without one, the right
//! is the partition's: a process begins a run only in a partition that it holds, once
//! under one epoch, and breaks the attempt off when the partition goes, unless it keeps
//! the attempt by a written lease.

use std::collections::{BTreeMap, HashMap, HashSet};

use rota_core::{ids::Partition, run::Lease, store::Epoch};
use rota_engine::node::Node;

use super::{
    ledger::{Ledger, Start},
    witness::Witness,
};

/// An attempt that is executed by the right of its partition.
struct UnderWay {
    process: usize,
    lease: Lease,
    part: Partition,
    epoch: Epoch,
}

/// See the module.
#[derive(Default)]
pub struct Starts {
    /// Which process executed a written lease.
    leased: HashMap<Lease, usize>,
    owned: HashSet<(usize, Lease, Epoch)>,
    /// The right by which attempts are under way.
    under_way: BTreeMap<u64, UnderWay>,
}

impl Starts {
    /// Looks at what a process has begun since, and at what it executes. To be asked when
    /// its tasks have had their turn.
    pub fn check(&mut self, process: usize, node: &Node, ledger: &Ledger, witness: &Witness) {
        let mut begun: Vec<Start> =
            ledger.write(|pages| pages.begun.extract_if(.., |start| start.process == process).collect());
        begun.sort_unstable_by_key(|start| (start.lease.run, start.number));
        for start in begun {
            witness.weather.note(|| format!("{process} begins {} at fence {}", start.lease.run, start.lease.fence.0));
            let wrong = match witness.holder(start.lease) {
                Some(holder) if holder != node.worker => {
                    Err(format!("{:?} is executed by {process} and leased to {holder}", start.lease))
                }
                Some(_) => self.leased(process, start.lease),
                None => self.owned(start, node, witness),
            };
            wrong.unwrap_or_else(|wrong| witness.accuse(wrong));
        }
        self.under_way.retain(|number, _| ledger.read(|pages| pages.under_way.contains(number)));
        for UnderWay { lease, part, epoch, .. } in self.under_way.values().filter(|one| one.process == process) {
            let holds = node.territory.held(*part).map(|held| held.epoch) == Some(*epoch);
            let keeps = || node.is_handover_pending(*lease) || witness.holder(*lease) == Some(node.worker);
            if !holds && !keeps() {
                witness.accuse(format!("{process} goes on executing {lease:?} although {part:?} has gone"));
            }
        }
    }

    fn leased(&mut self, process: usize, lease: Lease) -> Result<(), String> {
        match self.leased.insert(lease, process) {
            None => Ok(()),
            Some(before) => Err(format!("{lease:?} is executed by {process} and was by {before}")),
        }
    }

    fn owned(&mut self, start: Start, node: &Node, witness: &Witness) -> Result<(), String> {
        let Start { number, lease, process } = start;
        let Some(run) = witness.run(lease.run) else { return Err(format!("{lease:?} is executed and unknown")) };
        let Some(held) = node.territory.held(run.part) else {
            return Err(format!("{process} executes {lease:?} and does not hold {:?}", run.part));
        };
        self.under_way.insert(number, UnderWay { process, lease, part: run.part, epoch: held.epoch });
        if self.owned.insert((process, lease, held.epoch)) {
            return Ok(());
        }
        Err(format!("{process} executes {lease:?} twice"))
    }
}
