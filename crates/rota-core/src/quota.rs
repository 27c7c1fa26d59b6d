//! Quotas: what a tenant may have and do, by its tier and its own exceptions; what a
//! tier allows, by the table here and the installation's own over it.
//!
//! This is the one table of limits, and the one place that says whether
//! something is within them. A refusal names the quota, its limit and the place
//! in the document, so that its reader need not know the table. What is not
//! limited is `None`, and a tenant without any limit has no [`Quotas`] to ask.
//!
//! Over the rate of runs means later, not lost: a run that was made for a later
//! moment carries its [`Delay`], for those who wonder why it waits.
//!
//! Counting is not done here: who asks brings the size, the count or the bucket.

use std::{fmt::Display, num::NonZeroU32};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    choice::choices,
    cron::Cron,
    duration::Span,
    ids::TenantId,
    job::{JobDocument, size::Size},
    limits::Limits,
    order::Priority,
    problem::Problem,
    rate::Rate,
    schedule::{Kind, ScheduleSpec},
    store::{Tenant, Tier},
};

choices! {
    /// A thing that a tenant has so much of.
    Quota {
        /// Enabled schedules that were not deleted.
        ActiveSchedules = "active_schedules",
        /// Runs made, by whatever path; bursts of twice as many.
        RunsPerMinute = "runs_per_minute",
        /// Bytes of a run's, a schedule's or a default payload as JSON.
        PayloadBytes = "payload_bytes",
        /// How far back ended runs are shown.
        HistoryDays = "history_days",
        /// Attempts after the first.
        MaxRetries = "max_retries",
        /// Between two instants of a schedule.
        ShortestInterval = "shortest_interval",
        /// The best priority that may be written, 1 being the best there is.
        BestPriority = "best_priority",
        /// Whether dead letters can be seen and made again.
        DeadLetters = "dead_letters",
        /// Requests to the API; bursts of twice as many.
        ApiRequestsPerSecond = "api_requests_per_s",
        /// Jobs that were not deleted.
        Jobs = "jobs",
        /// Bytes of jobs and calendars that are saved; bursts of twice as many.
        DefinitionBytesPerDay = "definition_bytes_per_day",
        /// Combinations of queue, handler and required traits that nobody has used before;
        /// bursts of twice as many.
        NewLanesPerDay = "new_lanes_per_day",
        /// Calendars.
        Calendars = "calendars",
        /// API tokens that were not revoked.
        Tokens = "tokens",
        /// Users who log in with a password.
        Users = "users",
        /// Remote workers that one node speaks to.
        Workers = "workers",
    }
}

/// What is counted in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    ActiveSchedules,
    Jobs,
    Tokens,
    Users,
}

impl Held {
    pub const ALL: [Self; 4] = [Self::ActiveSchedules, Self::Jobs, Self::Tokens, Self::Users];

    /// Its quota, its place in a document, and what several of it are called.
    fn named(self) -> (Quota, &'static str, &'static str) {
        match self {
            Self::ActiveSchedules => (Quota::ActiveSchedules, "schedules", "schedules"),
            Self::Jobs => (Quota::Jobs, "", "jobs"),
            Self::Tokens => (Quota::Tokens, "", "tokens"),
            Self::Users => (Quota::Users, "", "users"),
        }
    }
}

/// What a day allows so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Daily {
    DefinitionBytes,
    NewLanes,
}

/// Bytes of definitions are counted in pieces of so many.
const PIECE_BYTES: u64 = 1_024;
const DAY: Span = Span::secs(86_400);

/// What a tenant may have and do; `None` is without limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quotas {
    pub active_schedules: Option<u64>,
    pub runs_per_minute: Option<NonZeroU32>,
    pub payload_bytes: Option<u64>,
    pub history_days: Option<NonZeroU32>,
    pub max_retries: Option<u32>,
    pub shortest_interval: Option<Span>,
    pub best_priority: Option<Priority>,
    pub dead_letters: bool,
    pub api_requests_per_s: Option<NonZeroU32>,
    pub jobs: Option<u64>,
    pub definition_bytes_per_day: Option<u64>,
    pub new_lanes_per_day: Option<NonZeroU32>,
    pub calendars: Option<u64>,
    pub tokens: Option<u64>,
    pub users: Option<u64>,
    pub workers: Option<u64>,
}

