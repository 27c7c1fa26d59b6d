//! History: runs live and ended as one list, and the roll-ups.
//!
//! Every page is a bounded look: an index gives the newest rows of a job or a
//! tenant, the other filters are applied to those, and the page says where the
//! next look begins. So a filter that finds little costs no more than one that
//! finds much.

use std::collections::HashMap;

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::RunId,
    run::{Run, RunState, Status, TrailEntry, Verdict},
    store::{RunCursor, RunPage, RunPlace, RunQuery, RunRecord, RunStore, StoreError},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore,
    days::DAY_MICROS,
    fault::Fault,
    rows::{RUN, RUN_LEN, ids, run_row},
};
use crate::{
    codec::{failure, micros, sql::DEAD, status, time, time_opt, verdict, verdict_code},
    filter::{LOOK_MAX, PAGE_MAX, Sought},
    unreadable::{self, Notes},
};

/// So many rows are examined where every row examined is also read, because its labels decide.
const LOOK_LABELS_MAX: i64 = 2_000;

/// So long after its end a run is in history, unless the store was away. One that
/// takes longer may be on a page twice, but is never on none.
const LATE_MAX: Span = Span::secs(60);

/// Transactions in flight that the cursor of a list names.
const IN_FLIGHT_MAX: usize = 128;

/// A live run, in the columns of an ended one.
const LIVE: &str = formatcp!(
    "{RUN}, NULL::smallint AS verdict, NULL::bigint AS ended_at, r.progress, r.trail, NULL::text, NULL::text"
);

/// An ended run, in the columns of a live one and some more.
const ENDED: &str = "r.id, r.tenant, r.job, r.version, r.lane, r.part, 2::smallint, 0::smallint, r.order_key, \
     r.ready_at, r.created_at, r.expires_at, r.started_at, r.attempt, r.losses, r.fence, r.source, r.schedule, \
     r.planned_at, r.slot, r.slot_limit, r.parent, r.step, NULL::smallint, NULL::uuid, NULL::bigint, r.payload, \
     r.extra, r.cancel, r.first_started_at, r.item, r.verdict, r.ended_at, r.progress, r.trail, r.failure, r.output";

/// How many columns [`record`] reads.
const RECORD_COLUMNS: usize = RUN_LEN + 6;

/// A run, live or ended; none where its row cannot be read.
fn record(notes: &Notes, row: &Row) -> Option<RunRecord> {
    let table = |ended: bool| if ended { unreadable::HISTORY } else { unreadable::RUN };
    match read_record(row) {
        Ok(record) => record,
        Err(fault) => {
            let ended = row.try_get::<_, Option<i64>>(RUN_LEN + 1).ok().flatten().is_some();
            let key = row.try_get::<_, Uuid>(0).map_or_else(|_| "?".to_owned(), |id| id.to_string());
            notes.note(table(ended), key, fault);
            None
        }
    }
}

fn read_record(row: &Row) -> Result<Option<RunRecord>, Fault> {
    let columns = run_row(row)?;
    if columns.status >= status::SET_ASIDE {
        return Ok(None);
    }
    let started_at = time_opt(columns.started_at)?;
    let mut run: Run = columns.run()?;
    if let Some(code) = row.try_get::<_, Option<i16>>(RUN_LEN)? {
        run.state = RunState::Finished { at: time(row.try_get(RUN_LEN + 1)?)?, verdict: verdict(code)? };
    }
    Ok(Some(RunRecord {
        run,
        started_at,
        failure: failure(row.try_get(RUN_LEN + 4)?)?,
        output: row.try_get::<_, Option<String>>(RUN_LEN + 5)?.map(Into::into),
        progress: row.try_get::<_, Option<String>>(RUN_LEN + 2)?.map(Into::into),
        trail: row.try_get::<_, Option<&str>>(RUN_LEN + 3)?.map(TrailEntry::read).unwrap_or_default(),
    }))
}

