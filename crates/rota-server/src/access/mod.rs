//! Access: who asks, for which tenant, and whether they may.
//!
//! Every route of the API names what it needs in the type of its first
//! argument, [`May<Permission>`](May), so that none can forget to ask. A caller
//! sees its own tenant and nothing else; whoever speaks for the installation
//! chooses a tenant by header.
//!
//! A caller proves who it is by an API token or a JWT in `Authorization`, or by a
//! session's cookie. Nothing that was proved is remembered: a token and a session
//! are looked up with every request, so that one that was revoked stops at once,
//! on every node. A token that is presented counts, also where no login is asked
//! for: one that no longer holds is told instead of being overlooked. A cookie does
//! not, for browsers send old ones along unasked.
//!
//! Not here: TLS, which a proxy does, and what objects belong to a tenant, which
//! the routes ask the store.

pub mod audit;
mod jwks;
mod jwt;
mod limit;
mod login;
mod recheck;
mod secret;
mod tenants;
pub mod wire;

use std::{
    marker::PhantomData,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, Method, header, request::Parts},
};
use jiff::Timestamp;
use rota_api::problem::Code;
use rota_core::{
    access::{Permission, Permissions, Role, Secret, SecretDigest, SecretKind, Standing, is_use_news, standing},
    duration::Span,
    ids::TenantId,
    quota::Quotas,
    store::{Tenant, Tier},
};
use rota_engine::{Engine, View};
use serde_json::Value;

use self::{audit::Trail, jwt::Jwt, login::Passwords, recheck::Answers, tenants::Tenants};
pub use self::{
    jwt::{JwtKeys, JwtOptions},
    limit::too_many,
    login::hash_password,
    recheck::Recheck,
    secret::new_secret,
};
use crate::{Node, problem::Problem, query::refuse_unread};

/// The cookie of a session.
pub const COOKIE: &str = "rota_session";
/// Who asks where no login is asked for.
const NOBODY: &str = "anonymous";

/// Whether callers must say who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// Whoever says nothing is the single tenant's administrator. For loopback.
    #[default]
    Off,
    Required,
}

/// How callers prove who they are.
#[derive(Clone, Debug)]
pub struct AccessOptions {
    pub login: Login,
    /// Of a token that speaks for the installation as long as this process
    /// lives, for the first hour of an installation.
    pub admin: Option<SecretDigest>,
    /// How long a session lasts.
    pub session_keep: Span,
    pub jwt: Option<JwtOptions>,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self { login: Login::Off, admin: None, session_keep: Span::secs(12 * 3_600), jwt: None }
    }
}

/// Everything that decides about callers on one node.
#[derive(Default)]
pub struct Access {
    options: AccessOptions,
    jwt: Option<Jwt>,
    answers: Answers,
    pub passwords: Passwords,
    pub tenants: Tenants,
}

impl Access {
    /// Refuses options that cannot work, and says why.
    pub fn new(options: AccessOptions) -> Result<Self, String> {
        let jwt = options.jwt.clone().map(Jwt::new).transpose()?;
        Ok(Self { options, jwt, ..Self::default() })
    }

    pub fn session_keep(&self) -> Span {
        self.options.session_keep
    }
}

/// How a caller proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Token,
    Jwt,
    Session {
        digest: SecretDigest,
        expires_at: Timestamp,
    },
    /// No login is asked for.
    Open,
}

impl Via {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Jwt => "jwt",
            Self::Session { .. } => "session",
            Self::Open => "open",
        }
    }
}

/// Whoever sent a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant that this request is about.
    pub tenant: TenantId,
    /// As it is written into trails, versions and the audit log.
    pub who: String,
    pub permissions: Permissions,
    /// May speak for every tenant.
    pub installation: bool,
    pub via: Via,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// The addresses that count as one caller: an IPv4 address, or an IPv6 network of 64
/// bits, all of which one machine usually has to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl Network {
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }
}

/// What a route asks of its caller.
pub trait Need: Send + Sync + 'static {
    /// None where it is enough to be known.
    const PERMISSION: Option<Permission>;
    /// Only those who speak for the installation.
    const INSTALLATION: bool = false;
}

macro_rules! permissions {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Need for $name {
            const PERMISSION: Option<Permission> = Some(Permission::$name);
        })*
    };
}

permissions! {
    JobRead,
    JobWrite,
    /// Trigger, pause, resume, backfill.
    JobExecute,
    JobDelete,
    RunRead,
    /// Cancel, retry, redrive, discard.
    RunCancel,
    Admin,
}

/// Anybody who is known.
#[derive(Clone, Copy, Debug)]
pub struct Known;

impl Need for Known {
    const PERMISSION: Option<Permission> = None;
}

/// An administrator of the installation.
#[derive(Clone, Copy, Debug)]
pub struct Installation;

impl Need for Installation {
    const PERMISSION: Option<Permission> = Some(Permission::Admin);
    const INSTALLATION: bool = true;
}

/// Figures of the whole node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRead;

impl Need for NodeRead {
    const PERMISSION: Option<Permission> = Some(Permission::RunRead);
    const INSTALLATION: bool = true;
}

