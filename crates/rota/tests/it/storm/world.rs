//! The processes of a storm and the ways between them: a database that is the storm's
//! own, three nodes that each reach it by a way of their own, and workers that each reach
//! a node by theirs.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    chance::{Chance, Over, now},
    ledger::Ledger,
};
use crate::{
    crash::{scene::Keeper, server::Server},
    node::{Place, rota},
    proxy::Proxy,
    workers::tool,
};

pub const NODES: usize = 3;
/// Two that are `rota worker`, and two in Python.
pub const WORKERS: usize = 4;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// What can be hurt. A process that takes the place of another has its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seat {
    Database,
    Node(usize),
    Worker(usize),
}

impl Seat {
    pub fn name(self) -> String {
        match self {
            Self::Database => "database".to_owned(),
            Self::Node(n) => format!("node-{n}"),
            Self::Worker(n) => format!("{}-{n}", if is_python(n) { "python" } else { "worker" }),
        }
    }
}

fn is_python(worker: usize) -> bool {
    worker % 2 == 1
}

/// Somebody was hurt for a while, or for good.
#[derive(Clone, Debug)]
pub struct Hurt {
    pub by: &'static str,
    pub whom: Seat,
    pub from: Timestamp,
    /// None while it goes on.
    pub to: Option<Timestamp>,
}

impl std::fmt::Display for Hurt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let to = self.to.map_or_else(|| "the end".to_owned(), |to| to.to_string());
        write!(f, "{} {} {} to {to}", self.by, self.whom.name(), self.from)
    }
}

/// A process in its seat.
struct Life {
    child: Child,
    /// Its log, and how long that was when it was born.
    log: PathBuf,
    log_from: u64,
    /// When it was told to go.
    leaving: Option<Instant>,
}

impl Life {
    fn said(&self, words: &str) -> bool {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let own = text.get(self.log_from as usize..).unwrap_or_default();
        String::from_utf8_lossy(own).contains(words)
    }
}

pub struct World {
    pub place: Place,
    pub keeper: Keeper,
    pub ledger: Ledger,
    pub hurts: Vec<Hurt>,
    /// What no fault explains.
    pub oddities: Vec<String>,
    server: Server,
    addresses: Vec<SocketAddr>,
    ways: Vec<Proxy>,
    lines: Vec<Proxy>,
    lives: BTreeMap<Seat, Life>,
}

/// Ports that are free, and none that the kernel gives away to whoever connects: a node
/// that was killed is to find its own again.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let mut chance = Chance::new(now().as_nanosecond() as u64, u64::from(std::process::id()));
    let mut held: Vec<TcpListener> = Vec::new();
    while held.len() < count {
        held.extend(TcpListener::bind(("127.0.0.1", 10_000 + chance.below(20_000) as u16)));
    }
    held.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

impl World {
    /// Starts everything, and waits until every node is ready. Workers reach one node,
    /// or all of them in turn.
    pub fn start(seed: u64, several_nodes: bool) -> Self {
        let server = Server::start();
        let keeper = Keeper::postgres(&server);
        let database: SocketAddr = authority(&server.url).parse().unwrap();
        let addresses = free_addresses(NODES);
        let line = |worker: usize| {
            if several_nodes { Proxy::among(addresses.clone()) } else { Proxy::before(addresses[worker % NODES]) }
        };
        let mut world = Self {
            place: Place::new(),
            keeper,
            ledger: Ledger::open(seed),
            hurts: Vec::new(),
            oddities: Vec::new(),
            server,
            ways: (0..NODES).map(|_| Proxy::before(database)).collect(),
            lines: (0..WORKERS).map(line).collect(),
            addresses,
            lives: BTreeMap::new(),
        };
        std::fs::create_dir_all(world.logs()).unwrap();
        for node in 0..NODES {
            world.spawn(Seat::Node(node));
            world.until_ready(node);
        }
        (0..WORKERS).for_each(|worker| world.spawn(Seat::Worker(worker)));
        world
    }

