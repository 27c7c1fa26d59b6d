//! What tenants' rates allow to be fired now.

use std::collections::HashMap;

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    fire::{Allowance, PUT_OFF_MAX},
    ids::TenantId,
    rate::{Rate, Taken},
    store::FireItem,
};

use crate::quota::Want;

/// What one batch may make of a tenant's runs.
pub(super) struct Budget {
    rate: Rate,
    /// Tokens that were taken and are not used.
    pub left: u32,
    more_at: Timestamp,
}

impl Budget {
    pub fn allowance(&self) -> Allowance {
        Allowance { per_minute: self.rate.runs, runs: u64::from(self.left), more_at: self.more_at }
    }
}

/// Until when each tenant's rate is promised to instants that were put off.
#[derive(Default)]
pub(super) struct Turns(HashMap<TenantId, Timestamp>);

impl Turns {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A tenant's budget, of the tokens that were taken for it. What is put off has its turn
    /// behind what was put off before.
    pub fn budget(&self, want: &Want, taken: Taken, now: Timestamp) -> Budget {
        let promised = self.0.get(&want.tenant).map(|at| want.rate.after(*at, 1));
        let more_at = within(promised.map_or(taken.next_at, |at| at.max(taken.next_at)), now);
        Budget { rate: want.rate, left: taken.tokens, more_at }
    }

    /// Takes what an item made off its tenant's budget, and gives the turn that
    /// it was put off to away.
    pub fn charge(&mut self, budget: &mut Budget, tenant: TenantId, item: &FireItem, now: Timestamp) {
        budget.left = budget.left.saturating_sub(item.runs.len() as u32);
        let put_off = item.next.is_some_and(|next| next.due_at == budget.more_at);
        if put_off && budget.left == 0 {
            self.0.insert(tenant, budget.more_at);
            budget.more_at = within(budget.rate.after(budget.more_at, 1), now);
        }
    }
}

/// A moment to come that a cursor can be put off to. Stores keep microseconds.
fn within(at: Timestamp, now: Timestamp) -> Timestamp {
    let at = at.clamp(Span::millis(1).after(now), PUT_OFF_MAX.after(now));
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}
