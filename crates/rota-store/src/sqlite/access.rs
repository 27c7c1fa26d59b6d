//! Tokens, people, sessions and the audit log.

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
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use uuid::Uuid;

use super::{
    SqliteStore, failed,
    rows::{text_at, uuid_at},
    writer::Urgency,
};
use crate::{
    codec::{from_json, micros, time, time_opt, to_json, without_nul},
    filter::{LOOK_MAX, PAGE_MAX},
    unreadable::readable,
};

const TOKEN: &str = "id, tenant, installation, name, digest, permissions, created_at, created_by, expires_at, \
     revoked_at, last_used_at";
const PERSON: &str = "p.id, p.tenant, p.name, p.role, p.installation, p.password, p.created_at, p.updated_at";

#[async_trait]
impl AccessStore for SqliteStore {
    async fn put_tokens(&self, tokens: &[Token]) -> Result<(), StoreError> {
        let tokens = tokens.to_vec();
        self.writer
            .write("keep tokens", Urgency::Prompt, move |connection| {
                tokens.iter().try_for_each(|token| put_token(connection, token))
            })
            .await
    }

    async fn find_tokens(&self, digests: &[SecretDigest]) -> Result<Vec<Option<Token>>, StoreError> {
        let digests = digests.to_vec();
        self.read("find tokens", move |connection| {
            let sql = format!("SELECT {TOKEN} FROM token WHERE digest = ?1");
            digests.iter().map(|digest| one(connection, &sql, [digest.0], token_at)).collect()
        })
        .await
    }

    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<Option<Token>>, StoreError> {
        let ids = ids.to_vec();
        self.read("read tokens", move |connection| {
            let sql = format!("SELECT {TOKEN} FROM token WHERE id = ?1");
            ids.iter().map(|id| one(connection, &sql, [id.0.as_bytes()], token_at)).collect()
        })
        .await
    }

    async fn list_tokens(&self, query: &TokenQuery) -> Result<TokenPage, StoreError> {
        let query = query.clone();
        self.read("list tokens", move |connection| {
            let sql = format!(
                "SELECT {TOKEN} FROM token WHERE tenant = ?1 AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3"
            );
            let limit = query.limit.clamp(1, PAGE_MAX) as usize;
            let after = query.after.map(|id| *id.0.as_bytes());
            let mut rows = all(connection, &sql, params![query.tenant.0, after, limit as i64 + 1], token_at)?;
            let more = rows.len() > limit;
            rows.truncate(limit);
            let next = rows.last().filter(|_| more).map(|(id, _)| *id);
            Ok(TokenPage { tokens: rows.into_iter().filter_map(|(_, token)| token).collect(), next })
        })
        .await
    }

    async fn revoke_tokens(&self, ids: &[TokenId], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        let ids = ids.to_vec();
        self.writer
            .write("revoke tokens", Urgency::Prompt, move |connection| {
                let sql = "UPDATE token SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";
                ids.iter().map(|id| changed(connection, sql, params![id.0.as_bytes(), micros(now)])).collect()
            })
            .await
    }

    async fn touch_tokens(&self, uses: &[(TokenId, Timestamp)]) -> Result<(), StoreError> {
        let uses = uses.to_vec();
        self.writer
            .write("write down uses of tokens", Urgency::Patient, move |connection| {
                let sql = "UPDATE token SET last_used_at = ?2 WHERE id = ?1 AND coalesce(last_used_at < ?2, true)";
                uses.iter()
                    .try_for_each(|(id, at)| changed(connection, sql, params![id.0.as_bytes(), micros(*at)]).map(drop))
            })
            .await
    }

    async fn put_users(&self, users: &[UserPut], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        let users = users.to_vec();
        self.writer
            .write("save users", Urgency::Prompt, move |connection| {
                users.iter().map(|put| put_user(connection, put, now)).collect()
            })
            .await
    }