    pub fn logs(&self) -> PathBuf {
        self.place.path("logs")
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Whoever a worker depends on, by its way or at the other end of it.
    pub fn home(worker: usize) -> usize {
        worker % NODES
    }

    pub fn way(&self, seat: Seat) -> &Proxy {
        match seat {
            Seat::Node(node) => &self.ways[node],
            Seat::Worker(worker) => &self.lines[worker],
            Seat::Database => unreachable!("every node has its own way to the database"),
        }
    }

    fn until_ready(&mut self, node: usize) {
        let begun = Instant::now();
        let pause = Over::default();
        while ask(self.addresses[node], &Request::get("/readyz")).is_none_or(|(status, _)| status != 200) {
            assert!(begun.elapsed() < PATIENCE, "node {node} is not ready; logs are in {}", self.logs().display());
            self.tend();
            pause.within(Duration::from_millis(50));
        }
    }

    fn spawn(&mut self, seat: Seat) {
        let log = self.logs().join(format!("{}.log", seat.name()));
        let file = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let log_from = file.metadata().unwrap().len();
        let mut command = self.command(seat);
        let child = command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        self.ledger.know(child.id(), seat);
        self.lives.insert(seat, Life { child, log, log_from, leaving: None });
    }

    fn command(&self, seat: Seat) -> Command {
        let (name, data) = (seat.name(), self.place.text(&seat.name()));
        let common = ["--name", &name, "--data", &data, "--log-format", "json", "--egress-reach", "anything"];
        match seat {
            Seat::Database => unreachable!("it has a script of its own"),
            Seat::Node(node) => {
                let Keeper::Postgres { url, schema } = &self.keeper else { unreachable!("the storm's own choice") };
                let url = url.replace(authority(url), &self.ways[node].address().to_string());
                let listen = self.addresses[node].to_string();
                let store = ["--store", &url, "--postgres-schema", schema, "--postgres-connections", "3"];
                let rest = ["--listen", &listen, "--drain", "3s"];
                let level = ["--log-level", "info,rota::runs=debug"];
                rota(&[&["serve"], &common[..], &store, &rest, &level].concat())
            }
            Seat::Worker(worker) => {
                let server = format!("http://{}", self.lines[worker].address());
                if !is_python(worker) {
                    let rest = ["--traits", "far", "--drain", "3s", "--attempts-max", "20"];
                    return rota(&[&["worker", "--server", &server], &common[..], &rest].concat());
                }
                let source = Path::new(env!("CARGO_MANIFEST_DIR"));
                let mut command = Command::new(tool("ROTA_TEST_PYTHON"));
                command.env("PYTHONPATH", source.join("../../clients/python")).env("PYTHONDONTWRITEBYTECODE", "1");
                command.arg(source.join("tests/it/storm/worker.py")).args([&server, &name]);
                command
            }
        }
    }

    pub fn signal(&mut self, seat: Seat, signal: Signal) {
        let Some(life) = self.lives.get_mut(&seat) else { return };
        if matches!(signal, Signal::KILL | Signal::TERM) {
            life.leaving = Some(Instant::now());
        }
        // One that has just gone by itself is found by the next look.
        kill_process(Pid::from_child(&life.child), signal).ok();
    }

    /// Kills the database, and starts it again on what it left.
    pub fn restart_database(&self) {
        self.server.crash();
    }

    /// Fills the seats of those who have gone; whoever went without having been told to
    /// is noted.
    pub fn tend(&mut self) {
        let seats: Vec<Seat> = self.lives.keys().copied().collect();
        for seat in seats {
            let life = self.lives.get_mut(&seat).unwrap();
            match life.child.try_wait().unwrap() {
                Some(status) => self.gone(seat, status),
                None if life.leaving.is_some_and(|told| told.elapsed() > PATIENCE) => {
                    self.oddities.push(format!("{} did not end although it was told to", seat.name()));
                    self.signal(seat, Signal::KILL);
                }
                None => {}
            }
        }
    }

    fn gone(&mut self, seat: Seat, status: ExitStatus) {
        let life = self.lives.remove(&seat).unwrap();
        // A node that finds no database as it starts may say so and go.
        if life.leaving.is_none() && (life.said("\"serving\"") || matches!(seat, Seat::Worker(_))) {
            self.oddities.push(format!("{} ended by itself: {status}", seat.name()));
        }
        self.spawn(seat);
    }

    pub fn hurt(&mut self, by: &'static str, whom: Seat) {
        self.hurts.push(Hurt { by, whom, from: now(), to: None });
    }

    /// The machine had no time for anybody.
    pub fn starved(&mut self, long: Duration) {
        let to = now();
        let from = to - SignedDuration::try_from(long).unwrap();
        self.hurts.push(Hurt { by: "starved", whom: Seat::Database, from, to: Some(to) });
    }

    /// Whatever hurt somebody has ended.
    pub fn healed(&mut self, whom: Seat) {
        let at = now();
        self.hurts.iter_mut().filter(|hurt| hurt.whom == whom && hurt.to.is_none()).for_each(|hurt| hurt.to = Some(at));
    }

    /// Nothing is held up any more, and everybody is there.
    pub fn mend(&mut self) {
        self.ways.iter().chain(&self.lines).for_each(Proxy::mend);
        let seats: Vec<Seat> = self.lives.keys().copied().collect();
        for seat in seats {
            self.signal(seat, Signal::CONT);
            self.healed(seat);
        }
        self.healed(Seat::Database);
        (0..NODES).for_each(|node| self.until_ready(node));
    }

    /// Ends every process as its owner would, and answers how nodes went.
    pub fn stop(&mut self) -> Vec<(Seat, ExitStatus)> {
        // Workers first: whoever is asked goes after those who ask.
        let seats: Vec<Seat> = self.lives.keys().rev().copied().collect();
        for seat in &seats {
            self.signal(*seat, Signal::TERM);
        }
        seats.iter().map(|seat| (*seat, self.lives.remove(seat).unwrap().child.wait().unwrap())).collect()
    }
}

/// A storm that fails leaves no process behind.
impl Drop for World {
    fn drop(&mut self) {
        for life in self.lives.values_mut() {
            life.child.kill().ok();
            life.child.wait().ok();
        }
    }
}

fn authority(url: &str) -> &str {
    url.rsplit_once('@').unwrap().1.split('/').next().unwrap()
}

/// A request to a node.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: &'static str,
    pub path: String,
    /// Each with its line end.
    pub headers: String,
    pub body: Option<Value>,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self { method: "GET", path: path.to_owned(), ..Self::default() }
    }

    pub fn post(path: &str, body: Value) -> Self {
        Self { method: "POST", path: path.to_owned(), body: Some(body), ..Self::default() }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers = format!("{}{name}: {value}\r\n", self.headers);
        self
    }
}

/// The status and body of an answer; none where there was none in time.
pub fn ask(address: SocketAddr, request: &Request) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
    let (method, path, headers) = (request.method, &request.path, &request.headers);
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         {headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}