impl PostgresStore {
    pub(super) async fn runs_by_id(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, Fault> {
        let numbers: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let mut found: HashMap<RunId, RunRecord> = HashMap::with_capacity(ids.len());
        let sql = formatcp!("SELECT {LIVE} FROM run r WHERE r.id = ANY($1)");
        for row in self.read(sql, &[&numbers]).await? {
            if let Some(record) = record(&self.notes, &row) {
                found.insert(record.run.id, record);
            }
        }
        // First where a run of that age must be; then everywhere, because its
        // maker's clock may have been anything.
        for everywhere in [false, true] {
            let missing: Vec<RunId> = ids.iter().filter(|id| !found.contains_key(id)).copied().collect();
            for record in self.ended_by_id(&missing, everywhere).await? {
                found.insert(record.run.id, record);
            }
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn ended_by_id(&self, ids: &[RunId], everywhere: bool) -> Result<Vec<RunRecord>, Fault> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let from: Vec<i64> = ids.iter().map(|id| if everywhere { i64::MIN } else { born_day(*id) }).collect();
        let sql = formatcp!(
            "SELECT {ENDED} FROM unnest($1::uuid[], $2::bigint[]) u (id, from_at), LATERAL ( \
                 SELECT * FROM history h WHERE h.id = u.id AND h.ended_at >= u.from_at LIMIT 1) r"
        );
        let rows = self.read(sql, &[&numbers, &from]).await?;
        Ok(rows.iter().filter_map(|row| record(&self.notes, row)).collect())
    }

    /// Which of these have ended.
    pub(super) async fn ended_among(&self, runs: &[RunId]) -> Result<Vec<RunId>, Fault> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let sql = "SELECT u.id FROM unnest($1::uuid[]) u (id), LATERAL ( \
                   SELECT 1 FROM history h WHERE h.id = u.id LIMIT 1) r";
        // On the pool kept back: the caller holds a work connection.
        let rows = super::read_on(&self.leases, sql, &[&numbers]).await?;
        Ok(ids(&rows)?.into_iter().map(RunId).collect())
    }

    pub(super) async fn page_of_runs(&self, query: &RunQuery) -> Result<RunPage, Fault> {
        let limit = query.limit.clamp(1, PAGE_MAX) as usize;
        let sought = Sought::new(query, None);
        let mut page = Filling { sought: &sought, query, limit, runs: Vec::new(), next: None };
        let mut began = query.after.as_ref().and_then(|after| Began::read(after.began.as_deref()?));
        let place = query.after.as_ref().map(|after| after.place);
        if sought.live() && !matches!(place, Some(RunPlace::Ended(..))) {
            let (mut look, snapshot) = self.look_live(query, limit).await?;
            if query.after.is_none() && sought.ended() {
                began = Began::by(&snapshot, query.now);
            } else if let Some(began) = &began {
                // After the look at live runs, so that none is in neither.
                look = look.with(self.look_ended_since(query, began, limit).await?);
            }
            page.fill(look, |run| RunPlace::Live(run.id));
            if page.next.is_none() && page.runs.len() >= limit && sought.ended() {
                // Full to the brim: history begins on the next page.
                page.next = page.runs.last().map(|record| RunPlace::Live(record.run.id));
            }
        }
        if sought.ended() && page.next.is_none() {
            let look = self.look_ended(query, began.as_ref(), limit - page.runs.len()).await?;
            page.fill(look, ended_place);
        }
        let began = began.map(|began| began.written());
        Ok(RunPage { runs: page.runs, next: page.next.map(|place| RunCursor { place, began }) })
    }

    /// Live runs, and the snapshot that they were seen in.
    async fn look_live(&self, query: &RunQuery, limit: usize) -> Result<(Look, String), Fault> {
        let codes = live_codes(&query.statuses);
        let after = live_after(query);
        // A schedule has few live runs and an index; the rest is looked through
        // from the newest on.
        let source = match query.schedule {
            Some(_) => "r.schedule = $6 AND r.schedule IS NOT NULL",
            None => "$6::bigint IS NULL",
        };
        let (queued, running) = (status::QUEUED, status::RUNNING);
        let status =
            format!("(CASE WHEN r.status = {queued} AND b.id IS NOT NULL THEN {running}::smallint ELSE r.status END)");
        let sql = format!(
            "WITH look AS MATERIALIZED (SELECT * FROM run r WHERE {source} AND r.id < $1 ORDER BY r.id DESC LIMIT $2), \
                  edge AS (SELECT id FROM look WHERE (SELECT count(*) FROM look) >= $2 ORDER BY id LIMIT 1), \
                  found AS (SELECT {LIVE} FROM look r LEFT JOIN unnest($12::uuid[]) b (id) ON b.id = r.id \
                      WHERE ($3::int IS NULL OR r.tenant = $3) AND ($4::bigint IS NULL OR r.job = $4) \
                      AND (cardinality($5::smallint[]) = 0 OR {status} = ANY($5)) \
                      AND ($7::text IS NULL OR EXISTS (SELECT 1 FROM job j WHERE j.id = r.job AND NOT j.deleted AND j.tags @> ARRAY[$7::text])) \
                      AND r.created_at >= $8 AND r.created_at < $9 AND (NOT $11 OR r.extra IS NOT NULL) \
                      ORDER BY r.id DESC LIMIT $10) \
             SELECT found.*, edge.id, pg_current_snapshot()::text \
             FROM (SELECT 1) one LEFT JOIN edge ON true LEFT JOIN found ON true ORDER BY found.id DESC"
        );
        let (look, most) = bounds(query, limit);
        let tenant = query.tenant.map(|tenant| tenant.0);
        let job = query.job.map(|job| job.0);
        let schedule = query.schedule.map(|schedule| schedule.0);
        let (from, to) = (query.from.map_or(i64::MIN, micros), query.to.map_or(i64::MAX, micros));
        let labelled = !query.labels.is_empty();
        let begun: Vec<Uuid> = query.begun.iter().map(|id| id.0).collect();
        let rows = self
            .read(
                &sql,
                &[&after, &look, &tenant, &job, &codes, &schedule, &query.tag, &from, &to, &most, &labelled, &begun],
            )
            .await?;
        let (mut found, mut snapshot) = (Look::default(), String::new());
        for row in &rows {
            if let Some(edge) = row.try_get::<_, Option<Uuid>>(RECORD_COLUMNS)? {
                found.edge = Some(RunPlace::Live(RunId(edge)));
            }
            if row.try_get::<_, Option<Uuid>>(0)?.is_some() {
                found.records.extend(record(&self.notes, row));
            }
            snapshot = row.try_get(RECORD_COLUMNS + 1)?;
        }
        if let Some(last) = last_of_full(&rows, &found, most) {
            found.edge = Some(RunPlace::Live(RunId(last.try_get(0)?)));
        }
        Ok((found, snapshot))
    }

    /// Runs that have ended since the list began, by their ids.
    async fn look_ended_since(&self, query: &RunQuery, began: &Began, limit: usize) -> Result<Look, Fault> {
        let sql = format!(
            "SELECT {ENDED} FROM history r WHERE r.id < $1 AND ($2::int IS NULL OR r.tenant = $2) \
               AND ($3::bigint IS NULL OR r.job = $3) \
               AND ($4::text IS NULL OR EXISTS (SELECT 1 FROM job j WHERE j.id = r.job AND NOT j.deleted AND j.tags @> ARRAY[$4::text])) \
               AND r.ended_at >= $6 AND NOT {} ORDER BY r.id DESC LIMIT $5",
            seen("r", 7)
        );
        let after = live_after(query);
        let (_, most) = bounds(query, limit);
        let (tenant, job) = (query.tenant.map(|tenant| tenant.0), query.job.map(|job| job.0));
        let Began { since, first, next, in_flight } = began;
        let rows = self.read(&sql, &[&after, &tenant, &job, &query.tag, &most, since, first, next, in_flight]).await?;
        let records = rows.iter().filter_map(|row| record(&self.notes, row)).collect();
        let last = rows.last().filter(|_| rows.len() as i64 >= most).map(|last| last.try_get(0)).transpose()?;
        let edge = last.map(|id| RunPlace::Live(RunId(id)));
        Ok(Look { records, edge })
    }

    async fn look_ended(&self, query: &RunQuery, began: Option<&Began>, limit: usize) -> Result<Look, Fault> {
        let codes = verdict_codes(&query.statuses);
        let (after_at, after_id) = match query.after.as_ref().map(|after| after.place) {
            Some(RunPlace::Ended(at, id)) => (micros(at), id.0),
            _ => (i64::MAX, Uuid::max()),
        };
        let (groups, filter) = self.groups(query).await?;
        let (look, most) = bounds(query, limit);
        // Without filters beyond the index, what is asked for is enough.
        let plain = query.schedule.is_none() && query.statuses.is_empty() && query.tag.is_none();
        let plain = plain && query.labels.is_empty() && (query.job.is_none() || query.tenant.is_none());
        let each = if plain { most } else { (look / groups.len().max(1) as i64).max(64) };
        let sql = format!(
            "WITH look AS MATERIALIZED (SELECT r.*, g.k FROM unnest($1::bigint[]) g (k), LATERAL ( \
                      SELECT * FROM history h WHERE {filter} AND h.ended_at <= $2 AND (h.ended_at, h.id) < ($2, $3) \
                          AND h.ended_at >= $4 AND h.ended_at < $5 AND (h.ended_at < $13 OR {}) \
                          ORDER BY h.ended_at DESC, h.id DESC LIMIT $6) r), \
                  edge AS (SELECT x.ended_at, x.id FROM ( \
                          SELECT DISTINCT ON (k) k, ended_at, id, count(*) OVER (PARTITION BY k) AS n \
                          FROM look ORDER BY k, ended_at, id) x \
                      WHERE x.n >= $6 ORDER BY x.ended_at DESC, x.id DESC LIMIT 1), \
                  found AS (SELECT {ENDED} FROM look r LEFT JOIN edge e ON true \
                      WHERE (e.id IS NULL OR (r.ended_at, r.id) >= (e.ended_at, e.id)) \
                      AND ($7::int IS NULL OR r.tenant = $7) AND ($8::bigint IS NULL OR r.schedule = $8) \
                      AND (cardinality($9::smallint[]) = 0 OR r.verdict = ANY($9)) \
                      AND ($10::text IS NULL OR EXISTS (SELECT 1 FROM job j WHERE j.id = r.job AND NOT j.deleted AND j.tags @> ARRAY[$10::text])) \
                      AND (NOT $12 OR r.extra IS NOT NULL) \
                      ORDER BY r.ended_at DESC, r.id DESC LIMIT $11) \
             SELECT found.*, edge.ended_at, edge.id FROM (SELECT 1) one LEFT JOIN edge ON true LEFT JOIN found ON true \
             ORDER BY found.ended_at DESC, found.id DESC",
            seen("h", 14),
        );
        let all = Began { since: i64::MAX, ..Began::default() };
        let Began { since, first, next, in_flight } = began.unwrap_or(&all);
        let tenant = query.tenant.map(|tenant| tenant.0);
        let schedule = query.schedule.map(|schedule| schedule.0);
        let (from, to) = (query.earliest_end().map_or(i64::MIN, micros), query.to.map_or(i64::MAX, micros));
        let labelled = !query.labels.is_empty();
        let rows = self
            .read(
                &sql,
                &[
                    &groups, &after_at, &after_id, &from, &to, &each, &tenant, &schedule, &codes, &query.tag, &most,
                    &labelled, since, first, next, in_flight,
                ],
            )
            .await?;
        self.ended_look(&rows, most)
    }

    /// Ended runs and the edge of the look, from rows that are followed by the edge's columns.
    fn ended_look(&self, rows: &[Row], most: i64) -> Result<Look, Fault> {
        let mut found = Look::default();
        for row in rows {
            if let Some(at) = row.try_get::<_, Option<i64>>(RECORD_COLUMNS)? {
                found.edge = Some(RunPlace::Ended(time(at)?, RunId(row.try_get(RECORD_COLUMNS + 1)?)));
            }
            if row.try_get::<_, Option<Uuid>>(0)?.is_some() {
                found.records.extend(record(&self.notes, row));
            }
        }
        if let Some(last) = last_of_full(rows, &found, most) {
            let at = time(last.try_get(RUN_LEN + 1)?)?;
            found.edge = Some(RunPlace::Ended(at, RunId(last.try_get(0)?)));
        }
        Ok(found)
    }

    /// The stretches of an index to look through: a job's, a tenant's, every
    /// tenant's, or that of the dead letters.
    async fn groups(&self, query: &RunQuery) -> Result<(Vec<i64>, &'static str), Fault> {
        if let Some(job) = query.job {
            return Ok((vec![job.0], "h.job = g.k"));
        }
        if query.statuses == [Status::Ended(Verdict::Dead)] {
            return Ok((vec![0], formatcp!("h.verdict = {DEAD}")));
        }
        if let Some(tenant) = query.tenant {
            return Ok((vec![i64::from(tenant.0)], "h.tenant = g.k::int"));
        }
        let rows = self.read("SELECT id FROM tenant ORDER BY id", &[]).await?;
        let tenants: Vec<i32> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok((tenants.into_iter().map(i64::from).collect(), "h.tenant = g.k::int"))
    }
}

/// The day before the one in which the id says that its run was made.
fn born_day(id: RunId) -> i64 {
    let born = id.0.get_timestamp().filter(|_| id.0.get_version_num() == 7);
    born.map_or(i64::MIN, |born| {
        let (seconds, _) = born.to_unix();
        let micros = i64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000);
        (micros.div_euclid(DAY_MICROS) - 1) * DAY_MICROS
    })
}

