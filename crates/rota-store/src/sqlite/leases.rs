//! Nodes, partitions and tokens.

use jiff::Timestamp;
use rota_core::{
    ids::{NodeId, Partition},
    rate::{Bucket, Taken},
    store::{Epoch, Guarded, Node, NodeBeat, PartitionLease, StoreError, TokenAsk},
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    SqliteStore, failed,
    rows::{uuid_at, uuid_opt},
    writer::Urgency,
};
use crate::codec::{micros, time, time_opt};

impl SqliteStore {
    pub(super) async fn do_beat(&self, beat: &NodeBeat) -> Result<Guarded, StoreError> {
        let beat = beat.clone();
        self.writer
            .write("record a heartbeat", Urgency::Prompt, move |connection| {
                let sql = "INSERT INTO node (id, name, info, until) VALUES (?1, ?2, ?3, ?4) \
                     ON CONFLICT (id) DO UPDATE SET name = excluded.name, info = excluded.info, until = excluded.until";
                let known = connection
                    .prepare_cached("SELECT 1 FROM node WHERE id = ?1")
                    .and_then(|mut select| select.exists([beat.node.0.as_bytes()]))
                    .map_err(failed)?;
                let row = params![beat.node.0.as_bytes(), beat.name, beat.info, micros(beat.until)];
                connection.prepare_cached(sql).and_then(|mut put| put.execute(row)).map_err(failed)?;
                Ok(if known { Guarded::Applied } else { Guarded::Stale })
            })
            .await
    }

    pub(super) async fn do_nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError> {
        self.read("read nodes", move |connection| {
            let sql = "SELECT id, name, info, until FROM node WHERE until >= ?1 ORDER BY id";
            let mut select = connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = select.query([micros(now)]).map_err(failed)?;
            let mut nodes = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                nodes.push(Node {
                    node: NodeId(uuid_at(row, 0).map_err(failed)?),
                    name: row.get(1).map_err(failed)?,
                    info: row.get(2).map_err(failed)?,
                    until: time(row.get(3).map_err(failed)?)?,
                });
            }
            Ok(nodes)
        })
        .await
    }

    pub(super) async fn do_leave(&self, node: NodeId) -> Result<(), StoreError> {
        self.writer.write("leave", Urgency::Prompt, move |connection| remove_node(connection, node)).await
    }

    pub(super) async fn do_partitions(&self) -> Result<Vec<PartitionLease>, StoreError> {
        self.read("read partitions", |connection| {
            let mut select =
                connection.prepare_cached("SELECT part, epoch, node FROM partition ORDER BY part").map_err(failed)?;
            let rows = select
                .query_map([], |row| {
                    Ok(PartitionLease {
                        part: Partition(row.get(0)?),
                        epoch: Epoch(row.get(1)?),
                        node: uuid_opt(row, 2)?.map(NodeId),
                    })
                })
                .map_err(failed)?;
            rows.collect::<Result<_, _>>().map_err(failed)
        })
        .await
    }

    pub(super) async fn do_take_partitions(
        &self,
        node: NodeId,
        parts: &[Partition],
        now: Timestamp,
    ) -> Result<Vec<Option<Epoch>>, StoreError> {
        let parts = parts.to_vec();
        self.writer
            .write("take partitions", Urgency::Prompt, move |connection| {
                if !lives(connection, node, now)? {
                    return Ok(vec![None; parts.len()]);
                }
                parts.iter().map(|part| take(connection, node, *part, now)).collect()
            })
            .await
    }

    pub(super) async fn do_give_partitions(
        &self,
        node: NodeId,
        parts: &[(Partition, Epoch)],
    ) -> Result<Vec<Guarded>, StoreError> {
        let parts = parts.to_vec();
        self.writer
            .write("give partitions", Urgency::Prompt, move |connection| {
                let sql = "UPDATE partition SET node = NULL, epoch = epoch + 1 \
                     WHERE part = ?1 AND epoch = ?2 AND node = ?3";
                let mut update = connection.prepare_cached(sql).map_err(failed)?;
                parts
                    .iter()
                    .map(|(part, epoch)| {
                        let given = update.execute(params![part.0, epoch.0, node.0.as_bytes()]).map_err(failed)?;
                        Ok(if given == 1 { Guarded::Applied } else { Guarded::Stale })
                    })
                    .collect()
            })
            .await
    }

    pub(super) async fn do_take_tokens(&self, asks: &[TokenAsk], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
        let asks = asks.to_vec();
        self.writer
            .write("take tokens", Urgency::Prompt, move |connection| {
                asks.iter().map(|ask| take_tokens(connection, ask, now)).collect()
            })
            .await
    }
}

fn lives(connection: &Connection, node: NodeId, now: Timestamp) -> Result<bool, StoreError> {
    connection
        .prepare_cached("SELECT 1 FROM node WHERE id = ?1 AND until >= ?2")
        .and_then(|mut select| select.exists(params![node.0.as_bytes(), micros(now)]))
        .map_err(failed)
}

fn take(connection: &Connection, node: NodeId, part: Partition, now: Timestamp) -> Result<Option<Epoch>, StoreError> {
    let (epoch, holder) = connection
        .prepare_cached("SELECT epoch, node FROM partition WHERE part = ?1")
        .and_then(|mut select| select.query_row([part.0], |row| Ok((row.get::<_, i64>(0)?, uuid_opt(row, 1)?))))
        .map_err(failed)?;
    match holder.map(NodeId) {
        Some(holder) if holder == node => return Ok(Some(Epoch(epoch))),
        Some(holder) if lives(connection, holder, now)? => return Ok(None),
        // Its word ran out: all it held is free, and it must beat anew.
        Some(holder) => remove_node(connection, holder)?,
        None => {}
    }
    let sql = "UPDATE partition SET node = ?2, epoch = epoch + 1 WHERE part = ?1 RETURNING epoch";
    connection
        .prepare_cached(sql)
        .and_then(|mut update| {
            update.query_row(params![part.0, node.0.as_bytes()], |row| row.get(0).map(Epoch).map(Some))
        })
        .map_err(failed)
}

fn remove_node(connection: &Connection, node: NodeId) -> Result<(), StoreError> {
    for sql in ["UPDATE partition SET node = NULL, epoch = epoch + 1 WHERE node = ?1", "DELETE FROM node WHERE id = ?1"]
    {
        connection.prepare_cached(sql).and_then(|mut s| s.execute([node.0.as_bytes()])).map_err(failed)?;
    }
    Ok(())
}

fn take_tokens(connection: &Connection, ask: &TokenAsk, now: Timestamp) -> Result<Taken, StoreError> {
    let full_at: Option<i64> = connection
        .prepare_cached("SELECT full_at FROM bucket WHERE key = ?1")
        .and_then(|mut select| select.query_row([&ask.key], |row| row.get(0)).optional())
        .map_err(failed)?;
    let bucket = time_opt(full_at)?.map(|full_at| Bucket { full_at });
    let (bucket, taken) = ask.decide(bucket, now);
    connection
        .prepare_cached("INSERT OR REPLACE INTO bucket (key, full_at) VALUES (?1, ?2)")
        .and_then(|mut put| put.execute(params![ask.key, micros(bucket.full_at)]))
        .map_err(failed)?;
    Ok(taken)
}