/// Why something is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub quota: Quota,
    /// Where in the document or request; empty for the whole.
    pub path: String,
    /// What the tenant may have.
    pub limit: String,
    /// What it asked for, in words.
    pub asked: String,
    /// When asking again may help, where time helps.
    pub retry_at: Option<Timestamp>,
}

impl Refusal {
    #[allow(clippy::needless_pass_by_value, reason = "numbers and spans, as they come")]
    fn new(quota: Quota, path: impl Into<String>, limit: impl Display, asked: impl Into<String>) -> Self {
        Self { quota, path: path.into(), limit: limit.to_string(), asked: asked.into(), retry_at: None }
    }

    /// The same refusal seen from the document that holds this one at `prefix`.
    #[must_use]
    fn within(self, prefix: &str) -> Self {
        let Problem { path, .. } = Problem::new(self.path, "", "").within(prefix);
        Self { path, ..self }
    }

    /// As a place of a document that is wrong; its code is the quota's name.
    pub fn problem(&self) -> Problem {
        Problem::new(self.path.as_str(), self.quota.as_str(), self.words())
    }

    fn words(&self) -> String {
        format!("{}; the tenant's quota {} is {}", self.asked, self.quota, self.limit)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.problem().fmt(f)
    }
}

const fn some(n: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(n)
}

impl Quotas {
    /// Nothing is limited.
    pub const NONE: Self = Self {
        active_schedules: None,
        runs_per_minute: None,
        payload_bytes: None,
        history_days: None,
        max_retries: None,
        shortest_interval: None,
        best_priority: None,
        dead_letters: true,
        api_requests_per_s: None,
        jobs: None,
        definition_bytes_per_day: None,
        new_lanes_per_day: None,
        calendars: None,
        tokens: None,
        users: None,
        workers: None,
    };

    /// What a tier allows.
    pub const fn of(tier: Tier) -> Self {
        match tier {
            Tier::Free => Self {
                active_schedules: Some(10_000),
                runs_per_minute: some(100),
                payload_bytes: Some(1_000),
                history_days: some(30),
                max_retries: Some(3),
                shortest_interval: Some(Span::secs(60)),
                best_priority: Priority::new(8),
                dead_letters: false,
                api_requests_per_s: some(10),
                jobs: Some(1_000),
                definition_bytes_per_day: Some(100_000_000),
                new_lanes_per_day: some(20),
                calendars: Some(100),
                tokens: Some(100),
                users: Some(20),
                workers: Some(20),
            },
            Tier::Pro => Self {
                active_schedules: Some(100_000),
                runs_per_minute: some(1_000),
                payload_bytes: Some(10_000),
                history_days: some(180),
                max_retries: Some(5),
                shortest_interval: Some(Span::secs(10)),
                best_priority: Priority::new(3),
                dead_letters: true,
                api_requests_per_s: some(100),
                jobs: Some(10_000),
                definition_bytes_per_day: Some(1_000_000_000),
                new_lanes_per_day: some(100),
                calendars: Some(1_000),
                tokens: Some(1_000),
                users: Some(200),
                workers: Some(200),
            },
            Tier::Enterprise => Self {
                active_schedules: Some(1_000_000),
                runs_per_minute: some(10_000),
                payload_bytes: Some(100_000),
                history_days: some(365),
                max_retries: Some(10),
                shortest_interval: Some(Span::secs(1)),
                best_priority: Priority::new(1),
                dead_letters: true,
                api_requests_per_s: some(1_000),
                jobs: Some(100_000),
                definition_bytes_per_day: Some(10_000_000_000),
                new_lanes_per_day: some(1_000),
                calendars: Some(1_000),
                tokens: Some(10_000),
                users: Some(2_000),
                workers: Some(2_000),
            },
            Tier::Unlimited => Self::NONE,
        }
    }

