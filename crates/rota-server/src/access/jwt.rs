//! JWTs of somebody else's login.
//!
//! Which algorithms count is said by the operator, never by the token: a list of
//! one kind, for which the key is of that kind too. So a token that names `none`
//! is refused, and so is one that signs by HMAC with the public key of an
//! operator who uses RSA. A `kid` is compared with the names of keys at hand and
//! used for nothing else; headers that would bring a key along are not read.
//!
//! The library checks the signature; what a token claims is checked here, against
//! the `now` that is handed in. Nothing in a token is used before its signature
//! has been found good, except `alg` and `kid`.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode};
use rota_core::access::{Permission, Permissions, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::jwks::KeySet;

/// Bytes of a token that are looked at.
const TOKEN_BYTES_MAX: usize = 8 << 10;
const KID_BYTES_MAX: usize = 256;
const SUBJECT_CHARS_MAX: usize = 200;
/// Clocks of two machines may be so far apart, in seconds.
const LEEWAY: f64 = 60.0;
/// Seconds that can be times: from 1970 to the end of the year 9999. Whatever says another
/// was made by mistake or to last for ever.
const TIMES: std::ops::Range<f64> = 0.0..253_402_300_800.0;
/// A secret that is shorter can be guessed from one token.
const SECRET_BYTES_MIN: usize = 32;
/// The role that speaks for every tenant.
const INSTALLATION_ADMIN: &str = "installation_admin";

/// Where keys come from.
#[derive(Clone)]
pub enum JwtKeys {
    /// A secret that both sides know, for HS256, HS384 and HS512.
    Secret(Vec<u8>),
    /// A public key in PEM.
    Pem(Vec<u8>),
    /// The address of a JSON Web Key Set.
    Set(String),
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret(***)",
            Self::Pem(_) => "Pem(…)",
            Self::Set(_) => "Set(…)",
        })
    }
}

#[derive(Clone, Debug)]
pub struct JwtOptions {
    /// Such as `RS256`; all of one kind.
    pub algorithms: Vec<String>,
    pub keys: JwtKeys,
    /// What `iss` must be, where said.
    pub issuer: Option<String>,
    /// What `aud` must name, where said.
    pub audience: Option<String>,
    /// The claim with the tenant's name; none where everybody belongs to the
    /// default tenant.
    pub tenant_claim: Option<String>,
    /// The claim with a role, or a list of them.
    pub role_claim: String,
    /// The claim with permissions, as a list or separated by spaces.
    pub permissions_claim: String,
}

/// Why a token does not count; for the log, not for whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

/// What a good token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub subject: String,
    pub tenant: Option<String>,
    pub permissions: Permissions,
    pub installation: bool,
}

pub struct Jwt {
    algorithms: Vec<Algorithm>,
    keys: Keys,
    options: JwtOptions,
}

enum Keys {
    One(Box<DecodingKey>),
    Set(KeySet),
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood; none are.
    crit: Option<Value>,
}

impl Jwt {
    pub fn new(options: JwtOptions) -> Result<Self, String> {
        let read = |name: &String| name.parse::<Algorithm>().map_err(|_| format!("`{name}` is not a JWT algorithm"));
        let algorithms: Vec<Algorithm> = options.algorithms.iter().map(read).collect::<Result<_, _>>()?;
        let family = match algorithms.first() {
            Some(first) if algorithms.iter().all(|one| one.family() == first.family()) => first.family(),
            Some(_) => {
                return Err(
                    "JWT algorithms of different kinds cannot share one key; list algorithms of one kind".into()
                );
            }
            None => return Err("no JWT algorithm is listed".into()),
        };
        let unreadable = |error| format!("the JWT key cannot be read as PEM: {error}");
        let keys = match (&options.keys, family) {
            (JwtKeys::Secret(secret), AlgorithmFamily::Hmac) if secret.len() >= SECRET_BYTES_MIN => {
                Keys::One(Box::new(DecodingKey::from_secret(secret)))
            }
            (JwtKeys::Secret(_), AlgorithmFamily::Hmac) => {
                return Err(format!("a JWT secret must have at least {SECRET_BYTES_MIN} bytes"));
            }
            (JwtKeys::Pem(pem), AlgorithmFamily::Rsa) => {
                Keys::One(Box::new(DecodingKey::from_rsa_pem(pem).map_err(unreadable)?))
            }
            (JwtKeys::Pem(pem), AlgorithmFamily::Ec) => {
                Keys::One(Box::new(DecodingKey::from_ec_pem(pem).map_err(unreadable)?))
            }
            (JwtKeys::Pem(pem), AlgorithmFamily::Ed) => {
                Keys::One(Box::new(DecodingKey::from_ed_pem(pem).map_err(unreadable)?))
            }
            (JwtKeys::Set(url), family) if family != AlgorithmFamily::Hmac => Keys::Set(KeySet::new(url)?),
            _ => return Err("HS256, HS384 and HS512 need a secret, the other algorithms need a public key".into()),
        };
        Ok(Self { algorithms, keys, options })
    }

