//! The checks, one function each.

use std::{
    fmt::Display,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    time::Duration,
};

use jiff::Timestamp;
use rota_api::{access::UnreadableRow, page::Page};
use rota_client::{Client, Ready};
use rota_store::{Look, postgres, sqlite};

use super::Finding;
use crate::{
    clock,
    config::{self, Config, StoreAddress},
    contexts::Contexts,
    target::{ServerArgs, Target},
    times,
};

/// Leases compare clocks of the store's users; beyond this they mislead.
const SKEW_MAX_MS: i64 = 1_000;
const MIB: u64 = 1 << 20;
/// With less, a backlog or a day's history fills the disk.
const SPACE_LOW: u64 = 1024 * MIB;
const SPACE_NONE: u64 = 100 * MIB;
/// Files that a node has open besides those of its attempts.
const FILES_BASE: u64 = 256;
/// A program needs pipes for its input, output and errors; a call one socket.
const FILES_PER_ATTEMPT: u64 = 3;
/// Rows that are named; `rota rows list` has them all.
const ROWS_NAMED: usize = 5;
const PATIENCE: Duration = Duration::from_secs(3);

pub fn configuration(config: &Config) -> Vec<Finding> {
    let mut findings =
        vec![Finding::good("configuration", format!("the configuration is valid; the store is {}", config.store))];
    for name in config::strangers() {
        let advice = "unset it, or correct its name; `rota config reference` lists the settings";
        findings.push(Finding::warning(
            "configuration",
            format!("{name} is set, but there is no such setting"),
            advice,
        ));
    }
    findings
}

/// Whether the address is free, Rota's, or another's.
pub async fn port(config: &Config) -> Vec<Finding> {
    let address = config.listen;
    match TcpListener::bind(address) {
        Ok(_) => vec![Finding::good("port", format!("{address} is free; no server runs there"))],
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => served(&format!("http://{address}")).await,
        Err(error) => {
            let advice = "choose another address with --listen; ports below 1024 need privileges";
            vec![Finding::wrong("port", format!("cannot listen on {address}: {error}"), advice)]
        }
    }
}

/// What answers where the port is taken.
async fn served(url: &str) -> Vec<Finding> {
    let asked = match Client::new(url) {
        Ok(client) => client.ready(PATIENCE).await,
        Err(error) => Err(error),
    };
    let (ready, date) = match asked {
        Ok(Ready { why_not: None, date }) => (Finding::good("server", format!("a node at {url} is ready")), date),
        Ok(Ready { why_not: Some(why), date }) => {
            let words = format!("a node at {url} is not ready: {why}");
            (Finding::wrong("server", words, "look at the log of the node"), date)
        }
        Err(error) => {
            let words = format!("another process listens on {url}, and it is not Rota: {error}");
            let advice = "find the process with `ss -ltnp` and stop it, or choose another address with --listen";
            (Finding::wrong("port", words, advice), None)
        }
    };
    let rows = if ready.check == "server" { Some(rows(url).await) } else { None };
    let skew = date.and_then(|date| http_date(&date)).map(|at| skew("server's clock", at, 2 * SKEW_MAX_MS));
    std::iter::once(ready).chain(skew).chain(rows).collect()
}

/// The rows that a node could not read: left out everywhere, and seen by nobody who does not
/// ask for them.
async fn rows(url: &str) -> Finding {
    let unknown = |why: &dyn Display| {
        let words = format!("cannot check whether there are rows that cannot be read: {why}");
        Finding::warning("rows", words, "log in as an administrator of the installation, or set ROTA_TOKEN")
    };
    let server = ServerArgs { server: Some(url.to_owned()), ..ServerArgs::default() };
    let Ok(client) = Target::of(&server).and_then(|target| target.client()) else {
        return unknown(&"the contexts or the token cannot be used");
    };
    match client.get::<Page<UnreadableRow>>(&["rows"], &[]).await {
        Ok(page) => unreadable(&page.items),
        Err(error) => unknown(&error),
    }
}

