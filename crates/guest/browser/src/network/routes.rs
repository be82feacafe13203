//! The service in AIO's wire format.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use std::sync::Arc;
use utoipa::OpenApi;

use super::headers::Headers;
use super::rules::{Action, Route, Rules, parse_origin};
use super::types::*;
use super::{NetworkError, Pattern, PatternError, har};
use crate::BrowserService;
use crate::files::write;
use crate::page::PageError;
use crate::service::BrowserError;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok, whole};

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(set_headers, set_scoped_headers, add_route, remove_route, requests, export_har))]
pub struct NetworkApi;

/// The service's routes, under `/v1`.
pub(crate) fn router() -> Router<Arc<BrowserService>> {
    Router::new()
        .route("/v1/browser/network/headers", post(set_headers))
        .route("/v1/browser/network/scoped_headers", post(set_scoped_headers))
        .route("/v1/browser/network/route", post(add_route).delete(remove_route))
        .route("/v1/browser/network/requests", get(requests))
        .route("/v1/browser/network/export_har", post(export_har))
}

impl From<NetworkError> for ApiError {
    fn from(error: NetworkError) -> Self {
        let message = error.to_string();
        match error {
            NetworkError::NoRoute(_) => ApiError::not_found(message).hint("give the pattern as it was when the route was added"),
            NetworkError::LargeBody { .. } | NetworkError::LargeBodies { .. } => {
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            NetworkError::Header { .. }
            | NetworkError::TooManyHeaders
            | NetworkError::Origin(_)
            | NetworkError::TooManyOrigins { .. }
            | NetworkError::TooManyRoutes { .. }
            | NetworkError::Status
            | NetworkError::Pattern(_) => ApiError::bad_request(message),
            NetworkError::Cdp(error) => BrowserError::from(error).into(),
            NetworkError::Browser(error) => error.into(),
        }
    }
}

/// Changes the rules, and returns when they apply in the browser.
async fn change<T: Send + 'static>(
    service: Arc<BrowserService>,
    change: impl FnOnce(&mut Rules) -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, ApiError> {
    whole(async move {
        let browser = service.get().await?;
        let (port, path) = browser.endpoint();
        service.network().change(port, path, change).await
    })
    .await
}

/// Sets headers of all requests from now on, in all tabs. They replace the previous ones.
#[utoipa::path(post, path = "/v1/browser/network/headers", tag = "browser",
    operation_id = "set_extra_headers_v1_browser_network_headers_post", request_body = HeadersRequest,
    responses((status = 200, body = Envelope<HeadersSet>)))]
async fn set_headers(State(service): State<Arc<BrowserService>>, Body(request): Body<HeadersRequest>) -> Reply<HeadersSet> {
    let headers = Headers::check_request(&request.headers)?;
    let count = headers.len();
    change(service, move |rules| {
        rules.set_headers(headers);
        Ok(())
    })
    .await?;
    ok(HeadersSet { headers: count })
}

/// Sets headers of requests to one origin from now on. They replace the previous ones for it.
#[utoipa::path(post, path = "/v1/browser/network/scoped_headers", tag = "browser",
    operation_id = "set_scoped_headers_v1_browser_network_scoped_headers_post", request_body = ScopedHeadersRequest,
    responses((status = 200, body = Envelope<ScopedHeadersSet>)))]
async fn set_scoped_headers(
    State(service): State<Arc<BrowserService>>,
    Body(request): Body<ScopedHeadersRequest>,
) -> Reply<ScopedHeadersSet> {
    let origin = parse_origin(&request.origin)?;
    let headers = Headers::check_request(&request.headers)?;
    let set = ScopedHeadersSet { origin: origin.clone(), headers: headers.len() };
    change(service, move |rules| rules.set_scoped(origin, headers)).await?;
    ok(set)
}

/// Answers requests instead of the server, or fails them. If several routes match a URL, the one added last applies.
#[utoipa::path(post, path = "/v1/browser/network/route", tag = "browser",
    operation_id = "add_route_v1_browser_network_route_post", request_body = NetworkRouteRequest,
    responses((status = 200, body = Envelope<RouteChanged>)))]
