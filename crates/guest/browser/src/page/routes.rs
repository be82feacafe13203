//! The service in AIO's wire format.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::super::types::{Fields, Items};
use super::captcha::CaptchaWaitResult;
use super::dialog::{DialogRequest, DialogState};
use super::picture::Format;
use super::types::*;
use super::{PageError, PageLocation, Target, Work, act, work};
use crate::BrowserService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok, ok_message, whole};

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    navigate,
    back,
    forward,
    reload,
    click,
    fill,
    type_text,
    press_key,
    hot_key,
    hover,
    select_option,
    check,
    uncheck,
    upload_file,
    fill_form,
    scroll,
    scroll_to,
    scroll_to_element,
    screenshot,
    record,
    html,
    text,
    markdown,
    elements,
    console,
    export_console,
    evaluate,
    find_text,
    wait,
    dialog,
    answer_dialog,
    detect_captcha,
    wait_for_captcha
))]
pub struct PageApi;

pub(crate) fn router() -> Router<Arc<BrowserService>> {
    let page = Router::new()
        .route("/navigate", post(navigate))
        .route("/back", post(back))
        .route("/forward", post(forward))
        .route("/reload", post(reload))
        .route("/click", post(click))
        .route("/fill", post(fill))
        .route("/type", post(type_text))
        .route("/press_key", post(press_key))
        .route("/hot_key", post(hot_key))
        .route("/hover", post(hover))
        .route("/select_option", post(select_option))
        .route("/check", post(check))
        .route("/uncheck", post(uncheck))
        .route("/upload_file", post(upload_file))
        .route("/fill_form", post(fill_form))
        .route("/scroll", post(scroll))
        .route("/scroll_to", post(scroll_to))
        .route("/scroll_to_element", post(scroll_to_element))
        .route("/screenshot", get(screenshot))
        .route("/record", post(record))
        .route("/html", get(html))
        .route("/text", get(text))
        .route("/markdown", get(markdown))
        .route("/elements", get(elements))
        .route("/console", get(console))
        .route("/console/export", post(export_console))
        .route("/evaluate", post(evaluate))
        .route("/find_text", post(find_text))
        .route("/wait", post(wait))
        .route("/dialog", get(dialog).post(answer_dialog));
    Router::new()
        .nest("/v1/browser/page", page)
        .route("/v1/browser/captcha/detect", get(detect_captcha))
        .route("/v1/browser/captcha/wait", post(wait_for_captcha))
}

/// The answer to an action: the tab's location afterwards, and notes about side effects.
async fn acted<F>(
    service: Arc<BrowserService>,
    message: String,
    operation: impl FnOnce(Arc<Work>) -> F + Send + 'static,
) -> Reply<Value>
where
    F: Future<Output = Result<Value, PageError>> + Send + 'static,
{
    let (value, effects) = whole(async move { act(&service, operation).await }).await?;
    let moved = effects.moved.map(|moved| format!("{moved}; PUT /v1/browser/tabs/{{index}}/activate chooses another"));
    let declined = (!effects.declined.is_empty())
        .then(|| format!("{}; POST /v1/browser/page/dialog says beforehand how to answer the next", effects.declined.join("; ")));
    let hints: Vec<_> = declined.into_iter().chain(moved).collect();
    ok_message(value, message).map(|mut envelope| {
        envelope.hint = Some(hints.join("; ")).filter(|hint| !hint.is_empty());
        envelope
    })
}

/// The answer to a read.
async fn looked<T, F>(
    service: Arc<BrowserService>,
    operation: impl FnOnce(Arc<Work>) -> F + Send + 'static,
) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, PageError>> + Send + 'static,
{
    whole(async move { work(&service, operation).await }).await
}

fn with_location(location: PageLocation, more: Value) -> Value {
    let mut told = json!(location);
    if let (Some(told), Value::Object(more)) = (told.as_object_mut(), more) {
        told.extend(more);
    }
    told
}

fn at((location, (x, y)): (PageLocation, (f64, f64))) -> Value {
    with_location(location, json!({"x": x, "y": y}))
}

fn list<T: Serialize>(items: Vec<T>) -> Vec<Value> {
    items.into_iter().map(|item| json!(item)).collect()
}

