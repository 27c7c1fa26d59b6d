//! Tokens, people, sessions and the audit log.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use rota_core::{
    access::SecretDigest,
    ids::{AuditId, TenantId, TokenId, UserId},
    store::{
        AccessStore, AuditCursor, AuditEntry, AuditPage, AuditQuery, Guarded, Session, StoreError, Token, TokenPage,
        TokenQuery, User, UserPage, UserPut, UserQuery, UserWish,
    },
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::Fault,
    tx::{Param, Tx},
};
use crate::{
    codec::{corrupt, from_json, micros, time, time_opt, to_json},
    filter::{LOOK_MAX, PAGE_MAX},
};

#[async_trait]
impl AccessStore for PostgresStore {
    async fn put_tokens(&self, tokens: &[Token]) -> Result<(), StoreError> {
        tried!("keep tokens", self.keep_tokens(tokens))
    }

    async fn find_tokens(&self, digests: &[SecretDigest]) -> Result<Vec<Option<Token>>, StoreError> {
        tried!("find tokens", self.tokens_by_digest(digests))
    }

    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<Option<Token>>, StoreError> {
        tried!("read tokens", self.tokens_by_id(ids))
    }

    async fn list_tokens(&self, query: &TokenQuery) -> Result<TokenPage, StoreError> {
        tried!("list tokens", self.page_of_tokens(query))
    }

    async fn revoke_tokens(&self, ids: &[TokenId], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        tried!("revoke tokens", self.end_tokens(ids, now))
    }

    async fn touch_tokens(&self, uses: &[(TokenId, Timestamp)]) -> Result<(), StoreError> {
        tried!("write down uses of tokens", self.note_uses(uses))
    }

    async fn put_users(&self, users: &[UserPut], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        tried!("save users", self.save_people(users, now))
    }

