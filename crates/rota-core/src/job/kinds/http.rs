//! `http`: a request, and which answers are good.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::at_most_one;
use crate::{
    duration::Span,
    job::{retry::StatusPattern, size::Size},
};

/// Headers that say how a message is framed, forwarded or addressed. Another value than
/// the connection's own would let one request be read as two, or as one to another host
/// than the one that was judged.
const CONNECTION_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether no step may write this header.
pub fn is_of_the_connection(name: &str) -> bool {
    CONNECTION_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "HttpFields", into = "HttpFields")]
pub struct Http {
    pub url: String,
    pub method: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// Text, numbers and truth values, or lists of them.
    pub query: BTreeMap<String, Value>,
    pub body: Option<HttpBody>,
    pub auth: Option<HttpAuth>,
    /// The statuses that are a success.
    pub expect: Option<Vec<StatusPattern>>,
    /// A longer answer is a failure.
    pub response_max: Option<Size>,
    pub tls: Option<Tls>,
    pub sign: Option<Signature>,
    /// A 202 parks the run until its callback.
    pub callback: Option<Callback>,
}

/// The body, which also decides the content type.
#[derive(Clone, Debug, PartialEq)]
pub enum HttpBody {
    Json(Value),
    Form(BTreeMap<String, Value>),
    Raw(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum HttpAuth {
    Basic {
        username: String,
        password: String,
    },
    Bearer(String),
    /// Client credentials; the token is kept until it runs out.
    OAuth2(OAuth2),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuth2 {
    pub token_url: String,
    pub client_id: String,
    pub client_secret: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificates to trust besides the system's, as PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Our own certificate, as PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// False takes any certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<bool>,
}

/// Signs the request with HMAC-SHA256.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub secret: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// How long it may take.
    pub within: Span,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpFields {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    query: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<BTreeMap<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth: Option<HttpAuth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expect: Option<Vec<StatusPattern>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_max: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Tls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sign: Option<Signature>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback: Option<Callback>,
}

impl TryFrom<HttpFields> for Http {
    type Error = String;

    fn try_from(fields: HttpFields) -> Result<Self, String> {
        let body = at_most_one([
            ("json", fields.json.map(HttpBody::Json)),
            ("form", fields.form.map(HttpBody::Form)),
            ("body", fields.body.map(HttpBody::Raw)),
        ])?;
        Ok(Self {
            url: fields.url,
            method: fields.method,
            headers: fields.headers,
            query: fields.query,
            body,
            auth: fields.auth,
            expect: fields.expect,
            response_max: fields.response_max,
            tls: fields.tls,
            sign: fields.sign,
            callback: fields.callback,
        })
    }
}

impl From<Http> for HttpFields {
    fn from(http: Http) -> Self {
        let (json, form, body) = match http.body {
            None => (None, None, None),
            Some(HttpBody::Json(json)) => (Some(json), None, None),
            Some(HttpBody::Form(form)) => (None, Some(form), None),
            Some(HttpBody::Raw(body)) => (None, None, Some(body)),
        };
        Self {
            url: http.url,
            method: http.method,
            headers: http.headers,
            query: http.query,
            json,
            form,
            body,
            auth: http.auth,
            expect: http.expect,
            response_max: http.response_max,
            tls: http.tls,
            sign: http.sign,
            callback: http.callback,
        }
    }
}
