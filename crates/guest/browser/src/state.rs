//! AIO's `browser_state` service: saves and restores logins in a file. The format is Playwright's storage state, plus the session
//! storage of tabs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use utoipa::{OpenApi, ToSchema};

use super::automation::{Automation, Tab};
use super::cookies::{self, Cookie};
use super::files;
use super::page::PageError;
use crate::BrowserService;
use arenite_guest_runtime::http::{Body, Envelope, Reply, ok, whole};

/// Maximum bytes of a file that is loaded.
const MAX_FILE: u64 = 64 << 20;
/// Maximum origins of one file.
const MAX_ORIGINS: usize = 500;
/// Timeout for writing all origins of a file.
const PATIENCE: Duration = Duration::from_secs(120);

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(save, load))]
pub struct StateApi;

pub(super) fn router() -> Router<Arc<BrowserService>> {
    Router::new().route("/v1/browser/state/save", post(save)).route("/v1/browser/state/load", post(load))
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct StateSaveRequest {
    /// The file, in the sandbox.
    pub(super) path: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct StateLoadRequest {
    /// The file, in the sandbox.
    pub(super) path: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(default)]
    cookies: Vec<Cookie>,
    #[serde(default)]
    origins: Vec<Origin>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Origin {
    origin: String,
    #[serde(default)]
    local_storage: Vec<Item>,
    #[serde(default)]
    session_storage: Vec<Item>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Item {
    name: String,
    value: String,
}

/// Collects the cookies of the profile, and the storage of the tabs' pages.
async fn collect(automation: &Automation) -> Result<Stored, PageError> {
    let mut origins: BTreeMap<String, Origin> = BTreeMap::new();
    for tab in automation.list() {
        for world in tab.worlds() {
            let read = tab.storage(&world);
            // A tab that doesn't answer, or is closed meanwhile, is skipped.
            let Ok(Ok(value)) = tokio::time::timeout(Duration::from_secs(5), tab.serve(read)).await else { continue };
            let Ok(found) = serde_json::from_value::<Origin>(value) else { continue };
            if !found.origin.starts_with("http") || (found.local_storage.is_empty() && found.session_storage.is_empty()) {
                continue;
            }
            match origins.get_mut(&found.origin) {
                Some(known) if known.session_storage.is_empty() => known.session_storage = found.session_storage,
                Some(_) => {}
                None => {
                    origins.insert(found.origin.clone(), found);
                }
            }
        }
    }
    Ok(Stored { cookies: cookies::all(automation).await?, origins: origins.into_values().collect() })
}

/// Sets cookies and storage. Storage is set by empty pages of the origins, without network requests. They open in the current tab
/// if it is empty, which then has the session storage too, or else in another one.
async fn restore(automation: &Automation, stored: Stored) -> Result<(), PageError> {
    if stored.origins.len() > MAX_ORIGINS {
        return Err(PageError::Bad(format!("a state can have {MAX_ORIGINS} origins")));
    }
    for Origin { origin, .. } in &stored.origins {
        let is_origin = origin.split_once("://").is_some_and(|(scheme, rest)| {
            matches!(scheme, "http" | "https") && !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' '])
        });
        if !is_origin {
            return Err(PageError::Bad(format!("{origin:?} is no origin")));
        }
    }
    cookies::put(automation, stored.cookies).await?;
    if stored.origins.is_empty() {
        return Ok(());
    }
    let current = automation.tab().await?;
    // A tab's session storage is lost with the tab; an empty current tab can keep it.
    let is_empty = current.state().url == "about:blank";
    let tab = if is_empty { current.clone() } else { automation.open("about:blank").await? };
    let written = timeout_at(Instant::now() + PATIENCE, tab.serve(write(&tab, &stored.origins))).await;
    if is_empty {
        let _: IgnoredAny = tab.call("Fetch.disable", json!({})).await?;
        let _: IgnoredAny = tab.call("Page.navigate", json!({"url": "about:blank"})).await?;
    } else {
        automation.close(&tab).await?;
        automation.activate(&current).await?;
    }
    written.unwrap_or(Err(PageError::TooSlow { what: "the storage was not written", seconds: PATIENCE.as_secs_f64() }))
}

async fn write(tab: &Tab, origins: &[Origin]) -> Result<(), PageError> {
    let session = tab.session().await?;
    let mut events = session.events();
    let _: IgnoredAny = session.call("Fetch.enable", json!({"patterns": [{"urlPattern": "*"}]})).await?;
    for origin in origins {
        let url = format!("{}/", origin.origin);
        let answer = async {
            loop {
                let event = events.next().await.map_err(|_| arenite_guest_cdp::CdpError::Closed)?;
                if event.method != "Fetch.requestPaused" {
                    continue;
                }
                #[derive(Deserialize)]
                #[serde(rename_all = "camelCase")]
                struct Paused {
                    request_id: String,
                }
                let Ok(Paused { request_id }) = event.read() else { continue };
                let page = json!({
                    "requestId": request_id, "responseCode": 200, "body": STANDARD.encode("<!doctype html>"),
                    "responseHeaders": [{"name": "content-type", "value": "text/html"}],
                });
                let _: IgnoredAny = session.call("Fetch.fulfillRequest", page).await?;
            }
        };
        let go = async {
            let _: Value = session.call("Page.navigate", json!({"url": url})).await?;
            tab.set_storage(&origin.origin, json!(origin.local_storage), json!(origin.session_storage)).await
        };
        tokio::select! {
            done = go => done?,
            failed = answer => return failed,
        }
    }
    Ok(())
}

/// Writes cookies and storage to a file.
#[utoipa::path(post, path = "/v1/browser/state/save", tag = "browser", operation_id = "save_state_v1_browser_state_save_post",
    request_body = StateSaveRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn save(State(service): State<Arc<BrowserService>>, Body(request): Body<StateSaveRequest>) -> Reply<Value> {
    let saved = whole(async move {
        let stored = collect(&*service.automation().await?).await?;
        let (cookies, origins) = (stored.cookies.len(), stored.origins.len());
        let json = serde_json::to_vec_pretty(&stored).map_err(|error| PageError::Failed(error.to_string()))?;
        let (path, _) = files::write(&service.runtime, &request.path, json).await?;
        Ok::<_, PageError>(json!({"path": path, "cookies": cookies, "origins": origins}))
    });
    ok(saved.await?)
}

/// Sets cookies and storage from a file.
#[utoipa::path(post, path = "/v1/browser/state/load", tag = "browser", operation_id = "load_state_v1_browser_state_load_post",
    request_body = StateLoadRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn load(State(service): State<Arc<BrowserService>>, Body(request): Body<StateLoadRequest>) -> Reply<Value> {
    let loaded = whole(async move {
        let path = files::place(&service.runtime, &request.path)?;
        let file = files::read(&service.runtime, &request.path, MAX_FILE).await?;
        let stored: Stored =
            serde_json::from_slice(&file).map_err(|error| PageError::Bad(format!("{path} is no browser state: {error}")))?;
        let (cookies, origins) = (stored.cookies.len(), stored.origins.len());
        restore(&*service.automation().await?, stored).await?;
        Ok::<_, PageError>(json!({"path": path, "cookies": cookies, "origins": origins}))
    });
    ok(loaded.await?)
}
