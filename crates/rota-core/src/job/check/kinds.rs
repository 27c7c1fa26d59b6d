//! Checks of what each kind of step is told.
//!
//! A text with a template in it can only be judged once it is rendered, so the
//! form of such a text is left to the executor.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{KEY_BYTES_MAX, report::Report};
use crate::{
    instant::{self, BadInstant},
    job::{
        kinds::{
            Approval, Command, File, FileFormat, FilePlace, Http, HttpAuth, HttpBody, Login, Places, Program, Sftp,
            SftpAction, Sleep, Sql, SubJob, Tls, is_of_the_connection,
        },
        path::Shown,
        step::StepKind,
        template::{ROOTS, has_tags},
    },
    schedule::{LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX},
};

/// Headers, arguments, parameters, columns and the like of one step.
pub const ENTRIES_MAX: usize = 1_000;
pub const URL_BYTES_MAX: usize = 8_192;
pub const STATEMENT_BYTES_MAX: usize = 100_000;
pub const ROWS_MAX: u32 = 1_000_000;
const PATH_BYTES_MAX: usize = 4_096;

pub(super) fn check(path: &str, kind: &StepKind, report: &mut Report) {
    match kind {
        StepKind::Http(http) => check_http(path, http, report),
        StepKind::Sql(sql) => check_sql(path, sql, report),
        StepKind::File(file) => check_file(path, file, report),
        StepKind::Sftp(sftp) => check_sftp(path, sftp, report),
        StepKind::Command(command) => check_command(path, command, report),
        StepKind::Handler(handler) => report.name(&format!("{path}.name"), &handler.name),
        StepKind::Job(job) => check_sub_job(path, job, report),
        StepKind::Sleep(sleep) => check_sleep(path, sleep, report),
        StepKind::Approval(approval) => check_approval(path, approval, report),
        StepKind::Wait(wait) => {
            if let Some(token) = &wait.token {
                report.filled_text(&format!("{path}.token"), token, KEY_BYTES_MAX);
            }
        }
    }
}

fn check_http(path: &str, http: &Http, report: &mut Report) {
    check_url(&format!("{path}.url"), &http.url, report);
    if let Some(method) = &http.method
        && !is_token(method)
    {
        report.add(format!("{path}.method"), "bad_method", "a method must be a word such as GET or POST");
    }
    if http.method.as_ref().is_some_and(|method| method.eq_ignore_ascii_case("CONNECT")) {
        let message = "CONNECT asks a proxy for a tunnel, which no step can use";
        report.add(format!("{path}.method"), "bad_method", message);
    }
    check_headers(&format!("{path}.headers"), &http.headers, report);
    check_scalars(&format!("{path}.query"), &http.query, report);
    if let Some(HttpBody::Form(form)) = &http.body {
        check_scalars(&format!("{path}.form"), form, report);
    }
    if let Some(auth) = &http.auth {
        check_auth(&format!("{path}.auth"), auth, report);
    }
    if let Some(expect) = &http.expect {
        report.filled(&format!("{path}.expect"), expect.len(), ENTRIES_MAX);
    }
    if let Some(tls) = &http.tls {
        check_tls(&format!("{path}.tls"), tls, report);
    }
    if let Some(sign) = &http.sign {
        report.secret(&format!("{path}.sign.secret"), &sign.secret);
        if sign.header.as_deref().is_some_and(|header| !is_token(header)) {
            report.add(format!("{path}.sign.header"), "bad_header", "a header name must be a word such as X-Signature");
        }
    }
}

fn check_url(path: &str, url: &str, report: &mut Report) {
    report.filled_text(path, url, URL_BYTES_MAX);
    if has_tags(url) || url.trim().is_empty() {
        return;
    }
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#', ':', '@']));
    if !has_host || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        report.add(path, "bad_url", "a URL must start with http:// or https:// and a host, and have no spaces");
    }
}

/// Letters, digits and signs that HTTP allows in methods and header names.
fn is_token(text: &str) -> bool {
    let sign = |c: char| "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || sign(c))
}

fn check_headers(path: &str, headers: &BTreeMap<String, String>, report: &mut Report) {
    report.at_most(path, headers.len(), ENTRIES_MAX);
    for (name, value) in headers {
        if !is_token(name) {
            report.add(path, "bad_header", format!("`{}` is not a valid header name", Shown(name)));
        } else if value.contains(['\r', '\n']) {
            // A line break in a value would begin a header of its own.
            report.add(format!("{path}.{name}"), "bad_header", "the value of a header must be one line");
        } else if is_of_the_connection(name) {
            let message = "this header belongs to the connection: it follows from the URL and the body";
            report.add(format!("{path}.{name}"), "bad_header", message);
        }
    }
}

