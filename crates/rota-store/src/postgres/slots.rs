//! Slots: one row per concurrency key, locked in key order.
//!
//! Who enters is decided by [`Slot`]; who is admitted is the first that waits,
//! found in a statement of its own. It must be a new statement: a snapshot older
//! than the slot's lock can miss a waiter that was committed in between.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    run::Run,
    slot::{Shift, Slot, SlotKey},
    store::{SlotStore, StoreError, Write},
};
use tokio_postgres::Row;

use super::{
    PostgresStore,
    fault::Fault,
    follow::Aftermath,
    rows::{RUN, runs},
    tx::{Bound, Late, Param, Tx, params},
};
use crate::{
    codec::sql::{BLOCKED, COUNTED, QUEUED},
    failpoint,
};

/// Slots locked by this transaction.
pub(super) type Slots = HashMap<i64, Slot>;

/// Locks the slots of these keys, making those that are not there with the
/// limit given.
pub(super) async fn lock(tx: &Tx, asked: &BTreeMap<i64, u32>) -> Result<Slots, Fault> {
    Ok(lock_after(tx, None, asked).await?.0)
}

/// The same, with a statement sent before in the same round trip; its rows are
/// answered too.
pub(super) async fn lock_after(
    tx: &Tx,
    first: Option<Bound<'_>>,
    asked: &BTreeMap<i64, u32>,
) -> Result<(Slots, Vec<Row>), Fault> {
    let mut slots = Slots::with_capacity(asked.len());
    let mut first: Vec<Bound<'_>> = first.into_iter().collect();
    let mut brought = Vec::new();
    if asked.is_empty() {
        if !first.is_empty() {
            brought = tx.pipe(&first).await?.pop().unwrap_or_default();
        }
        return Ok((slots, brought));
    }
    let keys: Vec<i64> = asked.keys().copied().collect();
    let limits: Vec<i32> = asked.values().map(|limit| (*limit).min(i32::MAX as u32) as i32).collect();
    // Upkeep may remove an idle slot between the two statements; then again.
    while slots.len() < keys.len() {
        let (made, locked): ([Param<'_>; 2], [Param<'_>; 1]) = ([&keys, &limits], [&keys]);
        let mut statements = std::mem::take(&mut first);
        statements.extend([(MAKE, &made[..]), (LOCK, &locked[..])]);
        let mut answers = tx.pipe(&statements).await?;
        if answers.len() == 3 {
            brought = answers.remove(0);
        }
        for row in answers.pop().unwrap_or_default() {
            let count = |n| row.try_get::<_, i32>(n).map(|count| count.max(0) as u32);
            slots.insert(row.try_get(0)?, Slot { limit: count(1)?, held: count(2)?, waiting: count(3)? });
        }
    }
    Ok((slots, brought))
}

const MAKE: &str = "INSERT INTO slot (key, lim, held, waiting) SELECT key, lim, 0, 0 \
     FROM unnest($1::bigint[], $2::int[]) u (key, lim) ORDER BY key ON CONFLICT DO NOTHING";

const LOCK: &str = "SELECT key, lim, held, waiting FROM slot WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// Writes the counters of locked slots.
pub(super) const WRITE: &str = "UPDATE slot s SET lim = u.lim, held = u.held, waiting = u.waiting \
     FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[]) u (key, lim, held, waiting) \
     WHERE s.key = ANY(ARRAY[u.key])";

/// Counters as columns.
#[derive(Default)]
pub(super) struct Counters {
    pub keys: Vec<i64>,
    pub limits: Vec<i32>,
    pub held: Vec<i32>,
    pub waiting: Vec<i32>,
}

impl Counters {
    pub(super) fn of<'a>(slots: impl IntoIterator<Item = (&'a i64, &'a Slot)>) -> Self {
        let mut counters = Self::default();
        for (key, slot) in slots {
            counters.keys.push(*key);
            counters.limits.push(slot.limit as i32);
            counters.held.push(slot.held as i32);
            counters.waiting.push(slot.waiting as i32);
        }
        counters
    }
}

pub(super) async fn write(tx: &Tx, slots: &Slots) -> Result<(), Fault> {
    if slots.is_empty() {
        return Ok(());
    }
    let counters = Counters::of(slots);
    tx.rows(WRITE, &[&counters.keys, &counters.limits, &counters.held, &counters.waiting]).await?;
    Ok(())
}

/// Shifts as columns, in key order.
struct Shifts {
    keys: Vec<i64>,
    limits: Vec<i32>,
    held: Vec<i32>,
    waiting: Vec<i32>,
}

impl Shifts {
    fn of(shifts: &BTreeMap<SlotKey, (u32, Shift)>) -> Self {
        Self {
            keys: shifts.keys().map(|key| key.0).collect(),
            limits: shifts.values().map(|(limit, _)| (*limit).min(i32::MAX as u32) as i32).collect(),
            held: shifts.values().map(|(_, shift)| shift.held).collect(),
            waiting: shifts.values().map(|(_, shift)| shift.waiting).collect(),
        }
    }
}

const SHIFT: &str = "INSERT INTO slot AS s (key, lim, held, waiting) \
     SELECT * FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[]) u (key, lim, held, waiting) ORDER BY key \
     ON CONFLICT (key) DO UPDATE SET held = greatest(s.held + excluded.held, 0), \
                                     waiting = greatest(s.waiting + excluded.waiting, 0)";

