//! Mouse input in a page, by the browser's own events.

use futures_util::future::try_join_all;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::Instant;

use super::element::{Element, Viewport};
use super::types::{ClickRequest, HoverRequest, PageButton, ScrollDirection};
use super::{PageError, PageLocation, Target, Work};

/// A point in the page's viewport.
pub(super) type Point = (f64, f64);

/// Maximum clicks of one call.
const MAX_CLICKS: i64 = 20;

/// A point in the viewport, if one is given.
fn point(x: Option<f64>, y: Option<f64>) -> Result<Option<Point>, PageError> {
    match (x, y) {
        (Some(x), Some(y)) if x >= 0.0 && y >= 0.0 && x < 1e6 && y < 1e6 => Ok(Some((x, y))),
        (Some(_), Some(_)) => Err(PageError::Bad("x and y are no place in the page".to_owned())),
        (None, None) => Ok(None),
        _ => Err(PageError::Bad("give both x and y".to_owned())),
    }
}

fn moved((x, y): Point) -> serde_json::Value {
    json!({"type": "mouseMoved", "x": x, "y": y})
}

impl Work {
    pub async fn click(&self, request: ClickRequest) -> Result<(PageLocation, Point), PageError> {
        let ClickRequest { selector, index, x, y, button, click_count } = request;
        if !(1..=MAX_CLICKS).contains(&click_count) {
            return Err(PageError::Bad(format!("click_count is from 1 to {MAX_CLICKS}")));
        }
        let at = match (selector, index, point(x, y)?) {
            (None, None, Some(at)) => {
                let _hands = self.tab.hands.lock().await;
                self.click_at(at, button, click_count).await?;
                at
            }
            (_, _, Some(_)) => {
                return Err(PageError::Bad("give a selector, an index or x and y, and only one of them".to_owned()));
            }
            (None, None, None) => return Err(PageError::Bad("give a selector, an index, or x and y".to_owned())),
            (selector, index, None) => self.click_element(&Target::new(selector, index)?, button, click_count).await?,
        };
        Ok((self.settled().await?, at))
    }

    /// Clicks an element once it is clickable.
    pub(super) async fn click_element(&self, target: &Target, button: PageButton, count: i64) -> Result<Point, PageError> {
        let act = |element: Element| async move {
            let _hands = self.tab.hands.lock().await;
            match self.reach(target, &element).await? {
                Ok(at) => self.click_at(at, button, count).await.map(|()| Ok(at)),
                Err(not_yet) => Ok(Err(not_yet)),
            }
        };
        self.tab.with(target, act).await
    }

    /// Scrolls an element into view, and returns the point where the mouse reaches it, or the reason why not.
    async fn reach(&self, target: &Target, element: &Element) -> Result<Result<Point, PageError>, PageError> {
        self.show(element).await?;
        if let Err(why) = self.tab.usable(target, element).await? {
            return Ok(Err(why));
        }
        let Some((x, y)) = self.tab.middle(element).await? else {
            return Ok(Err(PageError::Failed(format!("{target} can't be brought into view"))));
        };
        if !self.tab.is_hit(element, x, y).await? {
            return Ok(Err(PageError::Failed(format!("{target} is covered by another element"))));
        }
        Ok(Ok((x, y)))
    }

    /// Scrolls an element into view, if it has a box.
    pub(super) async fn show(&self, element: &Element) -> Result<(), PageError> {
        let shown: Result<IgnoredAny, _> = self.tab.call("DOM.scrollIntoViewIfNeeded", json!({"objectId": element.object})).await;
        match shown {
            Err(arenite_guest_cdp::CdpError::Refused { message, .. }) if message.contains("layout object") => Ok(()),
            shown => Ok(shown.map(drop)?),
        }
    }

    async fn click_at(&self, (x, y): Point, button: PageButton, count: i64) -> Result<(), PageError> {
        let (button, bit) = match button {
            PageButton::Left => ("left", 1),
            PageButton::Right => ("right", 2),
            PageButton::Middle => ("middle", 4),
        };
        let press = |nth: i64, kind: &str, buttons: u8| json!({"type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": nth});
        let clicks = (1..=count).flat_map(|nth| [press(nth, "mousePressed", bit), press(nth, "mouseReleased", 0)]);
        // All are sent at once, in this order: the browser answers mouse movements only with its next frame.
        try_join_all([moved((x, y))].into_iter().chain(clicks).map(|event| self.mouse(event))).await.map(drop)
    }

