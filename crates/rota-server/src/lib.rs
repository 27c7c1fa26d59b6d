//! Rota over HTTP: the API, whether a node lives and is ready, what it counts,
//! and the limits under which anything is answered.
//!
//! A request passes the [`guard`] before any route sees it: its host must be
//! one that this node goes by, its body must not be larger than is read, and
//! it is answered within a bounded time. Connections are bounded in number, each
//! address has a share of them ([`connections`]), and bounded are the requests in work,
//! the headers a client may send and the time it may take
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

#![cfg_attr(test, allow(clippy::too_many_lines, reason = "a test tells its whole story in one place"))]

mod access;
mod body;
mod bounds;
mod connections;
mod cursor;
mod guard;
mod heads;
mod health;
mod memory;
mod metrics;
mod patience;
mod problem;
mod query;
mod routes;
mod wire;

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, OnceLock, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::header,
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::StreamExt as _;
use hyper::{
    body::{Body as _, Incoming},
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rota_core::ids::TenantId;
use rota_engine::Engine;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::{Semaphore, watch},
    time::timeout,
};

use self::{
    access::Network,
    bounds::Feeds,
    connections::{Answer, Connections, Place, Refused},
    memory::{Memory, Share},
    patience::Patient,
};
pub use self::{
    access::{
        ADMIN_VARIABLE, Access, AccessOptions, JwtKeys, JwtOptions, Login, Peer, hash_password, new_secret,
        wire::token as token_on_wire,
    },
    bounds::Bounds,
    guard::Hosts,
    memory::Shares,
    problem::Problem,
};

/// What requests are held to, for those who list it.
pub mod limits {
    pub use crate::{
        HEADER_BYTES_MAX, HEADERS_MAX,
        query::{PAGE_BYTES_MAX, QUERY_BYTES_MAX},
        routes::bulk::{LINE_BYTES_MAX, TOUCHED_MAX},
    };
}

/// Bytes of a body that anything here reads.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request's line and headers together.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
pub const HEADERS_MAX: usize = 64;
/// How long a connection that makes room for another may take to close.
const LEAVING_TIME: Duration = Duration::from_secs(1);
/// How long a client that finds no room may take with its body.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Threads of the API that wait for something the system does not tell of: a file
/// being read, a password being compared.
const BLOCKING_MAX: usize = 16;
/// How long a thread beyond the ordinary ones stays when it has nothing to do. Each keeps some
/// megabytes of what it has freed, and evaluations need many for a moment.
pub const IDLE_THREAD_TIME: Duration = Duration::from_millis(100);
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
    /// Places for streams of lines.
    streams: Arc<Semaphore>,
    feeds: Feeds,
    memory: Memory,
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
            streams: Arc::new(Semaphore::new(bounds.streams_max)),
            feeds: Feeds::default(),
            memory: Memory::new(bounds.memory),
        }))
    }

    fn bounds(&self) -> Bounds {
        self.0.bounds
    }

    fn requests(&self) -> &Arc<Semaphore> {
        &self.0.requests
    }

    fn streams(&self) -> &Arc<Semaphore> {
        &self.0.streams
    }

    fn feeds(&self) -> &Feeds {
        &self.0.feeds
    }

    fn memory(&self) -> &Memory {
        &self.0.memory
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
        .thread_keep_alive(IDLE_THREAD_TIME)
        .thread_name("rota-api")
        .on_thread_start(move || {
            rota_engine::elsewhere::mark_thread();
            each();
        })
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
        let (bounds, memory) = (node.bounds(), node.memory().clone());
        let admission = Admission::new(&node, hosts);
        let (stopping, _) = watch::channel(());
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
            if let Some(admitted) = admission.admit(peer) {
                tokio::spawn(admitted.serve(stream, bounds, memory.clone(), stopping.subscribe()));
            }
        }
        drop(listener);
        stopping.send_replace(());
        if timeout(LAST_REQUESTS, stopping.closed()).await.is_err() {
            tracing::warn!("requests were still in progress when the server stopped");
        }
        Ok(())
    }
}

/// Where connections come in: at the API, or where that has no room for them, at what
/// is kept back for health.
struct Admission {
    api: Arc<Connections>,
    routes: TowerToHyperService<Router>,
    reserve: Arc<Connections>,
    reserve_routes: TowerToHyperService<Router>,
}

impl Admission {
    fn new(node: &Node, hosts: Hosts) -> Self {
        let bounds = node.bounds();
        let hosts = Arc::new(hosts);
        Self {
            api: Connections::new(bounds.connections_max, bounds.address_connections_max),
            routes: TowerToHyperService::new(guarded(routes_of(node), node.clone(), &hosts)),
            reserve: Connections::new(bounds.reserve_max, bounds.reserve_max.div_ceil(4)),
            reserve_routes: TowerToHyperService::new(guarded(reserve_routes(), node.clone(), &hosts)),
        }
    }

