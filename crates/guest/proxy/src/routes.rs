//! The proxy service in AIO's wire format.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::service::{ProxyDiagnoseResult, ProxyError, ProxyHealthCheck, ProxyMappingRoute, ProxyUpstreamInfo};
use crate::ProxyService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok};

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    mappings,
    map,
    unmap,
    excludes,
    exclude,
    include_again,
    diagnose,
    health,
    upstream,
    set_upstream,
    remove_upstream
))]
pub struct ProxyApi;

/// The service's routes, under `/v1`.
pub fn router(state: Arc<ProxyService>) -> Router {
    Router::new()
        .route("/v1/proxy/mappings", get(mappings).post(map))
        // AIO's clients don't escape the slashes of a source.
        .route("/v1/proxy/mappings/{*source}", delete(unmap))
        .route("/v1/proxy/excludes", get(excludes).post(exclude).delete(include_again))
        .route("/v1/proxy/diagnose", get(diagnose))
        .route("/v1/proxy/health", get(health))
        .route("/v1/proxy/upstream", get(upstream).put(set_upstream).delete(remove_upstream))
        .with_state(state)
}

impl From<ProxyError> for ApiError {
    fn from(error: ProxyError) -> Self {
        let message = error.to_string();
        match error {
            ProxyError::Invalid { .. } | ProxyError::Upstream(_) => Self::bad_request(message),
            ProxyError::NotFound { .. } => Self::not_found(message),
            ProxyError::TooMany(_) => Self::new(StatusCode::CONFLICT, message),
            ProxyError::NoPort { .. } => Self::new(StatusCode::CONFLICT, message)
                .hint("end the program that listens there, or create the sandbox with another PROXY_PORT"),
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
struct ProxyMappingAddRequest {
    /// `[protocol://]host[:port][/path]`; a `*` in the host stands for any text, one at the path's end for what follows.
    #[schema(example = "api.myapp.com/v1/*")]
    source: String,
    /// `[host:]port[/path]`; the host is 127.0.0.1 unless named.
    #[schema(example = "127.0.0.1:8081/v1/")]
    target: String,
}

#[derive(Debug, Deserialize, ToSchema)]
struct ProxyBypassRequest {
    /// A domain (`*.example.com`, `.example.com`) or a range (`10.0.0.0/8`).
    #[schema(example = "*.internal.company.com")]
    pattern: String,
}

#[derive(Deserialize, ToSchema)]
struct ProxyUpstreamUpdateRequest {
    /// `host:port`, or `user:password@host:port`.
    #[schema(example = "proxy.example.com:3128")]
    server: String,
    /// A shell command that prints `user:password`. Run as the sandbox's user, now and when the upstream refuses the credentials.
    #[serde(default)]
    #[schema(example = "/opt/scripts/get-proxy-auth.sh")]
    auth_cmd: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DiagnoseQuery {
    /// The URL to look up.
    url: String,
}

/// All mappings.
#[utoipa::path(get, path = "/v1/proxy/mappings", tag = "proxy", operation_id = "list_proxy_mappings",
    responses((status = 200, body = Envelope<Vec<ProxyMappingRoute>>)))]
async fn mappings(State(proxy): State<Arc<ProxyService>>) -> Reply<Vec<ProxyMappingRoute>> {
    ok(proxy.mappings())
}

/// Redirects requests for a host, or for a part of it, to another target, usually a port of this sandbox.
///
/// https is not decrypted: its bytes go to the target unchanged, so a mapping with a path has no effect on it.
#[utoipa::path(post, path = "/v1/proxy/mappings", tag = "proxy", operation_id = "add_proxy_mapping",
    request_body = ProxyMappingAddRequest, responses((status = 200, body = Envelope<ProxyMappingRoute>)))]
async fn map(State(proxy): State<Arc<ProxyService>>, Body(request): Body<ProxyMappingAddRequest>) -> Reply<ProxyMappingRoute> {
    let mapping = proxy.map(&request.source, &request.target).await?;
    ok(mapping)
}

