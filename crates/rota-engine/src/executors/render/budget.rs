//! How much work the templates of one attempt may be, besides their instructions.
//!
//! Fuel counts instructions, but one instruction may read a text of a megabyte: a template
//! of 390 bytes that doubles a text and filters it in a loop took seconds of a thread that
//! others wait for. So whatever reads or copies values charges their size here, the same on
//! every machine, and the budget is that of all templates of one step together.

use std::cell::Cell;

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// Bytes that may be read and copied, nearly: some tens of milliseconds of work.
const WORK_MAX: usize = 32 << 20;
/// What an operation costs whatever it works on. The texts of `in` and of concatenations are
/// only known in part.
pub(super) const OPERATION: usize = 8 << 10;
/// What a template with a loop costs: its fuel is its own, and there may be many of them.
pub(super) const LOOP: usize = 512 << 10;
/// What an element of a list or map costs.
const ELEMENT: usize = 32;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(WORK_MAX) };
}

/// Begins with the templates of another step.
pub(super) fn begin() {
    LEFT.set(WORK_MAX);
}

pub(super) fn charge(work: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(work) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(exhausted()),
    }
}

/// Charges the size of values, with all that is in them.
pub(super) fn charge_for(values: &[Value]) -> Result<(), Error> {
    values.iter().try_for_each(|value| charge_value(value, 0))
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

fn exhausted() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the templates work on more than {} MiB", WORK_MAX >> 20))
}
