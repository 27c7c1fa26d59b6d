//! Path and query parameters, read within bounds.

use axum::{
    extract::{FromRequestParts, MatchedPath, Path},
    http::{Method, request::Parts},
};
use rota_api::page::{PAGE, PAGE_MAX, Page};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::IntoParams;

use crate::{bounds::Place, cursor, problem::Problem};

/// Bytes of a query that are read.
pub const QUERY_BYTES_MAX: usize = 8 << 10;
/// Bytes of the items of a page, after which it ends and has a next one.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
/// Items that are fetched at once.
const SLICE: u32 = 200;
/// The same of items that may be large.
const LARGE_SLICE: u32 = 16;

/// Requests that change something and have a query: whatever is wrong in it is refused as it is
/// read.
const READ: [(Method, &str); 4] = [
    (Method::POST, "/api/v1/bulk/runs"),
    (Method::POST, "/api/v1/bulk/jobs"),
    (Method::DELETE, "/api/v1/jobs/{job}"),
    (Method::POST, "/api/v1/preview"),
];

/// Refuses the query of a request that reads none: whoever writes `?dry_run=true` where that
/// belongs into the body wants anything but to have it ignored.
pub fn refuse_unread(parts: &Parts) -> Result<(), Problem> {
    let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    let is_read = || READ.iter().any(|(method, path)| *method == parts.method && route == Some(*path));
    match parts.uri.query() {
        Some(query) if !query.is_empty() && !parts.method.is_safe() && !is_read() => {
            Err(Problem::bad_request("this request has no query parameters; write its fields in the body"))
        }
        _ => Ok(()),
    }
}

/// The query of a request. Unknown parameters are refused by their type.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        typed(pairs(parts)?).map(Self)
    }
}

/// The query of a list: its filters, how many items, and from where on. Lists of what may
/// be large show that only where it is asked for (`LARGE`).
pub struct Listing<T, const LARGE: bool = false> {
    pub filter: T,
    pub limit: u32,
    /// As the client gave it; see [`crate::cursor`].
    pub after: Option<String>,
    pub include: Include,
}

/// What of each run is shown that may be large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Include {
    pub payload: bool,
    pub output: bool,
}

impl Include {
    pub const EVERYTHING: Self = Self { payload: true, output: true };

    fn read(pairs: &Pairs) -> Result<Self, Problem> {
        let mut include = Self::default();
        for part in pairs.iter().flat_map(|(_, value)| value.split(',')) {
            match part.trim() {
                "payload" => include.payload = true,
                "output" => include.output = true,
                _ => return Err(Problem::bad_parameter("include", "must be payload, output, or payload,output")),
            }
        }
        Ok(include)
    }
}

impl<T: DeserializeOwned, S: Send + Sync, const LARGE: bool> FromRequestParts<S> for Listing<T, LARGE> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let (include, others) = pairs(parts)?.into_iter().partition::<Pairs, _>(|(name, _)| LARGE && name == "include");
        let include = Include::read(&include)?;
        if include != Include::default()
            && let Some(place) = parts.extensions.get::<Place>().cloned()
        {
            place.work(PAGE_BYTES_MAX).await;
        }
        let (paging, filter) = others.into_iter().partition::<Pairs, _>(|(name, _)| name == "limit" || name == "after");
        let paging: Paging = typed(paging)?;
        // At least one, and never more than there may be.
        let limit = paging.limit.map_or(PAGE, |asked| asked.clamp(1, u64::from(PAGE_MAX)) as u32);
        Ok(Self { filter: typed(filter)?, limit, after: paging.after, include })
    }
}

impl<T: Serialize, const LARGE: bool> Listing<T, LARGE> {
    /// A page that is filled by looks; where nothing is found at most so many of them.
    pub fn filling<I, C: DeserializeOwned>(&self, looks: u32) -> Result<Filling<I, C>, Problem> {
        let slice = if self.include == Include::default() { SLICE } else { LARGE_SLICE };
        let (limit, after) = (self.limit, self.cursor()?);
        Ok(Filling { items: Vec::new(), after, limit, slice, bytes: 0, looks, is_done: false })
    }

    /// What was found for the page, as it is answered.
    pub fn filled<I, C: Serialize>(&self, filling: Filling<I, C>) -> Page<I> {
        self.page(filling.items, filling.after.as_ref())
    }

    /// Where the page begins.
    pub fn cursor<C: DeserializeOwned>(&self) -> Result<Option<C>, Problem> {
        self.after.as_deref().map(|text| cursor::read(&self.filter, text)).transpose()
    }

    /// The page as it is answered.
    pub fn page<I, C: Serialize>(&self, items: Vec<I>, next: Option<&C>) -> Page<I> {
        Page { items, next: next.map(|next| cursor::write(&self.filter, next)) }
    }

