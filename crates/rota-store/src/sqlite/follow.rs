//! Does what follows from changes, in their transaction, until nothing more follows.
//!
//! Each step may lead to another: a run that ends frees a slot, which lets another in,
//! which ends a wait.

use std::sync::LazyLock;

use rota_core::{
    fire::Progress,
    ids::{Partition, RunId},
    lane::LaneMode,
    run::{Rearm, Slots, Status},
    store::{Enqueued, StoreError, Woken},
};
use rusqlite::{Connection, params};

use super::{
    after,
    apply::{Work, related},
    dead, failed,
    fire::put_cursor,
    insert::make_follower,
    rows::{change, live_row, select_run},
};
use crate::{
    codec::{status, time_opt},
    definition::rearmed,
    rollup,
    unreadable::readable_part,
};

impl Work<'_> {
    /// Follows up until nothing more follows, and answers what became ready.
    pub fn done(mut self) -> Result<Vec<Woken>, StoreError> {
        self.follow_up()?;
        self.hand_over()
    }

    fn follow_up(&mut self) -> Result<(), StoreError> {
        self.follow()?;
        self.store_slots()?;
        self.told.put(std::mem::take(&mut self.effects.ends));
        after::note(self.connection, &std::mem::take(&mut self.effects.over))?;
        self.store_rollups()?;
        self.tell_owners()
    }

    /// Opens joins, re-arms schedules and lets in those who wait, until nothing more
    /// follows.
    pub fn follow(&mut self) -> Result<(), StoreError> {
        loop {
            self.flush()?;
            self.shift_slots()?;
            for rearmed in std::mem::take(&mut self.effects.rearm) {
                rearm(self.connection, &rearmed)?;
            }
            for (run, ended_at) in std::mem::take(&mut self.effects.dead) {
                dead::open(self.connection, run, ended_at)?;
            }
            for new in std::mem::take(&mut self.effects.followers) {
                make_follower(self, &new)?;
            }
            if let Some(run) = self.effects.needed.pop() {
                self.join(run)?;
            } else if let Some((parent, ended)) = self.effects.parents.pop_first() {
                self.count_down(parent, ended)?;
            } else if let Some(key) = self.freed.pop() {
                self.admit(key)?;
            } else {
                return self.flush();
            }
        }
    }

    /// Owners of runs that were asked to stop are told.
    fn tell_owners(&mut self) -> Result<(), StoreError> {
        for run in std::mem::take(&mut self.effects.stopping) {
            if self.mode(run.lane.0)? == LaneMode::Owned {
                notify_owner(self.connection, run.part.0.into(), run.id)?;
            }
        }
        Ok(())
    }

    /// As [`Work::done`], for a write that makes runs: one of its own that was
    /// let in at once is answered as ready, everyone else's owner is told.
    pub fn done_made(mut self, made: &mut [(RunId, &mut Enqueued)]) -> Result<(), StoreError> {
        self.follow_up()?;
        for (id, answer) in made {
            if let Some(run) = self.effects.ready.remove(id) {
                let handed = self.handed(*id, run.lane.0, i16::from(run.part.0))?;
                **answer = Enqueued::Made { status: Status::Queued, handed };
            }
        }
        self.node = None;
        self.held.clear();
        self.hand_over().map(drop)
    }

    /// As [`Work::done`], for a write whose answer does not name what became
    /// ready: the writing node is left a notice like any other owner.
    pub fn done_unnamed(mut self) -> Result<(), StoreError> {
        self.node = None;
        self.held.clear();
        self.done().map(drop)
    }

    fn admit(&mut self, key: i64) -> Result<(), StoreError> {
        let room = self.slot(key, None)?.admit() as usize;
        if room == 0 {
            return Ok(());
        }
        let rows = self.rows(&WAITING, key, room)?;
        // Counters that promise more than there is are put right here.
        let missing = (room - rows.len()) as u32;
        let slot = self.slot(key, None)?;
        slot.held = slot.held.saturating_sub(missing);
        for row in rows {
            let run = row.run.clone();
            let Ok(change) = run.admit() else { continue };
            self.change(&row, &run, &change, Slots::Counted)?;
        }
        Ok(())
    }

    /// Counts down what waited for a run that has ended.
    pub fn join(&mut self, ended: RunId) -> Result<(), StoreError> {
        let sql = "DELETE FROM need WHERE needed = ?1 RETURNING waiter";
        let mut waiters = related(self.connection, sql, ended.0)?;
        waiters.sort();
        for waiter in waiters {
            self.count_down(RunId(waiter), 1)?;
        }
        Ok(())
    }

    /// So many of those that a run waits for have ended.
    pub fn count_down(&mut self, waiter: RunId, ended: u32) -> Result<(), StoreError> {
        let Some(row) = self.row(waiter.0)? else { return Ok(()) };
        let run = row.run.clone();
        let entry = match run.enters_on_join(ended, self.now) {
            Some(claim) => Some(self.slot(claim.key.0, Some(claim.limit))?.reenter()),
            None => None,
        };
        if let Ok(change) = run.join(ended, entry, self.now) {
            self.change(&row, &run, &change, Slots::Counted)?;
        }
        Ok(())
    }

    fn store_slots(&mut self) -> Result<(), StoreError> {
        let sql = "INSERT INTO slot (key, lim, held, waiting) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (key) DO UPDATE SET lim = excluded.lim, held = excluded.held, waiting = excluded.waiting";
        let mut put = self.connection.prepare_cached(sql).map_err(failed)?;
        for (key, (slot, changed)) in &self.slots {
            if *changed {
                put.execute(params![key, slot.limit, slot.held, slot.waiting]).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn store_rollups(&mut self) -> Result<(), StoreError> {
        if self.effects.rollups.is_empty() {
            return Ok(());
        }
        let body = rollup::encode(&std::mem::take(&mut self.effects.rollups));
        change(self.connection, "INSERT INTO rollup_delta (body) VALUES (?1)", [body])?;
        Ok(())
    }

    /// Hands ready runs of owned lanes to the writing node where it holds their
    /// partition, and leaves a notice for their owner where it does not.
    fn hand_over(&mut self) -> Result<Vec<Woken>, StoreError> {
        let mut woken = Vec::with_capacity(self.effects.ready.len());
        for (id, run) in std::mem::take(&mut self.effects.ready) {
            let handed = self.handed(id, run.lane.0, i16::from(run.part.0))?;
            woken.push(Woken { run, handed });
        }
        Ok(woken)
    }

    /// Whether a ready run goes to the writing node's memory; if its lane is
    /// owned by another node, that one is left a notice.
    pub fn handed(&mut self, run: RunId, lane: i32, part: i16) -> Result<bool, StoreError> {
        if self.mode(lane)? == LaneMode::Claimed {
            return Ok(false);
        }
        let held = self.holds(part)?;
        if !held {
            notify_owner(self.connection, part, run)?;
        }
        Ok(held)
    }
}

static WAITING: LazyLock<String> = LazyLock::new(|| {
    select_run(&format!("WHERE run.status = {} AND run.slot = ?1 ORDER BY run.order_key, run.id", status::BLOCKED))
});

/// Leaves a notice for the owner of a partition.
pub fn notify_owner(connection: &Connection, part: i16, run: RunId) -> Result<(), StoreError> {
    change(connection, "INSERT OR IGNORE INTO notice (part, run) VALUES (?1, ?2)", params![part, run.0.as_bytes()])?;
    Ok(())
}

/// The end of its run arms an `after_finish` schedule again.
fn rearm(connection: &Connection, &Rearm { schedule, run, ended_at }: &Rearm) -> Result<(), StoreError> {
    let sql = "UPDATE schedule SET armed_by = NULL WHERE id = ?1 AND armed_by = ?2 AND deleted = 0 \
         RETURNING revision, spec, enabled, fired, decided_to";
    let mut update = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = update.query(params![schedule.0, run.0.as_bytes()]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(()) };
    let read = || -> Result<_, StoreError> {
        let (revision, spec): (i32, String) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
        let behind = Progress {
            fired: row.get::<_, i64>(3).map_err(failed)?.max(0) as u64,
            decided_to: time_opt(row.get(4).map_err(failed)?)?,
        };
        let next = rearmed(schedule, &spec, row.get(2).map_err(failed)?, behind, ended_at);
        Ok(next.map(|next| (revision, next)))
    };
    // The end counts, whatever is wrong with the schedule.
    match readable_part("schedule", schedule.0, read()).flatten() {
        Some((revision, next)) => put_cursor(connection, Partition::of_schedule(schedule), schedule, revision, &next),
        None => Ok(()),
    }
}

/// The ids of woken runs, as a lost answer is restored from.
pub fn woken_ids(woken: &[Woken]) -> Vec<(RunId, bool)> {
    woken.iter().map(|woken| (woken.run.id, woken.handed)).collect()
}

/// Woken runs by id, as far as they are still ready.
pub fn woken_again(connection: &Connection, ids: &[(RunId, bool)]) -> Result<Vec<Woken>, StoreError> {
    let mut woken = Vec::new();
    for (id, handed) in ids {
        if let Some(row) = live_row(connection, id.0)?
            && row.status == status::QUEUED
        {
            woken.push(Woken { run: row.run, handed: *handed });
        }
    }
    Ok(woken)
}
