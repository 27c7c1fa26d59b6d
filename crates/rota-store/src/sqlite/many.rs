//! Statements over many rows.
//!
//! A statement that changes one run opens a cursor on the table and on each of
//! its indexes, and closes them again: half of what a run costs the writer. The
//! same statement over a few dozen rows does that once. Rows are taken in
//! pieces of fixed sizes, so that few statements need to be kept prepared.

use rusqlite::{CachedStatement, Connection, ToSql};

/// Sizes of the pieces, largest first; each a prepared statement.
const SIZES: [usize; 3] = [32, 8, 1];

/// The largest piece.
pub const ROWS: usize = SIZES[0];

/// A statement in which one part is repeated for each row.
pub struct Many {
    texts: [String; SIZES.len()],
}

impl Many {
    /// `row` is repeated between `head` and `tail`, with commas; its
    /// parameters are written `?`.
    pub fn new(head: &str, row: &str, tail: &str) -> Self {
        Self { texts: SIZES.map(|size| format!("{head}{}{tail}", vec![row; size].join(", "))) }
    }

    /// Runs it over all rows; `bind` puts one row's values, in order.
    pub fn execute<T>(
        &self,
        connection: &Connection,
        rows: &[T],
        bind: impl FnMut(&mut Values<'_, '_>, &T) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.execute_with(connection, &[], rows, bind)
    }

    /// As [`Many::execute`], with values that stand before those of the rows.
    pub fn execute_with<T>(
        &self,
        connection: &Connection,
        first: &[&dyn ToSql],
        rows: &[T],
        mut bind: impl FnMut(&mut Values<'_, '_>, &T) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.each_piece(connection, rows, |statement, piece| {
            let mut values = Values { statement, bound: 0 };
            first.iter().try_for_each(|value| values.put(value))?;
            piece.iter().try_for_each(|row| bind(&mut values, row))?;
            statement.raw_execute().map(drop)
        })
    }

    /// Reads with it; `take` is given what it finds, in no set order.
    pub fn query<T>(
        &self,
        connection: &Connection,
        rows: &[T],
        mut bind: impl FnMut(&mut Values<'_, '_>, &T) -> rusqlite::Result<()>,
        mut take: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.each_piece(connection, rows, |statement, piece| {
            let mut values = Values { statement, bound: 0 };
            piece.iter().try_for_each(|row| bind(&mut values, row))?;
            let mut found = statement.raw_query();
            while let Some(row) = found.next()? {
                take(row)?;
            }
            Ok(())
        })
    }

    fn each_piece<T>(
        &self,
        connection: &Connection,
        mut rows: &[T],
        mut run: impl FnMut(&mut CachedStatement<'_>, &[T]) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        for (size, text) in SIZES.iter().zip(&self.texts) {
            if rows.len() < *size {
                continue;
            }
            let mut statement = connection.prepare_cached(text)?;
            while rows.len() >= *size {
                let (piece, rest) = rows.split_at(*size);
                run(&mut statement, piece)?;
                rows = rest;
            }
        }
        Ok(())
    }
}

/// The values of a statement's parameters, put one after the other.
pub struct Values<'s, 'c> {
    statement: &'s mut CachedStatement<'c>,
    bound: usize,
}

impl Values<'_, '_> {
    pub fn put(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.bound += 1;
        self.statement.raw_bind_parameter(self.bound, value)
    }
}
