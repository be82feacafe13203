//! The browser service in AIO's wire format.

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use utoipa::OpenApi;

use super::service::BrowserError;
use super::types::*;
use super::{cookies, network, pac, page, relay, state, tabs};
use crate::BrowserService;
use arenite_guest_cdp::CdpError;
use arenite_guest_desktop::desktop::picture_answer;
use arenite_guest_desktop::desktop::{Action, ActionResponse};
use arenite_guest_runtime::http::{Address, ApiError, Body, Envelope, QueryArgs, Reply, ok, ok_message, whole};
use arenite_guest_runtime::requirements::Requirement;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(info, screenshot, act, configure, restart, proxy_pac))]
pub struct BrowserApi;

/// The service's routes under `/v1`, and those of the DevTools protocol.
pub fn router(state: Arc<BrowserService>) -> Router {
    Router::new()
        .route("/v1/browser/info", get(info))
        .route("/v1/browser/screenshot", get(screenshot))
        .route("/v1/browser/actions", post(act))
        .route("/v1/browser/config", post(configure))
        .route("/v1/browser/restart", post(restart))
        .route("/v1/browser/proxy.pac", get(proxy_pac))
        .merge(page::router())
        .merge(tabs::router())
        .merge(cookies::router())
        .merge(state::router())
        .merge(network::router())
        .merge(relay::router())
        .with_state(state)
}

impl From<BrowserError> for ApiError {
    fn from(error: BrowserError) -> Self {
        let message = error.to_string();
        // No error is a 5xx: AIO's JavaScript client would retry.
        match error {
            BrowserError::Desktop(error) => error.into(),
            BrowserError::NoBrowser => Requirement::BROWSER.error(),
            BrowserError::TooManyPatterns => ApiError::bad_request(message),
            BrowserError::Cdp(CdpError::TooManyCalls) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            BrowserError::Cdp(CdpError::Closed) => {
                ApiError::new(StatusCode::FAILED_DEPENDENCY, message).hint("the next call starts another browser")
            }
            BrowserError::NotSpawned(_)
            | BrowserError::Ended { .. }
            | BrowserError::TooSlow { .. }
            | BrowserError::Io { .. }
            | BrowserError::Cdp(_) => ApiError::new(StatusCode::FAILED_DEPENDENCY, message),
        }
    }
}

/// The addresses of the browser for DevTools clients and people, and its size.
#[utoipa::path(get, path = "/v1/browser/info", tag = "browser", operation_id = "get_browser_info_v1_browser_info_get",
    responses((status = 200, body = Envelope<BrowserInfoResult>)))]
async fn info(State(service): State<Arc<BrowserService>>, headers: HeaderMap) -> Reply<BrowserInfoResult> {
    let address = Address::from_headers(&headers);
    ok(whole(async move { service.info(&address).await }).await?)
}

/// Takes a screenshot of the whole screen. The headers `x-screen-width`, `x-screen-height`, `x-image-width` and `x-image-height`
/// have the sizes of the screen and of the picture, which are the same.
#[utoipa::path(get, path = "/v1/browser/screenshot", tag = "browser",
    operation_id = "take_screenshot_v1_browser_screenshot_get", params(ScreenshotQuery),
    responses((status = 200, content((Vec<u8> = "image/png"), (Vec<u8> = "image/jpeg")))))]
async fn screenshot(
    State(service): State<Arc<BrowserService>>,
    QueryArgs(query): QueryArgs<ScreenshotQuery>,
) -> Result<Response, ApiError> {
    let format = query.format.of_quality(query.quality);
    let (picture, file) = whole(async move { service.picture(format).await }).await?;
    Ok(picture_answer(&picture, file, format))
}

/// Performs a mouse or keyboard action of a person, anywhere on the screen.
#[utoipa::path(post, path = "/v1/browser/actions", tag = "browser", operation_id = "execute_action_v1_browser_actions_post",
    request_body = Action, responses((status = 200, body = ActionResponse)))]
async fn act(
    State(service): State<Arc<BrowserService>>,
    Body(action): Body<Action>,
) -> Result<axum::Json<ActionResponse>, ApiError> {
    let done = whole(async move { service.perform(&action).await.map(|()| ActionResponse::done(&action)) });
    Ok(axum::Json(done.await?))
}

/// Changes the size of the screen.
#[utoipa::path(post, path = "/v1/browser/config", tag = "browser", operation_id = "set_config_v1_browser_config_post",
    request_body = BrowserConfigRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn configure(State(service): State<Arc<BrowserService>>, Body(request): Body<BrowserConfigRequest>) -> Reply<()> {
    let Some(Resolution { width, height }) = request.resolution else {
        return ok_message((), "Nothing was changed");
    };
    whole(async move {
        let desktop = service.shown().await?;
        let side = |side: i64| u32::try_from(side).unwrap_or(u32::MAX);
        let (width, height) = (side(width), side(height));
        Ok::<_, BrowserError>(desktop.run(move |screen| screen.resize(width, height)).await?)
    })
    .await?;
    ok_message((), format!("The screen is {width}x{height} now"))
}

/// Restarts the browser, optionally with other settings.
#[utoipa::path(post, path = "/v1/browser/restart", tag = "browser", operation_id = "restart_v1_browser_restart_post",
    request_body = Option<RestartRequest>, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn restart(State(service): State<Arc<BrowserService>>, Body(request): Body<Option<RestartRequest>>) -> Reply<()> {
    let request = request.unwrap_or_default();
    let message = match request.mode {
        RestartMode::Soft => "Reconnected to the browser",
        RestartMode::Hard => "The browser was restarted",
    };
    whole(async move { service.restart(&request).await }).await?;
    ok_message((), message)
}

/// The browser's proxy configuration: the sandbox's forward proxy while that has rules.
#[utoipa::path(get, path = "/v1/browser/proxy.pac", tag = "browser", operation_id = "get_proxy_pac_v1_browser_proxy_pac_get",
    responses((status = 200, content_type = "application/x-ns-proxy-autoconfig", body = String)))]
async fn proxy_pac(State(service): State<Arc<BrowserService>>) -> Response {
    let mut answer = pac::file(service.runtime.proxy_address().borrow().as_deref()).into_response();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ns-proxy-autoconfig"));
    answer
}
