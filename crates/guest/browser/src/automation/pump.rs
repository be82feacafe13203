//! Records the browser's events in the state of their tabs.

use std::sync::{Arc, Weak};

use serde::Deserialize;
use serde_json::Value;

use super::dialogs::Dialog;
use super::tab::pump_types::CdpFrame;
use super::tab::{Message, Stage, Tab, TabId, TabState, World};
use super::{Automation, WORLD};
use arenite_guest_cdp::{Event, Events};

/// Maximum characters of a console message; the rest is cut off.
const MAX_TEXT: usize = 16_384;
/// Maximum answers for documents that are kept per tab.
const MAX_ANSWERS: usize = 32;
/// Maximum frames per tab that are tracked.
const MAX_FRAMES: usize = 512;

/// Records events until the connection ends or falls behind: the state would be wrong then, and is recreated.
pub(super) async fn run(mut events: Events, automation: Weak<Automation>) {
    while let Ok(event) = events.next().await {
        let Some(automation) = automation.upgrade() else { return };
        automation.note(&event);
    }
    if let Some(automation) = automation.upgrade() {
        automation.client.close();
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfFrame {
    frame_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfTarget {
    target_info: TargetInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TargetInfo {
    pub(super) target_id: TabId,
    pub(super) r#type: String,
    pub(super) title: String,
    pub(super) url: String,
    pub(super) opener_id: Option<TabId>,
    pub(super) browser_context_id: Option<String>,
}

impl Automation {
    fn note(self: &Arc<Self>, event: &Event) {
        if let Some(session) = &event.session {
            let Some(tab) = self.tabs().of_session(session) else { return };
            if event.method.starts_with("Network.") {
                self.traffic().note(&tab.id, event);
            }
            // Unreadable events are of another version of the protocol and are not needed.
            let _ = note_in(&tab, event);
        } else {
            let _ = self.note_outside(event);
        }
    }

    fn note_outside(self: &Arc<Self>, event: &Event) -> Result<(), serde_json::Error> {
        match event.method.as_str() {
            "Target.targetCreated" => self.came(event.read::<OfTarget>()?.target_info),
            "Target.targetInfoChanged" => {
                let info = event.read::<OfTarget>()?.target_info;
                if let Some(tab) = self.tabs().by_id(&info.target_id) {
                    tab.note(|state| (state.url, state.title) = (info.url, info.title));
                }
            }
            "Target.targetDestroyed" | "Target.targetCrashed" => {
                #[derive(Deserialize)]
                #[serde(rename_all = "camelCase")]
                struct Of {
                    target_id: TabId,
                }
                let Of { target_id } = event.read()?;
                if event.method == "Target.targetDestroyed" {
                    self.went(&target_id);
                } else if let Some(tab) = self.tabs().by_id(&target_id) {
                    tab.note(crashed);
                }
            }
            "Browser.downloadWillBegin" => self.downloads.begun(event.read()?),
            "Browser.downloadProgress" => self.downloads.progressed(event.read()?),
            _ => {}
        }
        Ok(())
    }
}

fn crashed(state: &mut TabState) {
    state.crashed = true;
    state.leaving = false;
    state.dialogs.shown = None;
    for frame in &mut state.frames {
        frame.world = None;
    }
    state.forget_requests();
}

fn note_in(tab: &Tab, event: &Event) -> Result<(), serde_json::Error> {
    match event.method.as_str() {
        "Page.frameAttached" => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Attached {
                frame_id: String,
                parent_frame_id: String,
            }
            let Attached { frame_id, parent_frame_id } = event.read()?;
            tab.note(|state| {
                if state.frames.len() < MAX_FRAMES && state.frame(&frame_id).is_none() {
                    state.frames.push(super::Frame {
                        id: frame_id,
                        parent: Some(parent_frame_id),
                        url: String::new(),
                        loader: String::new(),
                        stage: Stage::Load,
                        unreachable: None,
                        world: None,
                    });
                }
            });
        }
        "Page.frameNavigated" => {
            #[derive(Deserialize)]
            struct Navigated {
                frame: CdpFrame,
            }
            let Navigated { frame } = event.read()?;
            tab.note(|state| navigated(state, frame));
        }
        "Page.navigatedWithinDocument" => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Within {
                frame_id: String,
                url: String,
            }
            let Within { frame_id, url } = event.read()?;
            tab.note(|state| {
                let is_main = state.main().is_some_and(|main| main.id == frame_id);
                if is_main {
                    state.navigations += 1;
                    state.leaving = false;
                    state.url.clone_from(&url);
                }
                if let Some(frame) = state.frame(&frame_id) {
                    frame.url = url;
                }
            });
        }
        "Page.frameDetached" => {
            let OfFrame { frame_id } = event.read()?;
            tab.note(|state| remove(state, &frame_id));
        }
        "Page.lifecycleEvent" => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Lifecycle {
                frame_id: String,
                loader_id: String,
                name: String,
            }
            let Lifecycle { frame_id, loader_id, name } = event.read()?;
            let stage = match name.as_str() {
                "DOMContentLoaded" => Stage::DomContentLoaded,
                "load" => Stage::Load,
                _ => return Ok(()),
            };
            tab.note(|state| {
                if let Some(frame) = state.frame(&frame_id).filter(|frame| frame.loader == loader_id) {
                    frame.stage = frame.stage.max(stage);
                }
            });
        }
        "Page.frameRequestedNavigation" | "Page.frameStartedNavigating" => note_leaving(tab, event, true)?,
        "Page.frameStoppedLoading" | "Page.frameClearedScheduledNavigation" => note_leaving(tab, event, false)?,
        "Page.javascriptDialogOpening" => {
            let dialog: Dialog = event.read()?;
            tab.note(|state| state.dialogs.shown = Some(dialog));
        }
        "Page.javascriptDialogClosed" => tab.note(|state| state.dialogs.shown = None),
        "Inspector.targetCrashed" => tab.note(crashed),
        "Inspector.targetReloadedAfterCrash" => tab.note(|state| state.crashed = false),
        "Runtime.executionContextCreated" => {
            #[derive(Deserialize)]
            struct Created {
                context: Context,
            }
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Context {
                id: i64,
                name: String,
                unique_id: String,
                aux_data: Option<OfFrame>,
            }
            let Created { context } = event.read()?;
            let Some(OfFrame { frame_id }) = context.aux_data.filter(|_| context.name == WORLD) else { return Ok(()) };
            tab.note(|state| {
                if let Some(frame) = state.frame(&frame_id) {
                    frame.world = Some(World { id: context.id, unique: context.unique_id });
                }
            });
        }
        "Runtime.executionContextDestroyed" => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Destroyed {
                execution_context_unique_id: String,
            }
            let Destroyed { execution_context_unique_id: unique } = event.read()?;
            tab.note(|state| {
                for frame in &mut state.frames {
                    frame.world.take_if(|world| world.unique == unique);
                }
            });
        }
        "Runtime.executionContextsCleared" => tab.note(|state| {
            for frame in &mut state.frames {
                frame.world = None;
            }
        }),
        "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => {
            let message = message(&event.method, &event.read()?);
            tab.note(|state| state.say(message));
        }
        method if method.starts_with("Network.") => note_request(tab, event)?,
        _ => {}
    }
    Ok(())
}

