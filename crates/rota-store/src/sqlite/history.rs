//! History: a table per day, filled in the order runs end, indexed a little
//! later.
//!
//! Keeping an index by job up to date at every insert costs more than a third
//! of the throughput, because each batch touches pages all over it. So rows are
//! appended as they come, and three index tables (by job, by end, by id) are
//! filled in sorted slices behind a stored mark. A query reads the index up to
//! the mark and the short tail beyond it from the table itself, so what it sees
//! does not depend on how far the indexes are.

use std::{collections::HashSet, sync::LazyLock};

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    ids::{JobId, RunId},
    run::{Finish, RunState, TRAIL_BYTES_MAX, TrailEntry},
    store::{RunCursor, RunPage, RunPlace, RunQuery, RunRecord, RunStore, StoreError},
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{
    SqliteStore, failed,
    many::{Many, Values},
    rows::{RUN, RUN_LEN, all, exists, first, live, run_row, uuid_at},
};
use crate::{
    codec::{self, micros, small, time, verdict_code},
    filter::{LOOK_MAX, PAGE_MAX, Sought},
    unreadable::{HISTORY, readable},
};

const DAY_MICROS: i64 = 86_400_000_000;

/// So many unindexed rows are worth a merge to a busy writer.
const TAIL_MAX: i64 = 32_768;

/// The most rows of one merge, so that its memory is bounded.
const MERGE_MAX: i64 = 131_072;

/// Runs that end now are in one of so many of the newest days.
const DAYS_THAT_GROW: i64 = 2;

/// How many rows a slice reads and sorts: a few milliseconds of work.
const READ: i64 = 8_192;

/// How many entries a slice puts in place: a few milliseconds of work.
const SLICE: usize = 4_096;

pub fn day_of(at: Timestamp) -> i64 {
    micros(at).div_euclid(DAY_MICROS)
}

/// The name of a day's table; days before the epoch have a letter for a sign.
pub fn table(day: i64) -> String {
    let sign = if day < 0 { "m" } else { "" };
    format!("history_{sign}{}", day.unsigned_abs())
}

/// Makes a day's tables if they are not there.
pub fn ensure_day(connection: &Connection, day: i64) -> Result<(), StoreError> {
    let known = exists(connection, "SELECT 1 FROM history_day WHERE day = ?1", [day])?;
    if known {
        return Ok(());
    }
    let name = table(day);
    let sql = format!(
        "CREATE TABLE {name} (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, tenant INTEGER NOT NULL, \
           job INTEGER NOT NULL, version INTEGER NOT NULL, lane INTEGER NOT NULL, part INTEGER NOT NULL, \
           order_key INTEGER NOT NULL, ready_at INTEGER NOT NULL, created_at INTEGER NOT NULL, \
           expires_at INTEGER, started_at INTEGER, ended_at INTEGER NOT NULL, verdict INTEGER NOT NULL, \
           attempt INTEGER NOT NULL, losses INTEGER NOT NULL, fence INTEGER NOT NULL, source INTEGER NOT NULL, \
           schedule INTEGER, planned_at INTEGER, slot INTEGER, slot_limit INTEGER, parent BLOB, step INTEGER, \
           payload TEXT, extra TEXT, cancel TEXT, failure TEXT, output TEXT, progress TEXT, trail TEXT, \
           first_started_at INTEGER, item INTEGER); \
         CREATE TABLE {name}_job (job INTEGER NOT NULL, ended_at INTEGER NOT NULL, id BLOB NOT NULL, \
           seq INTEGER NOT NULL, PRIMARY KEY (job, ended_at, id)) WITHOUT ROWID; \
         CREATE TABLE {name}_end (ended_at INTEGER NOT NULL, id BLOB NOT NULL, seq INTEGER NOT NULL, \
           PRIMARY KEY (ended_at, id)) WITHOUT ROWID; \
         CREATE TABLE {name}_id (id BLOB PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID; \
         INSERT INTO history_day (day) VALUES ({day});"
    );
    connection.execute_batch(&sql).map_err(failed)
}

