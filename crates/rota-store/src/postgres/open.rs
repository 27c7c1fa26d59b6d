//! Opening: connections, their settings, TLS, and the schema.
//!
//! TLS follows `sslmode` in the address. `require` encrypts and trusts whoever
//! answers, as PostgreSQL's own clients do; `verify-ca` and `verify-full` check
//! the certificate against `sslrootcert` or the system's roots. The system's,
//! not a bundled list: a database is usually signed by a company's own root,
//! which is installed there and in no bundle.

use std::{fs::File, future::poll_fn, io::BufReader, sync::Arc, time::Duration};

use deadpool_postgres::{Connect, Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use futures_util::future::BoxFuture;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_postgres::{
    Client, Config, NoTls, Socket,
    config::{Host, SslMode},
    tls::{MakeTlsConnect, TlsConnect},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{Connections, Postgres, PostgresStore, days::Days, migrate, tend::Tending};
use crate::{engine::SqlStore, unreadable::Notes};

/// How to open the store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The schema that holds the tables; made if it is not there. None means
    /// the server's default.
    pub schema: Option<String>,
    /// Connections for work, and half as many again for guests.
    pub work_connections: usize,
    /// Connections kept back for leases and heartbeats.
    pub lease_connections: usize,
    /// How long to wait for a connection before giving up.
    pub wait: Duration,
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        let (wait, limits) = (Duration::from_secs(10), Limits::default());
        Self { schema: None, work_connections: 8, lease_connections: 2, wait, limits }
    }
}

/// How long one statement may take, by what it is for. A second later the connection
/// is given up, too.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Beats, leases, and the server's clock: less than a node's lease.
    pub leases: Duration,
    /// What the stages write and read: milliseconds, unless the server is very busy.
    pub work: Duration,
    /// What people ask for.
    pub guests: Duration,
    /// Migrations, days of history that come and go, clearing away.
    pub upkeep: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { leases: secs(2), work: secs(15), guests: secs(30), upkeep: secs(3_600) }
    }
}

