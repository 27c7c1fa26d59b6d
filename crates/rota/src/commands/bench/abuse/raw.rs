//! HTTP by hand, for whoever does not keep to it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

/// A connection from one of loopback's addresses.
pub async fn connect(from: [u8; 4], node: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::from(from), 0))?;
    let stream = socket.connect(node).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Asks something, and reads the answer up to the end of its first line and what came with it.
pub async fn ask(stream: &mut TcpStream, request: &str) -> io::Result<u16> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 4_096];
    let length = stream.read(&mut answer).await?;
    status(&answer[..length])
}

/// The status in the beginning of an answer.
pub fn status(answer: &[u8]) -> io::Result<u16> {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