    /// What the token says, if it can be believed at `now`.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Claimed, Refused> {
        let (algorithm, kid) = self.head(token)?;
        let key = match &self.keys {
            Keys::One(key) => (**key).clone(),
            Keys::Set(set) => set.key(kid.as_deref(), algorithm, now).await.ok_or(Refused("its key is unknown"))?,
        };
        let mut validation = Validation::new(algorithm);
        // Only the signature: times are judged by the clock that is handed in.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let claims = decode::<Map<String, Value>>(token, &key, &validation);
        self.claimed(&claims.map_err(|_| Refused("its signature or its form is not valid"))?.claims, now)
    }

    fn head(&self, token: &str) -> Result<(Algorithm, Option<String>), Refused> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refused("too long"));
        }
        let head = token.split('.').next().and_then(|head| URL_SAFE_NO_PAD.decode(head).ok());
        let head: Head =
            head.and_then(|head| serde_json::from_slice(&head).ok()).ok_or(Refused("its header cannot be parsed"))?;
        if head.crit.is_some() {
            return Err(Refused("it requires extensions"));
        }
        if head.kid.as_ref().is_some_and(|kid| kid.len() > KID_BYTES_MAX) {
            return Err(Refused("its key id is too long"));
        }
        let algorithm = head.alg.parse().ok().filter(|algorithm| self.algorithms.contains(algorithm));
        Ok((algorithm.ok_or(Refused("its algorithm is not allowed"))?, head.kid))
    }

    fn claimed(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Claimed, Refused> {
        let now = now.as_second() as f64;
        let number = |name: &str| {
            claims.get(name).map(|value| {
                let time = value.as_f64().ok_or(Refused("a time claim is not a number"))?;
                if TIMES.contains(&time) { Ok(time) } else { Err(Refused("a time claim is not between 1970 and 9999")) }
            })
        };
        let expires = number("exp").transpose()?.ok_or(Refused("it has no expiry"))?;
        if expires + LEEWAY <= now {
            return Err(Refused("it has expired"));
        }
        if number("nbf").transpose()?.is_some_and(|from| from - LEEWAY > now) {
            return Err(Refused("it is not valid yet"));
        }
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if self.options.issuer.as_deref().is_some_and(|issuer| text("iss") != Some(issuer)) {
            return Err(Refused("it is from another issuer"));
        }
        if let Some(audience) = &self.options.audience
            && !words(claims.get("aud"), false).any(|one| one == *audience)
        {
            return Err(Refused("it is for another audience"));
        }
        self.granted(claims)
    }

    fn granted(&self, claims: &Map<String, Value>) -> Result<Claimed, Refused> {
        let subject = claims.get("sub").and_then(Value::as_str).filter(|subject| !subject.is_empty());
        let subject = subject.ok_or(Refused("it has no subject"))?;
        // It is written into logs and the audit log.
        let plain = |c: &char| !c.is_control();
        let subject = subject.chars().filter(plain).take(SUBJECT_CHARS_MAX).collect();
        let tenant = match &self.options.tenant_claim {
            None => None,
            Some(claim) => match claims.get(claim) {
                Some(Value::String(name)) => Some(name.clone()),
                Some(Value::Number(id)) => Some(id.to_string()),
                _ => return Err(Refused("it does not name a tenant")),
            },
        };
        let roles: Vec<String> = words(claims.get(&self.options.role_claim), false).collect();
        let installation = roles.iter().any(|role| role == INSTALLATION_ADMIN);
        let by_role = roles.iter().filter_map(|role| role.parse::<Role>().ok()).map(Role::permissions);
        let by_name = words(claims.get(&self.options.permissions_claim), true);
        let named: Permissions = by_name.filter_map(|name| name.parse::<Permission>().ok()).collect();
        let admin = if installation { Role::Admin.permissions() } else { Permissions::default() };
        let permissions = by_role.fold(named.and(admin), Permissions::and);
        Ok(Claimed { subject, tenant, permissions, installation })
    }
}

/// A claim that is a text or a list of texts. What it holds besides is left out.
fn words(claim: Option<&Value>, by_space: bool) -> impl Iterator<Item = String> {
    let texts: Vec<&str> = match claim {
        Some(Value::String(text)) if by_space => text.split(' ').collect(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    texts.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect::<Vec<_>>().into_iter()
}
