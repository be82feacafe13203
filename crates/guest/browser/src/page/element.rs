//! Elements: finding them, waiting for them, and querying them.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::automation::{HELD, Tab, World};
use super::error::is_gone;
use super::evaluate::unwrap;
use super::{AUTO_WAIT, PageError};
use arenite_guest_cdp::CdpError;

/// Timeout for a page to answer our own calls. A page that computes longer is interrupted.
const ANSWER: Duration = Duration::from_secs(20);
/// Interval between checks of what has no event: styles, boxes, overlaps.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Maximum bytes of a selector.
const MAX_SELECTOR: usize = 10_000;

/// Identifies an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Selector(String),
    /// An index in the list that `elements` returns.
    Index(usize),
}

impl Target {
    /// # Errors
    /// If none or both are given, or one is invalid.
    pub fn new(selector: Option<String>, index: Option<i64>) -> Result<Self, PageError> {
        match (selector, index) {
            (Some(selector), None) => Self::selector(selector),
            (None, Some(index)) => {
                usize::try_from(index).map(Self::Index).map_err(|_| PageError::Bad("index is below 0".to_owned()))
            }
            (None, None) => Err(PageError::Bad("give a selector or an index".to_owned())),
            (Some(_), Some(_)) => Err(PageError::Bad("give a selector or an index, not both".to_owned())),
        }
    }

    pub(super) fn selector(selector: String) -> Result<Self, PageError> {
        if selector.trim().is_empty() {
            return Err(PageError::Bad("the selector is empty".to_owned()));
        }
        if selector.len() > MAX_SELECTOR {
            return Err(PageError::Bad(format!("a selector can have {MAX_SELECTOR} characters")));
        }
        Ok(Self::Selector(selector.trim().to_owned()))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Selector(selector) => write!(f, "{selector:?}"),
            Self::Index(index) => write!(f, "element {index}"),
        }
    }
}

/// An element, in the world in which it was found.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) object: String,
    pub(super) world: World,
}

/// The visible part of a page in CSS pixels: its size and scroll position.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Viewport {
    pub(super) client_width: f64,
    pub(super) client_height: f64,
    pub(super) page_x: f64,
    pub(super) page_y: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metrics {
    pub(super) css_content_size: Size,
    pub(super) css_layout_viewport: Viewport,
}

#[derive(Debug, Deserialize)]
pub(super) struct Size {
    pub(super) width: f64,
    pub(super) height: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Remote {
    object_id: Option<String>,
}

/// Polls for something that has no event. `look` returns it, or the reason why not yet; the last reason is the error.
pub(super) async fn eventually<T, F>(deadline: Instant, mut look: impl FnMut() -> F) -> Result<T, PageError>
where
    F: Future<Output = Result<Result<T, PageError>, PageError>>,
{
    loop {
        let last = match look().await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(not_yet)) => not_yet,
            Err(gone) if is_gone(&gone) => gone,
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(if is_gone(&last) {
                PageError::Failed("the page did not stay as it was for long enough".to_owned())
            } else {
                last
            });
        }
        sleep(LOOK).await;
    }
}

impl Tab {
    /// Calls a function of our library, `arenite.{name}`, in one of our worlds.
    pub(super) async fn library<R: DeserializeOwned>(&self, world: &World, name: &str, arguments: Value) -> Result<R, PageError> {
        let function = format!("(...all) => arenite.{name}(...all)");
        let value = self.function(json!({"uniqueContextId": world.unique}), &function, arguments, true).await?;
        read(name, value["value"].clone())
    }

    /// Calls a function with values as arguments, in a context or on an object, and awaits its promise.
    async fn function(&self, of: Value, function: &str, arguments: Value, by_value: bool) -> Result<Value, PageError> {
        let arguments: Vec<Value> = match arguments {
            Value::Array(list) => list.into_iter().map(|value| json!({"value": value})).collect(),
            _ => Vec::new(),
        };
        let mut params = json!({
            "functionDeclaration": function, "arguments": arguments, "returnByValue": by_value, "awaitPromise": true,
            "objectGroup": HELD,
        });
        if let (Some(params), Value::Object(of)) = (params.as_object_mut(), of) {
            params.extend(of);
        }
        self.asked("Runtime.callFunctionOn", params).await
    }

    /// Evaluates an expression of ours in one of our worlds.
    pub(super) async fn expression(&self, world: &World, expression: &str) -> Result<Value, PageError> {
        let params = json!({
            "expression": expression, "uniqueContextId": world.unique, "returnByValue": true, "awaitPromise": true,
        });
        Ok(self.asked("Runtime.evaluate", params).await?["value"].take())
    }

