//! `sftp`: one action on another machine's files.

use serde::{Deserialize, Serialize};

use super::exactly_one;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SftpFields", into = "SftpFields")]
pub struct Sftp {
    pub host: String,
    pub port: Option<u16>,
    pub username: String,
    pub login: Login,
    /// The fingerprint of the host's key; no other machine is talked to.
    pub host_key: String,
    pub action: SftpAction,
    /// Whether directories are followed.
    pub recursive: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    Password(String),
    Key { key: String, passphrase: Option<String> },
}

/// What to do. Paths may hold the wildcards `*` and `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SftpAction {
    Upload(Places),
    Download(Places),
    List(String),
    Move(Places),
    Delete(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Places {
    pub from: String,
    pub to: String,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SftpFields {
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    username: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    passphrase: Option<String>,
    host_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    upload: Option<Places>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download: Option<Places>,
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<String>,
    #[serde(rename = "move", skip_serializing_if = "Option::is_none")]
    moved: Option<Places>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recursive: Option<bool>,
}

impl TryFrom<SftpFields> for Sftp {
    type Error = String;

    fn try_from(fields: SftpFields) -> Result<Self, String> {
        if fields.passphrase.is_some() && fields.key.is_none() {
            return Err("a `passphrase` can be used only with a `key`".to_owned());
        }
        let passphrase = fields.passphrase;
        let login = exactly_one([
            ("password", fields.password.map(Login::Password)),
            ("key", fields.key.map(|key| Login::Key { key, passphrase })),
        ])?;
        let action = exactly_one([
            ("upload", fields.upload.map(SftpAction::Upload)),
            ("download", fields.download.map(SftpAction::Download)),
            ("list", fields.list.map(SftpAction::List)),
            ("move", fields.moved.map(SftpAction::Move)),
            ("delete", fields.delete.map(SftpAction::Delete)),
        ])?;
        Ok(Self {
            host: fields.host,
            port: fields.port,
            username: fields.username,
            login,
            host_key: fields.host_key,
            action,
            recursive: fields.recursive,
        })
    }
}

impl From<Sftp> for SftpFields {
    fn from(sftp: Sftp) -> Self {
        let (password, key, passphrase) = match sftp.login {
            Login::Password(password) => (Some(password), None, None),
            Login::Key { key, passphrase } => (None, Some(key), passphrase),
        };
        let mut fields = Self {
            host: sftp.host,
            port: sftp.port,
            username: sftp.username,
            password,
            key,
            passphrase,
            host_key: sftp.host_key,
            upload: None,
            download: None,
            list: None,
            moved: None,
            delete: None,
            recursive: sftp.recursive,
        };
        match sftp.action {
            SftpAction::Upload(places) => fields.upload = Some(places),
            SftpAction::Download(places) => fields.download = Some(places),
            SftpAction::List(path) => fields.list = Some(path),
            SftpAction::Move(places) => fields.moved = Some(places),
            SftpAction::Delete(path) => fields.delete = Some(path),
        }
        fields
    }
}
