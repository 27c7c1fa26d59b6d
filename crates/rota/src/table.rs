//! Tables for people: as wide as the terminal, without lines around them.
//!
//! On a terminal a row stays on one line and what does not fit is cut short; what
//! is piped is never cut, so that `grep` and `awk` find all of it.

use std::fmt::Display;

use comfy_table::{Cell as Drawn, CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, presets::NOTHING};

use crate::printer::plain;

/// What a word means for whoever looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
    Busy,
    Quiet,
}

impl Tone {
    const fn colour(self) -> Option<Color> {
        match self {
            Self::Plain => None,
            Self::Good => Some(Color::Green),
            Self::Bad => Some(Color::Red),
            Self::Busy => Some(Color::Yellow),
            Self::Quiet => Some(Color::DarkGrey),
        }
    }

    /// The text in this tone's colour.
    pub fn painted(self, text: &str) -> String {
        use anstyle::AnsiColor::{BrightBlack, Green, Red, Yellow};
        let colour = match self {
            Self::Plain => return text.to_owned(),
            Self::Good => Green,
            Self::Bad => Red,
            Self::Busy => Yellow,
            Self::Quiet => BrightBlack,
        };
        let style = colour.on_default();
        format!("{style}{text}{style:#}")
    }
}

/// One field of a row.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
    right: bool,
}

impl Cell {
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone, right: false }
    }

    /// A number, set to the right.
    pub fn number(number: impl Display) -> Self {
        Self { text: format!("{number}"), tone: Tone::Plain, right: true }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Rows may take several lines.
    tall: bool,
}

impl Table {
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new(), tall: false }
    }

    /// Names on the left and what belongs to them on the right, without a header.
    pub fn fields() -> Self {
        Self { header: Vec::new(), rows: Vec::new(), tall: true }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// One line of a table of fields; one that is empty is left out.
    pub fn field(&mut self, name: &str, value: impl Into<Cell>) {
        let value = value.into();
        if !value.text.is_empty() {
            self.rows.push(vec![Cell::toned(format!("{name}:"), Tone::Quiet), value]);
        }
    }

    /// The text of it, at most so wide where there is a bound.
    pub fn drawn(self, width: Option<u16>, colours: bool) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_truncation_indicator("…");
        // Whether there are colours has been decided; the library is not to ask again.
        table.force_no_tty();
        if colours {
            table.enforce_styling();
        }
        match width {
            Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        if !self.header.is_empty() {
            table.set_header(self.header.iter().map(|name| drawn_cell(&Cell::toned(*name, Tone::Quiet), colours)));
        }
        for cells in &self.rows {
            let mut row = Row::from(cells.iter().map(|cell| drawn_cell(cell, colours)).collect::<Vec<_>>());
            if width.is_some() && !self.tall {
                row.max_height(1);
            }
            table.add_row(row);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        // What stands first is what other commands are given; half of it is no use.
        if let Some(first) = table.column_mut(0) {
            first.set_constraint(ColumnConstraint::ContentWidth);
        }
        table.lines().flat_map(|line| [line.trim_end().to_owned(), "\n".to_owned()]).collect()
    }
}

fn drawn_cell(cell: &Cell, colours: bool) -> Drawn {
    let drawn = Drawn::new(plain(&cell.text));
    let drawn = if cell.right { drawn.set_alignment(CellAlignment::Right) } else { drawn };
    match cell.tone.colour().filter(|_| colours) {
        Some(colour) => drawn.fg(colour),
        None => drawn,
    }
}

/// Columns of the terminal.
pub fn terminal_width() -> u16 {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    said.or_else(|| comfy_table::Table::new().width()).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_is_not_cut_and_has_no_colours() {
        let mut table = Table::new(&["name", "runs"]);
        let long = "x".repeat(300);
        table.row([Cell::toned(long.clone(), Tone::Bad), Cell::number(7)]);
        let text = table.drawn(None, false);
        assert!(text.contains(&long) && !text.contains('\x1b'), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
    }

    /// An id that was cut cannot be given to the next command.
    #[test]
    fn a_narrow_terminal_cuts_remarks_but_never_what_stands_first() {
        let mut table = Table::new(&["RUN", "JOB", "REMARK"]);
        let id = "01a1e07f-c3c0-7947-92e8-c89b3ffe2965";
        table.row([id.into(), "a-job-with-a-name".into(), "a long story about a file that was not there".into()]);
        let text = table.drawn(Some(60), false);
        assert!(text.contains(id) && text.contains('…'), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    /// A job's name or an error's text must not write to the terminal.
    #[test]
    fn control_characters_are_shown_not_sent() {
        let mut table = Table::new(&["name"]);
        table.row(["a\x1b[2Jb".into()]);
        assert_eq!(table.drawn(None, false).lines().nth(1), Some("a\\u{1b}[2Jb"));
    }
}
