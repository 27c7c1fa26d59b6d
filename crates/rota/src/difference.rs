//! What changed between two texts, as a unified diff.

use std::io;

use similar::TextDiff;

use crate::{printer::Printer, table::Tone};

/// Two texts and what they are called.
pub struct Sides {
    pub old_name: String,
    pub old: String,
    pub new_name: String,
    pub new: String,
}

/// The diff; empty where nothing changed.
pub fn unified(sides: &Sides) -> String {
    let diff = TextDiff::from_lines(&sides.old, &sides.new);
    diff.unified_diff().context_radius(3).header(&sides.old_name, &sides.new_name).to_string()
}

/// Prints a diff with its lines in their colours.
pub fn print(text: &str, printer: &mut Printer) -> io::Result<()> {
    for line in text.lines() {
        let tone = match line.as_bytes() {
            [b'+', b'+', ..] | [b'-', b'-', ..] | [b'@', ..] => Tone::Quiet,
            [b'+', ..] => Tone::Good,
            [b'-', ..] => Tone::Bad,
            _ => Tone::Plain,
        };
        let line = printer.toned(tone, &crate::printer::plain(line));
        printer.line(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_one_that_patch_reads() {
        let sides = |old: &str, new: &str| Sides {
            old_name: "a".to_owned(),
            old: old.to_owned(),
            new_name: "b".to_owned(),
            new: new.to_owned(),
        };
        assert_eq!(unified(&sides("x: 1\n", "x: 1\n")), "");
        let text = unified(&sides("x: 1\ny: 2\n", "x: 1\ny: 3\n"));
        assert_eq!(text, "--- a\n+++ b\n@@ -1,2 +1,2 @@\n x: 1\n-y: 2\n+y: 3\n");
    }
}
