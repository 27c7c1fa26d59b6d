//! Hints and news between nodes, by LISTEN and NOTIFY.
//!
//! One connection of its own both listens and notifies. What a node says is
//! gathered and sent at most four times a second, the first word at once, and what is urgent
//! (partitions that are free) at any time: NOTIFY
//! takes a lock that every commit on the server shares, so it must never be part
//! of a write, nor be sent for each of them. What others say is passed on to this
//! process's own hints no more often than that.
//!
//! Nothing here is the truth. A connection that breaks is made again, and whoever
//! listens is woken then, because something may have been said meanwhile; news
//! that did not fit or were missed are told as a gap. Losing all of it costs the
//! second until the next look.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    duration::Span,
    ports::{Clock, Heard, Hints, Listener, News, Relay, Topic},
};
use tokio::{
    sync::{Notify, broadcast, mpsc, watch},
    task::JoinHandle,
};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    PostgresStore,
    open::{Address, quoted},
};

/// Between two times that a node speaks, and that it passes on what others said.
const GAP: Span = Span::millis(250);
/// A server takes less than 8,000 bytes in one notification.
const MESSAGE_BYTES: usize = 7_500;
/// News sent at one time; what is said beyond that is a gap.
const MESSAGES_MAX: usize = 8;
/// News kept for a listener that reads slowly.
const HEARD_MAX: usize = 4_096;
/// The first and the longest wait before a lost connection is made again.
const AGAIN: (Span, Span) = (Span::millis(100), Span::secs(5));
/// A server that does not answer for this long is taken for gone.
const SILENCE: Duration = Duration::from_secs(6);

/// The marks that a notification begins with.
const WAKE: &str = "wake";
const NEWS: &str = "news";
const MISSED: &str = "missed";

/// Hints and news that reach the other nodes on the same database. See the
/// module.
pub struct PostgresHints {
    local: Arc<dyn Hints>,
    saying: Arc<Saying>,
    heard: broadcast::Sender<Heard>,
    connected: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

/// What is yet to be said.
#[derive(Default)]
struct Saying {
    words: Mutex<Words>,
    bell: Notify,
    /// Something was said that does not wait for its turn.
    at_once: Notify,
}

#[derive(Default)]
struct Words {
    topics: Vec<Topic>,
    lines: Vec<String>,
    /// Bytes of the lines.
    bytes: usize,
    /// Something was left out before these lines.
    missed: bool,
}

impl Saying {
    fn change(&self, change: impl FnOnce(&mut Words)) {
        change(&mut self.words.lock());
        self.bell.notify_one();
    }

    fn take(&self) -> Words {
        std::mem::take(&mut *self.words.lock())
    }
}

/// Whether a hint is sent and passed on without waiting for others. Partitions change hands
/// when a node comes or goes, which is rare, and schedules are late by as long as nobody has
/// them.
fn is_urgent(topic: Topic) -> bool {
    topic == Topic::Partitions
}

impl Words {
    fn wake(&mut self, topic: Topic) {
        if !self.topics.contains(&topic) {
            self.topics.push(topic);
        }
    }

    fn tell(&mut self, line: String) {
        let fits = line.len() < MESSAGE_BYTES && self.bytes + line.len() < MESSAGE_BYTES * (MESSAGES_MAX - 1);
        if fits && !line.contains('\n') {
            self.bytes += line.len() + 1;
            self.lines.push(line);
        } else {
            self.missed = true;
        }
    }

    /// As notifications, each of a size that the server takes.
    fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        if !self.topics.is_empty() {
            let names: Vec<&str> = self.topics.iter().map(|topic| topic.as_str()).collect();
            messages.push(format!("{WAKE}\n{}", names.join("\n")));
        }
        if self.missed {
            messages.push(MISSED.to_owned());
        }
        let mut message = NEWS.to_owned();
        for line in &self.lines {
            if message.len() + line.len() >= MESSAGE_BYTES {
                messages.push(std::mem::replace(&mut message, NEWS.to_owned()));
            }
            message.push('\n');
            message.push_str(line);
        }
        if message.len() > NEWS.len() {
            messages.push(message);
        }
        messages
    }
}

