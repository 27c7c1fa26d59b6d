//! Says in words what an expression means: "At 09:00, Monday through Friday".
//!
//! The sentence is built from the same items that the search is, with `H`
//! already resolved, so it describes what will fire and not what was typed.
//!
//! It does not mention the time zone: the expression does not know it.

use super::{
    CronError, Parsed, Tree,
    field::{Field, Item},
    parse,
};

/// More times of day than this are described, not listed, unless they are one
/// per hour.
const LISTED_TIMES_MAX: usize = 6;

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const ORDINALS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// A sentence for an expression, without a full stop.
pub fn explain(text: &str, seed: &[u8]) -> Result<String, CronError> {
    super::Cron::parse(text, seed)?;
    match parse(text, seed)? {
        Parsed::Every(span) => Ok(format!("Every {span}, counted from 1970-01-01 00:00 UTC")),
        Parsed::Tree(tree) => Ok(sentence(&tree)),
    }
}

fn sentence(tree: &Tree) -> String {
    let mut parts = vec![capital(&times(tree))];
    let days = days(tree);
    let dated = [months(&tree.month), years(tree.year.as_deref())];
    let every_day = days.is_none() && is_listed(tree);
    parts.extend(days);
    if every_day && dated.iter().all(Option::is_none) {
        parts.push("every day".to_owned());
    }
    parts.extend(dated.into_iter().flatten());
    parts.join(", ")
}

/// The part of the sentence about the time of day.
fn times(tree: &Tree) -> String {
    if let Some(listed) = listed_times(tree) {
        return format!("at {}", all_of(&listed));
    }
    let second = tree.second.as_deref().filter(|items| *items != [Item::Single(0)]);
    let minute = if second.is_some() && tree.minute == [Item::Any] { None } else { Some(&tree.minute) };
    let hourly = tree.hour == [Item::Any];
    let on_the_hour = tree.minute == [Item::Single(0)];
    let mut parts: Vec<String> = second.map(|items| unit_phrase(Field::Second, items)).into_iter().collect();
    match (minute, hours(&tree.hour)) {
        (Some(_), None) if on_the_hour && parts.is_empty() => parts.push("every hour".to_owned()),
        (Some(_), Some(hours)) if on_the_hour && parts.is_empty() && is_every_some_hours(&tree.hour) => {
            parts.push(hours);
        }
        (Some(_), Some(hours)) if on_the_hour && parts.is_empty() => parts.push(format!("on the hour, {hours}")),
        (Some(items), hours) => {
            parts.push(unit_phrase(Field::Minute, items));
            parts.extend(hours);
        }
        (None, hours) => parts.extend(hours),
    }
    let text = parts.join(", ");
    if hourly && text.ends_with("past") {
        format!("{text} every hour")
    } else {
        text.replace(" past,", " past the hour,")
    }
}

fn is_every_some_hours(items: &[Item]) -> bool {
    matches!(items, [Item::Stepped { whole: true, .. }])
}

fn is_listed(tree: &Tree) -> bool {
    listed_times(tree).is_some()
}

/// The times of day, when they are few and fixed.
fn listed_times(tree: &Tree) -> Option<Vec<String>> {
    let zero = vec![Item::Single(0)];
    let seconds = singles(tree.second.as_ref().unwrap_or(&zero))?;
    let minutes = singles(&tree.minute)?;
    let hours = singles(&tree.hour)?;
    let per_hour = seconds.len() * minutes.len();
    if per_hour > 1 && per_hour * hours.len() > LISTED_TIMES_MAX {
        return None;
    }
    let mut listed = Vec::new();
    for hour in &hours {
        for minute in &minutes {
            listed.extend(seconds.iter().map(|second| clock(*hour, *minute, *second)));
        }
    }
    Some(listed)
}

fn clock(hour: u16, minute: u16, second: u16) -> String {
    if second == 0 { format!("{hour:02}:{minute:02}") } else { format!("{hour:02}:{minute:02}:{second:02}") }
}

/// The values of a list without ranges or steps, in order, each once.
fn singles(items: &[Item]) -> Option<Vec<u16>> {
    let single = |item: &Item| if let Item::Single(value) = item { Some(*value) } else { None };
    let mut values = items.iter().map(single).collect::<Option<Vec<_>>>()?;
    values.sort_unstable();
    values.dedup();
    Some(values)
}

