//! Rota over HTTP: the API, whether a node lives and is ready, what it counts,
//! and the limits under which anything is answered.
//!
//! A request passes the [`guard`] before any route sees it: its host must be
//! one that this node goes by, its body must not be larger than is read, and
//! it is answered within a bounded time. Connections are bounded in number, as are
//! the requests in work, the headers a client may send and the time it may take
//! to send or to read anything ([`bounds`], [`patience`]). Whatever is refused is
//! refused with a problem document.
//!
//! All of it runs on threads of its own ([`threads`]): whatever requests do there,
//! no stage of the engine waits for it.
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
mod bounds;
mod cursor;
mod guard;
mod health;
mod metrics;
mod patience;
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
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::Semaphore,
    time::timeout,
};

pub use self::{
    access::{
        ADMIN_VARIABLE, Access, AccessOptions, JwtKeys, JwtOptions, Login, Peer, hash_password, new_secret,
        wire::token as token_on_wire,
    },
    bounds::Bounds,
    guard::Hosts,
    problem::Problem,
};
use self::{bounds::Feeds, patience::Patient};

/// Bytes of a body that anything here reads.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request's line and headers together.
const HEADER_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 64;
/// Clients that are told at once that there is no room for them; the next one is
/// not told.
const REFUSALS_MAX: usize = 64;
/// How long such a client may take to hear it.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Threads of the API that wait for something the system does not tell of: a file
/// being read, a password being compared.
const BLOCKING_MAX: usize = 16;
/// How long a failure to accept is left alone, so that a machine that is out of
/// file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests under way may take when the server stops.
const LAST_REQUESTS: Duration = Duration::from_secs(3);

/// What the routes know of the node, from before it has started until after it
/// has stopped. Clones are the same.
#[derive(Clone)]
pub struct Node(Arc<Shared>);

struct Shared {
    /// The engine, and the tenant of an installation that knows only one.
    engine: OnceLock<(Engine, TenantId)>,
    draining: AtomicBool,
    access: Access,
    bounds: Bounds,
    /// Places for requests in work.
    requests: Arc<Semaphore>,
    feeds: Feeds,
}

impl Default for Node {
    fn default() -> Self {
        Self::new(Access::default(), Bounds::default())
    }
}

impl Node {
    /// A node whose callers are known by `access`, and held to `bounds`; by default
    /// nobody need say who they are.
    pub fn new(access: Access, bounds: Bounds) -> Self {
        Self(Arc::new(Shared {
            engine: OnceLock::new(),
            draining: AtomicBool::new(false),
            access,
            bounds,
            requests: Arc::new(Semaphore::new(bounds.requests_max)),
            feeds: Feeds::default(),
        }))
    }

    fn bounds(&self) -> Bounds {
        self.0.bounds
    }

    fn requests(&self) -> &Arc<Semaphore> {
        &self.0.requests
    }

    fn feeds(&self) -> &Feeds {
        &self.0.feeds
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

/// Threads that answer requests and do nothing else; `each` is called on every one
/// of them before it begins.
pub fn threads(count: usize, each: fn()) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(count)
        .max_blocking_threads(BLOCKING_MAX)
        .thread_name("rota-api")
        .on_thread_start(each)
        .enable_all()
        .build()
}

/// An address that is bound and not served yet.
pub struct Server {
    /// Belongs to no runtime until it is served on one.
    listener: std::net::TcpListener,
    address: SocketAddr,
}

impl Server {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener: listener.into_std()?, address })
    }

    /// Where it can be reached; the port that the system chose, where it did.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop`, and then those that are under way, on the
    /// runtime that this is polled by.
    pub async fn serve(self, node: Node, hosts: Hosts, stop: impl Future<Output = ()>) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        let bounds = node.bounds();
        let service = TowerToHyperService::new(router(node, hosts));
        let connections = Arc::new(Semaphore::new(bounds.connections_max));
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let graceful = GracefulShutdown::new();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(bounds.head_time)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEADER_BYTES_MAX);
        tokio::pin!(stop);
        loop {
            let stream = tokio::select! {
                stream = accept(&listener) => stream,
                () = &mut stop => break,
            };
            let (stream, peer) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
                if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
                    tokio::spawn(async move {
                        // Whoever does not listen need not hear it.
                        drop(timeout(REFUSAL_TIME, refuse(stream)).await);
                        drop(permit);
                    });
                }
                continue;
            };
            let service = service.clone();
            let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(peer);
                service.call(request)
            });
            let connection =
                graceful.watch(http.serve_connection(TokioIo::new(Patient::new(stream, bounds.reading_time)), answer));
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection broke off");
                }
                drop(permit);
            });
        }
        drop(listener);
        if timeout(LAST_REQUESTS, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests were still under way when the server stopped");
        }
        Ok(())
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, Peer)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, Peer(peer.ip().to_canonical())))
}

/// Says that there is no room for another connection, whatever is asked for.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let problem = Problem::busy();
    let body = serde_json::to_string(problem.document())?;
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: {}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        problem.seconds().unwrap_or(1),
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with something unread would take the answer back.
    let mut asked = [0; 4096];
    while stream.read(&mut asked).await? > 0 {}
    Ok(())
}

/// Every route there is, behind the guard.
pub fn router(node: Node, hosts: Hosts) -> Router {
    let api = routes::router()
        .layer(middleware::from_fn_with_state(node.clone(), access::audit::keep))
        .layer(middleware::from_fn_with_state(node.clone(), bounds::admit));
    let guard = guard::Guard { hosts: Arc::new(hosts), bounds: node.bounds() };
    Router::new()
        .route("/", get(health::index))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::scrape))
        .merge(api)
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .fallback(async || Problem::not_found())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .with_state(node)
}

#[cfg(test)]
mod tests;