impl PostgresStore {
    /// Hints and news among all that share this store's schema. `local` are the
    /// hints inside this process, which are also woken by what others say.
    pub fn hints(&self, local: Arc<dyn Hints>, clock: Arc<dyn Clock>) -> PostgresHints {
        let saying = Arc::<Saying>::default();
        let heard = broadcast::Sender::new(HEARD_MAX);
        let (connects, connected) = watch::channel(false);
        let line = Line {
            address: self.address.clone(),
            schema: self.schema.clone(),
            local: Arc::clone(&local),
            clock,
            saying: Arc::clone(&saying),
            heard: heard.clone(),
            connects,
        };
        PostgresHints { local, saying, heard, connected, task: tokio::spawn(line.keep()) }
    }
}

impl PostgresHints {
    /// Returns when the others are listened to: at once, unless the connection
    /// is yet to be made or was lost.
    pub async fn connected(&self) {
        if self.connected.clone().wait_for(|connected| *connected).await.is_err() {
            // Its task has ended, and never will be.
            std::future::pending::<()>().await;
        }
    }
}

impl Hints for PostgresHints {
    fn wake(&self, topic: Topic) {
        self.local.wake(topic);
        self.saying.change(|words| words.wake(topic));
        if is_urgent(topic) {
            self.saying.at_once.notify_one();
        }
    }

    fn listen(&self, topic: Topic) -> Box<dyn Listener> {
        self.local.listen(topic)
    }
}

impl Relay for PostgresHints {
    fn tell(&self, line: String) {
        self.saying.change(|words| words.tell(line));
    }

    fn miss(&self) {
        self.saying.change(|words| words.missed = true);
    }

    fn hear(&self) -> Box<dyn News> {
        Box::new(Hearing(self.heard.subscribe()))
    }
}

impl Drop for PostgresHints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Hearing(broadcast::Receiver<Heard>);

