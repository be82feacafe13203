//! Arguments and results of the service; their JSON is AIO's.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::automation::Stage;
use super::PageError;
use super::form::Item;
use arenite_guest_desktop::desktop::positive;
use arenite_guest_runtime::http::within;

/// The loading stage to wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "load")]
pub enum WaitUntil {
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
pub(super) struct NavigateRequest {
    /// Without a scheme, `https` is used; `http` for this machine.
    pub url: String,
    #[serde(default)]
    #[schema(inline)]
    pub wait_until: WaitUntil,
    /// In seconds.
    #[serde(default = "half_a_minute")]
    #[schema(default = 30)]
    pub timeout: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageButton {
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
pub struct ClickArguments {
    pub selector: Option<String>,
    /// An index in the list of elements.
    pub index: Option<i64>,
    pub x: Option<f64>,
    pub y: Option<f64>,
    /// `left`, `right` or `middle`.
    #[serde(default = "left")]
    #[schema(default = "left")]
    pub button: String,
    #[serde(default = "once")]
    #[schema(default = 1)]
    pub click_count: i64,
}

/// A valid click.
#[derive(Debug)]
pub struct ClickRequest {
    pub selector: Option<String>,
    pub index: Option<i64>,
    pub x: Option<f64>,
    pub y: Option<f64>,
    pub button: PageButton,
    pub click_count: i64,
}

impl TryFrom<ClickArguments> for ClickRequest {
    type Error = PageError;

    fn try_from(given: ClickArguments) -> Result<Self, PageError> {
        let ClickArguments { selector, index, x, y, button, click_count } = given;
        Ok(Self { selector, index, x, y, button: PageButton::named(&button)?, click_count })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FillRequest {
    pub selector: Option<String>,
    /// An index in the list of elements.
    pub index: Option<i64>,
    #[serde(alias = "value")]
    pub text: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TypeTextRequest {
    pub text: String,
    /// Milliseconds between two keys.
    #[serde(default)]
    #[schema(default = 0)]
    pub delay: f64,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct KeyRequest {
    /// Such as `Enter`, `a` or `Control+A`.
    pub key: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct HotKeyRequest {
    /// Pressed in this order, and released in reverse order.
    pub keys: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct HoverRequest {
    pub selector: Option<String>,
    pub x: Option<f64>,
    pub y: Option<f64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SelectOptionRequest)]
pub(super) struct SelectRequest {
    pub selector: String,
    /// Give one of the three.
    pub value: Option<String>,
    pub label: Option<String>,
    /// From 0.
    pub index: Option<i64>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CheckRequest {
    pub selector: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct UploadFileRequest {
    pub selector: String,
    /// Paths in the sandbox.
    pub files: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FormFillRequest {
    /// Each with a `selector` or an `index`, and a `value`.
    #[schema(value_type = Vec<serde_json::Map<String, serde_json::Value>>)]
    pub(super) items: Vec<Item>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrollDirection {
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
pub(super) struct ScrollRequest {
    /// `up`, `down`, `left` or `right`.
    #[serde(default = "down")]
    #[schema(default = "down")]
    pub direction: String,
    /// In pixels.
    #[serde(default = "three_hundred")]
    #[schema(default = 300)]
    pub amount: i64,
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
pub(super) struct ScrollToRequest {
    #[serde(default)]
    #[schema(default = 0)]
    pub x: i64,
    #[serde(default)]
    #[schema(default = 0)]
    pub y: i64,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ScrollToElementRequest {
    pub selector: String,
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
pub(super) enum RecordAction {
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
pub(super) struct RecordRequest {
    #[serde(default)]
    #[schema(inline)]
    pub action: RecordAction,
    /// The file. Its extension selects the format: `mp4`, `webm` or `gif`. Absent: an mp4 in `~/recordings`.
    pub save_path: Option<String>,
    /// Seconds after which the recording ends. Absent: with `once` 10, otherwise when it is stopped.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = f64, required = false, default = 10, exclusive_minimum = 0)]
    pub duration: Option<f64>,
    /// Number of frames each second.
    #[serde(default = "fifteen", deserialize_with = "within::<_, 1, 1000>")]
    #[schema(default = 15, exclusive_minimum = 0)]
    pub fps: i64,
    #[serde(default = "eighty", deserialize_with = "within::<_, 0, 100>")]
    #[schema(default = 80, minimum = 0, maximum = 100)]
    pub quality: i64,
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
pub(super) struct ExportConsoleLogsRequest {
    pub save_path: String,
    #[serde(default)]
    #[schema(default = false)]
    pub clear: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EvaluateRequest {
    #[serde(alias = "script")]
    pub expression: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FindTextRequest {
    pub keyword: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaitType {
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
pub(super) struct WaitRequest {
    #[schema(inline)]
    pub r#type: WaitType,
    pub selector: Option<String>,
    /// For a selector: `attached`, `detached`, `visible` or `hidden`; for `load`: `load`, `domcontentloaded` or `networkidle`.
    pub state: Option<String>,
    /// Exact, a glob or a `/regular expression/`.
    pub url: Option<String>,
    /// The path to which a download is copied.
    pub save_path: Option<String>,
    /// In seconds.
    #[serde(default = "half_a_minute")]
    #[schema(default = 30)]
    pub timeout: f64,
    pub expression: Option<String>,
    /// Milliseconds between two checks.
    pub polling: Option<f64>,
    pub url_pattern: Option<String>,
}

fn a_minute() -> f64 {
    60.0
}

fn two() -> f64 {
    2.0
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CaptchaWaitRequest {
    /// In seconds.
    #[serde(default = "a_minute")]
    #[schema(default = 60)]
    pub timeout: f64,
    /// In seconds.
    #[serde(default = "two")]
    #[schema(default = 2)]
    pub poll_interval: f64,
}