/// "every 15 minutes", "at 5 and 35 minutes past".
fn unit_phrase(field: Field, items: &[Item]) -> String {
    let of = if field == Field::Second { " past the minute" } else { " past" };
    if let Some(values) = singles(items) {
        let plural = if values == [1] { "" } else { "s" };
        return format!("at {} {field}{plural}{of}", all_of(&numbers(&values)));
    }
    let phrase = |item: &Item| match *item {
        Item::Any | Item::Stepped { whole: true, step: 1, .. } => format!("every {field}"),
        Item::Stepped { whole: true, step, .. } => format!("every {step} {field}s"),
        Item::Stepped { first, last, step, .. } if last == field.max() => {
            format!("every {step} {field}s starting at {field} {first}")
        }
        Item::Stepped { first, last, step, .. } => format!("every {step} {field}s from {first} through {last}"),
        Item::Range { first, last } => format!("every {field} from {first} through {last}"),
        Item::Single(value) => format!("at {field} {value}"),
        Item::FromEnd(_)
        | Item::NearestWeekday(_)
        | Item::LastWeekday
        | Item::LastOfMonth(_)
        | Item::NthOfMonth { .. } => String::new(),
    };
    all_of(&items.iter().map(phrase).collect::<Vec<_>>())
}

/// The part about hours, or nothing when all of them count.
fn hours(items: &[Item]) -> Option<String> {
    if items.contains(&Item::Any) {
        return None;
    }
    if let Some([hour]) = singles(items).as_deref() {
        return Some(format!("from {hour:02}:00 to {hour:02}:59"));
    }
    if let Some(values) = singles(items) {
        let shown: Vec<_> = values.iter().map(|hour| format!("{hour:02}")).collect();
        return Some(format!("during the hours {}", all_of(&shown)));
    }
    let phrase = |item: &Item| match *item {
        Item::Stepped { whole: true, step: 1, .. } => "every hour".to_owned(),
        Item::Stepped { whole: true, step, .. } => format!("every {step} hours"),
        Item::Stepped { first, last: 23, step, .. } => format!("every {step} hours starting at {first:02}:00"),
        Item::Stepped { first, last, step, .. } => {
            format!("every {step} hours from {first:02}:00 through {last:02}:59")
        }
        Item::Range { first, last } => format!("from {first:02}:00 to {last:02}:59"),
        Item::Single(hour) => format!("from {hour:02}:00 to {hour:02}:59"),
        Item::Any
        | Item::FromEnd(_)
        | Item::NearestWeekday(_)
        | Item::LastWeekday
        | Item::LastOfMonth(_)
        | Item::NthOfMonth { .. } => String::new(),
    };
    Some(all_of(&items.iter().map(phrase).collect::<Vec<_>>()))
}

/// The part about days, or nothing when all of them count.
fn days(tree: &Tree) -> Option<String> {
    let by_day = (!tree.day.contains(&Item::Any)).then(|| days_of_month(&tree.day));
    let by_weekday = (!tree.weekday.contains(&Item::Any)).then(|| weekdays(&tree.weekday));
    match (by_day, by_weekday) {
        (None, None) => None,
        (Some(days), None) | (None, Some(days)) => Some(days),
        (Some(days), Some(weekdays)) if weekdays.starts_with("on ") => Some(format!("{days} or {weekdays}")),
        (Some(days), Some(weekdays)) => Some(format!("{days} or on {weekdays}")),
    }
}

