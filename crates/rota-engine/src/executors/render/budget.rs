//! How much work the templates of one attempt may be, besides their instructions.
//!
//! Fuel counts instructions, but one instruction may read a text of a megabyte: a template
//! of 390 bytes that doubles a text and filters it in a loop took seconds of a thread that
//! others wait for. So whatever reads or copies values charges their size here, the same on
//! every machine, and the budget is that of all templates of one step together.

use std::cell::Cell;

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::RenderError;
use crate::elsewhere::elsewhere;

/// Bytes that may be read and copied, nearly: some tens of milliseconds of work.
const WORK_MAX: usize = 32 << 20;
/// What is done without going elsewhere.
const WORK_AT_ONCE: usize = 256 << 10;
/// What an operation costs whatever it works on. The texts of concatenations are only known in
/// part.
pub(super) const OPERATION: usize = 8 << 10;
/// What a template with a loop costs: its fuel is its own, and there may be many of them.
pub(super) const LOOP: usize = 512 << 10;
/// What an element of a list or map costs.
const ELEMENT: usize = 32;

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
    let charged = values.iter().try_for_each(|value| charge_value(value, 0));
    LARGEST.set(LARGEST.get().max(before - LEFT.get()));
    charged
}

fn charge_value(value: &Value, depth: usize) -> Result<(), Error> {
    charge(ELEMENT)?;
    match value.kind() {
        ValueKind::String => charge(value.as_str().map_or(0, str::len)),
        // Deeper than any value that is yielded: it will be refused.
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if depth < 64 => {
            let is_map = value.kind() == ValueKind::Map;
            // Each is charged as it is read: a lazy one may have no end in sight.
            for item in value.try_iter()? {
                charge_value(&item, depth + 1)?;
                if is_map {
                    charge_value(&value.get_item(&item)?, depth + 1)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
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
        let mut left = WORK_MAX;
        measure(value, 0, &mut left);
        largest = largest.max(WORK_MAX - left);
    }
    LARGEST.set(largest);
    // A comparison is less work than a copy.
    charge(OPERATION + largest / 4)
}

/// Takes the size of a value off what is left, and stops where nothing is.
fn measure(value: &Value, depth: usize, left: &mut usize) {
    *left = left.saturating_sub(ELEMENT + value.as_str().map_or(0, str::len));
    if *left == 0 || depth >= 64 || !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return;
    }
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter().into_iter().flatten() {
        if *left == 0 {
            return;
        }
        measure(&item, depth + 1, left);
        if let Some(field) = is_map.then(|| value.get_item(&item).ok()).flatten() {
            measure(&field, depth + 1, left);
        }
    }
}

fn exhausted() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the templates work on more than {} MiB", WORK_MAX >> 20))
}