    /// These, with what a tenant or an installation has of its own laid over: null is
    /// without limit.
    pub fn under(mut self, own: &Value) -> Result<Self, Vec<Problem>> {
        let Some(fields) = own.as_object() else {
            return Err(vec![Problem::new("", "bad_type", "quotas must be an object")]);
        };
        let wrong = |(name, value): (&String, &Value)| {
            let (code, why) = self.set(name, value).err()?;
            Some(Problem::new(name.as_str(), code, why))
        };
        let problems: Vec<Problem> = fields.iter().filter_map(wrong).collect();
        if problems.is_empty() { Ok(self) } else { Err(problems) }
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), (&'static str, String)> {
        let quota: Quota = name.parse().map_err(|why| ("unknown_field", why))?;
        let bad = |why: String| ("bad_value", why);
        match quota {
            Quota::ActiveSchedules => self.active_schedules = typed(value).map_err(bad)?,
            Quota::RunsPerMinute => self.runs_per_minute = typed(value).map_err(bad)?,
            Quota::PayloadBytes => {
                self.payload_bytes = typed::<Option<Size>>(value).map_err(bad)?.map(Size::bytes);
            }
            Quota::HistoryDays => self.history_days = typed(value).map_err(bad)?,
            Quota::MaxRetries => self.max_retries = typed(value).map_err(bad)?,
            Quota::ShortestInterval => self.shortest_interval = typed(value).map_err(bad)?,
            Quota::BestPriority => self.best_priority = typed(value).map_err(bad)?,
            Quota::DeadLetters => self.dead_letters = typed::<Option<bool>>(value).map_err(bad)?.unwrap_or(true),
            Quota::ApiRequestsPerSecond => self.api_requests_per_s = typed(value).map_err(bad)?,
            Quota::Jobs => self.jobs = typed(value).map_err(bad)?,
            Quota::DefinitionBytesPerDay => {
                self.definition_bytes_per_day = typed::<Option<Size>>(value).map_err(bad)?.map(Size::bytes);
            }
            Quota::NewLanesPerDay => self.new_lanes_per_day = typed(value).map_err(bad)?,
            Quota::Calendars => self.calendars = typed(value).map_err(bad)?,
            Quota::Tokens => self.tokens = typed(value).map_err(bad)?,
            Quota::Users => self.users = typed(value).map_err(bad)?,
            Quota::Workers => self.workers = typed(value).map_err(bad)?,
        }
        Ok(())
    }

    /// Everything in a job's document that is beyond these, each with its path.
    pub fn document(&self, document: &JobDocument) -> Vec<Refusal> {
        let written = document.priority.and_then(Priority::new);
        let mut refusals: Vec<Refusal> = self.priority(written).into_iter().collect();
        refusals.extend(self.retries(document));
        let dead = document.dead.as_ref().and_then(|_| self.dead_letter_access());
        refusals.extend(dead.map(|refusal| at(refusal, "dead")));
        let default = document.input.as_ref().and_then(|input| input.default.as_ref());
        refusals.extend(default.and_then(|default| self.payload(default)).map(|refusal| at(refusal, "input.default")));
        for (n, schedule) in document.schedules.iter().enumerate() {
            let place = format!("schedules[{n}]");
            let payload = self.payload(&schedule.payload).filter(|_| !schedule.payload.is_null());
            let found = self.interval(schedule).into_iter().chain(payload);
            refusals.extend(found.map(|refusal| refusal.within(&place)));
        }
        refusals
    }

    /// Whether a run may be made with what its maker gave it.
    pub fn run(&self, payload: Option<&Value>, priority: Option<Priority>) -> Option<Refusal> {
        self.priority(priority).or_else(|| payload.and_then(|payload| self.payload(payload)))
    }

    fn priority(&self, written: Option<Priority>) -> Option<Refusal> {
        let (best, written) = (self.best_priority?, written?);
        // A better priority is a smaller number.
        (written < best).then(|| {
            let limit = format!("{} (so {0} to 10)", best.get());
            Refusal::new(Quota::BestPriority, "priority", limit, format!("priority {} is too urgent", written.get()))
        })
    }