    async fn users(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<User>>, StoreError> {
        tried!("find users", self.people_by_name(names))
    }

    async fn list_users(&self, query: &UserQuery) -> Result<UserPage, StoreError> {
        tried!("list users", self.page_of_people(query))
    }

    async fn delete_users(&self, ids: &[UserId]) -> Result<Vec<Guarded>, StoreError> {
        tried!("delete users", self.remove_people(ids))
    }

    async fn put_sessions(&self, sessions: &[Session]) -> Result<Vec<Guarded>, StoreError> {
        tried!("keep sessions", self.keep_sessions(sessions))
    }

    async fn find_sessions(&self, digests: &[SecretDigest]) -> Result<Vec<Option<(Session, User)>>, StoreError> {
        tried!("find sessions", self.sessions_by_digest(digests))
    }

    async fn delete_sessions(&self, digests: &[SecretDigest]) -> Result<(), StoreError> {
        tried!("end sessions", self.end_sessions(digests))
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        tried!("add to the audit log", self.add_audit(entries))
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<AuditPage, StoreError> {
        tried!("read the audit log", self.page_of_audit(query))
    }
}

const TOKEN: &str = "t.id, t.tenant, t.installation, t.name, t.digest, t.permissions, t.created_at, t.created_by, \
     t.expires_at, t.revoked_at, t.last_used_at";

fn token(row: &Row) -> Result<Token, Fault> {
    Ok(Token {
        id: TokenId(row.try_get(0)?),
        tenant: TenantId(row.try_get(1)?),
        installation: row.try_get(2)?,
        name: row.try_get(3)?,
        digest: digest(row, 4)?,
        permissions: from_json(row.try_get(5)?)?,
        created_at: time(row.try_get(6)?)?,
        created_by: row.try_get(7)?,
        expires_at: time_opt(row.try_get(8)?)?,
        revoked_at: time_opt(row.try_get(9)?)?,
        last_used_at: time_opt(row.try_get(10)?)?,
    })
}

fn digest(row: &Row, at: usize) -> Result<SecretDigest, Fault> {
    let bytes: &[u8] = row.try_get(at)?;
    let digest = bytes.try_into().map_err(|_| corrupt("a digest", format_args!("{} bytes", bytes.len())))?;
    Ok(SecretDigest(digest))
}

fn bytes_of(digests: &[SecretDigest]) -> Vec<&[u8]> {
    digests.iter().map(|digest| digest.0.as_slice()).collect()
}

impl PostgresStore {
    async fn keep_tokens(&self, tokens: &[Token]) -> Result<(), Fault> {
        let sql = "INSERT INTO token AS t (id, tenant, installation, name, digest, permissions, created_at, created_by, \
                   expires_at, revoked_at, last_used_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
                   ON CONFLICT DO NOTHING";
        let tx = Tx::on(&self.work).await?;
        for token in tokens {
            let digest = token.digest.0.as_slice();
            let [expires, revoked, used] =
                [token.expires_at, token.revoked_at, token.last_used_at].map(|at| at.map(micros));
            let row: [Param<'_>; 11] = [
                &token.id.0,
                &token.tenant.0,
                &token.installation,
                &token.name,
                &digest,
                &to_json(&token.permissions)?,
                &micros(token.created_at),
                &token.created_by,
                &expires,
                &revoked,
                &used,
            ];
            tx.rows(sql, &row).await?;
        }
        tx.commit().await
    }

    async fn tokens_by_digest(&self, digests: &[SecretDigest]) -> Result<Vec<Option<Token>>, Fault> {
        let sql = format!("SELECT {TOKEN} FROM token t WHERE t.digest = ANY($1)");
        let mut found = HashMap::new();
        for row in self.read(&sql, &[&bytes_of(digests)]).await? {
            found.extend(self.token_at(&row)?.1.map(|token| (token.digest, token)));
        }
        Ok(digests.iter().map(|digest| found.get(digest).cloned()).collect())
    }

    async fn tokens_by_id(&self, ids: &[TokenId]) -> Result<Vec<Option<Token>>, Fault> {
        let uuids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let mut found = HashMap::new();
        for row in self.read(&format!("SELECT {TOKEN} FROM token t WHERE t.id = ANY($1)"), &[&uuids]).await? {
            let (id, token) = self.token_at(&row)?;
            found.extend(token.map(|token| (id, token)));
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn page_of_tokens(&self, query: &TokenQuery) -> Result<TokenPage, Fault> {
        let limit = query.limit.clamp(1, PAGE_MAX) as usize;
        let sql = format!(
            "SELECT {TOKEN} FROM token t WHERE t.tenant = $1 AND ($2::uuid IS NULL OR t.id < $2) \
             ORDER BY t.id DESC LIMIT $3"
        );
        let after = query.after.map(|id| id.0);
        let rows = self.read(&sql, &[&query.tenant.0, &after, &(limit as i64 + 1)]).await?;
        let mut rows = rows.iter().map(|row| self.token_at(row)).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|(id, _)| *id);
        Ok(TokenPage { tokens: rows.into_iter().filter_map(|(_, token)| token).collect(), next })
    }

    /// A token with its place in lists; nothing else where it cannot be read.
    fn token_at(&self, row: &Row) -> Result<(TokenId, Option<Token>), Fault> {
        let id = TokenId(row.try_get(0)?);
        Ok((id, self.notes.readable("token", id, token(row))))
    }

    async fn end_tokens(&self, ids: &[TokenId], now: Timestamp) -> Result<Vec<Guarded>, Fault> {
        let uuids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let sql = "UPDATE token SET revoked_at = $2 WHERE id = ANY($1) AND revoked_at IS NULL RETURNING id";
        let rows = self.write_alone(&self.work, sql, &[&uuids, &micros(now)]).await?;
        guarded(&uuids, &rows)
    }

    async fn note_uses(&self, uses: &[(TokenId, Timestamp)]) -> Result<(), Fault> {
        let ids: Vec<Uuid> = uses.iter().map(|(id, _)| id.0).collect();
        let times: Vec<i64> = uses.iter().map(|(_, at)| micros(*at)).collect();
        let sql = "UPDATE token t SET last_used_at = u.at \
                   FROM (SELECT id, max(at) AS at FROM unnest($1::uuid[], $2::bigint[]) u (id, at) GROUP BY id) u \
                   WHERE t.id = u.id AND coalesce(t.last_used_at < u.at, true)";
        self.write_alone(&self.work, sql, &[&ids, &times]).await?;
        Ok(())
    }
}

/// One answer for each, the first of two alike being the one that was applied.
fn guarded(asked: &[Uuid], rows: &[Row]) -> Result<Vec<Guarded>, Fault> {
    let mut done: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let mut answer = |id: &Uuid| match done.iter().position(|done| done == id) {
        Some(at) => {
            done.swap_remove(at);
            Guarded::Applied
        }
        None => Guarded::Stale,
    };
    Ok(asked.iter().map(&mut answer).collect())
}

const PERSON: &str = "p.id, p.tenant, p.name, p.role, p.installation, p.password, p.created_at, p.updated_at";

fn person(row: &Row) -> Result<User, Fault> {
    let role: &str = row.try_get(3)?;
    Ok(User {
        id: UserId(row.try_get(0)?),
        tenant: TenantId(row.try_get(1)?),
        name: row.try_get(2)?,
        role: role.parse().map_err(StoreError::Corrupt)?,
        installation: row.try_get(4)?,
        password: row.try_get(5)?,
        created_at: time(row.try_get(6)?)?,
        updated_at: time(row.try_get(7)?)?,
    })
}

const END_SESSIONS: &str = "DELETE FROM session WHERE person = ANY($1)";

impl PostgresStore {
    async fn save_people(&self, users: &[UserPut], now: Timestamp) -> Result<Vec<Guarded>, Fault> {
        let tx = Tx::on(&self.work).await?;
        let mut answers = Vec::with_capacity(users.len());
        for put in users {
            answers.push(save_person(&tx, put, now).await?);
        }
        tx.commit().await?;
        Ok(answers)
    }

    async fn people_by_name(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<User>>, Fault> {
        let tenants: Vec<i32> = names.iter().map(|(tenant, _)| tenant.0).collect();
        let texts: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        let sql = format!(
            "SELECT {PERSON}, u.n FROM unnest($1::int[], $2::text[]) WITH ORDINALITY u (tenant, name, n) \
             JOIN person p ON p.tenant = u.tenant AND p.name = u.name"
        );
        let mut answers = vec![None; names.len()];
        for row in self.read(&sql, &[&tenants, &texts]).await? {
            answers[row.try_get::<_, i64>(8)? as usize - 1] = self.person_at(&row)?.1;
        }
        Ok(answers)
    }

    async fn page_of_people(&self, query: &UserQuery) -> Result<UserPage, Fault> {
        let limit = query.limit.clamp(1, PAGE_MAX) as usize;
        let sql = format!("SELECT {PERSON} FROM person p WHERE p.tenant = $1 AND p.name > $2 ORDER BY p.name LIMIT $3");
        let after = query.after.as_deref().unwrap_or_default();
        let rows = self.read(&sql, &[&query.tenant.0, &after, &(limit as i64 + 1)]).await?;
        let mut rows = rows.iter().map(|row| self.person_at(row)).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|(name, _)| name.clone());
        Ok(UserPage { users: rows.into_iter().filter_map(|(_, user)| user).collect(), next })
    }

    /// A person with its place in lists; nothing else where it cannot be read.
    fn person_at(&self, row: &Row) -> Result<(String, Option<User>), Fault> {
        let id: Uuid = row.try_get(0)?;
        Ok((row.try_get(2)?, self.notes.readable("person", id, person(row))))
    }

    async fn remove_people(&self, ids: &[UserId]) -> Result<Vec<Guarded>, Fault> {
        let uuids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let tx = Tx::on(&self.work).await?;
        // The person first: one who logs in meanwhile waits for its row.
        let gone = tx.rows("DELETE FROM person WHERE id = ANY($1) RETURNING id", &[&uuids]).await?;
        tx.rows(END_SESSIONS, &[&uuids]).await?;
        tx.commit().await?;
        guarded(&uuids, &gone)
    }

    async fn keep_sessions(&self, sessions: &[Session]) -> Result<Vec<Guarded>, Fault> {
        // The lock keeps a person from going, or from changing the password,
        // between the look and the session.
        let sql = "WITH p AS (SELECT id FROM person WHERE id = $2 AND updated_at <= $3 FOR SHARE) \
                   INSERT INTO session AS s (digest, person, created_at, expires_at) SELECT $1, id, $3, $4 FROM p \
                   ON CONFLICT (digest) DO UPDATE SET expires_at = excluded.expires_at WHERE s.person = excluded.person \
                   RETURNING 1";
        let mut answers = Vec::with_capacity(sessions.len());
        for session in sessions {
            let digest = session.digest.0.as_slice();
            let (created, expires) = (micros(session.created_at), micros(session.expires_at));
            let rows = self.write_alone(&self.work, sql, &[&digest, &session.user.0, &created, &expires]).await?;
            answers.push(if rows.is_empty() { Guarded::Stale } else { Guarded::Applied });
        }
        Ok(answers)
    }

    async fn sessions_by_digest(&self, digests: &[SecretDigest]) -> Result<Vec<Option<(Session, User)>>, Fault> {
        let sql = format!(
            "SELECT {PERSON}, s.digest, s.created_at, s.expires_at FROM session s JOIN person p ON p.id = s.person \
             WHERE s.digest = ANY($1)"
        );
        let mut found = HashMap::new();
        for row in self.read(&sql, &[&bytes_of(digests)]).await? {
            let read = || -> Result<(Session, User), Fault> {
                let user = person(&row)?;
                let session = Session {
                    digest: digest(&row, 8)?,
                    user: user.id,
                    created_at: time(row.try_get(9)?)?,
                    expires_at: time(row.try_get(10)?)?,
                };
                Ok((session, user))
            };
            // Named by its person: the digest is nobody's business.
            let (id, created_at): (Uuid, i64) = (row.try_get(0)?, row.try_get(9)?);
            let found_one = self.notes.readable("session", format_args!("{id}/{created_at}"), read());
            found.extend(found_one.map(|(session, user)| (session.digest, (session, user))));
        }
        Ok(digests.iter().map(|digest| found.get(digest).cloned()).collect())
    }

    async fn end_sessions(&self, digests: &[SecretDigest]) -> Result<(), Fault> {
        let sql = "DELETE FROM session WHERE digest = ANY($1)";
        self.write_alone(&self.work, sql, &[&bytes_of(digests)]).await?;
        Ok(())
    }
}

async fn save_person(tx: &Tx, put: &UserPut, now: Timestamp) -> Result<Guarded, Fault> {
    let (id, role, now) = (put.id.0, put.role.as_str(), micros(now));
    let rows = match put.wish {
        UserWish::New => {
            let password = put.password.as_deref().unwrap_or_default();
            let sql = "INSERT INTO person (id, tenant, name, role, installation, password, created_at, updated_at) \
                       VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING";
            tx.rows(sql, &[&id, &put.tenant.0, &put.name, &role, &put.installation, &password, &now]).await?;
            // Whoever asks again finds its own.
            let own = "SELECT 1 FROM person WHERE id = $1 AND tenant = $2 AND name = $3";
            tx.rows(own, &[&id, &put.tenant.0, &put.name]).await?
        }
        UserWish::Known => {
            let sql = "UPDATE person SET role = $4, installation = $5, password = coalesce($6, password), \
                       updated_at = $7 WHERE id = $1 AND tenant = $2 AND name = $3 RETURNING 1";
            let row: [Param<'_>; 7] = [&id, &put.tenant.0, &put.name, &role, &put.installation, &put.password, &now];
            let rows = tx.rows(sql, &row).await?;
            if put.password.is_some() && !rows.is_empty() {
                tx.rows(END_SESSIONS, &[&vec![id]]).await?;
            }
            rows
        }
    };
    Ok(if rows.is_empty() { Guarded::Stale } else { Guarded::Applied })
}

const ENTRY: &str = "a.tenant, a.at, a.id, a.who, a.action, a.object, a.before, a.after, a.address";

fn entry(row: &Row) -> Result<AuditEntry, Fault> {
    Ok(AuditEntry {
        tenant: TenantId(row.try_get(0)?),
        at: time(row.try_get(1)?)?,
        id: AuditId(row.try_get(2)?),
        who: row.try_get(3)?,
        action: row.try_get(4)?,
        object: row.try_get(5)?,
        before: row.try_get(6)?,
        after: row.try_get(7)?,
        address: row.try_get(8)?,
    })
}

impl PostgresStore {
    async fn add_audit(&self, entries: &[AuditEntry]) -> Result<(), Fault> {
        let sql = "INSERT INTO audit (tenant, at, id, who, action, object, before, after, address) \
                   SELECT * FROM unnest($1::int[], $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], \
                                        $7::text[], $8::text[], $9::text[]) ON CONFLICT DO NOTHING";
        let tenants: Vec<i32> = entries.iter().map(|entry| entry.tenant.0).collect();
        let times: Vec<i64> = entries.iter().map(|entry| micros(entry.at)).collect();
        let ids: Vec<Uuid> = entries.iter().map(|entry| entry.id.0).collect();
        let who: Vec<&str> = entries.iter().map(|entry| entry.who.as_str()).collect();
        let actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
        let objects: Vec<&str> = entries.iter().map(|entry| entry.object.as_str()).collect();
        let before: Vec<Option<&str>> = entries.iter().map(|entry| entry.before.as_deref()).collect();
        let after: Vec<Option<&str>> = entries.iter().map(|entry| entry.after.as_deref()).collect();
        let addresses: Vec<Option<&str>> = entries.iter().map(|entry| entry.address.as_deref()).collect();
        let columns: [Param<'_>; 9] = [&tenants, &times, &ids, &who, &actions, &objects, &before, &after, &addresses];
        self.write_alone(&self.work, sql, &columns).await?;
        Ok(())
    }

    async fn page_of_audit(&self, query: &AuditQuery) -> Result<AuditPage, Fault> {
        let limit = query.limit.clamp(1, PAGE_MAX) as usize;
        let (from, to) = (query.from.map_or(i64::MIN, micros), query.to.map_or(i64::MAX, micros));
        let (after_at, after_id) = (query.after.map(|after| micros(after.at)), query.after.map(|after| after.id.0));
        let place = "FROM audit a WHERE a.tenant = $1 AND a.at >= $2 AND a.at < $3 \
                     AND ($4::bigint IS NULL OR (a.at, a.id) < ($4, $5::uuid)) ORDER BY a.at DESC, a.id DESC";
        let sql = format!(
            "SELECT {ENTRY} FROM (SELECT {ENTRY} {place} LIMIT $6) a WHERE ($7::text IS NULL OR a.who = $7) \
             AND ($8::text IS NULL OR a.action = $8) AND ($9::text IS NULL OR a.object = $9) \
             ORDER BY a.at DESC, a.id DESC LIMIT $10"
        );
        let (look, most) = (LOOK_MAX as i64, limit as i64 + 1);
        let rows = self
            .read(
                &sql,
                &[
                    &query.tenant.0,
                    &from,
                    &to,
                    &after_at,
                    &after_id,
                    &look,
                    &query.who,
                    &query.action,
                    &query.object,
                    &most,
                ],
            )
            .await?;
        let mut entries: Vec<AuditEntry> = Vec::with_capacity(rows.len());
        for row in rows.iter().take(limit) {
            entries.extend(self.notes.readable("audit", row.try_get::<_, Uuid>(2)?, entry(row)));
        }
        if rows.len() > limit
            && let Some(last) = entries.last()
        {
            let next = Some(AuditCursor { at: last.at, id: last.id });
            return Ok(AuditPage { entries, next });
        }
        // What was looked at may not have been all there is.
        let sql = format!("SELECT a.at, a.id {place} OFFSET $6 LIMIT 2");
        let last = look - 1;
        let ends = self.read(&sql, &[&query.tenant.0, &from, &to, &after_at, &after_id, &last]).await?;
        let next = match ends.as_slice() {
            [last, _] => Some(AuditCursor { at: time(last.try_get(0)?)?, id: AuditId(last.try_get(1)?) }),
            _ => None,
        };
        Ok(AuditPage { entries, next })
    }
}
