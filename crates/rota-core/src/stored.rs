//! Stored: reads what some release of Rota has written down.
//!
//! What people send is refused when it holds a field that does not exist, since that is
//! mostly a typing error. What is stored was checked when it was saved; a field that is
//! not known here was written by a later release, which runs beside this one during an
//! upgrade. It is left out, and the rest is read.
//!
//! This module does not decide whether a release may leave a field out: a schema whose
//! fields must be understood says so by the oldest release that may use it.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::job::decode::Fault;

/// Most unknown fields that are left out of one stored text.
const UNKNOWN_MAX: usize = 100;

/// Reads `text`, without the fields that this release does not know.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_str(text) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    // Whatever is wrong with it, the first thing found is what is reported.
    let Ok(mut value) = serde_json::from_str::<Value>(text) else { return Err(error) };
    for _ in 0..UNKNOWN_MAX {
        match serde_path_to_error::deserialize::<_, T>(&value) {
            Ok(read) => return Ok(read),
            Err(refused) => {
                let fault = Fault::new(refused.path(), &refused.inner().to_string());
                if !fault.is_unknown_field() || !fault.cut_out_of(&mut value) {
                    return Err(error);
                }
            }
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{calendar::Calendar, job::JobDocument, job::failure::Failure, schedule::ScheduleSpec};

    #[test]
    fn fields_of_a_later_release_are_left_out_wherever_they_are() {
        let known = json!({
            "name": "a",
            "schedules": [{ "name": "s", "cron": "* * * * *" }],
            "steps": [{ "id": "one", "http": { "url": "http://x" }, "retry": { "max_attempts": 2 } }],
        });
        let mut later = known.clone();
        later["later"] = json!({ "deep": [1] });
        later["schedules"][0]["later"] = json!(1);
        later["steps"][0]["later"] = json!("x");
        later["steps"][0]["http"]["later"] = json!(null);
        later["steps"][0]["retry"]["later"] = json!([]);
        let read = |value: &serde_json::Value| read::<JobDocument>(&value.to_string()).unwrap().canonical_json();
        assert_eq!(read(&later), read(&known));
        assert!(JobDocument::from_value(later).is_err(), "what people send is read strictly");
    }

    #[test]
    fn every_stored_form_is_read_without_what_is_not_known() {
        assert!(read::<Failure>(r#"{"kind":"handler","message":"m","later":1}"#).is_ok());
        assert!(read::<ScheduleSpec>(r#"{"name":"s","every":"1h","later":{}}"#).is_ok());
        assert!(read::<Calendar>(r#"{"name":"c","weekdays":["SAT"],"later":true}"#).is_ok());
    }

    /// What is not understood is set aside rather than executed without it.
    #[test]
    fn what_cannot_be_left_out_is_an_error() {
        for text in [
            "{",
            r#"{"name":"a","steps":[{"id":"one","later_kind":{}}]}"#,
            r#"{"name":"a","steps":[{"id":"one","http":{"url":1}}]}"#,
            r#"{"steps":[]}"#,
        ] {
            assert!(read::<JobDocument>(text).is_err(), "{text}");
        }
        assert!(read::<Failure>(r#"{"kind":"later","message":"m"}"#).is_err());
        let mut many: serde_json::Map<_, _> = (0..=UNKNOWN_MAX).map(|n| (format!("later{n}"), json!(1))).collect();
        many.extend([("kind".to_owned(), json!("handler")), ("message".to_owned(), json!("m"))]);
        assert!(read::<Failure>(&json!(many).to_string()).is_err());
    }
}
