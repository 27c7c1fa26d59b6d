//! A way to PostgreSQL that can be cut and mended.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    open: Vec<TcpStream>,
}

impl Proxy {
    /// A proxy before a server. It lives as long as the test's process.
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let taken = proxy.clone();
        std::thread::spawn(move || {
            // A connection that cannot be made is one that is cut.
            listener.incoming().map_while(Result::ok).for_each(|client| drop(taken.take(client, server)));
        });
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn take(&self, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.cut {
            return client.shutdown(Shutdown::Both);
        }
        let server = TcpStream::connect(server)?;
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            std::thread::spawn(move || {
                drop(io::copy(&mut from, &mut to));
                drop(to.shutdown(Shutdown::Both));
            });
        }
        state.open.extend([client, server]);
        Ok(())
    }

    /// Breaks every connection, and lets no new one through.
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        state.open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    pub fn mend(&self) {
        self.state.lock().unwrap().cut = false;
    }
}
