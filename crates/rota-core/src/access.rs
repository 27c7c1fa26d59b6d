//! Access: who may do what, and what is kept of the secrets that prove it.
//!
//! A caller has permissions in a tenant. People get them by a [`Role`], tokens by
//! a list that can be any subset of what their maker has. A secret (of a token or
//! of a session) is 32 random bytes; the store is given only their digest, so
//! that whoever reads the store can log in as nobody. The digest is what a secret
//! is found by: comparing is a look into an index, whose time tells nothing of a
//! secret because nobody can choose digests.
//!
//! Expiry and revocation are decided here, with `now` as an argument. What is not
//! here: passwords and signatures, which need code that is not ours to write.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{choice::choices, duration::Span, ids::reads_as_number};

choices! {
    /// One thing that a caller may do in a tenant.
    Permission {
        JobRead = "job:read",
        JobWrite = "job:write",
        /// Trigger, pause, resume, backfill.
        JobExecute = "job:execute",
        JobDelete = "job:delete",
        RunRead = "run:read",
        /// Cancel, retry, redrive, discard.
        RunCancel = "run:cancel",
        SecretWrite = "secret:write",
        /// Tokens, users and the audit log; includes all the others.
        Admin = "admin",
    }
}

choices! {
    /// What a person is in a tenant.
    Role {
        /// Looks.
        Viewer = "viewer",
        /// Runs and stops what there is.
        Operator = "operator",
        /// Changes what there is.
        Editor = "editor",
        /// Says who may.
        Admin = "admin",
    }
}

impl Role {
    pub fn permissions(self) -> Permissions {
        use Permission as P;
        let own: &[P] = match self {
            Self::Viewer => &[P::JobRead, P::RunRead],
            Self::Operator => &[P::JobExecute, P::RunCancel],
            Self::Editor => &[P::JobWrite, P::JobDelete, P::SecretWrite],
            Self::Admin => &[P::Admin],
        };
        let below = match self {
            Self::Viewer => Permissions::default(),
            Self::Operator => Self::Viewer.permissions(),
            Self::Editor => Self::Operator.permissions(),
            Self::Admin => Self::Editor.permissions(),
        };
        below.and(own.iter().copied().collect())
    }
}

/// A set of permissions. One that holds `admin` holds them all.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Permission>", into = "Vec<Permission>")]
pub struct Permissions(u8);

impl Permissions {
    const fn bit(permission: Permission) -> u8 {
        1 << permission as u8
    }

    pub fn holds(self, permission: Permission) -> bool {
        self.0 & (Self::bit(permission) | Self::bit(Permission::Admin)) != 0
    }

    /// Whether whoever has these may hand out `others`.
    pub fn covers(self, others: Self) -> bool {
        others.list().into_iter().all(|permission| self.holds(permission))
    }

    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that were given, in the order of their declaration.
    pub fn list(self) -> Vec<Permission> {
        Permission::ALL.into_iter().filter(|permission| self.0 & Self::bit(*permission) != 0).collect()
    }
}

impl FromIterator<Permission> for Permissions {
    fn from_iter<I: IntoIterator<Item = Permission>>(permissions: I) -> Self {
        Self(permissions.into_iter().map(Self::bit).fold(0, |all, one| all | one))
    }
}

impl From<Vec<Permission>> for Permissions {
    fn from(permissions: Vec<Permission>) -> Self {
        permissions.into_iter().collect()
    }
}

impl From<Permissions> for Vec<Permission> {
    fn from(permissions: Permissions) -> Self {
        permissions.list()
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.list().iter().map(|permission| permission.as_str())).finish()
    }
}

/// What a secret is for. Its prefix says so, to people and to programs that look
/// for leaked secrets, and one kind is never taken for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    Token,
    Session,
}

impl SecretKind {
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Token => "rota_",
            Self::Session => "rota_session_",
        }
    }
}

/// Digits that survive URLs, shells and a double click.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// As many digits as 32 bytes need.
const SECRET_DIGITS: usize = 43;

