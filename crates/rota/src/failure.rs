//! Why a command did not do what it was asked.

use std::io;

/// A failure, sorted by what a script would do about it.
#[derive(Debug)]
pub enum Failure {
    /// The arguments or the document are wrong; trying again is useless.
    BadInput {
        code: &'static str,
        message: String,
        /// The text to blame with the bytes of it that are wrong.
        place: Option<(String, std::ops::Range<usize>)>,
    },
    /// Standard input or output failed.
    Output(io::Error),
    /// Something else went wrong on the way.
    Other(anyhow::Error),
    /// Made to leave before it was done.
    Signal { number: u8 },
}

impl Failure {
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput { .. } => 2,
            Self::Output(_) | Self::Other(_) => 1,
            Self::Signal { number } => 128 + *number,
        }
    }

    /// Wrong input that has no place to point at.
    pub fn bad_input(code: &'static str, message: String) -> Self {
        Self::BadInput { code, message, place: None }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