/// A need that only those fulfil who speak for the installation.
pub trait OfInstallation: Need {}

impl OfInstallation for Installation {}
impl OfInstallation for NodeRead {}

/// A caller who may do what `P` names, and the view of the tenant that the request is about.
/// The engine itself is for those who speak for the installation.
pub struct May<P> {
    pub view: View,
    engine: Engine,
    pub caller: Caller,
    /// Of the tenant that the request is about.
    pub quotas: Quotas,
    trail: Trail,
    permission: PhantomData<P>,
}

impl<P: OfInstallation> May<P> {
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl<P> May<P> {
    /// Writes down what this request changed. A request that changes something
    /// and does not come here is written down all the same, without details.
    pub fn changed(
        &self,
        action: &'static str,
        object: impl std::fmt::Display,
        before: Option<Value>,
        after: Option<Value>,
    ) {
        self.trail.changed(action, object.to_string(), before, after);
    }

    /// The tenant that the request is about.
    pub async fn tenant(&self, node: &Node) -> Result<Arc<Tenant>, Problem> {
        let found = node.access().tenants.by_id(self.caller.tenant, &self.engine).await?;
        found.ok_or_else(|| Problem::no_such("tenant"))
    }

    /// Refuses a tenant whose tier has no dead letters.
    pub fn has_dead_letters(&self) -> Result<(), Problem> {
        self.quotas.dead_letter_access().map_or(Ok(()), |refusal| Err(Problem::not_in_tier(&refusal)))
    }

    /// Keeps what was written down so far, for a request that goes on after its
    /// answer has begun to leave.
    pub async fn keep_changes(&self) {
        self.trail.keep(&self.engine, None).await;
    }

    /// Nothing was changed that anybody would look for in the audit log: a dry
    /// run, a look, a worker's exchange.
    pub fn changed_nothing(&self) {
        self.trail.exempt();
    }
}

impl<P: Need> FromRequestParts<Node> for May<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, node: &Node) -> Result<Self, Problem> {
        let engine = node.engine().ok_or_else(|| Problem::not_ready("the node is starting"))?.clone();
        let access = node.access();
        let (caller, quotas) = access.caller(parts, node, &engine).await?;
        limit::count(&engine, caller.tenant, &quotas).await?;
        allowed::<P>(&caller)?;
        refuse_unread(parts)?;
        let trail = parts.extensions.get::<Trail>().cloned().unwrap_or_default();
        trail.asked_by(&caller);
        let view = engine.view(caller.tenant);
        Ok(Self { view, engine, caller, quotas, trail, permission: PhantomData })
    }
}

fn allowed<P: Need>(caller: &Caller) -> Result<(), Problem> {
    if let Some(permission) = P::PERMISSION.filter(|permission| !caller.permissions.holds(*permission)) {
        return Err(Problem::new(Code::Forbidden, format!("this requires the permission {permission}")));
    }
    if P::INSTALLATION && !caller.installation {
        return Err(Problem::new(
            Code::Forbidden,
            "this requires a token or user that acts for the whole installation",
        ));
    }
    Ok(())
}

/// The same words for everything that is wrong with a token, so that guessing
/// teaches nothing.
pub fn unknown() -> Problem {
    Problem::new(Code::Unauthenticated, "the token or session is unknown, expired or revoked")
}

impl Access {
    /// Who asks, for the tenant that the request is about, and that tenant's quotas.
    async fn caller(&self, parts: &Parts, node: &Node, engine: &Engine) -> Result<(Caller, Quotas), Problem> {
        let (caller, home) = self.identify(parts, node, engine).await?;
        let tenant = self.chosen(&parts.headers, &caller, home, engine).await?;
        let quotas = engine.node().options.tiers.of_tenant(&tenant);
        Ok((Caller { tenant: tenant.id, ..caller }, quotas))
    }