/// The stored codes that statuses stand for, live ones only.
fn live_codes(statuses: &[Status]) -> Vec<i16> {
    let mut codes = Vec::new();
    for status in statuses {
        match status {
            Status::Scheduled => codes.push(status::SCHEDULED),
            Status::Blocked => codes.extend([status::BLOCKED, status::NEEDS]),
            Status::Queued => codes.push(status::QUEUED),
            Status::Running => codes.push(status::RUNNING),
            Status::Waiting => codes.push(status::WAITING),
            Status::Cancelling => codes.push(status::CANCELLING),
            Status::Ended(_) => {}
        }
    }
    codes
}

/// The stored codes of the verdicts among statuses.
fn verdict_codes(statuses: &[Status]) -> Vec<i16> {
    let code = |status: &Status| match status {
        Status::Ended(verdict) => Some(verdict_code(*verdict)),
        _ => None,
    };
    statuses.iter().filter_map(code).collect()
}

/// How many rows to examine, and how many to bring back.
fn bounds(query: &RunQuery, limit: usize) -> (i64, i64) {
    if query.labels.is_empty() { (LOOK_MAX as i64, limit as i64 + 1) } else { (LOOK_LABELS_MAX, LOOK_LABELS_MAX) }
}

/// The last row of a look that found as many as it may, where some of them cannot be
/// read: the next look begins behind it, however few are left.
fn last_of_full<'r>(rows: &'r [Row], found: &Look, most: i64) -> Option<&'r Row> {
    let is_full = rows.len() as i64 >= most && found.records.len() < rows.len();
    rows.last().filter(|_| is_full)
}

