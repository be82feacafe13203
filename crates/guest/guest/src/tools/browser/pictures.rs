//! Screenshots of the page, and clicks in them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{LIST_ELEMENTS, act, look as looked, target};
use crate::tools::answer::{MAX_PICTURE, picture};
use crate::tools::tool::{Caller, ToolResult};
use arenite_guest_browser::{ClickRequest, PageButton, PageError, PageFormat, PagePicture, Shot, Work};
use arenite_guest_runtime::http::{ApiError, whole};

/// Valid sides of a viewport, in pixels.
const SIDES: std::ops::RangeInclusive<u32> = 50..=4096;

/// Takes a picture of what the current tab's page shows. browser_vision_screen_click clicks at places in it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct VisionScreenCapture {}

pub(super) async fn look(caller: Caller, VisionScreenCapture {}: VisionScreenCapture) -> ToolResult {
    let (taken, format) = taken(&caller, Shot::default()).await?;
    let said = format!("What the page shows: {} x {} pixels", taken.width, taken.height);
    told(&taken, format, said)
}

/// Clicks at a place of the current tab's page, as the picture of browser_vision_screen_capture shows it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct VisionScreenClick {
    /// Pixels from the left edge of the picture.
    #[schemars(example = 200)]
    x: f64,
    /// Pixels from the top edge of the picture.
    #[schemars(example = 120)]
    y: f64,
    /// What x and y are multiplied by, for places in a picture of another size: one number for both, or one for each.
    #[schemars(example = [1.0, 1.0], length(max = 2))]
    factors: Option<Vec<f64>>,
}

pub(super) async fn click(caller: Caller, VisionScreenClick { x, y, factors }: VisionScreenClick) -> ToolResult {
    let (by_x, by_y) = match factors.as_deref().unwrap_or_default() {
        [] => (1.0, 1.0),
        [both] => (*both, *both),
        [by_x, by_y] => (*by_x, *by_y),
        more => return Err(ApiError::bad_request(format!("factors has {} numbers: give up to two", more.len()))),
    };
    let (x, y) = (x * by_x, y * by_y);
    let hint = "browser_vision_screen_capture shows what can be clicked at, and how large it is";
    let request = ClickRequest { selector: None, index: None, x: Some(x), y: Some(y), button: PageButton::Left, click_count: 1 };
    act(&caller, format!("Clicked at {x:.0}, {y:.0}"), hint, |work| async move {
        let (width, height) = work.size().await?;
        if !(0.0..width).contains(&x) || !(0.0..height).contains(&y) {
            return Err(PageError::Bad(format!("{x:.0}, {y:.0} is outside of what the page shows: {width} x {height} pixels")));
        }
        let (place, (x, y)) = work.click(request).await?;
        Ok(json!({"url": place.url, "title": place.title, "x": x, "y": y}))
    })
    .await
}

/// Takes a picture of the current tab's page: of its visible part, of all of it, or of one element.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Screenshot {
    /// A name for the picture in the answer.
    name: Option<String>,
    /// An element: CSS, `text=…`, `role=…[name="…"]` or an XPath.
    #[schemars(example = "main article")]
    selector: Option<String>,
    /// Or: an element's index of browser_get_clickable_elements.
    index: Option<i64>,
    /// Width of the viewport while the picture is taken, in pixels. Absent: unchanged.
    #[schemars(range(min = 50, max = 4096))]
    width: Option<f64>,
    /// Height of the viewport while the picture is taken, in pixels. Absent: unchanged.
    #[schemars(range(min = 50, max = 4096))]
    height: Option<f64>,
    /// The whole page instead of its visible part.
    #[serde(default, rename = "fullPage", alias = "full_page")]
    full_page: bool,
    /// Draw a box around each element that can be used, with its index.
    #[serde(default)]
    highlight: bool,
}

pub(super) async fn screenshot(caller: Caller, args: Screenshot) -> ToolResult {
    let selector = args.selector.filter(|selector| !selector.trim().is_empty());
    let target = match (selector, args.index) {
        (None, None) => None,
        (selector, index) => Some(target(selector, index)?),
    };
    let side = |name: &str, given: Option<f64>| match given {
        None => Ok(None),
        Some(side) if SIDES.contains(&(side as u32)) => Ok(Some(side as u32)),
        Some(side) => Err(ApiError::bad_request(format!("{name} is {side}: it can be {} to {}", SIDES.start(), SIDES.end()))),
    };
    let (width, height) = (side("width", args.width)?, side("height", args.height)?);
    let what = match &target {
        Some(target) => target.to_string(),
        None if args.full_page => "All of the page".to_owned(),
        None => "What the page shows".to_owned(),
    };
    let shot = Shot { target, full: args.full_page, width, height, marked: args.highlight };
    // If the caller leaves, the page is restored all the same.
    let (taken, format) = whole(async move { taken(&caller, shot).await }).await?;
    let name = args.name.map(|name| format!("{name}: ")).unwrap_or_default();
    told(&taken, format, format!("{name}{what}, {} x {} pixels", taken.width, taken.height))
}

/// Takes a picture within the size limit.
async fn taken(caller: &Caller, shot: Shot) -> Result<(PagePicture, PageFormat), ApiError> {
    for format in [PageFormat::Png, PageFormat::Jpeg] {
        let shot = shot.clone();
        let take = |work: Arc<Work>| async move { work.shot(&shot, format).await };
        let taken = looked(caller, LIST_ELEMENTS, take).await?;
        if taken.file.len() <= MAX_PICTURE {
            return Ok((taken, format));
        }
    }
    Err(ApiError::bad_request(format!("the picture would have more than {MAX_PICTURE} bytes"))
        .hint("take one of a part: without fullPage after browser_scroll, or of an element by selector"))
}

fn told(taken: &PagePicture, format: PageFormat, said: String) -> ToolResult {
    picture(&taken.file, format.media_type(), said, &json!({"width": taken.width, "height": taken.height}))
}
