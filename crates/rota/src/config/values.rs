//! What settings are made of, and how they are read and shown.

use std::{fmt, path::PathBuf, str::FromStr};

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    Sqlite(PathBuf),
    Postgres(String),
}

impl FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ if text.starts_with("postgres://") || text.starts_with("postgresql://") => {
                Ok(Self::Postgres(text.to_owned()))
            }
            _ => Err(format!("`{}` is not sqlite:PATH or postgres://…", masked(text))),
        }
    }
}

/// For people: without the password.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&masked(url)),
        }
    }
}

/// An address without its password, wherever it stands in it.
pub fn masked(url: &str) -> String {
    let (head, query) = url.split_once('?').map_or((url, None), |(head, query)| (head, Some(query)));
    let (scheme, rest) = head.split_once("://").unwrap_or(("", head));
    let mut shown = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            shown.push_str(user.split_once(':').map_or(user, |(name, _)| name));
            shown.push_str(if user.contains(':') { ":***@" } else { "@" });
            shown.push_str(host);
        }
        None => shown.push_str(rest),
    }
    if let Some(query) = query {
        let hidden = |pair: &str| match pair.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => format!("{name}=***"),
            _ => pair.to_owned(),
        };
        shown.push('?');
        shown.push_str(&query.split('&').map(hidden).collect::<Vec<_>>().join("&"));
    }
    shown
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    pub api: bool,
    pub scheduler: bool,
    pub worker: bool,
}

const ROLES: [&str; 3] = ["api", "scheduler", "worker"];

impl Roles {
    pub fn of(names: &[String]) -> Result<Self, String> {
        if let Some(other) = names.iter().find(|name| !ROLES.contains(&name.as_str())) {
            return Err(not_one_of(other, &ROLES));
        }
        let has = |role: &str| names.iter().any(|name| name == role);
        let roles = Self { api: has("api"), scheduler: has("scheduler"), worker: has("worker") };
        match roles {
            Self { api: false, scheduler: false, worker: false } => Err("a node needs at least one role".into()),
            Self { scheduler: true, worker: false, .. } => {
                Err("a scheduler executes the runs of its partitions, so it must be a worker too".into())
            }
            roles => Ok(roles),
        }
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = [self.api, self.scheduler, self.worker];
        let names: Vec<&str> = ROLES.into_iter().zip(has).filter(|(_, has)| *has).map(|(name, _)| name).collect();
        f.write_str(&names.join(","))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Pretty,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pretty" => Ok(Self::Pretty),
            "json" => Ok(Self::Json),
            other => Err(not_one_of(other, &["pretty", "json"])),
        }
    }
}

/// How much is logged, by part of the program. A word that is no level is
/// refused: taken for a part, it would switch everything else off.
#[derive(Clone, Debug)]
pub struct LogLevel(pub Targets);

impl Default for LogLevel {
    fn default() -> Self {
        Self(Targets::new().with_default(LevelFilter::INFO))
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("`{}` is not a valid level: write for example info, or info,rota::runs=debug", text.escape_debug())
        };
        let Self(mut targets) = Self::default();
        for part in text.split(',').map(str::trim) {
            let (target, level) = part.split_once('=').map_or((None, part), |(target, level)| (Some(target), level));
            let is_word = !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_alphabetic());
            let level = level.parse::<LevelFilter>().ok().filter(|_| is_word).ok_or_else(bad)?;
            targets = match target {
                Some(target) => targets.with_target(target, level),
                None => targets.with_default(level),
            };
        }
        Ok(Self(targets))
    }
}

pub fn not_one_of(text: &str, known: &[&str]) -> String {
    format!("`{}` is not one of {}", text.escape_debug(), known.join(", "))
}

/// What is wrong with a text, where the type's own words would not say.
pub fn explained(key: &str, text: &str, error: &str) -> String {
    let text = text.escape_debug();
    match key {
        "listen" => format!("`{text}` is not an address and port: write for example 127.0.0.1:7070"),
        "attempts_max"
        | "postgres.connections"
        | "http.threads"
        | "http.connections"
        | "http.requests"
        | "http.connections_per_address" => {
            format!("`{text}` is not a whole number")
        }
        "insecure_listen" | "demo" => format!("`{text}` is not true or false"),
        _ => error.to_owned(),
    }
}

/// Where data is kept by those who do not say.
pub fn default_data(variable: &impl Fn(&str) -> Option<String>) -> PathBuf {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (folder("XDG_DATA_HOME"), folder("HOME")) {
        (Some(data), _) => data.join("rota"),
        (None, Some(home)) => home.join(".local/share/rota"),
        (None, None) => PathBuf::from("rota-data"),
    }
}

/// The machine's name, as Linux tells it.
pub fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "rota".to_owned() } else { name.to_owned() }
}

/// The value of a quota: a number, a word such as `10s`, or `none`.
pub fn quota(text: &str) -> serde_json::Value {
    match text {
        "none" => serde_json::Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}