    /// Calls a method for a value; a page that doesn't answer is interrupted.
    async fn asked(&self, method: &'static str, params: Value) -> Result<Value, PageError> {
        let answer = self.call_within(method, params, ANSWER).await;
        if let Err(CdpError::TimedOut { .. }) = answer {
            self.interrupt().await;
            return Err(PageError::TooSlow { what: "the page did not answer", seconds: ANSWER.as_secs_f64() });
        }
        unwrap(answer?)
    }

    /// Interrupts JavaScript that does not end by itself.
    pub(super) async fn interrupt(&self) {
        // It may have ended by now.
        drop(self.call_within::<Value>("Runtime.terminateExecution", json!({}), Duration::from_secs(5)).await);
    }

    /// Returns what a frame's origin has stored: `origin`, `localStorage`, and `sessionStorage`.
    pub(crate) async fn storage(&self, world: &World) -> Result<Value, PageError> {
        self.library(world, "storage", json!([])).await
    }

    /// Sets what the page's origin has stored, once the page is of that origin.
    pub(crate) async fn set_storage(&self, origin: &str, local: Value, session: Value) -> Result<(), PageError> {
        let (local, session) = (&local, &session);
        eventually(Instant::now() + AUTO_WAIT, || async move {
            let elsewhere = || PageError::Failed(format!("no page of {origin} could be opened"));
            let world = self.state().main().and_then(|main| main.world.clone());
            let Some(world) = world else { return Ok(Err(elsewhere())) };
            if self.expression(&world, "location.origin").await? != origin {
                return Ok(Err(elsewhere()));
            }
            for (kind, items) in [("localStorage", local), ("sessionStorage", session)] {
                self.library::<Value>(&world, "setStorage", json!([kind, items])).await?;
            }
            Ok(Ok(()))
        })
        .await
    }

