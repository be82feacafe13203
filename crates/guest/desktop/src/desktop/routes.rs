//! AIO's `display` service with Arenite's extensions, and the HTTP form of the desktop's errors.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::accessibility::{AccessibilityTree, MAX_DEPTH, MAX_NODES};
use super::actions::{Action, ActionResponse};
use super::control::{Control, View};
use super::picture::PictureFormat;
use super::picture::{Format, Picture};
use super::record::{DisplayRecordRequest, DisplayRecordResult, DisplayRecordStatus};
use super::screen::ScreenError;
use super::service::DesktopError;
use super::vnc;
use super::windows::{Window, WindowClosed};
use crate::desktop::DesktopService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok, ok_message, optional_within, whole, within};
use arenite_guest_runtime::requirements::Requirement;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(record, screenshot, act, pointer, windows, activate, close, read_clipboard, write_clipboard, accessibility))]
pub struct DisplayApi;

/// The service's routes.
pub fn router(state: Arc<DesktopService>) -> Router {
    Router::new()
        .route("/v1/display/record", post(record))
        .route("/v1/display/screenshot", get(screenshot))
        .route("/v1/display/actions", post(act))
        .route("/v1/display/pointer", get(pointer))
        .route("/v1/display/windows", get(windows))
        .route("/v1/display/windows/{id}", delete(close))
        .route("/v1/display/windows/{id}/activate", post(activate))
        .route("/v1/display/clipboard", get(read_clipboard).put(write_clipboard))
        .route("/v1/display/accessibility", get(accessibility))
        .route("/websockify", get(vnc::connect))
        .with_state(state)
}

impl From<DesktopError> for ApiError {
    fn from(error: DesktopError) -> Self {
        let message = error.to_string();
        // No error is a 5xx: AIO's JavaScript client would retry.
        match error {
            DesktopError::NoServer => Requirement::SCREEN.error(),
            DesktopError::NoRecorder => Requirement::RECORDER.error(),
            DesktopError::NoBus => Requirement::BUS.error(),
            DesktopError::RecordsAlready => ApiError::new(StatusCode::CONFLICT, message).hint("stop it first"),
            DesktopError::Vm(error) => error.into(),
            DesktopError::LongText(_) | DesktopError::Screen(ScreenError::LongClipboard) => {
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            DesktopError::NoTree(_) => ApiError::not_found(message)
                .hint("programs tell of it that know AT-SPI and were started after the desktop; pages are read over the DevTools protocol"),
            DesktopError::Screen(ScreenError::NoWindow(_)) => {
                ApiError::not_found(message).hint("GET /v1/display/windows has those that are there")
            }
            DesktopError::Screen(ScreenError::Minimised(id)) => {
                ApiError::bad_request(message).hint(format!("show it first: POST /v1/display/windows/{id}/activate"))
            }
            DesktopError::Screen(ScreenError::TooMany) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            DesktopError::Screen(ScreenError::NoKey(_)) => ApiError::bad_request(message)
                .hint("name keys as `Return`, `ctrl`, `F5`, `PageDown`, or by the character on them"),
            DesktopError::Screen(
                ScreenError::Outside { .. } | ScreenError::NoCharacter(_) | ScreenError::NoSize { .. },
            ) => ApiError::bad_request(message),
            DesktopError::Screen(ScreenError::Gone | ScreenError::Hung) => {
                ApiError::new(StatusCode::FAILED_DEPENDENCY, message).hint("the next call starts another desktop")
            }
            DesktopError::NotSpawned(_)
            | DesktopError::Ended { .. }
            | DesktopError::TooSlow { .. }
            | DesktopError::Io { .. }
            | DesktopError::Bus(_)
            | DesktopError::Screen(_) => ApiError::new(StatusCode::FAILED_DEPENDENCY, message),
        }
    }
}

/// Starts or stops a recording of the whole screen, or returns its state.
///
/// There is one at a time. It stops by itself after `max_duration`, and the file is complete then too.
#[utoipa::path(post, path = "/v1/display/record", tag = "display", operation_id = "record_v1_display_record_post",
    request_body = DisplayRecordRequest, responses((status = 200, body = Envelope<DisplayRecordResult>)))]
async fn record(
    State(service): State<Arc<DesktopService>>,
    Body(request): Body<DisplayRecordRequest>,
) -> Reply<DisplayRecordResult> {
    let result = whole(async move { service.record(&request).await }).await?;
    let message = match result.status {
        DisplayRecordStatus::Idle => "Nothing was recorded yet",
        DisplayRecordStatus::Recording => "Recording",
        DisplayRecordStatus::Stopped => "The recording has stopped",
    };
    ok_message(result, message)
}

