//! Every setting there is: its key, its form, its default and what it means.
//!
//! This list is the only place that names them. The file, the environment, the
//! flags, `rota config show` and the reference page are made from it.

/// How a setting is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    One,
    /// An array in the file; comma-separated elsewhere.
    Many,
    /// True or false; a flag alone means true.
    Switch,
}

#[derive(Debug)]
pub struct Setting {
    /// In the file; a dot stands between section and field.
    pub key: &'static str,
    pub shape: Shape,
    /// What a value looks like.
    pub form: &'static str,
    /// As written in the file; None where it is worked out or absent.
    pub default: Option<&'static str>,
    /// In words, where `default` cannot say it.
    pub otherwise: &'static str,
    pub about: &'static str,
}

impl Setting {
    const fn one(key: &'static str, form: &'static str, default: &'static str, about: &'static str) -> Self {
        Self { key, shape: Shape::One, form, default: Some(default), otherwise: "", about }
    }

    const fn derived(key: &'static str, form: &'static str, otherwise: &'static str, about: &'static str) -> Self {
        Self { key, shape: Shape::One, form, default: None, otherwise, about }
    }

    const fn many(key: &'static str, form: &'static str, default: &'static str, about: &'static str) -> Self {
        Self { key, shape: Shape::Many, form, default: Some(default), otherwise: "", about }
    }

    const fn switch(key: &'static str, about: &'static str) -> Self {
        Self { key, shape: Shape::Switch, form: "true|false", default: Some("false"), otherwise: "", about }
    }