async fn add_route(State(service): State<Arc<BrowserService>>, Body(request): Body<NetworkRouteRequest>) -> Reply<RouteChanged> {
    let NetworkRouteRequest { url_pattern, response, abort } = request;
    let route = Route::new(&url_pattern, response, abort)?;
    let hint = match (&route.action, route.pattern.is_whole()) {
        (_, false) => Some("the pattern is compared with whole URLs, and is none: begin it with **/".to_owned()),
        (Action::Pass, true) => Some("neither response nor abort is given: such requests go on as they are".to_owned()),
        _ => None,
    };
    let routes = change(service, move |rules| {
        rules.add(route)?;
        Ok(rules.routes())
    })
    .await?;
    Ok(Envelope { hint, ..ok(RouteChanged { url_pattern, routes })? })
}

/// Removes a route.
#[utoipa::path(delete, path = "/v1/browser/network/route", tag = "browser",
    operation_id = "remove_route_v1_browser_network_route_delete", request_body = NetworkRouteRemoveRequest,
    responses((status = 200, body = Envelope<RouteChanged>)))]
async fn remove_route(
    State(service): State<Arc<BrowserService>>,
    Body(request): Body<NetworkRouteRemoveRequest>,
) -> Reply<RouteChanged> {
    let NetworkRouteRemoveRequest { url_pattern } = request;
    let pattern = url_pattern.clone();
    let routes = change(service, move |rules| {
        rules.remove(&pattern)?;
        Ok(rules.routes())
    })
    .await?;
    ok(RouteChanged { url_pattern, routes })
}

/// The requests of pages, the newest last. Recording starts with the first call that works in pages.
#[utoipa::path(get, path = "/v1/browser/network/requests", tag = "browser",
    operation_id = "get_requests_v1_browser_network_requests_get", params(RequestsQuery),
    responses((status = 200, body = Envelope<Vec<NetworkRequest>>)))]
async fn requests(
    State(service): State<Arc<BrowserService>>,
    QueryArgs(query): QueryArgs<RequestsQuery>,
) -> Reply<Vec<NetworkRequest>> {
    let filter = query.filter.filter(|filter| !filter.is_empty());
    let pattern = match filter.as_deref().map(Pattern::parse) {
        Some(Err(error @ PatternError::Regex(..))) => return Err(NetworkError::from(error).into()),
        // The filter may be a part of a URL instead of a pattern.
        parsed => parsed.and_then(Result::ok),
    };
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let automation = whole(async move { service.automation().await }).await?;
    let wanted = |url: &str| {
        let has = filter.as_deref().is_none_or(|text| url.contains(text));
        has || pattern.as_ref().is_some_and(|pattern| pattern.matches(url))
    };
    ok(automation.traffic().list(wanted, limit))
}

/// Writes the requests of pages and their answers as an HTTP archive (HAR 1.2). Bodies of answers are not kept.
#[utoipa::path(post, path = "/v1/browser/network/export_har", tag = "browser",
    operation_id = "export_har_v1_browser_network_export_har_post", request_body = ExportHarRequest,
    responses((status = 200, body = Envelope<HarExported>)))]
async fn export_har(State(service): State<Arc<BrowserService>>, Body(request): Body<ExportHarRequest>) -> Reply<HarExported> {
    let exported = whole(async move {
        let automation = service.automation().await?;
        let agent = service.get().await?.user_agent().to_owned();
        let record = automation.traffic().record();
        let entries = record.exchanges.len();
        let archive = tokio::task::spawn_blocking(move || har::archive(&record, &agent)).await;
        let archive = archive.map_err(|error| PageError::Failed(format!("the archive was not written: {error}")))?;
        let (save_path, file_size_bytes) = write(&service.runtime, &request.save_path, archive).await?;
        Ok::<_, PageError>(HarExported { save_path, entries, file_size_bytes })
    });
    ok(exported.await?)
}
