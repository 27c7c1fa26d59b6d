//! How much work the templates of one attempt may be, besides their instructions.
//!
//! Fuel counts instructions, but one instruction may read a text of a megabyte: a template
//! of 390 bytes that doubles a text and filters it in a loop took seconds of a thread that
//! others wait for. So whatever reads or copies values charges their size here, the same on
//! every machine, and the budget is that of all templates of one step together.

use std::cell::Cell;

use minijinja::{Error, ErrorKind, Value, value::ValueKind};
use rota_core::evaluation::templates::{ELEMENT, OPERATION, WORK_AT_ONCE, WORK_MAX};

use super::RenderError;
use crate::elsewhere::elsewhere;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(WORK_MAX) };
    /// The most that was charged for at once.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    /// The longest text that something was added to.
    static LONGEST: Cell<usize> = const { Cell::new(0) };
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

/// Fills in the templates of one step.
///
/// Most are done in microseconds, and where they are asked for. What takes more is begun
/// again where it holds up nobody.
pub(super) fn within<T>(fill_in: impl Fn() -> Result<T, RenderError>) -> Result<T, RenderError> {
    begin(WORK_AT_ONCE);
    let done = fill_in();
    if !EXHAUSTED.get() {
        return done;
    }
    elsewhere(|| {
        begin(WORK_MAX);
        fill_in()
    })
}

fn begin(work: usize) {
    LEFT.set(work);
    LARGEST.set(0);
    LONGEST.set(0);
    EXHAUSTED.set(false);
}

pub(super) fn charge(work: usize) -> Result<(), Error> {
    let Some(left) = LEFT.get().checked_sub(work) else {
        EXHAUSTED.set(true);
        return Err(exhausted());
    };
    LEFT.set(left);
    Ok(())
}

/// Charges the size of values, with all that is in them.
pub(super) fn charge_for(values: &[Value]) -> Result<(), Error> {
    let before = LEFT.get();
    // A lazy one may have no end in sight, so each element is charged as it is read.
    let charged = values.iter().try_for_each(|value| walk(value, 0, true, &mut charge));
    LARGEST.set(LARGEST.get().max(before - LEFT.get()));
    charged
}

/// Spends the size of a value and of all that is in it, part by part, as long as there is
/// something left to spend. What is lazy is only made for a walk that says so.
fn walk(
    value: &Value,
    depth: usize,
    lazy: bool,
    spend: &mut impl FnMut(usize) -> Result<(), Error>,
) -> Result<(), Error> {
    spend(ELEMENT + value.as_str().map_or(0, str::len))?;
    let is_map = match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq => false,
        ValueKind::Iterable if lazy => false,
        _ => return Ok(()),
    };
    // Deeper than any value that is yielded: it will be refused.
    if depth >= 64 {
        return Ok(());
    }
    for item in value.try_iter()? {
        walk(&item, depth + 1, lazy, spend)?;
        if is_map {
            walk(&value.get_item(&item)?, depth + 1, lazy, spend)?;
        }
    }
    Ok(())
}

/// Charges for a text that another is added to, which may be as long as any before.
pub(super) fn charge_addition(length: usize) -> Result<(), Error> {
    LONGEST.set(LONGEST.get().max(length));
    charge(OPERATION / 4 + length + LONGEST.get() / 8)
}

/// Charges a search through something that is not at hand: it may be any of these values, or
/// the largest that was charged for before.
pub(super) fn charge_search(values: &[Value]) -> Result<(), Error> {
    let mut largest = LARGEST.get();
    for value in values {
        largest = largest.max(size(value));
    }
    LARGEST.set(largest);
    // A comparison is less work than a copy.
    charge(OPERATION + largest / 4)
}

/// The size of a value as it is charged, up to the whole budget.
fn size(value: &Value) -> usize {
    let mut left = WORK_MAX;
    let walked = walk(value, 0, false, &mut |work| {
        left = left.checked_sub(work).ok_or_else(exhausted)?;
        Ok(())
    });
    // What cannot be walked to its end may be as large as anything.
    walked.map_or(WORK_MAX, |()| WORK_MAX - left)
}

fn exhausted() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the templates work on more than {} MiB", WORK_MAX >> 20))
}