/// Opens an address in the current tab.
#[utoipa::path(post, path = "/v1/browser/page/navigate", tag = "browser",
    operation_id = "navigate_v1_browser_page_navigate_post", request_body = NavigateRequest,
    responses((status = 200, body = Envelope<Fields>)))]
async fn navigate(State(service): State<Arc<BrowserService>>, Body(request): Body<NavigateRequest>) -> Reply<Value> {
    acted(service, "Opened the page".to_owned(), move |work| async move {
        let (location, status) = work.navigate(&request.url, request.wait_until, request.timeout).await?;
        Ok(with_location(location, json!({"status": status})))
    })
    .await
}

/// Goes back to the previous page.
#[utoipa::path(post, path = "/v1/browser/page/back", tag = "browser", operation_id = "go_back_v1_browser_page_back_post",
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn back(State(service): State<Arc<BrowserService>>) -> Reply<Value> {
    acted(service, "Went back".to_owned(), |work| async move { Ok(json!(work.history(-1).await?)) }).await
}

/// Goes forward to the page that `back` came from.
#[utoipa::path(post, path = "/v1/browser/page/forward", tag = "browser",
    operation_id = "go_forward_v1_browser_page_forward_post", responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn forward(State(service): State<Arc<BrowserService>>) -> Reply<Value> {
    acted(service, "Went forward".to_owned(), |work| async move { Ok(json!(work.history(1).await?)) }).await
}

/// Reloads the page.
#[utoipa::path(post, path = "/v1/browser/page/reload", tag = "browser", operation_id = "reload_v1_browser_page_reload_post",
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn reload(State(service): State<Arc<BrowserService>>) -> Reply<Value> {
    acted(service, "Reloaded the page".to_owned(), |work| async move { Ok(json!(work.reload().await?)) }).await
}

/// Clicks an element, once it is clickable, or a point in the viewport.
#[utoipa::path(post, path = "/v1/browser/page/click", tag = "browser", operation_id = "click_v1_browser_page_click_post",
    request_body = ClickArguments, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn click(State(service): State<Arc<BrowserService>>, Body(request): Body<ClickArguments>) -> Reply<Value> {
    let request = ClickRequest::try_from(request)?;
    acted(service, "Clicked".to_owned(), |work| async move { Ok(at(work.click(request).await?)) }).await
}

/// Replaces the text of a field.
#[utoipa::path(post, path = "/v1/browser/page/fill", tag = "browser", operation_id = "fill_v1_browser_page_fill_post",
    request_body = FillRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn fill(State(service): State<Arc<BrowserService>>, Body(request): Body<FillRequest>) -> Reply<Value> {
    let target = Target::new(request.selector, request.index)?;
    acted(service, format!("Filled {target}"), |work| async move { Ok(json!(work.fill(&target, &request.text).await?)) }).await
}

/// Types into the focused element.
#[utoipa::path(post, path = "/v1/browser/page/type", tag = "browser", operation_id = "type_text_v1_browser_page_type_post",
    request_body = TypeTextRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn type_text(State(service): State<Arc<BrowserService>>, Body(request): Body<TypeTextRequest>) -> Reply<Value> {
    acted(service, "Typed".to_owned(), move |work| async move { Ok(json!(work.type_text(&request.text, request.delay).await?)) })
        .await
}

/// Presses a key, or several together such as `Control+A`.
#[utoipa::path(post, path = "/v1/browser/page/press_key", tag = "browser",
    operation_id = "press_key_v1_browser_page_press_key_post", request_body = KeyRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn press_key(State(service): State<Arc<BrowserService>>, Body(request): Body<KeyRequest>) -> Reply<Value> {
    acted(service, "Pressed".to_owned(), |work| async move { Ok(json!(work.press_key(&request.key).await?)) }).await
}

/// Presses several keys together.
#[utoipa::path(post, path = "/v1/browser/page/hot_key", tag = "browser", operation_id = "hot_key_v1_browser_page_hot_key_post",
    request_body = HotKeyRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn hot_key(State(service): State<Arc<BrowserService>>, Body(request): Body<HotKeyRequest>) -> Reply<Value> {
    acted(service, "Pressed".to_owned(), |work| async move { Ok(json!(work.hot_key(&request.keys).await?)) }).await
}