/// The id that live runs are listed behind.
fn live_after(query: &RunQuery) -> Uuid {
    match query.after.as_ref().map(|after| after.place) {
        Some(RunPlace::Live(id)) => id.0,
        _ => Uuid::max(),
    }
}

fn ended_place(run: &Run) -> RunPlace {
    match run.state {
        RunState::Finished { at, .. } => RunPlace::Ended(at, run.id),
        _ => RunPlace::Live(run.id),
    }
}

/// What had ended when a list began: the runs whose rows its snapshot has. An end is
/// no measure of that, because it is written a little after it.
#[derive(Default)]
struct Began {
    /// What ended before this was in history.
    since: i64,
    /// Transactions before this one had ended.
    first: i64,
    /// Transactions from this one on had not begun.
    next: i64,
    /// Of those in between, the ones that had not ended.
    in_flight: Vec<i64>,
}

impl Began {
    /// `snapshot` as the server writes it: `first:next:in,flight`.
    fn by(snapshot: &str, now: Option<Timestamp>) -> Option<Self> {
        let mut parts = snapshot.split(':');
        let (first, next) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let in_flight = parts.next()?.split(',').filter(|text| !text.is_empty()).take(IN_FLIGHT_MAX);
        let in_flight = in_flight.map(|text| text.parse().ok()).collect::<Option<_>>()?;
        Some(Self { since: now.map_or(i64::MIN, |now| micros(LATE_MAX.before(now))), first, next, in_flight })
    }

