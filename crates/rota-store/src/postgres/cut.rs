//! A line to the server that breaks at the worst moment, for tests.

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
}

/// Lines that lead to a server.
pub struct Lines {
    pub port: u16,
    cut: Arc<AtomicU8>,
}

impl Lines {
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicU8::new(Cut::Never as u8));
        let theirs = Arc::clone(&cut);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(line(client, server, Arc::clone(&theirs)));
            }
        });
        Self { port, cut }
    }

    /// The next commit breaks its line so.
    pub fn cut(&self, how: Cut) {
        self.cut.store(how as u8, Ordering::SeqCst);
    }
}

async fn line(client: TcpStream, server: TcpStream, cut: Arc<AtomicU8>) {
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let doomed = AtomicU8::new(Cut::Never as u8);
    tokio::select! {
        () = up(from_client, to_server, &cut, &doomed) => {}
        () = down(from_server, to_client, &doomed) => {}
    }
}

/// From the client to the server.
async fn up(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cut: &AtomicU8, doomed: &AtomicU8) {
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
async fn down(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, doomed: &AtomicU8) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let said = &bytes[..count];
        if doomed.load(Ordering::SeqCst) == Cut::AfterCommit as u8 {
            if has(said, b"COMMIT\0") {
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