/// Why the store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the database address cannot be read")]
    Address(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the TLS settings of the database address cannot be used: {0}")]
    Tls(String),
    #[error("the database could not be reached")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the database has schema {found}, and this release knows schemas up to {known}: a later \
         release has changed it so that this one cannot use it; use that release"
    )]
    Newer { found: i64, known: i64 },
    #[error("migration {version} was changed after it was applied to this database")]
    Altered { version: i32 },
    #[error("migration {version} failed")]
    Migration { version: i32, source: tokio_postgres::Error },
    #[error("the database could not be prepared")]
    Prepare(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl PostgresStore {
    /// Opens the store, bringing its schema up to date. Safe when many nodes
    /// do it at once.
    pub async fn open(url: &str, options: Options) -> Result<Self, OpenError> {
        let schema = options.schema.clone();
        if schema.as_deref().is_some_and(|name| name.is_empty() || name.len() > 63 || name.contains(['"', '\0'])) {
            return Err(OpenError::Address("not a name for a schema".into()));
        }
        let mut address = Address::parse(url)?;
        address.config.application_name("rota");
        let (home, limits, notes) = (Some(Handle::current()), options.limits, Arc::<Notes>::default());
        let connections = |size, limit| {
            let own = pool(&address, size, &options, limit, home.clone())?;
            Ok(Connections { own, guests: None, limit, notes: Arc::clone(&notes) })
        };
        let guests = pool(&address, options.work_connections.div_ceil(2), &options, limits.guests, None)?;
        let (work, leases, upkeep) = (
            connections(options.work_connections, limits.work)?,
            connections(options.lease_connections, limits.leases)?,
            connections(UPKEEP_CONNECTIONS, limits.upkeep)?,
        );
        let store = SqlStore(Postgres {
            work: Connections { guests: Some((guests, limits.guests)), ..work },
            leases,
            upkeep,
            address,
            schema,
            days: Days::default(),
            lane_modes: parking_lot::RwLock::default(),
            tending: Tending::default(),
            notes,
        });
        let client = store.upkeep.get().await.map_err(|e| OpenError::Connect(Box::new(e)))?;
        migrate::migrate(&client, store.schema.as_deref()).await?;
        drop(client);
        Ok(store)
    }

    /// Runs a statement that is not the port's: for tests and benchmarks.
    pub async fn execute_raw(&self, sql: &str) -> Result<(), OpenError> {
        let client = self.upkeep.get().await.map_err(|e| OpenError::Connect(Box::new(e)))?;
        client.batch_execute(sql).await.map_err(|e| OpenError::Prepare(Box::new(e)))
    }

    /// Drops the store's own schema and all in it: for tests.
    pub async fn drop_schema(&self) -> Result<(), tokio_postgres::Error> {
        let Some(schema) = &self.schema else { return Ok(()) };
        if let Ok(client) = self.upkeep.get().await {
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", quoted(schema))).await?;
        }
        Ok(())
    }
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// One that clears away and one that makes a day of history meanwhile.
const UPKEEP_CONNECTIONS: usize = 2;

/// A pool whose connections are served by the runtime `home`, or by that of whoever
/// needs one first. A statement on them may take up to `limit`.
pub(super) fn pool(
    address: &Address,
    size: usize,
    options: &Options,
    limit: Duration,
    home: Option<Handle>,
) -> Result<Pool, OpenError> {
    let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let config = address.config.clone();
    let manager = match &address.tls {
        None => Manager::from_connect(config, AtHome { home, tls: NoTls }, recycle),
        Some(tls) => {
            let tls = MakeRustlsConnect::new(ClientConfig::clone(tls));
            Manager::from_connect(config, AtHome { home, tls }, recycle)
        }
    };
    let settings = session_settings(options.schema.as_deref(), limit);
    // Nobody waits longer for a connection than for what it is wanted for.
    let wait = options.wait.min(limit * 2);
    Pool::builder(manager)
        .max_size(size.max(1))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(wait))
        .create_timeout(Some(wait))
        .post_create(Hook::async_fn(move |client, _| {
            let settings = settings.clone();
            Box::pin(async move {
                let set = tokio::time::timeout(wait, client.batch_execute(&settings)).await;
                set.map_err(|_| HookError::message("the database did not answer"))?.map_err(HookError::Backend)
            })
        }))
        .build()
        .map_err(|e| OpenError::Connect(Box::new(e)))
}

/// Makes connections on the runtime they belong to.
///
/// A connection is driven by a task and a reactor. Made on the runtime of whoever
/// happens to ask first, a stage's connection could end up on the API's threads,
/// and stand still when those are busy.
struct AtHome<T> {
    home: Option<Handle>,
    tls: T,
}

impl<T> Connect for AtHome<T>
where
    T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static,
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let (config, tls) = (config.clone(), self.tls.clone());
        let mut connecting = Box::pin(async move {
            let (client, connection) = config.connect(tls).await?;
            let driving = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::warn!(%error, "a connection to the database broke");
                }
            });
            Ok((client, driving))
        });
        Box::pin(poll_fn(move |context| {
            let _at_home = self.home.as_ref().map(Handle::enter);
            connecting.as_mut().poll(context)
        }))
    }
}

/// So long the server waits for the next word of a transaction. Then it rolls back
/// and lets go of its locks: a node that stands still in the midst of a write would
/// else hold its partitions against everybody, however long its lease is over. Less
/// than a lease, so that nobody who takes over has to wait for it.
const SILENCE_MAX: &str = "2s";

/// One plan for each statement, whatever the values bound to it, and one that
/// goes through the indexes: the table of live runs is empty every now and then,
/// and a plan made at such a moment would read all of it at every call, for as
/// long as the connection lives.
fn session_settings(schema: Option<&str>, limit: Duration) -> String {
    let mut settings = format!(
        "SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off; \
         SET idle_in_transaction_session_timeout = '{SILENCE_MAX}'; SET statement_timeout = {}",
        limit.as_millis()
    );
    if let Some(schema) = schema {
        settings.push_str("; SET search_path = ");
        settings.push_str(&quoted(schema));
    }
    settings
}

/// A parsed address.
#[derive(Clone)]
pub(super) struct Address {
    pub config: Config,
    pub tls: Option<Arc<ClientConfig>>,
}

