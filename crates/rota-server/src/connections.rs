//! Connections: how many there may be, how many of one address, and which one makes
//! room for a new one.
//!
//! A table of connections has a bound, and each address a share of it, so that one
//! caller cannot keep out all others. Where there is no room a connection that is idle
//! is evicted: for an address at its share its own oldest one, and in a full table the
//! oldest one of the address that holds most. A connection is idle while no request of
//! it is being answered and nothing of an answer is left to send, so nobody loses
//! anything but the way to the next request. One whose head is still coming is idle
//! too: opening connections keeps nobody out.
//!
//! Whoever finds no place is not dropped but served from a second, small table, which
//! answers health and metrics and tells everybody else why there is no room.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body as HttpBody, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use rota_api::problem::Code;
use tokio::{sync::Notify, time::sleep};

use crate::{access::Network, memory::Share, problem::Problem};

/// Evicted connections that have not closed yet; while there are as many nobody is
/// evicted, so that their number is bounded with the others'.
const LEAVING_MAX: usize = 64;

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node has as many as it takes.
    Full,
    /// The address has its share, which is so many.
    Share(usize),
}

impl Refused {
    pub fn problem(self) -> Problem {
        match self {
            Self::Full => Problem::busy(),
            Self::Share(most) => {
                let detail = format!(
                    "this address has {most} connections to this node, which is the most that it may have \
                     (`http.connections_per_address`)"
                );
                Problem::new(Code::TooManyConnections, detail).retry_after(1)
            }
        }
    }
}

/// The connections that there are.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    share: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Grows with everything that is put in order.
    turn: u64,
    /// By the turn in which they came.
    all: BTreeMap<u64, Entry>,
    by_network: HashMap<Network, usize>,
    leaving: usize,
}

#[derive(Debug)]
struct Entry {
    network: Network,
    /// Since which turn no request is being answered.
    idle_since: Option<u64>,
    state: Arc<State>,
}

/// What the tasks around a connection know of it.
#[derive(Debug, Default)]
struct State {
    evicted: Notify,
    has_asked: AtomicBool,
    is_sending: AtomicBool,
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    number: u64,
    state: Arc<State>,
}

/// A request is being answered.
#[derive(Debug)]
pub struct Answering(Arc<Place>);

/// Whether something of an answer waits for its client.
#[derive(Clone, Debug, Default)]
pub struct Sending(Arc<State>);

impl Connections {
    pub fn new(most: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { most, share, held: Mutex::default() })
    }

    /// A place for a connection from there, if need be that of an idle one.
    pub fn take(self: &Arc<Self>, network: Network) -> Result<Arc<Place>, Refused> {
        let mut held = self.held.lock();
        let theirs = held.by_network.get(&network).copied().unwrap_or_default();
        if theirs >= self.share && self.share < self.most {
            let own = held.oldest_idle(|entry| entry.network == network);
            held.evict(own).ok_or(Refused::Share(self.share))?;
        } else if held.all.len() >= self.most {
            let oldest = held.oldest_idle(|_| true);
            held.evict(oldest).ok_or(Refused::Full)?;
        }
        let number = held.next_turn();
        let state = Arc::<State>::default();
        held.all.insert(number, Entry { network, idle_since: Some(number), state: Arc::clone(&state) });
        *held.by_network.entry(network).or_default() += 1;
        Ok(Arc::new(Place { connections: Arc::clone(self), number, state }))
    }
}

impl Held {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Of the idle ones one of the address that has most, and of those the oldest.
    fn oldest_idle(&self, counts: impl Fn(&Entry) -> bool) -> Option<u64> {
        let idle =
            self.all.iter().filter(|(_, entry)| counts(entry) && !entry.state.is_sending.load(Ordering::Relaxed));
        let ranked = idle.filter_map(|(number, entry)| {
            let since = entry.idle_since?;
            Some((self.by_network.get(&entry.network), std::cmp::Reverse(since), *number))
        });
        ranked.max().map(|(_, _, number)| number)
    }

    fn evict(&mut self, number: Option<u64>) -> Option<()> {
        let number = number.filter(|_| self.leaving < LEAVING_MAX)?;
        self.remove(number)?.evicted.notify_one();
        self.leaving += 1;
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<Arc<State>> {
        let entry = self.all.remove(&number)?;
        if let Some(count) = self.by_network.get_mut(&entry.network) {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&entry.network);
            }
        }
        Some(entry.state)
    }
}