/// Places of a step that hold a secret as it is and not as a reference. These are fields
/// in which a secret is usual and other values are possible, so that they are not refused
/// as those of `auth` are.
pub(super) fn secrets_written(path: &str, kind: &StepKind) -> Vec<String> {
    let StepKind::Http(http) = kind else { return Vec::new() };
    let mut found = Vec::new();
    if !has_tags(&http.url) && has_password(&http.url) {
        found.push(format!("{path}.url"));
    }
    let is_secret = |name: &str, value: &str| name.eq_ignore_ascii_case("authorization") && !has_tags(value);
    let named = http.headers.iter().filter(|(name, value)| is_secret(name, value));
    found.extend(named.map(|(name, _)| format!("{path}.headers.{name}")));
    found
}

/// Whether a URL such as `https://ann:secret@host/` holds a password.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let login = authority.rsplit_once('@').map(|(login, _)| login);
    login.and_then(|login| login.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
}

fn check_scalars(path: &str, fields: &BTreeMap<String, Value>, report: &mut Report) {
    report.at_most(path, fields.len(), ENTRIES_MAX);
    let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
    for (name, value) in fields {
        let fits = value.as_array().map_or_else(|| is_scalar(value), |items| items.iter().all(is_scalar));
        if !fits {
            let message = "must be a text, a number, true or false, or a list of these";
            report.add(format!("{path}.{}", Shown(name)), "wrong_type", message);
        }
    }
}

fn check_auth(path: &str, auth: &HttpAuth, report: &mut Report) {
    match auth {
        HttpAuth::Basic { username: _, password } => report.secret(&format!("{path}.basic.password"), password),
        HttpAuth::Bearer(token) => report.secret(&format!("{path}.bearer"), token),
        HttpAuth::OAuth2(oauth) => {
            check_url(&format!("{path}.oauth2.token_url"), &oauth.token_url, report);
            report.secret(&format!("{path}.oauth2.client_secret"), &oauth.client_secret);
            report.at_most(&format!("{path}.oauth2.scopes"), oauth.scopes.len(), ENTRIES_MAX);
        }
    }
}

fn check_tls(path: &str, tls: &Tls, report: &mut Report) {
    if let Some(key) = &tls.key {
        report.secret(&format!("{path}.key"), key);
    }
    if tls.key.is_some() != tls.certificate.is_some() {
        report.add(path, "incomplete", "`certificate` and `key` belong together");
    }
}

fn check_sql(path: &str, sql: &Sql, report: &mut Report) {
    report.name(&format!("{path}.connection"), &sql.connection);
    let statement = format!("{path}.statement");
    report.filled_text(&statement, &sql.statement, STATEMENT_BYTES_MAX);
    if means_a_template(&sql.statement) {
        report.add(statement, "template_in_statement", "use `params` for values; templates are not rendered in SQL");
    }
    report.at_most(&format!("{path}.params"), sql.params.len(), ENTRIES_MAX);
    check_rows(path, sql.rows_max, report);
}

/// Whether a text names a template's value, as no array literal of SQL does.
fn means_a_template(text: &str) -> bool {
    text.split("{{").skip(1).any(|tag| {
        let tag = tag.trim_start_matches('-').trim_start();
        ROOTS.iter().any(|root| tag.strip_prefix(root).is_some_and(|rest| rest.starts_with(['.', '['])))
    })
}

fn check_rows(path: &str, rows_max: Option<u32>, report: &mut Report) {
    if let Some(rows) = rows_max {
        report.within(&format!("{path}.rows_max"), rows, 1..=ROWS_MAX);
    }
}

fn check_file(path: &str, file: &File, report: &mut Report) {
    check_place(&format!("{path}.read"), &file.read, report);
    if let Some(write) = &file.write {
        check_place(&format!("{path}.write"), write, report);
    }
    if let Some(filter) = &file.filter {
        report.expression(&format!("{path}.filter"), filter);
    }
    report.at_most(&format!("{path}.columns"), file.columns.len(), ENTRIES_MAX);
    let names: Vec<_> = file.columns.iter().map(|column| column.to.as_ref().unwrap_or(&column.from)).collect();
    report.no_duplicates_in(&format!("{path}.columns"), "to", &names);
    check_rows(path, file.rows_max, report);
}

fn check_place(path: &str, place: &FilePlace, report: &mut Report) {
    check_path(&format!("{path}.path"), &place.path, report);
    let by_path = FileFormat::of_path(&place.path);
    let Some(format) = place.format.or(by_path) else {
        let message =
            "the ending of the path is not a known format; set `format` to csv, ndjson, json, xlsx or parquet";
        return report.add(format!("{path}.format"), "missing_field", message);
    };
    let is_table = matches!(format, FileFormat::Csv | FileFormat::Xlsx);
    for (field, is_written, fits) in [
        ("delimiter", place.delimiter.is_some(), format == FileFormat::Csv),
        ("header", place.header.is_some(), is_table),
        ("sheet", place.sheet.is_some(), format == FileFormat::Xlsx),
    ] {
        if is_written && !fits {
            report.add(format!("{path}.{field}"), "no_meaning", format!("a {format} file has none"));
        }
    }
    if place.delimiter.is_some_and(|c| !c.is_ascii() || matches!(c, '"' | '\n' | '\r')) {
        report.add(format!("{path}.delimiter"), "invalid_value", "one ASCII character, no quote and no line break");
    }
}