fn navigated(state: &mut TabState, frame: CdpFrame) {
    let frame = frame.into_frame(Stage::Commit);
    if frame.parent.is_none() {
        // Its other frames are gone with the document.
        state.frames.clear();
        state.documents += 1;
        state.navigations += 1;
        state.leaving = false;
        state.crashed = false;
        state.numbered.clear();
        state.url.clone_from(&frame.url);
        state.frames.push(frame);
    } else {
        let children: Vec<String> =
            state.frames.iter().filter(|child| child.parent.as_ref() == Some(&frame.id)).map(|child| child.id.clone()).collect();
        for child in children {
            remove(state, &child);
        }
        match state.frame(&frame.id) {
            Some(known) => *known = frame,
            None => state.frames.push(frame),
        }
    }
    state.forget_requests();
}

/// Removes a frame and its descendants.
fn remove(state: &mut TabState, id: &str) {
    let mut gone = vec![id.to_owned()];
    while let Some(id) = gone.pop() {
        gone.extend(state.frames.iter().filter(|frame| frame.parent.as_ref() == Some(&id)).map(|frame| frame.id.clone()));
        state.frames.retain(|frame| frame.id != id);
    }
    state.forget_requests();
}

fn note_leaving(tab: &Tab, event: &Event, leaving: bool) -> Result<(), serde_json::Error> {
    let OfFrame { frame_id } = event.read()?;
    tab.note(|state| {
        if state.main().is_some_and(|main| main.id == frame_id) {
            state.leaving = leaving;
        }
    });
    Ok(())
}