impl Place {
    /// A request has come. None where the place has been given to somebody else.
    pub fn begin(self: &Arc<Self>) -> Option<Answering> {
        self.state.has_asked.store(true, Ordering::Relaxed);
        self.connections.held.lock().all.get_mut(&self.number)?.idle_since = None;
        Some(Answering(Arc::clone(self)))
    }

    pub fn has_asked(&self) -> bool {
        self.state.has_asked.load(Ordering::Relaxed)
    }

    /// Returns when the connection must make room.
    pub async fn evicted(&self) {
        self.state.evicted.notified().await;
    }

    /// Returns when nothing was asked for so long since it came.
    pub async fn silent(&self, time: Duration) {
        sleep(time).await;
        if self.has_asked() {
            std::future::pending::<()>().await;
        }
    }

    pub fn sending(&self) -> Sending {
        Sending(Arc::clone(&self.state))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.connections.held.lock();
        if held.remove(self.number).is_none() {
            held.leaving -= 1;
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut held = self.0.connections.held.lock();
        let turn = held.next_turn();
        if let Some(entry) = held.all.get_mut(&self.0.number) {
            entry.idle_since = Some(turn);
        }
    }
}

impl Sending {
    pub fn set(&self, sending: bool) {
        self.0.is_sending.store(sending, Ordering::Relaxed);
    }
}

/// An answer's body, whose connection is at work until it has ended.
pub struct Answer {
    pub body: HttpBody,
    #[expect(dead_code, reason = "held until the body has ended")]
    pub answering: Option<Answering>,
    #[expect(dead_code, reason = "held until the body has ended")]
    pub room: Share,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn from(last: u8) -> Network {
        Network::of(IpAddr::from([10, 0, 0, last]))
    }

    fn has_room(place: &Place) -> bool {
        place.connections.held.lock().all.contains_key(&place.number)
    }

    #[test]
    fn an_address_at_its_share_gives_up_its_own_oldest_idle_connection() {
        let connections = Connections::new(10, 3);
        let other = connections.take(from(2)).unwrap();
        let own: Vec<_> = (0..3).map(|_| connections.take(from(1)).unwrap()).collect();
        let answering = own[0].begin();
        let newest = connections.take(from(1)).unwrap();
        assert_eq!(
            [&own[0], &own[1], &own[2], &newest, &other].map(|place| has_room(place)),
            [true, false, true, true, true]
        );
        // What has asked is idle from the end of its answer on.
        drop(answering);
        drop(connections.take(from(1)).unwrap());
        assert_eq!([&own[0], &own[2]].map(|place| has_room(place)), [true, false]);
        assert!(own[1].begin().is_none(), "an evicted connection begins nothing");
    }

    #[test]
    fn a_full_table_evicts_of_the_address_that_holds_most_and_nobody_at_work() {
        let connections = Connections::new(4, 4);
        let lone = connections.take(from(1)).unwrap();
        let many: Vec<_> = (0..3).map(|_| connections.take(from(2)).unwrap()).collect();
        let third = connections.take(from(3)).unwrap();
        assert!(has_room(&lone) && !has_room(&many[0]), "the oldest of all is not of whoever has most");
        let working = [&lone, &many[1], &third].map(Place::begin);
        many[2].sending().set(true);
        assert_eq!(connections.take(from(4)).err(), Some(Refused::Full), "it is still being sent to");
        many[2].sending().set(false);
        assert!(connections.take(from(4)).is_ok() && !has_room(&many[2]));
        drop(working);
    }

    #[test]
    fn a_place_is_free_again_when_its_connection_ends() {
        let connections = Connections::new(2, 1);
        let place = connections.take(from(1)).unwrap();
        let answering = place.begin();
        assert_eq!(connections.take(from(1)).err(), Some(Refused::Share(1)));
        drop((place, answering));
        assert!(connections.take(from(1)).is_ok());
        let held = connections.held.lock();
        assert_eq!((held.all.len(), held.by_network.len(), held.leaving), (0, 0, 0));
    }

    /// Somebody who connects faster than connections close must not pile them up.
    #[test]
    fn evicted_connections_that_do_not_close_are_bounded_too() {
        let connections = Connections::new(2, 1);
        let mut held: Vec<_> = (0..=LEAVING_MAX).map(|_| connections.take(from(1)).unwrap()).collect();
        assert_eq!(connections.take(from(1)).err(), Some(Refused::Share(1)));
        drop(held.remove(0));
        assert!(connections.take(from(1)).is_ok());
    }
}
