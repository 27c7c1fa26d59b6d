//! A node as a process of its own: started, asked over HTTP, signalled, awaited.
//!
//! Nothing here sleeps: whoever waits for a state looks at it again when the
//! node says something, or after a moment at the latest, until a deadline.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes on a busy machine; a test that gets here fails.
const DEADLINE: Duration = Duration::from_mins(4);
const MOMENT: Duration = Duration::from_millis(20);

/// A directory that is gone when its test has passed.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Self {
        Self::under(&std::env::temp_dir())
    }

    /// In memory where the machine has a place for that: whoever dies there, and
    /// not the machine with it, leaves the same as on a disk.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::under(memory) } else { Self::new() }
    }

    fn under(parent: &Path) -> Self {
        let path = parent.join(format!("rota-it-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Today's binary.
pub const TODAY: &str = env!("CARGO_BIN_EXE_rota");

pub fn rota(arguments: &[&str]) -> Command {
    rota_of(TODAY, arguments)
}

fn rota_of(binary: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    // Settings of whoever runs the tests must not leak into them.
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"ROTA_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a command that ends by itself said, and its code.
pub fn ended(arguments: &[&str]) -> (i32, String, String) {
    let output = rota(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

pub struct Node {
    child: Child,
    lines: Receiver<String>,
    /// What it has logged so far.
    pub log: Vec<String>,
    address: Option<SocketAddr>,
}

impl Node {
    /// Starts a node, on a free port unless told otherwise, with its files in a place.
    pub fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::start_with(place, arguments, &[])
    }

    /// The same with more in its environment.
    pub fn start_with(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_of(TODAY, place, arguments, environment)
    }

    /// The same with another binary, such as that of another release.
    pub fn start_of(binary: &str, place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let data = place.text("data");
        let listen: &[&str] = if arguments.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let all = [&["serve", "--data", &data, "--log-format", "json"], listen, arguments].concat();
        let mut child = rota_of(binary, &all).envs(environment.iter().copied()).spawn().unwrap();
        let (sender, lines) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || errors.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        Self { child, lines, log: Vec::new(), address: None }
    }

    /// Starts a node and waits until it is ready.
    pub fn ready(place: &Place, arguments: &[&str]) -> Self {
        let mut node = Self::start(place, arguments);
        node.until_ready();
        node
    }

    pub fn until_ready(&mut self) {
        self.wait_for("the node to be ready", |node| node.get("/readyz").is_some_and(|(status, _)| status == 200));
    }

    /// Waits until something holds, and answers how long that took.
    pub fn wait_for(&mut self, what: &str, holds: impl FnMut(&mut Self) -> bool) -> Duration {
        self.wait_within(DEADLINE, what, holds)
    }

    pub fn wait_within(&mut self, limit: Duration, what: &str, mut holds: impl FnMut(&mut Self) -> bool) -> Duration {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < limit, "waited in vain for {what}\n{}", self.log.join("\n"));
            self.hear();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the node ended, {ended:?}, while {what} was waited for\n{}", self.log.join("\n"));
        }
        begun.elapsed()
    }

    /// Waits until something holds, or the process has ended: then false.
    pub fn wait_unless_it_ends(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if holds(self) {
                return true;
            }
            assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}\n{}", self.log.join("\n"));
            self.hear();
        }
        false
    }

    /// Takes in what the node says, waiting for it a moment.
    fn hear(&mut self) {
        let first = self.lines.recv_timeout(MOMENT).ok();
        for line in first.into_iter().chain(self.lines.try_iter()) {
            self.address = self.address.or_else(|| address_in(&line));
            self.log.push(line);
        }
    }

    /// The status and body that a path is answered with; None while nobody
    /// answers.
    pub fn get(&mut self, path: &str) -> Option<(u16, String)> {
        self.get_with(path, "")
    }

    /// As [`Node::get`], with more headers, each with its line end.
    pub fn get_with(&mut self, path: &str, headers: &str) -> Option<(u16, String)> {
        self.hear();
        let mut stream = TcpStream::connect(self.address?).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// The value of a metric, by its name with labels.
    pub fn metric(&mut self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub fn partitions(&mut self) -> usize {
        self.metric("rota_partitions_owned").unwrap_or_default() as usize
    }

    pub fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The names of its threads.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // One that ends meanwhile has no name any more.
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        tasks.filter_map(|task| name(task.unwrap())).map(|name| name.trim_end().to_owned()).collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the process, which must come by itself.
    pub fn end(self) -> (ExitStatus, String, Vec<String>) {
        self.end_while(|_| {})
    }

    /// Waits for the end of the process, doing something meanwhile.
    pub fn end_while(mut self, meanwhile: impl Fn(&Self)) -> (ExitStatus, String, Vec<String>) {
        let begun = Instant::now();
        let status = loop {
            meanwhile(&self);
            self.hear();
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(begun.elapsed() < DEADLINE, "it does not end\n{}", self.log.join("\n")),
            }
        };
        // The reader ends with the pipe.
        self.log.extend(self.lines.iter());
        let mut said = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said, std::mem::take(&mut self.log))
    }

    /// Asks it to go, and answers how it went.
    pub fn stop(self) -> (ExitStatus, String, Vec<String>) {
        self.signal(Signal::TERM);
        self.end()
    }
}

/// Whether a process still does anything.
pub fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which stands in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A test that fails leaves no process behind.
impl Drop for Node {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// The address in the line that says that the node serves.
fn address_in(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["url"].as_str()?.strip_prefix("http://")?.parse().ok()
}

/// The lines of a file that jobs write to, as far as they are whole.
pub fn ledger(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
}