/// The `sslmode` values, `verify-*` included, which the driver does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verify {
    Nobody,
    Authority,
    Full,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let (url, mode) = take_parameter(url, "sslmode");
        let (url, root) = take_parameter(&url, "sslrootcert");
        let mut config: Config = url.parse().map_err(|e| OpenError::Address(Box::new(e)))?;
        let (ssl_mode, verify) = match mode.as_deref() {
            Some("disable") => (SslMode::Disable, Verify::Nobody),
            None | Some("prefer" | "allow") => (SslMode::Prefer, Verify::Nobody),
            Some("require") if root.is_none() => (SslMode::Require, Verify::Nobody),
            // With a root given, PostgreSQL's clients check it even here.
            Some("require" | "verify-ca") => (SslMode::Require, Verify::Authority),
            Some("verify-full") => (SslMode::Require, Verify::Full),
            Some(other) => return Err(OpenError::Tls(format!("`{}` is no sslmode", other.escape_debug()))),
        };
        config.ssl_mode(ssl_mode);
        notice_the_dead(&mut config);
        let local = config.get_hosts().iter().all(|host| !matches!(host, Host::Tcp(_)));
        let tls = if ssl_mode == SslMode::Disable || local { None } else { Some(tls(verify, root.as_deref())?) };
        Ok(Self { config, tls })
    }
}

/// How long a server may leave what was sent to it unacknowledged.
const UNHEARD_MAX: Duration = Duration::from_secs(6);
/// What the driver does where the address says nothing.
const DRIVERS_IDLE: Duration = Duration::from_hours(2);

/// Has the kernel notice a server whose packets vanish, within seconds, whether it is
/// being spoken to or not. What the address says about it counts.
fn notice_the_dead(config: &mut Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(3));
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNHEARD_MAX);
    }
    if config.get_keepalives_idle() == DRIVERS_IDLE {
        config
            .keepalives_idle(Duration::from_secs(3))
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(3);
    }
}

/// Takes `name=value` out of an address in either of its two forms.
fn take_parameter(url: &str, name: &str) -> (String, Option<String>) {
    let is_url = url.contains("://");
    let separator = if is_url { '&' } else { ' ' };
    let (base, parameters) = match url.split_once('?') {
        Some((base, parameters)) if is_url => (Some(base), parameters),
        _ if is_url => return (url.to_owned(), None),
        _ => (None, url),
    };
    let mut value = None;
    let mut kept = Vec::new();
    for parameter in parameters.split(separator) {
        match parameter.split_once('=') {
            Some((key, given)) if key == name => value = Some(given.to_owned()),
            _ => kept.push(parameter),
        }
    }
    let kept = kept.join(&separator.to_string());
    let url = match base {
        Some(base) if kept.is_empty() => base.to_owned(),
        Some(base) => format!("{base}?{kept}"),
        None => kept,
    };
    (url, value.map(|value| if is_url { unescaped(&value) } else { value }))
}

/// Percent-decoding, for a path in a query.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(code)) => {
                plain.push(code);
                at += 3;
            }
            (byte, _) => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn tls(verify: Verify, root: Option<&str>) -> Result<Arc<ClientConfig>, OpenError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| OpenError::Tls(e.to_string()))?;
    let config = match verify {
        Verify::Full => builder.with_root_certificates(roots(root)?).with_no_client_auth(),
        Verify::Authority | Verify::Nobody => {
            let authority = match verify {
                Verify::Authority => Some(
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots(root)?), Arc::clone(&provider))
                        .build()
                        .map_err(|e| OpenError::Tls(e.to_string()))?,
                ),
                Verify::Nobody | Verify::Full => None,
            };
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(LaxVerifier { authority, provider }))
                .with_no_client_auth()
        }
    };
    Ok(Arc::new(config))
}

fn roots(path: Option<&str>) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    let certificates: Vec<CertificateDer<'static>> = match path {
        Some(path) if path != "system" => {
            let file = File::open(path).map_err(|e| OpenError::Tls(format!("{path}: {e}")))?;
            CertificateDer::pem_reader_iter(BufReader::new(file))
                .collect::<Result<_, _>>()
                .map_err(|e| OpenError::Tls(format!("{path}: {e}")))?
        }
        _ => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(OpenError::Tls("there is no root certificate to check the server's by".into()));
    }
    Ok(roots)
}

/// Checks signatures always, the certificate's authority where asked to, and
/// the host's name never: `require` and `verify-ca`.
#[derive(Debug)]
struct LaxVerifier {
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for LaxVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
