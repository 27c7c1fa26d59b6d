//! Who has had how much, and who is next.

use std::collections::{BTreeSet, HashMap};

use crate::ids::TenantId;

/// Virtual time one run costs a tenant of weight 1.
const COST: u64 = 1 << 20;
/// So many accounts are kept before any is looked at.
const ACCOUNTS_MIN: usize = 1_024;

/// Tenants by what they have had, relative to weight, and the line of those
/// who have something to start.
#[derive(Debug, Default)]
pub struct FairShare {
    /// The virtual time of the last start.
    clock: u64,
    accounts: HashMap<TenantId, Account>,
    /// Those who have something to start, each under its tag.
    line: BTreeSet<(u64, TenantId)>,
    /// With so many accounts it is time to forget.
    accounts_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    /// When, in virtual time, the tenant's next run would start.
    tag: u64,
    weight: u32,
    /// Whether it stands in line.
    stands: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self { tag: 0, weight: 1, stands: false }
    }
}

impl Account {
    fn cost(self) -> u64 {
        COST / u64::from(self.weight)
    }
}

impl FairShare {
    /// Sets a tenant's weight; unknown tenants weigh 1.
    pub fn weigh(&mut self, tenant: TenantId, weight: u32) {
        self.accounts.entry(tenant).or_default().weight = weight.clamp(1, 1_000);
    }

    /// Puts a tenant in line, level with the others if it was away.
    pub(super) fn join(&mut self, tenant: TenantId) {
        let account = self.accounts.entry(tenant).or_default();
        if !account.stands {
            account.stands = true;
            account.tag = account.tag.max(self.clock);
            self.line.insert((account.tag, tenant));
            self.forget_the_level();
        }
    }

    pub(super) fn leave(&mut self, tenant: TenantId) {
        if let Some(account) = self.accounts.get_mut(&tenant)
            && account.stands
        {
            account.stands = false;
            self.line.remove(&(account.tag, tenant));
        }
    }

    /// Whose turn it is.
    pub(super) fn next(&self) -> Option<TenantId> {
        self.line.first().map(|(_, tenant)| *tenant)
    }

    /// Those in line, with the virtual time of their turn.
    pub(super) fn line(&self) -> impl Iterator<Item = (u64, TenantId)> {
        self.line.iter().map(|(tag, tenant)| ((*tag).max(self.clock), *tenant))
    }

    /// What one run costs a tenant.
    pub(super) fn cost(&self, tenant: TenantId) -> u64 {
        self.accounts.get(&tenant).copied().unwrap_or_default().cost()
    }

    /// The tenant started so many runs; it keeps its place in line if it has
    /// one.
    pub(super) fn charge(&mut self, tenant: TenantId, runs: u64) {
        let account = self.accounts.entry(tenant).or_default();
        let before = account.tag;
        self.clock = self.clock.max(before);
        account.tag = self.clock + runs * account.cost();
        if account.stands {
            self.line.remove(&(before, tenant));
            self.line.insert((account.tag, tenant));
        }
    }

    /// A tenant of no special weight whose tag the clock has passed is as good
    /// as new. Looking costs all accounts, so the next look waits until there
    /// are twice as many.
    fn forget_the_level(&mut self) {
        if self.accounts.len() > self.accounts_max.max(ACCOUNTS_MIN) {
            let clock = self.clock;
            self.accounts.retain(|_, account| account.stands || account.weight != 1 || account.tag > clock);
            self.accounts_max = self.accounts.len() * 2;
        }
    }
}
