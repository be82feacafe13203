//! Arguments and results of the service; their JSON is AIO's.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::automation::Stage;
use super::PageError;
use super::form::Item;
use crate::desktop::positive;
use crate::http::within;

/// The loading stage to wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "load")]
pub(crate) enum WaitUntil {
    #[default]
    Load,
    DomContentLoaded,
    NetworkIdle,
    Commit,
}

impl WaitUntil {
    pub(super) fn stage(self) -> Stage {
        match self {
            Self::Commit => Stage::Commit,
            Self::DomContentLoaded => Stage::DomContentLoaded,
            Self::Load | Self::NetworkIdle => Stage::Load,
        }
    }
}

fn half_a_minute() -> f64 {
    30.0
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct NavigateRequest {
    /// Without a scheme, `https` is used; `http` for this machine.
    pub(in crate::browser) url: String,
    #[serde(default)]
    #[schema(inline)]
    pub(in crate::browser) wait_until: WaitUntil,
    /// In seconds.
    #[serde(default = "half_a_minute")]
    #[schema(default = 30)]
    pub(in crate::browser) timeout: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageButton {
    Left,
    Right,
    Middle,
}

impl PageButton {
    fn named(name: &str) -> Result<Self, PageError> {
        match name {
            "left" => Ok(Self::Left),
            "right" => Ok(Self::Right),
            "middle" => Ok(Self::Middle),
            _ => Err(PageError::Bad(format!("{name:?} is no button: there are left, right and middle"))),
        }
    }
}

fn left() -> String {
    "left".to_owned()
}

fn once() -> i64 {
    1
}

/// One of: a selector, an index, a point in the viewport.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ClickRequest)]
pub(in crate::browser) struct ClickArguments {
    pub(in crate::browser) selector: Option<String>,
    /// An index in the list of elements.
    pub(in crate::browser) index: Option<i64>,
    pub(in crate::browser) x: Option<f64>,
    pub(in crate::browser) y: Option<f64>,
    /// `left`, `right` or `middle`.
    #[serde(default = "left")]
    #[schema(default = "left")]
    pub(in crate::browser) button: String,
    #[serde(default = "once")]
    #[schema(default = 1)]
    pub(in crate::browser) click_count: i64,
}

/// A valid click.
#[derive(Debug)]
pub(crate) struct ClickRequest {
    pub(crate) selector: Option<String>,
    pub(crate) index: Option<i64>,
    pub(crate) x: Option<f64>,
    pub(crate) y: Option<f64>,
    pub(crate) button: PageButton,
    pub(crate) click_count: i64,
}

impl TryFrom<ClickArguments> for ClickRequest {
    type Error = PageError;

    fn try_from(given: ClickArguments) -> Result<Self, PageError> {
        let ClickArguments { selector, index, x, y, button, click_count } = given;
        Ok(Self { selector, index, x, y, button: PageButton::named(&button)?, click_count })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct FillRequest {
    pub(in crate::browser) selector: Option<String>,
    /// An index in the list of elements.
    pub(in crate::browser) index: Option<i64>,
    #[serde(alias = "value")]
    pub(in crate::browser) text: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct TypeTextRequest {
    pub(in crate::browser) text: String,
    /// Milliseconds between two keys.
    #[serde(default)]
    #[schema(default = 0)]
    pub(in crate::browser) delay: f64,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct KeyRequest {
    /// Such as `Enter`, `a` or `Control+A`.
    pub(in crate::browser) key: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct HotKeyRequest {
    /// Pressed in this order, and released in reverse order.
    pub(in crate::browser) keys: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct HoverRequest {
    pub(in crate::browser) selector: Option<String>,
    pub(in crate::browser) x: Option<f64>,
    pub(in crate::browser) y: Option<f64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SelectOptionRequest)]
pub(in crate::browser) struct SelectRequest {
    pub(in crate::browser) selector: String,
    /// Give one of the three.
    pub(in crate::browser) value: Option<String>,
    pub(in crate::browser) label: Option<String>,
    /// From 0.
    pub(in crate::browser) index: Option<i64>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct CheckRequest {
    pub(in crate::browser) selector: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct UploadFileRequest {
    pub(in crate::browser) selector: String,
    /// Paths in the sandbox.
    pub(in crate::browser) files: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct FormFillRequest {
    /// Each with a `selector` or an `index`, and a `value`.
    #[schema(value_type = Vec<serde_json::Map<String, serde_json::Value>>)]
    pub(super) items: Vec<Item>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScrollDirection {
    Up,
    Down,
    Left,
    Right,
}

fn down() -> String {
    "down".to_owned()
}

fn three_hundred() -> i64 {
    300
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct ScrollRequest {
    /// `up`, `down`, `left` or `right`.
    #[serde(default = "down")]
    #[schema(default = "down")]
    pub(in crate::browser) direction: String,
    /// In pixels.
    #[serde(default = "three_hundred")]
    #[schema(default = 300)]
    pub(in crate::browser) amount: i64,
}

impl ScrollRequest {
    pub(super) fn direction(&self) -> Result<ScrollDirection, PageError> {
        match self.direction.as_str() {
            "up" => Ok(ScrollDirection::Up),
            "down" => Ok(ScrollDirection::Down),
            "left" => Ok(ScrollDirection::Left),
            "right" => Ok(ScrollDirection::Right),
            other => Err(PageError::Bad(format!("{other:?} is no direction: there are up, down, left and right"))),
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct ScrollToRequest {
    #[serde(default)]
    #[schema(default = 0)]
    pub(in crate::browser) x: i64,
    #[serde(default)]
    #[schema(default = 0)]
    pub(in crate::browser) y: i64,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct ScrollToElementRequest {
    pub(in crate::browser) selector: String,
}

fn png() -> String {
    "png".to_owned()
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PictureQuery {
    /// The whole page instead of its visible part.
    #[serde(default)]
    #[param(default = false)]
    pub(super) full_page: bool,
    /// `png`, `jpeg` or `webp`.
    #[serde(default = "png")]
    #[param(default = "png")]
    pub(super) format: String,
    /// Quality of a JPEG or WebP, 0 to 100. Absent: 80.
    pub(super) quality: Option<i64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "once")]
pub(in crate::browser) enum RecordAction {
    /// Records for the duration, then answers.
    #[default]
    Once,
    Start,
    Pause,
    Resume,
    Stop,
    Status,
}

fn fifteen() -> i64 {
    15
}

fn eighty() -> i64 {
    80
}

fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    positive(deserializer).map(Some)
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct RecordRequest {
    #[serde(default)]
    #[schema(inline)]
    pub(in crate::browser) action: RecordAction,
    /// The file. Its extension selects the format: `mp4`, `webm` or `gif`. Absent: an mp4 in `~/recordings`.
    pub(in crate::browser) save_path: Option<String>,
    /// Seconds after which the recording ends. Absent: with `once` 10, otherwise when it is stopped.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = f64, required = false, default = 10, exclusive_minimum = 0)]
    pub(in crate::browser) duration: Option<f64>,
    /// Number of frames each second.
    #[serde(default = "fifteen", deserialize_with = "within::<_, 1, 1000>")]
    #[schema(default = 15, exclusive_minimum = 0)]
    pub(in crate::browser) fps: i64,
    #[serde(default = "eighty", deserialize_with = "within::<_, 0, 100>")]
    #[schema(default = 80, minimum = 0, maximum = 100)]
    pub(in crate::browser) quality: i64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct HtmlQuery {
    /// Include the document's root element.
    #[serde(default)]
    #[param(default = false)]
    pub(super) outer: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ConsoleQuery {
    /// Delete the returned messages.
    #[serde(default)]
    #[param(default = false)]
    pub(super) clear: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct ExportConsoleLogsRequest {
    pub(in crate::browser) save_path: String,
    #[serde(default)]
    #[schema(default = false)]
    pub(in crate::browser) clear: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct EvaluateRequest {
    #[serde(alias = "script")]
    pub(in crate::browser) expression: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct FindTextRequest {
    pub(in crate::browser) keyword: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::browser) enum WaitType {
    Selector,
    Load,
    Url,
    NetworkIdle,
    Download,
    Function,
    Response,
    Request,
    Timeout,
}

impl std::fmt::Display for WaitType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Request { "request" } else { "response" })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = PageWaitRequest)]
pub(in crate::browser) struct WaitRequest {
    #[schema(inline)]
    pub(in crate::browser) r#type: WaitType,
    pub(in crate::browser) selector: Option<String>,
    /// For a selector: `attached`, `detached`, `visible` or `hidden`; for `load`: `load`, `domcontentloaded` or `networkidle`.
    pub(in crate::browser) state: Option<String>,
    /// Exact, a glob or a `/regular expression/`.
    pub(in crate::browser) url: Option<String>,
    /// The path to which a download is copied.
    pub(in crate::browser) save_path: Option<String>,
    /// In seconds.
    #[serde(default = "half_a_minute")]
    #[schema(default = 30)]
    pub(in crate::browser) timeout: f64,
    pub(in crate::browser) expression: Option<String>,
    /// Milliseconds between two checks.
    pub(in crate::browser) polling: Option<f64>,
    pub(in crate::browser) url_pattern: Option<String>,
}

fn a_minute() -> f64 {
    60.0
}

fn two() -> f64 {
    2.0
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::browser) struct CaptchaWaitRequest {
    /// In seconds.
    #[serde(default = "a_minute")]
    #[schema(default = 60)]
    pub(in crate::browser) timeout: f64,
    /// In seconds.
    #[serde(default = "two")]
    #[schema(default = 2)]
    pub(in crate::browser) poll_interval: f64,
}