    /// None where there is no room even to say so.
    fn admit(&self, peer: Peer) -> Option<Admitted> {
        let network = Network::of(peer.0);
        match self.api.take(network) {
            Ok(place) => Some(Admitted { place, routes: self.routes.clone(), peer, refused: None }),
            Err(refused) => {
                let place = self.reserve.take(network).ok()?;
                Some(Admitted { place, routes: self.reserve_routes.clone(), peer, refused: Some(refused) })
            }
        }
    }
}

/// A connection that was let in.
struct Admitted {
    place: Arc<Place>,
    routes: TowerToHyperService<Router>,
    peer: Peer,
    /// Why it is answered nothing but health.
    refused: Option<Refused>,
}

impl Admitted {
    async fn serve(self, stream: TcpStream, bounds: Bounds, memory: Memory, mut stopping: watch::Receiver<()>) {
        let Self { place, routes, peer, refused } = self;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(bounds.head_time)
            .keep_alive(refused.is_none())
            .max_headers(HEADERS_MAX)
            .max_header_size(HEADER_BYTES_MAX);
        let stream = Patient::new(stream, bounds.reading_time, place.sending());
        let open_ended = stream.is_open_ended();
        let answered = Arc::clone(&place);
        let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            if let Some(refused) = refused {
                request.extensions_mut().insert(refused);
            }
            let answering = answered.begin();
            let (is_safe, memory) = (request.method().is_safe(), memory.clone());
            let response = answering.is_some().then(|| routes.call(request));
            let is_last = open_ended.load(Ordering::Relaxed);
            async move {
                let mut response = match response {
                    Some(response) => response.await?,
                    None => Problem::busy().into_response(),
                };
                let room = match room_for(&memory, is_safe, &response) {
                    Ok(room) => room,
                    Err(problem) => {
                        response = problem.into_response();
                        None
                    }
                };
                if is_last {
                    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
                }
                Ok::<_, std::convert::Infallible>(response.map(|body| Answer { body, answering, room }))
            }
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answer));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = place.silent(bounds.first_head_time) => return,
            () = place.evicted() => {
                // A connection that has not asked has nothing to finish.
                if place.has_asked() {
                    connection.as_mut().graceful_shutdown();
                    drop(timeout(LEAVING_TIME, connection).await);
                }
                return;
            }
            _ = stopping.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}

/// Room for an answer while it is sent. What was changed is said however large it is.
fn room_for(memory: &Memory, is_safe: bool, response: &Response) -> Result<Share, Problem> {
    match response.body().size_hint().exact() {
        Some(bytes) if is_safe => memory.answer(bytes),
        _ => Ok(None),
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, Peer)> {
    let (stream, peer) = listener.accept().await?;
    // It only costs a delay where it fails, as for a client that is gone already.
    drop(stream.set_nodelay(true));
    Ok((stream, Peer(peer.ip().to_canonical())))
}

/// Says why there is no room, whatever is asked for.
async fn refuse(request: Request) -> Response {
    let refused = request.extensions().get::<Refused>().copied().unwrap_or(Refused::Full);
    // Closing with something unread would take the answer back.
    let mut body = request.into_body().into_data_stream();
    let read = async {
        let mut bytes = 0;
        while let Some(Ok(chunk)) = body.next().await
            && bytes <= BODY_BYTES_MAX
        {
            bytes += chunk.len();
        }
    };
    drop(timeout(REFUSAL_TIME, read).await);
    refused.problem().into_response()
}

/// Every route there is, behind the guard.
pub fn router(node: Node, hosts: Hosts) -> Router {
    let routes = routes_of(&node);
    guarded(routes, node, &Arc::new(hosts))
}

fn routes_of(node: &Node) -> Router<Node> {
    let api = routes::router()
        .layer(middleware::from_fn_with_state(node.clone(), access::audit::keep))
        .layer(middleware::from_fn_with_state(node.clone(), bounds::admit));
    health_routes().route("/", get(health::index)).merge(api).fallback(async || Problem::not_found())
}

/// What whoever finds no room is answered.
fn reserve_routes() -> Router<Node> {
    health_routes().fallback(refuse)
}

fn health_routes() -> Router<Node> {
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::scrape))
}

fn guarded(routes: Router<Node>, node: Node, hosts: &Arc<Hosts>) -> Router {
    let guard = guard::Guard { hosts: Arc::clone(hosts), bounds: node.bounds() };
    routes
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .with_state(node)
}

#[cfg(test)]
mod tests;
