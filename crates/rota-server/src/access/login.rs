//! Logging in with a password.
//!
//! A guess is made expensive (argon2) and rare: so many per minute from one address
//! for all accounts, for an account from one address, and for an account from
//! everywhere. The address is asked first: one that has used up its own guesses is
//! refused before anything is stored for the name that it sent. Only a few passwords
//! are compared at the same time, so that guesses cannot take the machine from those
//! who work on it. An unknown name takes as long as a wrong password, and is answered
//! the same.
//!
//! What is stored for a guess has a fixed size, whatever the caller sent: a name is
//! counted by its digest. Each kind of bucket has a table of its own, because the
//! fullest buckets of a full table are evicted, and buckets of different rates cannot be
//! compared.

use std::sync::{Arc, OnceLock};

use argon2::{Argon2, PasswordHasher, PasswordVerifier, password_hash::phc::PasswordHash};
use jiff::Timestamp;
use rota_api::problem::Code;
use rota_core::{access::SecretDigest, duration::Span, ids::TenantId, rate::Rate};
use tokio::sync::Semaphore;

use super::{Network, Peer, limit::Buckets, secret};
use crate::problem::Problem;

/// Passwords compared at once; each takes some 20 MB and 20 ms.
const AT_ONCE: usize = 2;
/// Those that may wait for it.
const WAITING_MAX: usize = 32;

/// Bursts are twice as many.
const PER_ACCOUNT_AND_ADDRESS: Rate = Rate { runs: 5, per: Span::secs(60) };
const PER_ADDRESS: Rate = Rate { runs: 30, per: Span::secs(60) };
const PER_ACCOUNT: Rate = Rate { runs: 60, per: Span::secs(60) };

const PASSWORD_MIN: usize = 8;
const PASSWORD_MAX: usize = 1_000;

/// An account that a guess is at. A digest, because the name is the caller's and
/// need not belong to anybody.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Account(TenantId, SecretDigest);

pub struct Passwords {
    by_address: Buckets<Network>,
    by_pair: Buckets<(Account, Option<Network>)>,
    by_account: Buckets<Account>,
    at_once: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self {
            by_address: Buckets::default(),
            by_pair: Buckets::default(),
            by_account: Buckets::default(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }
}

impl Passwords {
    /// Counts a guess, or refuses it.
    pub fn count(&self, tenant: TenantId, user: &str, peer: Option<Peer>, now: Timestamp) -> Result<(), Problem> {
        let account = Account(tenant, SecretDigest::of(&user.to_ascii_lowercase()));
        let network = peer.map(|Peer(address)| Network::of(address));
        let refused = |next_at| super::limit::too_many("too many login attempts; try again later", next_at, now);
        if let Some(network) = network {
            self.by_address.take(network, PER_ADDRESS, now).map_err(refused)?;
        }
        self.by_pair.take((account, network), PER_ACCOUNT_AND_ADDRESS, now).map_err(refused)?;
        self.by_account.take(account, PER_ACCOUNT, now).map_err(refused)
    }

    /// Whether the password is the one of the hash. Without a hash it is not,
    /// after as much work.
    pub async fn is_right(&self, password: String, hash: Option<String>) -> Result<bool, Problem> {
        let known = hash.is_some();
        let right = self.working(move || {
            let hash = hash.unwrap_or_else(|| nobodys_hash().to_owned());
            let right = password.len() <= PASSWORD_MAX
                && Argon2::default().verify_password(password.as_bytes(), hash.as_str()).is_ok();
            Ok(right)
        });
        Ok(right.await? && known)
    }

    /// The hash of a new password.
    pub async fn hash(&self, password: String) -> Result<String, Problem> {
        self.working(move || hash_password(&password)).await
    }

    async fn working<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, Problem> {
        let busy = || Problem::new(Code::TooMany, "too many logins at once; try again in a moment").retry_after(1);
        let place = Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| busy())?;
        let turn = Arc::clone(&self.at_once).acquire_owned().await.map_err(|_| busy())?;
        let working = move || {
            let done = work();
            drop((place, turn));
            done
        };
        match tokio::task::spawn_blocking(working).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(why)) => Err(Problem::bad_parameter("password", why)),
            Err(_) => Err(Problem::new(Code::Internal, "the password could not be checked")),
        }
    }
}

/// The argon2id hash of a password, in PHC form, with a salt of its own.
pub fn hash_password(password: &str) -> Result<String, String> {
    if !(PASSWORD_MIN..=PASSWORD_MAX).contains(&password.len()) {
        return Err(format!("a password must have {PASSWORD_MIN} to {PASSWORD_MAX} bytes"));
    }
    let salt = secret::draw();
    let hash: Result<PasswordHash, _> = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt[..16]);
    hash.map(|hash| hash.to_string()).map_err(|error| format!("the password cannot be hashed: {error}"))
}

