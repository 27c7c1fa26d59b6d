//! Limits: every bound on what callers send, keep and make Rota do, as one page, made from
//! the numbers that are checked.

use std::fmt::Display;

use rota_api::{page::PAGE_MAX, problem::Code};
use rota_core::{
    access::AUDIT_JSON_MAX,
    bytes::{LOG_LINE_BYTES_MAX, MESSAGE_BYTES_MAX, OUTPUT_BYTES_MAX, PROGRESS_BYTES_MAX},
    calendar,
    cron::EXPRESSION_BYTES_MAX,
    duration::Span,
    evaluation::{schemas, templates},
    fire,
    job::{
        check::{self, ATTEMPTS_MAX, ENTRIES_MAX, SCHEDULES_MAX, STEPS_MAX, TAGS_MAX, TRAITS_MAX, URL_BYTES_MAX},
        effective::{DEFAULT_QUEUED_MAX, DEFAULT_RESPONSE_BYTES_MAX},
        read::{DEPTH_MAX, DOCUMENT_BYTES_MAX, FILE_BYTES_MAX, FILE_DOCUMENTS_MAX},
        template::TEMPLATES_MAX,
    },
    limits::Limits,
    preview::PREVIEW_MAX,
    run::{AFTER_MAX, METADATA_BYTES_MAX, TRAIL_BYTES_MAX},
    schedule::{CALENDARS_MAX, LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX},
};
use rota_engine::{
    Options, backfill,
    executors::{
        command::{CommandOptions, LINE_BYTES_MAX, STDOUT_BYTES_MAX},
        http::REDIRECTS_MAX,
    },
    making::WAITED_FOR_MAX,
    remote,
};
use rota_server::{BODY_BYTES_MAX, Bounds, limits as server};

/// One bound.
struct Limit {
    what: &'static str,
    most: String,
    /// What happens there.
    then: String,
    /// The setting or field that changes it; empty where nothing does.
    change: &'static str,
}

#[allow(clippy::needless_pass_by_value, reason = "numbers and texts, as they come")]
fn limit(what: &'static str, most: impl Display, then: impl Into<String>) -> Limit {
    Limit { what, most: most.to_string(), then: then.into(), change: "" }
}

impl Limit {
    fn by(self, change: &'static str) -> Self {
        Self { change, ..self }
    }
}

/// An answer of the API.
fn refused(code: Code) -> String {
    format!("`{}`", code.as_str())
}

fn bytes(count: usize) -> String {
    for (size, unit) in [(1 << 20, "MiB"), (1 << 10, "KiB")] {
        if count >= size && count.is_multiple_of(size) {
            return format!("{} {unit}", count / size);
        }
    }
    format!("{} bytes", grouped(count))
}

#[allow(clippy::needless_pass_by_value, reason = "numbers, as they come")]
fn grouped(count: impl Display) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (n, digit) in digits.char_indices() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn seconds(time: std::time::Duration) -> Span {
    Span::millis(time.as_millis() as u64)
}

/// The page `docs/limits.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Limits\n\nWhat callers can send, keep and make Rota do, and what happens at each limit. What a tenant may \
         have by its tier is in [quotas](quotas.md); how long things are kept, and what makes each table grow, is in \
         [tables](tables.md); the answers of the API are in [problems](problems.md). This page is made by `rota config \
         limits` from the numbers that are checked, with their defaults.\n",
    );
    for (title, limits) in sections() {
        page.extend([format!(
            "\n## {title}\n\n| what | at most | what happens there | changed by |\n|---|---|---|---|\n"
        )]);
        for Limit { what, most, then, change } in limits {
            let change = if change.is_empty() { "–".to_owned() } else { format!("`{change}`") };
            page.extend([format!("| {what} | {most} | {then} | {change} |\n")]);
        }
    }
    page
}

fn sections() -> Vec<(&'static str, Vec<Limit>)> {
    vec![
        ("Documents", documents()),
        ("Schedules", schedules()),
        ("Runs", runs()),
        ("Templates and schemas", evaluation()),
        ("Steps", steps()),
        ("Remote workers", workers()),
        ("Requests", requests()),
        ("Connections", connections()),
        ("The installation", installation()),
    ]
}

const NOT_SAVED: &str = "the document is refused with the place (`bad_document`)";