    fn retries(&self, document: &JobDocument) -> Vec<Refusal> {
        let Some(max) = self.max_retries else { return Vec::new() };
        let places = document.steps.iter().enumerate().map(|(n, step)| {
            let own = step.retry.as_ref().and_then(|rule| rule.max_attempts).is_some();
            let place = if own { format!("steps[{n}].retry.max_attempts") } else { "retry.max_attempts".to_owned() };
            (place, document.step_policy(step).retry.max_attempts())
        });
        let mut refusals: Vec<Refusal> = Vec::new();
        for (place, attempts) in places.filter(|(_, attempts)| attempts.saturating_sub(1) > max) {
            if refusals.iter().all(|refusal| refusal.path != place) {
                let asked = format!("{attempts} attempts mean {} retries", attempts - 1);
                refusals.push(Refusal::new(Quota::MaxRetries, place, max, asked));
            }
        }
        refusals
    }

    fn payload(&self, payload: &Value) -> Option<Refusal> {
        let max = self.payload_bytes?;
        let bytes = json_bytes(payload);
        (bytes > max)
            .then(|| Refusal::new(Quota::PayloadBytes, "payload", max, format!("the payload has {bytes} bytes")))
    }

    fn interval(&self, schedule: &ScheduleSpec) -> Option<Refusal> {
        let min = self.shortest_interval?;
        let (path, short) = match schedule.kind()? {
            Kind::Cron(text) => {
                let cron = Cron::parse(text, schedule.name.as_bytes()).ok()?;
                ("cron", cron.interval_below(min))
            }
            Kind::Every(span) => ("every", (span < min).then_some(span)),
            Kind::AfterFinish(span) => ("after_finish", (span < min).then_some(span)),
            Kind::At(_) => return None,
        };
        short.map(|span| Refusal::new(Quota::ShortestInterval, path, min, format!("the schedule fires every {span}")))
    }

    /// How many of something a tenant may have.
    pub fn most(&self, what: Held) -> Option<u64> {
        match what {
            Held::ActiveSchedules => self.active_schedules,
            Held::Jobs => self.jobs,
            Held::Tokens => self.tokens,
            Held::Users => self.users,
        }
    }

    /// Whether a tenant that has `held` of something may have `more`.
    pub fn more(&self, what: Held, held: u64, more: u64) -> Option<Refusal> {
        let (quota, path, name) = what.named();
        let max = self.most(what).filter(|max| more > 0 && held.saturating_add(more) > *max)?;
        Some(Refusal::new(quota, path, max, format!("{more} more {name} in addition to {held} are too many")))
    }

    /// The installation's limits, lowered to what the tenant may have.
    pub fn limits(&self, limits: Limits) -> Limits {
        let lowered = |limit: usize, most: Option<u64>| {
            most.map_or(limit, |most| limit.min(usize::try_from(most).unwrap_or(usize::MAX)))
        };
        Limits {
            calendars: lowered(limits.calendars, self.calendars),
            tenant_workers: lowered(limits.tenant_workers, self.workers),
            ..limits
        }
    }

    /// How much of something a day allows.
    pub fn daily(&self, what: Daily) -> Option<Rate> {
        let runs = match what {
            Daily::DefinitionBytes => pieces(self.definition_bytes_per_day?),
            Daily::NewLanes => self.new_lanes_per_day?.get(),
        };
        Some(Rate { runs, per: DAY })
    }

    /// Why a day does not allow it before `retry_at`.
    pub fn over_day(&self, what: Daily, retry_at: Timestamp) -> Option<Refusal> {
        let (quota, limit, asked) = match what {
            Daily::DefinitionBytes => {
                let asked = "too much was saved in a day";
                (Quota::DefinitionBytesPerDay, self.definition_bytes_per_day?, asked)
            }
            Daily::NewLanes => {
                let asked = "too many new combinations of queue, handler and required traits were used in a day";
                (Quota::NewLanesPerDay, u64::from(self.new_lanes_per_day?.get()), asked)
            }
        };
        let limit = format!("{limit}, in bursts of up to {}", limit.saturating_mul(2));
        Some(Refusal { retry_at: Some(retry_at), ..Refusal::new(quota, "", limit, asked) })
    }

    /// Whether dead letters may be seen and made again.
    pub fn dead_letter_access(&self) -> Option<Refusal> {
        let asked = "dead letters can neither be listed nor redriven";
        (!self.dead_letters).then(|| Refusal::new(Quota::DeadLetters, "", false, asked))
    }

