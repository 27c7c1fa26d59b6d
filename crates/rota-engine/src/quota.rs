//! Quotas of runs, requests and schedules, counted for all nodes together.
//!
//! A tenant's rate of runs is one bucket in the store, and so is its rate of
//! requests to the API. A node takes tokens from it in chunks (a second's worth of
//! runs, a quarter of a second's of requests) and spends what is left over from
//! memory, so that a busy tenant is no hot row and many nodes allow no more than
//! one. A chunk that is lost with its node costs its tenant as much of its rate.
//! Until when there is nothing left is remembered too: callers that are refused
//! cost the store nothing.
//!
//! How many jobs, schedules, tokens and users a tenant has is counted in the store at most
//! once a minute, and before anything is refused; in between a node adds what it saves
//! itself. Several nodes that save for one tenant at once may together go over the limit
//! by what they save within that minute.
//!
//! What a day allows is a bucket too. A request that finds a token in it takes all that it
//! needs, so that the last one may go beyond it, and the next waits for that much longer.
//!
//! What is allowed is decided in [`rota_core::quota`]. Nothing here is asked for a
//! tenant without limits.

use std::collections::HashMap;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rota_core::{
    duration::Span,
    ids::TenantId,
    quota::{Daily, Delay, Held, Quotas, Refusal, daily_bucket, request_bucket, run_bucket},
    rate::{Rate, Taken},
    run::NewRun,
    store::{StoreError, TokenAsk, Write},
};

use crate::{making::Made, node::Node};

/// So often at most does a node ask for tokens of a tenant's requests. Seldom enough
/// for the store, and little enough at once for the other nodes to get theirs.
const REQUEST_CHUNKS_PER_S: u32 = 4;
/// What is in hand and was not spent is given up after this long.
const TOKENS_KEPT: Span = Span::secs(60);
/// How long a count is believed.
const COUNT_KEPT: Span = Span::secs(60);

/// What a node holds of its tenants' quotas.
#[derive(Debug, Default)]
pub struct Meter {
    runs: Chunks,
    requests: Chunks,
    counts: Mutex<HashMap<(TenantId, Held), Counted>>,
}

/// Tokens in hand, by tenant.
#[derive(Debug, Default)]
struct Chunks(Mutex<HashMap<TenantId, Chunk>>);

#[derive(Clone, Copy, Debug)]
struct Chunk {
    tokens: u32,
    until: Timestamp,
    /// The store has none before this.
    none_before: Timestamp,
}

impl Chunks {
    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, Chunk>> {
        self.0.lock()
    }

    /// Takes up to `most` of what is in hand.
    fn spend(&self, tenant: TenantId, most: u32, now: Timestamp) -> u32 {
        let mut chunks = self.lock();
        let Some(chunk) = chunks.get_mut(&tenant).filter(|chunk| now < chunk.until) else { return 0 };
        let spent = chunk.tokens.min(most);
        chunk.tokens -= spent;
        spent
    }

    /// Keeps tokens that were taken and not used, and that the store has no more
    /// before `none_before`.
    fn keep(&self, tenant: TenantId, tokens: u32, none_before: Timestamp, now: Timestamp) {
        let mut chunks = self.lock();
        let left = chunks.get(&tenant).filter(|chunk| now < chunk.until).map_or(0, |chunk| chunk.tokens);
        let tokens = left.saturating_add(tokens);
        chunks.insert(tenant, Chunk { tokens, until: TOKENS_KEPT.after(now), none_before });
    }

    /// Before when it is in vain to ask the store.
    fn none_before(&self, tenant: TenantId) -> Option<Timestamp> {
        self.lock().get(&tenant).map(|chunk| chunk.none_before)
    }
}

/// What is remembered of a tenant does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NotCounted;

/// How many a tenant had, and has by what was saved here since.
#[derive(Clone, Copy, Debug)]
struct Counted {
    held: u64,
    until: Timestamp,
}