    /// Searches all frames once.
    pub(super) async fn look(&self, target: &Target) -> Result<Option<Element>, PageError> {
        match target {
            Target::Selector(selector) => {
                for world in self.worlds() {
                    match self.look_in(world, "find", json!([selector])).await {
                        Ok(None) => {}
                        Err(error) if is_gone(&error) => {}
                        found => return found,
                    }
                }
                Ok(None)
            }
            Target::Index(index) => {
                let numbered = self.state().numbered.get(*index).cloned();
                let Some((world, number)) = numbered else {
                    return Err(PageError::Missing(format!("no element has the index {index}: elements lists them")));
                };
                match self.look_in(world, "numbered", json!([number])).await {
                    Ok(Some(element)) => Ok(Some(element)),
                    Ok(None) => {
                        Err(PageError::Missing(format!("element {index} is not in the page any more: list the elements again")))
                    }
                    Err(error) if is_gone(&error) => {
                        Err(PageError::Missing(format!("element {index} was in another document: list the elements again")))
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn look_in(&self, world: World, name: &str, arguments: Value) -> Result<Option<Element>, PageError> {
        let function = format!("(...all) => arenite.{name}(...all)");
        let found = self.function(json!({"uniqueContextId": world.unique}), &function, arguments, false).await;
        let found: Remote = match found {
            Ok(found) => read(name, found)?,
            // Our library throws at invalid selectors.
            Err(PageError::Threw(why)) => {
                let why = why.lines().next().unwrap_or_default().trim_start_matches("Error: ").to_owned();
                return Err(PageError::Bad(format!("bad selector: {why}")));
            }
            Err(error) => return Err(error),
        };
        Ok(found.object_id.map(|object| Element { object, world }))
    }

    /// Waits until the element exists.
    pub(super) async fn find(&self, target: &Target, deadline: Instant) -> Result<Element, PageError> {
        let missing = || PageError::Missing(format!("no element matches {target} in the page or its frames"));
        eventually(deadline, || async { Ok(self.look(target).await?.ok_or_else(missing)) }).await
    }

    /// Finds an element and acts on it. If it disappears meanwhile, acts on its replacement.
    pub(super) async fn with<T, F>(&self, target: &Target, mut act: impl FnMut(Element) -> F) -> Result<T, PageError>
    where
        F: Future<Output = Result<Result<T, PageError>, PageError>>,
    {
        let deadline = Instant::now() + AUTO_WAIT;
        loop {
            let element = self.find(target, deadline).await?;
            let last = match act(element).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(not_yet)) => not_yet,
                Err(gone) if is_gone(&gone) => PageError::Failed(format!("{target} did not stay in the page")),
                Err(error) => return Err(error),
            };
            if Instant::now() >= deadline {
                return Err(last);
            }
            sleep(LOOK).await;
        }
    }

    /// Calls a function of our library on an element.
    pub(super) async fn on<R: DeserializeOwned>(&self, element: &Element, name: &str, arguments: Value) -> Result<R, PageError> {
        let function = format!("function (...all) {{ return arenite.{name}(this, ...all); }}");
        let value = self.function(json!({"objectId": element.object}), &function, arguments, true).await?;
        read(name, value["value"].clone())
    }

    /// Whether mouse and keyboard can use the element now, or the reason why not.
    pub(super) async fn usable(&self, target: &Target, element: &Element) -> Result<Result<(), PageError>, PageError> {
        let state: String = self.on(element, "ready", json!([])).await?;
        let why = match state.as_str() {
            "ready" => return Ok(Ok(())),
            "moving" => "does not stand still",
            "disabled" => "is disabled",
            "detached" => "is not in the page any more",
            _ => "is not visible",
        };
        Ok(Err(PageError::Failed(format!("{target} {why}"))))
    }

    /// The center of the element's visible part, in the page's viewport.
    pub(super) async fn middle(&self, element: &Element) -> Result<Option<(f64, f64)>, PageError> {
        #[derive(Deserialize)]
        struct Quads {
            quads: Vec<[f64; 8]>,
        }
        let quads: Result<Quads, _> = self.call("DOM.getContentQuads", json!({"objectId": element.object})).await;
        let quads = match quads {
            Ok(Quads { quads }) => quads,
            // The element has no box.
            Err(CdpError::Refused { message, .. }) if message.contains("compute content quads") => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Viewport { client_width: width, client_height: height, .. } = self.viewport().await?;
        let seen = |quad: &[f64; 8]| {
            let (xs, ys) = ([quad[0], quad[2], quad[4], quad[6]], [quad[1], quad[3], quad[5], quad[7]]);
            let side = |all: [f64; 4], limit: f64| {
                let low = all.into_iter().fold(f64::INFINITY, f64::min).clamp(0.0, limit);
                let high = all.into_iter().fold(f64::NEG_INFINITY, f64::max).clamp(0.0, limit);
                (high - low >= 1.0).then_some((low + high) / 2.0)
            };
            Some((side(xs, width)?, side(ys, height)?))
        };
        Ok(quads.iter().find_map(seen))
    }

    /// The page's viewport.
    pub(super) async fn viewport(&self) -> Result<Viewport, PageError> {
        Ok(self.metrics().await?.css_layout_viewport)
    }

    /// The sizes of the page and of its visible part.
    pub(super) async fn metrics(&self) -> Result<Metrics, PageError> {
        eventually(Instant::now() + AUTO_WAIT, || async { Ok(Ok(self.call("Page.getLayoutMetrics", json!({})).await?)) }).await
    }

    /// Whether a click at a point of the viewport would hit the element.
    pub(super) async fn is_hit(&self, element: &Element, x: f64, y: f64) -> Result<bool, PageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct There {
            backend_node_id: i64,
        }
        #[derive(Deserialize)]
        struct Resolved {
            object: Remote,
        }
        // The method counts from the document's origin.
        let Viewport { page_x, page_y, .. } = self.viewport().await?;
        let place = json!({
            "x": (x + page_x).round() as i64, "y": (y + page_y).round() as i64, "includeUserAgentShadowDOM": false, "ignorePointerEventsNone": true,
        });
        let there: Result<There, _> = self.call("DOM.getNodeForLocation", place).await;
        let there = match there {
            Ok(there) => there.backend_node_id,
            Err(CdpError::Refused { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let node = json!({"backendNodeId": there, "executionContextId": element.world.id, "objectGroup": HELD});
        let hit: Result<Resolved, _> = self.call("DOM.resolveNode", node).await;
        let hit = match hit {
            Ok(Resolved { object: Remote { object_id: Some(hit) } }) => hit,
            // The node at that point is in another frame.
            Ok(_) | Err(CdpError::Refused { .. }) => return self.on(element, "hits", json!([null])).await,
            Err(error) => return Err(error.into()),
        };
        let params = json!({
            "objectId": element.object, "functionDeclaration": "function (hit) { return arenite.hits(this, hit); }",
            "arguments": [{"objectId": hit}], "returnByValue": true,
        });
        read("hits", self.asked("Runtime.callFunctionOn", params).await?["value"].clone())
    }
}

fn read<R: DeserializeOwned>(name: &str, value: Value) -> Result<R, PageError> {
    serde_json::from_value(value)
        .map_err(|error| PageError::Failed(format!("the page's answer to {name} can't be read: {error}")))
}
