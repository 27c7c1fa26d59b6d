//! Bounds: how many may ask at once, and how long they may take.
//!
//! Each ends something that a client could otherwise hold for ever: a connection,
//! a place among the requests in work, a feed. Whoever comes when all places are
//! taken is told so at once and when to come again; nobody is kept waiting in the
//! dark.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use rota_api::problem::Code;
use rota_core::ids::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    Node,
    memory::{Memory, Share, Shares},
    problem::Problem,
};

/// What one node allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections_max: usize,
    /// Of these, connections from one address.
    pub address_connections_max: usize,
    /// Connections beyond those, which are answered health and metrics, and all else
    /// that there is no room.
    pub reserve_max: usize,
    /// Requests of the API in work at once. One whose body is still coming is not
    /// in work, nor is a worker that waits for attempts or a feed that is followed.
    pub requests_max: usize,
    /// Streams of many lines at once. One of them is in work for as long as a batch of its
    /// lines is being written.
    pub streams_max: usize,
    /// Feeds of events followed at once, by all tenants together.
    pub feeds_max: usize,
    /// Feeds of events followed at once by the callers of one tenant.
    pub tenant_feeds_max: usize,
    /// A client that is slower than this with the first headers of a connection is not
    /// waited for.
    pub first_head_time: Duration,
    /// Nor is one that is slower than this with other headers, or silent for so long
    /// between two requests. By default no round number: a
    /// scraper that asks every 15 or 30 seconds must not find its connection
    /// closed as it asks.
    pub head_time: Duration,
    /// A body must have come within this time; of a stream, its next line.
    pub body_time: Duration,
    /// No answer may take longer.
    pub answer_time: Duration,
    /// A client that takes nothing of its answer for so long is given up.
    pub reading_time: Duration,
    /// How often a feed says that it lives.
    pub feed_time: Duration,
    /// How often whatever lasts longer than a request looks whether its caller may still
    /// have it.
    pub recheck_time: Duration,
    /// What requests and answers may hold, all together.
    pub memory: Shares,
}

impl Bounds {
    /// How many of the connections one address may have where nothing is said. Large
    /// enough for the hundreds of workers of a network behind one address.
    pub const fn share_of(connections: usize) -> usize {
        connections - connections / 4
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_max: 1_024,
            address_connections_max: Self::share_of(1_024),
            reserve_max: 64,
            requests_max: 256,
            streams_max: 64,
            feeds_max: 256,
            tenant_feeds_max: 64,
            first_head_time: Duration::from_secs(5),
            head_time: Duration::from_secs(40),
            body_time: Duration::from_secs(30),
            answer_time: Duration::from_secs(30),
            reading_time: Duration::from_secs(30),
            feed_time: Duration::from_secs(10),
            recheck_time: Duration::from_millis(500),
            memory: Shares::default(),
        }
    }
}

/// Requests that wait by design, and hold something else that is bounded: a
/// worker its connection, a feed its place among feeds.
const WAITING: [&str; 2] = ["/api/v1/workers/sync", "/api/v1/events"];

/// A request's place among those in work, and its share of memory. Clones are the same.
#[derive(Clone)]
pub struct Place {
    places: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    held: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    memory: Memory,
    work: Arc<Mutex<Vec<Share>>>,
}

impl Place {
    fn take(node: &Node) -> Result<Self, Problem> {
        let place = Self { places: Arc::clone(node.requests()), ..Self::beside(node) };
        place.back()?;
        Ok(place)
    }

    /// One that is not counted, for a request that waits by design.
    fn beside(node: &Node) -> Self {
        Self {
            places: Arc::new(Semaphore::new(1)),
            streams: Arc::clone(node.streams()),
            held: Arc::default(),
            memory: node.memory().clone(),
            work: Arc::default(),
        }
    }

    /// Makes room for others while the client is waited for.
    pub fn leave(&self) {
        drop(self.held.lock().take());
        self.work.lock().clear();
    }

    /// Waits until a body may come.
    pub async fn arriving(&self, length: Option<u64>) -> Share {
        self.memory.arriving(length).await
    }

    /// Waits until a text of so many bytes may be worked on, which it is until the place is
    /// left.
    pub async fn work(&self, bytes: usize) {
        let share = self.memory.work(bytes).await;
        self.work.lock().push(share);
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Waits for a place, for work that goes on after the answer has begun.
    pub async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// A place among the streams, for one that goes on after the answer has begun.
    pub fn stream(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Problem::busy())
    }

    /// Takes a place again.
    pub fn back(&self) -> Result<(), Problem> {
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Problem::busy())?;
        *self.held.lock() = Some(permit);
        Ok(())
    }
}

/// Lets in as many requests as may be in work.
///
/// One that changes something is carried out to its end, with its entry in the audit log,
/// although whoever asked hangs up or is answered that it takes too long; it keeps its place
/// for so long.
pub async fn admit(State(node): State<Node>, mut request: Request, next: Next) -> Response {
    if WAITING.contains(&request.uri().path()) {
        request.extensions_mut().insert(Place::beside(&node));
        return next.run(request).await;
    }
    let place = match Place::take(&node) {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(place.clone());
    let changes = !request.method().is_safe();
    let answer = async move {
        let response = next.run(request).await;
        place.leave();
        response
    };
    if !changes {
        return answer.await;
    }
    match tokio::spawn(answer).await {
        Ok(response) => response,
        Err(broken) => match broken.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Problem::not_ready("the node is stopping").into_response(),
        },
    }
}

/// Who follows the events, by tenant.
#[derive(Debug, Default)]
pub struct Feeds(Mutex<HashMap<TenantId, usize>>);

/// A place among those who follow; free again when dropped.
pub struct FeedPlace {
    node: Node,
    tenant: TenantId,
}

impl FeedPlace {
    pub fn take(node: &Node, tenant: TenantId) -> Result<Self, Problem> {
        let Bounds { feeds_max, tenant_feeds_max, .. } = node.bounds();
        let mut feeds = node.feeds().0.lock();
        if feeds.values().sum::<usize>() >= feeds_max {
            return Err(Problem::busy());
        }
        let theirs = feeds.entry(tenant).or_default();
        if *theirs >= tenant_feeds_max {
            let detail = format!(
                "the tenant already follows {tenant_feeds_max} event feeds on this node, which is the maximum; close one"
            );
            return Err(Problem::new(Code::TooMany, detail).retry_after(node.bounds().feed_time.as_secs().max(1)));
        }
        *theirs += 1;
        Ok(Self { node: node.clone(), tenant })
    }
}

impl Drop for FeedPlace {
    fn drop(&mut self) {
        let mut feeds = self.node.feeds().0.lock();
        if let Some(theirs) = feeds.get_mut(&self.tenant) {
            *theirs -= 1;
            if *theirs == 0 {
                feeds.remove(&self.tenant);
            }
        }
    }
}