/// Lets the first of those who wait have the slots that are free. How many that
/// are is read here, from counters that this transaction has locked: a number
/// from an earlier statement may have been changed by a later one.
pub(super) const ADMIT: &str = formatcp!(
    "WITH admitted AS (UPDATE run r SET status = {QUEUED} WHERE r.id = ANY(ARRAY( \
         SELECT x.id FROM slot k, LATERAL ( \
             SELECT id FROM run WHERE slot = k.key AND status = {BLOCKED} ORDER BY order_key, id \
             LIMIT greatest(least(k.lim - k.held, k.waiting), 0) FOR UPDATE) x \
         WHERE k.key = ANY($1::bigint[]) AND k.waiting > 0 AND k.held < k.lim)) RETURNING {RUN}), counted AS (UPDATE slot s SET held = held + a.n, waiting = greatest(waiting - a.n, 0) \
         FROM (SELECT slot, count(*)::int AS n FROM admitted GROUP BY slot) a WHERE s.key = ANY(ARRAY[a.slot])) \
     SELECT * FROM admitted"
);

/// What is owed: the moves, and then the shifts in key order.
fn owed(after: &mut Aftermath) -> Vec<Late> {
    let mut owed = std::mem::take(&mut after.owed);
    let shifts = std::mem::take(&mut after.effects.slots);
    if !shifts.is_empty() {
        let columns = Shifts::of(&shifts);
        let params = params![columns.keys, columns.limits, columns.held, columns.waiting];
        owed.push(Late { sql: SHIFT, params });
        // Which of them have room now is only known under their locks.
        after.room.extend(shifts.into_keys().map(|key| key.0));
    }
    owed
}

/// Writes what is owed.
pub(super) async fn apply(tx: &Tx, after: &mut Aftermath) -> Result<(), Fault> {
    let owed = owed(after);
    tx.now(&owed).await.map(drop)
}

/// Writes what is owed and lets in who waits, in one round trip.
pub(super) async fn apply_and_admit(tx: &Tx, after: &mut Aftermath) -> Result<Vec<Run>, Fault> {
    let mut last = owed(after);
    let room: Vec<i64> = std::mem::take(&mut after.room).into_iter().collect();
    if room.is_empty() {
        tx.now(&last).await?;
        return Ok(Vec::new());
    }
    last.push(Late { sql: ADMIT, params: params![room] });
    Ok(runs(&tx.notes, &tx.now(&last).await?.pop().unwrap_or_default()))
}

/// What the live runs say against what the counters say.
const MISFITS: &str = formatcp!(
    "SELECT coalesce(s.key, l.slot), coalesce(l.lim, s.lim, 1) \
     FROM slot s FULL JOIN (SELECT slot, max(slot_limit) AS lim, count(*) FILTER (WHERE status <> {BLOCKED}) AS held, \
                                   count(*) FILTER (WHERE status = {BLOCKED}) AS waiting \
                            FROM run WHERE slot IS NOT NULL AND status IN ({COUNTED}) GROUP BY slot) l ON l.slot = s.key \
     WHERE coalesce(s.held, -1) <> coalesce(l.held, 0) OR coalesce(s.waiting, -1) <> coalesce(l.waiting, 0) \
        OR (s.waiting > 0 AND s.held < s.lim) LIMIT 1000"
);

impl PostgresStore {
    pub(super) async fn recount(&self, now: Timestamp) -> Result<u32, StoreError> {
        let what = "recount slots";
        let suspects = self.read(MISFITS, &[]).await.map_err(|fault| fault.told(what))?;
        if suspects.is_empty() {
            return Ok(0);
        }
        let mut asked = BTreeMap::new();
        for row in &suspects {
            let read = || -> Result<(i64, i32), Fault> { Ok((row.try_get(0)?, row.try_get(1)?)) };
            let (key, limit) = read().map_err(|fault| fault.told(what))?;
            asked.insert(key, limit.max(0) as u32);
        }
        self.recount_keys(&asked, now).await.map_err(|fault| fault.told(what))
    }

    /// Counts again under the slots' locks, so that only what is wrong, and not
    /// what was merely under way, is repaired.
    async fn recount_keys(&self, asked: &BTreeMap<i64, u32>, now: Timestamp) -> Result<u32, Fault> {
        let tx = Tx::on(&self.work).await?;
        let mut slots = lock(&tx, asked).await?;
        let keys: Vec<i64> = asked.keys().copied().collect();
        let counted = tx
            .rows(
                formatcp!("SELECT slot, count(*) FILTER (WHERE status <> {BLOCKED}), count(*) FILTER (WHERE status = {BLOCKED}) \
                 FROM run WHERE slot = ANY($1) AND status IN ({COUNTED}) GROUP BY slot"),
                &[&keys],
            )
            .await?;
        let mut live: HashMap<i64, (i64, i64)> = HashMap::new();
        for row in counted {
            live.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
        }
        let mut repaired = 0;
        let mut after = Aftermath::default();
        for (key, slot) in &mut slots {
            let (held, waiting) = live.get(key).copied().unwrap_or_default();
            let right = Slot { limit: slot.limit, held: held as u32, waiting: waiting as u32 };
            let room = right.limit.saturating_sub(right.held).min(right.waiting);
            repaired += u32::from(*slot != right);
            *slot = right;
            if room > 0 {
                after.room.insert(*key);
            }
        }
        write(&tx, &slots).await?;
        self.follow(&tx, now, &mut after).await?;
        self.hand_over(&tx, None, &after.take_ready()).await?;
        tx.commit().await?;
        Ok(repaired)
    }
}

#[async_trait]
impl SlotStore for PostgresStore {
    async fn recount_slots(&self, write: &Write) -> Result<u32, StoreError> {
        failpoint::named("recount slots", self.recount(write.now)).await
    }
}