/// Columns that later schemas added to a day's table.
const ADDED: &[(&str, &str)] = &[("first_started_at", "INTEGER"), ("item", "INTEGER")];

/// Adds the columns that some days lack: those of before, and those that a release before
/// this one has made since. Nothing is rewritten.
pub fn extend_days(connection: &Connection) -> rusqlite::Result<()> {
    let mut select = connection.prepare("SELECT day FROM history_day")?;
    let days: Vec<i64> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for name in days.into_iter().map(table) {
        for (column, kind) in ADDED {
            if !connection.column_exists(None, name.as_str(), *column)? {
                connection.execute_batch(&format!("ALTER TABLE {name} ADD COLUMN {column} {kind}"))?;
            }
        }
    }
    Ok(())
}

/// Moves live runs to history, each into the day on which it ended.
pub fn move_runs(connection: &Connection, ended: &[(Uuid, Finish)]) -> Result<(), StoreError> {
    for of_day in ended.chunk_by(|(_, one), (_, next)| day_of(one.ended_at) == day_of(next.ended_at)) {
        let Some((_, finish)) = of_day.first() else { continue };
        let day = day_of(finish.ended_at);
        ensure_day(connection, day)?;
        copy_into(day).execute(connection, of_day, put_ended).map_err(failed)?;
        DELETE.execute(connection, of_day, |values, (id, _)| values.put(id.as_bytes())).map_err(failed)?;
    }
    Ok(())
}

pub static DELETE: LazyLock<Many> = LazyLock::new(|| Many::new("DELETE FROM run WHERE id IN (", "?", ")"));

/// The statement that copies live rows into a day, each with its end. OR FAIL
/// spares the statement journal: its whole transaction is undone on an error.
fn copy_into(day: i64) -> Many {
    let head = format!(
        "INSERT OR FAIL INTO {} (id, tenant, job, version, lane, part, order_key, ready_at, created_at, expires_at, \
           started_at, ended_at, verdict, attempt, losses, fence, source, schedule, planned_at, slot, slot_limit, \
           parent, step, payload, extra, cancel, failure, output, progress, trail, first_started_at, item) \
         SELECT id, tenant, job, version, lane, part, order_key, ready_at, created_at, expires_at, \
           coalesce(column2, started_at), column3, column4, column5, column6, fence, source, schedule, planned_at, \
           slot, slot_limit, parent, step, payload, extra, cancel, column7, column8, progress, \
           CASE WHEN column9 IS NULL OR length(coalesce(trail, '')) >= {TRAIL_BYTES_MAX} THEN trail \
                ELSE coalesce(trail, '') || column9 END, first_started_at, item \
         FROM (VALUES ",
        table(day)
    );
    // Not the planner's choice: the rows of VALUES, and for each its run.
    Many::new(&head, "(?, ?, ?, ?, ?, ?, ?, ?, ?)", ") CROSS JOIN run ON run.id = column1")
}

fn put_ended(values: &mut Values<'_, '_>, (id, finish): &(Uuid, Finish)) -> rusqlite::Result<()> {
    values.put(id.as_bytes())?;
    values.put(finish.started_at.map(micros))?;
    values.put(micros(finish.ended_at))?;
    values.put(verdict_code(finish.verdict))?;
    values.put(small(finish.attempts_used))?;
    values.put(small(finish.losses))?;
    values.put(finish.failure.as_ref().and_then(|failure| serde_json::to_string(failure).ok()))?;
    values.put(finish.output.as_deref())?;
    values.put(finish.trail.as_ref().map(TrailEntry::line))
}

/// A day with history, newest first.
struct Day {
    day: i64,
    indexed: i64,
}

fn days(connection: &Connection) -> Result<Vec<Day>, StoreError> {
    let sql = "SELECT day, indexed FROM history_day ORDER BY day DESC";
    all(connection, sql, [], |row| Ok(Day { day: row.get(0)?, indexed: row.get(1)? }))
}

