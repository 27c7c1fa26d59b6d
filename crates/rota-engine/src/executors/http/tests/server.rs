//! A small HTTP server on loopback, and a name server that says what it is told.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::Notify,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::super::Lookup;

pub const CERTIFICATE: &str = include_str!("certificate.pem");
pub const KEY: &str = include_str!("key.pem");

#[derive(Clone, Debug)]
pub struct Asked {
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What a server does with a request: the bytes of its answer, or none to hang up.
type Handler = Arc<dyn Fn(&Asked) -> Option<Vec<u8>> + Send + Sync>;

pub struct Server {
    pub address: SocketAddr,
    pub asked: Arc<Mutex<Vec<Asked>>>,
    pub connections: Arc<AtomicUsize>,
    pub hung_up: Arc<Notify>,
    pub arrived: Arc<Notify>,
}

impl Server {
    pub async fn start(handler: impl Fn(&Asked) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self::serve(handler, None).await
    }

    pub async fn start_tls(handler: impl Fn(&Asked) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        Self::serve(handler, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn serve(
        handler: impl Fn(&Asked) -> Option<Vec<u8>> + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            asked: Arc::default(),
            connections: Arc::default(),
            hung_up: Arc::default(),
            arrived: Arc::default(),
        };
        let (asked, connections) = (Arc::clone(&server.asked), Arc::clone(&server.connections));
        let (hung_up, arrived) = (Arc::clone(&server.hung_up), Arc::clone(&server.arrived));
        let handler: Handler = Arc::new(handler);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let (asked, handler) = (Arc::clone(&asked), Arc::clone(&handler));
                let (hung_up, arrived, tls) = (Arc::clone(&hung_up), Arc::clone(&arrived), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => converse(stream, &asked, &handler, &arrived).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => converse(stream, &asked, &handler, &arrived).await,
                            Err(_) => Some(()),
                        },
                    };
                    hung_up.notify_one();
                });
            }
        });
        server
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// Answers until either side hangs up.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    asked: &Mutex<Vec<Asked>>,
    handler: &Handler,
    arrived: &Notify,
) -> Option<()> {
    let mut buffer = Vec::new();
    loop {
        let request = read(&mut stream, &mut buffer).await?;
        asked.lock().unwrap().push(request.clone());
        arrived.notify_one();
        let answer = handler(&request)?;
        stream.write_all(&answer).await.ok()?;
        stream.flush().await.ok()?;
    }
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Option<Asked> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        (stream.read_buf(buffer).await.ok()? > 0).then_some(())?;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while buffer.len() < end + 4 + length {
        (stream.read_buf(buffer).await.ok()? > 0).then_some(())?;
    }
    let body = String::from_utf8_lossy(&buffer[end + 4..end + 4 + length]).into_owned();
    buffer.drain(..end + 4 + length);
    Some(Asked { line, headers, body })
}

/// An answer with its length.
#[allow(clippy::unnecessary_wraps, reason = "a handler may also hang up")]
pub fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    Some(bytes)
}

pub fn sent_on(status: &str, to: &str) -> Option<Vec<u8>> {
    answer(status, &format!("location: {to}\r\n"), "")
}

/// Names and their addresses, and how often anyone asked.
#[derive(Default)]
pub struct Names {
    pub known: HashMap<&'static str, Vec<IpAddr>>,
    pub looks: AtomicUsize,
}

impl Names {
    pub fn new(known: &[(&'static str, &[&str])]) -> Arc<Self> {
        let known = known
            .iter()
            .map(|(name, addresses)| (*name, addresses.iter().map(|address| address.parse().unwrap()).collect()));
        Arc::new(Self { known: known.collect(), looks: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Lookup for Names {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.known.get(name).cloned().ok_or_else(|| io::Error::other("no such name"))
    }
}
