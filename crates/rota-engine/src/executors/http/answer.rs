//! Answers: what is kept of one that is good, and said of one that is not.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use reqwest::{
    Response,
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
};
use rota_core::{
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

/// Bytes of headers, names and values, that the output holds.
const HEADER_BYTES_MAX: usize = 16_384;
/// Bytes of a refusing answer that its message repeats.
const EXCERPT_BYTES_MAX: usize = 500;
/// How long a refusing answer's body is waited for. Its status is the news.
const EXCERPT_WAIT: Span = Span::secs(2);

/// A good answer as the step's output.
pub(super) async fn take(step: &Http, response: Response) -> Result<Outcome, Failure> {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let bytes = whole(step, response).await?;
    let mut output = Map::new();
    output.insert("status".to_owned(), json!(status));
    output.insert("headers".to_owned(), shown(&headers));
    match String::from_utf8(bytes) {
        Ok(text) => {
            output.insert("body".to_owned(), body(&headers, text));
        }
        Err(error) => {
            output.insert("body".to_owned(), json!(STANDARD.encode(error.as_bytes())));
            output.insert("encoding".to_owned(), json!("base64"));
        }
    }
    Ok(Outcome::Succeeded { output: Some(Value::Object(output).to_string().into()) })
}

/// The whole body, read no further than the step allows.
async fn whole(step: &Http, mut response: Response) -> Result<Vec<u8>, Failure> {
    let most = step.response_bytes_max();
    let status = response.status().as_u16();
    let too_long =
        || Failure::http(status, format!("answered with more than {most} bytes")).advising(RetryAdvice::Never);
    if response.content_length().is_some_and(|length| length > most) {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| fault::failure_of(&error))? {
        if (bytes.len() + chunk.len()) as u64 > most {
            return Err(too_long());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn body(headers: &HeaderMap, text: String) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    let is_json = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(says_json);
    match serde_json::from_str(&text) {
        Ok(json) if is_json => json,
        _ => Value::String(text),
    }
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
        bytes += name.as_str().len() + value.len();
        if bytes > HEADER_BYTES_MAX {
            break;
        }
        let value = json!(String::from_utf8_lossy(value.as_bytes()));
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
pub(super) async fn refuse(mut response: Response, clock: &dyn Clock) -> Failure {
    let status = response.status();
    let advice = retry_after(response.headers(), clock.now());
    let mut excerpt = Vec::new();
    tokio::select! {
        () = read_excerpt(&mut response, &mut excerpt) => {}
        () = clock.sleep(EXCERPT_WAIT) => {}
    }
    let mut message = format!("answered {status}");
    let text = String::from_utf8_lossy(&excerpt);
    let text = text.trim();
    if !text.is_empty() {
        message = format!("{message}: {}", text.replace(char::is_control, " "));
    }
    Failure::http(status.as_u16(), message).advising(advice)
}

async fn read_excerpt(response: &mut Response, excerpt: &mut Vec<u8>) {
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = EXCERPT_BYTES_MAX - excerpt.len();
        excerpt.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if excerpt.len() == EXCERPT_BYTES_MAX {
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