    /// How many runs may be made.
    pub fn run_rate(&self) -> Option<Rate> {
        self.runs_per_minute.map(|runs| Rate { runs: runs.get(), per: Span::secs(60) })
    }

    /// Runs were asked for by hand, and the rate has a token only at `retry_at`.
    pub fn over_rate(rate: Rate, retry_at: Timestamp) -> Refusal {
        let limit = format!("{} per minute, in bursts of up to {}", rate.runs, rate.runs.saturating_mul(2));
        let refusal = Refusal::new(Quota::RunsPerMinute, "", limit, "too many runs were created");
        Refusal { retry_at: Some(retry_at), ..refusal }
    }

    /// How many requests its callers may send.
    pub fn api_rate(&self) -> Option<Rate> {
        self.api_requests_per_s.map(|runs| Rate { runs: runs.get(), per: Span::secs(1) })
    }

    /// From when on ended runs are shown.
    pub fn history_from(&self, now: Timestamp) -> Option<Timestamp> {
        self.history_days.map(|days| Span::secs(u64::from(days.get()) * 86_400).before(now))
    }

    /// The best priority its runs may have.
    pub fn best(&self) -> Priority {
        self.best_priority.unwrap_or(Priority::HIGHEST)
    }
}

/// What each tier allows in this installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiers {
    free: Quotas,
    pro: Quotas,
    enterprise: Quotas,
}

impl Default for Tiers {
    fn default() -> Self {
        Self { free: Quotas::of(Tier::Free), pro: Quotas::of(Tier::Pro), enterprise: Quotas::of(Tier::Enterprise) }
    }
}

impl Tiers {
    /// These, with what an installation has of its own for a tier laid over. The
    /// tier without limits stays without.
    pub fn with(mut self, tier: Tier, own: &Value) -> Result<Self, Vec<Problem>> {
        let quotas = match tier {
            Tier::Free => &mut self.free,
            Tier::Pro => &mut self.pro,
            Tier::Enterprise => &mut self.enterprise,
            Tier::Unlimited => return Ok(self),
        };
        *quotas = quotas.clone().under(own)?;
        Ok(self)
    }

    pub fn of(&self, tier: Tier) -> &Quotas {
        match tier {
            Tier::Free => &self.free,
            Tier::Pro => &self.pro,
            Tier::Enterprise => &self.enterprise,
            Tier::Unlimited => &Quotas::NONE,
        }
    }

    /// What a tenant may: its tier's quotas under its own. What is stored and
    /// cannot be read any more leaves the tier's alone.
    pub fn of_tenant(&self, tenant: &Tenant) -> Quotas {
        let tier = self.of(tenant.tier).clone();
        let own = tenant.quotas.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        own.and_then(|own| tier.clone().under(&own).ok()).unwrap_or(tier)
    }
}

fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

fn at(refusal: Refusal, path: &str) -> Refusal {
    Refusal { path: path.to_owned(), ..refusal }
}

/// How many tokens of a day's budget definitions of so many bytes cost.
pub fn pieces(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX).max(1)
}

/// The key of a tenant's bucket of what a day allows.
pub fn daily_bucket(tenant: TenantId, what: Daily) -> String {
    match what {
        Daily::DefinitionBytes => format!("definitions/{tenant}"),
        Daily::NewLanes => format!("lanes/{tenant}"),
    }
}

/// Bytes of a value as JSON, without writing it down.
fn json_bytes(value: &Value) -> u64 {
    struct Counted(u64);
    impl std::io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    // A value always has a JSON form, and counting cannot fail.
    drop(serde_json::to_writer(&mut counted, value));
    counted.0
}

/// The key of a tenant's bucket of runs. No other key begins so: those of jobs
/// begin with a tenant's number.
pub fn run_bucket(tenant: TenantId) -> String {
    format!("quota/{tenant}")
}

/// The key of a tenant's bucket of requests to the API.
pub fn request_bucket(tenant: TenantId) -> String {
    format!("requests/{tenant}")
}

/// That a run waits for its tenant's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    pub until: Timestamp,
    pub runs_per_minute: u32,
}

#[cfg(test)]
mod tests;
