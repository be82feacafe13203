//! Arguments and results of the service; the arguments' JSON is AIO's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct HeadersRequest {
    /// Headers that replace the browser's own. None: the browser sends its own again.
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ScopedHeadersRequest {
    /// Such as `https://api.example.com`, with the port if it is not the default.
    pub(super) origin: String,
    /// Headers for requests to this origin only; they override those for all requests. None: removes them.
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct NetworkRouteRequest {
    /// A glob over the whole URL, such as `**/*.png`: `*` is anything without a `/`, `**` anything, `?` one character, `{a,b}` one
    /// of these. Or a regular expression between slashes, such as `/\.(png|jpg)$/`.
    #[serde(alias = "pattern")]
    pub(super) url_pattern: String,
    /// The answer. Absent: the request continues, even if an older route matches it.
    pub(super) response: Option<RouteResponseModel>,
    /// Fail the request, as if the server were unreachable.
    #[serde(default)]
    #[schema(default = false)]
    pub(super) abort: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct RouteResponseModel {
    /// From 200 to 599.
    #[schema(default = 200)]
    pub(super) status: Option<i64>,
    pub(super) headers: Option<BTreeMap<String, String>>,
    #[schema(default = "")]
    pub(super) body: Option<String>,
    /// Absent: that of `headers`, or `text/plain`.
    #[schema(default = "text/plain")]
    pub(super) content_type: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct NetworkRouteRemoveRequest {
    /// The pattern with which the route was added.
    #[serde(alias = "pattern")]
    pub(super) url_pattern: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ExportHarRequest {
    /// The file to write.
    pub(super) save_path: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RequestsQuery {
    /// Only requests with a URL that contains this, or matches it as a pattern of a route.
    pub(super) filter: Option<String>,
    /// The maximum number of requests; the last ones are returned.
    #[serde(default = "usual_limit", deserialize_with = "arenite_guest_runtime::http::within::<_, 1, { i64::MAX }>")]
    #[param(default = 100, minimum = 1)]
    pub(super) limit: i64,
}

fn usual_limit() -> i64 {
    100
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HeadersSet {
    /// The number of headers.
    pub(super) headers: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ScopedHeadersSet {
    /// The origin in its normalized form.
    pub(super) origin: String,
    pub(super) headers: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RouteChanged {
    pub(super) url_pattern: String,
    /// The number of routes.
    pub(super) routes: usize,
}

/// A request of a page, and its result.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct NetworkRequest {
    /// The browser's id of the request. The target of a redirect has the same id followed by `.1`, and so on.
    pub(super) id: String,
    pub(super) url: String,
    pub(super) method: String,
    /// `document`, `stylesheet`, `image`, `media`, `font`, `script`, `xhr`, `fetch`, `websocket`, `preflight`, `other`, ….
    pub(super) resource_type: String,
    /// Status of the answer; null while there is none.
    pub(super) status: Option<u16>,
    pub(super) status_text: Option<String>,
    pub(super) mime_type: Option<String>,
    /// Seconds since 1970.
    pub(super) started: f64,
    /// Seconds; null while the request is running.
    pub(super) duration: Option<f64>,
    /// Bytes of the body as the page received it; null while the request is running, or if nothing came.
    pub(super) size: Option<u64>,
    /// Such as `net::ERR_CONNECTION_REFUSED`.
    pub(super) error: Option<String>,
    pub(super) from_cache: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HarExported {
    /// The file's absolute path.
    pub(super) save_path: String,
    /// The number of requests in the file.
    pub(super) entries: usize,
    pub(super) file_size_bytes: u64,
}