/// What a guess at an unknown name is compared with.
fn nobodys_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| hash_password("a password that nobody has").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_760_000_000 + second).unwrap()
    }

    fn from(last: u8) -> Peer {
        Peer(std::net::IpAddr::from([10, 0, 0, last]))
    }

    /// One of many addresses.
    fn number(n: u32) -> Peer {
        Peer(std::net::IpAddr::from((0x0a00_0000 + n).to_be_bytes()))
    }

    #[tokio::test]
    async fn a_password_is_right_for_its_own_hash_only() {
        let passwords = Passwords::default();
        let hash = passwords.hash("correct horse".into()).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert_ne!(passwords.hash("correct horse".into()).await.unwrap(), hash, "each has its salt");
        assert!(passwords.is_right("correct horse".into(), Some(hash.clone())).await.unwrap());
        for (password, hash) in [
            ("correct hors", Some(hash.clone())),
            ("", Some(hash.clone())),
            ("correct horse", None),
            ("a password that nobody has", None),
            ("correct horse", Some(String::new())),
            ("correct horse", Some("$argon2id$nonsense".into())),
        ] {
            assert!(!passwords.is_right(password.into(), hash).await.unwrap(), "{password}");
        }
        assert!(hash_password("short").is_err() && hash_password(&"x".repeat(1_001)).is_err());
    }

    #[test]
    fn guesses_at_an_account_are_few() {
        let passwords = Passwords::default();
        let guess = |user: &str, peer, now| passwords.count(TenantId(1), user, peer, now).is_ok();
        assert_eq!((0..50).filter(|_| guess("ann", Some(from(1)), at(0))).count(), 10);
        assert!(!guess("ANN", Some(from(1)), at(0)), "letters do not make another account");
        assert!(guess("bob", Some(from(1)), at(0)) && guess("ann", Some(from(2)), at(0)), "others are not locked out");
        assert_eq!((0..50).filter(|_| guess("ann", Some(from(1)), at(60))).count(), 5);
    }

    #[test]
    fn guesses_from_many_addresses_or_at_many_accounts_are_bounded_too() {
        let passwords = Passwords::default();
        let many = (0..=255)
            .flat_map(|n| [n, n])
            .filter(|n| passwords.count(TenantId(1), "ann", Some(from(*n)), at(0)).is_ok());
        assert_eq!(many.count(), 120);
        let passwords = Passwords::default();
        let names = (0..500).filter(|n| passwords.count(TenantId(1), &format!("u{n}"), Some(from(1)), at(0)).is_ok());
        assert_eq!(names.count(), 60);
    }

    /// One address sent 10,400 names, and after that nobody could log in.
    #[test]
    fn one_address_cannot_fill_the_tables_with_names() {
        let passwords = Passwords::default();
        for n in 0..20_000 {
            drop(passwords.count(TenantId(1), &format!("u{n}"), Some(from(1)), at(0)));
        }
        assert!(passwords.count(TenantId(1), "ann", Some(from(2)), at(0)).is_ok());
        assert_eq!((passwords.by_pair.len(), passwords.by_account.len()), (61, 61));
    }

    /// Nor can many: whoever is new is let in, and the account that is guessed at keeps
    /// its count.
    #[test]
    fn many_addresses_with_many_names_lock_nobody_out_and_gain_no_guesses() {
        let passwords = Passwords::default();
        let at_ann = (0..200).filter(|n| passwords.count(TenantId(1), "ann", Some(number(*n)), at(0)).is_ok());
        assert_eq!(at_ann.count(), 120);
        for n in 1_000..50_000 {
            assert!(passwords.count(TenantId(1), &format!("u{n}"), Some(number(n)), at(0)).is_ok(), "{n}");
        }
        assert!(passwords.count(TenantId(1), "bob", Some(from(255)), at(0)).is_ok());
        assert!(passwords.count(TenantId(1), "ann", Some(number(300)), at(0)).is_err(), "her bucket was evicted");
    }

    /// Whoever has one IPv6 address has 2^64 of them.
    #[test]
    fn addresses_of_one_ipv6_network_are_counted_as_one() {
        let passwords = Passwords::default();
        let within = |n: u128| Peer(std::net::IpAddr::from((0x2001_0db8_u128 << 96 | n).to_be_bytes()));
        let guessed =
            (0..500).filter(|n| passwords.count(TenantId(1), &format!("u{n}"), Some(within(*n)), at(0)).is_ok());
        assert_eq!(guessed.count(), 60);
        assert!(passwords.count(TenantId(1), "ann", Some(within(1 << 64)), at(0)).is_ok(), "the next network");
    }
}