/// Somebody wants so many more, or in a dry run to know whether they may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct More {
    pub what: Held,
    pub count: u64,
    pub now: Timestamp,
    pub dry_run: bool,
}

/// Somebody wants runs of a tenant that has a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub tenant: TenantId,
    pub rate: Rate,
    pub runs: u32,
}

impl Meter {
    fn counts(&self) -> MutexGuard<'_, HashMap<(TenantId, Held), Counted>> {
        self.counts.lock()
    }

    /// The clock was set: what was learnt by the old one is learnt anew. Tokens in
    /// hand go with it, which costs rate, never more.
    pub(crate) fn stepped(&self) {
        self.runs.lock().clear();
        self.requests.lock().clear();
        self.counts().clear();
    }

    /// Keeps tokens of runs that were taken and not used.
    pub(crate) fn give_back(&self, tenant: TenantId, tokens: u32, now: Timestamp) {
        if tokens > 0 {
            self.runs.keep(tenant, tokens, now, now);
        }
    }

    /// Counts so many more, if what is remembered of the tenant says that it may have
    /// them. An error where nothing is remembered, or it is too old.
    fn add(&self, tenant: TenantId, quotas: &Quotas, more: More) -> Result<Option<Refusal>, NotCounted> {
        let mut counts = self.counts();
        let counted = counts.get_mut(&(tenant, more.what)).filter(|counted| more.now < counted.until);
        let counted = counted.ok_or(NotCounted)?;
        let refused = quotas.more(more.what, counted.held, more.count);
        if refused.is_none() && !more.dry_run {
            counted.held = counted.held.saturating_add(more.count);
        }
        Ok(refused)
    }
}

/// So many at least are taken at once: a second's worth.
fn chunk(rate: Rate) -> u32 {
    let seconds = (rate.per.as_millis() / 1_000).max(1);
    (u64::from(rate.runs) / seconds).clamp(1, u64::from(u32::MAX)) as u32
}

/// Takes tokens for runs that are to be made now. Fewer than were wanted tell
/// when there will be another.
pub(crate) async fn take(node: &Node, wants: &[Want], now: Timestamp) -> Result<Vec<Taken>, StoreError> {
    let in_hand: Vec<u32> = wants.iter().map(|want| node.meter.runs.spend(want.tenant, want.runs, now)).collect();
    let short: Vec<usize> = (0..wants.len()).filter(|n| in_hand[*n] < wants[*n].runs).collect();
    let mut taken: Vec<Taken> = in_hand.into_iter().map(|tokens| Taken { tokens, next_at: now }).collect();
    if short.is_empty() {
        return Ok(taken);
    }
    let ask = |n: &usize| {
        let Want { tenant, rate, runs } = wants[*n];
        let want = (runs - taken[*n].tokens).max(chunk(rate));
        TokenAsk { key: run_bucket(tenant), rate, want, ahead: false }
    };
    let asks: Vec<TokenAsk> = short.iter().map(ask).collect();
    for (n, given) in short.into_iter().zip(node.store.take_tokens(&asks, now).await?) {
        let used = given.tokens.min(wants[n].runs - taken[n].tokens);
        taken[n] = Taken { tokens: taken[n].tokens + used, next_at: given.next_at };
        node.meter.give_back(wants[n].tenant, given.tokens - used, now);
    }
    Ok(taken)
}

/// Takes a token for one request of a tenant's callers, or says when there will be
/// one.
pub(crate) async fn take_request(
    node: &Node,
    tenant: TenantId,
    rate: Rate,
    now: Timestamp,
) -> Result<Result<(), Timestamp>, StoreError> {
    let requests = &node.meter.requests;
    if requests.spend(tenant, 1, now) == 1 {
        return Ok(Ok(()));
    }
    if let Some(at) = requests.none_before(tenant).filter(|at| now < *at) {
        return Ok(Err(at));
    }
    let want = (rate.runs / REQUEST_CHUNKS_PER_S).max(1);
    let ask = TokenAsk { key: request_bucket(tenant), rate, want, ahead: false };
    let taken = node.store.take_tokens(&[ask], now).await?;
    let Some(given) = taken.first() else { return Ok(Ok(())) };
    if let Some(left) = given.tokens.checked_sub(1) {
        requests.keep(tenant, left, now, now);
        return Ok(Ok(()));
    }
    requests.keep(tenant, 0, given.next_at, now);
    Ok(Err(given.next_at))
}

