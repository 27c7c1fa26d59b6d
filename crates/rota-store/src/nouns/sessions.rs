//! Logins of people.

use async_trait::async_trait;
use const_format::formatcp;
use rota_core::{
    access::SecretDigest,
    store::{Guarded, Session, SessionStore, StoreError, User},
};

use super::{
    tokens::digest,
    users::{PERSON, user},
};
use crate::engine::{Engine, Row, SqlStore, Way, applied, values};

/// On PostgreSQL the lock keeps a person from going, or from changing the password, between
/// the look and the session.
const SQLITE: &str = "INSERT INTO session (digest, person, created_at, expires_at) \
     SELECT $1, id, $3, $4 FROM person WHERE id = $2 AND updated_at <= $3 \
     ON CONFLICT (digest) DO UPDATE SET expires_at = excluded.expires_at WHERE person = excluded.person RETURNING 1";
const POSTGRES: &str = "WITH p AS (SELECT id FROM person WHERE id = $2 AND updated_at <= $3 FOR SHARE) \
     INSERT INTO session AS s (digest, person, created_at, expires_at) SELECT $1, id, $3, $4 FROM p \
     ON CONFLICT (digest) DO UPDATE SET expires_at = excluded.expires_at WHERE s.person = excluded.person RETURNING 1";

#[async_trait]
impl<E: Engine> SessionStore for SqlStore<E> {
    async fn put_sessions(&self, sessions: &[Session]) -> Result<Vec<Guarded>, StoreError> {
        let row = |session: &Session| {
            let Session { digest, user, created_at, expires_at } = *session;
            values![digest, user, created_at, expires_at]
        };
        let sql = E::DIALECT.either(SQLITE, POSTGRES);
        let answers = self.change_each(Way::Work, "keep sessions", sql, sessions.iter().map(row).collect()).await?;
        Ok(applied(&answers))
    }

    async fn find_sessions(&self, digests: &[SecretDigest]) -> Result<Vec<Option<(Session, User)>>, StoreError> {
        let sql = formatcp!(
            "SELECT {PERSON}, s.digest, s.created_at, s.expires_at FROM session s JOIN person p ON p.id = s.person \
             WHERE s.digest = $1"
        );
        let keys = digests.iter().map(|digest| values![*digest]).collect();
        let mut found = Vec::with_capacity(digests.len());
        for rows in self.find_each("find sessions", sql, keys).await? {
            let Some(row) = rows.first() else {
                found.push(None);
                continue;
            };
            // Named by its person: the digest is nobody's business.
            let key = format!("{}/{}", row.uuid(0)?, row.shown(9));
            found.push(self.readable("session", key, session(row)));
        }
        Ok(found)
    }

    async fn delete_sessions(&self, digests: &[SecretDigest]) -> Result<(), StoreError> {
        let rows = digests.iter().map(|digest| values![*digest]).collect();
        self.change_each(Way::Work, "end sessions", "DELETE FROM session WHERE digest = $1", rows).await.map(drop)
    }
}

fn session(row: &Row) -> Result<(Session, User), StoreError> {
    let user = user(row)?;
    let (created_at, expires_at) = (row.time(9)?, row.time(10)?);
    Ok((Session { digest: digest(row, 8)?, user: user.id, created_at, expires_at }, user))
}
