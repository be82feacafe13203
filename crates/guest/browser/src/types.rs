//! Arguments and results of the service; their JSON is AIO's.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use arenite_guest_desktop::desktop::PictureFormat;

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BrowserInfoResult {
    pub user_agent: String,
    /// A WebSocket for clients of the DevTools protocol, as the caller reaches it.
    pub cdp_url: String,
    /// The page that shows the desktop.
    pub vnc_url: String,
    /// Always null: the desktop's page shows the browser.
    pub cdp_ui_url: Option<String>,
    /// Size of the screen.
    pub viewport: BrowserViewport,
    /// Size of the page in the visible tab: the screen without the browser's toolbars.
    pub page_viewport: Option<BrowserViewport>,
}

/// A list with items that AIO does not specify.
#[derive(Debug, Serialize, ToSchema)]
pub struct Items(pub Vec<serde_json::Value>);

/// An object with fields that AIO does not specify.
#[derive(Debug, Serialize, ToSchema)]
pub struct Fields(pub std::collections::HashMap<String, serde_json::Value>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrowserViewport {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ScreenshotQuery {
    /// The kind of image.
    #[serde(default)]
    #[param(inline)]
    pub(super) format: PictureFormat,
    /// Of a JPEG, from the smallest file to the best one. Absent: 80.
    #[serde(default, deserialize_with = "arenite_guest_runtime::http::optional_within::<_, 0, 100>")]
    #[param(minimum = 0, maximum = 100)]
    pub(super) quality: Option<i64>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct BrowserConfigRequest {
    /// The screen's new size. Absent: it stays. The sizes are 1920x1200, 1920x1080, 1600x1200, 1680x1050, 1400x1050, 1360x768,
    /// 1280x1024, 1280x960, 1280x800, 1280x720, 1024x768, 800x600 and 640x480, and the initial one.
    #[serde(default, deserialize_with = "resolution")]
    pub resolution: Option<Resolution>,
}

/// Parses an object, or a text such as `1920x1080`.
fn resolution<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Resolution>, D::Error> {
    let given = match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => match text.split_once(['x', 'X', '×', '*']) {
            Some((width, height)) => serde_json::json!({"width": width.trim(), "height": height.trim()}),
            None => return Err(serde::de::Error::custom(format!("{text:?} is no size such as 1920x1080"))),
        },
        given => given,
    };
    Option::deserialize(arenite_guest_runtime::http::Lax(given)).map_err(serde::de::Error::custom)
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
pub struct Resolution {
    /// Width in pixels.
    #[serde(deserialize_with = "arenite_guest_runtime::http::within::<_, 1, 100_000>")]
    #[schema(exclusive_minimum = 0)]
    pub width: i64,
    /// Height in pixels.
    #[serde(deserialize_with = "arenite_guest_runtime::http::within::<_, 1, 100_000>")]
    #[schema(exclusive_minimum = 0)]
    pub height: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "hard")]
pub enum RestartMode {
    /// Reconnects to the browser; its tabs stay.
    Soft,
    /// Ends the browser and starts another, with the same profile.
    #[default]
    Hard,
}

/// Absent settings stay unchanged.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct RestartRequest {
    #[serde(default)]
    #[schema(inline)]
    pub mode: RestartMode,
    /// Pages that can't be opened, such as `example.com` or `*`. For hard restarts only, like everything below.
    pub url_blocklist: Option<Vec<String>>,
    /// Pages that can be opened even if they are blocked.
    pub url_allowlist: Option<Vec<String>>,
    /// Whether pages may open file dialogs; null: the browser's default.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<bool>)]
    pub allow_file_selection_dialogs: Option<Option<bool>>,
    /// The language of pages and of the browser, such as `de-DE`.
    pub locale: Option<String>,
}

/// Distinguishes null from absent.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<bool>>, D::Error> {
    Option::<bool>::deserialize(deserializer).map(Some)
}
