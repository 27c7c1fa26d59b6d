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
        "Where this node keeps its files; made if it is not there, for its owner alone",
    ),
    Setting::one("listen", "ADDR", "127.0.0.1:7070", "Address and port of the HTTP server; port 0 takes a free one"),
    Setting::switch("insecure_listen", "Listen on an address that other machines reach although no login is asked for"),
    Setting::many("hosts", "NAME,…", "", "Names this node goes by, besides addresses and localhost"),
    Setting::many(
        "roles",
        "ROLE,…",
        "api,scheduler,worker",
        "What this node does. A scheduler executes what its partitions hold, so it is a worker too",
    ),
    Setting::derived("name", "TEXT", "the machine's name", "What people call this node"),
    Setting::derived(
        "jobs",
        "DIR",
        "none",
        "Job documents to save at start: its files that end in .yaml, .yml or .json",
    ),
    Setting::switch("demo", "Save a job named demo that runs every 10 seconds"),
    Setting::one("attempts_max", "N", "1000", "Attempts under way at once on this node"),
    Setting::many("traits", "TRAIT,…", "", "What this node offers to jobs that require it"),
    Setting::one("drain", "DURATION", "30s", "How long attempts may go on after SIGTERM before they are handed back"),
    Setting::one(
        "http.threads",
        "N",
        "2",
        "Threads that answer requests; the scheduler has its own, one for each core of the machine",
    ),
    Setting::one("http.connections", "N", "1024", "Connections at once; the next one is refused with 503"),
    Setting::one("http.requests", "N", "256", "Requests of the API in work at once; the next one is refused with 503"),
    Setting::one("leases.node", "DURATION", "3s", "How long a node's word holds; another takes over after that"),
    Setting::one("leases.run", "DURATION", "6s", "How long a written lease of a run holds without being extended"),
    Setting::derived(
        "auth.login",
        "off|required",
        "`off` on loopback; elsewhere it must be said, or follow from `ROTA_ADMIN_TOKEN` or `[jwt]`",
        "Whether callers must say who they are; see security.md",
    ),
    Setting::one("auth.sessions", "DURATION", "12h", "How long somebody who logged in with a password stays logged in"),
    Setting::many(
        "jwt.algorithms",
        "NAME,…",
        "",
        "Accept JWTs signed by these: HS256 and kin with a secret, RS256, PS256, ES256, EdDSA and kin with a public key",
    ),
    Setting::derived(
        "jwt.key_file",
        "FILE",
        "none; a secret may also be in `ROTA_JWT_SECRET`",
        "The public key in PEM, or the secret",
    ),
    Setting::derived("jwt.jwks_url", "URL", "none", "The key set of the login server, instead of a key"),
    Setting::derived("jwt.issuer", "TEXT", "anybody", "What `iss` must be"),
    Setting::derived("jwt.audience", "TEXT", "anything", "What `aud` must name"),
    Setting::one(
        "jwt.tenant_claim",
        "NAME",
        "tenant",
        "The claim with the tenant's name; none where everybody belongs to the default tenant",
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
        "The claim with single permissions besides the role's",
    ),
    Setting::many(
        "quotas.free",
        "NAME=VALUE,…",
        "",
        "What the tier allows instead of the table in quotas.md, such as runs_per_minute=200; `none` is without limit",
    ),
    Setting::many("quotas.pro", "NAME=VALUE,…", "", "The same for the tier pro"),
    Setting::many("quotas.enterprise", "NAME=VALUE,…", "", "The same for the tier enterprise"),
    Setting::one("audit.keep", "DURATION", "365d", "How long the audit log is kept"),
    Setting::one("history.keep", "DURATION", "7d", "How long finished runs are kept"),
    Setting::one(
        "egress.reach",
        "public|listed|anything",
        "public",
        "Addresses that http steps reach without being listed",
    ),
    Setting::many(
        "egress.allow",
        "HOST|HOST:PORT|NETWORK,…",
        "",
        "What http steps may reach besides: a private network such as 10.1.0.0/16, a host",
    ),
    Setting::one("commands.policy", "off|listed|any", "off", "Which programs command steps may start"),
    Setting::many(
        "commands.allow",
        "PATH,…",
        "",
        "The listed programs; a path that ends in / means every program in that directory",
    ),
    Setting::derived("commands.directory", "DIR", "`commands` in `data`", "Where programs are started"),
    Setting::one(
        "postgres.connections",
        "N",
        "8",
        "Connections for work; half as many more for the API, and two kept back for leases",
    ),
    Setting::derived("postgres.schema", "NAME", "the server's default", "The schema that holds the tables"),
    Setting::one("log.format", "pretty|json", "pretty", "Form of the log, which goes to standard error"),
    Setting::one(
        "log.level",
        "LEVEL",
        "info",
        "error, warn, info, debug or trace; also by part, such as info,rota::runs=debug for every run",
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

*Made by `rota config reference`; a test holds this page to the program.*

A setting is given in a TOML file (`--config FILE` or `ROTA_CONFIG`), in the
environment or as a flag. A flag counts before the environment, the environment
before the file, the file before the default. `egress.allow` is `allow` in the
section `[egress]` of the file, `ROTA_EGRESS_ALLOW` in the environment and
`--egress-allow` as a flag; lists are arrays in the file and comma-separated
elsewhere. An unknown field and a value that cannot be read are refused, with the
field and where it was given. A variable `ROTA_…` that is no setting is warned of.

`rota config check` says whether a configuration can be used, job documents
included; `rota config show` prints what is in force and where each value came
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

A password in `store` is better kept out of the file: set `ROTA_STORE` from a secret.

## Secrets that are no settings

Two variables are read from the environment and from nowhere else, so that they stand
in no file, no process list and no `rota config show`:

| variable | meaning |
|---|---|
| `ROTA_ADMIN_TOKEN` | a token of at least 32 characters that speaks for the installation as long as it is set; see [security.md](security.md) |
| `ROTA_JWT_SECRET` | the secret of JWTs signed by HS256, HS384 or HS512, at least 32 bytes |
"#;
