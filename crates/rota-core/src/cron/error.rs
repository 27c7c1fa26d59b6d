//! Why a text is not a cron expression, and which part of it is to blame.
//!
//! A code is for programs and never changes; the place is a byte range of the
//! text as given, so that a terminal or an editor can point at it.

use std::{fmt, ops::Range};

use super::field::Field;

/// What is wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CronErrorKind {
    Empty,
    TooLong,
    NotAscii,
    FieldCount,
    EmptyItem,
    BadItem,
    OutOfRange,
    BadRange,
    BadStep,
    UnknownName,
    NotAllowed,
    UnknownWord,
    BadInterval,
    NeverFires,
}

impl CronErrorKind {
    /// The stable code of this kind.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Empty => "cron_empty",
            Self::TooLong => "cron_too_long",
            Self::NotAscii => "cron_not_ascii",
            Self::FieldCount => "cron_field_count",
            Self::EmptyItem => "cron_empty_item",
            Self::BadItem => "cron_bad_item",
            Self::OutOfRange => "cron_out_of_range",
            Self::BadRange => "cron_bad_range",
            Self::BadStep => "cron_bad_step",
            Self::UnknownName => "cron_unknown_name",
            Self::NotAllowed => "cron_not_allowed",
            Self::UnknownWord => "cron_unknown_word",
            Self::BadInterval => "cron_bad_interval",
            Self::NeverFires => "cron_never_fires",
        }
    }
}

/// Why a text was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronError {
    pub kind: CronErrorKind,
    /// The field to blame, if it is one.
    pub field: Option<Field>,
    /// The bytes of the text to blame.
    pub place: Range<usize>,
    /// Lower-case, without the field's name.
    pub message: String,
}

impl CronError {
    pub(super) fn new(kind: CronErrorKind, place: Range<usize>, message: impl Into<String>) -> Self {
        Self { kind, field: None, place, message: message.into() }
    }

    pub const fn code(&self) -> &'static str {
        self.kind.code()
    }
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            Some(field) => write!(f, "{field}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for CronError {}