/// A secret in clear. It is shown to its owner once and printed nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// `bytes` come from the system's source of randomness.
    pub fn new(kind: SecretKind, mut bytes: [u8; 32]) -> Self {
        let mut digits = [b'0'; SECRET_DIGITS];
        for digit in digits.iter_mut().rev() {
            let mut rest = 0_u32;
            for byte in &mut bytes {
                let value = rest * 256 + u32::from(*byte);
                *byte = (value / 62) as u8;
                rest = value % 62;
            }
            *digit = DIGITS[rest as usize];
        }
        Self(format!("{}{}", kind.prefix(), String::from_utf8_lossy(&digits)))
    }

    /// A text that has the form of a secret of this kind.
    pub fn parse(kind: SecretKind, text: &str) -> Option<Self> {
        let digits = text.strip_prefix(kind.prefix())?;
        let good = digits.len() == SECRET_DIGITS && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        good.then(|| Self(text.to_owned()))
    }

    /// For its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn digest(&self) -> SecretDigest {
        SecretDigest::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// What is kept of a secret: its SHA-256. The secret has 256 bits of its own, so
/// it needs neither salt nor slowness.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretDigest(pub [u8; 32]);

impl SecretDigest {
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretDigest(…)")
    }
}

/// Whether a token or a session still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Good,
    Expired,
    Revoked,
}

/// A secret ends at its instant, not after it; one that was revoked never comes
/// back, whatever a clock says.
pub fn standing(expires_at: Option<Timestamp>, revoked_at: Option<Timestamp>, now: Timestamp) -> Standing {
    if revoked_at.is_some() {
        Standing::Revoked
    } else if expires_at.is_some_and(|at| at <= now) {
        Standing::Expired
    } else {
        Standing::Good
    }
}

/// When a token was last used is kept to this: nobody needs it finer, and every
/// request would be a write.
pub const LAST_USED_GRAIN: Span = Span::secs(60);

/// Whether a use at `now` is worth writing down.
pub fn is_use_news(last_used_at: Option<Timestamp>, now: Timestamp) -> bool {
    last_used_at.is_none_or(|last| LAST_USED_GRAIN.after(last) <= now)
}

/// Bytes of one side of an audit entry.
pub const AUDIT_JSON_MAX: usize = 64 << 10;

/// What was, or is, as an audit entry keeps it: whole up to a bound, and beyond
/// that as its size and digest, by which a copy can be recognised.
pub fn audited(json: String) -> String {
    if json.len() <= AUDIT_JSON_MAX {
        return json;
    }
    let digest = hex(Sha256::digest(json.as_bytes()).into());
    format!("{{\"too_large\":true,\"bytes\":{},\"sha256\":\"{digest}\"}}", json.len())
}

/// 32 bytes in hexadecimal digits.
fn hex(bytes: [u8; 32]) -> String {
    let half = |from: usize| u128::from_be_bytes(std::array::from_fn(|n| bytes[from + n]));
    format!("{:032x}{:032x}", half(0), half(16))
}

