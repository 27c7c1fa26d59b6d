//! The ledger: the HTTP server that every attempt calls. It writes down who called, for
//! which run and when, and how it answered; none of that passes through Rota.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    chance::{Chance, Over, now},
    world::Seat,
};

/// How a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Good,
    Bad,
    /// The connection was closed without an answer.
    HungUp,
}

#[derive(Clone, Debug)]
pub struct Callback {
    pub at: Timestamp,
    /// Who called, where that could be found out before it was gone.
    pub by: Option<Seat>,
    pub run: String,
    pub attempt: u32,
    /// Known of Python workers only: the http step does not send it.
    pub fence: Option<i64>,
    pub answer: Answer,
}

#[derive(Clone)]
pub struct Ledger {
    address: SocketAddr,
    seed: u64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    callbacks: Mutex<Vec<Callback>>,
    /// Processes that may call, by their number.
    seats: Mutex<BTreeMap<u32, Seat>>,
    closing: Over,
}

impl Ledger {
    /// Opens a ledger. It lives as long as the test's process.
    pub fn open(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ledger = Self { address: listener.local_addr().unwrap(), seed, shared: Arc::default() };
        let theirs = ledger.clone();
        std::thread::spawn(move || {
            for line in listener.incoming().map_while(Result::ok) {
                let ledger = theirs.clone();
                // Whoever goes away in the middle has not called.
                std::thread::spawn(move || drop(ledger.serve(&line)));
            }
        });
        ledger
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub fn know(&self, process: u32, seat: Seat) {
        self.shared.seats.lock().unwrap().insert(process, seat);
    }

    pub fn callbacks(&self) -> Vec<Callback> {
        self.shared.callbacks.lock().unwrap().clone()
    }

    fn serve(&self, line: &TcpStream) -> io::Result<()> {
        let caller = line.peer_addr()?;
        let mut by = None;
        let mut reader = BufReader::new(line);
        while let Some((headers, body)) = request(&mut reader)? {
            let at = now();
            let told: Value = serde_json::from_slice(&body).unwrap_or_default();
            by = by.or_else(|| self.seat_of(caller));
            let header = |name: &str| headers.get(name).cloned();
            let run = header("x-rota-run").or_else(|| Some(told["run"].as_str()?.to_owned())).unwrap_or_default();
            let attempt = header("x-rota-attempt").and_then(|text| text.parse().ok()).or(told["attempt"].as_u64());
            let attempt = attempt.unwrap_or_default() as u32;
            let fails = told["fails"] == true;
            let answer = self.answer(&run, attempt, fails);
            let callback = Callback { at, by, run, attempt, fence: told["fence"].as_i64(), answer };
            self.shared.callbacks.lock().unwrap().push(callback);
            let status = match answer {
                Answer::Good => "200 OK",
                // Who fails on purpose must not have the host taken for dead: all others call it.
                Answer::Bad if fails => "429 Too Many Requests",
                Answer::Bad => "500 Internal Server Error",
                Answer::HungUp => return line.shutdown(std::net::Shutdown::Both),
            };
            let mut line = line;
            write!(line, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")?;
        }
        Ok(())
    }

    /// How an attempt is answered, and how soon, is decided by the seed.
    fn answer(&self, run: &str, attempt: u32, fails: bool) -> Answer {
        let digits = u64::from_str_radix(run.rsplit('-').next().unwrap_or_default(), 16).unwrap_or_default();
        let mut chance = Chance::new(self.seed ^ digits, u64::from(attempt));
        let long = chance.one_in(10);
        self.shared.closing.within(if long { chance.millis(500, 2_500) } else { chance.millis(0, 60) });
        match chance.below(100) {
            _ if fails => Answer::Bad,
            0..4 => Answer::Bad,
            4..6 => Answer::HungUp,
            _ => Answer::Good,
        }
    }

    /// Whose the other end of a connection is.
    fn seat_of(&self, caller: SocketAddr) -> Option<Seat> {
        let inode = socket_of(caller, self.address)?;
        let seats = self.shared.seats.lock().unwrap().clone();
        seats.iter().find(|(process, _)| holds(**process, &inode)).map(|(_, seat)| *seat)
    }
}

/// The headers, in lower case, and the body of the next request; none at the end.
type Request = (BTreeMap<String, String>, Vec<u8>);

fn request(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut headers = BTreeMap::new();
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((headers, body)))
}

/// The number by which the kernel knows the socket at `here` that is connected to `there`.
fn socket_of(here: SocketAddr, there: SocketAddr) -> Option<String> {
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let (here, there) = (port(here), port(there));
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() > 9 && row[1].ends_with(&here) && row[2].ends_with(&there))?;
    Some(row[9].to_owned())
}

fn holds(process: u32, inode: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let socket = format!("socket:[{inode}]");
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()))
}
