//! The node under attack: `rota serve` as a process of its own, on files of its own.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use rota_api::access::{Tenant, TokenMade};
use rota_client::{Believes, Client};
use rota_core::duration::Span;
use rota_server::ADMIN_VARIABLE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStderr, Command},
    time::timeout,
};
use uuid::Uuid;

use super::super::scratch;
use crate::{clock, failure::Failure};

/// How long the node may take to start, and to end.
const PATIENCE: Duration = Duration::from_mins(1);

pub struct Node {
    child: Child,
    /// Deleted when the node has gone.
    folder: Folder,
    pub address: SocketAddr,
    admin: String,
}

impl Node {
    /// Starts a node whose `http` steps may reach these targets, and waits until it is ready.
    pub async fn start(targets: &[&str]) -> Result<Self, Failure> {
        let folder = Folder(scratch::folder().join(format!("rota-bench-abuse-{}", std::process::id())));
        let admin = format!("{}{}", Uuid::now_v7().simple(), Uuid::now_v7().simple());
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"ROTA_")) {
            command.env_remove(name);
        }
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--data"]).arg(&folder.0);
        command.args(["--egress-allow", &targets.join(",")]).env(ADMIN_VARIABLE, &admin);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("starting a node")?;
        let log = child.stderr.take().context("reading the node's log")?;
        let address = timeout(PATIENCE, address(log)).await.context("the node did not start in time")??;
        let node = Self { child, folder, address, admin };
        let ready = node.client("default", &node.admin)?;
        let begun = Instant::now();
        while ready.ready(PATIENCE).await.is_err() && begun.elapsed() < PATIENCE {
            clock::sleep(Span::millis(50)).await;
        }
        Ok(node)
    }

    /// A client with everything that a tenant's administrator may do.
    pub async fn tenant(&self, name: &str) -> Result<Client, Failure> {
        let token = self.token(name).await?;
        self.client(name, &token)
    }

    /// Creates a tenant without quotas, and answers the token of its administrator.
    pub async fn token(&self, name: &str) -> Result<String, Failure> {
        let tier = json!({ "tier": "unlimited" });
        let owner = self.client("default", &self.admin)?;
        let _tenant: Tenant = owner.put(&["tenants", name], &tier, Believes::Anything).await?;
        let wanted = json!({ "name": name, "role": "admin" });
        let made: TokenMade = self.client(name, &self.admin)?.post_once(&["tokens"], &wanted, None).await?;
        Ok(made.secret)
    }

    fn client(&self, tenant: &str, token: &str) -> Result<Client, Failure> {
        Ok(Client::builder(format!("http://{}", self.address)).token(token).tenant(tenant).build()?)
    }

    /// What the kernel says about its memory.
    pub fn resident_mb(&self, what: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some((kib << 10) / 1_000_000)
    }

    /// Ends it, in order if it does so in time.
    pub async fn end(mut self) -> Result<(), Failure> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(id) = id {
            kill_process(id, Signal::TERM).context("ending the node")?;
        }
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            self.child.kill().await.context("ending the node")?;
        }
        drop(self.folder);
        Ok(())
    }
}

/// Reads where the node serves, and goes on reading so that it can go on writing.
async fn address(log: ChildStderr) -> Result<SocketAddr, Failure> {
    let mut lines = BufReader::new(log).lines();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await.context("reading the node's log")? {
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = entry["url"].as_str().and_then(|url| url.strip_prefix("http://")?.parse().ok());
        if let Some(address) = address {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(address);
        }
        said.push_str(&line);
        said.push('\n');
    }
    Err(anyhow!("the node did not start: {}", said.trim_end()).into())
}

/// A directory that goes with whoever holds it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be deleted is in the system's folder for what is temporary.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
