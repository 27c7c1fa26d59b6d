//! Tables for people: as wide as the terminal, without lines around them.
//!
//! On a terminal a row stays on one line: columns that say nothing are left out, then
//! those that a table can do without, and what still does not fit is cut short. What is
//! piped is never cut, so that `grep` and `awk` find all of it.

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

/// Columns between one column and the next.
const GAP: usize = 2;
/// A text that may be cut is left so much, or its column is no use.
const CUT_MIN: usize = 12;

pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Columns that a narrow terminal can do without, the first of them first.
    spared: &'static [&'static str],
    /// The column that is cut where something must be.
    cut: Option<&'static str>,
    /// Rows may take several lines.
    tall: bool,
}

impl Table {
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new(), spared: &[], cut: None, tall: false }
    }

    /// What a narrow terminal can do without, the first first, and what may be cut.
    #[must_use]
    pub fn narrowed(self, spared: &'static [&'static str], cut: &'static str) -> Self {
        Self { spared, cut: Some(cut), ..self }
    }

    /// Names on the left and what belongs to them on the right, without a header.
    pub fn fields() -> Self {
        Self { header: Vec::new(), rows: Vec::new(), spared: &[], cut: None, tall: true }
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
    pub fn drawn(mut self, width: Option<u16>, colours: bool) -> String {
        if let Some(width) = width {
            self.narrow(usize::from(width));
        }
        let fits = width.is_some_and(|width| self.cut.is_some() && self.needs() <= usize::from(width));
        let cut = self.header.iter().position(|name| Some(*name) == self.cut);
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
            let names = self.header.iter().map(|name| drawn_cell(&Cell::toned(*name, Tone::Quiet), colours));
            let mut header = Row::from(names.collect::<Vec<_>>());
            header.max_height(1);
            table.set_header(header);
        }
        for cells in &self.rows {
            let mut row = Row::from(cells.iter().map(|cell| drawn_cell(cell, colours)).collect::<Vec<_>>());
            if width.is_some() && !self.tall {
                row.max_height(1);
            }
            table.add_row(row);
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, GAP as u16));
            // What stands first is what other commands are given; half of it is no use.
            if index == 0 || (fits && Some(index) != cut) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        table.lines().flat_map(|line| [line.trim_end().to_owned(), "\n".to_owned()]).collect()
    }
}

/// What becomes of columns on a terminal.
impl Table {
    /// Characters of a column at its widest.
    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
        cells.max().unwrap_or(0).max(self.header.get(column).map_or(0, |name| name.len()))
    }

    /// Columns of the terminal that it needs when only what may be cut is.
    fn needs(&self) -> usize {
        let one = |column: usize| {
            let natural = self.natural(column);
            let cut = self.cut.is_some() && self.header.get(column).copied() == self.cut;
            GAP + if cut { natural.min(CUT_MIN) } else { natural }
        };
        (0..self.header.len()).map(one).sum()
    }

    fn narrow(&mut self, width: usize) {
        let Some(cut) = self.cut else { return };
        for name in self.spared.iter().copied().chain([cut]) {
            let column = self.header.iter().position(|known| *known == name);
            if column.is_some_and(|column| self.rows.iter().all(|row| row[column].text.is_empty())) {
                self.leave_out(name);
            }
        }
        for name in self.spared {
            if self.needs() <= width {
                return;
            }
            self.leave_out(name);
        }
    }

    fn leave_out(&mut self, name: &str) {
        if let Some(column) = self.header.iter().position(|known| *known == name) {
            self.header.remove(column);
            self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
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

    /// The id and the status are what a list of runs is looked at for.
    #[test]
    fn a_narrow_terminal_does_without_what_matters_least() {
        let made = || {
            let mut table = Table::new(&["RUN", "STATUS", "TRIGGER", "TOOK", "NOTE", "REMARK"]);
            table.row([
                "id-1".into(),
                "dead".into(),
                "schedule".into(),
                "4ms".into(),
                "".into(),
                "x".repeat(90).into(),
            ]);
            table.row(["id-2".into(), "succeeded".into(), "manual".into(), "20m3s".into(), "".into(), "".into()]);
            table.narrowed(&["NOTE", "TRIGGER", "TOOK"], "REMARK")
        };
        let header = |width: u16| {
            let text = made().drawn(Some(width), false);
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
            assert!(text.contains("id-2") && text.contains("succeeded") && text.lines().count() == 3, "{text}");
            text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(header(80), "RUN STATUS TRIGGER TOOK REMARK");
        assert_eq!(header(45), "RUN STATUS TOOK REMARK");
        assert_eq!(header(34), "RUN STATUS REMARK");
        assert!(made().drawn(None, false).contains("NOTE"), "what is piped has every column");
    }

    /// A job's name or an error's text must not write to the terminal.
    #[test]
    fn control_characters_are_shown_not_sent() {
        let mut table = Table::new(&["name"]);
        table.row(["a\x1b[2Jb".into()]);
        assert_eq!(table.drawn(None, false).lines().nth(1), Some("a\\u{1b}[2Jb"));
    }
}