fn unreadable(rows: &[UnreadableRow]) -> Finding {
    if rows.is_empty() {
        return Finding::good("rows", "no unreadable rows are known");
    }
    let named: Vec<String> = rows.iter().take(ROWS_NAMED).map(|row| format!("{} ({})", row.id, row.reason)).collect();
    let more = if rows.len() > named.len() { ", and more" } else { "" };
    let what = if rows.len() == 1 { "row cannot be read and is" } else { "rows cannot be read and are" };
    let words = format!("{} {what} left out: {}{more}", rows.len(), named.join(", "));
    let advice = "look at each row with `rota rows show`; repair it, or delete it with `rota rows discard`";
    Finding::wrong("rows", words, advice)
}

/// `Tue, 15 Nov 1994 08:12:31 GMT`.
fn http_date(text: &str) -> Option<Timestamp> {
    let parsed = jiff::fmt::strtime::parse("%a, %d %b %Y %H:%M:%S GMT", text).ok()?;
    Some(parsed.to_datetime().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

fn skew(check: &'static str, theirs: Timestamp, bound_ms: i64) -> Finding {
    let millis = clock::now().duration_since(theirs).as_millis() as i64;
    let words = format!("it differs from this machine's clock by {}", times::span(millis.unsigned_abs()));
    if millis.abs() <= bound_ms {
        return Finding::good(check, words);
    }
    Finding::wrong(
        check,
        words,
        "synchronise the clocks with NTP (chronyd, systemd-timesyncd); leases and schedules depend on them",
    )
}

pub async fn store(config: &Config) -> Vec<Finding> {
    match &config.store {
        StoreAddress::Sqlite(path) => vec![sqlite_file(path)],
        StoreAddress::Postgres(url) => {
            let options = postgres::Options {
                schema: config.schema.clone(),
                work_connections: 1,
                wait: PATIENCE,
                ..postgres::Options::default()
            };
            match postgres::look(url, &options).await {
                Ok(look) => {
                    let clock = look.clock.map(|at| skew("store's clock", at, SKEW_MAX_MS));
                    std::iter::once(version(&look, &config.store.to_string())).chain(clock).collect()
                }
                Err(error) => {
                    let why =
                        anyhow::Error::from(error).chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
                    let advice = "check that the address is right, that PostgreSQL is running, and that this machine may log in to it";
                    vec![Finding::wrong("store", format!("{}: {why}", config.store), advice)]
                }
            }
        }
    }
}

fn sqlite_file(path: &Path) -> Finding {
    if !path.exists() {
        return Finding::good("store", format!("{} does not exist yet; `rota serve` creates it", path.display()));
    }
    match sqlite::look(path) {
        Ok(look) => version(&look, &path.display().to_string()),
        Err(error) => {
            let why = anyhow::Error::from(error).chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
            Finding::wrong(
                "store",
                why,
                "if it is not a file of Rota, choose another with --store; otherwise restore a backup",
            )
        }
    }
}

fn version(look: &Look, name: &str) -> Finding {
    let known = look.known;
    match look.schema {
        None => Finding::good("store", format!("{name} answers; Rota has not used it yet")),
        Some(found) if !look.may_use() => Finding::wrong(
            "store",
            format!("{name} has schema {found}, but this release knows only {known}: a later release has changed it"),
            "use that release or a later one",
        ),
        Some(found) if found > known => Finding::good(
            "store",
            format!("{name} answers, with schema {found} of a later release, which this release ({known}) can use"),
        ),
        Some(found) if found < known => Finding::warning(
            "store",
            format!("{name} has schema {found}, and this release has {known}"),
            "the next `rota serve` migrates it; make a backup first",
        ),
        Some(found) => Finding::good("store", format!("{name} answers, with schema {found}")),
    }
}

/// The folder of a node: whose it is, who may look, and how much fits.
pub fn data(config: &Config) -> Vec<Finding> {
    let path = &config.data;
    let mut findings = Vec::new();
    match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => {
            let advice = "choose a directory with --data";
            return vec![Finding::wrong("data", format!("{} is not a directory", path.display()), advice)];
        }
        Ok(found) => findings.push(permissions(path, &found)),
        Err(_) => {
            findings
                .push(Finding::good("data", format!("{} does not exist yet; `rota serve` creates it", path.display())));
        }
    }
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    findings.push(space(there));
    findings
}

fn permissions(path: &Path, found: &std::fs::Metadata) -> Finding {
    let mode = found.permissions().mode() & 0o777;
    let writable = rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok();
    if !writable {
        let advice = format!("change its owner (now {}) with chown, or choose another with --data", found.uid());
        return Finding::wrong("data", format!("you cannot write to {}", path.display()), advice);
    }
    if mode & 0o077 != 0 {
        let advice = format!("chmod 700 {}", path.display());
        return Finding::wrong("data", format!("other users can read {} (mode {mode:o})", path.display()), advice);
    }
    Finding::good("data", format!("only its owner can read {}", path.display()))
}

fn space(path: &Path) -> Finding {
    let Ok(found) = rustix::fs::statvfs(path) else {
        return Finding::warning(
            "disk",
            format!("cannot find out how much space is free at {}", path.display()),
            "check it with df",
        );
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let words = format!("{} MiB are free at {}", free / MIB, path.display());
    let advice = "free some space, keep less history with --history-keep, or move the directory with --data";
    match free {
        0..SPACE_NONE => Finding::wrong("disk", words, advice),
        SPACE_NONE..SPACE_LOW => Finding::warning("disk", words, advice),
        _ => Finding::good("disk", words),
    }
}

/// Whether as many attempts as allowed could have their files open.
pub fn files(config: &Config) -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let wanted = FILES_BASE + config.attempts_max as u64 * FILES_PER_ATTEMPT;
    match limit {
        None => Finding::good("open files", "no limit"),
        Some(limit) if limit >= wanted => {
            Finding::good("open files", format!("up to {limit} are allowed; {wanted} are enough"))
        }
        Some(limit) => Finding::warning(
            "open files",
            format!("up to {limit} are allowed, but {} attempts at once may need {wanted}", config.attempts_max),
            format!(
                "raise the limit (ulimit -n {wanted}, LimitNOFILE={wanted} under systemd), or lower --attempts-max"
            ),
        ),
    }
}

/// Tokens must not lie open.
pub fn contexts() -> Option<Finding> {
    let path = Contexts::path().filter(|path| path.exists())?;
    if Contexts::is_open_to_others() {
        let advice = format!("chmod 600 {}", path.display());
        return Some(Finding::wrong(
            "contexts",
            format!("other users can read the tokens in {}", path.display()),
            advice,
        ));
    }
    Some(match Contexts::load() {
        Ok(contexts) => Finding::good("contexts", format!("{} kept in {}", contexts.contexts.len(), path.display())),
        Err(_) => Finding::wrong("contexts", format!("{} cannot be read", path.display()), "repair or remove it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Grade;

    #[test]
    fn a_clock_that_is_off_is_wrong() {
        assert_eq!(skew("x", clock::now(), SKEW_MAX_MS).grade, Grade::Good);
        let hour = jiff::SignedDuration::from_hours(1);
        assert_eq!(skew("x", clock::now() - hour, SKEW_MAX_MS).grade, Grade::Wrong);
        assert_eq!(skew("x", clock::now() + hour, SKEW_MAX_MS).grade, Grade::Wrong);
        let date = http_date("Tue, 15 Nov 1994 08:12:31 GMT");
        assert_eq!(date, "1994-11-15T08:12:31Z".parse().ok());
    }

    /// What is left out everywhere would be noticed by nobody.
    #[test]
    fn rows_that_cannot_be_read_are_wrong_and_named() {
        assert_eq!(unreadable(&[]).grade, Grade::Good);
        let row = |n: usize| UnreadableRow {
            id: format!("job.{n}"),
            table: "job".to_owned(),
            key: n.to_string(),
            reason: "broken".to_owned(),
        };
        let found = unreadable(&(0..9).map(row).collect::<Vec<_>>());
        assert_eq!(found.grade, Grade::Wrong);
        assert!(found.found.starts_with("9 ") && found.found.contains("job.0 (broken)"), "{}", found.found);
        assert!(found.found.ends_with(", and more"), "{}", found.found);
    }

    #[test]
    fn a_schema_of_another_release_is_told() {
        let look = |schema, oldest| version(&Look { schema, known: 3, oldest, clock: None }, "s").grade;
        assert_eq!(
            [look(None, None), look(Some(3), None), look(Some(2), None), look(Some(4), None)],
            [Grade::Good, Grade::Good, Grade::Warning, Grade::Wrong]
        );
        assert_eq!(
            [look(Some(4), Some(3)), look(Some(5), Some(4))],
            [Grade::Good, Grade::Wrong],
            "a later release says who may use it"
        );
    }
}