    fn read(text: &str) -> Option<Self> {
        let (since, snapshot) = text.split_once('@')?;
        Some(Self { since: since.parse().ok()?, ..Self::by(snapshot, None)? })
    }

    fn written(&self) -> Box<str> {
        let in_flight: Vec<String> = self.in_flight.iter().map(ToString::to_string).collect();
        format!("{}@{}:{}:{}", self.since, self.first, self.next, in_flight.join(",")).into()
    }
}

/// Whether the snapshot in the parameters from `$n` on has the row: the first
/// transaction that may be missing, the next one to begin, and those in flight.
///
/// A row names the transaction that wrote it by 32 bits, which are taken for the
/// nearest to the snapshot; nobody asks this of a row that is older than minutes.
fn seen(row: &str, n: usize) -> String {
    let (first, next, in_flight) = (n, n + 1, n + 2);
    let tx = format!(
        "(${next}::bigint + (({row}.xmin::text::bigint - ${next}::bigint) % 4294967296 + 6442450944) % 4294967296 \
          - 2147483648)"
    );
    format!("({tx} < ${first}::bigint OR ({tx} < ${next}::bigint AND {tx} <> ALL(${in_flight}::bigint[])))")
}

/// What a look found, and the last row it examined if there may be more.
#[derive(Default)]
struct Look {
    records: Vec<RunRecord>,
    edge: Option<RunPlace>,
}