/// Moves the mouse over an element or to a point in the viewport.
#[utoipa::path(post, path = "/v1/browser/page/hover", tag = "browser", operation_id = "hover_v1_browser_page_hover_post",
    request_body = HoverRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn hover(State(service): State<Arc<BrowserService>>, Body(request): Body<HoverRequest>) -> Reply<Value> {
    acted(service, "Moved the mouse".to_owned(), |work| async move { Ok(json!(work.hover(request).await?)) }).await
}

/// Chooses an option of a select element.
#[utoipa::path(post, path = "/v1/browser/page/select_option", tag = "browser",
    operation_id = "select_option_v1_browser_page_select_option_post", request_body = SelectRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn select_option(State(service): State<Arc<BrowserService>>, Body(request): Body<SelectRequest>) -> Reply<Value> {
    acted(service, "Chose".to_owned(), |work| async move {
        let (location, selected) = work.select_option(request).await?;
        Ok(with_location(location, json!({"selected": selected})))
    })
    .await
}

async fn set_checked(service: Arc<BrowserService>, selector: String, wanted: bool) -> Reply<Value> {
    let message = if wanted { "Checked" } else { "Unchecked" };
    acted(service, message.to_owned(), move |work| async move {
        let (location, checked) = work.check(selector, wanted).await?;
        Ok(with_location(location, json!({"checked": checked})))
    })
    .await
}

/// Checks a checkbox, a radio button or a switch.
#[utoipa::path(post, path = "/v1/browser/page/check", tag = "browser", operation_id = "check_v1_browser_page_check_post",
    request_body = CheckRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn check(State(service): State<Arc<BrowserService>>, Body(request): Body<CheckRequest>) -> Reply<Value> {
    set_checked(service, request.selector, true).await
}

/// Unchecks a checkbox or a switch.
#[utoipa::path(post, path = "/v1/browser/page/uncheck", tag = "browser", operation_id = "uncheck_v1_browser_page_uncheck_post",
    request_body = CheckRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn uncheck(State(service): State<Arc<BrowserService>>, Body(request): Body<CheckRequest>) -> Reply<Value> {
    set_checked(service, request.selector, false).await
}

/// Sets the files of a file input to files of the sandbox.
#[utoipa::path(post, path = "/v1/browser/page/upload_file", tag = "browser",
    operation_id = "upload_file_v1_browser_page_upload_file_post", request_body = UploadFileRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn upload_file(State(service): State<Arc<BrowserService>>, Body(request): Body<UploadFileRequest>) -> Reply<Value> {
    let of = service.clone();
    acted(service, "Gave the files to the page".to_owned(), |work| async move {
        let (location, files) = work.upload(&of.runtime, request.selector, &request.files).await?;
        Ok(with_location(location, json!({"files": files})))
    })
    .await
}

/// Fills in several fields, each according to its kind. Stops at the first failure.
#[utoipa::path(post, path = "/v1/browser/page/fill_form", tag = "browser",
    operation_id = "fill_form_v1_browser_page_fill_form_post", request_body = FormFillRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn fill_form(State(service): State<Arc<BrowserService>>, Body(request): Body<FormFillRequest>) -> Reply<Value> {
    acted(service, "Filled the form".to_owned(), |work| async move {
        let (location, filled) = work.fill_form(request.items).await?;
        Ok(with_location(location, json!({"filled": filled})))
    })
    .await
}

/// Turns the mouse wheel. Returns the scroll position afterwards.
#[utoipa::path(post, path = "/v1/browser/page/scroll", tag = "browser", operation_id = "scroll_v1_browser_page_scroll_post",
    request_body = ScrollRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn scroll(State(service): State<Arc<BrowserService>>, Body(request): Body<ScrollRequest>) -> Reply<Value> {
    let direction = request.direction()?;
    acted(service, "Scrolled".to_owned(), move |work| async move { Ok(at(work.scroll(direction, request.amount).await?)) }).await
}

/// Scrolls the page to a position.
#[utoipa::path(post, path = "/v1/browser/page/scroll_to", tag = "browser",
    operation_id = "scroll_to_v1_browser_page_scroll_to_post", request_body = ScrollToRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn scroll_to(State(service): State<Arc<BrowserService>>, Body(request): Body<ScrollToRequest>) -> Reply<Value> {
    acted(service, "Scrolled".to_owned(), move |work| async move { Ok(at(work.scroll_to(request.x, request.y).await?)) }).await
}

