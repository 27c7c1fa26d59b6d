//! `file`: reads rows, reshapes them, writes them or hands them on.

use serde::{Deserialize, Serialize};

use crate::choice::choices;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub read: FilePlace,
    /// The columns to keep, in this order; nothing written keeps all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Column>,
    /// An expression over `row`; rows where it is not true are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Nothing written hands the rows on as output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<FilePlace>,
    /// More rows than this in the output are a failure, not a cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_max: Option<u32>,
}

/// A file among the run's files, and how it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePlace {
    pub path: String,
    /// Nothing written goes by the ending of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<FileFormat>,
    /// Of CSV; one character.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<char>,
    /// Whether the first row of CSV or XLSX names the columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// Of XLSX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sheet: Option<String>,
}

choices! {
    FileFormat {
        Csv = "csv",
        Ndjson = "ndjson",
        Json = "json",
        Xlsx = "xlsx",
        Parquet = "parquet",
    }
}

impl FileFormat {
    /// The format that the ending of a path names.
    pub fn of_path(path: &str) -> Option<Self> {
        let (_, ending) = path.rsplit_once('.')?;
        Self::ALL.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(ending))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    pub from: String,
    /// Nothing written keeps the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub convert_to: Option<ColumnType>,
}

choices! {
    ColumnType {
        Text = "text",
        Integer = "integer",
        Float = "float",
        Decimal = "decimal",
        Boolean = "boolean",
        Date = "date",
        Timestamp = "timestamp",
    }
}
