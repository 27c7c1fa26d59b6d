//! Guests: threads whose work may use only a share of a store.
//!
//! A node asks its store on behalf of its own stages, and on behalf of whoever
//! sends it requests. A flood of requests must not make a stage wait, so what is
//! asked on a guest's thread has connections, readers and a queue of its own. The
//! thread is the mark because the API's threads do nothing else; whatever is
//! called on them, however deep, is a guest's.
//!
//! A program that marks no thread has no guests, and loses nothing by it.

use std::cell::Cell;

thread_local! {
    static GUEST: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread works for guests.
pub fn mark_thread() {
    GUEST.set(true);
}

pub(crate) fn is_guest() -> bool {
    GUEST.get()
}