    /// A page of a list that is at hand as a whole, in the order of its names.
    pub fn page_of<I>(&self, mut items: Vec<I>, name: impl Fn(&I) -> &str) -> Result<Page<I>, Problem> {
        let after: Option<String> = self.cursor()?;
        items.retain(|item| after.as_deref().is_none_or(|after| name(item) > after));
        items.sort_by(|a, b| name(a).cmp(name(b)));
        let more = items.len() > self.limit as usize;
        items.truncate(self.limit as usize);
        let next = items.last().filter(|_| more).map(|last| name(last).to_owned());
        Ok(self.page(items, next.as_ref()))
    }
}

/// A page that is fetched in slices, up to its number of items and to
/// [`PAGE_BYTES_MAX`]; one item is on it however large it is.
pub struct Filling<I, C> {
    items: Vec<I>,
    after: Option<C>,
    limit: u32,
    slice: u32,
    bytes: usize,
    looks: u32,
    is_done: bool,
}

impl<I: Serialize, C: Clone> Filling<I, C> {
    /// From where on to look, and for how many; none when the page is done.
    pub fn wanted(&self) -> Option<(Option<C>, u32)> {
        (!self.is_done).then(|| (self.after.clone(), self.missing()))
    }

    fn missing(&self) -> u32 {
        (self.limit - self.items.len() as u32).min(self.slice)
    }

    /// Whether so many bytes, found by a look, are more than fit. Then there is another look,
    /// or the page is done.
    pub fn is_too_much(&mut self, size: usize) -> bool {
        let asked = self.missing();
        let is_over = self.bytes + size > PAGE_BYTES_MAX;
        if is_over && !self.items.is_empty() {
            // They are on the next page, which begins where this look did.
            self.is_done = true;
        } else if is_over && asked > 1 {
            self.slice = asked / 2;
        } else {
            return false;
        }
        true
    }

    /// Takes what was found by a look, and where the next one begins.
    pub fn take(&mut self, found: Vec<I>, next: Option<C>) {
        let asked = self.missing();
        let size: usize = found.iter().map(size_of_item).sum();
        if self.is_too_much(size) {
            return;
        }
        // A look that was cut short has read as much as one may.
        let is_short = found.len() < asked as usize;
        self.items.extend(found);
        self.bytes += size;
        self.after = next;
        self.looks = self.looks.saturating_sub(1);
        let is_full = self.items.len() >= self.limit as usize;
        let is_enough = is_short && (!self.items.is_empty() || self.looks == 0);
        self.is_done = self.after.is_none() || is_full || is_enough;
    }
}

/// Bytes of an item as it is answered.
fn size_of_item(item: &impl Serialize) -> usize {
    // Plain data always has a JSON form.
    serde_json::to_vec(item).map_or(0, |text| text.len())
}

/// What a list of runs shows besides.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it describes what `Listing` reads")]
pub struct Including {
    /// `payload`, `output`, or both with a comma between: what may be large is shown only
    /// where it is asked for. A run by its id has both.
    include: Option<String>,
}

/// Which page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Paging {
    /// Maximum number of results: 100 by default, 1000 at most.
    #[serde(default)]
    #[param(minimum = 1)]
    limit: Option<u64>,
    /// The `next` of the previous page.
    #[serde(default)]
    after: Option<String>,
}

type Pairs = Vec<(String, String)>;

fn pairs(parts: &Parts) -> Result<Pairs, Problem> {
    let text = parts.uri.query().unwrap_or_default();
    if text.len() > QUERY_BYTES_MAX {
        return Err(Problem::bad_request(format!("the query is too long; the maximum is {QUERY_BYTES_MAX} bytes")));
    }
    let pairs: Pairs = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
    match pairs.iter().find(|(name, value)| name.contains('\0') || value.contains('\0')) {
        Some((name, _)) => Err(Problem::bad_parameter(&name.replace('\0', ""), "a parameter cannot contain NUL")),
        None => Ok(pairs),
    }
}

fn typed<T: DeserializeOwned>(pairs: Pairs) -> Result<T, Problem> {
    let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    let read = serde_html_form::Deserializer::new(form_urlencoded::parse(text.as_bytes()));
    serde_path_to_error::deserialize(read).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        match path.as_str() {
            "." => Problem::bad_request(format!("the query is not valid: {message}")),
            path => Problem::bad_parameter(path, message),
        }
    })
}

/// A number or an id in the path. One that has no such form names nothing.
pub struct Id<T>(pub T);

impl<T: std::str::FromStr + Send, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|_| Problem::no_such("object"))?;
        text.parse().map(Self).map_err(|_| Problem::no_such("object"))
    }
}