    /// `egress.allow` is `ROTA_EGRESS_ALLOW`.
    pub fn variable(&self) -> String {
        format!("ROTA_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// `egress.allow` is `egress-allow`.
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    pub fn named(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }
}

pub const SETTINGS: &[Setting] = &[
    Setting::derived(
        "store",
        "sqlite:PATH|postgres://…",
        "`rota.db` in `data`",
        "Where jobs, runs and history are kept",
    ),
    Setting::derived(
        "data",
        "DIR",
        "`$XDG_DATA_HOME/rota`, `~/.local/share/rota`, or `./rota-data` without a home",
        "Where this node keeps its files; created if it does not exist, readable by its owner only",
    ),
    Setting::one("listen", "ADDR", "127.0.0.1:7070", "Address and port of the HTTP server; port 0 chooses a free one"),
    Setting::switch(
        "insecure_listen",
        "Listen on an address that other machines can reach although no login is required",
    ),
    Setting::many("hosts", "NAME,…", "", "Host names of this node, in addition to IP addresses and localhost"),
    Setting::many(
        "roles",
        "ROLE,…",
        "api,scheduler,worker",
        "What this node does. A scheduler executes the runs of its partitions, so it is also a worker",
    ),
    Setting::derived("name", "TEXT", "the machine's name", "The name of this node, for people"),
    Setting::derived(
        "jobs",
        "DIR",
        "none",
        "Directory of job documents to save at start: files that end in .yaml, .yml or .json",
    ),
    Setting::switch("demo", "Save a job named demo that runs every 10 seconds"),
    Setting::one("attempts_max", "N", "1000", "Maximum number of attempts in flight on this node"),
    Setting::many("traits", "TRAIT,…", "", "The traits that this node offers to jobs that require them"),
    Setting::one(
        "drain",
        "DURATION",
        "30s",
        "How long attempts may continue after SIGTERM before they are handed back",
    ),
    Setting::one(
        "http.threads",
        "N",
        "2",
        "Threads that answer requests; the scheduler has its own, one per core of the machine",
    ),
    Setting::one(
        "http.connections",
        "N",
        "1024",
        "Maximum number of connections at once; a further one replaces an idle one, or is refused with 503",
    ),
    Setting::derived(
        "http.connections_per_address",
        "N",
        "three quarters of `http.connections`",
        "Maximum number of connections at once from one address (IPv6: from one /64); behind a proxy all callers have one address",
    ),
    Setting::one(
        "http.requests",
        "N",
        "256",
        "Maximum number of API requests in progress at once; further ones are refused with 503",
    ),
    Setting::one(
        "leases.node",
        "DURATION",
        "3s",
        "How long a node's lease holds without a heartbeat; then another node takes over",
    ),
    Setting::one("leases.run", "DURATION", "6s", "How long a written lease of a run holds without being extended"),
    Setting::derived(
        "auth.login",
        "off|required",
        "`off` on loopback; elsewhere it must be set, unless `ROTA_ADMIN_TOKEN` or `[jwt]` implies it",
        "Whether callers must log in; see security.md",
    ),
    Setting::one("auth.sessions", "DURATION", "12h", "How long a login with a password is valid"),
    Setting::many(
        "jwt.algorithms",
        "NAME,…",
        "",
        "Signature algorithms of accepted JWTs: the HS256 family with a secret; the RS256, PS256, ES256 and EdDSA families with a public key",
    ),
    Setting::derived(
        "jwt.key_file",
        "FILE",
        "none; a secret may also be in `ROTA_JWT_SECRET`",
        "The public key in PEM, or the secret",
    ),
    Setting::derived("jwt.jwks_url", "URL", "none", "The key set of the identity provider, instead of a key"),
    Setting::derived("jwt.issuer", "TEXT", "any", "The required value of `iss`"),
    Setting::derived("jwt.audience", "TEXT", "any", "A value that `aud` must contain"),
    Setting::one(
        "jwt.tenant_claim",
        "NAME",
        "tenant",
        "The claim with the tenant's name; none if all callers belong to the default tenant",
    ),
    Setting::one(
        "jwt.role_claim",
        "NAME",
        "role",
        "The claim with viewer, operator, editor, admin or installation_admin, or a list of them",
    ),
    Setting::one(
        "jwt.permissions_claim",
        "NAME",
        "permissions",
        "The claim with single permissions in addition to those of the role",
    ),
    Setting::many(
        "quotas.free",
        "NAME=VALUE,…",
        "",
        "What this tier allows instead of the values in quotas.md, such as runs_per_minute=200; `none` means no limit",
    ),
    Setting::many("quotas.pro", "NAME=VALUE,…", "", "The same for the tier pro"),
    Setting::many("quotas.enterprise", "NAME=VALUE,…", "", "The same for the tier enterprise"),
    Setting::one("audit.keep", "DURATION", "365d", "How long the audit log is kept"),
    Setting::one("history.keep", "DURATION", "7d", "How long finished runs are kept"),
    Setting::one(
        "egress.reach",
        "public|listed|anything",
        "public",
        "Addresses that http steps may reach without being listed",
    ),
    Setting::many(
        "egress.allow",
        "HOST|HOST:PORT|NETWORK,…",
        "",
        "What else http steps may reach: a private network such as 10.1.0.0/16, or a host",
    ),
    Setting::one("commands.policy", "off|listed|any", "off", "Which programs command steps may start"),
    Setting::many(
        "commands.allow",
        "PATH,…",
        "",
        "The allowed programs; a path that ends in / means every program in that directory",
    ),
    Setting::derived(
        "commands.directory",
        "DIR",
        "`commands` in `data`",
        "The directory in which programs are started",
    ),
    Setting::many("commands.directories", "DIR,…", "", "Other directories in which programs of a list may be started"),
    Setting::many(
        "commands.variables",
        "NAME,…",
        "",
        "Environment variables that steps may set for programs of a list; APP_* means every name that begins so",
    ),
    Setting::derived(
        "commands.user",
        "NAME|UID:GID",
        "the node's own",
        "The user as which programs run; the node must be root",
    ),
    Setting::derived("commands.memory", "SIZE", "no limit", "Memory that each process of a program may use"),
    Setting::derived("commands.cpu", "DURATION", "no limit", "Processor time that each process of a program may use"),
    Setting::derived(
        "commands.processes",
        "N",
        "no limit",
        "Number of processes that commands.user may have, all programs together",
    ),
    Setting::one(
        "postgres.connections",
        "N",
        "8",
        "Number of connections for the scheduler; half as many more are for the API, and two are reserved for leases",
    ),
    Setting::derived("postgres.schema", "NAME", "the server's default", "The schema that holds the tables"),
    Setting::one("log.format", "pretty|json", "pretty", "Format of the log, which goes to standard error"),
    Setting::one(
        "log.level",
        "LEVEL",
        "info",
        "error, warn, info, debug or trace; also per component: info,rota::runs=debug logs every run",
    ),
];

/// The reference page, docs/config.md.
pub fn reference() -> String {
    let mut lines: Vec<String> = vec![HEAD.to_owned()];
    let mut section = None;
    for setting in SETTINGS {
        let (found, field) = setting.key.split_once('.').unwrap_or(("", setting.key));
        if section.replace(found) != Some(found) {
            let title = if found.is_empty() { "General".to_owned() } else { format!("`[{found}]`") };
            lines.push(format!("\n## {title}\n\n| field | value | default | meaning |\n|---|---|---|---|\n"));
        }
        let form = setting.form.replace('|', "\\|");
        let default = match setting.default {
            Some("") => "none".to_owned(),
            Some(default) => format!("`{default}`"),
            None => setting.otherwise.to_owned(),
        };
        lines.push(format!("| `{field}` | `{form}` | {default} | {} |\n", setting.about));
    }
    lines.push(TAIL.to_owned());
    lines.concat()
}

const HEAD: &str = "\
# Configuration

*Generated by `rota config reference`; a test compares this page with the program.*

A setting is given in a TOML file (`--config FILE` or `ROTA_CONFIG`), in the
environment or as a flag. A flag takes precedence over the environment, the environment
over the file, and the file over the default. `egress.allow` is `allow` in the
section `[egress]` of the file, `ROTA_EGRESS_ALLOW` in the environment and
`--egress-allow` as a flag; lists are arrays in the file and comma-separated
elsewhere. Unknown fields and invalid values are refused; the message names the
field and where it was set. A variable `ROTA_…` that is not a setting causes a warning.

`rota config check` checks whether a configuration can be used, including the job
documents; `rota config show` prints the values in force and where each one comes
from, with passwords masked. Both take the flags of `rota serve`.
";

const TAIL: &str = r#"
## Example

```toml
store = "postgres://rota@db.internal/rota?sslmode=verify-full"
jobs = "/etc/rota/jobs"

[egress]
allow = ["10.1.0.0/16", "reports.internal:8080"]

[commands]
policy = "listed"
allow = ["/usr/local/lib/rota/"]

[log]
format = "json"
```

Keep a password in `store` out of the file: set `ROTA_STORE` from a secret.

## Secrets

Two variables are read from the environment only, so that they appear
in no file, no process list and not in `rota config show`:

| variable | meaning |
|---|---|
| `ROTA_ADMIN_TOKEN` | a token of at least 32 characters that acts for the installation as long as it is set; see [security.md](security.md) |
| `ROTA_JWT_SECRET` | the secret of JWTs signed by HS256, HS384 or HS512, at least 32 bytes |
"#;
