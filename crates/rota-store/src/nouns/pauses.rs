//! Pauses: of tenants and queues in rows of their own, of jobs and schedules in theirs.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rota_core::{
    ids::Partition,
    store::{Pause, PauseStore, PauseTarget, Pauses, StoreError, Write},
};

use crate::{
    codec::{from_json, to_json},
    engine::{Dialect, Engine, Row, SqlStore, Statement, Value, bound, values},
    filter::changed_pause,
    unreadable::Notes,
};

/// One statement, so that the revision belongs to the pauses: revision, what a note calls the
/// row, target, pause.
const SQLITE: &str = "SELECT m.value, p.target, p.target, p.pause FROM meta m LEFT JOIN pause p ON true \
     WHERE m.key = 'pauses_revision'";
const POSTGRES: &str = "SELECT m.pauses_revision, p.tenant || '/' || p.queue, \
         CASE WHEN p.queue = '' THEN json_build_object('tenant', p.tenant) \
              ELSE json_build_object('queue', json_build_array(p.tenant, p.queue)) END::text, p.body \
     FROM meta m LEFT JOIN pause p ON true";

#[async_trait]
impl<E: Engine> PauseStore for SqlStore<E> {
    async fn set_pauses(
        &self,
        write: &Write,
        targets: &[PauseTarget],
        pause: Option<&Pause>,
    ) -> Result<Vec<bool>, StoreError> {
        let (now, targets, wish) = (write.now, targets.to_vec(), pause.cloned());
        // Rows are locked in one order, whoever locks them.
        let places: BTreeMap<PauseTarget, usize> =
            targets.iter().cloned().collect::<BTreeSet<_>>().into_iter().zip(1..).collect();
        // Every fire holds it until it is committed: only what they all must know waits for them.
        let hold = match E::DIALECT {
            Dialect::Postgres if places.keys().any(is_wide) => "SELECT 1 FROM meta FOR UPDATE",
            Dialect::Postgres | Dialect::Sqlite => "SELECT 1",
        };
        let hold = bound(hold, values![]);
        let look = std::iter::once(Ok(hold)).chain(places.keys().map(|target| look_at(E::DIALECT, target)));
        let look = look.collect::<Result<Vec<_>, StoreError>>()?;
        let decide = move |notes: &Notes, found: &[Vec<Row>]| {
            let (mut done, mut changes) = (BTreeSet::new(), Vec::new());
            for (target, place) in &places {
                let Some(row) = found[*place].first() else { continue };
                let Some(old) = old(notes, target, row) else { continue };
                if let Some(pause) = changed_pause(wish.as_ref(), old, now) {
                    changes.extend(change(E::DIALECT, target, &pause, now)?);
                    done.insert(target.clone());
                }
            }
            if done.iter().any(is_wide) {
                let raise = E::DIALECT.either(
                    "UPDATE meta SET value = value + 1 WHERE key = 'pauses_revision'",
                    "UPDATE meta SET pauses_revision = pauses_revision + 1",
                );
                changes.push(bound(raise, values![]));
            }
            Ok((changes, targets.iter().map(|target| done.contains(target)).collect()))
        };
        self.decide_once(write, "set pauses", look, decide).await
    }

    async fn pauses(&self) -> Result<Pauses, StoreError> {
        let rows = self.find("read pauses", E::DIALECT.either(SQLITE, POSTGRES), values![]).await?;
        let mut found = Pauses { revision: 0, pauses: Vec::new() };
        for row in &rows {
            found.revision = row.int(0)?;
            if row.is_null(1) {
                continue;
            }
            let read = row.json(2).and_then(|target| Ok((target, row.json(3)?)));
            found.pauses.extend(self.readable("pause", row.shown(1), read));
        }
        found.pauses.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }
}

fn is_wide(target: &PauseTarget) -> bool {
    matches!(target, PauseTarget::Tenant(_) | PauseTarget::Queue(..))
}

