//! Which server is asked, and as whom: flags before the environment, the
//! environment before the context in use, that before the default.

use std::{io::Read as _, net::IpAddr, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use url::Url;

use super::{Context, Contexts};
use crate::failure::Failure;

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";
pub const SERVER_VARIABLE: &str = "ROTA_SERVER";
pub const TOKEN_VARIABLE: &str = "ROTA_TOKEN";
/// A token is short; what is longer is some other file.
const TOKEN_BYTES_MAX: u64 = 16 << 10;

/// The flags of every command that asks a server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server to ask [default: `ROTA_SERVER`, the context in use, or
    /// `http://127.0.0.1:7070`]
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// A file that holds the token [default: `ROTA_TOKEN`, or the context's]
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// The context to use, by its name
    #[arg(long, value_name = "NAME", global = true, conflicts_with = "server")]
    pub context: Option<String>,
    /// The tenant to act for, if you may choose
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
        Ok(Self { server: parse_server(&server)?, token: token.map(checked).transpose()?, tenant })
    }

    /// Whether the server is on this machine.
    pub fn is_here(&self) -> bool {
        let host = self.server.host_str().unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
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
        context.filter(|context| parse_server(&context.server).ok() == parse_server(server).ok()).cloned()
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

/// An address of a server; `host:port` means http.
pub fn parse_server(text: &str) -> Result<Url, Failure> {
    let wrong = |why: &str| Failure::bad_input("bad_server", format!("`{text}` is no address of a server: {why}"));
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&whole).map_err(|error| wrong(&error.to_string()))?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
        return Err(wrong("write http://HOST:PORT or https://HOST"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let why = "a name or password in it would be seen by others; log in with a token instead";
        return Err(Failure::bad_input("bad_server", format!("the server's address cannot be used: {why}")));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("it has a query or a fragment"));
    }
    Ok(url)
}

/// A token in a file of its own.
pub fn token_from(path: &std::path::Path) -> Result<String, Failure> {
    let opened = std::fs::File::open(path).with_context(|| format!("cannot read the token in {}", path.display()))?;
    read_token(opened)
}

pub fn token_from_stdin() -> Result<String, Failure> {
    read_token(std::io::stdin().lock())
}

fn read_token(from: impl std::io::Read) -> Result<String, Failure> {
    let mut text = String::new();
    from.take(TOKEN_BYTES_MAX).read_to_string(&mut text).context("cannot read the token")?;
    checked(text.trim().to_owned())
}

fn checked(token: String) -> Result<String, Failure> {
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(token);
    }
    Err(Failure::bad_input("bad_token", "the token is empty or has characters that no token has".to_owned()))
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

    #[test]
    fn an_address_is_an_address() {
        for (text, good) in [
            ("http://127.0.0.1:7070", true),
            ("localhost:7070", true),
            ("https://rota.example/prefix", true),
            ("ftp://x", false),
            ("http://ann:secret@x", false),
            ("http://x?y", false),
            ("", false),
        ] {
            assert_eq!(parse_server(text).is_ok(), good, "{text}");
        }
        let Err(Failure::BadInput { message, .. }) = parse_server("http://ann:s3cret@x") else { panic!() };
        assert!(!message.contains("s3cret"), "{message}");
    }
}
