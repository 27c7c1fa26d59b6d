//! Lanes, by what they take.

use async_trait::async_trait;
use rota_core::{
    ids::LaneId,
    lane::{Lane, LaneKey, LaneMode},
    store::{LaneStore, StoreError},
};

use crate::{
    codec::{corrupt, mode, mode_code, to_json},
    engine::{Engine, Row, SqlStore, Way, values},
};

/// How each database has a key, and how lanes are found and made. A key is
/// written and read as JSON.
struct Statements {
    all: &'static str,
    make: &'static str,
}

const SQLITE: Statements = Statements {
    all: "SELECT id, key, mode, retired FROM lane ORDER BY id",
    make: "INSERT INTO lane (key, mode) VALUES ($1, $2) ON CONFLICT DO NOTHING",
};

const POSTGRES: Statements = Statements {
    all: "SELECT id, json_build_object('queue', queue, 'handler', handler, 'requires', requires)::text, mode, retired \
          FROM lane ORDER BY id",
    make: "INSERT INTO lane (queue, handler, requires, mode) \
           SELECT key ->> 'queue', key ->> 'handler', ARRAY(SELECT jsonb_array_elements_text(key -> 'requires')), \
               $2::smallint FROM (SELECT $1::text::jsonb AS key) asked ON CONFLICT DO NOTHING",
};

/// So often a lane that is retired meanwhile is looked for again.
const TRIES_MAX: u32 = 8;

#[async_trait]
impl<E: Engine> LaneStore for SqlStore<E> {
    async fn lanes(&self, keys: &[LaneKey], new: LaneMode) -> Result<Vec<Lane>, StoreError> {
        let mut tries = 0;
        loop {
            let open: Vec<Lane> = self.all_lanes().await?.into_iter().filter(|lane| !lane.retired).collect();
            let find = |key: &LaneKey| open.iter().find(|lane| lane.key == *key).cloned();
            let mut missing: Vec<&LaneKey> = keys.iter().filter(|key| find(key).is_none()).collect();
            if missing.is_empty() || tries == TRIES_MAX {
                return keys
                    .iter()
                    .map(|key| find(key).ok_or_else(|| corrupt("a lane just made", &key.queue)))
                    .collect();
            }
            tries += 1;
            missing.sort_unstable();
            missing.dedup();
            let row = |key: &LaneKey| Ok(values![to_json(key)?, mode_code(new)]);
            let rows = missing.into_iter().map(row).collect::<Result<_, StoreError>>()?;
            self.change_each(Way::Work, "find lanes", statements::<E>().make, rows).await?;
        }
    }

    async fn all_lanes(&self) -> Result<Vec<Lane>, StoreError> {
        let rows = self.find("read lanes", statements::<E>().all, values![]).await?;
        Ok(rows.iter().filter_map(|row| self.readable("lane", row.shown(0), lane(row))).collect())
    }
}

fn statements<E: Engine>() -> &'static Statements {
    match E::DIALECT {
        crate::engine::Dialect::Sqlite => &SQLITE,
        crate::engine::Dialect::Postgres => &POSTGRES,
    }
}

fn lane(row: &Row) -> Result<Lane, StoreError> {
    Ok(Lane { id: LaneId(row.int(0)?), key: row.json(1)?, mode: mode(row.int(2)?)?, retired: row.bool(3)? })
}