fn days_of_month(items: &[Item]) -> String {
    if let Some(values) = singles(items) {
        let plural = if values.len() == 1 { "" } else { "s" };
        return format!("on day{plural} {} of the month", all_of(&numbers(&values)));
    }
    let phrase = |item: &Item| match *item {
        Item::Single(day) => format!("day {day}"),
        Item::Range { first, last } => format!("days {first} through {last}"),
        Item::Stepped { whole: true, step, .. } => format!("every {} day starting on day 1", ordinal(step)),
        Item::Stepped { first, last: 31, step, .. } => {
            format!("every {} day starting on day {first}", ordinal(step))
        }
        Item::Stepped { first, last, step, .. } => {
            format!("every {} day from day {first} through {last}", ordinal(step))
        }
        Item::FromEnd(0) => "the last day".to_owned(),
        Item::FromEnd(1) => "the day before the last day".to_owned(),
        Item::FromEnd(days) => format!("the day {days} days before the last day"),
        Item::NearestWeekday(day) => format!("the weekday nearest day {day}"),
        Item::LastWeekday => "the last weekday".to_owned(),
        Item::Any | Item::LastOfMonth(_) | Item::NthOfMonth { .. } => String::new(),
    };
    format!("on {} of the month", all_of(&items.iter().map(phrase).collect::<Vec<_>>()))
}

fn weekdays(items: &[Item]) -> String {
    if let [Item::Range { first, last }] = items {
        return format!("{} through {}", weekday(*first), weekday(*last));
    }
    let phrases = |item: &Item| match *item {
        Item::Range { first, last } => vec![format!("{} through {}", weekday(first), weekday(last))],
        Item::LastOfMonth(day) => vec![format!("the last {} of the month", weekday(day))],
        Item::NthOfMonth { weekday: day, nth } => {
            vec![format!("the {} {} of the month", ORDINALS[usize::from(nth - 1) % 5], weekday(day))]
        }
        Item::Any
        | Item::Single(_)
        | Item::Stepped { .. }
        | Item::FromEnd(_)
        | Item::NearestWeekday(_)
        | Item::LastWeekday => item.values(Field::DayOfWeek).map(|day| weekday(day).to_owned()).collect(),
    };
    format!("on {}", all_of(&each_once(items.iter().flat_map(phrases))))
}

fn months(items: &[Item]) -> Option<String> {
    if items.contains(&Item::Any) {
        return None;
    }
    let phrases = |item: &Item| match *item {
        Item::Range { first, last } => vec![format!("{} through {}", month(first), month(last))],
        _ => item.values(Field::Month).map(|value| month(value).to_owned()).collect(),
    };
    Some(format!("in {}", all_of(&each_once(items.iter().flat_map(phrases)))))
}

fn years(items: Option<&[Item]>) -> Option<String> {
    let items = items.filter(|items| !items.contains(&Item::Any))?;
    let phrase = |item: &Item| match *item {
        Item::Range { first, last } => format!("{first} through {last}"),
        Item::Stepped { first, step, last, .. } if last == Field::Year.max() => {
            format!("every {} year starting in {first}", ordinal(step))
        }
        Item::Stepped { first, step, last, .. } => format!("every {} year from {first} through {last}", ordinal(step)),
        _ => all_of(&item.values(Field::Year).map(|year| year.to_string()).collect::<Vec<_>>()),
    };
    Some(format!("in {}", all_of(&items.iter().map(phrase).collect::<Vec<_>>())))
}

fn weekday(value: u16) -> &'static str {
    WEEKDAYS[usize::from(value) % 7]
}

fn month(value: u16) -> &'static str {
    MONTHS[(usize::from(value) + 11) % 12]
}

/// "other" reads better than "2nd" in "every other day".
fn ordinal(step: u16) -> String {
    match (step, step % 10, step % 100) {
        (1, ..) => "single".to_owned(),
        (2, ..) => "other".to_owned(),
        (_, 1, rest) if rest != 11 => format!("{step}st"),
        (_, 2, rest) if rest != 12 => format!("{step}nd"),
        (_, 3, rest) if rest != 13 => format!("{step}rd"),
        _ => format!("{step}th"),
    }
}

fn numbers(values: &[u16]) -> Vec<String> {
    values.iter().map(u16::to_string).collect()
}

fn each_once(phrases: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for phrase in phrases {
        if !kept.contains(&phrase) {
            kept.push(phrase);
        }
    }
    kept
}

