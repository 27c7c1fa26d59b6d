//! The filters, tests and functions that templates have, and no others.

use std::borrow::Cow;

use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use minijinja::{
    Environment, Error, ErrorKind, State, Value as Template, filters, functions, tests,
    value::{Kwargs, Serde, ValueKind},
};

use super::{OUTPUT_BYTES_MAX, value};

pub(super) fn add_all(environment: &mut Environment<'static>) {
    add_ours(environment);
    add_texts_and_numbers(environment);
    add_lists(environment);
    add_tests(environment);
    environment.add_function("range", functions::range);
    environment.add_function("dict", functions::dict);
}

fn add_ours(environment: &mut Environment<'static>) {
    environment.add_filter("date", date);
    environment.add_filter("unix", unix);
    environment.add_filter("fromjson", from_json);
    environment.add_filter("tojson", to_json);
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("string", string);
    // These two are put in by the sandbox.
    environment.add_filter("number", number);
    environment.add_filter("short", short);
}

fn add_texts_and_numbers(environment: &mut Environment<'static>) {
    environment.add_filter("lower", filters::lower);
    environment.add_filter("upper", filters::upper);
    environment.add_filter("title", filters::title);
    environment.add_filter("capitalize", filters::capitalize);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("split", filters::split);
    environment.add_filter("lines", filters::lines);
    environment.add_filter("default", filters::default);
    environment.add_filter("d", filters::default);
    environment.add_filter("urlencode", filters::urlencode);
    environment.add_filter("abs", filters::abs);
    environment.add_filter("int", filters::int);
    environment.add_filter("float", filters::float);
    environment.add_filter("round", filters::round);
    environment.add_filter("bool", filters::bool);
}

fn add_lists(environment: &mut Environment<'static>) {
    environment.add_filter("length", filters::length);
    environment.add_filter("count", filters::length);
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    environment.add_filter("min", filters::min);
    environment.add_filter("max", filters::max);
    environment.add_filter("sum", filters::sum);
    environment.add_filter("sort", filters::sort);
    environment.add_filter("unique", filters::unique);
    environment.add_filter("reverse", filters::reverse);
    environment.add_filter("list", filters::list);
    environment.add_filter("items", filters::items);
    environment.add_filter("dictsort", filters::dictsort);
    environment.add_filter("attr", filters::attr);
    environment.add_filter("map", filters::map);
    environment.add_filter("select", filters::select);
    environment.add_filter("reject", filters::reject);
    environment.add_filter("selectattr", filters::selectattr);
    environment.add_filter("rejectattr", filters::rejectattr);
    environment.add_filter("groupby", filters::groupby);
}

fn add_tests(environment: &mut Environment<'static>) {
    environment.add_test("defined", tests::is_defined);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("none", tests::is_none);
    environment.add_test("boolean", tests::is_boolean);
    environment.add_test("number", tests::is_number);
    environment.add_test("integer", tests::is_integer);
    environment.add_test("float", tests::is_float);
    environment.add_test("string", tests::is_string);
    environment.add_test("sequence", tests::is_sequence);
    environment.add_test("mapping", tests::is_mapping);
    environment.add_test("odd", tests::is_odd);
    environment.add_test("even", tests::is_even);
    environment.add_test("divisibleby", tests::is_divisibleby);
    environment.add_test("startingwith", tests::is_startingwith);
    environment.add_test("endingwith", tests::is_endingwith);
    environment.add_test("in", tests::is_in);
    environment.add_test("true", tests::is_true);
    environment.add_test("false", tests::is_false);
    environment.add_test("eq", tests::is_eq);
    environment.add_test("==", tests::is_eq);
    environment.add_test("ne", tests::is_ne);
    environment.add_test("!=", tests::is_ne);
    environment.add_test("lt", tests::is_lt);
    environment.add_test("<", tests::is_lt);
    environment.add_test("le", tests::is_le);
    environment.add_test("<=", tests::is_le);
    environment.add_test("gt", tests::is_gt);
    environment.add_test(">", tests::is_gt);
    environment.add_test("ge", tests::is_ge);
    environment.add_test(">=", tests::is_ge);
}

fn refused(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `date`, `date("%d.%m.%Y")`, `date(timezone="Europe/Paris")`: an instant as
/// its day, or in a format of strftime's. The zone is the one asked for, else
/// the schedule's, else UTC.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands over options by value")]
fn date(state: &State, instant: &str, format: Option<&str>, options: Kwargs) -> Result<String, Error> {
    let instant = timestamp(instant)?;
    let asked: Option<&str> = options.get("timezone")?;
    options.assert_all_used()?;
    let zone = match asked {
        Some(name) => zone_named(name)?,
        None => zone_of_schedule(state)?,
    };
    let text = strtime::format(format.unwrap_or("%Y-%m-%d"), &instant.to_zoned(zone));
    text.map_err(|error| refused(format!("not a format of dates: {error}")))
}

/// An instant as seconds since 1970.
fn unix(instant: &str) -> Result<i64, Error> {
    timestamp(instant).map(Timestamp::as_second)
}

fn timestamp(text: &str) -> Result<Timestamp, Error> {
    text.parse().map_err(|_| refused(format!("`{}` is not an instant", text.chars().take(64).collect::<String>())))
}

fn zone_named(name: &str) -> Result<TimeZone, Error> {
    TimeZone::get(name)
        .map_err(|_| refused(format!("`{}` is not a time zone", name.chars().take(64).collect::<String>())))
}

fn zone_of_schedule(state: &State) -> Result<TimeZone, Error> {
    let schedule = state.lookup("schedule").unwrap_or_default();
    let zone = if schedule.kind() == ValueKind::Map { schedule.get_attr("timezone")? } else { Template::UNDEFINED };
    zone.as_str().map_or(Ok(TimeZone::UTC), zone_named)
}

fn from_json(text: &str) -> Result<Template, Error> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| refused(format!("is no JSON: {error}")))?;
    Ok(Template::from(Serde(value)))
}

fn to_json(value: &Template) -> Result<String, Error> {
    value::json_of(value).map(|json| json.to_string()).map_err(|error| refused(error.to_string()))
}

/// A text as it is, anything else as JSON.
fn string(value: &Template) -> Result<String, Error> {
    value::json_of(value).and_then(value::text_of).map_err(|error| refused(error.to_string()))
}

fn number(value: &Template) -> Result<Template, Error> {
    if value.is_number() { Ok(value.clone()) } else { Err(refused("only numbers are multiplied")) }
}

fn short(value: &Template) -> Result<Template, Error> {
    match value.as_str() {
        Some(text) => fits(text.len()).map(|()| value.clone()),
        None => Ok(value.clone()),
    }
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let matches = text.matches(from).count();
    fits(matches.saturating_mul(to.len()).saturating_add(text.len()))?;
    Ok(text.replace(from, to))
}

fn join(items: &Template, between: Option<&str>) -> Result<String, Error> {
    let between = between.unwrap_or_default();
    let mut joined = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let text = string(&item)?;
        fits(joined.len() + text.len() + between.len())?;
        if index > 0 {
            joined.push_str(between);
        }
        joined.push_str(&text);
    }
    Ok(joined)
}

fn fits(bytes: usize) -> Result<(), Error> {
    if bytes <= OUTPUT_BYTES_MAX { Ok(()) } else { Err(refused(value::too_long().to_string())) }
}
