//! Configuration: read once, in layers, into types.
//!
//! Every mistake is reported, not only the first, each with its field and where
//! it was given. What is read here is what everything else is handed: nothing
//! else looks at the environment or at a file of settings.

mod layers;
mod settings;
#[cfg(test)]
mod tests;
mod values;

use std::{
    fmt::Display,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use rota_core::{access::SecretDigest, duration::Span, job::size::Size, quota::Tiers, store::Tier};
use rota_engine::executors::{
    command::{AllowedProgram, CommandLimits, CommandOptions, CommandPolicy, CommandUser},
    egress::{Allowed, Egress, Reach},
};
use rota_server::{ADMIN_VARIABLE, Access, AccessOptions, Bounds, JwtKeys, JwtOptions, Login};

pub use self::{
    layers::{Flags, Source, StoreFlags},
    settings::reference,
    values::{LogFormat, LogLevel, Roles, StoreAddress},
};
use self::{
    layers::{Given, Layers},
    settings::{SETTINGS, Shape},
};
use crate::{
    commands::limited::LIMITED,
    failure::Failure,
    target::{SERVER_VARIABLE, TOKEN_VARIABLE},
};

/// More would only stand in each other's way.
const HTTP_THREADS_MAX: usize = 1_024;
const JWT_SECRET_VARIABLE: &str = "ROTA_JWT_SECRET";
/// Shorter ones can be guessed.
const ADMIN_TOKEN_MIN: usize = 32;

/// What a node is told.
#[derive(Debug)]
pub struct Config {
    pub store: StoreAddress,
    pub data: PathBuf,
    pub listen: SocketAddr,
    pub hosts: Vec<String>,
    pub http_threads: usize,
    pub http_connections: usize,
    pub http_connections_per_address: usize,
    pub http_requests: usize,
    pub roles: Roles,
    pub name: String,
    pub jobs: Option<PathBuf>,
    pub demo: bool,
    pub attempts_max: usize,
    pub traits: Vec<String>,
    pub drain: Span,
    pub node_lease: Span,
    pub run_lease: Span,
    pub history_keep: Span,
    pub audit_keep: Span,
    pub access: AccessOptions,
    pub tiers: Tiers,
    pub egress: Egress,
    pub commands: CommandOptions,
    pub connections: usize,
    pub schema: Option<String>,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
}

/// One line of `rota config show`.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub key: &'static str,
    /// As it would be written in the file.
    pub value: String,
    pub source: Source,
}

/// The configuration in force, or everything that is wrong with it.
pub fn load(flags: &Flags) -> Result<Config, Failure> {
    read(flags, |name| std::env::var(name).ok()).map(|(config, _)| config)
}

/// Whether a flag is one of those that every command with a configuration has.
pub fn is_setting(flag: &str) -> bool {
    flag == layers::CONFIG || SETTINGS.iter().any(|setting| setting.key == flag)
}