    async fn users(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<User>>, StoreError> {
        let names = names.to_vec();
        self.read("find users", move |connection| {
            let sql = format!("SELECT {PERSON} FROM person p WHERE p.tenant = ?1 AND p.name = ?2");
            names.iter().map(|(tenant, name)| one(connection, &sql, params![tenant.0, name], user_at)).collect()
        })
        .await
    }

    async fn list_users(&self, query: &UserQuery) -> Result<UserPage, StoreError> {
        let query = query.clone();
        self.read("list users", move |connection| {
            let sql =
                format!("SELECT {PERSON} FROM person p WHERE p.tenant = ?1 AND p.name > ?2 ORDER BY p.name LIMIT ?3");
            let limit = query.limit.clamp(1, PAGE_MAX) as usize;
            let after = query.after.as_deref().unwrap_or_default();
            let key = params![query.tenant.0, after, limit as i64 + 1];
            let mut rows = all(connection, &sql, key, user_at)?;
            let more = rows.len() > limit;
            rows.truncate(limit);
            let next = rows.last().filter(|_| more).map(|(name, _)| name.clone());
            Ok(UserPage { users: rows.into_iter().filter_map(|(_, user)| user).collect(), next })
        })
        .await
    }

    async fn delete_users(&self, ids: &[UserId]) -> Result<Vec<Guarded>, StoreError> {
        let ids = ids.to_vec();
        self.writer
            .write("delete users", Urgency::Prompt, move |connection| {
                ids.iter()
                    .map(|id| {
                        end_sessions(connection, *id)?;
                        changed(connection, "DELETE FROM person WHERE id = ?1", [id.0.as_bytes()])
                    })
                    .collect()
            })
            .await
    }

    async fn put_sessions(&self, sessions: &[Session]) -> Result<Vec<Guarded>, StoreError> {
        let sessions = sessions.to_vec();
        self.writer
            .write("keep sessions", Urgency::Prompt, move |connection| {
                let sql = "INSERT INTO session (digest, person, created_at, expires_at) \
                     SELECT ?1, id, ?3, ?4 FROM person WHERE id = ?2 AND updated_at <= ?3 \
                     ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at WHERE person = excluded.person";
                let put = |session: &Session| {
                    let row = params![
                        session.digest.0,
                        session.user.0.as_bytes(),
                        micros(session.created_at),
                        micros(session.expires_at)
                    ];
                    changed(connection, sql, row)
                };
                sessions.iter().map(put).collect()
            })
            .await
    }

    async fn find_sessions(&self, digests: &[SecretDigest]) -> Result<Vec<Option<(Session, User)>>, StoreError> {
        let digests = digests.to_vec();
        self.read("find sessions", move |connection| {
            let sql = format!(
                "SELECT s.digest, s.created_at, s.expires_at, {PERSON} FROM session s JOIN person p ON p.id = s.person \
                 WHERE s.digest = ?1"
            );
            let read = |row: &Row<'_>| {
                let user = user(row, 3)?;
                let session = Session {
                    digest: SecretDigest(row.get(0).map_err(failed)?),
                    user: user.id,
                    created_at: time(row.get(1).map_err(failed)?)?,
                    expires_at: time(row.get(2).map_err(failed)?)?,
                };
                Ok::<_, StoreError>((session, user))
            };
            // Named by its person: the digest is nobody's business.
            let read = |row: &Row<'_>| {
                let person = uuid_at(row, 3).map_err(failed)?;
                Ok((person, readable("session", format_args!("{person}/{}", text_at(row, 1)), read(row))))
            };
            digests.iter().map(|digest| one(connection, &sql, [digest.0], read)).collect()
        })
        .await
    }

    async fn delete_sessions(&self, digests: &[SecretDigest]) -> Result<(), StoreError> {
        let digests = digests.to_vec();
        self.writer
            .write("end sessions", Urgency::Prompt, move |connection| {
                digests.iter().try_for_each(|digest| {
                    changed(connection, "DELETE FROM session WHERE digest = ?1", [digest.0]).map(drop)
                })
            })
            .await
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        let entries = entries.to_vec();
        self.writer
            .write("add to the audit log", Urgency::Prompt, move |connection| {
                entries.iter().try_for_each(|entry| append(connection, entry))
            })
            .await
    }

    async fn list_audit(&self, query: &AuditQuery) -> Result<AuditPage, StoreError> {
        let query = query.clone();
        self.read("read the audit log", move |connection| list_audit(connection, &query)).await
    }
}

