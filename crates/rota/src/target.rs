//! Which server is asked, and as whom: flags before the environment, the
//! environment before the context in use, that before the default.

use std::path::{Path, PathBuf};

use clap::Args;
use rota_client::{Client, Url, parse_address};

use crate::{
    contexts::{Context, Contexts},
    failure::Failure,
    secret,
};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";
pub const SERVER_VARIABLE: &str = "ROTA_SERVER";
pub const TOKEN_VARIABLE: &str = "ROTA_TOKEN";
const AGENT: &str = concat!("rota/", env!("CARGO_PKG_VERSION"));
/// A node that restarts answers the third time; one that is not there is not there.
const TRIES: u32 = 3;

/// The flags of every command that asks a server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server to use [default: `ROTA_SERVER`, that of the current context, or
    /// `http://127.0.0.1:7070`]
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// A file that contains the token [default: `ROTA_TOKEN`, or that of the context]
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// The context to use
    #[arg(long, value_name = "NAME", global = true, conflicts_with = "server")]
    pub context: Option<String>,
    /// The tenant to act for, if you may choose one
    #[arg(long, value_name = "TENANT", global = true)]
    pub tenant: Option<String>,
}

/// A server and who to be there.
#[derive(Clone)]
pub struct Target {
    pub server: Url,
    pub token: Option<String>,
    pub tenant: Option<String>,
}

impl Target {
    pub fn of(args: &ServerArgs) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let contexts = Contexts::load()?;
        let (server, context) = chosen(args, variable(SERVER_VARIABLE), &contexts)?;
        let token = match &args.token_file {
            Some(path) => Some(token_from(path)?),
            None => variable(TOKEN_VARIABLE).or_else(|| context.as_ref()?.token.clone()),
        };
        let tenant = args.tenant.clone().or_else(|| context?.tenant);
        Ok(Self { server: parse_address(&server)?, token: token.as_deref().map(checked).transpose()?, tenant })
    }

    /// A client of the server. Somebody looks on, so it gives up soon.
    pub fn client(&self) -> Result<Client, Failure> {
        let mut builder = Client::builder(self.server.as_str()).agent(AGENT).tries(TRIES);
        if let Some(token) = &self.token {
            builder = builder.token(token);
        }
        if let Some(tenant) = &self.tenant {
            builder = builder.tenant(tenant);
        }
        Ok(builder.build()?)
    }
}

/// The server, and the context it is from: only with that context's own server
/// is its token used.
fn chosen(
    args: &ServerArgs,
    variable: Option<String>,
    contexts: &Contexts,
) -> Result<(String, Option<Context>), Failure> {
    let same = |server: &str| {
        let context = contexts.current().map(|(_, context)| context);
        context.filter(|context| parse_address(&context.server).ok() == parse_address(server).ok()).cloned()
    };
    if let Some(name) = &args.context {
        let context = contexts.named(name)?;
        return Ok((context.server.clone(), Some(context.clone())));
    }
    if let Some(server) = args.server.clone().or(variable) {
        let context = same(&server);
        return Ok((server, context));
    }
    Ok(match contexts.current() {
        Some((_, context)) => (context.server.clone(), Some(context.clone())),
        None => (DEFAULT_SERVER.to_owned(), None),
    })
}

/// A token in a file of its own.
pub fn token_from(path: &Path) -> Result<String, Failure> {
    checked(&secret::from_file("token", path)?)
}

pub fn token_from_stdin() -> Result<String, Failure> {
    checked(&secret::from_stdin("token")?)
}

fn checked(text: &str) -> Result<String, Failure> {
    let token = text.trim();
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(token.to_owned());
    }
    Err(rota_client::Error::BadToken.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let context = |server: &str, token: &str| Context {
            server: server.to_owned(),
            token: Some(token.to_owned()),
            tenant: None,
        };
        Contexts {
            current: Some("a".to_owned()),
            contexts: [
                ("a".to_owned(), context("https://a.example", "for-a")),
                ("b".to_owned(), context("https://b.example", "for-b")),
            ]
            .into(),
        }
    }

    /// A token sent to the wrong server is a token given away.
    #[test]
    fn a_token_goes_only_to_its_own_server() {
        let server = |server: &str| ServerArgs { server: Some(server.to_owned()), ..ServerArgs::default() };
        let context = |name: &str| ServerArgs { context: Some(name.to_owned()), ..ServerArgs::default() };
        let told = |args: &ServerArgs, variable: Option<&str>| {
            let (server, context) = chosen(args, variable.map(str::to_owned), &contexts()).unwrap();
            (server, context.and_then(|context| context.token))
        };
        let a = || ("https://a.example".to_owned(), Some("for-a".to_owned()));
        let b = || ("https://b.example".to_owned(), Some("for-b".to_owned()));
        assert_eq!(told(&ServerArgs::default(), None), a());
        assert_eq!(told(&context("b"), Some("https://c.example")), b());
        assert_eq!(told(&server("https://c.example"), None), ("https://c.example".to_owned(), None));
        assert_eq!(told(&ServerArgs::default(), Some("https://b.example")), ("https://b.example".to_owned(), None));
        assert_eq!(told(&server("https://a.example/"), None).1, Some("for-a".to_owned()));
    }
}
