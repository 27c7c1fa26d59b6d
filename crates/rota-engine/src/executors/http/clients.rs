//! The clients: one pool of connections for each way of talking TLS.
//!
//! A client is expensive to make and holds the connections, so steps share
//! them. Steps that trust or show other certificates must not share a
//! connection, and neither must those whose host was cleared by name with those
//! whose addresses were judged.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::{Certificate, Client, ClientBuilder, Identity, redirect::Policy};
use rota_core::{
    duration::Span,
    job::{
        failure::{ErrorKind, Failure},
        kinds::Tls,
    },
};
use sha2::{Digest, Sha256};

use super::{
    request::invalid,
    resolve::{JudgingResolver, Lookup},
};
use crate::executors::egress::{Clearance, Egress};

/// Clients with certificates of their own; the one used longest ago goes.
const SPECIAL_MAX: usize = 64;
/// How long a connection is kept for the next call.
const IDLE: Duration = Duration::from_mins(1);

pub(super) struct Clients {
    egress: Arc<Egress>,
    lookup: Arc<dyn Lookup>,
    connect_timeout: Span,
    user_agent: String,
    cleared: OnceLock<Result<Client, Failure>>,
    judged: OnceLock<Result<Client, Failure>>,
    /// The latest used last. By a digest: private keys are not kept as text.
    special: Mutex<Vec<(SpecialKey, Client)>>,
}

type SpecialKey = ([u8; 32], Clearance);

impl Clients {
    pub fn new(egress: Arc<Egress>, lookup: Arc<dyn Lookup>, connect_timeout: Span, user_agent: String) -> Self {
        let (cleared, judged) = (OnceLock::new(), OnceLock::new());
        Self { egress, lookup, connect_timeout, user_agent, cleared, judged, special: Mutex::default() }
    }

    /// The client for these options and this clearance.
    pub fn get(&self, tls: Option<&Tls>, clearance: Clearance) -> Result<Client, Failure> {
        match tls {
            Some(tls) if *tls != Tls::default() => self.special(tls, clearance),
            _ => {
                let kept = match clearance {
                    Clearance::Cleared => &self.cleared,
                    Clearance::ByAddress => &self.judged,
                };
                kept.get_or_init(|| self.plain(clearance)).clone()
            }
        }
    }

    fn special(&self, tls: &Tls, clearance: Clearance) -> Result<Client, Failure> {
        let key = (digest(tls), clearance);
        let mut special = self.special.lock();
        let client = match special.iter().position(|(known, _)| *known == key) {
            Some(index) => special.remove(index).1,
            None => built(with_tls(self.builder(clearance), tls)?)?,
        };
        special.push((key, client.clone()));
        if special.len() > SPECIAL_MAX {
            special.remove(0);
        }
        Ok(client)
    }

    fn plain(&self, clearance: Clearance) -> Result<Client, Failure> {
        // A machine without any trusted certificates can still speak http.
        built(self.builder(clearance)).or_else(|_| built(self.builder(clearance).tls_certs_only([])))
    }

    fn builder(&self, clearance: Clearance) -> ClientBuilder {
        let egress = match clearance {
            Clearance::Cleared => None,
            Clearance::ByAddress => Some(Arc::clone(&self.egress)),
        };
        let resolver = JudgingResolver { lookup: Arc::clone(&self.lookup), egress };
        Client::builder()
            .dns_resolver(Arc::new(resolver))
            // A proxy would connect to addresses that nobody here has seen.
            .no_proxy()
            .redirect(Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(Duration::from_millis(self.connect_timeout.as_millis()))
            .pool_idle_timeout(IDLE)
            .user_agent(self.user_agent.as_str())
    }
}

fn built(builder: ClientBuilder) -> Result<Client, Failure> {
    builder.build().map_err(|error| Failure::new(ErrorKind::Tls, super::fault::words(&error)))
}

fn digest(tls: &Tls) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(tls).unwrap_or_default()).into()
}

fn with_tls(mut builder: ClientBuilder, tls: &Tls) -> Result<ClientBuilder, Failure> {
    if let Some(pem) = &tls.ca {
        let trusted = Certificate::from_pem_bundle(pem.as_bytes()).unwrap_or_default();
        if trusted.is_empty() {
            return Err(invalid("http.tls.ca does not contain a certificate in PEM format"));
        }
        builder = builder.tls_certs_merge(trusted);
    }
    if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
        let both = format!("{certificate}\n{key}");
        let shown = Identity::from_pem(both.as_bytes())
            .map_err(|_| invalid("http.tls.certificate and key are not a certificate and its key in PEM format"))?;
        builder = builder.identity(shown);
    }
    if tls.verify == Some(false) {
        builder = builder.tls_danger_accept_invalid_certs(true);
    }
    Ok(builder)
}
