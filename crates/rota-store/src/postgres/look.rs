//! A look at a database that changes nothing: neither made nor brought up to date.

use jiff::Timestamp;

use super::{
    migrate,
    open::{Address, OpenError, Options, pool},
};
use crate::Look;

/// What the database is, and what its clock says.
pub async fn look(url: &str, options: &Options) -> Result<Look, OpenError> {
    let prepare = |error: tokio_postgres::Error| OpenError::Prepare(Box::new(error));
    let pool = pool(&Address::parse(url)?, 1, options, options.limits.leases, None)?;
    let client = pool.get().await.map_err(|error| OpenError::Connect(Box::new(error)))?;
    let row = client.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await;
    let millis: i64 = row.map_err(prepare)?.get(0);
    let there = client.query_one("SELECT to_regclass('migration') IS NOT NULL", &[]).await.map_err(prepare)?;
    let (mut schema, mut oldest) = (None, None);
    if there.get(0) {
        let row = client.query_one("SELECT max(version) FROM migration", &[]).await.map_err(prepare)?;
        schema = row.get::<_, Option<i32>>(0).map(i64::from);
        oldest = migrate::oldest(&client).await.map_err(prepare)?;
    }
    Ok(Look { schema, known: migrate::known(), oldest, clock: Timestamp::from_millisecond(millis).ok() })
}