/// The greatest pixel coordinate.
const MAX_SIDE: i64 = 32_767;
/// The greatest id of a window.
const MAX_ID: i64 = u32::MAX as i64;
/// Default number of nodes of a tree.
const USUAL_NODES: u32 = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DisplayScreenshotQuery {
    /// A window, with anything in front of it. Absent: the screen.
    #[serde(default, deserialize_with = "optional_within::<_, 0, MAX_ID>")]
    #[param(minimum = 0, maximum = 4_294_967_295_u32)]
    window: Option<i64>,
    /// The part's left edge, in pixels.
    #[serde(default, deserialize_with = "within::<_, 0, MAX_SIDE>")]
    #[param(required = false, default = 0, minimum = 0, maximum = 32_767)]
    x: i64,
    /// The part's upper edge, in pixels.
    #[serde(default, deserialize_with = "within::<_, 0, MAX_SIDE>")]
    #[param(required = false, default = 0, minimum = 0, maximum = 32_767)]
    y: i64,
    /// Width in pixels. Absent: up to the right edge.
    #[serde(default, deserialize_with = "optional_within::<_, 1, MAX_SIDE>")]
    #[param(minimum = 1, maximum = 32_767)]
    width: Option<i64>,
    /// Height in pixels. Absent: up to the lower edge.
    #[serde(default, deserialize_with = "optional_within::<_, 1, MAX_SIDE>")]
    #[param(minimum = 1, maximum = 32_767)]
    height: Option<i64>,
    /// The kind of image.
    #[serde(default)]
    #[param(inline)]
    format: PictureFormat,
    /// Of a JPEG, from the smallest file to the best one. Absent: 80.
    #[serde(default, deserialize_with = "optional_within::<_, 0, 100>")]
    #[param(minimum = 0, maximum = 100)]
    quality: Option<i64>,
}

/// Converts a number with bounds that were checked when it was parsed.
fn checked(number: i64) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

/// Takes a screenshot of the screen, of a window, or of a part of one of these. The headers `x-screen-width`, `x-screen-height`,
/// `x-image-width` and `x-image-height` have the sizes of the screen and of the picture.
#[utoipa::path(get, path = "/v1/display/screenshot", tag = "display",
    operation_id = "display_screenshot_v1_display_screenshot_get", params(DisplayScreenshotQuery),
    responses((status = 200, content((Vec<u8> = "image/png"), (Vec<u8> = "image/jpeg")))))]
async fn screenshot(
    State(service): State<Arc<DesktopService>>,
    QueryArgs(query): QueryArgs<DisplayScreenshotQuery>,
) -> Result<Response, ApiError> {
    let format = query.format.of_quality(query.quality);
    let view = View {
        window: query.window.map(checked),
        x: checked(query.x),
        y: checked(query.y),
        width: query.width.map(checked),
        height: query.height.map(checked),
    };
    let (picture, file) = whole(async move { Control::start(&service).await?.picture(view, format).await }).await?;
    Ok(picture_answer(&picture, file, format))
}

/// Builds the answer with a picture's file, and its size and the screen's in headers.
pub fn picture_answer(picture: &Picture, file: Vec<u8>, format: Format) -> Response {
    let mut answer = file.into_response();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    for (name, value) in [
        ("x-screen-width", picture.screen.0),
        ("x-screen-height", picture.screen.1),
        ("x-image-width", picture.width),
        ("x-image-height", picture.height),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
    }
    answer
}

/// Performs a mouse or keyboard action of a person, like `/v1/browser/actions`, but without starting the browser.
#[utoipa::path(post, path = "/v1/display/actions", tag = "display", operation_id = "act_v1_display_actions_post",
    request_body = Action, responses((status = 200, body = ActionResponse)))]
async fn act(
    State(service): State<Arc<DesktopService>>,
    Body(action): Body<Action>,
) -> Result<axum::Json<ActionResponse>, ApiError> {
    let done = whole(async move { action.perform_on_desktop(&service).await.map(|()| ActionResponse::done(&action)) });
    Ok(axum::Json(done.await?))
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct PointerPosition {
    /// Pixels from the left edge of the screen.
    pub x: i16,
    /// Pixels from its upper edge.
    pub y: i16,
    /// Width of the screen, in pixels.
    pub screen_width: u16,
    /// Height of the screen, in pixels.
    pub screen_height: u16,
}

/// The pointer's position, and the size of the screen.
#[utoipa::path(get, path = "/v1/display/pointer", tag = "display", operation_id = "pointer_v1_display_pointer_get",
    responses((status = 200, body = Envelope<PointerPosition>)))]
async fn pointer(State(service): State<Arc<DesktopService>>) -> Reply<PointerPosition> {
    let ((x, y), (screen_width, screen_height)) = whole(async move { Control::start(&service).await?.pointer().await }).await?;
    ok(PointerPosition { x, y, screen_width, screen_height })
}

/// The windows of programs, the oldest first.
#[utoipa::path(get, path = "/v1/display/windows", tag = "display", operation_id = "list_windows_v1_display_windows_get",
    responses((status = 200, body = Envelope<Vec<Window>>)))]
async fn windows(State(service): State<Arc<DesktopService>>) -> Reply<Vec<Window>> {
    ok(whole(async move { Control::start(&service).await?.windows().await }).await?)
}