/// Brings the index tables up to date.
///
/// The rows of a whole tail are read and sorted piece by piece, and put in place in one
/// order a slice at a time, so that a slice touches neighbouring pages however many jobs
/// there are. The mark moves when all of them are in place; until then readers pass over
/// what is beyond it. What is in memory here may be lost at any moment: the next
/// indexer begins again at the mark.
#[derive(Default)]
pub struct Indexer {
    merge: Option<Merge>,
}

/// One row's entry: job, end, id, place in the day.
type IndexEntry = (i64, i64, [u8; 16], i64);

struct Merge {
    day: i64,
    /// The mark as it was at the start.
    from: i64,
    upto: i64,
    /// The last row that was read.
    read: i64,
    pieces: Vec<Piece>,
    /// Which of the three tables is being filled.
    stage: Stage,
}

/// Rows that were read together.
struct Piece {
    entries: Vec<IndexEntry>,
    /// Their order in each of the tables.
    orders: [Vec<u16>; 3],
    /// How many are in place.
    done: usize,
}

impl Piece {
    fn new(entries: Vec<IndexEntry>) -> Self {
        let order = |stage: Stage| {
            let mut order: Vec<u16> = (0..entries.len()).map(|n| n as u16).collect();
            order.sort_unstable_by(|a, b| stage.compare(&entries[usize::from(*a)], &entries[usize::from(*b)]));
            order
        };
        Self { orders: [Stage::Job, Stage::End, Stage::Id].map(order), entries, done: 0 }
    }

    /// The next entry to be put in place.
    fn next(&self, stage: Stage) -> Option<&IndexEntry> {
        self.orders[stage as usize].get(self.done).map(|n| &self.entries[usize::from(*n)])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Job,
    End,
    Id,
}

impl Stage {
    fn compare(self, one: &IndexEntry, other: &IndexEntry) -> std::cmp::Ordering {
        match self {
            Self::Job => one.cmp(other),
            Self::End => (one.1, one.2).cmp(&(other.1, other.2)),
            Self::Id => one.2.cmp(&other.2),
        }
    }

    const fn next(self) -> Option<Self> {
        match self {
            Self::Job => Some(Self::End),
            Self::End => Some(Self::Id),
            Self::Id => None,
        }
    }
}

impl Indexer {
    /// Whether rows are waiting to be indexed: any at all for an idle writer,
    /// enough to be worth it for a busy one.
    pub fn is_due(&mut self, connection: &Connection, idle: bool) -> rusqlite::Result<bool> {
        if let Some(merge) = &self.merge
            && merge.still_holds(connection)?
        {
            return Ok(true);
        }
        self.merge = None;
        // A busy writer looks at the days that grow; a clock that was set may be in another.
        let (least, days) = if idle { (1, i64::MAX) } else { (TAIL_MAX, DAYS_THAT_GROW) };
        Ok(longest_tail(connection, days)?.is_some_and(|(_, _, tail)| tail >= least))
    }

    /// Forgets what a rolled-back transaction may have undone.
    pub fn forget(&mut self) {
        self.merge = None;
    }

    /// Does one slice; answers how many rows are fully indexed by it.
    pub fn slice(&mut self, connection: &Connection) -> rusqlite::Result<u64> {
        let merge = match self.merge.take() {
            Some(merge) => merge,
            None => match Merge::start(connection, MERGE_MAX)? {
                Some(merge) => merge,
                None => return Ok(0),
            },
        };
        match merge.advance(connection)? {
            Progress::Going(merge) => {
                self.merge = Some(merge);
                Ok(0)
            }
            Progress::Done(rows) => Ok(rows),
        }
    }
}

enum Progress {
    Going(Merge),
    Done(u64),
}

impl Merge {
    fn start(connection: &Connection, most: i64) -> rusqlite::Result<Option<Self>> {
        let Some((day, from, tail)) = longest_tail(connection, i64::MAX)? else { return Ok(None) };
        let upto = from + tail.min(most);
        Ok(Some(Self { day, from, upto, read: from, pieces: Vec::new(), stage: Stage::Job }))
    }

