//! Schema: which releases may use a database.
//!
//! Each step of the schema has a number, and from 18 on the same one in both stores. A
//! database carries the number of its newest step and the oldest schema whose release may
//! still read and write it. A step that only adds leaves the latter alone, so that the
//! release before runs on beside the new one and may be started again; a step that takes
//! away what the release before needs raises it, and comes a release later.

/// Whether a release that knows the schema up to `known` may use a database that is at
/// `found`, and which says itself that releases from `oldest` on may.
pub fn may_use(found: i64, oldest: Option<i64>, known: i64) -> bool {
    found <= known || oldest.is_some_and(|oldest| oldest <= known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_schema_is_used_by_whom_it_names() {
        for (found, oldest, known, may) in [
            (18, Some(18), 18, true),
            (3, None, 18, true),
            (19, Some(18), 18, true),
            (25, Some(18), 18, true),
            (25, Some(19), 18, false),
            (25, None, 18, false),
        ] {
            assert_eq!(may_use(found, oldest, known), may, "{found} {oldest:?} {known}");
        }
    }
}
