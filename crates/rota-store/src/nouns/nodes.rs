//! Which nodes live.

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::NodeId,
    store::{Guarded, Node, NodeBeat, NodeStore, StoreError},
};

use crate::engine::{Dialect, Engine, Row, SqlStore, Statement, Way, bound, values};

#[async_trait]
impl<E: Engine> NodeStore for SqlStore<E> {
    async fn beat(&self, beat: &NodeBeat, _now: Timestamp) -> Result<Guarded, StoreError> {
        let NodeBeat { node, name, info, until } = beat;
        let known = format!("SELECT 1 FROM node WHERE id = $1{}", E::DIALECT.for_update());
        let put = "INSERT INTO node (id, name, info, until) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (id) DO UPDATE SET name = excluded.name, info = excluded.info, until = excluded.until";
        let statements = vec![bound(known, values![*node]), bound(put, values![*node, name, info, *until])];
        let answers = self.change_all(Way::Leases, "record a heartbeat", statements).await?;
        Ok(if answers.first().is_some_and(|known| !known.is_empty()) { Guarded::Applied } else { Guarded::Stale })
    }

    async fn nodes(&self, now: Timestamp) -> Result<Vec<Node>, StoreError> {
        let sql = "SELECT id, name, info, until FROM node WHERE until >= $1 ORDER BY id";
        let found = self.find_all(Way::Leases, "read nodes", vec![bound(sql, values![now])]).await?;
        found.iter().flatten().map(node).collect()
    }

    async fn leave(&self, node: NodeId) -> Result<(), StoreError> {
        // Its own writes under way hold its partitions in this order.
        let hold = format!("SELECT 1 FROM partition WHERE node = $1 ORDER BY part{}", E::DIALECT.for_update());
        let mut leave = vec![one_at_a_time(E::DIALECT), bound(hold, values![node])];
        leave.extend(removed(node));
        self.change_all(Way::Leases, "leave", leave).await.map(drop)
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        // The one place that reads the server's clock: nodes measure theirs by it.
        let sql = match E::DIALECT {
            Dialect::Sqlite => return Ok(None),
            Dialect::Postgres => "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        };
        let found = self.find_all(Way::Leases, "read the server's clock", vec![bound(sql, values![])]).await?;
        found.iter().flatten().next().map(|row| row.time(0)).transpose()
    }
}

/// Taking and leaving touch partitions that were not asked for; one at a time they cannot
/// lock crosswise.
pub(super) fn one_at_a_time(dialect: Dialect) -> Statement {
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('rota partitions of ' || current_schema(), 0))";
    bound(dialect.either("SELECT 1", lock), values![])
}

/// Takes a node away with all it holds.
pub(super) fn removed(node: NodeId) -> [Statement; 2] {
    [
        bound("UPDATE partition SET node = NULL, epoch = epoch + 1 WHERE node = $1", values![node]),
        bound("DELETE FROM node WHERE id = $1", values![node]),
    ]
}

fn node(row: &Row) -> Result<Node, StoreError> {
    Ok(Node { node: NodeId(row.uuid(0)?), name: row.text(1)?, info: row.text(2)?, until: row.time(3)? })
}