fn changed(connection: &Connection, sql: &str, row: impl Params) -> Result<Guarded, StoreError> {
    let rows = connection.prepare_cached(sql).and_then(|mut change| change.execute(row)).map_err(failed)?;
    Ok(if rows == 0 { Guarded::Stale } else { Guarded::Applied })
}

fn all<T>(
    connection: &Connection,
    sql: &str,
    key: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// One row by its key; none where it is not there or cannot be read.
fn one<K, T>(
    connection: &Connection,
    sql: &str,
    key: impl Params,
    read: impl Fn(&Row<'_>) -> Result<(K, Option<T>), StoreError>,
) -> Result<Option<T>, StoreError> {
    Ok(all(connection, sql, key, read)?.pop().and_then(|(_, found)| found))
}

fn put_token(connection: &Connection, token: &Token) -> Result<(), StoreError> {
    without_nul("keep tokens", [token.name.as_str(), &token.created_by])?;
    let sql = format!(
        "INSERT INTO token ({TOKEN}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO NOTHING"
    );
    let row = params![
        token.id.0.as_bytes(),
        token.tenant.0,
        token.installation,
        token.name,
        token.digest.0,
        to_json(&token.permissions)?,
        micros(token.created_at),
        token.created_by,
        token.expires_at.map(micros),
        token.revoked_at.map(micros),
        token.last_used_at.map(micros),
    ];
    changed(connection, &sql, row).map(drop)
}

/// A token with its place in lists; nothing else where it cannot be read.
fn token_at(row: &Row<'_>) -> Result<(TokenId, Option<Token>), StoreError> {
    let id = TokenId(uuid_at(row, 0).map_err(failed)?);
    Ok((id, readable("token", id, token(row))))
}

fn token(row: &Row<'_>) -> Result<Token, StoreError> {
    Ok(Token {
        id: TokenId(Uuid::from_bytes(row.get(0).map_err(failed)?)),
        tenant: TenantId(row.get(1).map_err(failed)?),
        installation: row.get(2).map_err(failed)?,
        name: row.get(3).map_err(failed)?,
        digest: SecretDigest(row.get(4).map_err(failed)?),
        permissions: from_json(&row.get::<_, String>(5).map_err(failed)?)?,
        created_at: time(row.get(6).map_err(failed)?)?,
        created_by: row.get(7).map_err(failed)?,
        expires_at: time_opt(row.get(8).map_err(failed)?)?,
        revoked_at: time_opt(row.get(9).map_err(failed)?)?,
        last_used_at: time_opt(row.get(10).map_err(failed)?)?,
    })
}

fn put_user(connection: &Connection, put: &UserPut, now: Timestamp) -> Result<Guarded, StoreError> {
    without_nul("save users", [put.name.as_str()].into_iter().chain(put.password.as_deref()))?;
    let (id, role) = (put.id.0.as_bytes(), put.role.as_str());
    match put.wish {
        UserWish::New => {
            let sql = "INSERT INTO person (id, tenant, name, role, installation, password, created_at, updated_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7) ON CONFLICT DO NOTHING";
            let password = put.password.as_deref().unwrap_or_default();
            let row = params![id, put.tenant.0, put.name, role, put.installation, password, micros(now)];
            changed(connection, sql, row)?;
            // Whoever asks again finds its own.
            let own = "SELECT 1 FROM person WHERE id = ?1 AND tenant = ?2 AND name = ?3";
            let found = connection
                .prepare_cached(own)
                .and_then(|mut select| select.query_row(params![id, put.tenant.0, put.name], |_| Ok(())).optional())
                .map_err(failed)?;
            Ok(found.map_or(Guarded::Stale, |()| Guarded::Applied))
        }
        UserWish::Known => {
            let sql = "UPDATE person SET role = ?4, installation = ?5, password = coalesce(?6, password), \
                 updated_at = ?7 WHERE id = ?1 AND tenant = ?2 AND name = ?3";
            let row = params![id, put.tenant.0, put.name, role, put.installation, put.password, micros(now)];
            let done = changed(connection, sql, row)?;
            if put.password.is_some() && done == Guarded::Applied {
                end_sessions(connection, put.id)?;
            }
            Ok(done)
        }
    }
}

fn end_sessions(connection: &Connection, user: UserId) -> Result<(), StoreError> {
    changed(connection, "DELETE FROM session WHERE person = ?1", [user.0.as_bytes()]).map(drop)
}

/// A person with its place in lists; nothing else where it cannot be read.
fn user_at(row: &Row<'_>) -> Result<(String, Option<User>), StoreError> {
    let id = uuid_at(row, 0).map_err(failed)?;
    Ok((row.get(2).map_err(failed)?, readable("person", id, user(row, 0))))
}

fn user(row: &Row<'_>, from: usize) -> Result<User, StoreError> {
    let role: String = row.get(from + 3).map_err(failed)?;
    Ok(User {
        id: UserId(Uuid::from_bytes(row.get(from).map_err(failed)?)),
        tenant: TenantId(row.get(from + 1).map_err(failed)?),
        name: row.get(from + 2).map_err(failed)?,
        role: role.parse().map_err(StoreError::Corrupt)?,
        installation: row.get(from + 4).map_err(failed)?,
        password: row.get(from + 5).map_err(failed)?,
        created_at: time(row.get(from + 6).map_err(failed)?)?,
        updated_at: time(row.get(from + 7).map_err(failed)?)?,
    })
}

fn append(connection: &Connection, entry: &AuditEntry) -> Result<(), StoreError> {
    let texts = [entry.who.as_str(), &entry.action, &entry.object].into_iter();
    let more = [&entry.before, &entry.after, &entry.address].into_iter().filter_map(|text| text.as_deref());
    without_nul("add to the audit log", texts.chain(more))?;
    let sql = "INSERT INTO audit (tenant, at, id, who, action, object, before, after, address) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING";
    let row = params![
        entry.tenant.0,
        micros(entry.at),
        entry.id.0.as_bytes(),
        entry.who,
        entry.action,
        entry.object,
        entry.before,
        entry.after,
        entry.address,
    ];
    changed(connection, sql, row).map(drop)
}

fn list_audit(connection: &Connection, query: &AuditQuery) -> Result<AuditPage, StoreError> {
    let limit = query.limit.clamp(1, PAGE_MAX) as usize;
    let sql = "SELECT tenant, at, id, who, action, object, before, after, address FROM audit \
         WHERE tenant = ?1 AND at >= ?2 AND at < ?3 AND (?4 IS NULL OR (at, id) < (?4, ?5)) \
         ORDER BY at DESC, id DESC LIMIT ?6";
    let key = params![
        query.tenant.0,
        query.from.map_or(i64::MIN, micros),
        query.to.map_or(i64::MAX, micros),
        query.after.map(|after| micros(after.at)),
        query.after.map(|after| *after.id.0.as_bytes()),
        LOOK_MAX as i64 + 1,
    ];
    let mut select = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = select.query(key).map_err(failed)?;
    let mut entries: Vec<AuditEntry> = Vec::new();
    let mut last = None;
    let mut looked = 0;
    while let Some(row) = rows.next().map_err(failed)? {
        if looked == LOOK_MAX || entries.len() == limit {
            return Ok(AuditPage { entries, next: last });
        }
        looked += 1;
        let id = uuid_at(row, 2).map_err(failed)?;
        let Some(entry) = readable("audit", id, audit_entry(row)) else { continue };
        last = Some(AuditCursor { at: entry.at, id: entry.id });
        if query.wants(&entry) {
            entries.push(entry);
        }
    }
    Ok(AuditPage { entries, next: None })
}

fn audit_entry(row: &Row<'_>) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        tenant: TenantId(row.get(0).map_err(failed)?),
        at: time(row.get(1).map_err(failed)?)?,
        id: AuditId(Uuid::from_bytes(row.get(2).map_err(failed)?)),
        who: row.get(3).map_err(failed)?,
        action: row.get(4).map_err(failed)?,
        object: row.get(5).map_err(failed)?,
        before: row.get(6).map_err(failed)?,
        after: row.get(7).map_err(failed)?,
        address: row.get(8).map_err(failed)?,
    })
}