#[async_trait]
impl News for Hearing {
    async fn next(&mut self) -> Heard {
        match self.0.recv().await {
            Ok(heard) => heard,
            Err(broadcast::error::RecvError::Lagged(_)) => Heard::Gap,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// The connection and those at its two ends.
struct Line {
    address: Address,
    schema: Option<String>,
    local: Arc<dyn Hints>,
    clock: Arc<dyn Clock>,
    saying: Arc<Saying>,
    heard: broadcast::Sender<Heard>,
    connects: watch::Sender<bool>,
}

/// A connection that listens.
struct Open {
    client: Client,
    incoming: mpsc::UnboundedReceiver<Notification>,
    channel: String,
    /// By which a node knows its own words.
    own: i32,
}

/// What the server answers, if it does in time.
async fn within<T>(
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    Ok(tokio::time::timeout(SILENCE, answer).await??)
}

impl Line {
    /// Keeps the connection, for as long as anybody holds the handle.
    async fn keep(self) {
        let mut wait = AGAIN.0;
        loop {
            // A server may be reached and say nothing.
            match within(self.connect()).await {
                Ok(open) => {
                    wait = AGAIN.0;
                    self.serve(open).await;
                    self.connects.send_replace(false);
                }
                Err(error) => {
                    tracing::debug!(error = &*error as &dyn std::error::Error, "there is no connection for hints");
                    self.clock.sleep_until(wait.after(self.clock.now())).await;
                    wait = Span::millis((wait.as_millis() * 2).min(AGAIN.1.as_millis()));
                }
            }
        }
    }

    async fn connect(&self) -> Result<Open, tokio_postgres::Error> {
        let mut config = self.address.config.clone();
        let schema = self.schema.as_deref().unwrap_or_default();
        config
            .application_name(format!("rota hints {schema}"))
            .keepalives_idle(SILENCE)
            .tcp_user_timeout(SILENCE)
            .connect_timeout(SILENCE);
        let (say, incoming) = mpsc::unbounded_channel();
        let client = match &self.address.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                tokio::spawn(listen(connection, say));
                client
            }
            Some(tls) => {
                let tls = MakeRustlsConnect::new(rustls::ClientConfig::clone(tls));
                let (client, connection) = config.connect(tls).await?;
                tokio::spawn(listen(connection, say));
                client
            }
        };
        if let Some(schema) = &self.schema {
            client.batch_execute(&format!("SET search_path = {}", quoted(schema))).await?;
        }
        let row = client.query_one("SELECT pg_backend_pid(), current_schema()", &[]).await?;
        let (own, schema): (i32, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        // A channel is a name of at most 63 bytes, and so is a schema.
        let channel = format!("rota:{}", schema.unwrap_or_default()).chars().take(40).collect::<String>();
        client.batch_execute(&format!("LISTEN {}", quoted(&channel))).await?;
        Ok(Open { client, incoming, channel, own })
    }

    /// Speaks and listens until the connection is lost.
    async fn serve(&self, mut open: Open) {
        self.begin();
        self.connects.send_replace(true);
        let (mut speaks, mut speaks_at) = (true, Timestamp::MIN);
        let (mut woken, mut wakes_at) = (Vec::new(), Timestamp::MIN);
        loop {
            tokio::select! {
                () = self.saying.bell.notified(), if !speaks => speaks = true,
                () = self.saying.at_once.notified() => (speaks, speaks_at) = (true, Timestamp::MIN),
                () = self.clock.sleep_until(speaks_at), if speaks => {
                    (speaks, speaks_at) = (false, GAP.after(self.clock.now()));
                    if let Err(error) = within(self.speak(&open)).await {
                        tracing::debug!(error = &*error as &dyn std::error::Error, "a hint was not sent");
                        return;
                    }
                }
                () = self.clock.sleep_until(wakes_at), if !woken.is_empty() => {
                    wakes_at = GAP.after(self.clock.now());
                    woken.drain(..).for_each(|topic| self.local.wake(topic));
                }
                said = open.incoming.recv() => match said {
                    Some(said) if said.process_id() == open.own => {}
                    Some(said) => self.take_in(said.payload(), &mut woken),
                    None => return,
                },
            }
        }
    }

    /// What was said before this connection was there is not known at either
    /// end of it.
    fn begin(&self) {
        self.pass_on(Heard::Gap);
        // Whoever follows says so again by himself.
        let looks = || Topic::ALL.into_iter().filter(|topic| *topic != Topic::Followers);
        looks().for_each(|topic| self.local.wake(topic));
        self.saying.change(|words| {
            words.missed = true;
            looks().for_each(|topic| words.wake(topic));
        });
    }

    async fn speak(&self, open: &Open) -> Result<(), tokio_postgres::Error> {
        let messages = self.saying.take().messages();
        if messages.is_empty() {
            return Ok(());
        }
        let sql = "SELECT pg_notify($1, message) FROM unnest($2::text[]) WITH ORDINALITY u (message, n) ORDER BY n";
        open.client.execute(sql, &[&open.channel, &messages]).await.map(drop)
    }

    fn take_in(&self, said: &str, woken: &mut Vec<Topic>) {
        let mut lines = said.split('\n');
        match lines.next() {
            Some(WAKE) => {
                for topic in
                    Topic::ALL.into_iter().filter(|topic| said.split('\n').skip(1).any(|name| name == topic.as_str()))
                {
                    if is_urgent(topic) {
                        self.local.wake(topic);
                    } else if !woken.contains(&topic) {
                        woken.push(topic);
                    }
                }
            }
            Some(NEWS) => lines.for_each(|line| self.pass_on(Heard::Line(line.into()))),
            // A newer release may say more than this one understands.
            _ => self.pass_on(Heard::Gap),
        }
    }

    fn pass_on(&self, heard: Heard) {
        // There may be nobody who listens.
        drop(self.heard.send(heard));
    }
}

/// Reads a connection until it ends.
async fn listen<S, T>(mut connection: Connection<S, T>, say: mpsc::UnboundedSender<Notification>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notification(said)) => {
                if say.send(said).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the connection for hints ended");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that the server refuses would take the connection with it.
    #[test]
    fn messages_keep_to_the_size_that_a_server_takes() {
        let mut words = Words::default();
        words.wake(Topic::Ready);
        words.wake(Topic::Ready);
        (0..2_000).for_each(|n| words.tell(format!("{n:0100}")));
        words.tell("x".repeat(MESSAGE_BYTES));
        let messages = words.messages();
        assert!(messages.len() <= MESSAGES_MAX + 2, "{}", messages.len());
        assert!(messages.iter().all(|message| message.len() < 8_000));
        assert_eq!(messages[..2], ["wake\nready".to_owned(), MISSED.to_owned()], "what is left out is said");
        let lines: Vec<&str> = messages[2..].iter().flat_map(|message| message.split('\n').skip(1)).collect();
        assert_eq!(lines, words.lines, "and the rest is whole");
    }
}
