//! What the program says of itself.

use super::{at_home, said};
use crate::node::{Place, ended};

#[test]
fn the_page_of_the_command_line_is_the_programs_own() {
    let (code, told, _) = ended(&["man", "--markdown"]);
    assert_eq!(code, 0);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md")).unwrap();
    assert!(told == page, "docs/cli.md is out of date: rota man --markdown > docs/cli.md");
}

#[test]
fn completions_and_pages_are_made_for_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (code, told, error) = ended(&["completions", shell]);
        assert_eq!(code, 0, "{error}");
        assert!(told.contains("backfill") && told.contains("redrive"), "{shell}");
    }
    let place = Place::new();
    said(at_home(&place, &["man", "--dir", "pages"])).ok();
    for page in ["rota.1", "rota-job-create.1", "rota-run-logs.1"] {
        let text = std::fs::read_to_string(place.path("home/pages").join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
}

/// bash reads what was made for it.
#[test]
fn bash_takes_its_completions() {
    let (_, script, _) = ended(&["completions", "bash"]);
    let place = Place::new();
    let ask = "COMP_WORDS=(rota job tri); COMP_CWORD=2; _rota rota tri job; echo \"${COMPREPLY[@]}\"";
    place.write("ask", &format!("{script}\n{ask}\n"));
    let mut bash = std::process::Command::new("bash");
    bash.arg(place.path("ask"));
    assert_eq!(said(bash).ok(), "trigger\n");
}

#[test]
fn the_long_help_lists_the_exit_codes() {
    let (code, help, _) = ended(&["--help"]);
    assert_eq!(code, 0);
    for code in ["3        not found", "5        the server cannot be reached", "6        not allowed"] {
        assert!(help.contains(code), "{help}");
    }
}

/// Colours in a pipe are noise in a file.
#[test]
fn nothing_that_is_piped_has_colours() {
    let desk = super::Desk::open();
    desk.rota(&["job", "create", "--name", "a", "--command", "false"]).ok();
    for arguments in [["job", "list"].as_slice(), &["job", "show", "a"], &["apply", "--diff", "-f", "-"]] {
        let said = desk.rota_given(arguments, &super::hello("b"));
        assert!(!said.out.contains('\x1b') && !said.err.contains('\x1b'), "{said:?}");
        assert!(!said.ok().is_empty());
    }
    assert!(desk.node.stop().0.success());
}
