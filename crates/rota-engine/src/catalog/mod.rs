//! What firing and executing need to know of definitions, kept at hand.
//!
//! Versions never change and are kept for as long as there is room. Schedules
//! are kept under the revision that the cursor names, so an old one is never
//! taken for the new. Jobs, which a cursor does not name, are kept too: the
//! store's guard tells when one is out of date, and [`Catalog::forget`] has it
//! read again. Pauses, lanes, tenants and calendars are read anew by a look.
//!
//! Everything is bounded: what is kept one by one by a [`Cache`] each, the rest by how much
//! the store may hold of it.

mod cache;
mod gate;
mod job;
mod schedule;
mod schema;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use rota_core::{
    calendar::Calendar,
    duration::Span,
    ids::{JobId, LaneId, ScheduleId, TenantId},
    lane::{Lane, LaneKey, LaneMode},
    quota::{Quotas, Tiers},
    store::{JobRecord, Pauses, ScheduleRecord, Store, StoreError, Tenant},
    stored,
};

use self::cache::Cache;
pub use self::{
    gate::Gate,
    job::{JobEntry, JobVersion, input_problems},
    schedule::{ScheduleEntry, ScheduleFound, pauses_over},
};
use crate::options::Options;

/// Calendars are read again after this long: an edit elsewhere is seen within
/// a second, and a busy tenant's are not read for every batch.
const CALENDARS_KEPT: Span = Span::millis(1_000);

/// What is kept one by one, each kind bounded.
#[derive(Debug)]
struct Caches {
    versions: Cache<(JobId, i32), Arc<JobVersion>>,
    jobs: Cache<JobId, Arc<JobEntry>>,
    schedules: Cache<ScheduleId, Arc<ScheduleEntry>>,
    calendars: Cache<TenantId, (Timestamp, Arc<HashMap<String, Calendar>>)>,
}

/// What is read whole by a look. As much as the store has: [`Limits`](rota_core::limits::Limits)
/// bounds it.
#[derive(Debug, Default)]
struct Tables {
    lanes: HashMap<LaneKey, LaneId>,
    tenants: HashMap<TenantId, Tenant>,
    /// Of the tenants that have any.
    quotas: HashMap<TenantId, Arc<Quotas>>,
}

/// See the module.
pub struct Catalog {
    store: Arc<dyn Store>,
    caches: Mutex<Caches>,
    tables: RwLock<Tables>,
    pauses: RwLock<Arc<Pauses>>,
    gate: RwLock<Arc<Gate>>,
    /// Some tenant has quotas: where none has, nobody takes a lock to ask.
    limited: AtomicBool,
    losses_max: u16,
    tiers: Tiers,
}

impl Catalog {
    pub fn new(store: Arc<dyn Store>, options: &Options) -> Self {
        let most = options.catalog_max;
        let caches = Caches {
            versions: Cache::new(most),
            jobs: Cache::new(most),
            schedules: Cache::new(most),
            calendars: Cache::new(most),
        };
        let pauses = Pauses { revision: -1, pauses: Vec::new() };
        Self {
            store,
            caches: Mutex::new(caches),
            tables: RwLock::default(),
            pauses: RwLock::new(Arc::new(pauses)),
            gate: RwLock::default(),
            limited: AtomicBool::new(false),
            losses_max: options.losses_max,
            tiers: options.tiers.clone(),
        }
    }

    fn caches<T>(&self, work: impl FnOnce(&mut Caches) -> T) -> T {
        work(&mut self.caches.lock())
    }

    /// The versions that are at hand.
    pub fn versions(&self, wanted: impl Iterator<Item = (JobId, i32)>) -> Vec<Option<Arc<JobVersion>>> {
        self.caches(|caches| wanted.map(|key| caches.versions.get(&key)).collect())
    }

    /// One version, read if it is not at hand; none where it cannot be read.
    pub async fn version(&self, job: JobId, version: i32) -> Result<Option<Arc<JobVersion>>, StoreError> {
        if let Some(found) = self.caches(|caches| caches.versions.get(&(job, version))) {
            return Ok(Some(found));
        }
        let Some(document) = self.store.job_document(job, version).await? else { return Ok(None) };
        Ok(self.keep_version(job, version, &document, ("job_version", &format!("{job}/{version}"))))
    }

