//! `rota cron`, whole commands.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

struct Answer {
    code: i32,
    out: String,
    error: String,
}

fn rota(arguments: &[&str], input: &[u8]) -> Answer {
    let mut child = command(arguments).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Answer {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rota"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stream(input: &[u8]) -> Vec<String> {
    let answer = rota(&["cron", "next", "--stdin"], input);
    assert_eq!((answer.code, answer.error.as_str()), (0, ""));
    answer.out.lines().map(str::to_owned).collect()
}

#[test]
fn next_shows_utc_local_time_and_distance() {
    let arguments = ["cron", "next", "30 2 * * *", "--tz", "america/new_york", "--after", "2025-03-08", "-n", "3"];
    let answer = rota(&arguments, b"");
    assert_eq!(
        answer.out,
        "\
At 02:30, every day (America/New_York)

UTC                   local                            in
2025-03-08T07:30:00Z  Sat 2025-03-08 02:30:00 EST      2h 30m
2025-03-09T07:00:00Z  Sun 2025-03-09 03:00:00 EDT      1d 2h  (02:30:00 does not exist that day: moved to the end of the gap)
2025-03-10T06:30:00Z  Mon 2025-03-10 02:30:00 EDT      2d 1h
"
    );
    assert_eq!((answer.code, answer.error.as_str()), (0, ""));
}

#[test]
fn next_as_json_can_be_read_by_programs() {
    let arguments = ["cron", "next", "0 9 * * *", "--after", "2025-01-01T00:00:00Z", "-n", "1", "-o", "json"];
    let answer: serde_json::Value = serde_json::from_str(&rota(&arguments, b"").out).unwrap();
    assert_eq!(answer["next"][0]["utc"], "2025-01-01T09:00:00Z");
    assert_eq!(answer["next"][0]["local"], "2025-01-01T09:00:00+00:00[UTC]");
    assert_eq!(answer["description"], "At 09:00, every day");
}

#[test]
fn explain_says_it_in_words() {
    let answer = rota(&["cron", "explain", "*/15 9-17 * * MON-FRI"], b"");
    assert_eq!(answer.out, "Every 15 minutes, from 09:00 to 17:59, Monday through Friday\n");
}

#[test]
fn bad_input_is_pointed_at_and_exits_with_2() {
    let answer = rota(&["cron", "next", "0 9 1,40 * *"], b"");
    assert_eq!((answer.code, answer.out.as_str()), (2, ""));
    assert_eq!(
        answer.error,
        "error: day of month: 40 is not between 1 and 31 [cron_out_of_range]\n  0 9 1,40 * *\n        ^^\n"
    );
    for arguments in [
        &["cron", "next", "0 0 30 2 *"][..],
        &["cron", "next", "0 9 * * *", "--tz", "local"],
        &["cron", "next", "0 9 * * *", "--after", "soon"],
        &["cron", "next", "0 9 * * *", "-n", "0"],
        &["cron", "next", "0 9 * * *", "--fold", "all"],
        &["cron", "next", "* * * * * *", "--after", "2025-01-01", "--until", "2026-01-01"],
        &["cron", "next"],
        &["cron", "next", "0 9 * * *", "--stdin"],
        &["cron", "explain", ""],
        &["cron", "explain", "\u{1b}[31m"],
    ] {
        let answer = rota(arguments, b"");
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{arguments:?}");
        assert!(answer.error.starts_with("error: ") && !answer.error.contains('\u{1b}'), "{arguments:?}");
    }
}

#[test]
fn a_stream_answers_each_line_in_order() {
    let answers = stream(
        br#"{"expr":"0 2 * * *","tz":"America/New_York","after":"2025-03-09T00:00:00Z"}
{"expr":"30 1 * * *","tz":"America/New_York","after":"2025-11-02T04:00:00Z","until":"2025-11-03T00:00:00Z"}
{"expr":"30 1 * * *","tz":"America/New_York","after":"2025-11-02T04:00:00Z","n":2,"fold":"both"}
{"expr":"0 2 * * *","tz":"America/New_York","after":"2025-03-09T00:00:00Z","gap":"skip"}
{"expr":"0 0 0 1 1 ? 2020","after":"2025-01-01T00:00:00Z"}
"#,
    );
    assert_eq!(
        answers,
        [
            r#"{"next":["2025-03-09T07:00:00Z"]}"#,
            r#"{"next":["2025-11-02T05:30:00Z"]}"#,
            r#"{"next":["2025-11-02T05:30:00Z","2025-11-02T06:30:00Z"]}"#,
            r#"{"next":["2025-03-10T06:00:00Z"]}"#,
            r#"{"next":[]}"#,
        ]
    );
}

#[test]
fn a_bad_line_is_an_answer_and_not_the_end() {
    let long = format!("{{\"expr\":\"{}\"}}\n", "x".repeat(1_000_000));
    let bad: [(&[u8], &str); 12] = [
        (b"not json\n", "bad_json"),
        (b"\n", "bad_json"),
        (b"\xff\xfe\n", "bad_json"),
        (b"[\"@daily\"]\n", "bad_question"),
        (b"{\"expr\":\"@daily\",\"zone\":\"UTC\"}\n", "bad_question"),
        (b"{\"after\":\"2025-01-01T00:00:00Z\"}\n", "bad_question"),
        (b"{\"expr\":\"@daily\",\"n\":-1}\n", "bad_question"),
        (b"{\"expr\":\"@daily\",\"n\":100001}\n", "bad_count"),
        (b"{\"expr\":\"@daily\",\"tz\":\"Mars/Base\"}\n", "unknown_timezone"),
        (b"{\"expr\":\"@daily\",\"after\":\"later\"}\n", "bad_time"),
        (b"{\"expr\":\"61 * * * *\"}\n", "cron_out_of_range"),
        (long.as_bytes(), "line_too_long"),
    ];
    let mut input: Vec<u8> = bad.iter().flat_map(|(line, _)| line.to_vec()).collect();
    // The last line has no newline, and is answered all the same.
    input.extend_from_slice(b"{\"expr\":\"@daily\",\"after\":\"2025-01-01T00:00:00Z\"}");
    let answers = stream(&input);
    assert_eq!(answers.len(), bad.len() + 1, "{answers:#?}");
    for (answer, (line, code)) in answers.iter().zip(bad) {
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        assert_eq!(answer["error"]["code"], code, "{}", String::from_utf8_lossy(line));
    }
    assert_eq!(answers[bad.len()], r#"{"next":["2025-01-02T00:00:00Z"]}"#);
}

/// A caller that waits for each answer before it asks again is not kept waiting.
#[test]
fn an_answer_does_not_wait_for_the_next_question() {
    let mut child = command(&["cron", "next", "--stdin"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    for day in 1..4 {
        writeln!(stdin, r#"{{"expr":"@daily","after":"2025-01-0{day}T00:00:00Z"}}"#).unwrap();
        let expected = format!(r#"{{"next":["2025-01-0{}T00:00:00Z"]}}"#, day + 1);
        assert_eq!(answers.next().unwrap().unwrap(), expected);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
