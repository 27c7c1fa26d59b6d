//! Leases: which nodes live, which partitions they hold, who may spend tokens.
//!
//! All of it on the connections kept back, so that a heartbeat never waits
//! behind a bulk load. Locks go from partitions to nodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use rota_core::{
    ids::{NodeId, Partition},
    rate::{Bucket, Taken},
    store::{Epoch, Guarded, Node, NodeBeat, PartitionLease, TokenAsk},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    own::numbers,
    tx::{Param, Tx},
};
use crate::codec::{micros, time};

/// Taking and leaving touch partitions that were not asked for; one at a time
/// they cannot lock crosswise.
const ONE_AT_A_TIME: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('rota partitions of ' || current_schema(), 0))";

impl PostgresStore {
    pub(super) async fn record_beat(&self, beat: &NodeBeat) -> Result<Guarded, Fault> {
        let tx = Tx::on(&self.leases).await?;
        let answers = tx
            .pipe(&[
                ("SELECT 1 FROM node WHERE id = $1 FOR UPDATE", &[&beat.node.0]),
                (
                    "INSERT INTO node (id, until, name, info) VALUES ($1, $2, $3, $4) \
                     ON CONFLICT (id) DO UPDATE SET until = excluded.until, name = excluded.name, \
                         info = excluded.info",
                    &[&beat.node.0, &micros(beat.until), &beat.name, &beat.info],
                ),
            ])
            .await?;
        tx.commit().await?;
        Ok(if answers[0].is_empty() { Guarded::Stale } else { Guarded::Applied })
    }

    pub(super) async fn live_nodes(&self, now: Timestamp) -> Result<Vec<Node>, Fault> {
        let sql = "SELECT id, name, info, until FROM node WHERE until >= $1 ORDER BY id";
        let rows = super::read_on(&self.leases, sql, &[&micros(now)]).await?;
        let mut nodes = Vec::with_capacity(rows.len());
        for row in rows {
            nodes.push(Node {
                node: NodeId(row.try_get(0)?),
                name: row.try_get(1)?,
                info: row.try_get(2)?,
                until: time(row.try_get(3)?)?,
            });
        }
        Ok(nodes)
    }