    /// `row` is where the document was read.
    fn keep_version(
        &self,
        job: JobId,
        version: i32,
        document: &str,
        row: (&'static str, &str),
    ) -> Option<Arc<JobVersion>> {
        if let Some(found) = self.caches(|caches| caches.versions.get(&(job, version))) {
            return Some(found);
        }
        let read = JobVersion::read(job, version, document, self.losses_max);
        self.store.note_definition(row.0, row.1, read.as_ref().err().map(String::as_str));
        let read = Arc::new(read.ok()?);
        self.caches(|caches| caches.versions.put((job, version), Arc::clone(&read), read.weight()));
        Some(read)
    }

    /// Jobs by id, from memory where they are at hand. A deleted job, or one
    /// that cannot be read, is none.
    pub async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<Arc<JobEntry>>>, StoreError> {
        let mut found: Vec<Option<Arc<JobEntry>>> =
            self.caches(|caches| ids.iter().map(|id| caches.jobs.get(id)).collect());
        let mut missing: Vec<JobId> =
            ids.iter().zip(&found).filter(|(_, job)| job.is_none()).map(|(id, _)| *id).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return Ok(found);
        }
        let read: HashMap<JobId, Arc<JobEntry>> = self.read_jobs(&missing).await?;
        for (id, slot) in ids.iter().zip(&mut found) {
            if slot.is_none() {
                *slot = read.get(id).cloned();
            }
        }
        Ok(found)
    }

    /// Jobs by id, as they are now.
    pub async fn jobs_anew(
        &self,
        ids: impl Iterator<Item = JobId>,
    ) -> Result<HashMap<JobId, Arc<JobEntry>>, StoreError> {
        let ids: BTreeSet<JobId> = ids.collect();
        self.read_jobs(&ids.into_iter().collect::<Vec<_>>()).await
    }

    async fn read_jobs(&self, ids: &[JobId]) -> Result<HashMap<JobId, Arc<JobEntry>>, StoreError> {
        let records = self.store.jobs(ids).await?;
        Ok(records.into_iter().flatten().filter_map(|record| Some((record.id, self.keep_job(record)?))).collect())
    }

    /// Takes in a job that was just read.
    pub fn keep_job(&self, record: JobRecord) -> Option<Arc<JobEntry>> {
        if record.deleted {
            self.store.note_definition("job", &record.id.to_string(), None);
            return None;
        }
        let version =
            self.keep_version(record.id, record.version, &record.document, ("job", &record.id.to_string()))?;
        let entry = Arc::new(JobEntry { record, version });
        self.caches(|caches| caches.jobs.put(entry.record.id, Arc::clone(&entry), entry.record.document.len()));
        Some(entry)
    }

    /// Schedules at the revisions asked for.
    pub async fn schedules(&self, wanted: &[(ScheduleId, i32)]) -> Result<Vec<ScheduleFound>, StoreError> {
        let at_hand: Vec<Option<Arc<ScheduleEntry>>> = self.caches(|caches| {
            let fresh = |(id, revision): &(ScheduleId, i32)| {
                caches.schedules.get(id).filter(|entry| entry.record.revision == *revision)
            };
            wanted.iter().map(fresh).collect()
        });
        let missing: Vec<ScheduleId> =
            wanted.iter().zip(&at_hand).filter(|(_, found)| found.is_none()).map(|((id, _), _)| *id).collect();
        let mut read = if missing.is_empty() { Vec::new() } else { self.store.schedules(&missing).await? }.into_iter();
        let found = wanted.iter().zip(at_hand).map(|((_, revision), at_hand)| match at_hand {
            Some(entry) => ScheduleFound::Here(entry),
            None => match read.next().flatten() {
                Some(record) if record.revision == *revision && !record.deleted => self.keep_schedule(record),
                _ => ScheduleFound::Changed,
            },
        });
        Ok(found.collect())
    }

    fn keep_schedule(&self, record: ScheduleRecord) -> ScheduleFound {
        let id = record.id.to_string();
        let read = ScheduleEntry::read(record);
        self.store.note_definition("schedule", &id, read.as_ref().err().map(String::as_str));
        match read {
            Ok(entry) => {
                let entry = Arc::new(entry);
                self.caches(|caches| {
                    caches.schedules.put(entry.record.id, Arc::clone(&entry), entry.record.spec.len());
                });
                ScheduleFound::Here(entry)
            }
            Err(why) => ScheduleFound::Broken(why),
        }
    }