fn documents() -> Vec<Limit> {
    vec![
        limit("A job document", bytes(DOCUMENT_BYTES_MAX), NOT_SAVED),
        limit("A file of documents", bytes(FILE_BYTES_MAX), "the file is refused"),
        limit("Documents in a file", grouped(FILE_DOCUMENTS_MAX), "the file is refused"),
        limit("Nesting of a document", DEPTH_MAX, NOT_SAVED),
        limit("Steps of a job", STEPS_MAX, NOT_SAVED),
        limit("Schedules of a job", SCHEDULES_MAX, NOT_SAVED),
        limit("Templates of a job", grouped(TEMPLATES_MAX), NOT_SAVED),
        limit("Entries of a list or map", grouped(ENTRIES_MAX), NOT_SAVED),
        limit("Tags; required traits", format!("{TAGS_MAX}; {TRAITS_MAX}"), NOT_SAVED),
        limit("A name of a job or schedule", bytes(NAME_BYTES_MAX), NOT_SAVED),
        limit("A URL", bytes(URL_BYTES_MAX), NOT_SAVED),
        limit("`retry.max_attempts`", ATTEMPTS_MAX, NOT_SAVED),
        limit("`concurrency.limit`", grouped(check::CONCURRENCY_MAX), NOT_SAVED),
        limit("Runs that wait for a concurrency key", grouped(DEFAULT_QUEUED_MAX), "the run is refused (`full`)")
            .by("concurrency.max_queued"),
        limit("A duration", Span::LONGEST, NOT_SAVED),
    ]
}

fn schedules() -> Vec<Limit> {
    vec![
        limit("A cron expression", bytes(EXPRESSION_BYTES_MAX), NOT_SAVED),
        limit("Calendars of a schedule", CALENDARS_MAX, NOT_SAVED),
        limit("Entries of a calendar", grouped(calendar::ENTRIES_MAX), "the calendar is refused"),
        limit("Instants of a preview", grouped(PREVIEW_MAX), "the list ends there"),
        limit("Instants of a backfill", grouped(backfill::INSTANTS_MAX), "the request is refused"),
        limit("Runs of a schedule that wait with `overlap: queue_all`", grouped(fire::QUEUE_MAX), "a skip is recorded"),
    ]
}

fn runs() -> Vec<Limit> {
    vec![
        limit("A payload", bytes(BODY_BYTES_MAX), refused(Code::TooLarge)).by("quotas: payload_bytes"),
        limit("Labels", LABELS_MAX, refused(Code::BadDocument)),
        limit(
            "A label's name; its value",
            format!("{}; {}", bytes(LABEL_KEY_BYTES_MAX), bytes(LABEL_VALUE_BYTES_MAX)),
            refused(Code::BadDocument),
        ),
        limit("Metadata of a trigger", bytes(METADATA_BYTES_MAX), refused(Code::BadDocument)),
        limit("Runs in `after`", AFTER_MAX, refused(Code::BadDocument)),
        limit(
            "Different runs in `after` of one request, or of lines taken together",
            grouped(WAITED_FOR_MAX),
            refused(Code::BadDocument),
        ),
        limit(
            "An attempt's output, as JSON",
            bytes(OUTPUT_BYTES_MAX),
            "the attempt fails (`output_too_large`), and is not retried",
        ),
        limit("The message of a failure", bytes(MESSAGE_BYTES_MAX), "cut, with a mark"),
        limit(
            "A line of a log; of a command's output",
            format!("{}; {}", bytes(LOG_LINE_BYTES_MAX), bytes(LINE_BYTES_MAX)),
            "cut, with a mark",
        ),
        limit(
            "The log of an attempt",
            bytes(CommandOptions::default().log_bytes_max),
            "the rest is left out, with a line that says so",
        ),
        limit("The phase and the message of a progress report", bytes(PROGRESS_BYTES_MAX), "cut, with a mark"),
        limit("Events in a run's trail", bytes(TRAIL_BYTES_MAX), "later ones are left out"),
    ]
}

fn evaluation() -> Vec<Limit> {
    let step = "the attempt fails (`invalid_input`), and is not retried";
    let payload = "the payload or document is refused";
    vec![
        limit("A template", bytes(templates::SOURCE_BYTES_MAX), step),
        limit("A rendered value", bytes(templates::OUTPUT_BYTES_MAX), step),
        limit("A text that a template builds on the way", bytes(templates::TEXT_BYTES_MAX), step),
        limit("Instructions of one template", grouped(templates::INSTRUCTIONS_MAX), step),
        limit("What the templates of a step read and copy", bytes(templates::WORK_MAX), step),
        limit("Comparisons of a payload with its schema", grouped(schemas::STEPS_MAX), payload),
        limit("Patterns in a schema", schemas::PATTERNS_MAX, NOT_SAVED),
        limit("Patterns of one `patternProperties`", schemas::NAME_PATTERNS_MAX, NOT_SAVED),
        limit(
            "A compiled pattern; all of a schema",
            format!("{}; {}", bytes(schemas::PATTERN_BYTES_MAX), bytes(schemas::PATTERNS_BYTES_MAX)),
            NOT_SAVED,
        ),
    ]
}