    /// The one place that reads the server's clock: nodes measure theirs by it.
    pub(super) async fn own_time(&self) -> Result<Timestamp, Fault> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = super::read_on(&self.leases, sql, &[]).await?;
        let row = rows.first().ok_or_else(|| crate::codec::corrupt("the clock", "no row"))?;
        Ok(time(row.try_get(0)?)?)
    }

    pub(super) async fn forget_node(&self, node: NodeId) -> Result<(), Fault> {
        let tx = Tx::on(&self.leases).await?;
        tx.pipe(&[
            (ONE_AT_A_TIME, &[]),
            ("SELECT 1 FROM partition WHERE node = $1 ORDER BY part FOR UPDATE", &[&node.0]),
            ("UPDATE partition SET node = NULL, epoch = epoch + 1 WHERE node = $1", &[&node.0]),
            ("DELETE FROM node WHERE id = $1", &[&node.0]),
        ])
        .await?;
        tx.commit().await
    }

    pub(super) async fn all_partitions(&self) -> Result<Vec<PartitionLease>, Fault> {
        let rows = super::read_on(&self.leases, "SELECT part, epoch, node FROM partition ORDER BY part", &[]).await?;
        let mut leases = Vec::with_capacity(rows.len());
        for row in rows {
            leases.push(PartitionLease {
                part: Partition(row.try_get::<_, i16>(0)? as u8),
                epoch: Epoch(row.try_get(1)?),
                node: row.try_get::<_, Option<Uuid>>(2)?.map(NodeId),
            });
        }
        Ok(leases)
    }

    pub(super) async fn take(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, Fault> {
        let tx = Tx::on(&self.leases).await?;
        let asked = numbers(parts);
        let sql = "SELECT part, epoch, node FROM partition WHERE part = ANY($1) ORDER BY part FOR UPDATE";
        let mut known: BTreeMap<i16, (i64, Option<Uuid>)> = BTreeMap::new();
        let mut answers = tx.pipe(&[(ONE_AT_A_TIME, &[]), (sql, &[&asked])]).await?;
        for row in answers.pop().unwrap_or_default() {
            known.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
        }
        let mut nodes: Vec<Uuid> = known.values().filter_map(|(_, holder)| *holder).chain([node.0]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let sql = "SELECT id FROM node WHERE id = ANY($1) AND until >= $2 ORDER BY id FOR UPDATE";
        let live: HashSet<Uuid> = super::row::ids(&tx.rows(sql, &[&nodes, &micros(now)]).await?)?.into_iter().collect();
        if !live.contains(&node.0) {
            return Ok(vec![None; parts.len()]);
        }
        let free = |holder: &Option<Uuid>| holder.is_none_or(|holder| !live.contains(&holder));
        let taken: Vec<i16> = known.iter().filter(|(_, (_, holder))| free(holder)).map(|(part, _)| *part).collect();
        // A node whose word ran out holds nothing any more, and must beat anew.
        let gone: Vec<Uuid> = nodes.iter().filter(|id| !live.contains(id)).copied().collect();
        if !taken.is_empty() {
            tx.pipe(&[
                ("UPDATE partition SET node = $2, epoch = epoch + 1 WHERE part = ANY($1)", &[&taken, &node.0]),
                ("UPDATE partition SET node = NULL, epoch = epoch + 1 WHERE node = ANY($1)", &[&gone]),
                ("DELETE FROM node WHERE id = ANY($1)", &[&gone]),
            ])
            .await?;
        }
        tx.commit().await?;
        let answer = |part: &i16| {
            let (epoch, holder) = known.get(part)?;
            match holder {
                _ if taken.contains(part) => Some(Epoch(epoch + 1)),
                Some(holder) if *holder == node.0 => Some(Epoch(*epoch)),
                _ => None,
            }
        };
        Ok(asked.iter().map(answer).collect())
    }

    pub(super) async fn give(&self, node: NodeId, parts: &[(Partition, Epoch)]) -> Result<Vec<Guarded>, Fault> {
        let tx = Tx::on(&self.leases).await?;
        let numbers: Vec<i16> = parts.iter().map(|(part, _)| i16::from(part.0)).collect();
        let epochs: Vec<i64> = parts.iter().map(|(_, epoch)| epoch.0).collect();
        let answers = tx
            .pipe(&[
                ("SELECT 1 FROM partition WHERE part = ANY($1) ORDER BY part FOR UPDATE", &[&numbers]),
                (
                    "UPDATE partition p SET node = NULL, epoch = p.epoch + 1 \
                     FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY u (part, epoch, n) \
                     WHERE p.part = u.part AND p.epoch = u.epoch AND p.node = $3 RETURNING u.n",
                    &[&numbers, &epochs, &node.0],
                ),
            ])
            .await?;
        let mut guarded = vec![Guarded::Stale; parts.len()];
        for row in &answers[1] {
            guarded[row.try_get::<_, i64>(0)? as usize - 1] = Guarded::Applied;
        }
        tx.commit().await?;
        Ok(guarded)
    }

    pub(super) async fn spend(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, Fault> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let mut keys: Vec<&str> = asks.iter().map(|ask| ask.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let tx = Tx::on(&self.leases).await?;
        let mut buckets: HashMap<String, Bucket> = HashMap::with_capacity(keys.len());
        // Upkeep may remove a full bucket between the two statements.
        while buckets.len() < keys.len() {
            let params: [Param<'_>; 1] = [&keys];
            let answers = tx
                .pipe(&[
                    (
                        // A bucket that was full long ago is a full bucket.
                        "INSERT INTO bucket (key, full_at) SELECT key, 0 FROM unnest($1::text[]) u (key) \
                         ORDER BY key COLLATE \"C\" ON CONFLICT DO NOTHING",
                        &params,
                    ),
                    ("SELECT key, full_at FROM bucket WHERE key = ANY($1) ORDER BY key FOR UPDATE", &params),
                ])
                .await?;
            for row in &answers[1] {
                buckets.insert(row.try_get(0)?, Bucket { full_at: time(row.try_get(1)?)? });
            }
        }
        let mut taken = Vec::with_capacity(asks.len());
        for ask in asks {
            let (bucket, answer) = ask.decide(buckets.get(&ask.key).copied(), now);
            buckets.insert(ask.key.clone(), bucket);
            taken.push(answer);
        }
        let names: Vec<&str> = buckets.keys().map(String::as_str).collect();
        let full: Vec<i64> = buckets.values().map(|bucket| micros(bucket.full_at)).collect();
        let sql = "UPDATE bucket b SET full_at = u.full_at FROM unnest($1::text[], $2::bigint[]) u (key, full_at) \
                   WHERE b.key = u.key AND b.full_at <> u.full_at";
        tx.rows(sql, &[&names, &full]).await?;
        tx.commit().await?;
        Ok(taken)
    }
}