    /// Whether the day is there as it was, and its mark has not come past the merge. What
    /// upkeep has indexed meanwhile is not indexed twice.
    fn still_holds(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT indexed FROM history_day WHERE day = ?1";
        let mark: Option<i64> = connection.prepare_cached(sql)?.query_row([self.day], |row| row.get(0)).optional()?;
        Ok(mark.is_some_and(|mark| (self.from..self.upto).contains(&mark))
            && last_place(connection, self.day)? >= self.upto)
    }

    fn advance(mut self, connection: &Connection) -> rusqlite::Result<Progress> {
        if self.read < self.upto {
            self.gather(connection)?;
            return Ok(Progress::Going(self));
        }
        let entries = self.take(SLICE);
        self.insert(connection, &entries)?;
        if entries.len() == SLICE {
            return Ok(Progress::Going(self));
        }
        if let Some(stage) = self.stage.next() {
            self.stage = stage;
            self.pieces.iter_mut().for_each(|piece| piece.done = 0);
            return Ok(Progress::Going(self));
        }
        let sql = "UPDATE history_day SET indexed = ?2 WHERE day = ?1";
        connection.prepare_cached(sql)?.execute([self.day, self.upto])?;
        Ok(Progress::Done(self.pieces.iter().map(|piece| piece.entries.len() as u64).sum()))
    }