impl Look {
    /// Both as one, by id: as far as either of them reaches. A run that is in both
    /// has ended between the looks, and `ended` knows more of it.
    fn with(self, ended: Self) -> Self {
        let id = |edge: Option<RunPlace>| match edge {
            Some(RunPlace::Live(id)) => Some(id),
            Some(RunPlace::Ended(..)) | None => None,
        };
        let edge = id(self.edge).max(id(ended.edge));
        let mut records = ended.records;
        records.extend(self.records);
        records.retain(|record| edge.is_none_or(|edge| record.run.id >= edge));
        records.sort_by_key(|record| std::cmp::Reverse(record.run.id));
        records.dedup_by_key(|record| record.run.id);
        Self { records, edge: edge.map(RunPlace::Live) }
    }
}

/// A page under way.
struct Filling<'q> {
    sought: &'q Sought,
    query: &'q RunQuery,
    limit: usize,
    runs: Vec<RunRecord>,
    next: Option<RunPlace>,
}

impl Filling<'_> {
    /// Adds what was found to the page, and says where the next one begins.
    fn fill(&mut self, look: Look, place: impl Fn(&Run) -> RunPlace) {
        for record in look.records.into_iter().filter(|record| self.sought.has(self.query, record)) {
            if self.runs.len() == self.limit {
                self.next = self.runs.last().map(|last| place(&last.run));
                return;
            }
            self.runs.push(record);
        }
        self.next = look.edge;
    }
}

#[async_trait]
impl RunStore for PostgresStore {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Option<RunRecord>>, StoreError> {
        tried!("read runs", self.runs_by_id(ids))
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        tried!("list runs", self.page_of_runs(query))
    }
}