/// Counts pending requests, and keeps the status of documents.
fn note_request(tab: &Tab, event: &Event) -> Result<(), serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Request {
        request_id: String,
        #[serde(default)]
        loader_id: String,
        #[serde(default)]
        r#type: String,
        request: Option<Sent>,
        response: Option<Answered>,
    }
    #[derive(Deserialize)]
    struct Sent {
        method: String,
    }
    #[derive(Deserialize)]
    struct Answered {
        status: u16,
        url: String,
    }
    match event.method.as_str() {
        "Network.requestWillBeSent" => {
            let request: Request = event.read()?;
            // A stream of events never ends.
            if request.r#type != "EventSource" {
                let method = request.request.map_or_else(String::new, |sent| sent.method);
                tab.note(|state| state.request_began(request.request_id, request.loader_id, method));
            }
        }
        "Network.responseReceived" => {
            let Request { request_id, loader_id, r#type, response, .. } = event.read()?;
            if let Some(answered) = response.filter(|answered| r#type == "Document" && answered.url.starts_with("http")) {
                tab.note(|state| {
                    if request_id == loader_id {
                        if state.answers.len() == MAX_ANSWERS {
                            state.answers.pop_front();
                        }
                        state.answers.push_back((loader_id, answered.status));
                    }
                });
            }
        }
        "Network.loadingFinished" | "Network.loadingFailed" => {
            let request: Request = event.read()?;
            tab.note(|state| state.request_ended(&request.request_id));
        }
        _ => {}
    }
    Ok(())
}

/// Builds a console message from one of three kinds of event.
fn message(method: &str, params: &Value) -> Message {
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, text, at, timestamp) = match method {
        "Runtime.consoleAPICalled" => {
            let arguments = params["args"].as_array().map(|list| list.iter().map(described).collect::<Vec<_>>().join(" "));
            (
                text_of(&params["type"]),
                arguments.unwrap_or_default(),
                &params["stackTrace"]["callFrames"][0],
                &params["timestamp"],
            )
        }
        "Runtime.exceptionThrown" => {
            let details = &params["exceptionDetails"];
            ("error".to_owned(), exception(details), details, &params["timestamp"])
        }
        _ => {
            let entry = &params["entry"];
            (text_of(&entry["level"]), text_of(&entry["text"]), entry, &entry["timestamp"])
        }
    };
    Message {
        kind,
        text: text.chars().take(MAX_TEXT).collect(),
        timestamp: timestamp.as_f64().unwrap_or_default() / 1000.0,
        url: at["url"].as_str().filter(|url| !url.is_empty()).map(str::to_owned),
        line: at["lineNumber"].as_i64(),
        column: at["columnNumber"].as_i64(),
    }
}

/// The text of an exception.
pub(crate) fn exception(details: &Value) -> String {
    let description = details["exception"]["description"].as_str().map(str::to_owned);
    let value = || details["exception"].get("value").map(Value::to_string);
    let text = details["text"].as_str().unwrap_or_default();
    description.or_else(value).unwrap_or_else(|| text.to_owned())
}

/// A page's value, formatted as its console would show it.
pub(crate) fn described(object: &Value) -> String {
    match (&object["value"], &object["unserializableValue"], &object["description"]) {
        (Value::String(text), ..) => text.clone(),
        (_, Value::String(text), _) => text.clone(),
        (Value::Null, _, Value::String(description)) => match object["preview"]["properties"].as_array() {
            Some(properties) if object["subtype"] != "error" => preview(description, properties, object),
            _ => description.clone(),
        },
        (Value::Null, ..) => object["type"].as_str().filter(|kind| *kind == "undefined").unwrap_or("null").to_owned(),
        (value, ..) => value.to_string(),
    }
}

fn preview(description: &str, properties: &[Value], object: &Value) -> String {
    let value = |property: &Value| match property["type"].as_str() {
        Some("string") => format!("{:?}", property["value"].as_str().unwrap_or_default()),
        _ => property["value"].as_str().unwrap_or_default().to_owned(),
    };
    let more = if object["preview"]["overflow"] == true { ", …" } else { "" };
    if object["subtype"] == "array" {
        let list: Vec<String> = properties.iter().map(value).collect();
        return format!("[{}{more}]", list.join(", "));
    }
    let list: Vec<String> = properties
        .iter()
        .map(|property| format!("{}: {}", property["name"].as_str().unwrap_or_default(), value(property)))
        .collect();
    let name = if description == "Object" { String::new() } else { format!("{description} ") };
    format!("{name}{{{}{more}}}", list.join(", "))
}