    /// Reads the next piece of the tail.
    fn gather(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let upto = self.upto.min(self.read + READ);
        let sql = format!("SELECT job, ended_at, id, seq FROM {} WHERE seq > ?1 AND seq <= ?2", table(self.day));
        let entries = connection
            .prepare_cached(&sql)?
            .query_map([self.read, upto], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .collect::<Result<_, _>>()?;
        self.pieces.push(Piece::new(entries));
        self.read = upto;
        Ok(())
    }

    /// The next entries of all pieces together, in the order of the table that is filled.
    fn take(&mut self, most: usize) -> Vec<IndexEntry> {
        let stage = self.stage;
        let mut taken = Vec::with_capacity(most);
        while taken.len() < most {
            let first =
                self.pieces.iter_mut().filter(|piece| piece.next(stage).is_some()).min_by(|one, other| {
                    match (one.next(stage), other.next(stage)) {
                        (Some(one), Some(other)) => stage.compare(one, other),
                        _ => std::cmp::Ordering::Equal,
                    }
                });
            let Some(piece) = first else { break };
            taken.extend(piece.next(stage).copied());
            piece.done += 1;
        }
        taken
    }

    fn insert(&self, connection: &Connection, entries: &[IndexEntry]) -> rusqlite::Result<()> {
        let name = table(self.day);
        let into = |columns: &str, row| Many::new(&format!("INSERT OR IGNORE INTO {name}_{columns} VALUES "), row, "");
        match self.stage {
            Stage::Job => into("job (job, ended_at, id, seq)", "(?, ?, ?, ?)").execute(
                connection,
                entries,
                |values, (job, ended_at, id, seq)| {
                    values.put(job)?;
                    values.put(ended_at)?;
                    values.put(id)?;
                    values.put(seq)
                },
            ),
            Stage::End => into("end (ended_at, id, seq)", "(?, ?, ?)").execute(
                connection,
                entries,
                |values, (_, ended_at, id, seq)| {
                    values.put(ended_at)?;
                    values.put(id)?;
                    values.put(seq)
                },
            ),
            Stage::Id => into("id (id, seq)", "(?, ?)").execute(connection, entries, |values, (_, _, id, seq)| {
                values.put(id)?;
                values.put(seq)
            }),
        }
    }
}

/// Indexes a few rows at once, for whoever asks for upkeep; the writer fills the
/// indexes by itself. Answers how many, and whether more are left than the writer leaves.
pub fn index_some(connection: &Connection) -> rusqlite::Result<(u64, bool)> {
    let mut next = Merge::start(connection, SLICE as i64 / 4)?;
    let mut indexed = 0;
    while let Some(merge) = next.take() {
        match merge.advance(connection)? {
            Progress::Going(merge) => next = Some(merge),
            Progress::Done(rows) => indexed = rows,
        }
    }
    Ok((indexed, longest_tail(connection, i64::MAX)?.is_some_and(|(_, _, tail)| tail >= TAIL_MAX)))
}

/// The one of the newest days with the longest tail: its mark, and how many rows are
/// beyond it.
fn longest_tail(connection: &Connection, newest: i64) -> rusqlite::Result<Option<(i64, i64, i64)>> {
    let days: Vec<(i64, i64)> = {
        let mut select =
            connection.prepare_cached("SELECT day, indexed FROM history_day ORDER BY day DESC LIMIT ?1")?;
        let rows = select.query_map([newest], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<Result<_, _>>()?
    };
    let mut longest = None;
    for (day, indexed) in days {
        let tail = last_place(connection, day)? - indexed;
        if tail > longest.map_or(0, |(_, _, most)| most) {
            longest = Some((day, indexed, tail));
        }
    }
    Ok(longest)
}

/// The last place in a day that is taken.
fn last_place(connection: &Connection, day: i64) -> rusqlite::Result<i64> {
    let sql = format!("SELECT coalesce(max(seq), 0) FROM {}", table(day));
    connection.prepare_cached(&sql)?.query_row([], |row| row.get(0))
}

/// The tables of a day that goes, under names of their own: nobody reads them, and a run
/// that ends in that day all the same gets a new one.
pub const GOING: &str = "going";

/// Takes the oldest day from before `day` away from everybody who reads. Its rows are
/// still to be deleted. False where there is none, or where the last one is not gone yet.
pub fn let_go(connection: &Connection, before: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT day FROM history_day WHERE day < ?1 ORDER BY day LIMIT 1";
    let oldest: Option<i64> = connection.prepare_cached(sql)?.query_row([before], |row| row.get(0)).optional()?;
    let Some(day) = oldest.filter(|_| is_going(connection).is_ok_and(|going| !going)) else { return Ok(false) };
    let name = table(day);
    let renamed = ["", "_job", "_end", "_id"].map(|end| format!("ALTER TABLE {name}{end} RENAME TO {GOING}{end}; "));
    connection.execute_batch(&format!("{}DELETE FROM history_day WHERE day = {day};", renamed.concat()))?;
    Ok(true)
}

/// Whether a day is on its way out.
pub fn is_going(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?.exists([GOING])
}

/// The columns of an ended run, those of a live one first.
fn select_ended(day: i64, rest: &str) -> String {
    let name = table(day);
    let columns = RUN
        .replace("run.status", "0")
        .replace("run.flags", "0")
        .replace("run.pending", "NULL")
        .replace("run.holder", "NULL")
        .replace("run.due_at", "NULL")
        .replace("run.", "h.");
    format!("SELECT {columns}, h.verdict, h.ended_at, h.failure, h.output, h.progress, h.trail FROM {name} AS h {rest}")
}

fn ended_record(row: &Row<'_>) -> Result<RunRecord, StoreError> {
    let started: Option<i64> = row.get(12).map_err(failed)?;
    let mut run = run_row(row).map_err(failed)?.run()?;
    let text = |index: usize| row.get::<_, Option<String>>(RUN_LEN + index).map_err(failed);
    let verdict = codec::verdict(row.get(RUN_LEN).map_err(failed)?)?;
    run.state = RunState::Finished { at: time(row.get(RUN_LEN + 1).map_err(failed)?)?, verdict };
    Ok(RunRecord {
        run,
        started_at: codec::time_opt(started)?,
        failure: codec::failure(text(2)?)?,
        output: text(3)?.map(Into::into),
        progress: text(4)?.map(Into::into),
        trail: text(5)?.map_or_else(Vec::new, |trail| TrailEntry::read(&trail)),
    })
}

/// None where it cannot be read.
fn live_record(row: &Row<'_>) -> Result<Option<RunRecord>, StoreError> {
    let text = |index: usize| row.get::<_, Option<String>>(RUN_LEN + index).map_err(failed);
    let Some(run) = live(row).map(|live| live.run) else { return Ok(None) };
    Ok(Some(RunRecord {
        started_at: run.state.started_at(),
        run,
        failure: None,
        output: None,
        progress: text(0)?.map(Into::into),
        trail: text(1)?.map_or_else(Vec::new, |trail| TrailEntry::read(&trail)),
    }))
}

fn select_live(rest: &str) -> String {
    format!("SELECT {RUN}, run.progress, run.trail FROM run {rest}")
}

/// An ended run by its id.
pub fn find(connection: &Connection, id: RunId) -> Result<Option<RunRecord>, StoreError> {
    match place_of(connection, id)? {
        Some((day, seq)) => record_at(connection, day, seq),
        None => Ok(None),
    }
}

/// The table of an ended run's day.
pub fn table_of(connection: &Connection, id: Uuid) -> Result<Option<String>, StoreError> {
    Ok(place_of(connection, RunId(id))?.map(|(day, _)| table(day)))
}

/// Where an ended run is: one look-up per day, latest day first.
pub fn place_of(connection: &Connection, id: RunId) -> Result<Option<(i64, i64)>, StoreError> {
    for Day { day, indexed } in days(connection)? {
        let name = table(day);
        let by_index = format!("SELECT seq FROM {name}_id WHERE id = ?1 AND seq <= ?2");
        let by_tail = format!("SELECT seq FROM {name} WHERE seq > ?2 AND id = ?1");
        for sql in [by_index, by_tail] {
            let seq: Option<i64> = first(connection, &sql, params![id.0.as_bytes(), indexed], |row| row.get(0))?;
            if let Some(seq) = seq {
                return Ok(Some((day, seq)));
            }
        }
    }
    Ok(None)
}

/// None where it cannot be read, or was discarded for that.
fn record_at(connection: &Connection, day: i64, seq: i64) -> Result<Option<RunRecord>, StoreError> {
    let sql = select_ended(day, "WHERE h.seq = ?1");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query([seq]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    let key = uuid_at(row, 0).map_or_else(|_| format!("{day}/{seq}"), |id| id.to_string());
    Ok(readable(HISTORY, key, ended_record(row)))
}

fn run(connection: &Connection, id: RunId) -> Result<Option<RunRecord>, StoreError> {
    let sql = select_live("WHERE run.id = ?1");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let mut rows = select.query([id.0.as_bytes()]).map_err(failed)?;
    match rows.next().map_err(failed)? {
        Some(row) => live_record(row),
        None => find(connection, id),
    }
}

/// A page under way.
struct Page<'q> {
    query: &'q RunQuery,
    sought: Sought,
    limit: usize,
    looked: usize,
    runs: Vec<RunRecord>,
    next: Option<RunPlace>,
    /// None where the list cannot have a run in two places.
    began: Option<Began>,
}

impl Page<'_> {
    /// Takes in a record; true when the page is full.
    fn take(&mut self, record: RunRecord, at: RunPlace) -> bool {
        self.looked += 1;
        self.next = Some(at);
        if self.sought.has(self.query, &record) {
            self.runs.push(record);
        }
        self.runs.len() >= self.limit || self.looked >= LOOK_MAX
    }
}

fn list(connection: &Connection, query: &RunQuery) -> Result<RunPage, StoreError> {
    let tagged = query.tag.as_deref().map(|tag| tagged_jobs(connection, tag)).transpose()?;
    let limit = query.limit.clamp(1, PAGE_MAX) as usize;
    let sought = Sought::new(query, tagged);
    let began = match &query.after {
        None if sought.live() && sought.ended() => Some(Began::now(connection)?),
        None => None,
        Some(after) => after.began.as_deref().and_then(Began::read),
    };
    let mut page = Page { query, sought, limit, looked: 0, runs: Vec::new(), next: None, began };
    let place = query.after.as_ref().map(|after| after.place);
    let live = !matches!(place, Some(RunPlace::Ended(..))) && page.sought.live();
    let full =
        (live && list_live(connection, &mut page)?) || (page.sought.ended() && list_ended(connection, &mut page)?);
    let Page { runs, next, began, .. } = page;
    let began = began.map(|began| began.written());
    Ok(RunPage { runs, next: next.filter(|_| full).map(|place| RunCursor { place, began }) })
}

/// What had ended when a list began: the last place in each of the newest days.
/// Places rise in the order of commits, which ends do not.
struct Began(Vec<(i64, i64)>);

impl Began {
    /// An end is written in its own day, and no later than the day after the next.
    const DAYS: usize = 3;

