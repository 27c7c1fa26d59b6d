//! A way to a server that can be cut, held up, slowed down and mended.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    cut: bool,
    /// Nothing passes in these directions; what was sent is kept.
    held: [bool; 2],
    /// So long is everything that passes under way.
    delay: Duration,
    open: Vec<TcpStream>,
    taken: usize,
}

/// A direction of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// A proxy before a server. It lives as long as the test's process.
    pub fn before(server: SocketAddr) -> Self {
        Self::among(vec![server])
    }

    /// A proxy before several servers, that takes them in turn.
    pub fn among(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let taken = proxy.clone();
        std::thread::spawn(move || {
            // A connection that cannot be made is one that is cut.
            listener.incoming().map_while(Result::ok).for_each(|client| drop(taken.take(client, &servers)));
        });
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    fn take(&self, client: TcpStream, servers: &[SocketAddr]) -> io::Result<()> {
        let mut state = self.state();
        if state.cut {
            return client.shutdown(Shutdown::Both);
        }
        state.taken += 1;
        let server = TcpStream::connect(servers[state.taken % servers.len()])?;
        let ways = [(&client, &server, Direction::ToServer), (&server, &client, Direction::ToClient)];
        for (from, to, direction) in ways {
            let (from, to, proxy) = (from.try_clone()?, to.try_clone()?, self.clone());
            std::thread::spawn(move || {
                drop(proxy.carry(&from, &to, direction));
                drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
            });
        }
        state.open.retain(|stream| stream.peer_addr().is_ok());
        state.open.extend([client, server]);
        Ok(())
    }

    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream, direction: Direction) -> io::Result<()> {
        let mut bytes = [0; 16 * 1024];
        loop {
            let length = from.read(&mut bytes)?;
            if length == 0 {
                return Ok(());
            }
            self.wait(direction);
            to.write_all(&bytes[..length])?;
        }
    }

    /// Waits until the way is free and what goes there has arrived.
    fn wait(&self, direction: Direction) {
        let changed = &self.shared.changed;
        let state = changed.wait_while(self.state(), |state| state.held[direction as usize] && !state.cut).unwrap();
        let delay = state.delay;
        if delay > Duration::ZERO {
            drop(changed.wait_timeout_while(state, delay, |state| !state.cut).unwrap());
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.changed.notify_all();
    }

    /// Breaks every connection, and lets no new one through.
    pub fn cut(&self) {
        self.hang_up();
        self.change(|state| state.cut = true);
        self.hang_up();
    }

    /// Breaks every connection; new ones are let through.
    pub fn hang_up(&self) {
        self.change(|state| state.open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both))));
    }

    /// Connections stay, and nothing passes in these directions.
    pub fn hold(&self, directions: &[Direction]) {
        self.change(|state| directions.iter().for_each(|direction| state.held[*direction as usize] = true));
    }

    /// Everything that passes takes so long.
    pub fn slow(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    pub fn mend(&self) {
        self.change(|state| {
            state.cut = false;
            state.held = [false; 2];
            state.delay = Duration::ZERO;
        });
    }
}