/// A path that stays below where it starts, as far as can be seen before it is rendered.
fn check_path(path: &str, text: &str, report: &mut Report) {
    report.filled_text(path, text, PATH_BYTES_MAX);
    if text.split(['/', '\\']).any(|part| part == "..") {
        report.add(path, "bad_path", "a path must not contain `..`");
    }
}

fn check_sftp(path: &str, sftp: &Sftp, report: &mut Report) {
    for (field, text) in [("host", &sftp.host), ("username", &sftp.username), ("host_key", &sftp.host_key)] {
        report.filled_text(&format!("{path}.{field}"), text, KEY_BYTES_MAX);
    }
    if sftp.port == Some(0) {
        report.within(&format!("{path}.port"), 0, 1..=u16::MAX);
    }
    match &sftp.login {
        Login::Password(password) => report.secret(&format!("{path}.password"), password),
        Login::Key { key, passphrase } => {
            report.secret(&format!("{path}.key"), key);
            if let Some(passphrase) = passphrase {
                report.secret(&format!("{path}.passphrase"), passphrase);
            }
        }
    }
    match &sftp.action {
        SftpAction::Upload(places) => check_places(&format!("{path}.upload"), places, report),
        SftpAction::Download(places) => check_places(&format!("{path}.download"), places, report),
        SftpAction::Move(places) => check_places(&format!("{path}.move"), places, report),
        SftpAction::List(at) => report.filled_text(&format!("{path}.list"), at, PATH_BYTES_MAX),
        SftpAction::Delete(at) => report.filled_text(&format!("{path}.delete"), at, PATH_BYTES_MAX),
    }
}

fn check_places(path: &str, places: &Places, report: &mut Report) {
    report.filled_text(&format!("{path}.from"), &places.from, PATH_BYTES_MAX);
    report.filled_text(&format!("{path}.to"), &places.to, PATH_BYTES_MAX);
}

fn check_command(path: &str, command: &Command, report: &mut Report) {
    match &command.program {
        Program::Plain { program, args } => {
            report.filled_text(&format!("{path}.program"), program, PATH_BYTES_MAX);
            report.at_most(&format!("{path}.args"), args.len(), ENTRIES_MAX);
        }
        Program::Shell(text) => check_shell(&format!("{path}.shell"), text, report),
    }
    report.at_most(&format!("{path}.env"), command.env.len(), ENTRIES_MAX);
    for name in command.env.keys() {
        if name.is_empty() || name.contains('=') {
            report.add(format!("{path}.env"), "bad_name", format!("`{}` cannot be a variable", Shown(name)));
        }
    }
    if let Some(expect) = &command.expect {
        report.filled(&format!("{path}.expect"), expect.len(), ENTRIES_MAX);
    }
}

/// What is rendered into a shell's text becomes code, whoever wrote it.
fn check_shell(path: &str, text: &str, report: &mut Report) {
    report.filled_text(path, text, STATEMENT_BYTES_MAX);
    if has_tags(text) {
        report.add(path, "template_in_shell", "pass values to a shell through `env`, where they cannot become code");
    }
}

fn check_sub_job(path: &str, job: &SubJob, report: &mut Report) {
    report.name(&format!("{path}.name"), &job.name);
    let path = format!("{path}.labels");
    report.at_most(&path, job.labels.len(), LABELS_MAX);
    for (key, value) in &job.labels {
        if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX || key.chars().any(char::is_control) {
            report.add(&path, "bad_label", format!("the key `{}` is not 1 to 63 bytes of plain text", Shown(key)));
        }
        report.text(&format!("{path}.{}", Shown(key)), value, LABEL_VALUE_BYTES_MAX);
    }
}

fn check_sleep(path: &str, sleep: &Sleep, report: &mut Report) {
    if let Sleep::Until(text) = sleep
        && !has_tags(text)
        && let Err(error) = instant::parse(text)
    {
        let form = "an instant such as 2030-01-01T09:00:00Z, or a template that yields one";
        let message = match error {
            BadInstant::Unreadable(_) => form.to_owned(),
            BadInstant::LeapSecond => error.to_string(),
        };
        report.add(format!("{path}.until"), "invalid_value", message);
    }
}

fn check_approval(path: &str, approval: &Approval, report: &mut Report) {
    if let Some(message) = &approval.message {
        report.text(&format!("{path}.message"), message, super::DESCRIPTION_BYTES_MAX);
    }
    report.at_most(&format!("{path}.by"), approval.by.len(), super::TAGS_MAX);
    report.no_duplicates(&format!("{path}.by"), &approval.by);
}