/// Removes a mapping by its source.
#[utoipa::path(delete, path = "/v1/proxy/mappings/{source}", tag = "proxy", operation_id = "remove_proxy_mapping",
    params(("source" = String, Path)), responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn unmap(State(proxy): State<Arc<ProxyService>>, Path(source): Path<String>) -> Reply<()> {
    proxy.unmap(&source)?;
    ok(())
}

/// Hosts that are reached without the upstream.
#[utoipa::path(get, path = "/v1/proxy/excludes", tag = "proxy", operation_id = "list_proxy_excludes",
    responses((status = 200, body = Envelope<Vec<String>>)))]
async fn excludes(State(proxy): State<Arc<ProxyService>>) -> Reply<Vec<String>> {
    ok(proxy.excludes())
}

/// Excludes hosts from the upstream. Ranges are for hosts given as addresses.
#[utoipa::path(post, path = "/v1/proxy/excludes", tag = "proxy", operation_id = "add_proxy_exclude",
    request_body = ProxyBypassRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn exclude(State(proxy): State<Arc<ProxyService>>, Body(request): Body<ProxyBypassRequest>) -> Reply<()> {
    ok(proxy.exclude(&request.pattern)?)
}

/// Removes a pattern from that list.
#[utoipa::path(delete, path = "/v1/proxy/excludes", tag = "proxy", operation_id = "remove_proxy_exclude",
    request_body = ProxyBypassRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn include_again(State(proxy): State<Arc<ProxyService>>, Body(request): Body<ProxyBypassRequest>) -> Reply<()> {
    ok(proxy.include_again(&request.pattern)?)
}

/// The route of a URL, and whether its target answers.
#[utoipa::path(get, path = "/v1/proxy/diagnose", tag = "proxy", operation_id = "diagnose_proxy", params(DiagnoseQuery),
    responses((status = 200, body = Envelope<ProxyDiagnoseResult>)))]
async fn diagnose(
    State(proxy): State<Arc<ProxyService>>,
    QueryArgs(query): QueryArgs<DiagnoseQuery>,
) -> Reply<ProxyDiagnoseResult> {
    ok(proxy.diagnose(&query.url).await?)
}

/// Whether the proxy takes connections.
#[utoipa::path(get, path = "/v1/proxy/health", tag = "proxy", operation_id = "proxy_health_check",
    responses((status = 200, body = Envelope<ProxyHealthCheck>)))]
async fn health(State(proxy): State<Arc<ProxyService>>) -> Reply<ProxyHealthCheck> {
    ok(proxy.health().await)
}

/// The upstream proxy; null when there is none.
#[utoipa::path(get, path = "/v1/proxy/upstream", tag = "proxy", operation_id = "get_proxy_upstream",
    responses((status = 200, body = Envelope<Option<ProxyUpstreamInfo>>)))]
async fn upstream(State(proxy): State<Arc<ProxyService>>) -> Reply<Option<ProxyUpstreamInfo>> {
    ok(proxy.upstream())
}

/// Sets the upstream proxy, for connections from now on.
#[utoipa::path(put, path = "/v1/proxy/upstream", tag = "proxy", operation_id = "set_proxy_upstream",
    request_body = ProxyUpstreamUpdateRequest, responses((status = 200, body = Envelope<ProxyUpstreamInfo>)))]
async fn set_upstream(
    State(proxy): State<Arc<ProxyService>>,
    Body(request): Body<ProxyUpstreamUpdateRequest>,
) -> Reply<ProxyUpstreamInfo> {
    let upstream = proxy.set_upstream(&request.server, request.auth_cmd).await?;
    ok(upstream)
}

/// Removes the upstream proxy: all connections are direct.
#[utoipa::path(delete, path = "/v1/proxy/upstream", tag = "proxy", operation_id = "remove_proxy_upstream",
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn remove_upstream(State(proxy): State<Arc<ProxyService>>) -> Reply<()> {
    proxy.remove_upstream();
    ok(())
}
