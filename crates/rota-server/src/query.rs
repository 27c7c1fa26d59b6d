//! Path and query parameters, read within bounds.

use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
};
use rota_api::page::{PAGE, PAGE_MAX, Page};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::IntoParams;

use crate::{cursor, problem::Problem};

/// Bytes of a query that are read.
const QUERY_BYTES_MAX: usize = 8 << 10;

/// The query of a request. Unknown parameters are refused by their type.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        typed(pairs(parts)?).map(Self)
    }
}

/// The query of a list: its filters, how many items, and from where on.
pub struct Listing<T> {
    pub filter: T,
    pub limit: u32,
    /// As the client gave it; see [`crate::cursor`].
    pub after: Option<String>,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Listing<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let (paging, filter) =
            pairs(parts)?.into_iter().partition::<Pairs, _>(|(name, _)| name == "limit" || name == "after");
        let paging: Paging = typed(paging)?;
        // At least one, and never more than there may be.
        let limit = paging.limit.map_or(PAGE, |asked| asked.clamp(1, u64::from(PAGE_MAX)) as u32);
        Ok(Self { filter: typed(filter)?, limit, after: paging.after })
    }
}

impl<T: Serialize> Listing<T> {
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
