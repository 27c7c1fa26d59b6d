mod server;

use std::sync::atomic::Ordering;

use rota_core::job::failure::ErrorKind;
use serde_json::{Value, json};

use self::server::{Asked, CERTIFICATE, KEY, Names, Server, answer, sent_on};
use super::*;
use crate::executors::{
    egress::Reach,
    testing::{self, RUN, StillClock, World, failure, output, world},
};

fn opening(entries: &[&str]) -> Egress {
    Egress { reach: Reach::Public, allow: entries.iter().map(|entry| entry.parse().unwrap()).collect() }
}

/// Reaches loopback and nothing else that is inside.
fn executor() -> HttpExecutor {
    HttpExecutor::new(HttpOptions { egress: opening(&["127.0.0.0/8"]), ..HttpOptions::default() })
}

fn attempt(http: &Value) -> Attempt {
    testing::attempt(&json!({ "http": http }))
}

async fn ask(http: &Value) -> Outcome {
    executor().execute(&attempt(http), &world().context).await
}

fn echo(_: &Asked) -> Option<Vec<u8>> {
    answer("200 OK", "", "hello")
}

#[tokio::test]
async fn request_carries_what_the_step_says_and_who_asks() {
    let server = Server::start(echo).await;
    let step = json!({
        "url": server.url("/orders?a=1"), "method": "PUT",
        "headers": { "Accept": "application/json", "X-Name": "Jürgen" },
        "query": { "page": 2, "tag": ["new", "a b&c"], "none": null, "yes": true }, "json": { "id": 7 },
        "auth": { "bearer": "token" },
    });
    output(&ask(&step).await);
    let [asked] = &server.asked()[..] else { panic!("one request") };
    assert_eq!(asked.line, "PUT /orders?a=1&page=2&tag=new&tag=a+b%26c&yes=true HTTP/1.1");
    assert_eq!(asked.body, r#"{"id":7}"#);
    for (name, value) in [
        ("accept", "application/json"),
        ("x-name", "Jürgen"),
        ("content-type", "application/json"),
        ("authorization", "Bearer token"),
        ("idempotency-key", RUN),
        ("x-rota-run", RUN),
        ("x-rota-job", "42"),
        ("x-rota-attempt", "2"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{name}");
    }
    assert!(asked.header("user-agent").is_some_and(|agent| agent.starts_with("rota/")));
    assert_eq!(asked.header("x-rota-signature"), None);
}

#[tokio::test]
async fn bodies_and_credentials_take_the_form_that_is_asked_for() {
    let server = Server::start(echo).await;
    let url = server.url("/");
    let with_password = url.replace("http://", "http://ann:p%40ss@");
    for (step, line, content_type, body, authorization) in [
        (json!({ "url": url }), "GET / HTTP/1.1", None, "", None),
        (
            json!({ "url": url, "form": { "a": "x y", "b": [1, 2] }, "auth": { "basic": { "username": "rota", "password": "s" } } }),
            "POST / HTTP/1.1",
            Some("application/x-www-form-urlencoded"),
            "a=x+y&b=1&b=2",
            Some("Basic cm90YTpz"),
        ),
        (json!({ "url": url, "body": "plain" }), "POST / HTTP/1.1", Some("text/plain; charset=utf-8"), "plain", None),
        (
            json!({ "url": url, "body": "<a/>", "method": "PATCH", "headers": { "Content-Type": "application/xml" } }),
            "PATCH / HTTP/1.1",
            Some("application/xml"),
            "<a/>",
            None,
        ),
        (json!({ "url": with_password }), "GET / HTTP/1.1", None, "", Some("Basic YW5uOnBAc3M=")),
    ] {
        output(&ask(&step).await);
        let asked = server.asked().pop().unwrap();
        let seen = (&*asked.line, asked.header("content-type"), &*asked.body, asked.header("authorization"));
        assert_eq!(seen, (line, content_type, body, authorization), "{step}");
    }
}

#[tokio::test]
async fn a_step_may_have_a_key_of_its_own_but_not_another_name() {
    let server = Server::start(echo).await;
    let headers = json!({ "Idempotency-Key": "mine", "X-Rota-Run": "forged", "x-rota-attempt": "9" });
    output(&ask(&json!({ "url": server.url("/"), "headers": headers })).await);
    let asked = server.asked().pop().unwrap();
    assert_eq!(asked.header("idempotency-key"), Some("mine"));
    assert_eq!((asked.header("x-rota-run"), asked.header("x-rota-attempt")), (Some(RUN), Some("2")));
}

/// The digest was computed by another implementation.
#[tokio::test]
async fn signature_is_an_hmac_over_run_time_and_body() {
    let server = Server::start(echo).await;
    let step = json!({ "url": server.url("/"), "json": { "a": 1 }, "sign": { "secret": "s3cret" } });
    output(&ask(&step).await);
    let digest = "7b710c88a5e4132f00656fd46b208afcad872c3f4d8f9ce236b296d05b7252f3";
    let expected = format!("t={},v1={digest}", StillClock::START);
    assert_eq!(server.asked()[0].header("x-rota-signature"), Some(&*expected));

    let step = json!({ "url": server.url("/"), "sign": { "secret": "s3cret", "header": "X-Hook" } });
    output(&ask(&step).await);
    assert!(server.asked()[1].header("x-hook").is_some_and(|value| !value.contains(digest)));
}

#[tokio::test]
async fn headers_that_would_become_two_are_refused_before_anything_is_sent() {
    let server = Server::start(echo).await;
    for headers in [
        json!({ "X-A": "a\r\nX-Evil: 1" }),
        json!({ "X-A": "a\nb" }),
        json!({ "X-A": "a\u{0}b" }),
        json!({ "X-A: b\r\nX-Evil": "1" }),
        json!({ "": "1" }),
        json!({ "Content-Length": "0" }),
        json!({ "transfer-encoding": "chunked" }),
        json!({ "Connection": "upgrade" }),
        // One host was judged, and another would be asked.
        json!({ "Host": "inner.example" }),
    ] {
        let failed = failure(ask(&json!({ "url": server.url("/"), "body": "x", "headers": headers })).await);
        assert_eq!(failed.kind, ErrorKind::InvalidInput, "{headers}");
        assert!(!failed.message.contains("Evil"), "a value may be a secret: {}", failed.message);
    }
    let bearer = json!({ "url": server.url("/"), "auth": { "bearer": "a\r\nX-Evil: 1" } });
    assert_eq!(failure(ask(&bearer).await).kind, ErrorKind::InvalidInput);
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn urls_that_cannot_be_asked_are_invalid_input_and_not_repeated() {
    for url in
        ["", "example.com/x", "ftp://secret.example/", "file:///etc/passwd", "http://", "http://[::1", "http://a b/"]
    {
        let failed = failure(ask(&json!({ "url": url })).await);
        assert_eq!(failed.kind, ErrorKind::InvalidInput, "{url}");
        assert!(!failed.message.contains("secret"), "{}", failed.message);
    }
    // A name that no name server can know: asking again is of no use.
    for host in ["a".repeat(64), format!("{}.example", "a.".repeat(130))] {
        let failed = failure(ask(&json!({ "url": format!("http://{host}/") })).await);
        assert_eq!(failed.kind, ErrorKind::InvalidInput, "{}", failed.message);
    }
    for step in [
        json!({ "url": "http://127.0.0.1:1/", "method": "CONNECT" }),
        json!({ "url": "http://127.0.0.1:1/", "query": { "a": { "b": 1 } } }),
        json!({ "url": "http://127.0.0.1:1/", "form": { "a": [[1]] } }),
        json!({ "url": "http://127.0.0.1:1/", "callback": { "within": "1h" } }),
        json!({ "url": "http://127.0.0.1:1/", "auth": { "oauth2": { "token_url": "", "client_id": "", "client_secret": "" } } }),
    ] {
        assert_eq!(failure(ask(&step).await).kind, ErrorKind::InvalidInput, "{step}");
    }
}

#[tokio::test]
async fn output_is_status_headers_and_body_and_json_where_it_is_said_to_be() {
    let server = Server::start(|asked| match asked.line.split(' ').nth(1).unwrap_or_default() {
        "/json" => {
            answer("201 Created", "Content-Type: application/json; charset=utf-8\r\nX-A: 1\r\n", r#"{"id":[1]}"#)
        }
        "/problem" => answer("200 OK", "content-type: application/problem+json\r\n", "3"),
        "/broken" => answer("200 OK", "content-type: application/json\r\n", "{"),
        "/text" => answer("200 OK", "content-type: text/plain\r\n", "3"),
        "/bytes" => answer("200 OK", "", [0xff, 0x00]),
        "/twice" => answer("200 OK", "set-cookie: a=1\r\nset-cookie: b=2\r\nset-cookie: c=3\r\n", ""),
        _ => answer("204 No Content", "", ""),
    })
    .await;
    for (path, status, body) in [
        ("/json", 201, json!({ "id": [1] })),
        ("/problem", 200, json!(3)),
        ("/broken", 200, json!("{")),
        ("/text", 200, json!("3")),
        ("/bytes", 200, json!("/wA=")),
        ("/none", 204, json!(null)),
    ] {
        let output = output(&ask(&json!({ "url": server.url(path) })).await);
        assert_eq!((&output["status"], &output["body"]), (&json!(status), &body), "{path}");
        assert_eq!(output.get("encoding").is_some(), path == "/bytes");
    }
    let output = output(&ask(&json!({ "url": server.url("/twice") })).await);
    assert_eq!(output["headers"]["set-cookie"], json!(["a=1", "b=2", "c=3"]));
}

#[tokio::test]
async fn headers_in_the_output_are_bounded() {
    let server = Server::start(|_| {
        let many: Vec<String> = (0..90).map(|n| format!("x-{n}: {}\r\n", "v".repeat(1_000))).collect();
        answer("200 OK", &many.concat(), "")
    })
    .await;
    let output = output(&ask(&json!({ "url": server.url("/") })).await);
    let headers = output["headers"].as_object().unwrap();
    assert!((10..=16).contains(&headers.len()), "{}", headers.len());
}

/// Many targets repeat the request in what they say is wrong with it, and everybody who
/// may read runs reads that.
#[tokio::test]
async fn credentials_that_a_target_repeats_are_not_in_the_error() {
    let server = Server::start(|asked| {
        let headers =
            ["authorization", "x-api-key", "accept"].map(|name| asked.header(name).unwrap_or_default().to_owned());
        // The last secret is cut in two by the end of what is repeated.
        let filling = "x".repeat(480_usize.saturating_sub(headers.concat().len()));
        answer("400 Bad Request", "", format!("ann p@ssword {} {filling} {}", headers.join(" "), headers[0]))
    })
    .await;
    let url = server.url("/").replace("http://", "http://ann:p%40ssword@");
    for step in [
        json!({ "url": server.url("/"), "auth": { "bearer": "the-secret-of-ann" } }),
        json!({ "url": server.url("/"), "headers": { "Authorization": "Token the-secret-of-ann" } }),
        json!({ "url": url, "headers": { "X-Api-Key": "the-secret-of-ann", "Accept": "shown/type" } }),
    ] {
        let message = failure(ask(&step).await).message;
        assert!(message.starts_with("answered 400 Bad Request: ann ") && message.contains("***"), "{message}");
        assert!(!message.contains("the-secret") && !message.contains("YW5uOn"), "{message}");
        assert_eq!(message.contains("shown/type"), step.to_string().contains("shown/type"), "{message}");
        assert_eq!(message.contains("p@ssword"), step["url"] != json!(url), "{message}");
    }
}

/// An endless answer must end in a failure, not in memory.
#[tokio::test]
async fn an_answer_beyond_its_bound_is_cut_and_a_failure() {
    let server = Server::start(|asked| {
        if asked.line.contains("/said") {
            return answer("200 OK", "", "x".repeat(1_001));
        }
        if asked.line.contains("/fits") {
            return answer("200 OK", "", "x".repeat(1_000));
        }
        let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1_000)).repeat(200);
        Some(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n").into_bytes())
    })
    .await;
    for path in ["/said", "/streamed"] {
        let failed = failure(ask(&json!({ "url": server.url(path), "response_max": "1KB" })).await);
        assert_eq!((failed.kind, failed.advice), (ErrorKind::HttpStatus, RetryAdvice::Never), "{path}");
        assert_eq!(failed.message, "the response has more than 1000 bytes");
    }
    output(&ask(&json!({ "url": server.url("/fits"), "response_max": "1KB" })).await);
}

/// A thousand attempts that are answered with megabytes would fill memory and store.
#[tokio::test]
async fn of_a_large_answer_so_much_is_kept_as_an_output_holds() {
    use rota_core::bytes::OUTPUT_BYTES_MAX;
    let server = Server::start(|asked| {
        let (kind, body): (&str, Vec<u8>) = match asked.line.split(' ').nth(1).unwrap_or_default() {
            "/text" => ("text/html", "\u{1}ü<>".repeat(500_000).into_bytes()),
            "/json" => ("application/json", format!("[{}1]", "1,".repeat(40_000)).into_bytes()),
            "/bytes" => ("image/png", vec![0xff; 2_500_000]),
            _ => ("application/json", json!({ "text": "x".repeat(50_000) }).to_string().into_bytes()),
        };
        let headers = format!("content-type: {kind}\r\nx-long: {}\r\n", "é".repeat(4_000));
        let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n", body.len());
        Some([head.into_bytes(), body].concat())
    })
    .await;
    for (path, bytes) in [("/text", 2_500_000), ("/json", 80_003), ("/bytes", 2_500_000)] {
        let outcome = ask(&json!({ "url": server.url(path) })).await;
        let Outcome::Succeeded { output: Some(text) } = &outcome else { panic!("{path}: {outcome:?}") };
        assert!((50_000..=OUTPUT_BYTES_MAX).contains(&text.len()), "{path}: {}", text.len());
        assert_eq!(outcome.clone().bounded(), outcome);
        let output = output(&outcome);
        assert_eq!((&output["truncated"], &output["body_bytes"]), (&json!(true), &json!(bytes)), "{path}");
        assert!(output["body"].is_string());
    }
    let whole = output(&ask(&json!({ "url": server.url("/whole") })).await);
    assert_eq!(whole["body"]["text"].as_str().map(str::len), Some(50_000));
    assert_eq!((&whole["truncated"], &whole["body_bytes"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn statuses_are_good_where_expected_and_failures_otherwise() {
    let server = Server::start(|asked| {
        let status = asked.line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
        answer(&format!("{status} Word"), "", "because\r\nof this")
    })
    .await;
    for (status, expect, good) in [
        (200, json!(["2xx"]), true),
        (404, json!(["2xx", 404]), true),
        (302, json!([302]), true),
        (200, json!([404]), false),
        (503, json!(["2xx"]), false),
    ] {
        let outcome = ask(&json!({ "url": server.url(&format!("/{status}")), "expect": expect })).await;
        if good {
            assert_eq!(output(&outcome)["status"], json!(status));
        } else {
            let failed = failure(outcome);
            assert_eq!((failed.kind, failed.status), (ErrorKind::HttpStatus, Some(status)));
            assert!(failed.message.ends_with("because  of this"), "{}", failed.message);
        }
    }
}

#[tokio::test]
async fn retry_after_is_read_as_seconds_and_as_a_date() {
    let server = Server::start(|asked| {
        let value = asked.header("x-say").unwrap_or_default().to_owned();
        answer("503 Away", &format!("retry-after: {value}\r\n"), "")
    })
    .await;
    // The clock of these tests stands at Thu, 13 Nov 2025 02:13:20 GMT.
    for (said, advice) in [
        ("7", RetryAdvice::After(Span::secs(7))),
        ("Thu, 13 Nov 2025 02:14:20 GMT", RetryAdvice::After(Span::secs(60))),
        ("Thu, 13 Nov 2025 02:13:20 GMT", RetryAdvice::ByPolicy),
        ("Wed, 12 Nov 2025 02:13:20 GMT", RetryAdvice::ByPolicy),
        ("0", RetryAdvice::ByPolicy),
        ("-5", RetryAdvice::ByPolicy),
        ("soon", RetryAdvice::ByPolicy),
        ("99999999999999999999", RetryAdvice::ByPolicy),
    ] {
        let failed = failure(ask(&json!({ "url": server.url("/"), "headers": { "X-Say": said } })).await);
        assert_eq!((failed.status, failed.advice), (Some(503), advice), "{said}");
    }
}

#[tokio::test]
async fn redirects_keep_or_change_the_method_as_their_status_says() {
    let server = Server::start(|asked| match asked.line.split('/').nth(1) {
        Some(status) if status.starts_with('3') => sent_on(status.split(' ').next().unwrap_or_default(), "there?x=1"),
        _ => answer("200 OK", "", "hello"),
    })
    .await;
    for (method, status, then, keeps_body) in [
        ("POST", 301, "GET", false),
        ("POST", 302, "GET", false),
        ("POST", 303, "GET", false),
        ("PUT", 303, "GET", false),
        ("PUT", 301, "PUT", true),
        ("POST", 307, "POST", true),
        ("POST", 308, "POST", true),
    ] {
        let step =
            json!({ "url": server.url(&format!("/{status}")), "method": method, "json": 1, "auth": { "bearer": "t" } });
        output(&ask(&step).await);
        let asked = server.asked().pop().unwrap();
        assert_eq!(asked.line, format!("{then} /there?x=1 HTTP/1.1"), "{method} {status}");
        assert_eq!(asked.body == "1", keeps_body, "{method} {status}");
        assert_eq!(asked.header("content-type").is_some(), keeps_body);
        assert_eq!(asked.header("authorization"), Some("Bearer t"), "it is the same origin");
    }
}

/// Whoever a redirect leads to must not be handed the keys of who sent it.
#[tokio::test]
async fn credentials_stay_behind_when_a_redirect_leaves_the_origin() {
    let other = Server::start(echo).await;
    let to = other.url("/in").replace("http://", "http://evil:evil@");
    let server = Server::start(move |_| sent_on("307 On", &to)).await;
    let step = json!({
        "url": server.url("/"), "json": 1, "auth": { "bearer": "t" }, "sign": { "secret": "s" },
        "headers": { "X-Api-Key": "k", "Cookie": "c", "Accept": "a/b" },
    });
    output(&ask(&step).await);
    let asked = other.asked().pop().unwrap();
    for name in ["authorization", "x-api-key", "cookie", "x-rota-signature"] {
        assert_eq!(asked.header(name), None, "{name}");
    }
    assert_eq!(asked.header("host"), Some(&*other.address.to_string()));
    assert_eq!((asked.header("accept"), asked.header("x-rota-run")), (Some("a/b"), Some(RUN)));
}

#[tokio::test]
async fn a_circle_of_redirects_ends() {
    let server = Server::start(|_| sent_on("302 On", "/again")).await;
    let failed = failure(ask(&json!({ "url": server.url("/") })).await);
    assert_eq!((failed.status, failed.advice), (Some(302), RetryAdvice::Never));
    assert_eq!(server.asked().len(), REDIRECTS_MAX + 1);
    let server = Server::start(|_| sent_on("302 On", "javascript:alert(1)")).await;
    assert!(failure(ask(&json!({ "url": server.url("/") })).await).message.contains("neither http nor https"));
}

/// The way in that a check of the first URL alone leaves open.
#[tokio::test]
async fn a_redirect_to_an_inner_address_is_denied_at_its_hop() {
    let inner = Server::start(echo).await;
    let port = inner.address.port();
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "inner.test", "localhost"] {
        let to = format!("http://{host}:{port}/");
        let server = Server::start(move |_| sent_on("302 On", &to)).await;
        // Only the first server is open, by its host and port.
        let egress = opening(&[&server.address.to_string()]);
        let names = Names::new(&[("inner.test", &["127.0.0.1"]), ("localhost", &["127.0.0.1"])]);
        let executor = HttpExecutor::with_lookup(HttpOptions { egress, ..HttpOptions::default() }, names);
        let outcome = executor.execute(&attempt(&json!({ "url": server.url("/") })), &world().context).await;
        assert_eq!(failure(outcome).kind, ErrorKind::EgressDenied, "{host}");
        assert_eq!(server.asked().len(), 1);
    }
    assert_eq!(inner.asked().len(), 0);
}

#[tokio::test]
async fn inner_addresses_and_names_are_denied_by_default() {
    let inner = Server::start(echo).await;
    let port = inner.address.port();
    let names = Names::new(&[
        ("inner.test", &["127.0.0.1"]),
        ("both.test", &["203.0.114.1", "127.0.0.1"]),
        ("six.test", &["::ffff:127.0.0.1"]),
    ]);
    let executor = HttpExecutor::with_lookup(HttpOptions::default(), names);
    for host in ["127.0.0.1", "127.1", "0", "[::1]", "inner.test", "INNER.test", "both.test", "six.test"] {
        let step = attempt(&json!({ "url": format!("http://{host}:{port}/") }));
        let failed = failure(executor.execute(&step, &world().context).await);
        assert_eq!(failed.kind, ErrorKind::EgressDenied, "{host}: {}", failed.message);
    }
    assert_eq!(inner.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_listed_name_is_reached_at_its_port_only_and_looked_up_once() {
    let server = Server::start(echo).await;
    let names = Names::new(&[("a.test", &["127.0.0.1"])]);
    let port = server.address.port();
    let egress = opening(&[&format!("a.test:{port}")]);
    let lookup = Arc::<Names>::clone(&names);
    let executor = HttpExecutor::with_lookup(HttpOptions { egress, ..HttpOptions::default() }, lookup);
    for _ in 0..3 {
        let step = attempt(&json!({ "url": format!("http://a.test:{port}/") }));
        output(&executor.execute(&step, &world().context).await);
    }
    // The look that was judged is the one that is connected to; the connection is kept.
    assert_eq!(names.looks.load(Ordering::Relaxed), 1);
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
    let step = attempt(&json!({ "url": "http://a.test:1/" }));
    assert_eq!(failure(executor.execute(&step, &world().context).await).kind, ErrorKind::EgressDenied);
}

#[tokio::test]
async fn connections_are_kept_between_attempts() {
    let server = Server::start(echo).await;
    let executor = executor();
    for _ in 0..10 {
        output(&executor.execute(&attempt(&json!({ "url": server.url("/") })), &world().context).await);
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_goes_wrong_on_the_way_has_its_kind() {
    // Taken, but nobody listens.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refusing = closed.local_addr().unwrap();
    let mute = Server::start(|_| None).await;
    let names = Names::new(&[("empty.test", &[])]);
    let connect_timeout = Span::millis(100);
    let options = HttpOptions { egress: opening(&["127.0.0.0/8"]), connect_timeout, ..HttpOptions::default() };
    let executor = HttpExecutor::with_lookup(options, names);
    for (url, kind) in [
        (format!("http://{refusing}/"), ErrorKind::ConnectionRefused),
        (mute.url("/?token=secret"), ErrorKind::ConnectionReset),
        ("http://nobody.test/".to_owned(), ErrorKind::Dns),
        ("http://empty.test/".to_owned(), ErrorKind::Dns),
        // It waits for a request and never begins to speak TLS.
        (mute.url("/").replace("http:", "https:"), ErrorKind::Timeout),
    ] {
        let failed = failure(executor.execute(&attempt(&json!({ "url": url })), &world().context).await);
        assert_eq!(failed.kind, kind, "{url}: {}", failed.message);
        assert!(!failed.message.contains("secret"), "{}", failed.message);
    }
}

#[tokio::test]
async fn certificates_are_checked_as_the_step_says() {
    let server = Server::start_tls(echo).await;
    let url = server.url("/").replace("http:", "https:");
    for (tls, kind) in [
        (json!({}), Some(ErrorKind::Tls)),
        (json!({ "ca": CERTIFICATE }), None),
        (json!({ "verify": false }), None),
        (json!({ "verify": true }), Some(ErrorKind::Tls)),
        (json!({ "ca": CERTIFICATE, "certificate": CERTIFICATE, "key": KEY }), None),
        (json!({ "ca": "no PEM" }), Some(ErrorKind::InvalidInput)),
        (json!({ "certificate": CERTIFICATE, "key": "no PEM" }), Some(ErrorKind::InvalidInput)),
    ] {
        let outcome = ask(&json!({ "url": url, "tls": tls })).await;
        match kind {
            None => assert_eq!(output(&outcome)["status"], json!(200), "{tls}"),
            Some(kind) => {
                let failed = failure(outcome);
                assert_eq!(failed.kind, kind, "{tls}: {}", failed.message);
            }
        }
    }
}

/// A client that trusts everything must not serve a step that does not.
#[tokio::test]
async fn connections_are_not_shared_between_ways_of_trusting() {
    let server = Server::start_tls(echo).await;
    let url = server.url("/").replace("http:", "https:");
    let executor = executor();
    let lax = attempt(&json!({ "url": url, "tls": { "verify": false } }));
    output(&executor.execute(&lax, &world().context).await);
    output(&executor.execute(&lax, &world().context).await);
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
    let strict = attempt(&json!({ "url": url }));
    assert_eq!(failure(executor.execute(&strict, &world().context).await).kind, ErrorKind::Tls);
}

#[tokio::test]
async fn a_redirect_never_leaves_https() {
    let plain = Server::start(echo).await;
    let to = plain.url("/");
    let server = Server::start_tls(move |_| sent_on("302 On", &to)).await;
    let url = server.url("/").replace("http:", "https:");
    let failed = failure(ask(&json!({ "url": url, "tls": { "ca": CERTIFICATE } })).await);
    assert_eq!((failed.status, plain.asked().len()), (Some(302), 0));
    assert!(failed.message.contains("from https to http"), "{}", failed.message);
}

/// Cancel and deadline drop the future; the target must notice.
#[tokio::test]
async fn a_dropped_call_hangs_up() {
    let server = Server::start(|_| Some(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc".to_vec())).await;
    let (executor, attempt, world) = (executor(), attempt(&json!({ "url": server.url("/") })), world());
    let call = executor.execute(&attempt, &world.context);
    tokio::select! {
        outcome = call => panic!("{outcome:?}"),
        () = server.arrived.notified() => {}
    }
    server.hung_up.notified().await;
}

struct Guarded {
    executor: HttpExecutor,
    world: World,
    server: Server,
}

async fn guarded(failures: u32, status: fn(usize) -> &'static str) -> Guarded {
    let breaker = BreakerOptions { failures, ..BreakerOptions::default() };
    let options = HttpOptions { egress: opening(&["127.0.0.0/8"]), breaker, ..HttpOptions::default() };
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(move |_| answer(status(asked.fetch_add(1, Ordering::Relaxed)), "", "")).await;
    Guarded { executor: HttpExecutor::new(options), world: world(), server }
}

impl Guarded {
    async fn ask(&self) -> Outcome {
        let attempt = attempt(&json!({ "url": self.server.url("/") }));
        self.executor.execute(&attempt, &self.world.context).await
    }
}

#[tokio::test]
async fn a_host_that_keeps_failing_is_left_alone_and_tried_again() {
    let guarded = guarded(2, |asked| if asked < 2 { "503 Away" } else { "200 OK" }).await;
    for _ in 0..2 {
        assert_eq!(failure(guarded.ask().await).status, Some(503));
    }
    let Outcome::Deferred { until, reason } = guarded.ask().await else { panic!("deferred") };
    assert!(until > guarded.world.clock.now());
    assert_eq!(reason, format!("{} keeps failing, so no requests are sent to it for a while", guarded.server.address));
    assert_eq!(guarded.server.asked().len(), 2, "a deferred run asks nobody");
    guarded.world.clock.move_by(10);
    output(&guarded.ask().await);
    output(&guarded.ask().await);
}

/// A host that says no is there; only one that cannot answer is left alone.
#[tokio::test]
async fn refusals_do_not_open_the_breaker() {
    let guarded = guarded(1, |_| "404 No").await;
    for _ in 0..5 {
        assert_eq!(failure(guarded.ask().await).status, Some(404));
    }
}

#[tokio::test]
async fn a_call_dropped_at_its_deadline_counts_and_one_called_off_does_not() {
    let world = world();
    let breaker = BreakerOptions { failures: 1, ..BreakerOptions::default() };
    let options = HttpOptions { egress: opening(&["127.0.0.0/8"]), breaker, ..HttpOptions::default() };
    let executor = HttpExecutor::new(options);
    let server = Server::start(|_| Some(Vec::new())).await;
    let mut attempt = attempt(&json!({ "url": server.url("/") }));
    attempt.deadline_at = Some(Span::secs(5).after(world.clock.now()));
    for (moved, deferred_next) in [(0, false), (5, true)] {
        let mut call = executor.execute(&attempt, &world.context);
        tokio::select! {
            outcome = &mut call => panic!("{outcome:?}"),
            () = server.arrived.notified() => {}
        }
        world.clock.move_by(moved);
        drop(call);
        let next = testing::at_once(&mut executor.execute(&attempt, &world.context));
        assert_eq!(matches!(next, Some(Outcome::Deferred { .. })), deferred_next, "{next:?}");
    }
}