    /// Whether the schedule is at hand and is armed by the end of its runs.
    pub fn is_after_finish(&self, schedule: ScheduleId) -> bool {
        self.caches(|caches| caches.schedules.get(&schedule)).is_some_and(|entry| entry.spec.after_finish.is_some())
    }

    /// Something about this schedule or its job is not as remembered.
    pub fn forget(&self, schedule: ScheduleId) {
        self.caches(|caches| {
            if let Some(entry) = caches.schedules.get(&schedule) {
                caches.jobs.forget(&entry.record.job);
            }
            caches.schedules.forget(&schedule);
        });
    }

    pub fn forget_job(&self, job: JobId) {
        self.caches(|caches| caches.jobs.forget(&job));
    }

    /// The clock was set: how old what is kept is cannot be told by it.
    pub(crate) fn stepped(&self) {
        self.caches(|caches| caches.calendars.clear());
    }

    /// A tenant's calendars by name, at most a second old. Where one of `names` is not among
    /// them they are read anew: it may have been saved a moment ago.
    pub async fn calendars<'a>(
        &self,
        tenant: TenantId,
        names: impl IntoIterator<Item = &'a String>,
        now: Timestamp,
    ) -> Result<Arc<HashMap<String, Calendar>>, StoreError> {
        if let Some((read_at, found)) = self.caches(|caches| caches.calendars.get(&tenant))
            && now < CALENDARS_KEPT.after(read_at)
            && names.into_iter().all(|name| found.contains_key(name))
        {
            return Ok(found);
        }
        let stored = self.store.calendars(tenant).await?;
        let bytes = stored.iter().map(|calendar| calendar.spec.len()).sum();
        let read = |calendar: rota_core::store::Calendar| Some((calendar.name, stored::read(&calendar.spec).ok()?));
        let found: Arc<HashMap<String, Calendar>> = Arc::new(stored.into_iter().filter_map(read).collect());
        self.caches(|caches| caches.calendars.put(tenant, (now, Arc::clone(&found)), bytes));
        Ok(found)
    }

    pub fn pauses(&self) -> Arc<Pauses> {
        Arc::clone(&self.pauses.read())
    }

    /// Reads the pauses of tenants and queues. True where they changed.
    pub async fn read_pauses(&self) -> Result<bool, StoreError> {
        let read = self.store.pauses().await?;
        let changed = read.revision != self.pauses().revision;
        if changed {
            let pauses = read.pauses.iter().cloned().collect();
            self.change_gate(|gate| Gate { lanes: gate.lanes.clone(), able: gate.able.clone(), pauses });
            *self.pauses.write() = Arc::new(read);
        }
        Ok(changed)
    }

    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate.read())
    }

    fn change_gate(&self, change: impl FnOnce(&Gate) -> Gate) {
        let mut gate = self.gate.write();
        *gate = Arc::new(change(&gate));
    }

    /// Reads every lane; `able` says which this node can execute.
    pub async fn read_lanes(&self, able: impl Fn(&LaneKey) -> bool) -> Result<(), StoreError> {
        self.keep_lanes(self.store.all_lanes().await?, able);
        Ok(())
    }

    fn keep_lanes(&self, lanes: Vec<Lane>, able: impl Fn(&LaneKey) -> bool) {
        let current = lanes.iter().filter(|lane| !lane.retired);
        self.tables.write().lanes.extend(current.map(|lane| (lane.key.clone(), lane.id)));
        self.change_gate(|gate| {
            let mut gate = Gate { lanes: gate.lanes.clone(), able: gate.able.clone(), pauses: gate.pauses.clone() };
            for lane in lanes {
                if able(&lane.key) {
                    gate.able.insert(lane.id);
                }
                gate.lanes.insert(lane.id, lane);
            }
            gate
        });
    }

    /// The lane for each key, created as `mode` says where there is none; nothing for one
    /// that cannot be read.
    pub async fn lanes(
        &self,
        keys: &[&LaneKey],
        mode: impl Fn(&LaneKey) -> LaneMode,
        able: impl Fn(&LaneKey) -> bool,
    ) -> Result<Vec<Option<LaneId>>, StoreError> {
        let at_hand = |keys: &[&LaneKey]| -> Vec<Option<LaneId>> {
            let tables = self.tables.read();
            keys.iter().map(|key| tables.lanes.get(*key).copied()).collect()
        };
        let found = at_hand(keys);
        let missing: Vec<&LaneKey> =
            keys.iter().zip(&found).filter(|(_, lane)| lane.is_none()).map(|(key, _)| *key).collect();
        for wanted in [LaneMode::Owned, LaneMode::Claimed] {
            let of_mode: Vec<LaneKey> =
                missing.iter().filter(|key| mode(key) == wanted).map(|key| (*key).clone()).collect();
            if !of_mode.is_empty() {
                self.keep_lanes(self.open_lanes(&of_mode, wanted).await?, &able);
            }
        }
        Ok(at_hand(keys))
    }

    /// Lanes by their keys. One that cannot be read is left out, and the others are asked for
    /// one by one.
    async fn open_lanes(&self, keys: &[LaneKey], mode: LaneMode) -> Result<Vec<Lane>, StoreError> {
        match self.store.lanes(keys, mode).await {
            Err(StoreError::Corrupt(_)) => {}
            read => return read,
        }
        let mut lanes = Vec::with_capacity(keys.len());
        for key in keys {
            match self.store.lanes(std::slice::from_ref(key), mode).await {
                Err(StoreError::Corrupt(why)) => tracing::error!(queue = key.queue, why, "a lane cannot be read"),
                read => lanes.extend(read?),
            }
        }
        Ok(lanes)
    }

    /// Those of these keys that have no lane yet, and how many lanes there are. The store is
    /// asked only where one is missing.
    pub async fn missing_lanes(
        &self,
        mut keys: HashSet<LaneKey>,
        able: impl Fn(&LaneKey) -> bool,
    ) -> Result<(HashSet<LaneKey>, usize), StoreError> {
        let keep_missing = |keys: &mut HashSet<LaneKey>| {
            let tables = self.tables.read();
            keys.retain(|key| !tables.lanes.contains_key(key));
        };
        keep_missing(&mut keys);
        if !keys.is_empty() {
            self.read_lanes(able).await?;
            keep_missing(&mut keys);
        }
        Ok((keys, self.gate().lanes.len()))
    }

    /// Reads the tenants, and answers their weights.
    pub async fn read_tenants(&self) -> Result<Vec<(TenantId, u32)>, StoreError> {
        let tenants = self.store.tenants().await?;
        let weights = tenants.iter().map(|tenant| (tenant.id, tenant.tier.weight())).collect();
        let quotas = tenants.iter().map(|tenant| (tenant.id, self.tiers.of_tenant(tenant)));
        let quotas: HashMap<TenantId, Arc<Quotas>> =
            quotas.filter(|(_, quotas)| *quotas != Quotas::NONE).map(|(id, quotas)| (id, Arc::new(quotas))).collect();
        let limited = !quotas.is_empty();
        let mut tables = self.tables.write();
        tables.quotas = quotas;
        tables.tenants = tenants.into_iter().map(|tenant| (tenant.id, tenant)).collect();
        drop(tables);
        self.limited.store(limited, Ordering::Relaxed);
        Ok(weights)
    }

    /// Whether any tenant has quotas.
    pub fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// The quotas of those among these tenants that have any.
    pub fn quotas_of(&self, tenants: impl Iterator<Item = TenantId>) -> HashMap<TenantId, Arc<Quotas>> {
        if !self.is_limited() {
            return HashMap::new();
        }
        // Many runs, few tenants, and one lock for all.
        let tenants: HashSet<TenantId> = tenants.collect();
        let tables = self.tables.read();
        tenants.into_iter().filter_map(|tenant| Some((tenant, Arc::clone(tables.quotas.get(&tenant)?)))).collect()
    }

    /// A tenant's quotas, as of the last look; none where nothing is limited.
    pub fn quotas(&self, tenant: TenantId) -> Option<Arc<Quotas>> {
        if !self.is_limited() {
            return None;
        }
        self.tables.read().quotas.get(&tenant).cloned()
    }

    pub fn tenant_named(&self, name: &str) -> Option<TenantId> {
        self.tables.read().tenants.values().find(|tenant| tenant.name == name).map(|tenant| tenant.id)
    }
}