/// Variables that look like settings and are none: a mistyped name would
/// otherwise be silence. Not refused, for others may use our prefix too.
pub fn strangers() -> Vec<String> {
    strangers_among(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

/// Variables of ours that are no settings of a node. The command line's own may be
/// set for everything that is started.
const OTHERS: [&str; 5] =
    [layers::CONFIG_VARIABLE, ADMIN_VARIABLE, JWT_SECRET_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE];

fn strangers_among(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = |name: &str| OTHERS.contains(&name) || SETTINGS.iter().any(|setting| setting.variable() == name);
    let mut strangers: Vec<String> = names.filter(|name| name.starts_with("ROTA_") && !known(name)).collect();
    strangers.sort();
    strangers
}

/// The configuration in force with where each value came from.
pub fn show(flags: &Flags) -> Result<Vec<Shown>, Failure> {
    let (config, layers) = read(flags, |name| std::env::var(name).ok())?;
    Ok(SETTINGS.iter().filter_map(|setting| shown(setting, &config, &layers)).collect())
}

fn shown(setting: &settings::Setting, config: &Config, layers: &Layers) -> Option<Shown> {
    let worked_out = match setting.key {
        "store" => Some(config.store.to_string()),
        "data" => Some(config.data.display().to_string()),
        "name" => Some(config.name.clone()),
        "commands.directory" => Some(config.commands.directory.display().to_string()),
        _ => None,
    };
    let given = layers.get(setting.key);
    let source = given.map_or(Source::Default, |given| given.source.clone());
    let quoted = |text: &String| toml::Value::from(text.as_str()).to_string();
    let value = match (setting.shape, worked_out, given) {
        (_, Some(text), _) => quoted(&text),
        (Shape::Switch, None, Some(given)) => given.items.concat(),
        (Shape::Many, None, Some(given)) => {
            format!("[{}]", given.items.iter().map(quoted).collect::<Vec<_>>().join(", "))
        }
        (Shape::One, None, Some(given)) => {
            let text = given.items.concat();
            if text.parse::<u64>().is_ok() { text } else { quoted(&text) }
        }
        (_, None, None) => return None,
    };
    Some(Shown { key: setting.key, value, source })
}

fn read(flags: &Flags, variable: impl Fn(&str) -> Option<String>) -> Result<(Config, Layers), Failure> {
    let mut layers = Layers::read(flags, &variable);
    let mut reading = Reading { problems: std::mem::take(&mut layers.problems), layers: &layers };
    let config = reading.config(&variable);
    match (config, reading.problems) {
        (Some(config), problems) if problems.is_empty() => Ok((config, layers)),
        (_, problems) => Err(Failure::bad_input("bad_config", told(&problems))),
    }
}

fn told(problems: &[String]) -> String {
    match problems {
        [one] => format!("the configuration is invalid: {one}"),
        many => format!("the configuration is invalid:\n  {}", many.join("\n  ")),
    }
}

/// Values being read, and what is wrong with them.
struct Reading<'a> {
    layers: &'a Layers,
    problems: Vec<String>,
}

impl Reading<'_> {
    /// None only where a problem was noted.
    fn config(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Option<Config> {
        let data = self.optional::<PathBuf>("data").unwrap_or_else(|| values::default_data(variable));
        let store = self.optional("store");
        let access = self.access(variable);
        let listen = access.as_ref().and_then(|access| self.listen(access.login));
        let directory = self.optional("commands.directory").unwrap_or_else(|| data.join("commands"));
        let (roles, egress, commands) = (self.roles(), self.egress(), self.commands(directory));
        let tiers = self.tiers();
        let (attempts_max, connections) = (self.number("attempts_max"), self.number("postgres.connections"));
        let http_threads = self.number("http.threads");
        let (http_connections, http_requests) = (self.number("http.connections"), self.number("http.requests"));
        let per_address = match self.layers.get("http.connections_per_address") {
            Some(_) => self.number("http.connections_per_address"),
            None => http_connections.map(Bounds::share_of),
        };
        let (node_lease, run_lease) = (self.span("leases.node", 500), self.span("leases.run", 1_000));
        let (drain, history_keep) = (self.one("drain"), self.one("history.keep"));
        let audit_keep = self.one("audit.keep");
        let (log_format, log_level) = (self.one("log.format"), self.one("log.level"));
        let hosts = self.many("hosts");
        let (jobs, schema) = (self.optional("jobs"), self.optional("postgres.schema"));
        let (demo, traits) = (self.one("demo").unwrap_or_default(), self.many("traits"));
        Some(Config {
            store: store.unwrap_or_else(|| StoreAddress::Sqlite(data.join("rota.db"))),
            listen: listen?,
            hosts: hosts.into_iter().map(|host: String| host.to_ascii_lowercase()).collect(),
            http_threads: http_threads?.min(HTTP_THREADS_MAX),
            http_connections: http_connections?,
            http_connections_per_address: per_address?,
            http_requests: http_requests?,
            roles: roles?,
            name: self.optional("name").unwrap_or_else(values::machine_name),
            jobs,
            demo,
            attempts_max: attempts_max?,
            traits,
            drain: drain?,
            node_lease: node_lease?,
            run_lease: run_lease?,
            history_keep: history_keep?,
            audit_keep: audit_keep?,
            access: access?,
            tiers,
            egress: egress?,
            commands: commands?,
            connections: connections?,
            schema,
            log_format: log_format?,
            log_level: log_level?,
            data,
        })
    }

    fn refuse(&mut self, key: &str, message: impl Display) {
        let source = self.layers.get(key).map_or(Source::Default, |given| given.source.clone());
        self.problems.push(format!("{key}: {message} ({source})"));
    }

    fn parse<T: FromStr<Err: Display>>(&mut self, key: &str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(key, values::explained(key, text, &error.to_string()));
                None
            }
        }
    }

    /// A value that may be left out; one that is wrong is noted.
    fn optional<T: FromStr<Err: Display>>(&mut self, key: &str) -> Option<T> {
        let Given { items, .. } = self.layers.get(key)?;
        if let Some(text) = items.first().filter(|text| !text.is_empty()) {
            return self.parse(key, text);
        }
        self.refuse(key, "a value is missing");
        None
    }

    /// A value that has a default.
    fn one<T: FromStr<Err: Display>>(&mut self, key: &str) -> Option<T> {
        self.optional(key)
    }

    fn many<T: FromStr<Err: Display>>(&mut self, key: &str) -> Vec<T> {
        let Some(Given { items, .. }) = self.layers.get(key) else { return Vec::new() };
        items.iter().filter_map(|text| self.parse(key, text)).collect()
    }

    fn number(&mut self, key: &str) -> Option<usize> {
        let number: usize = self.one(key)?;
        if (1..=1_000_000).contains(&number) {
            return Some(number);
        }
        self.refuse(key, format_args!("{number} is not between 1 and 1000000"));
        None
    }

    fn span(&mut self, key: &str, millis_min: u64) -> Option<Span> {
        let span: Span = self.one(key)?;
        if span.as_millis() >= millis_min {
            return Some(span);
        }
        self.refuse(key, format_args!("{span} is too short; the minimum is {}", Span::millis(millis_min)));
        None
    }

    fn listen(&mut self, login: Login) -> Option<SocketAddr> {
        let insecure: bool = self.one("insecure_listen").unwrap_or_default();
        let listen: SocketAddr = self.one("listen")?;
        if listen.ip().is_loopback() || insecure || login == Login::Required {
            return Some(listen);
        }
        self.refuse(
            "listen",
            format_args!(
                "other machines can reach {listen}, and no login is required. Require one: create a token with \
                 `rota token create NAME --admin --direct` and start with --auth-login required; or listen on 127.0.0.1; or \
                 accept that anybody who reaches it may do anything, with --insecure-listen"
            ),
        );
        None
    }

    /// Who is let in. What is secret is named here and never shown.
    fn access(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Option<AccessOptions> {
        let before = self.problems.len();
        let admin = variable(ADMIN_VARIABLE).filter(|token| !token.is_empty());
        if admin.as_ref().is_some_and(|token| token.len() < ADMIN_TOKEN_MIN) {
            self.problems.push(format!("{ADMIN_VARIABLE}: the token must have at least {ADMIN_TOKEN_MIN} characters"));
        }
        let jwt = self.jwt(variable(JWT_SECRET_VARIABLE));
        let login = match self.optional::<String>("auth.login").as_deref() {
            Some("off") => Login::Off,
            Some("required") => Login::Required,
            Some(other) => {
                self.refuse("auth.login", values::not_one_of(other, &["off", "required"]));
                Login::Required
            }
            // What others reach and somebody took care of is closed.
            None if self.is_open_to_others() && (admin.is_some() || jwt.is_some()) => Login::Required,
            None => Login::Off,
        };
        let session_keep = self.span("auth.sessions", 60_000)?;
        let admin = admin.map(|token| SecretDigest::of(&token));
        let access = AccessOptions { login, admin, session_keep, jwt };
        if let Err(why) = Access::new(access.clone()) {
            self.refuse("jwt.algorithms", why);
        }
        (self.problems.len() == before).then_some(access)
    }

    fn is_open_to_others(&self) -> bool {
        let given = self.layers.get("listen").and_then(|given| given.items.first());
        given.and_then(|text| text.parse::<SocketAddr>().ok()).is_some_and(|listen| !listen.ip().is_loopback())
    }

    fn jwt(&mut self, secret: Option<String>) -> Option<JwtOptions> {
        let algorithms: Vec<String> = self.many("jwt.algorithms");
        let (file, url) = (self.optional::<PathBuf>("jwt.key_file"), self.optional::<String>("jwt.jwks_url"));
        if algorithms.is_empty() {
            if file.is_some() || url.is_some() {
                self.refuse("jwt.algorithms", "a key is set, but no algorithm; set jwt.algorithms");
            }
            return None;
        }
        let secret = secret.filter(|secret| !secret.is_empty());
        let symmetric = algorithms.iter().any(|name| name.starts_with("HS"));
        let keys = match (file, url, secret) {
            (Some(file), None, None) => match std::fs::read(&file) {
                Ok(bytes) if symmetric => JwtKeys::Secret(bytes.trim_ascii_end().to_vec()),
                Ok(bytes) => JwtKeys::Pem(bytes),
                Err(error) => {
                    self.refuse("jwt.key_file", format_args!("{} cannot be read: {error}", file.display()));
                    return None;
                }
            },
            (None, Some(url), None) => JwtKeys::Set(url),
            (None, None, Some(secret)) => JwtKeys::Secret(secret.into_bytes()),
            _ => {
                let message = format!("set exactly one of jwt.key_file, jwt.jwks_url and {JWT_SECRET_VARIABLE}");
                self.refuse("jwt.algorithms", message);
                return None;
            }
        };
        Some(JwtOptions {
            algorithms,
            keys,
            issuer: self.optional("jwt.issuer"),
            audience: self.optional("jwt.audience"),
            tenant_claim: self.optional("jwt.tenant_claim").filter(|claim: &String| claim != "none"),
            role_claim: self.optional("jwt.role_claim").unwrap_or_default(),
            permissions_claim: self.optional("jwt.permissions_claim").unwrap_or_default(),
        })
    }

    fn roles(&mut self) -> Option<Roles> {
        let names: Vec<String> = self.many("roles");
        match Roles::of(&names) {
            Ok(roles) => Some(roles),
            Err(message) => {
                self.refuse("roles", message);
                None
            }
        }
    }

    /// What tiers allow; what is wrong is noted with the tier and the quota.
    fn tiers(&mut self) -> Tiers {
        let mut tiers = Tiers::default();
        for (key, tier) in
            [("quotas.free", Tier::Free), ("quotas.pro", Tier::Pro), ("quotas.enterprise", Tier::Enterprise)]
        {
            let mut own = serde_json::Map::new();
            for text in self.many::<String>(key) {
                match text.split_once('=') {
                    None => self.refuse(key, format_args!("`{text}` must have the form NAME=VALUE")),
                    Some((name, value)) => {
                        if own.insert(name.trim().to_owned(), values::quota(value.trim())).is_some() {
                            self.refuse(key, format_args!("{name} is set twice"));
                        }
                    }
                }
            }
            match tiers.clone().with(tier, &own.into()) {
                Ok(with) => tiers = with,
                Err(problems) => problems.iter().for_each(|problem| self.refuse(key, problem)),
            }
        }
        tiers
    }

    fn egress(&mut self) -> Option<Egress> {
        let reach: String = self.one("egress.reach")?;
        let allow: Vec<Allowed> = self.many("egress.allow");
        let reach = match reach.as_str() {
            "public" => Reach::Public,
            "listed" => Reach::Listed,
            "anything" => Reach::Anything,
            other => {
                self.refuse("egress.reach", values::not_one_of(other, &["public", "listed", "anything"]));
                return None;
            }
        };
        Some(Egress { reach, allow })
    }

    fn commands(&mut self, directory: PathBuf) -> Option<CommandOptions> {
        let policy = self.command_policy()?;
        let (directories, variables) = (self.many("commands.directories"), self.many("commands.variables"));
        if !matches!(policy, CommandPolicy::Listed(_)) {
            for (key, is_given) in
                [("commands.directories", !directories.is_empty()), ("commands.variables", !variables.is_empty())]
            {
                if is_given {
                    self.refuse(key, "has an effect only with commands.policy `listed`");
                }
            }
        }
        let user = self.optional::<String>("commands.user").and_then(|text| {
            let found = CommandUser::find(&text, Path::new("/etc/passwd"));
            found.map_err(|why| self.refuse("commands.user", why)).ok()
        });
        let limits = self.command_limits(user.is_some());
        if policy == CommandPolicy::Off && (user.is_some() || limits.is_some()) {
            self.refuse("commands.policy", "commands are off, so commands.user and limits have no effect");
        }
        Some(CommandOptions { policy, directory, directories, variables, user, limits, ..CommandOptions::default() })
    }

    fn command_limits(&mut self, has_user: bool) -> Option<CommandLimits> {
        let memory_bytes = self.optional::<Size>("commands.memory").map(Size::bytes);
        let (cpu, processes) = (self.optional("commands.cpu"), self.optional("commands.processes"));
        if processes.is_some() && !has_user {
            self.refuse("commands.processes", "counts the processes of a user, so it needs commands.user");
        }
        if memory_bytes.is_none() && cpu.is_none() && processes.is_none() {
            return None;
        }
        // The file that runs, also when another one stands in its place by then.
        let running = Path::new("/proc/self/exe");
        let own = if running.exists() { Ok(running.to_owned()) } else { std::env::current_exe() };
        let own = own.map_err(|error| self.refuse("commands.memory", error)).ok()?;
        let starter = vec![own.display().to_string(), LIMITED.to_owned()];
        Some(CommandLimits { starter, memory_bytes, cpu, processes })
    }

    fn command_policy(&mut self) -> Option<CommandPolicy> {
        let policy: String = self.one("commands.policy")?;
        let allow: Vec<PathBuf> = self.many("commands.allow");
        for path in allow.iter().filter(|path| !path.is_absolute()) {
            self.refuse("commands.allow", format_args!("{} is not an absolute path", path.display()));
        }
        match (policy.as_str(), allow.is_empty()) {
            ("off", true) => Some(CommandPolicy::Off),
            ("any", true) => Some(CommandPolicy::Any),
            ("listed", false) => Some(CommandPolicy::Listed(allow.into_iter().map(program).collect())),
            ("listed", true) => {
                self.refuse("commands.allow", "the policy is `listed`, but commands.allow is empty");
                None
            }
            ("off" | "any", false) => {
                self.refuse(
                    "commands.allow",
                    format_args!("a list has an effect only with commands.policy `listed`, not with `{policy}`"),
                );
                None
            }
            (other, _) => {
                self.refuse("commands.policy", values::not_one_of(other, &["off", "listed", "any"]));
                None
            }
        }
    }
}

fn program(path: PathBuf) -> AllowedProgram {
    let is_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_directory { AllowedProgram::Directory(path) } else { AllowedProgram::Program(path) }
}