/// Scrolls until an element is visible.
#[utoipa::path(post, path = "/v1/browser/page/scroll_to_element", tag = "browser",
    operation_id = "scroll_to_element_v1_browser_page_scroll_to_element_post", request_body = ScrollToElementRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn scroll_to_element(
    State(service): State<Arc<BrowserService>>,
    Body(request): Body<ScrollToElementRequest>,
) -> Reply<Value> {
    acted(service, "Scrolled".to_owned(), |work| async move { Ok(at(work.scroll_to_element(request.selector).await?)) }).await
}

/// Takes a screenshot of the page. The headers `x-image-width` and `x-image-height` have its size.
#[utoipa::path(get, path = "/v1/browser/page/screenshot", tag = "browser",
    operation_id = "page_screenshot_v1_browser_page_screenshot_get", params(PictureQuery),
    responses((status = 200, content((Vec<u8> = "image/png")))))]
async fn screenshot(
    State(service): State<Arc<BrowserService>>,
    QueryArgs(query): QueryArgs<PictureQuery>,
) -> Result<Response, ApiError> {
    let format = Format::named(&query.format)?;
    let shot = move |work: Arc<Work>| async move { work.screenshot(query.full_page, format, query.quality).await };
    let picture = looked(service, shot).await?;
    let mut answer = picture.file.into_response();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    for (name, side) in [("x-image-width", picture.width), ("x-image-height", picture.height)] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(side));
    }
    Ok(answer)
}

/// Records the page as a video.
#[utoipa::path(post, path = "/v1/browser/page/record", tag = "browser",
    operation_id = "page_record_v1_browser_page_record_post", request_body = RecordRequest,
    responses((status = 200, body = Envelope<Fields>)))]
async fn record(State(service): State<Arc<BrowserService>>, Body(request): Body<RecordRequest>) -> Reply<Value> {
    ok(json!(whole(async move { service.recordings.act(&service, request).await }).await?))
}

/// The page's current HTML.
#[utoipa::path(get, path = "/v1/browser/page/html", tag = "browser", operation_id = "get_html_v1_browser_page_html_get",
    params(HtmlQuery), responses((status = 200, body = Envelope<String>)))]
async fn html(State(service): State<Arc<BrowserService>>, QueryArgs(query): QueryArgs<HtmlQuery>) -> Reply<String> {
    ok(looked(service, move |work| async move { work.html(query.outer).await }).await?)
}

/// The page's visible text.
#[utoipa::path(get, path = "/v1/browser/page/text", tag = "browser", operation_id = "get_text_v1_browser_page_text_get",
    responses((status = 200, body = Envelope<String>)))]
async fn text(State(service): State<Arc<BrowserService>>) -> Reply<String> {
    ok(looked(service, |work| async move { work.text().await }).await?)
}

/// The page's main content as Markdown.
#[utoipa::path(get, path = "/v1/browser/page/markdown", tag = "browser",
    operation_id = "get_markdown_v1_browser_page_markdown_get", responses((status = 200, body = Envelope<Fields>)))]
async fn markdown(State(service): State<Arc<BrowserService>>) -> Reply<Value> {
    ok(json!(looked(service, |work| async move { work.markdown().await }).await?))
}

/// The usable elements of the page and its frames: role, name, position, and an index for other calls.
#[utoipa::path(get, path = "/v1/browser/page/elements", tag = "browser",
    operation_id = "get_interactive_elements_v1_browser_page_elements_get",
    responses((status = 200, body = Envelope<Items>)))]
async fn elements(State(service): State<Arc<BrowserService>>) -> Reply<Vec<Value>> {
    ok(looked(service, |work| async move { work.elements().await }).await?)
}

/// The messages of the page's console, the oldest first.
#[utoipa::path(get, path = "/v1/browser/page/console", tag = "browser",
    operation_id = "get_console_logs_v1_browser_page_console_get", params(ConsoleQuery),
    responses((status = 200, body = Envelope<Items>)))]
async fn console(State(service): State<Arc<BrowserService>>, QueryArgs(query): QueryArgs<ConsoleQuery>) -> Reply<Vec<Value>> {
    ok(list(looked(service, move |work| async move { Ok(work.console(query.clear)) }).await?))
}

