//! AIO's `browser_tabs` service: the tabs of the person's profile, by their index in order of opening.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{delete, get, put};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{OpenApi, ToSchema};

use super::automation::{Automation, Tab, TabId};
use super::page::PageError;
use super::types::Items;
use crate::BrowserService;
use arenite_guest_runtime::http::{Body, Envelope, Reply, ok, ok_message, whole};

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(list, create, close, activate))]
pub struct TabsApi;

pub(super) fn router() -> Router<Arc<BrowserService>> {
    Router::new()
        .route("/v1/browser/tabs", get(list).post(create))
        .route("/v1/browser/tabs/{index}", delete(close))
        .route("/v1/browser/tabs/{index}/activate", put(activate))
}

/// A tab, as callers see it.
#[derive(Debug, Serialize)]
pub struct TabTold {
    pub index: usize,
    id: TabId,
    pub url: String,
    pub title: String,
    /// Whether it is the current tab.
    pub active: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CreatePageRequest {
    /// Absent: an empty page.
    pub(super) url: Option<String>,
}

fn all(automation: &Automation) -> Vec<TabTold> {
    let current = automation.current().map(|tab| tab.id.clone());
    let told = |(index, tab): (usize, Arc<Tab>)| {
        let state = tab.state();
        let (url, title) = (state.url.clone(), state.title.clone());
        TabTold { index, id: tab.id.clone(), url, title, active: current.as_ref() == Some(&tab.id) }
    };
    automation.list().into_iter().enumerate().map(told).collect()
}

fn one(automation: &Automation, tab: &Tab) -> Result<TabTold, PageError> {
    all(automation).into_iter().find(|told| told.id == tab.id).ok_or(PageError::Closed)
}

fn by_index(automation: &Automation, index: i64) -> Result<Arc<Tab>, PageError> {
    let tabs = automation.list();
    let found = usize::try_from(index).ok().and_then(|index| tabs.get(index)).cloned();
    found.ok_or_else(|| PageError::Missing(format!("there is no tab {index}: there are {}, from 0", tabs.len())))
}

/// Lists all tabs, in order of opening. There is at least one.
pub async fn known(service: &Arc<BrowserService>) -> Result<Vec<TabTold>, PageError> {
    let automation = service.automation().await?;
    automation.tab().await?;
    automation.refresh().await?;
    Ok(all(&automation))
}

/// Opens a tab, which becomes the current one.
pub async fn opened(service: &Arc<BrowserService>, url: Option<&str>) -> Result<TabTold, PageError> {
    let automation = service.automation().await?;
    let tab = super::page::open(service, &automation, url).await?;
    automation.refresh().await?;
    one(&automation, &tab)
}

/// Closes a tab; `None` is the current one. The last one is replaced by an empty one. Returns the number of tabs afterwards.
pub async fn closed(service: &Arc<BrowserService>, index: Option<i64>) -> Result<usize, PageError> {
    let automation = service.automation().await?;
    let tab = match index {
        Some(index) => by_index(&automation, index)?,
        None => automation.tab().await?,
    };
    automation.close(&tab).await?;
    Ok(automation.list().len())
}

/// Shows a tab, which becomes the current one.
pub async fn shown(service: &Arc<BrowserService>, index: i64) -> Result<TabTold, PageError> {
    let automation = service.automation().await?;
    let tab = by_index(&automation, index)?;
    automation.activate(&tab).await?;
    automation.refresh().await?;
    one(&automation, &tab)
}

/// All tabs, in order of opening.
#[utoipa::path(get, path = "/v1/browser/tabs", tag = "browser", operation_id = "list_tabs_v1_browser_tabs_get",
    responses((status = 200, body = Envelope<Items>)))]
async fn list(State(service): State<Arc<BrowserService>>) -> Reply<Vec<Value>> {
    let tabs = whole(async move { known(&service).await });
    ok(tabs.await?.into_iter().map(|told| json!(told)).collect())
}

/// Opens a tab, which becomes the current one.
#[utoipa::path(post, path = "/v1/browser/tabs", tag = "browser", operation_id = "create_tab_v1_browser_tabs_post",
    request_body = CreatePageRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn create(State(service): State<Arc<BrowserService>>, Body(request): Body<CreatePageRequest>) -> Reply<Value> {
    let url = request.url.filter(|url| !url.trim().is_empty());
    let opened = whole(async move { opened(&service, url.as_deref()).await });
    ok_message(json!(opened.await?), "Opened a tab")
}

/// Closes a tab. The last one is replaced by an empty one.
#[utoipa::path(delete, path = "/v1/browser/tabs/{index}", tag = "browser",
    operation_id = "close_tab_v1_browser_tabs__index__delete",
    params(("index" = i64, Path, description = "From 0")), responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn close(State(service): State<Arc<BrowserService>>, Path(index): Path<i64>) -> Reply<Value> {
    let left = whole(async move { closed(&service, Some(index)).await });
    ok_message(json!({"index": index, "tabs": left.await?}), "Closed the tab")
}

/// Shows a tab, which becomes the current one.
#[utoipa::path(put, path = "/v1/browser/tabs/{index}/activate", tag = "browser",
    operation_id = "activate_tab_v1_browser_tabs__index__activate_put",
    params(("index" = i64, Path, description = "From 0")), responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn activate(State(service): State<Arc<BrowserService>>, Path(index): Path<i64>) -> Reply<Value> {
    let shown = whole(async move { shown(&service, index).await });
    ok_message(json!(shown.await?), "Shows the tab")
}
