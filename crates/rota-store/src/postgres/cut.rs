//! A line to the server that breaks at the worst moment, falls silent or is slow,
//! for tests.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// When a line breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cut {
    Never,
    /// The commit is on its way and never arrives.
    BeforeCommit,
    /// The server has committed, and its word never arrives.
    AfterCommit,
    /// The server has committed, and half of its word arrives.
    HalfWay,
}

/// Lines that lead to a server.
pub struct Lines {
    pub port: u16,
    cut: Arc<AtomicU8>,
    silent: Arc<watch::Sender<bool>>,
}

impl Lines {
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicU8::new(Cut::Never as u8));
        let silent = Arc::new(watch::Sender::new(false));
        let (theirs, silence) = (Arc::clone(&cut), Arc::clone(&silent));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(line(client, server, Arc::clone(&theirs), silence.subscribe()));
            }
        });
        Self { port, cut, silent }
    }

    /// From now on all that is said either way is swallowed, and lines stay open; or
    /// new ones are as they were. One that has fallen silent stays so.
    pub fn swallow(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// The next commit breaks its line so.
    pub fn cut(&self, how: Cut) {
        self.cut.store(how as u8, Ordering::SeqCst);
    }
}

async fn line(client: TcpStream, server: TcpStream, cut: Arc<AtomicU8>, mut silent: watch::Receiver<bool>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let doomed = AtomicU8::new(Cut::Never as u8);
    tokio::select! {
        () = up(&mut from_client, &mut to_server, &cut, &doomed) => {}
        () = down(&mut from_server, &mut to_client, &doomed) => {}
        () = async { drop(silent.wait_for(|silent| *silent).await) } => {
            // Neither end hears of it: both stay open here.
            std::future::pending::<()>().await;
        }
    }
}

/// From the client to the server.
async fn up(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, cut: &AtomicU8, doomed: &AtomicU8) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let said = &bytes[..count];
        if has(said, b"COMMIT\0") {
            let how = cut.swap(Cut::Never as u8, Ordering::SeqCst);
            if how == Cut::BeforeCommit as u8 {
                return;
            }
            doomed.store(how, Ordering::SeqCst);
        }
        if to.write_all(said).await.is_err() {
            return;
        }
    }
}

/// From the server to the client.
async fn down(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, doomed: &AtomicU8) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let said = &bytes[..count];
        let doom = doomed.load(Ordering::SeqCst);
        if doom != Cut::Never as u8 {
            if has(said, b"COMMIT\0") {
                if doom == Cut::HalfWay as u8 {
                    drop(to.write_all(&said[..count / 2]).await);
                }
                return;
            }
        } else if to.write_all(said).await.is_err() {
            return;
        }
    }
}

fn has(said: &[u8], word: &[u8]) -> bool {
    said.windows(word.len()).any(|window| window == word)
}
