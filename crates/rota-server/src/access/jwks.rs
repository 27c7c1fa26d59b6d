//! The keys of a JSON Web Key Set, fetched when they are needed.
//!
//! A token whose key is not known makes the set be fetched again, at most once in
//! a while, so that tokens with made-up names do not become requests to somebody
//! else's server. A set that is old is fetched beside the work and used until the
//! new one is there. A fetch that fails leaves the keys as they were: an outage of
//! the login server does not end the work of those who have logged in.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{Jwk, JwkSet, PublicKeyUse},
};
use parking_lot::{Mutex, MutexGuard};
use rota_core::duration::Span;

/// A set that was fetched longer ago is fetched again.
const FRESH: Span = Span::secs(600);
/// Least time between two fetches.
const AGAIN: Span = Span::secs(30);
const FETCH_TIME_MAX: Duration = Duration::from_secs(5);
const SET_BYTES_MAX: usize = 256 << 10;
const KEYS_MAX: usize = 100;

pub struct KeySet(Arc<Shared>);

struct Shared {
    url: String,
    client: reqwest::Client,
    state: Mutex<State>,
    /// Held while the set is fetched, so that it is fetched once.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    keys: Vec<Key>,
    fetched_at: Option<Timestamp>,
    tried_at: Option<Timestamp>,
}

#[derive(Clone)]
struct Key {
    id: Option<String>,
    algorithm: Option<Algorithm>,
    decoding: DecodingKey,
}

impl State {
    /// The key of this name; without a name the only one that fits.
    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let fits = |key: &&Key| {
            key.decoding.family() == algorithm.family() && key.algorithm.is_none_or(|named| named == algorithm)
        };
        let named = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        let mut found = self.keys.iter().filter(fits).filter(named);
        match (found.next(), found.next()) {
            (Some(only), None) => Some(only.decoding.clone()),
            _ => None,
        }
    }

    fn may_fetch(&self, now: Timestamp) -> bool {
        self.tried_at.is_none_or(|tried| AGAIN.after(tried) <= now)
    }

    fn is_old(&self, now: Timestamp) -> bool {
        self.fetched_at.is_none_or(|fetched| FRESH.after(fetched) <= now)
    }
}

impl KeySet {
    /// Keys decide who is let in, so they come over TLS, or from this machine.
    pub fn new(url: &str) -> Result<Self, String> {
        let parsed =
            reqwest::Url::parse(url).map_err(|error| format!("the JWKS address is not a valid URL: {error}"))?;
        let local = matches!(parsed.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        if parsed.scheme() != "https" && !(parsed.scheme() == "http" && local) {
            return Err("the JWKS address must be https".into());
        }
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(FETCH_TIME_MAX)
            .user_agent(concat!("rota/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("the JWKS address cannot be used: {error}"))?;
        let shared =
            Shared { url: url.to_owned(), client, state: Mutex::default(), fetching: tokio::sync::Mutex::default() };
        Ok(Self(Arc::new(shared)))
    }

    pub async fn key(&self, id: Option<&str>, algorithm: Algorithm, now: Timestamp) -> Option<DecodingKey> {
        let (found, old, may) = self.0.look(id, algorithm, now);
        match found {
            Some(key) => {
                if old && may {
                    let shared = Arc::clone(&self.0);
                    tokio::spawn(async move { shared.refresh(now).await });
                }
                Some(key)
            }
            None if may => {
                self.0.refresh(now).await;
                self.0.look(id, algorithm, now).0
            }
            None => None,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn look(&self, id: Option<&str>, algorithm: Algorithm, now: Timestamp) -> (Option<DecodingKey>, bool, bool) {
        let state = self.lock();
        (state.find(id, algorithm), state.is_old(now), state.may_fetch(now))
    }

    async fn refresh(&self, now: Timestamp) {
        let _one = self.fetching.lock().await;
        {
            let mut state = self.lock();
            if !state.may_fetch(now) {
                return;
            }
            state.tried_at = Some(now);
        }
        match self.fetch().await {
            Ok(keys) => {
                let mut state = self.lock();
                state.keys = keys;
                state.fetched_at = Some(now);
            }
            Err(why) => tracing::warn!(url = self.url, why, "the keys of JWTs could not be fetched; the old ones stay"),
        }
    }

    async fn fetch(&self) -> Result<Vec<Key>, String> {
        let mut answer = self.client.get(&self.url).send().await.map_err(|error| error.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("the server answered {}", answer.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| error.to_string())? {
            if body.len() + chunk.len() > SET_BYTES_MAX {
                return Err(format!("the key set has more than {SET_BYTES_MAX} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        let set: JwkSet = serde_json::from_slice(&body).map_err(|error| format!("it is not a key set: {error}"))?;
        let keys: Vec<Key> = set.keys.iter().filter_map(usable).take(KEYS_MAX).collect();
        if keys.is_empty() { Err("it contains no usable key".into()) } else { Ok(keys) }
    }
}

/// A public key for signatures. A set that holds a secret by mistake gives none.
fn usable(jwk: &Jwk) -> Option<Key> {
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    if key.family() == jsonwebtoken::AlgorithmFamily::Hmac {
        return None;
    }
    let algorithm = match common.key_algorithm {
        Some(named) => Some(named.to_string().parse().ok()?),
        None => None,
    };
    Some(Key { id: common.key_id.clone(), algorithm, decoding: key })
}
