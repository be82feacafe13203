//! Waiting for events in the page.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::super::automation::{Download, Progress, Stage, TabState};
use super::super::network::Pattern;
use super::element::eventually;
use super::navigate::patience;
use super::types::{WaitRequest, WaitType};
use super::{PageError, Target, Work};
use arenite_guest_cdp::Lost;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// Default interval between checks.
const LOOK: Duration = Duration::from_millis(100);

/// The fields of a result, besides its type and the time it took.
type Found = Map<String, Value>;

fn found(value: Value) -> Found {
    match value {
        Value::Object(found) => found,
        _ => Map::new(),
    }
}

impl Work {
    pub(super) async fn wait(&self, runtime: &Runtime, request: &WaitRequest) -> Result<Value, PageError> {
        let begun = Instant::now();
        let patience = patience(request.timeout)?;
        let deadline = begun + patience;
        let seconds = request.timeout;
        let late = |what: String| PageError::Failed(format!("timed out after {seconds} s: {what}"));
        let mut told = match request.r#type {
            WaitType::Timeout => {
                sleep(patience).await;
                Map::new()
            }
            WaitType::Selector => self.selector(request, deadline).await?,
            WaitType::Load => {
                let stage = match request.state.as_deref().unwrap_or("load") {
                    "load" => Stage::Load,
                    "domcontentloaded" => Stage::DomContentLoaded,
                    "networkidle" => return self.idle(begun, deadline, late, "load").await,
                    other => {
                        return Err(PageError::Bad(format!(
                            "{other:?} is no state: there are load, domcontentloaded and networkidle"
                        )));
                    }
                };
                let there = |state: &mut TabState| (!state.leaving && state.main()?.stage >= stage).then_some(());
                self.tab.until(deadline, there).await?.ok_or_else(|| late("the page was not loaded".to_owned()))?;
                Map::new()
            }
            WaitType::NetworkIdle => return self.idle(begun, deadline, late, "network_idle").await,
            WaitType::Url => {
                let wanted = request.url.as_deref().or(request.url_pattern.as_deref());
                let wanted = wanted.ok_or_else(|| PageError::Bad("give a url".to_owned()))?;
                let pattern = pattern(wanted)?;
                let there = |state: &mut TabState| {
                    let url = state.main().map(|main| main.url.clone())?;
                    (url == wanted || pattern.as_ref().is_some_and(|pattern| pattern.matches(&url))).then_some(url)
                };
                let url = self.tab.until(deadline, there).await?;
                found(
                    json!({"url": url.ok_or_else(|| late(format!("the page is at {}, not at {wanted}", self.location().url)))?}),
                )
            }
            WaitType::Function => {
                let expression = request.expression.as_deref().ok_or_else(|| PageError::Bad("give an expression".to_owned()))?;
                let polling = match request.polling {
                    None => LOOK,
                    Some(ms) if (1.0..=60_000.0).contains(&ms) => Duration::from_secs_f64(ms / 1000.0),
                    Some(_) => return Err(PageError::Bad("polling is from 1 to 60000 milliseconds".to_owned())),
                };
                loop {
                    let value = timeout_at(deadline, self.evaluate(expression)).await;
                    let Ok(value) = value else {
                        self.tab.interrupt().await;
                        return Err(late("the expression has no value yet".to_owned()));
                    };
                    match value {
                        Ok(value) if truthy(&value) => break found(json!({"value": value})),
                        Ok(_) => {}
                        Err(error) if super::error::is_gone(&error) => {}
                        Err(error) => return Err(error),
                    }
                    if Instant::now() + polling >= deadline {
                        return Err(late(format!("{expression:?} is not true")));
                    }
                    sleep(polling).await;
                }
            }
            WaitType::Request | WaitType::Response => {
                let wanted = request.url_pattern.as_deref().or(request.url.as_deref());
                let wanted = wanted.ok_or_else(|| PageError::Bad("give a url_pattern".to_owned()))?;
                self.message(request.r#type, wanted, deadline, &late).await?
            }
            WaitType::Download => self.download(runtime, request.save_path.as_deref(), deadline, &late).await?,
        };
        told.insert("type".to_owned(), json!(request.r#type));
        told.insert("elapsed".to_owned(), json!(begun.elapsed().as_secs_f64()));
        Ok(Value::Object(told))
    }

    async fn idle(
        &self,
        begun: Instant,
        deadline: Instant,
        late: impl Fn(String) -> PageError,
        kind: &str,
    ) -> Result<Value, PageError> {
        let loaded = |state: &mut TabState| (!state.leaving && state.main()?.stage == Stage::Load).then_some(());
        let loaded = self.tab.until(deadline, loaded).await?.is_some();
        if !loaded || !self.at_rest(begun, deadline).await? {
            return Err(late("the page's requests did not end".to_owned()));
        }
        Ok(json!({"type": kind, "elapsed": begun.elapsed().as_secs_f64()}))
    }

    async fn selector(&self, request: &WaitRequest, deadline: Instant) -> Result<Found, PageError> {
        let selector = request.selector.clone().ok_or_else(|| PageError::Bad("give a selector".to_owned()))?;
        let target = &Target::selector(selector)?;
        let state = request.state.as_deref().unwrap_or("visible");
        if !["attached", "detached", "visible", "hidden"].contains(&state) {
            return Err(PageError::Bad(format!("{state:?} is no state: there are attached, detached, visible and hidden")));
        }
        let seconds = request.timeout;
        eventually(deadline, || async move {
            let (attached, visible) = match self.tab.look(target).await? {
                None => (false, false),
                Some(element) => (true, self.tab.on::<bool>(&element, "visible", json!([])).await?),
            };
            let there = match state {
                "attached" => attached,
                "detached" => !attached,
                "visible" => visible,
                _ => !visible,
            };
            let now = if !attached {
                "is not in the page"
            } else if visible {
                "is visible"
            } else {
                "is not visible"
            };
            let not_yet = || PageError::Failed(format!("timed out after {seconds} s: {target} {now}, not {state}"));
            Ok(if there { Ok(Map::new()) } else { Err(not_yet()) })
        })
        .await
    }

    /// Waits for a request or its answer, from now on.
    async fn message(
        &self,
        kind: WaitType,
        wanted: &str,
        deadline: Instant,
        late: impl Fn(String) -> PageError,
    ) -> Result<Found, PageError> {
        let pattern = pattern(wanted)?;
        let meant = |url: &str| url == wanted || pattern.as_ref().is_some_and(|pattern| pattern.matches(url));
        let mut events = self.tab.session().await?.events();
        let mut methods = self.tab.state().methods();
        loop {
            let event = match timeout_at(deadline, events.next()).await {
                Ok(Ok(event)) => event,
                Ok(Err(Lost::Behind(_))) => continue,
                Ok(Err(Lost::Closed)) => return Err(arenite_guest_cdp::CdpError::Closed.into()),
                Err(_) => return Err(late(format!("there was no {kind} for {wanted}"))),
            };
            let Ok(params) = event.read::<Value>() else { continue };
            let id = params["requestId"].as_str().unwrap_or_default();
            let (url, status) = match event.method.as_str() {
                "Network.requestWillBeSent" => {
                    let method = params["request"]["method"].as_str().unwrap_or_default();
                    if kind == WaitType::Response {
                        methods.insert(id.to_owned(), method.to_owned());
                        continue;
                    }
                    methods = HashMap::from([(id.to_owned(), method.to_owned())]);
                    (&params["request"]["url"], None)
                }
                "Network.responseReceived" if kind == WaitType::Response => {
                    (&params["response"]["url"], Some(&params["response"]["status"]))
                }
                _ => continue,
            };
            if url.as_str().is_some_and(meant) {
                let mut told = found(json!({"url": url, "method": methods.get(id)}));
                told.extend(status.map(|status| ("status".to_owned(), status.clone())));
                return Ok(told);
            }
        }
    }

    /// Waits for a download: the first that finishes and was not reported yet.
    async fn download(
        &self,
        runtime: &Runtime,
        save_path: Option<&str>,
        deadline: Instant,
        late: impl Fn(String) -> PageError,
    ) -> Result<Found, PageError> {
        let save =
            save_path.filter(|path| !path.trim().is_empty()).map(|path| super::super::files::place(runtime, path)).transpose()?;
        let mut changes = self.automation.downloads().changes();
        let Download { url, filename, path, progress, .. } = loop {
            if let Some(ended) = self.automation.downloads().ended() {
                break ended;
            }
            match timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(late("no download ended".to_owned())),
            }
        };
        let from = match path.filter(|_| progress == Progress::Whole) {
            Some(path) => path,
            None => return Err(PageError::Failed(format!("the download of {filename} from {url} was broken off"))),
        };
        let path = match save {
            None => from,
            Some(to) => {
                let kept = to.clone();
                let copy = move |_: &_| {
                    let failed = |error| Failure::io(error, &to);
                    if let Some(directory) = std::path::Path::new(&to).parent() {
                        std::fs::create_dir_all(directory).map_err(failed)?;
                    }
                    std::fs::copy(&from, &to).map(drop).map_err(failed)
                };
                runtime.workers.run(Kind::Scan, &runtime.user, copy).await?;
                kept
            }
        };
        Ok(found(json!({"filename": filename, "path": path, "url": url})))
    }
}

/// Parses a glob or an expression; `None` for a plain address.
fn pattern(text: &str) -> Result<Option<Pattern>, PageError> {
    match Pattern::parse(text) {
        Ok(pattern) => Ok(Some(pattern)),
        // An address with brackets in it.
        Err(_) if text.contains("://") => Ok(None),
        Err(error) => Err(PageError::Bad(error.to_string())),
    }
}

fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is) => *is,
        Value::Number(number) => number.as_f64().is_none_or(|number| number != 0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    }
}