/// "a", "a and b", "a, b and c".
fn all_of(phrases: &[String]) -> String {
    match phrases {
        [] => String::new(),
        [only] => only.clone(),
        [init @ .., last] => format!("{} and {last}", init.join(", ")),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_read_well() {
        for (expression, sentence) in [
            ("0 9 * * MON-FRI", "At 09:00, Monday through Friday"),
            ("0 0 * * *", "At 00:00, every day"),
            ("@daily", "At 00:00, every day"),
            ("@hourly", "Every hour"),
            ("@weekly", "At 00:00, on Sunday"),
            ("@monthly", "At 00:00, on day 1 of the month"),
            ("@yearly", "At 00:00, on day 1 of the month, in January"),
            ("@every 90s", "Every 1m 30s, counted from 1970-01-01 00:00 UTC"),
            ("* * * * *", "Every minute"),
            ("* * * * * *", "Every second"),
            ("*/10 * * * * *", "Every 10 seconds"),
            ("*/15 * * * *", "Every 15 minutes"),
            ("5/15 * * * *", "Every 15 minutes starting at minute 5"),
            ("0-29/10 * * * *", "Every 10 minutes from 0 through 29"),
            ("30 * * * *", "At 30 minutes past every hour"),
            ("1 * * * *", "At 1 minute past every hour"),
            ("5,35 * * * *", "At 5 and 35 minutes past every hour"),
            ("0 */2 * * *", "Every 2 hours"),
            ("0 9-17 * * *", "On the hour, from 09:00 to 17:59"),
            ("30 9-17 * * *", "At 30 minutes past the hour, from 09:00 to 17:59"),
            ("*/15 9-17 * * MON-FRI", "Every 15 minutes, from 09:00 to 17:59, Monday through Friday"),
            ("0 22-2 * * FRI-MON", "On the hour, from 22:00 to 02:59, Friday through Monday"),
            ("30 9,12,17 * * *", "At 09:30, 12:30 and 17:30, every day"),
            ("0 1,2,3,4,5,6,7 * * *", "At 01:00, 02:00, 03:00, 04:00, 05:00, 06:00 and 07:00, every day"),
            ("*/10 8,12 * * *", "Every 10 minutes, during the hours 08 and 12"),
            ("0 0-5,22 * * *", "On the hour, from 00:00 to 05:59 and from 22:00 to 22:59"),
            (
                "0 0 1,L * 1-5,0#1",
                "At 00:00, on day 1 and the last day of the month or on Monday through Friday and the first Sunday of the month",
            ),
            ("15 30 9 * * *", "At 09:30:15, every day"),
            ("30 * * * * *", "At 30 seconds past the minute"),
            ("30 5 * * * *", "At 30 seconds past the minute, at 5 minutes past every hour"),
            ("* 9 * * *", "Every minute, from 09:00 to 09:59"),
            ("0 0 L * *", "At 00:00, on the last day of the month"),
            ("0 0 L-3 * *", "At 00:00, on the day 3 days before the last day of the month"),
            ("0 0 15W * *", "At 00:00, on the weekday nearest day 15 of the month"),
            ("0 0 LW * *", "At 00:00, on the last weekday of the month"),
            ("0 0 1,15 * *", "At 00:00, on days 1 and 15 of the month"),
            ("0 0 1-7 * *", "At 00:00, on days 1 through 7 of the month"),
            ("0 0 */2 * *", "At 00:00, on every other day starting on day 1 of the month"),
            ("0 0 * * FRIL", "At 00:00, on the last Friday of the month"),
            ("0 0 * * 2#3", "At 00:00, on the third Tuesday of the month"),
            ("0 0 * * 1,3,5", "At 00:00, on Monday, Wednesday and Friday"),
            ("0 0 13 * FRI", "At 00:00, on day 13 of the month or on Friday"),
            ("0 0 1 * MON-FRI", "At 00:00, on day 1 of the month or on Monday through Friday"),
            ("0 0 1 */3 *", "At 00:00, on day 1 of the month, in January, April, July and October"),
            ("0 0 * 6-8 *", "At 00:00, in June through August"),
            ("0 0 0 1 1 ? 2030", "At 00:00, on day 1 of the month, in January, in 2030"),
            ("0 0 0 1 1 ? 2030-2032", "At 00:00, on day 1 of the month, in January, in 2030 through 2032"),
        ] {
            assert_eq!(explain(expression, b"").unwrap(), sentence, "{expression}");
        }
    }
}