fn steps() -> Vec<Limit> {
    vec![
        limit("Bytes of an HTTP answer that are read", grouped(DEFAULT_RESPONSE_BYTES_MAX), "the attempt fails")
            .by("http.response_max"),
        limit("Redirects of an HTTP call", REDIRECTS_MAX, "the attempt fails"),
        limit("Standard output in a command's output", bytes(STDOUT_BYTES_MAX), "cut; `truncated` is true"),
        limit("Memory, processor time and processes of a command", "none", "see [the command step](steps/command.md)")
            .by("commands.memory, cpu, processes"),
    ]
}

fn workers() -> Vec<Limit> {
    vec![
        limit("An exchange", bytes(BODY_BYTES_MAX), "the clients send several instead"),
        limit("Attempts that one worker holds", grouped(remote::ATTEMPTS_MAX), "it receives no more"),
        limit(
            "Workers of a tenant at one node",
            grouped(Limits::default().tenant_workers),
            refused(Code::LimitReached),
        ),
    ]
}

fn requests() -> Vec<Limit> {
    let bounds = Bounds::default();
    vec![
        limit("A body", bytes(BODY_BYTES_MAX), refused(Code::TooLarge)),
        limit(
            "Headers",
            format!("{} and {}", server::HEADERS_MAX, bytes(server::HEADER_BYTES_MAX)),
            "431, without a body",
        ),
        limit("A query", bytes(server::QUERY_BYTES_MAX), refused(Code::BadRequest)),
        limit("Items of a page", grouped(PAGE_MAX), "the page ends there, with a cursor"),
        limit("Bytes of a page", bytes(server::PAGE_BYTES_MAX), "the page ends there, with a cursor"),
        limit(
            "A line of a bulk stream",
            bytes(server::LINE_BYTES_MAX),
            "the stream ends there, and its last answer says why",
        ),
        limit(
            "Runs or jobs that one request by filter touches",
            grouped(server::TOUCHED_MAX),
            "the answer says that there are more",
        ),
        limit("An entry's state in the audit log", bytes(AUDIT_JSON_MAX), "its size and digest are kept instead"),
        limit("Bodies that are arriving, together", bytes(bounds.memory.arriving), refused(Code::Busy)),
        limit(
            "Bodies, lines and pages that are worked on, together",
            bytes(bounds.memory.work),
            "they wait for their turn",
        ),
        limit(
            "Answers of bulk streams that nobody has read, together",
            bytes(bounds.memory.unread),
            "the streams wait",
        ),
        limit("Large answers that are being sent, together", bytes(bounds.memory.answers), refused(Code::Busy)),
        limit("Requests in work", bounds.requests_max, refused(Code::Busy)).by("http.requests"),
        limit("Bulk streams", bounds.streams_max, refused(Code::Busy)),
        limit("Feeds of events", bounds.feeds_max, refused(Code::Busy)),
        limit("Feeds of events of one tenant", bounds.tenant_feeds_max, refused(Code::TooMany)),
        limit("Time for a body, or the next line of a stream", seconds(bounds.body_time), refused(Code::SlowBody)),
        limit("Time for an answer", seconds(bounds.answer_time), refused(Code::TooSlow)),
    ]
}

fn connections() -> Vec<Limit> {
    let bounds = Bounds::default();
    vec![
        limit(
            "Connections of a node",
            grouped(bounds.connections_max),
            "an idle one makes room, or `too_many_connections`; health and metrics have a reserve",
        )
        .by("http.connections"),
        limit("Connections of one address", bounds.address_connections_max, refused(Code::TooManyConnections))
            .by("http.connections_per_address"),
        limit("Time for the first headers", seconds(bounds.first_head_time), "the connection is closed"),
        limit(
            "Time for other headers, and between two requests",
            seconds(bounds.head_time),
            "the connection is closed",
        ),
        limit(
            "Time in which a client takes nothing of its answer",
            seconds(bounds.reading_time),
            "the connection is closed",
        ),
    ]
}

fn installation() -> Vec<Limit> {
    let (limits, options) = (Limits::default(), Options::default());
    let reached = || refused(Code::LimitReached);
    vec![
        limit("Tenants", grouped(limits.tenants), reached()),
        limit("Combinations of queue, handler and required traits", grouped(limits.lanes), reached()),
        limit("Calendars of a tenant", grouped(limits.calendars), reached()),
        limit(
            "Queues paused or resumed within a year, of a tenant; of all",
            format!("{}; {}", grouped(limits.tenant_pauses), grouped(limits.pauses)),
            reached(),
        ),
        limit("Attempts in flight on a node", grouped(options.slots), "runs wait").by("attempts_max"),
    ]
}
