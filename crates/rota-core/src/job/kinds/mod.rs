//! Kinds: what each kind of step is told.
//!
//! These are documents only: an executor reads them after the templates in
//! them have been rendered. Where fields exclude each other the type is an
//! enum, so that an executor never has to choose between two.

mod call;
mod command;
mod file;
mod http;
mod park;
mod sftp;
mod sql;

pub use self::{
    call::{Handler, SubJob},
    command::{Command, Program},
    file::{Column, ColumnType, File, FileFormat, FilePlace},
    http::{Callback, Http, HttpAuth, HttpBody, OAuth2, Signature, Tls, is_of_the_connection},
    park::{Approval, Sleep, Wait},
    sftp::{Login, Places, Sftp, SftpAction},
    sql::Sql,
};

/// The one value that was written, of several that exclude each other.
fn at_most_one<T, const N: usize>(written: [(&str, Option<T>); N]) -> Result<Option<T>, String> {
    let mut found = None;
    for (name, value) in written {
        let Some(value) = value else { continue };
        if let Some((first, _)) = found {
            return Err(format!("`{first}` and `{name}` cannot be combined"));
        }
        found = Some((name, value));
    }
    Ok(found.map(|(_, value)| value))
}

/// Like [`at_most_one`], where one must be written.
fn exactly_one<T, const N: usize>(written: [(&str, Option<T>); N]) -> Result<T, String> {
    let names: Vec<_> = written.iter().map(|(name, _)| format!("`{name}`")).collect();
    at_most_one(written)?.ok_or_else(|| format!("one of {} is needed", names.join(", ")))
}
