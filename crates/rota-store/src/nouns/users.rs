//! People who log in.

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    ids::{TenantId, UserId},
    store::{Guarded, StoreError, User, UserPage, UserPut, UserQuery, UserStore, UserWish},
};

use crate::{
    engine::{Engine, Row, SqlStore, Statement, Way, applied, bound, cut, values},
    filter::PAGE_MAX,
};

/// The columns of a person, in the order that [`user`] reads them.
pub(super) const PERSON: &str =
    "p.id, p.tenant, p.name, p.role, p.installation, p.password, p.created_at, p.updated_at";

/// Of a person whose password was changed.
const END_SESSIONS: &str = "DELETE FROM session WHERE person = $1 AND $4 \
     AND EXISTS (SELECT 1 FROM person WHERE id = $1 AND tenant = $2 AND name = $3)";

/// Whoever asks again finds its own.
const OWN: &str = "SELECT 1 FROM person WHERE id = $1 AND tenant = $2 AND name = $3";

#[async_trait]
impl<E: Engine> UserStore for SqlStore<E> {
    async fn put_users(&self, users: &[UserPut], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        let statements = users.iter().flat_map(|put| saved(put, now)).collect();
        let answers = self.change_all(Way::Work, "save users", statements).await?;
        Ok(applied(&answers.into_iter().skip(2).step_by(3).collect::<Vec<_>>()))
    }

    async fn users(&self, names: &[(TenantId, String)]) -> Result<Vec<Option<User>>, StoreError> {
        let sql = formatcp!("SELECT {PERSON} FROM person p WHERE p.tenant = $1 AND p.name = $2");
        let keys = names.iter().map(|(tenant, name)| values![*tenant, name]).collect();
        let found = self.find_each("find users", sql, keys).await?;
        found.iter().map(|rows| rows.first().map_or(Ok(None), |row| self.user(row))).collect()
    }

    async fn list_users(&self, query: &UserQuery) -> Result<UserPage, StoreError> {
        let sql =
            formatcp!("SELECT {PERSON} FROM person p WHERE p.tenant = $1 AND p.name > $2 ORDER BY p.name LIMIT $3");
        let limit = query.limit.clamp(1, PAGE_MAX);
        let after = query.after.as_deref().unwrap_or_default();
        let mut rows = self.find("list users", sql, values![query.tenant, after, limit + 1]).await?;
        let more = cut(&mut rows, limit as usize);
        let next = rows.last().filter(|_| more).map(|row| row.text(2)).transpose()?;
        let users = rows.iter().filter_map(|row| self.user(row).transpose()).collect::<Result<_, _>>()?;
        Ok(UserPage { users, next })
    }

    async fn delete_users(&self, ids: &[UserId]) -> Result<Vec<Guarded>, StoreError> {
        // The person first: one who logs in meanwhile waits for its row.
        let delete = |id: &UserId| {
            [
                bound("DELETE FROM person WHERE id = $1 RETURNING 1", values![*id]),
                bound("DELETE FROM session WHERE person = $1", values![*id]),
            ]
        };
        let answers = self.change_all(Way::Work, "delete users", ids.iter().flat_map(delete).collect()).await?;
        Ok(applied(&answers.into_iter().step_by(2).collect::<Vec<_>>()))
    }
}

/// Three statements; the last finds the person where it was saved.
fn saved(put: &UserPut, now: Timestamp) -> [Statement; 3] {
    let (sql, password) = match put.wish {
        UserWish::New => (
            "INSERT INTO person (id, tenant, name, role, installation, password, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING",
            Some(put.password.as_deref().unwrap_or_default()),
        ),
        UserWish::Known => (
            "UPDATE person SET role = $4, installation = $5, password = coalesce($6, password), updated_at = $7 \
             WHERE id = $1 AND tenant = $2 AND name = $3",
            put.password.as_deref(),
        ),
    };
    let is_changed = put.wish == UserWish::Known && put.password.is_some();
    [
        bound(sql, values![put.id, put.tenant, &put.name, put.role.as_str(), put.installation, password, now]),
        bound(END_SESSIONS, values![put.id, put.tenant, &put.name, is_changed]),
        bound(OWN, values![put.id, put.tenant, &put.name]),
    ]
}

impl<E: Engine> SqlStore<E> {
    /// None where it cannot be read.
    fn user(&self, row: &Row) -> Result<Option<User>, StoreError> {
        Ok(self.readable("person", row.uuid(0)?, user(row)))
    }
}

pub(super) fn user(row: &Row) -> Result<User, StoreError> {
    Ok(User {
        id: UserId(row.uuid(0)?),
        tenant: TenantId(row.int(1)?),
        name: row.text(2)?,
        role: row.str(3)?.parse().map_err(StoreError::Corrupt)?,
        installation: row.bool(4)?,
        password: row.text(5)?,
        created_at: row.time(6)?,
        updated_at: row.time(7)?,
    })
}
