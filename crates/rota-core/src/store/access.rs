//! Who may ask: tokens, people, sessions, and what was changed by whom.
//!
//! No secret is ever handed to a store, only digests and password hashes. Each
//! write here is the same however often it is asked for, so none needs a batch:
//! what is made has an id that its maker chose.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Guarded, StoreError};
use crate::{
    access::{Permissions, Role, SecretDigest, Standing, standing},
    ids::{AuditId, TenantId, TokenId, UserId},
};

/// A token for the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: TokenId,
    /// The tenant it speaks for.
    pub tenant: TenantId,
    /// It may speak for every other tenant too.
    pub installation: bool,
    /// What people call it.
    pub name: String,
    pub digest: SecretDigest,
    pub permissions: Permissions,
    pub created_at: Timestamp,
    pub created_by: String,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// To the minute.
    pub last_used_at: Option<Timestamp>,
}

impl Token {
    pub fn standing(&self, now: Timestamp) -> Standing {
        standing(self.expires_at, self.revoked_at, now)
    }
}

/// Tokens are listed by id, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenQuery {
    pub tenant: TenantId,
    pub after: Option<TokenId>,
    pub limit: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPage {
    pub tokens: Vec<Token>,
    pub next: Option<TokenId>,
}

/// A person who logs in with a password. The name is unique in its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub id: UserId,
    pub tenant: TenantId,
    pub name: String,
    pub role: Role,
    /// Has the role in every other tenant too.
    pub installation: bool,
    /// An argon2 hash in PHC form.
    pub password: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Which user the saver means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserWish {
    /// A new one; a name that is taken is stale.
    New,
    /// The one of this id; one that is gone is stale.
    Known,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPut {
    pub id: UserId,
    pub tenant: TenantId,
    pub name: String,
    pub role: Role,
    pub installation: bool,
    /// A new password ends every session of the user.
    pub password: Option<String>,
    pub wish: UserWish,
}

/// Users are listed by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserQuery {
    pub tenant: TenantId,
    pub after: Option<String>,
    pub limit: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPage {
    pub users: Vec<User>,
    pub next: Option<String>,
}

/// A browser that is logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub digest: SecretDigest,
    pub user: UserId,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

/// One change: who made it, where from, and how things were before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub id: AuditId,
    pub at: Timestamp,
    pub tenant: TenantId,
    pub who: String,
    /// Such as `job.save`.
    pub action: String,
    /// Such as `job/12`.
    pub object: String,
    /// JSON.
    pub before: Option<String>,
    /// JSON.
    pub after: Option<String>,
    /// Of the connection that asked.
    pub address: Option<String>,
}

/// Which entries to list, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    pub tenant: TenantId,
    pub who: Option<String>,
    pub action: Option<String>,
    pub object: Option<String>,
    /// From, inclusive.
    pub from: Option<Timestamp>,
    /// To, exclusive.
    pub to: Option<Timestamp>,
    pub after: Option<AuditCursor>,
    pub limit: u32,
}

impl AuditQuery {
    /// Every entry of a tenant.
    pub fn of(tenant: TenantId, limit: u32) -> Self {
        Self { tenant, who: None, action: None, object: None, from: None, to: None, after: None, limit }
    }

    /// Whether an entry is among those asked for, its place apart.
    pub fn wants(&self, entry: &AuditEntry) -> bool {
        let is = |asked: &Option<String>, found: &str| asked.as_deref().is_none_or(|asked| asked == found);
        is(&self.who, &entry.who) && is(&self.action, &entry.action) && is(&self.object, &entry.object)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditCursor {
    pub at: Timestamp,
    pub id: AuditId,
}

/// A page may hold fewer entries than asked for, or none, and still have a next:
/// a look is bounded by the rows it reads, not by those it finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPage {
    pub entries: Vec<AuditEntry>,
    pub next: Option<AuditCursor>,
}

/// API tokens, found by their digests.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Keeps new tokens. One whose id is there already is left as it is.
    async fn put_tokens(&self, tokens: &[Token]) -> Result<(), StoreError>;

    /// Tokens by digest, whatever their standing.
    async fn find_tokens(&self, digests: &[SecretDigest]) -> Result<Vec<Option<Token>>, StoreError>;

    /// Tokens by id.
    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<Option<Token>>, StoreError>;

    async fn list_tokens(&self, query: &TokenQuery) -> Result<TokenPage, StoreError>;

    /// Revokes tokens. One that is unknown or was revoked before is stale.
    async fn revoke_tokens(&self, ids: &[TokenId], now: Timestamp) -> Result<Vec<Guarded>, StoreError>;

    /// Writes down when tokens were used. An earlier use than the known one
    /// changes nothing.
    async fn touch_tokens(&self, uses: &[(TokenId, Timestamp)]) -> Result<(), StoreError>;
}

/// People who log in.
#[async_trait]
pub trait UserStore: Send + Sync {
    /// Saves people. A new one asked for again under the same id is applied.
    async fn put_users(&self, users: &[UserPut], now: Timestamp) -> Result<Vec<Guarded>, StoreError>;

    /// People by tenant and name.
    async fn users(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<User>>, StoreError>;

    async fn list_users(&self, query: &UserQuery) -> Result<UserPage, StoreError>;

    /// Deletes people with their sessions. One that is not there is stale.
    async fn delete_users(&self, ids: &[UserId]) -> Result<Vec<Guarded>, StoreError>;
}

/// Logins of people.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Keeps sessions. One whose person is gone, or was changed after the session
    /// began, is stale: a password that was just changed lets nobody in.
    async fn put_sessions(&self, sessions: &[Session]) -> Result<Vec<Guarded>, StoreError>;

    /// Sessions by digest with whose they are, as that person is now. Expired
    /// ones are found until upkeep takes them.
    async fn find_sessions(&self, digests: &[SecretDigest]) -> Result<Vec<Option<(Session, User)>>, StoreError>;

    async fn delete_sessions(&self, digests: &[SecretDigest]) -> Result<(), StoreError>;
}

/// What was changed by whom.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Adds to the audit log. An entry whose id is there already is left as it
    /// is.
    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError>;

    async fn list_audit(&self, query: &AuditQuery) -> Result<AuditPage, StoreError>;
}