    async fn mouse(&self, event: serde_json::Value) -> Result<(), PageError> {
        Ok(self.tab.effect("Input.dispatchMouseEvent", event).await?)
    }

    pub(super) async fn hover(&self, request: HoverRequest) -> Result<PageLocation, PageError> {
        match (request.selector, point(request.x, request.y)?) {
            (None, Some(at)) => {
                self.mouse(moved(at)).await?;
                self.settled().await
            }
            (Some(selector), None) => self.hover_over(&Target::selector(selector)?).await.map(|(location, _)| location),
            _ => Err(PageError::Bad("give a selector, or x and y".to_owned())),
        }
    }

    /// Moves the mouse over an element once it is reachable.
    pub async fn hover_over(&self, target: &Target) -> Result<(PageLocation, Point), PageError> {
        let act = |element: Element| async move {
            match self.reach(target, &element).await? {
                Ok(at) => self.mouse(moved(at)).await.map(|()| Ok(at)),
                Err(not_yet) => Ok(Err(not_yet)),
            }
        };
        let at = self.tab.with(target, act).await?;
        Ok((self.settled().await?, at))
    }

    /// Turns the wheel in the center of the page. Returns the scroll position afterwards.
    pub async fn scroll(&self, direction: ScrollDirection, amount: i64) -> Result<(PageLocation, Point), PageError> {
        if !(0..=1_000_000).contains(&amount) {
            return Err(PageError::Bad("amount is from 0 to 1000000 pixels".to_owned()));
        }
        let amount = amount as f64;
        let (dx, dy) = match direction {
            ScrollDirection::Up => (0.0, -amount),
            ScrollDirection::Down => (0.0, amount),
            ScrollDirection::Left => (-amount, 0.0),
            ScrollDirection::Right => (amount, 0.0),
        };
        let Viewport { client_width: width, client_height: height, .. } = self.tab.viewport().await?;
        let before = self.offsets().await?;
        let wheel = json!({"type": "mouseWheel", "x": width / 2.0, "y": height / 2.0, "deltaX": dx, "deltaY": dy});
        self.mouse(wheel).await?;
        // The compositor scrolls after the wheel event was answered.
        let moved = |now: Point| now != before;
        let deadline = Instant::now() + std::time::Duration::from_millis(500);
        let mut last = before;
        while Instant::now() < deadline {
            self.frames().await?;
            let now = self.offsets().await?;
            if moved(now) && now == last {
                break;
            }
            last = now;
        }
        Ok((self.location(), self.offsets().await?))
    }

    pub async fn scroll_to(&self, x: i64, y: i64) -> Result<(PageLocation, Point), PageError> {
        let script = format!("window.scrollTo({{left: {x}, top: {y}, behavior: 'instant'}})");
        self.tab.ours(&script).await?;
        Ok((self.location(), self.offsets().await?))
    }

    pub(super) async fn scroll_to_element(&self, selector: String) -> Result<(PageLocation, Point), PageError> {
        let target = &Target::selector(selector)?;
        self.tab.with(target, |element| async move { self.show(&element).await.map(Ok) }).await?;
        Ok((self.location(), self.offsets().await?))
    }

    /// The number of pixels of the page above and below the visible part.
    pub async fn beyond(&self) -> Result<(f64, f64), PageError> {
        let all = "(document.scrollingElement ?? document.documentElement).scrollHeight";
        let told = self.tab.ours(&format!("[scrollY, {all} - innerHeight - scrollY]")).await?;
        Ok((told[0].as_f64().unwrap_or_default(), told[1].as_f64().unwrap_or_default().max(0.0)))
    }

    /// Width and height of the page's visible part.
    pub async fn size(&self) -> Result<(f64, f64), PageError> {
        let Viewport { client_width, client_height, .. } = self.tab.viewport().await?;
        Ok((client_width, client_height))
    }

    /// The scroll position.
    async fn offsets(&self) -> Result<Point, PageError> {
        let told = self.tab.ours("[window.scrollX, window.scrollY]").await?;
        Ok((told[0].as_f64().unwrap_or_default(), told[1].as_f64().unwrap_or_default()))
    }

    /// Waits until the page was drawn again.
    pub(super) async fn frames(&self) -> Result<(), PageError> {
        let drawn = "new Promise(done => { setTimeout(done, 60); requestAnimationFrame(() => requestAnimationFrame(done)); })";
        self.tab.ours(drawn).await.map(drop)
    }
}