    /// Who asks, and the tenant it belongs to.
    async fn identify(&self, parts: &Parts, node: &Node, engine: &Engine) -> Result<(Caller, TenantId), Problem> {
        if let Some(credentials) = parts.headers.get(header::AUTHORIZATION) {
            let text = credentials.to_str().map_err(|_| unknown())?;
            let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(Problem::new(Code::Unauthenticated, "send `Authorization: Bearer TOKEN`"));
            }
            return self.by_bearer(token.trim(), node, engine).await;
        }
        match self.options.login {
            Login::Off => {
                let permissions = Role::Admin.permissions();
                let who = NOBODY.to_owned();
                let tenant = node.tenant()?;
                Ok((Caller { tenant, who, permissions, installation: true, via: Via::Open }, tenant))
            }
            Login::Required => {
                if let Some(cookie) = cookie(&parts.headers) {
                    same_origin(parts)?;
                    return self.by_session(&cookie, engine).await;
                }
                let detail = "this server requires a login: send `Authorization: Bearer TOKEN`, or log in";
                Err(Problem::new(Code::Unauthenticated, detail))
            }
        }
    }

    async fn by_bearer(&self, text: &str, node: &Node, engine: &Engine) -> Result<(Caller, TenantId), Problem> {
        // Compared by digest: how long it takes says nothing about the token.
        if self.options.admin.is_some_and(|admin| admin == SecretDigest::of(text)) {
            let tenant = node.tenant()?;
            let permissions = Role::Admin.permissions();
            let who = format!("token:{ADMIN_VARIABLE}");
            return Ok((Caller { tenant, who, permissions, installation: true, via: Via::Token }, tenant));
        }
        if let Some(secret) = Secret::parse(SecretKind::Token, text) {
            return by_token(&secret, engine).await;
        }
        let jwt = self.jwt.as_ref().ok_or_else(unknown)?;
        let claimed = jwt.verify(text, engine.now()).await.map_err(|refused| {
            tracing::debug!(why = refused.0, "a JWT was refused");
            unknown()
        })?;
        let tenant = match &claimed.tenant {
            Some(name) => self.tenants.named(name, engine).await?.ok_or_else(unknown)?.id,
            None => node.tenant()?,
        };
        let caller = Caller {
            tenant,
            who: format!("jwt:{}", claimed.subject),
            permissions: claimed.permissions,
            installation: claimed.installation,
            via: Via::Jwt,
        };
        Ok((caller, tenant))
    }

    async fn by_session(&self, secret: &Secret, engine: &Engine) -> Result<(Caller, TenantId), Problem> {
        let digest = secret.digest();
        let found = engine.store().find_sessions(&[digest]).await?.pop().flatten();
        let (session, user) = found
            .filter(|(session, _)| standing(Some(session.expires_at), None, engine.now()) == Standing::Good)
            .ok_or_else(unknown)?;
        let caller = Caller {
            tenant: user.tenant,
            who: user.name,
            permissions: user.role.permissions(),
            installation: user.installation,
            via: Via::Session { digest, expires_at: session.expires_at },
        };
        Ok((caller, user.tenant))
    }

    /// The tenant that a request is about. For everybody but those who speak for
    /// the installation it is their own, and another's does not exist.
    async fn chosen(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
        home: TenantId,
        engine: &Engine,
    ) -> Result<Arc<Tenant>, Problem> {
        let no_such = || Problem::no_such("tenant");
        let asked = headers.get(rota_api::TENANT).map(|asked| asked.to_str().map_err(|_| no_such())).transpose()?;
        let found = match asked {
            Some(asked) => self.tenants.named(asked, engine).await?.ok_or_else(no_such)?,
            None => match self.tenants.by_id(home, engine).await {
                Ok(found) => found.ok_or_else(no_such)?,
                // Above all when the store is away must its operator see what the
                // node counts, and they have no limits.
                Err(_) if caller.installation => {
                    Arc::new(Tenant { id: home, name: String::new(), tier: Tier::Unlimited, quotas: None })
                }
                Err(problem) => return Err(problem),
            },
        };
        if found.id == home || caller.installation { Ok(found) } else { Err(no_such()) }
    }
}

/// The variable of a token for the first hour of an installation.
pub const ADMIN_VARIABLE: &str = "ROTA_ADMIN_TOKEN";

async fn by_token(secret: &Secret, engine: &Engine) -> Result<(Caller, TenantId), Problem> {
    let now = engine.now();
    let found = engine.store().find_tokens(&[secret.digest()]).await?.pop().flatten();
    let token = found.filter(|token| token.standing(now) == Standing::Good).ok_or_else(unknown)?;
    if is_use_news(token.last_used_at, now) {
        let (store, id) = (Arc::clone(engine.store()), token.id);
        // The caller does not wait for it, and nothing is lost with it.
        tokio::spawn(async move {
            if let Err(error) = store.touch_tokens(&[(id, now)]).await {
                tracing::debug!(%error, "the use of a token could not be recorded");
            }
        });
    }
    let caller = Caller {
        tenant: token.tenant,
        who: format!("token:{}", token.name),
        permissions: token.permissions,
        installation: token.installation,
        via: Via::Token,
    };
    Ok((caller, token.tenant))
}

/// The session's secret, where the request has a cookie that looks like one.
fn cookie(headers: &HeaderMap) -> Option<Secret> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == COOKIE)?;
    Secret::parse(SecretKind::Session, value)
}

/// A cookie travels with every request that a browser makes, whoever wrote the
/// page. One that changes something must therefore come from a page of ours: the
/// browser says so, and a page cannot make it lie.
fn same_origin(parts: &Parts) -> Result<(), Problem> {
    if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    if comes_from_us(parts) { Ok(()) } else { Err(Problem::wrong_origin()) }
}

/// Whether a browser says that a page of this very host asks.
fn comes_from_us(parts: &Parts) -> bool {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin";
    }
    let host = parts.uri.authority().map(axum::http::uri::Authority::as_str).or_else(|| text("host"));
    let origin = text("origin").and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    matches!((host, origin), (Some(host), Some(origin)) if host.eq_ignore_ascii_case(origin))
}

/// A browser asks that says it shows a page of another site.
pub fn is_foreign_page(parts: &Parts) -> bool {
    let says = parts.headers.contains_key("sec-fetch-site") || parts.headers.contains_key(header::ORIGIN);
    says && !comes_from_us(parts)
}

#[cfg(test)]
mod tests;