/// Writes the console's messages to a file of the sandbox.
#[utoipa::path(post, path = "/v1/browser/page/console/export", tag = "browser",
    operation_id = "export_console_logs_v1_browser_page_console_export_post", request_body = ExportConsoleLogsRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn export_console(
    State(service): State<Arc<BrowserService>>,
    Body(request): Body<ExportConsoleLogsRequest>,
) -> Reply<Value> {
    let of = service.clone();
    let export = move |work: Arc<Work>| async move { work.export_console(&of.runtime, &request.save_path, request.clear).await };
    ok(json!(looked(service, export).await?))
}

/// Runs JavaScript in the page: an expression, statements, or a body with `return`; `await` works in all of them.
#[utoipa::path(post, path = "/v1/browser/page/evaluate", tag = "browser",
    operation_id = "evaluate_v1_browser_page_evaluate_post", request_body = EvaluateRequest,
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn evaluate(State(service): State<Arc<BrowserService>>, Body(request): Body<EvaluateRequest>) -> Reply<Value> {
    ok(looked(service, |work| async move { work.evaluate(&request.expression).await }).await?)
}

/// The places where a text is shown in the page and its frames.
#[utoipa::path(post, path = "/v1/browser/page/find_text", tag = "browser",
    operation_id = "find_text_v1_browser_page_find_text_post", request_body = FindTextRequest,
    responses((status = 200, body = Envelope<Items>)))]
async fn find_text(State(service): State<Arc<BrowserService>>, Body(request): Body<FindTextRequest>) -> Reply<Vec<Value>> {
    ok(looked(service, |work| async move { work.find_text(&request.keyword).await }).await?)
}

/// Waits for an element, a page, an address, a request, an expression, a download or a time.
#[utoipa::path(post, path = "/v1/browser/page/wait", tag = "browser", operation_id = "wait_v1_browser_page_wait_post",
    request_body = WaitRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn wait(State(service): State<Arc<BrowserService>>, Body(request): Body<WaitRequest>) -> Reply<Value> {
    let of = service.clone();
    ok(looked(service, |work| async move { work.wait(&of.runtime, &request).await }).await?)
}

/// The dialog that the page shows, and the answered ones. Does not answer any.
#[utoipa::path(get, path = "/v1/browser/page/dialog", tag = "browser", operation_id = "get_dialog_v1_browser_page_dialog_get",
    responses((status = 200, body = Envelope<DialogState>)))]
async fn dialog(State(service): State<Arc<BrowserService>>) -> Reply<DialogState> {
    ok(whole(async move { super::dialog::state(&service).await }).await?)
}

/// Answers the dialog that the page shows. If none is shown, sets the answer to the next one: without it, alerts and leaving are
/// accepted and questions declined while a call works in the page.
#[utoipa::path(post, path = "/v1/browser/page/dialog", tag = "browser",
    operation_id = "answer_dialog_v1_browser_page_dialog_post", request_body = DialogRequest,
    responses((status = 200, body = Envelope<DialogState>)))]
async fn answer_dialog(State(service): State<Arc<BrowserService>>, Body(request): Body<DialogRequest>) -> Reply<DialogState> {
    let answered = whole(async move {
        let was_shown = super::dialog::answer(&service, request).await?;
        Ok::<_, PageError>((was_shown, super::dialog::state(&service).await?))
    });
    let (was_shown, state) = answered.await?;
    ok_message(state, if was_shown { "Answered the dialog" } else { "No dialog is shown: the next one is answered so" })
}

/// Whether the page shows a captcha.
#[utoipa::path(get, path = "/v1/browser/captcha/detect", tag = "browser",
    operation_id = "detect_captcha_v1_browser_captcha_detect_get", responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn detect_captcha(State(service): State<Arc<BrowserService>>) -> Reply<Value> {
    ok(json!(looked(service, |work| async move { work.captchas().await }).await?))
}

/// Waits until no captcha is left.
#[utoipa::path(post, path = "/v1/browser/captcha/wait", tag = "browser",
    operation_id = "wait_for_captcha_v1_browser_captcha_wait_post", request_body = CaptchaWaitRequest,
    responses((status = 200, body = Envelope<CaptchaWaitResult>)))]
async fn wait_for_captcha(
    State(service): State<Arc<BrowserService>>,
    Body(request): Body<CaptchaWaitRequest>,
) -> Reply<CaptchaWaitResult> {
    ok(looked(service, move |work| async move { work.captchas_solved(request.timeout, request.poll_interval).await }).await?)
}