/// Names of tenants, users and tokens: plain, short, and no number, so that an id
/// is never taken for one.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@' | '+');
    if name.is_empty() || name.len() > 100 {
        Err("a name must have 1 to 100 characters")
    } else if !name.chars().all(plain) {
        Err("a name may contain only letters, digits and . _ - @ +")
    } else if reads_as_number(name) {
        Err("a name must not read as a number; add a letter")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_760_000_000 + second).unwrap()
    }

    /// A permission that slips into a role is a hole that nobody sees.
    #[test]
    fn each_role_has_what_the_table_says() {
        for (role, given) in [
            (Role::Viewer, "job:read run:read"),
            (Role::Operator, "job:read job:execute run:read run:cancel"),
            (Role::Editor, "job:read job:write job:execute job:delete run:read run:cancel secret:write"),
            (Role::Admin, "job:read job:write job:execute job:delete run:read run:cancel secret:write admin"),
        ] {
            let names: Vec<_> = role.permissions().list().iter().map(|one| one.as_str()).collect();
            assert_eq!(names.join(" "), given, "{role}");
            for permission in Permission::ALL {
                let expected = given.split(' ').any(|name| name == permission.as_str());
                assert_eq!(role.permissions().holds(permission), expected, "{role} {permission}");
            }
        }
    }

    #[test]
    fn admin_alone_is_everything_and_nothing_else_is() {
        let admin: Permissions = [Permission::Admin].into_iter().collect();
        assert!(Permission::ALL.into_iter().all(|one| admin.holds(one)));
        for permission in Permission::ALL.into_iter().filter(|one| *one != Permission::Admin) {
            let alone: Permissions = [permission].into_iter().collect();
            assert_eq!(Permission::ALL.into_iter().filter(|one| alone.holds(*one)).count(), 1);
            assert!(!alone.covers(admin) && admin.covers(alone) && alone.covers(alone));
        }
        assert!(Permissions::default().is_empty() && admin.covers(Permissions::default()));
    }

    /// Whoever makes a token may give away no more than they have.
    #[test]
    fn a_role_covers_those_below_it_and_none_above() {
        for (n, upper) in Role::ALL.into_iter().enumerate() {
            for (m, lower) in Role::ALL.into_iter().enumerate() {
                assert_eq!(upper.permissions().covers(lower.permissions()), n >= m, "{upper} {lower}");
            }
        }
    }

    #[test]
    fn a_secret_has_its_form_and_all_its_bits() {
        let secret = |byte: u8| Secret::new(SecretKind::Token, [byte; 32]);
        assert_eq!(secret(0).expose(), format!("rota_{}", "0".repeat(43)));
        let mut seen = std::collections::BTreeSet::new();
        for bit in 0..256 {
            let mut bytes = [0; 32];
            bytes[bit / 8] = 1 << (bit % 8);
            let secret = Secret::new(SecretKind::Token, bytes);
            assert_eq!(secret.expose().len(), 48);
            assert_eq!(Secret::parse(SecretKind::Token, secret.expose()), Some(secret.clone()));
            assert!(seen.insert(secret.expose().to_owned()), "bit {bit} is lost");
        }
    }

    /// A session's cookie must not pass as a token, nor the other way round.
    #[test]
    fn kinds_are_not_taken_for_each_other() {
        let (token, session) = (Secret::new(SecretKind::Token, [7; 32]), Secret::new(SecretKind::Session, [7; 32]));
        assert_eq!(Secret::parse(SecretKind::Session, token.expose()), None);
        assert_eq!(Secret::parse(SecretKind::Token, session.expose()), None);
        assert_ne!(token.digest(), session.digest());
        for text in ["", "rota_", "rota_x", &"a".repeat(48), &format!("rota_{}", "é".repeat(21)), "rota_'; DROP TABLE"]
        {
            assert_eq!(Secret::parse(SecretKind::Token, text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::new(SecretKind::Token, [9; 32]);
        let shown = format!("{secret:?} {:?}", secret.digest());
        assert!(!shown.contains(&secret.expose()[5..]), "{shown}");
    }

    #[test]
    fn a_secret_ends_at_its_instant_and_a_revoked_one_at_once() {
        for (expires, revoked, expected) in [
            (None, None, Standing::Good),
            (Some(1), None, Standing::Good),
            (Some(0), None, Standing::Expired),
            (Some(-1), None, Standing::Expired),
            (None, Some(-1), Standing::Revoked),
            // Revoked by a node whose clock is ahead.
            (Some(9), Some(5), Standing::Revoked),
        ] {
            assert_eq!(standing(expires.map(at), revoked.map(at), at(0)), expected, "{expires:?} {revoked:?}");
        }
    }

    #[test]
    fn a_use_is_news_once_a_minute() {
        assert!(is_use_news(None, at(0)) && is_use_news(Some(at(0)), at(60)));
        assert!(!is_use_news(Some(at(0)), at(59)) && !is_use_news(Some(at(100)), at(0)));
    }

    #[test]
    fn an_audited_value_is_bounded_and_stays_json() {
        assert_eq!(audited("{\"a\":1}".into()), "{\"a\":1}");
        let large = audited(format!("\"{}\"", "x".repeat(AUDIT_JSON_MAX)));
        assert!(large.len() < 200);
        let large: serde_json::Value = serde_json::from_str(&large).unwrap();
        assert_eq!(large["bytes"], AUDIT_JSON_MAX + 2);
        assert_eq!(hex(Sha256::digest(b"").into()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn names_are_plain() {
        for (name, fine) in [
            ("ann", true),
            ("ann.b+ci@example.org", true),
            ("42", false),
            ("+1", false),
            ("-1", false),
            ("+", true),
            ("a42", true),
            ("", false),
            ("a b", false),
            ("a/b", false),
            ("é", false),
            ("a\n", false),
        ] {
            assert_eq!(check_name(name).is_ok(), fine, "{name:?}");
        }
        assert!(check_name(&"a".repeat(100)).is_ok() && check_name(&"a".repeat(101)).is_err());
    }
}