    fn now(connection: &Connection) -> Result<Self, StoreError> {
        let last = |day: &Day| Ok((day.day, last_place(connection, day.day).map_err(failed)?));
        days(connection)?.iter().take(Self::DAYS).map(last).collect::<Result<_, _>>().map(Self)
    }

    fn read(text: &str) -> Option<Self> {
        let pair =
            |pair: &str| pair.split_once(':').and_then(|(day, seq)| Some((day.parse().ok()?, seq.parse().ok()?)));
        let days = text.split(',').filter(|text| !text.is_empty()).map(pair).collect::<Option<Vec<_>>>()?;
        (days.len() <= Self::DAYS).then_some(Self(days))
    }

    fn written(&self) -> Box<str> {
        let days: Vec<String> = self.0.iter().map(|(day, seq)| format!("{day}:{seq}")).collect();
        days.join(",").into()
    }

    /// The last place of a day that was there.
    fn last(&self, day: i64) -> i64 {
        let known = self.0.iter().find(|(known, _)| *known == day).map(|(_, seq)| *seq);
        let old = self.0.len() == Self::DAYS && self.0.iter().all(|(known, _)| day < *known);
        known.unwrap_or(if old { i64::MAX } else { 0 })
    }
}

fn tagged_jobs(connection: &Connection, tag: &str) -> Result<HashSet<JobId>, StoreError> {
    let jobs = all(connection, "SELECT job FROM job_tag WHERE tag = ?1", [tag], |row| row.get(0).map(JobId))?;
    Ok(jobs.into_iter().collect())
}

/// Runs that lived when the list began: those that live, and between them those that
/// have ended since.
fn list_live(connection: &Connection, page: &mut Page<'_>) -> Result<bool, StoreError> {
    let after = match page.query.after.as_ref().map(|after| after.place) {
        Some(RunPlace::Live(id)) => id.0,
        _ => Uuid::max(),
    };
    let sql = select_live("WHERE run.id < ?1 OR (?2 AND run.id = ?1) ORDER BY run.id DESC");
    let mut select = connection.prepare_cached(&sql).map_err(failed)?;
    let first = page.query.after.is_none();
    let mut ended = ended_since(connection, page, after)?.into_iter().peekable();
    let mut rows = select.query(params![after.as_bytes(), first]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let Some(record) = live_record(row)? else { continue };
        let live = record.run.id;
        while let Some((id, day, seq)) = ended.next_if(|(id, ..)| *id > live.0) {
            let ended = record_at(connection, day, seq)?;
            if ended.is_some_and(|record| page.take(record, RunPlace::Live(RunId(id)))) {
                return Ok(true);
            }
        }
        if page.take(record, RunPlace::Live(live)) {
            return Ok(true);
        }
    }
    for (id, day, seq) in ended {
        let ended = record_at(connection, day, seq)?;
        if ended.is_some_and(|record| page.take(record, RunPlace::Live(RunId(id)))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The runs before `after` that have ended since the list began, newest first, each
/// with its place. No more than one page looks at.
fn ended_since(connection: &Connection, page: &Page<'_>, after: Uuid) -> Result<Vec<(Uuid, i64, i64)>, StoreError> {
    let Some(began) = page.began.as_ref().filter(|_| page.query.after.is_some()) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for day in days(connection)? {
        let last = began.last(day.day);
        if last == i64::MAX {
            continue;
        }
        let sql = format!(
            "SELECT id, seq FROM {} WHERE seq > ?1 AND id < ?2 AND (?3 IS NULL OR tenant = ?3) \
               AND (?4 IS NULL OR job = ?4) ORDER BY id DESC LIMIT ?5",
            table(day.day)
        );
        let (tenant, job) = (page.query.tenant.map(|tenant| tenant.0), page.query.job.map(|job| job.0));
        let mut select = connection.prepare_cached(&sql).map_err(failed)?;
        let key = params![last, after.as_bytes(), tenant, job, LOOK_MAX as i64];
        let rows = select.query_map(key, |row| Ok((uuid_at(row, 0)?, day.day, row.get(1)?))).map_err(failed)?;
        found.extend(rows.collect::<Result<Vec<_>, _>>().map_err(failed)?);
    }
    found.sort_unstable_by_key(|(id, ..)| std::cmp::Reverse(*id));
    found.truncate(LOOK_MAX);
    Ok(found)
}

/// Walks the days back from the newest. Within a day, index and tail are
/// merged in the order of their end.
fn list_ended(connection: &Connection, page: &mut Page<'_>) -> Result<bool, StoreError> {
    let mut after = match page.query.after.as_ref().map(|after| after.place) {
        Some(RunPlace::Ended(at, id)) => (micros(at), id.0),
        _ => (page.query.to.map_or(i64::MAX, micros), Uuid::nil()),
    };
    if let Some(to) = page.query.to {
        after = after.min((micros(to), Uuid::nil()));
    }
    let from = page.query.earliest_end().map_or(i64::MIN, micros);
    for day in days(connection)? {
        let (starts, ends) = (day.day * DAY_MICROS, (day.day + 1) * DAY_MICROS);
        if starts > after.0 || ends <= from {
            continue;
        }
        let last = page.began.as_ref().map_or(i64::MAX, |began| began.last(day.day));
        loop {
            let places = places(connection, &Stretch { day: &day, job: page.query.job, from, last }, after)?;
            let is_end = places.len() < CHUNK;
            for (ended_at, id, seq) in places {
                after = (ended_at, id);
                let Some(record) = record_at(connection, day.day, seq)? else { continue };
                if page.take(record, RunPlace::Ended(time(ended_at)?, RunId(id))) {
                    return Ok(true);
                }
            }
            if is_end {
                break;
            }
        }
    }
    Ok(false)
}

const CHUNK: usize = 256;

/// The ended runs of a day that are asked for.
struct Stretch<'a> {
    day: &'a Day,
    job: Option<JobId>,
    /// The earliest end.
    from: i64,
    /// The last place.
    last: i64,
}

/// The next ended runs of a stretch before `after`, latest first.
fn places(
    connection: &Connection,
    stretch: &Stretch<'_>,
    after: (i64, Uuid),
) -> Result<Vec<(i64, Uuid, i64)>, StoreError> {
    let Stretch { day, job, from, last } = stretch;
    let name = table(day.day);
    let (index, job_is) = match job {
        Some(_) => (format!("{name}_job"), "job = ?1"),
        None => (format!("{name}_end"), "?1 IS NULL"),
    };
    let sql = format!(
        "SELECT ended_at, id, seq FROM (SELECT ended_at, id, seq FROM {index} \
           WHERE {job_is} AND (ended_at, id) < (?2, ?3) AND ended_at >= ?4 AND seq <= min(?6, ?7) \
           ORDER BY ended_at DESC, id DESC LIMIT ?5) \
         UNION ALL SELECT ended_at, id, seq FROM {name} \
           WHERE seq > ?6 AND seq <= ?7 AND {job_is} AND (ended_at, id) < (?2, ?3) AND ended_at >= ?4 \
         ORDER BY 1 DESC, 2 DESC LIMIT ?5"
    );
    let key = params![job.map(|job| job.0), after.0, after.1.as_bytes(), from, CHUNK as i64, day.indexed, last];
    all(connection, &sql, key, |row| Ok((row.get(0)?, uuid_at(row, 1)?, row.get(2)?)))
}

#[async_trait]
impl RunStore for SqliteStore {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError> {
        let ids = ids.to_vec();
        self.read("read runs", move |connection| ids.iter().map(|id| run(connection, *id)).collect()).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        let query = query.clone();
        self.read("list runs", move |connection| list(connection, &query)).await
    }
}
