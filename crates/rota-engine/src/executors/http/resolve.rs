//! The resolver: looks a name up once, judges every answer, and hands on
//! exactly the addresses that were judged.
//!
//! The connection is made to one of them, so a name server that changes its
//! mind between the look and the connection changes nothing. Addresses written
//! in a URL never come here: the executor judges those at every hop.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::executors::egress::Egress;

/// Finds the addresses of a name.
#[async_trait]
pub trait Lookup: Send + Sync {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// As the machine does: hosts file, name servers, and whatever else it is set to.
pub struct SystemLookup;

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// A name that has no address, or none that could be found.
#[derive(Debug, thiserror::Error)]
#[error("{name} has no address")]
pub(super) struct NoAddress {
    name: String,
    source: Option<io::Error>,
}

pub(super) struct JudgingResolver {
    pub lookup: Arc<dyn Lookup>,
    /// None for hosts that are cleared by name.
    pub egress: Option<Arc<Egress>>,
}

impl Resolve for JudgingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (lookup, egress) = (Arc::clone(&self.lookup), self.egress.clone());
        Box::pin(async move {
            let name = name.as_str();
            let found = lookup.lookup(name).await;
            let addresses = found.map_err(|error| NoAddress { name: name.to_owned(), source: Some(error) })?;
            if addresses.is_empty() {
                return Err(NoAddress { name: name.to_owned(), source: None }.into());
            }
            if let Some(egress) = egress {
                egress.judge_answers(name, &addresses)?;
            }
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}
