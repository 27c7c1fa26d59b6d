//! The page of problems is made from the table, and says the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

/// A page that has gone stale explains codes that are not there.
#[test]
fn the_page_of_problems_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    let made = rota_api::problem::reference();
    if std::env::var_os("ROTA_WRITE_DOCS").is_some() {
        std::fs::write(path, &made).unwrap();
    } else {
        assert_eq!(page, made, "docs/problems.md is not the table; ROTA_WRITE_DOCS=1 writes it");
    }
}
