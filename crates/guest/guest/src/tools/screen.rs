//! The whole screen that shows the browser: addresses, screenshots, and input.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::answer::{MAX_PICTURE, picture, worded};
use super::tool::{Caller, Effect, Tool, ToolResult, structured};
use arenite_guest_desktop::desktop::Format;
use arenite_guest_desktop::desktop::{Action, ActionData};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("sandbox_get_browser_info", "Tell about the browser", Effect::Reads, info),
        Tool::new("sandbox_browser_screenshot", "Take a picture of the screen", Effect::Fetches, screenshot),
        Tool::new("sandbox_browser_execute_action", "Use mouse and keyboard on the screen", Effect::Anything, act),
    ]
}

/// Describes the sandbox's browser: its user agent, the size of the screen (`viewport`) and of the page in it (`page_viewport`),
/// the WebSocket for DevTools clients (`cdp_url`) and the page that shows the screen (`vnc_url`). Starts the browser if it is not
/// running.
#[derive(Debug, Deserialize, JsonSchema)]
struct GetBrowserInfo {}

async fn info(Caller { guest, address, .. }: Caller, GetBrowserInfo {}: GetBrowserInfo) -> ToolResult {
    structured(&guest.browser.info(&address).await?)
}

/// Takes a picture of the whole screen: the browser's window with its toolbars and tabs, and anything in front of it. Positions
/// in it are those that `sandbox_browser_execute_action` takes. For the page alone, use `browser_vision_screen_capture` or
/// `browser_screenshot`.
#[derive(Debug, Deserialize, JsonSchema)]
struct Screenshot {}

async fn screenshot(Caller { guest, .. }: Caller, Screenshot {}: Screenshot) -> ToolResult {
    let mut format = Format::Png;
    let (mut taken, mut file) = guest.browser.picture(format).await?;
    if file.len() > MAX_PICTURE {
        format = Format::Jpeg(None);
        (taken, file) = guest.browser.picture(format).await?;
    }
    let (width, height) = (taken.width, taken.height);
    let said = format!("The screen: {width} x {height} pixels");
    picture(&file, format.media_type(), said, &json!({"width": width, "height": height}))
}

/// Performs one mouse or keyboard action of a person, anywhere on the screen, including the browser's own toolbars and dialogs,
/// which the tools for pages don't reach. Positions are pixels of the picture that `sandbox_browser_screenshot` takes.
#[derive(Debug, Deserialize, JsonSchema)]
struct ExecuteAction {
    /// What to do: an object with `action_type` and what that type takes.
    #[schemars(example = json!({"action_type": "CLICK", "x": 640, "y": 400}))]
    #[schemars(example = json!({"action_type": "HOTKEY", "keys": ["ctrl", "l"]}))]
    action: Action,
}

async fn act(Caller { guest, .. }: Caller, ExecuteAction { action }: ExecuteAction) -> ToolResult {
    guest.browser.perform(&action).await?;
    let done = ActionData::new(&action);
    worded(format!("{} done; sandbox_browser_screenshot shows the screen after it", done.action_performed), &done)
}
