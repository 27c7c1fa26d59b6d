//! Answers: what is kept of one that is good, and said of one that is not.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use reqwest::{
    Response,
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
};
use rota_core::{
    bytes::{OUTPUT_BYTES_MAX, fit_json},
    duration::Span,
    job::{
        failure::{Failure, RetryAdvice},
        kinds::Http,
    },
    ports::Clock,
    run::Outcome,
};
use serde_json::{Map, Value, json};

use super::fault;

/// Bytes that the fields of the body take in the output beside the body itself.
const BODY_FIELDS_BYTES: usize = 128;
const QUOTES: usize = 2;
/// Bytes of headers, as JSON, that the output holds.
const HEADER_BYTES_MAX: usize = 16_384;
/// Bytes of JSON that a field takes beside its name and its value.
const FIELD_BYTES: usize = 6;
/// Bytes of a refusing answer that its message repeats.
const EXCERPT_BYTES_MAX: usize = 500;
/// Bytes of a secret by which one is recognized at the end of an excerpt.
const SECRET_BYTES_MAX: usize = 8_192;
/// How long a refusing answer's body is waited for. Its status is the news.
const EXCERPT_WAIT: Span = Span::secs(2);

/// A good answer as the step's output.
pub(super) async fn take(step: &Http, response: Response) -> Result<Outcome, Failure> {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let received = receive(step, response).await?;
    let mut output = Map::new();
    output.insert("status".to_owned(), json!(status));
    output.insert("headers".to_owned(), shown(&headers));
    let used = json!(output).to_string().len() + BODY_FIELDS_BYTES;
    received.add_to(&mut output, &headers, OUTPUT_BYTES_MAX - used);
    Ok(Outcome::Succeeded { output: Some(Value::Object(output).to_string().into()) })
}

/// The body of an answer, as far as an output can hold it.
struct Received {
    bytes: Vec<u8>,
    /// What was received in all.
    total: u64,
}

impl Received {
    /// The body as fields of the output, in at most `room` bytes of JSON. One that does not
    /// fit is cut, and its size told.
    fn add_to(self, output: &mut Map<String, Value>, headers: &HeaderMap, room: usize) {
        let mut is_cut = self.total > self.bytes.len() as u64;
        let body = match text_of(self.bytes, is_cut) {
            Ok(text) => {
                whole(headers, &text).filter(|body| !is_cut && body.to_string().len() <= room).unwrap_or_else(|| {
                    let fits = fit_json(&text, room - QUOTES);
                    is_cut |= fits.len() < text.len();
                    json!(fits)
                })
            }
            Err(bytes) => {
                output.insert("encoding".to_owned(), json!("base64"));
                let fits = bytes.len().min((room - QUOTES) / 4 * 3);
                is_cut |= fits < bytes.len();
                json!(STANDARD.encode(&bytes[..fits]))
            }
        };
        output.insert("body".to_owned(), body);
        if is_cut {
            output.insert("truncated".to_owned(), json!(true));
            output.insert("body_bytes".to_owned(), json!(self.total));
        }
    }
}

/// Bytes as text, if they are. Where the end was cut off, so may have been a part of the
/// last character.
fn text_of(bytes: Vec<u8>, is_cut: bool) -> Result<String, Vec<u8>> {
    String::from_utf8(bytes).or_else(|error| {
        let (end, whole) = (error.utf8_error().valid_up_to(), error.utf8_error().error_len().is_some());
        let mut bytes = error.into_bytes();
        if whole || !is_cut {
            return Err(bytes);
        }
        bytes.truncate(end);
        String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
    })
}

/// Reads the body to its end, and no further than the step allows. Only as much is kept as
/// an output can hold: a thousand attempts that are answered with megabytes at the same
/// time must not fill the memory.
async fn receive(step: &Http, mut response: Response) -> Result<Received, Failure> {
    let most = step.response_bytes_max();
    let status = response.status().as_u16();
    let too_long =
        || Failure::http(status, format!("the response has more than {most} bytes")).advising(RetryAdvice::Never);
    if response.content_length().is_some_and(|length| length > most) {
        return Err(too_long());
    }
    let mut received = Received { bytes: Vec::new(), total: 0 };
    while let Some(chunk) = response.chunk().await.map_err(|error| fault::failure_of(&error))? {
        received.total += chunk.len() as u64;
        if received.total > most {
            return Err(too_long());
        }
        let room = OUTPUT_BYTES_MAX - received.bytes.len();
        received.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok(received)
}

/// A body that was received whole: as JSON where it is and says so, else as text.
fn whole(headers: &HeaderMap, text: &str) -> Option<Value> {
    if text.is_empty() {
        return Some(Value::Null);
    }
    let is_json = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(says_json);
    is_json.then(|| serde_json::from_str(text).ok()).flatten()
}

fn says_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

/// The headers by name, one that came more than once as a list, up to a bound.
fn shown(headers: &HeaderMap) -> Value {
    let mut shown = Map::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let value = json!(String::from_utf8_lossy(value.as_bytes()));
        bytes += name.as_str().len() + value.to_string().len() + FIELD_BYTES;
        if bytes > HEADER_BYTES_MAX {
            break;
        }
        match shown.get_mut(name.as_str()) {
            None => {
                shown.insert(name.to_string(), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first.take(), value]),
        }
    }
    Value::Object(shown)
}

/// An answer whose status is not a success.
pub(super) async fn refuse(mut response: Response, secrets: &[String], clock: &dyn Clock) -> Failure {
    let status = response.status();
    let advice = retry_after(response.headers(), clock.now());
    let mut excerpt = Vec::new();
    // A secret that begins at the end of the excerpt is recognized by its whole length.
    let longest = secrets.first().map_or(0, String::len).min(SECRET_BYTES_MAX);
    let most = EXCERPT_BYTES_MAX + longest;
    tokio::select! {
        () = read_excerpt(&mut response, &mut excerpt, most) => {}
        () = clock.sleep(EXCERPT_WAIT) => {}
    }
    let mut message = format!("answered {status}");
    let text = without(&String::from_utf8_lossy(&excerpt), secrets);
    let text = text[..text.floor_char_boundary(EXCERPT_BYTES_MAX)].trim();
    if !text.is_empty() {
        message = format!("{message}: {}", text.replace(char::is_control, " "));
    }
    Failure::http(status.as_u16(), message).advising(advice)
}

/// A text without secrets that its author was sent: many targets repeat a request in what
/// they say about it.
fn without(text: &str, secrets: &[String]) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}

async fn read_excerpt(response: &mut Response, excerpt: &mut Vec<u8>, most: usize) {
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = most - excerpt.len();
        excerpt.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if excerpt.len() == most {
            break;
        }
    }
}

/// `Retry-After`: a number of seconds, or a date of HTTP's. One that lies in
/// the past asks for nothing.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> RetryAdvice {
    let Some(text) = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim) else {
        return RetryAdvice::ByPolicy;
    };
    let millis = match text.parse::<u64>() {
        Ok(seconds) => seconds.saturating_mul(1_000),
        Err(_) => match DateTimeParser::new().parse_timestamp(text) {
            Ok(at) => u64::try_from(at.duration_since(now).as_millis()).unwrap_or(0),
            Err(_) => 0,
        },
    };
    if millis == 0 { RetryAdvice::ByPolicy } else { RetryAdvice::After(Span::millis(millis)) }
}
