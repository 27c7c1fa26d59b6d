//! Rota over HTTP: the API, whether a node lives and is ready, what it counts,
//! and the limits under which anything is answered.
//!
//! A request passes the [`guard`] before any route sees it: its host must be
//! one that this node goes by, its body must not be larger than is read, and
//! it is answered within a bounded time. Connections are bounded in number, and
//! so are the headers a client may send and the time it may take to send them.
//! Whatever is refused is refused with a problem document.
//!
//! The address is bound before the store is opened, so that a port that is taken
//! is told first, and a node that is still starting is seen to live.
//!
//! A route of the API reads its caller ([`access`]), its parameters ([`query`])
//! and its body ([`body`]), asks the engine or the store, and writes the answer
//! in wire types ([`wire`]). It decides nothing.
//!
//! What a request changes is written into the audit log by a layer around the
//! API ([`access::audit`]).
//!
//! No TLS: a proxy does that.

mod access;
mod body;
mod cursor;
mod guard;
mod health;
mod metrics;
mod problem;
mod query;
mod routes;
mod wire;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use axum::{Router, extract::DefaultBodyLimit, middleware, routing::get};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use rota_core::ids::TenantId;
use rota_engine::Engine;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

pub use self::{
    access::{ADMIN_VARIABLE, Access, AccessOptions, JwtKeys, JwtOptions, Login, Peer, hash_password, new_secret},
    guard::Hosts,
    problem::Problem,
};

/// Bytes of a body that anything here reads.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request's line and headers together.
const HEADER_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 64;
/// A client that is slower than this with its headers, or silent for so long
/// between two requests, is not waited for. No round number: a scraper that asks
/// every 15 or 30 seconds must not find its connection closed as it asks.
const HEADER_TIME_MAX: Duration = Duration::from_secs(40);
/// Connections at once; the next one waits in the system's queue.
const CONNECTIONS_MAX: usize = 1_024;
/// How long a failure to accept is left alone, so that a machine that is out of
/// file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests under way may take when the server stops.
const LAST_REQUESTS: Duration = Duration::from_secs(3);

/// What the routes know of the node, from before it has started until after it
/// has stopped. Clones are the same.
#[derive(Clone, Default)]
pub struct Node(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The engine, and the tenant of an installation that knows only one.
    engine: OnceLock<(Engine, TenantId)>,
    draining: AtomicBool,
    access: Access,
}

impl Node {
    /// A node whose callers are known by `access`; by default nobody need say who
    /// they are.
    pub fn new(access: Access) -> Self {
        Self(Arc::new(Shared { access, ..Shared::default() }))
    }

    fn access(&self) -> &Access {
        &self.0.access
    }

    /// The engine has started.
    pub fn started(&self, engine: Engine, tenant: TenantId) {
        // A node starts once; were it told twice, the first one stands.
        drop(self.0.engine.set((engine, tenant)));
    }

    /// It takes no more work, and will go.
    pub fn draining(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    fn engine(&self) -> Option<&Engine> {
        self.0.engine.get().map(|(engine, _)| engine)
    }

    fn tenant(&self) -> Result<TenantId, Problem> {
        self.0.engine.get().map(|(_, tenant)| *tenant).ok_or_else(|| Problem::not_ready("the node is starting"))
    }

    fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }
}

/// An address that is bound and not served yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it can be reached; the port that the system chose, where it did.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop`, and then those that are under way.
    pub async fn serve(self, node: Node, hosts: Hosts, stop: impl Future<Output = ()>) {
        let service = TowerToHyperService::new(router(node, hosts));
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let graceful = GracefulShutdown::new();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME_MAX)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEADER_BYTES_MAX);
        tokio::pin!(stop);
        loop {
            let stream = tokio::select! {
                stream = accept(&self.listener, &connections) => stream,
                () = &mut stop => break,
            };
            let (stream, peer, permit) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let service = service.clone();
            let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(peer);
                service.call(request)
            });
            let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), answer));
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection broke off");
                }
                drop(permit);
            });
        }
        drop(self.listener);
        if timeout(LAST_REQUESTS, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests were still under way when the server stopped");
        }
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, Peer, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, Peer(peer.ip().to_canonical()), permit))
}

/// Every route there is, behind the guard.
pub fn router(node: Node, hosts: Hosts) -> Router {
    Router::new()
        .route("/", get(health::index))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::scrape))
        .merge(routes::router().layer(middleware::from_fn_with_state(node.clone(), access::audit::keep)))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .fallback(async || Problem::not_found())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::new(hosts), guard::check))
        .with_state(node)
}

#[cfg(test)]
mod tests;
