//! Every table of both stores, and what bounds it.
//!
//! A table that is not in this list fails a test, on either store: whoever adds one says
//! first what makes it grow, and when its rows go. `docs/tables.md` is made from it.

use self::{
    Left::{Defined, Fixed},
    Stores::{Postgres, Sqlite},
};

/// Which stores have a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    Both,
    Sqlite,
    Postgres,
}

/// What is left of a table once nothing lives, everything is deleted, and upkeep has run
/// for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Nothing,
    /// As many rows as there are, from the beginning.
    Fixed,
    /// What people have made and cannot delete.
    Defined,
}

/// What bounds a table.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub table: &'static str,
    pub stores: Stores,
    /// What adds rows.
    pub grows: &'static str,
    /// What bounds them, and when they go.
    pub goes: &'static str,
    pub left: Left,
}

const fn both(table: &'static str, grows: &'static str, goes: &'static str) -> Bound {
    Bound { table, stores: Stores::Both, grows, goes, left: Left::Nothing }
}

const fn kept(left: Left, bound: Bound) -> Bound {
    Bound { left, ..bound }
}

const fn only(stores: Stores, bound: Bound) -> Bound {
    Bound { stores, ..bound }
}

pub const TABLES: &[Bound] = &[
    both("after_edge", "A job that starts after others", "With the job, or when an edit no longer names them"),
    both(
        "after_end",
        "An end that a job waits for",
        "When it has led to a run or a later end replaces it: one is kept per job waited for; otherwise with the job",
    ),
    both("audit", "Each change through the API", "`audit.keep` after it was written"),
    both("batch", "Each write", "An hour after it was written"),
    both("bucket", "Each rate limit in use", "When it is full again, and so has no effect"),
    kept(Defined, both("calendar", "Calendars that are saved", "Never: one row per name, at most 1,000 of a tenant")),
    kept(Fixed, both("compatibility", "The schema", "One row")),
    both("cursor", "Each schedule that is armed", "With its schedule; there is one per enabled schedule"),
    both("dead_mark", "A dead letter that somebody dealt with", "`history.keep` and two days after it was marked"),
    both(
        "history",
        "Each run that ends",
        "`history.keep` after its end, a day at a time. SQLite: a table per day with three index tables, renamed to \
         `going` while it is emptied. PostgreSQL: a partition per day",
    ),
    only(Sqlite, both("history_day", "Each day on which a run ends", "With its day")),
    both("holder", "Each worker with written leases", "When it has none and its last one has expired"),
    both("inbox", "Each run requested inside a caller's transaction", "When it is admitted or refused, within seconds"),
    both(
        "job",
        "Jobs that are saved",
        "Once deleted and without live runs: after `history.keep` and a day, or 30 days if that is longer",
    ),
    only(Sqlite, both("job_tag", "Tags of jobs", "With the job, or when an edit no longer names them")),
    both(
        "job_version",
        "Each save that changes a job",
        "Twice `history.keep` and a day after it was replaced, if no live run and no redrive uses it; otherwise with its job",
    ),
    kept(
        Defined,
        both(
            "lane",
            "Each new combination of queue, handler and required traits",
            "Never: its mode must not change while a run may refer to it. At most 10,000",
        ),
    ),
    both(
        "log",
        "Log lines of attempts",
        "With their run, when its day of history goes. PostgreSQL: a partition per day of the lines",
    ),
    only(Postgres, both("log_kept", "Log lines whose day was deleted before their runs were", "With their run")),
    kept(Fixed, both("meta", "Nothing: internal counters of the store", "One row per counter")),
    kept(Fixed, only(Postgres, both("migration", "Each step of the schema", "One row per step"))),
    both("need", "A run that waits for others", "With either of the runs"),
    both("node", "Each start of a node", "When it shuts down, or a day after its last heartbeat"),
    both("notice", "A run that became ready in another owner's partition", "When it is seen, or with its run"),
    both(
        "open_dead",
        "A run that ends as a dead letter",
        "When somebody deals with it, otherwise with its day of history",
    ),
    kept(Fixed, both("partition", "Nothing", "256 rows")),
    both(
        "pause",
        "Pauses of a tenant and of its queues",
        "A year after they ended, once every instant in them is decided; one row per queue, at most 1,000 of a tenant and 10,000 of all",
    ),
    kept(Defined, both("person", "Users who log in with a password", "When deleted")),
    both("request", "Each request with an `Idempotency-Key`", "24 hours after it was answered"),
    both(
        "rollup",
        "Each hour in which runs of a job end",
        "`history.keep` and 31 days after the hour, or with the job",
    ),
    both("rollup_delta", "Each batch that settles runs", "When it is added to `rollup`, within seconds"),
    both("run", "Each run that is created", "When it ends"),
    both(
        "schedule",
        "Schedules that are saved",
        "Once deleted: after `history.keep` and a day, or 30 days if that is longer",
    ),
    both("session", "Each login", "When it expires (`auth.sessions`)"),
    both("skip", "Planned instants without a run, a row per range", "30 days after the last of them"),
    both("slot", "Each concurrency key in use", "When nobody holds it or waits for it"),
    kept(Defined, both("tenant", "Tenants that are created", "Never: one row per name, at most 10,000")),
    both("token", "API tokens", "`audit.keep` after they were revoked or expired"),
    both("unique_key", "Each run under a unique key", "When its time is over (`unique.within`)"),
    both("worker", "Each worker process", "A day after its last heartbeat"),
];

/// What bounds a table, those of single days among them.
pub fn of(table: &str) -> Option<&'static Bound> {
    let named = |name: &str| TABLES.iter().find(|bound| bound.table == name);
    named(table).or_else(|| {
        let is_day = |rest: &str| rest.trim_start_matches('m').starts_with(|first: char| first.is_ascii_digit());
        match table.split_once('_') {
            Some((daily @ ("history" | "log"), rest)) if is_day(rest) => named(daily),
            Some(("going", _)) => named("history"),
            None if table == "going" => named("history"),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that operators read must say what the stores do.
    #[test]
    fn the_page_of_tables_is_this_list() {
        let page = include_str!("../../../docs/tables.md");
        let row = |Bound { table, stores, grows, goes, .. }: &Bound| {
            let of = match stores {
                Stores::Both => "",
                Sqlite => " (SQLite)",
                Postgres => " (PostgreSQL)",
            };
            format!("| `{table}`{of} | {grows} | {goes} |\n")
        };
        let rows: String = TABLES.iter().map(row).collect();
        let rows = format!("| table | grows with | deleted |\n|---|---|---|\n{rows}");
        assert!(page.ends_with(&rows), "docs/tables.md must end with\n\n{rows}");
    }

    #[test]
    fn tables_of_days_are_found() {
        for (table, bound) in [
            ("history_20405", "history"),
            ("history_m3_job", "history"),
            ("history_day", "history_day"),
            ("history_20260105", "history"),
            ("going", "history"),
            ("going_job", "history"),
            ("log_20260105", "log"),
            ("log_kept", "log_kept"),
        ] {
            assert_eq!(of(table).unwrap().table, bound);
        }
        assert!(of("event").is_none() && of("logs").is_none() && of("history_of").is_none());
    }
}