fn window_id(text: &str) -> Result<u32, ApiError> {
    let wrong = |_| ApiError::bad_request(format!("{:?} is no window's id", text.chars().take(40).collect::<String>()));
    text.parse().map_err(wrong).map_err(|error| error.hint("GET /v1/display/windows has those that are there"))
}

/// Raises a window, even a minimised one, and gives it the keyboard focus.
#[utoipa::path(post, path = "/v1/display/windows/{id}/activate", tag = "display", params(("id" = u32, Path)),
    operation_id = "activate_window_v1_display_windows__id__activate_post",
    responses((status = 200, body = Envelope<Window>)))]
async fn activate(State(service): State<Arc<DesktopService>>, Path(id): Path<String>) -> Reply<Window> {
    let id = window_id(&id)?;
    let window = whole(async move { Control::start(&service).await?.activate(id).await }).await?;
    let message = if window.active { "It is the active window" } else { "It is shown, and takes no keys" };
    ok_message(window, message)
}

/// Asks a window to close, like its frame's close button.
#[utoipa::path(delete, path = "/v1/display/windows/{id}", tag = "display", params(("id" = u32, Path)),
    operation_id = "close_window_v1_display_windows__id__delete",
    responses((status = 200, body = Envelope<WindowClosed>)))]
async fn close(State(service): State<Arc<DesktopService>>, Path(id): Path<String>) -> Reply<WindowClosed> {
    let id = window_id(&id)?;
    let outcome = whole(async move { Control::start(&service).await?.close(id).await }).await?;
    if outcome.closed {
        return ok_message(outcome, "It is closed");
    }
    Ok(Envelope {
        success: true,
        message: Some("It was asked to close, and is still there".to_owned()),
        data: Some(outcome),
        hint: Some("its program may ask something first: look at the screen".to_owned()),
    })
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct ClipboardText {
    /// At most 8 MiB.
    pub text: String,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct ClipboardCopied {
    /// Bytes of the text in UTF-8.
    pub bytes: usize,
}

/// The text that a program or a call copied last; empty if there is none.
#[utoipa::path(get, path = "/v1/display/clipboard", tag = "display", operation_id = "read_clipboard_v1_display_clipboard_get",
    responses((status = 200, body = Envelope<ClipboardText>)))]
async fn read_clipboard(State(service): State<Arc<DesktopService>>) -> Reply<ClipboardText> {
    let text = whole(async move { Control::start(&service).await?.clipboard().await }).await?;
    ok(ClipboardText { text })
}

/// Copies a text, so that programs can paste it.
#[utoipa::path(put, path = "/v1/display/clipboard", tag = "display", operation_id = "write_clipboard_v1_display_clipboard_put",
    request_body = ClipboardText, responses((status = 200, body = Envelope<ClipboardCopied>)))]
async fn write_clipboard(
    State(service): State<Arc<DesktopService>>,
    Body(request): Body<ClipboardText>,
) -> Reply<ClipboardCopied> {
    let bytes = request.text.len();
    whole(async move { Control::start(&service).await?.copy(&request.text).await }).await?;
    ok_message(ClipboardCopied { bytes }, "It is copied")
}

fn usual_nodes() -> i64 {
    USUAL_NODES.into()
}

fn usual_depth() -> i64 {
    MAX_DEPTH.into()
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct AccessibilityQuery {
    /// Only the tree of this window. Absent: those of all programs.
    #[serde(default, deserialize_with = "optional_within::<_, 0, MAX_ID>")]
    #[param(minimum = 0, maximum = 4_294_967_295_u32)]
    window: Option<i64>,
    /// Levels below the root.
    #[serde(default = "usual_depth", deserialize_with = "within::<_, 1, { MAX_DEPTH as i64 }>")]
    #[param(required = false, default = 64, minimum = 1, maximum = 64)]
    depth: i64,
    /// Nodes near the root are included first.
    #[serde(default = "usual_nodes", deserialize_with = "within::<_, 1, { MAX_NODES as i64 }>")]
    #[param(required = false, default = 1000, minimum = 1, maximum = 5000)]
    max_nodes: i64,
}

/// The accessibility tree of the desktop's programs by AT-SPI: windows, menus, buttons and texts with their positions on the
/// screen. Pages of the browser are not in it: read them over the DevTools protocol.
#[utoipa::path(get, path = "/v1/display/accessibility", tag = "display",
    operation_id = "accessibility_v1_display_accessibility_get", params(AccessibilityQuery),
    responses((status = 200, body = Envelope<AccessibilityTree>)))]
async fn accessibility(
    State(service): State<Arc<DesktopService>>,
    QueryArgs(query): QueryArgs<AccessibilityQuery>,
) -> Reply<AccessibilityTree> {
    let AccessibilityQuery { window, depth, max_nodes } = query;
    let (window, depth, nodes) = (window.map(checked), checked(depth), checked(max_nodes));
    ok(whole(async move { Control::start(&service).await?.accessibility(window, depth, nodes).await }).await?)
}