/// The tenants among these runs that have a rate, each with its number of runs.
fn wants<'a>(node: &Node, runs: impl Iterator<Item = &'a NewRun>) -> Vec<Want> {
    let mut counts: HashMap<TenantId, u32> = HashMap::new();
    for run in runs {
        *counts.entry(run.tenant).or_default() += 1;
    }
    let quotas = node.catalog.quotas_of(counts.keys().copied());
    let rated = quotas.iter().filter_map(|(tenant, quotas)| Some((*tenant, quotas.run_rate()?)));
    rated.map(|(tenant, rate)| Want { tenant, rate, runs: counts.get(&tenant).copied().unwrap_or(0) }).collect()
}

/// Refuses what its tenant's rate does not allow now: somebody waits for the
/// answer, and is told when to come back.
pub(crate) async fn refuse_over_rate(
    node: &Node,
    planned: &mut [Result<NewRun, Made>],
    now: Timestamp,
) -> Result<(), StoreError> {
    if !node.catalog.is_limited() {
        return Ok(());
    }
    let wants = wants(node, planned.iter().filter_map(|one| one.as_ref().ok()));
    for (want, mut taken) in wants.iter().zip(take(node, &wants, now).await?) {
        let ours = planned.iter_mut().filter(|one| matches!(one, Ok(run) if run.tenant == want.tenant));
        for one in ours {
            match taken.tokens.checked_sub(1) {
                Some(left) => taken.tokens = left,
                None => *one = Err(Made::OverQuota(Quotas::over_rate(want.rate, taken.next_at))),
            }
        }
    }
    Ok(())
}

/// Gives back the tokens of runs that are not made after all.
pub(crate) fn give_back<'a>(node: &Node, runs: impl Iterator<Item = &'a NewRun>, now: Timestamp) {
    for want in wants(node, runs) {
        node.meter.give_back(want.tenant, want.runs, now);
    }
}

/// Makes later what its tenant's rate does not allow now: nobody waits for an
/// answer, and over quota means later, not lost. The tokens are taken ahead.
pub(crate) async fn delay_over_rate(node: &Node, runs: Vec<&mut NewRun>, now: Timestamp) -> Result<(), StoreError> {
    if !node.catalog.is_limited() {
        return Ok(());
    }
    let wants = wants(node, runs.iter().map(|run| &**run));
    if wants.is_empty() {
        return Ok(());
    }
    let ask = |want: &Want| TokenAsk { key: run_bucket(want.tenant), rate: want.rate, want: want.runs, ahead: true };
    let asks: Vec<TokenAsk> = wants.iter().map(ask).collect();
    let taken = node.store.take_tokens(&asks, now).await?;
    let mut next: HashMap<TenantId, (Rate, Timestamp)> =
        wants.iter().zip(taken).map(|(want, taken)| (want.tenant, (want.rate, taken.next_at))).collect();
    for run in runs {
        let Some((rate, at)) = next.get_mut(&run.tenant) else { continue };
        delay(run, *rate, *at, now);
        *at = rate.after(*at, 1);
    }
    Ok(())
}

/// Makes a run no earlier than its token is there.
fn delay(run: &mut NewRun, rate: Rate, token_at: Timestamp, now: Timestamp) {
    let was = run.ready_at.max(now);
    // Stores keep microseconds.
    let until = Timestamp::from_microsecond(token_at.as_microsecond()).unwrap_or(token_at);
    if until <= was {
        return;
    }
    run.ready_at = until;
    // It waits for a worker from then on.
    run.expires_at = run.expires_at.map(|at| at.saturating_add(was.duration_until(until)).unwrap_or(Timestamp::MAX));
    run.trigger.delay = Some(Delay { until, runs_per_minute: rate.runs });
}

