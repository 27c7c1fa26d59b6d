//! API tokens.

use async_trait::async_trait;
use const_format::formatcp;
use jiff::Timestamp;
use rota_core::{
    access::SecretDigest,
    ids::{TenantId, TokenId},
    store::{Guarded, StoreError, Token, TokenPage, TokenQuery, TokenStore},
};

use crate::{
    codec::{corrupt, to_json},
    engine::{Engine, Row, SqlStore, Way, applied, cut, values},
    filter::PAGE_MAX,
};

const TOKEN: &str = "id, tenant, installation, name, digest, permissions, created_at, created_by, expires_at, \
     revoked_at, last_used_at";

#[async_trait]
impl<E: Engine> TokenStore for SqlStore<E> {
    async fn put_tokens(&self, tokens: &[Token]) -> Result<(), StoreError> {
        const SQL: &str = formatcp!(
            "INSERT INTO token ({TOKEN}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING"
        );
        let row = |token: &Token| {
            Ok(values![
                token.id,
                token.tenant,
                token.installation,
                &token.name,
                token.digest,
                to_json(&token.permissions)?,
                token.created_at,
                &token.created_by,
                token.expires_at,
                token.revoked_at,
                token.last_used_at,
            ])
        };
        let rows = tokens.iter().map(row).collect::<Result<_, StoreError>>()?;
        self.change_each(Way::Work, "keep tokens", SQL, rows).await.map(drop)
    }

    async fn find_tokens(&self, digests: &[SecretDigest]) -> Result<Vec<Option<Token>>, StoreError> {
        let sql = formatcp!("SELECT {TOKEN} FROM token WHERE digest = $1");
        let found = self.find_each("find tokens", sql, digests.iter().map(|digest| values![*digest]).collect()).await?;
        found.iter().map(|rows| rows.first().map_or(Ok(None), |row| self.token(row))).collect()
    }

    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<Option<Token>>, StoreError> {
        let sql = formatcp!("SELECT {TOKEN} FROM token WHERE id = $1");
        let found = self.find_each("read tokens", sql, ids.iter().map(|id| values![*id]).collect()).await?;
        found.iter().map(|rows| rows.first().map_or(Ok(None), |row| self.token(row))).collect()
    }

    async fn list_tokens(&self, query: &TokenQuery) -> Result<TokenPage, StoreError> {
        let sql = formatcp!(
            "SELECT {TOKEN} FROM token WHERE tenant = $1 AND (id < $2 OR $2 IS NULL) ORDER BY id DESC LIMIT $3"
        );
        let limit = query.limit.clamp(1, PAGE_MAX);
        let mut rows = self.find("list tokens", sql, values![query.tenant, query.after, limit + 1]).await?;
        let more = cut(&mut rows, limit as usize);
        let next = rows.last().filter(|_| more).map(|row| row.uuid(0).map(TokenId)).transpose()?;
        let tokens = rows.iter().filter_map(|row| self.token(row).transpose()).collect::<Result<_, _>>()?;
        Ok(TokenPage { tokens, next })
    }

    async fn revoke_tokens(&self, ids: &[TokenId], now: Timestamp) -> Result<Vec<Guarded>, StoreError> {
        let sql = "UPDATE token SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING 1";
        let rows = ids.iter().map(|id| values![*id, now]).collect();
        Ok(applied(&self.change_each(Way::Work, "revoke tokens", sql, rows).await?))
    }

    async fn touch_tokens(&self, uses: &[(TokenId, Timestamp)]) -> Result<(), StoreError> {
        let sql = "UPDATE token SET last_used_at = $2 WHERE id = $1 AND coalesce(last_used_at < $2, true)";
        let rows = uses.iter().map(|(id, at)| (*id, values![*id, *at])).collect();
        self.change_in_order(Way::Patient, "write down uses of tokens", sql, rows).await.map(drop)
    }
}

impl<E: Engine> SqlStore<E> {
    /// None where it cannot be read.
    fn token(&self, row: &Row) -> Result<Option<Token>, StoreError> {
        let id = TokenId(row.uuid(0)?);
        Ok(self.readable("token", id, token(id, row)))
    }
}

fn token(id: TokenId, row: &Row) -> Result<Token, StoreError> {
    Ok(Token {
        id,
        tenant: TenantId(row.int(1)?),
        installation: row.bool(2)?,
        name: row.text(3)?,
        digest: digest(row, 4)?,
        permissions: row.json(5)?,
        created_at: row.time(6)?,
        created_by: row.text(7)?,
        expires_at: row.opt(8, Row::time)?,
        revoked_at: row.opt(9, Row::time)?,
        last_used_at: row.opt(10, Row::time)?,
    })
}

pub(super) fn digest(row: &Row, index: usize) -> Result<SecretDigest, StoreError> {
    let bytes = row.bytes(index)?;
    let digest = bytes.try_into().map_err(|_| corrupt("a digest", format_args!("{} bytes", bytes.len())))?;
    Ok(SecretDigest(digest))
}
