//! Which partitions nodes hold.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::{NodeId, Partition},
    store::{Epoch, Guarded, PartitionLease, PartitionStore, StoreError},
};

use super::nodes::one_at_a_time;
use crate::{
    engine::{Engine, Row, SqlStore, Way, applied, bound, values},
    unreadable::Notes,
};

const ALL: &str = "SELECT part, epoch, node FROM partition ORDER BY part";

#[async_trait]
impl<E: Engine> PartitionStore for SqlStore<E> {
    async fn partitions(&self) -> Result<Vec<PartitionLease>, StoreError> {
        let found = self.find_all(Way::Leases, "read partitions", vec![bound(ALL, values![])]).await?;
        found.iter().flatten().map(lease).collect()
    }

    async fn take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        let held = E::DIALECT.for_update();
        // Those that are asked for alone: every write in another partition holds it, and the
        // heartbeats of its node, until it is committed.
        let numbers: Vec<i64> = parts.iter().map(|part| i64::from(part.0)).collect();
        let (asked, held_by) = (E::DIALECT.any("part", 1), E::DIALECT.any("part", 3));
        let leases = format!("SELECT part, epoch, node FROM partition WHERE {asked} ORDER BY part{held}");
        let nodes = format!(
            "SELECT id FROM node WHERE until >= $1 AND (id = $2 OR id IN (SELECT node FROM partition WHERE {held_by})) \
             ORDER BY id{held}"
        );
        let look = vec![
            one_at_a_time(E::DIALECT),
            bound(leases, values![numbers.clone()]),
            bound(nodes, values![now, node, numbers]),
        ];
        let (parts, taken_by) = (parts.to_vec(), "UPDATE partition SET node = $2, epoch = epoch + 1 WHERE part = $1");
        let decide = move |_: &Notes, found: &[Vec<Row>]| {
            let leases = found[1].iter().map(|row| lease(row).map(|lease| (lease.part, lease)));
            let leases = leases.collect::<Result<BTreeMap<Partition, PartitionLease>, StoreError>>()?;
            let live =
                found[2].iter().map(|row| row.uuid(0).map(NodeId)).collect::<Result<BTreeSet<_>, StoreError>>()?;
            if !live.contains(&node) {
                return Ok((Vec::new(), vec![None; parts.len()]));
            }
            let asked: BTreeSet<Partition> = parts.iter().copied().collect();
            let is_free = |lease: &&PartitionLease| lease.node.is_none_or(|holder| !live.contains(&holder));
            let free: Vec<&PartitionLease> = asked.iter().filter_map(|part| leases.get(part)).filter(is_free).collect();
            let mut changes: Vec<_> = free.iter().map(|lease| bound(taken_by, values![lease.part, node])).collect();
            // A node whose word ran out holds nothing any more, and must beat anew.
            for gone in free.iter().filter_map(|lease| lease.node).collect::<BTreeSet<NodeId>>() {
                changes.extend(super::nodes::removed(gone));
            }
            let answer = |part: &Partition| {
                let lease = leases.get(part)?;
                if lease.node == Some(node) {
                    return Some(lease.epoch);
                }
                is_free(&lease).then_some(Epoch(lease.epoch.0 + 1))
            };
            Ok((changes, parts.iter().map(answer).collect()))
        };
        self.decide_all(Way::Leases, "take partitions", look, decide).await
    }

    async fn give_partitions(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, StoreError> {
        let sql = "UPDATE partition SET node = NULL, epoch = epoch + 1 WHERE part = $1 AND epoch = $2 AND node = $3 \
                   RETURNING 1";
        let rows = parts.iter().map(|(part, epoch)| (*part, values![*part, epoch.0, node])).collect();
        Ok(applied(&self.change_in_order(Way::Leases, "give partitions", sql, rows).await?))
    }
}

fn lease(row: &Row) -> Result<PartitionLease, StoreError> {
    let node = row.opt(2, Row::uuid)?.map(NodeId);
    Ok(PartitionLease { part: Partition(row.int(0)?), epoch: Epoch(row.int(1)?), node })
}