/// Why a tenant may not have so many more. What is allowed counts from then on.
pub(crate) async fn more(
    node: &Node,
    tenant: TenantId,
    quotas: &Quotas,
    more: More,
) -> Result<Option<Refusal>, StoreError> {
    let Some(max) = quotas.most(more.what).filter(|_| more.count > 0) else { return Ok(None) };
    if let Ok(None) = node.meter.add(tenant, quotas, more) {
        return Ok(None);
    }
    let held = node.store.count_held(tenant, more.what, max.saturating_add(1), more.now).await?;
    node.meter.counts().insert((tenant, more.what), Counted { held, until: COUNT_KEPT.after(more.now) });
    Ok(node.meter.add(tenant, quotas, more).unwrap_or_default())
}

/// Why a tenant may not have so much more of what a day allows; takes it where it may. A
/// dry run takes nothing.
pub(crate) async fn daily(
    node: &Node,
    tenant: TenantId,
    quotas: &Quotas,
    (what, cost): (Daily, u32),
    write: &Write,
) -> Result<Option<Refusal>, StoreError> {
    let Some(rate) = quotas.daily(what).filter(|_| cost > 0) else { return Ok(None) };
    let ask = |want, ahead| TokenAsk { key: daily_bucket(tenant, what), rate, want, ahead };
    let first = u32::from(!write.dry_run);
    let taken = node.store.take_tokens(&[ask(first, false)], write.now).await?;
    if let Some(taken) = taken.first()
        && (taken.tokens < first || (write.dry_run && taken.next_at > write.now))
    {
        return Ok(quotas.over_day(what, taken.next_at));
    }
    if !write.dry_run && cost > 1 {
        node.store.take_tokens(&[ask(cost - 1, true)], write.now).await?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_760_000_000 + seconds).unwrap_or_default()
    }

    #[test]
    fn tokens_in_hand_are_spent_once_and_not_kept_for_ever() {
        let (meter, tenant) = (Meter::default(), TenantId(1));
        meter.give_back(tenant, 3, at(0));
        assert_eq!(meter.runs.spend(tenant, 2, at(1)), 2);
        assert_eq!(meter.runs.spend(tenant, 2, at(2)), 1);
        assert_eq!(meter.runs.spend(tenant, 2, at(2)), 0);
        meter.give_back(tenant, 3, at(3));
        assert_eq!(meter.runs.spend(tenant, 3, at(63)), 0, "what was not spent for a minute is given up");
    }

    /// A node that saves much must not wait for the next count to see its limit.
    #[test]
    fn schedules_that_are_saved_here_count_at_once() {
        let (meter, tenant) = (Meter::default(), TenantId(1));
        let quotas = Quotas { active_schedules: Some(10), ..Quotas::NONE };
        let what = Held::ActiveSchedules;
        let more = |count, now| More { what, count, now, dry_run: false };
        assert_eq!(meter.add(tenant, &quotas, more(1, at(0))), Err(NotCounted));
        meter.counts().insert((tenant, what), Counted { held: 8, until: at(60) });
        assert_eq!(meter.add(tenant, &quotas, More { what: Held::Jobs, ..more(1, at(0)) }), Err(NotCounted));
        let asked = More { dry_run: true, ..more(2, at(0)) };
        assert_eq!(meter.add(tenant, &quotas, asked), Ok(None), "a question takes nothing");
        assert_eq!(meter.add(tenant, &quotas, more(2, at(0))), Ok(None));
        assert!(matches!(meter.add(tenant, &quotas, more(1, at(0))), Ok(Some(_))));
        assert_eq!(meter.add(tenant, &quotas, more(1, at(60))), Err(NotCounted), "the count is too old");
    }
}