/// The key of a tenant's or a queue's row. PostgreSQL has the tenant's own under no name.
fn key(dialect: Dialect, target: &PauseTarget) -> Result<Vec<Value>, StoreError> {
    Ok(match (dialect, target) {
        (Dialect::Sqlite, PauseTarget::Tenant(tenant) | PauseTarget::Queue(tenant, _)) => {
            values![*tenant, to_json(target)?]
        }
        (Dialect::Postgres, PauseTarget::Tenant(tenant)) => values![*tenant, ""],
        (Dialect::Postgres, PauseTarget::Queue(tenant, queue)) => values![*tenant, queue],
        (_, PauseTarget::Job(job)) => values![*job],
        (_, PauseTarget::Schedule(schedule)) => values![*schedule],
    })
}

/// A row where the target is there: its pause, and what a note calls the row.
fn look_at(dialect: Dialect, target: &PauseTarget) -> Result<Statement, StoreError> {
    let (open, lock) = (dialect.not("deleted"), dialect.for_update());
    let sql = match target {
        PauseTarget::Tenant(_) | PauseTarget::Queue(..) => dialect
            .either(
                "SELECT p.pause, $2 FROM tenant t LEFT JOIN pause p ON p.target = $2 WHERE t.id = $1",
                "SELECT p.body, p.tenant || '/' || p.queue FROM tenant t \
                 LEFT JOIN pause p ON p.tenant = t.id AND p.queue = $2 WHERE t.id = $1",
            )
            .to_owned(),
        PauseTarget::Job(_) => format!("SELECT pause, id FROM job WHERE id = $1 AND {open}{lock}"),
        PauseTarget::Schedule(_) => format!("SELECT pause, id FROM schedule WHERE id = $1 AND {open}{lock}"),
    };
    Ok(bound(sql, key(dialect, target)?))
}

/// The pause that is there; none where it cannot be read and must stay.
#[allow(clippy::option_option, reason = "one that must stay, and none, are two things")]
fn old(notes: &Notes, target: &PauseTarget, row: &Row) -> Option<Option<Pause>> {
    let read = row.opt(0, |row, at| row.str(at).and_then(from_json));
    match target {
        // One that cannot be read is replaced.
        PauseTarget::Tenant(_) | PauseTarget::Queue(..) => Some(notes.readable("pause", row.shown(1), read).flatten()),
        PauseTarget::Job(_) => notes.readable_part("job", row.shown(1), read),
        PauseTarget::Schedule(_) => notes.readable_part("schedule", row.shown(1), read),
    }
}

/// Writes a pause. Schedules that sleep wake at their instant.
fn change(
    dialect: Dialect,
    target: &PauseTarget,
    pause: &Pause,
    now: jiff::Timestamp,
) -> Result<Vec<Statement>, StoreError> {
    let text = to_json(pause)?;
    Ok(match target {
        PauseTarget::Tenant(_) | PauseTarget::Queue(..) => {
            let mut row = key(dialect, target)?;
            row.extend(values![text]);
            let put = dialect.either(
                "INSERT INTO pause (target, pause) SELECT $2, $3 WHERE $1 IS NOT NULL \
                 ON CONFLICT (target) DO UPDATE SET pause = excluded.pause",
                "INSERT INTO pause (tenant, queue, body) VALUES ($1, $2, $3) \
                 ON CONFLICT (tenant, queue) DO UPDATE SET body = excluded.body",
            );
            vec![bound(put, row)]
        }
        PauseTarget::Job(job) => {
            let open = dialect.not("deleted");
            let wake = format!(
                "UPDATE cursor SET due_at = planned_at WHERE due_at <> planned_at \
                 AND (part, schedule) IN (SELECT part, id FROM schedule WHERE job = $1 AND {open})"
            );
            let put = "UPDATE job SET pause = $2, revision = revision + 1, updated_at = $3 WHERE id = $1";
            vec![bound(put, values![*job, text, now]), bound(wake, values![*job])]
        }
        PauseTarget::Schedule(id) => {
            let put = "UPDATE schedule SET pause = $2, revision = revision + 1 WHERE id = $1";
            let wake =
                "UPDATE cursor SET due_at = planned_at, revision = revision + 1 WHERE part = $1 AND schedule = $2";
            vec![bound(put, values![*id, text]), bound(wake, values![Partition::of_schedule(*id), *id])]
        }
    })
}
