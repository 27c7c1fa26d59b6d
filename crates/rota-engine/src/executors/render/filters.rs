//! The filters, tests and functions that templates have, and no others.

use std::borrow::Cow;

use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use minijinja::{
    Environment, Error, ErrorKind, State, Value as Template, filters,
    functions::{self, Function},
    tests,
    value::{FunctionArgs, FunctionResult, Kwargs, Rest, Serde, ValueKind},
};
use rota_core::evaluation::templates::{OPERATION, OUTPUT_BYTES_MAX, TEXT_BYTES_MAX};

use super::{budget, value};

pub(super) fn add_all(environment: &mut Environment<'static>) {
    add_ours(environment);
    add_texts_and_numbers(environment);
    add_lists(environment);
    add_tests(environment);
    environment.add_function("range", range);
    environment.add_function("dict", functions::dict);
}

/// A filter that is charged for all that it is given before it begins.
fn add<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    environment.add_filter(name, charged(filter));
}

/// A test that is.
fn add_test<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, test: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    environment.add_test(name, charged(test));
}

fn charged<F, Rv, Args>(
    function: F,
) -> impl Fn(&mut State, Rest<Template>) -> Result<Template, Error> + Send + Sync + 'static
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let function = Template::from_function(function);
    move |state: &mut State, args: Rest<Template>| {
        budget::charge_for(&args)?;
        function.call(state, &args)
    }
}

fn add_ours(environment: &mut Environment<'static>) {
    environment.add_filter("date", date);
    environment.add_filter("unix", unix);
    add(environment, "fromjson", from_json);
    add(environment, "tojson", to_json);
    add(environment, "replace", replace);
    add(environment, "join", join);
    add(environment, "string", string);
    // These are put in by the sandbox.
    environment.add_filter("number", number);
    environment.add_filter("short", short);
    environment.add_filter("compared", compared);
    environment.add_filter("sought", sought);
}

fn add_texts_and_numbers(environment: &mut Environment<'static>) {
    add(environment, "lower", filters::lower);
    add(environment, "upper", filters::upper);
    add(environment, "title", filters::title);
    add(environment, "capitalize", filters::capitalize);
    add(environment, "trim", filters::trim);
    add(environment, "split", filters::split);
    add(environment, "lines", filters::lines);
    environment.add_filter("default", filters::default);
    environment.add_filter("d", filters::default);
    add(environment, "urlencode", filters::urlencode);
    environment.add_filter("abs", filters::abs);
    add(environment, "int", filters::int);
    add(environment, "float", filters::float);
    environment.add_filter("round", filters::round);
    environment.add_filter("bool", filters::bool);
}

fn add_lists(environment: &mut Environment<'static>) {
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("first", filters::first);
    add(environment, "last", filters::last);
    add(environment, "min", filters::min);
    add(environment, "max", filters::max);
    add(environment, "sum", filters::sum);
    add(environment, "sort", filters::sort);
    add(environment, "unique", filters::unique);
    add(environment, "reverse", filters::reverse);
    add(environment, "list", filters::list);
    add(environment, "items", filters::items);
    add(environment, "dictsort", filters::dictsort);
    environment.add_filter("attr", filters::attr);
    add(environment, "map", filters::map);
    add(environment, "select", filters::select);
    add(environment, "reject", filters::reject);
    add(environment, "selectattr", filters::selectattr);
    add(environment, "rejectattr", filters::rejectattr);
    add(environment, "groupby", filters::groupby);
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
    add_test(environment, "startingwith", tests::is_startingwith);
    add_test(environment, "endingwith", tests::is_endingwith);
    add_test(environment, "in", tests::is_in);
    environment.add_test("true", tests::is_true);
    environment.add_test("false", tests::is_false);
    add_test(environment, "eq", tests::is_eq);
    add_test(environment, "==", tests::is_eq);
    add_test(environment, "ne", tests::is_ne);
    add_test(environment, "!=", tests::is_ne);
    add_test(environment, "lt", tests::is_lt);
    add_test(environment, "<", tests::is_lt);
    add_test(environment, "le", tests::is_le);
    add_test(environment, "<=", tests::is_le);
    add_test(environment, "gt", tests::is_gt);
    add_test(environment, ">", tests::is_gt);
    add_test(environment, "ge", tests::is_ge);
    add_test(environment, ">=", tests::is_ge);
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
    text.map_err(|error| refused(format!("not a date format: {error}")))
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
        serde_json::from_str(text).map_err(|error| refused(format!("is not valid JSON: {error}")))?;
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
    if value.is_number() {
        Ok(value.clone())
    } else {
        Err(refused("only numbers can be multiplied; convert text with `| int` or `| float`"))
    }
}

fn range(from: isize, to: Option<isize>, step: Option<isize>) -> Result<Template, Error> {
    let range = functions::range(from, to, step)?;
    // As it is read, where nothing is charged.
    budget::charge_for(std::slice::from_ref(&range))?;
    Ok(range)
}

fn length(value: &Template) -> Result<usize, Error> {
    budget::charge(value.as_str().map_or(0, str::len))?;
    filters::length(value)
}

/// The left side of `~` and `+`.
fn short(value: &Template) -> Result<Template, Error> {
    let Some(text) = value.as_str() else {
        // Lists are put together: the next use finds the whole.
        budget::charge_for(std::slice::from_ref(value))?;
        return Ok(value.clone());
    };
    if text.len() > TEXT_BYTES_MAX {
        return Err(refused(format!("a text of more than {TEXT_BYTES_MAX} bytes cannot be added to")));
    }
    budget::charge_addition(text.len())?;
    Ok(value.clone())
}

/// The left side of a comparison. One that is missing is the comparison's to judge.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands over what is left by value")]
fn compared(values: Rest<Template>) -> Result<Template, Error> {
    let value = values.first().cloned().unwrap_or_default();
    match value.kind() {
        ValueKind::Number | ValueKind::Bool | ValueKind::None | ValueKind::Undefined => {}
        ValueKind::String => budget::charge(OPERATION / 8 + value.as_str().map_or(0, str::len))?,
        _ => budget::charge_for(std::slice::from_ref(&value))?,
    }
    Ok(value)
}

/// The left side of `in`. What it is sought in may be anything that there is.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands over what is left by value")]
fn sought(state: &State, values: Rest<Template>) -> Result<Template, Error> {
    let roots: Vec<Template> = LARGE_ROOTS.iter().filter_map(|root| state.lookup(root)).collect();
    budget::charge_search(&roots)?;
    Ok(values.first().cloned().unwrap_or_default())
}

/// The roots that may be large.
pub(super) const LARGE_ROOTS: [&str; 3] = ["payload", "vars", "steps"];

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
