//! Routes to models: `/api/v2/models` sets them, and `/models/{route}/…/v1/…` makes calls.
//!
//! ```text
//!  request ──► subject, model, rate, budget ──► intent on record ──► upstream, with its key ──► head ──► body
//!     │ 4xx            │ refused: on record, if it is of a trajectory                                    │
//!     ▼                ▼                                     read as it passes: use counted, outcome on record
//!  no step       nothing was called
//! ```

mod answer;
mod assemble;
mod call;
mod refusal;
mod request;
mod sse;
mod subject;
mod upstream;
mod usage;

use std::sync::Arc;

use arenite_control::ControlError;
use arenite_control::models::{ModelRoute, ModelRouteSpec, ModelUse};
use arenite_model::ModelRouteName;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::lists::PageQuery;
use crate::outgoing::Target;
use crate::refusal::{Refusal, json_response};
use crate::{audit, auth};

pub(crate) use call::serve;
pub(crate) use refusal::refuse;
pub(crate) use subject::{is_call, sandbox_in_path, worker_in_path};

/// A model route.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelRouteInfo {
    #[schema(value_type = String)]
    name: ModelRouteName,
    #[serde(flatten)]
    spec: ModelRouteSpec,
    created_at: Timestamp,
    changed_at: Timestamp,
}

/// A model route, with what it used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelRouteDetails {
    #[serde(flatten)]
    info: ModelRouteInfo,
    /// Since the route was created.
    usage: ModelUse,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelRouteList {
    models: Vec<ModelRouteInfo>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedModelRoute {
    #[schema(value_type = String)]
    name: ModelRouteName,
    removed: bool,
}

impl From<ModelRoute> for ModelRouteInfo {
    fn from(route: ModelRoute) -> Self {
        let ModelRoute { name, spec, created_at, changed_at, .. } = route;
        Self { name, spec, created_at, changed_at }
    }
}

/// The name in the path. One that can't be is not found.
fn named(exchange: &Exchange) -> Result<ModelRouteName, Refusal> {
    let given = exchange.param("name");
    given.parse().map_err(|_| ControlError::NoModelRoute { name: given.chars().take(80).collect() }.into())
}

async fn details(exchange: &Exchange, route: ModelRoute) -> Answered {
    let usage = exchange.gateway.control.model_use(&route).await?;
    Ok(json_response(StatusCode::OK, &ModelRouteDetails { info: route.into(), usage }))
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let routes = exchange.gateway.control.model_routes(exchange.context.tenant()).await?;
    let (routes, next_cursor) = PageQuery::read(exchange)?.take(routes, |route| route.name.to_string())?;
    let models = routes.into_iter().map(ModelRouteInfo::from).collect();
    Ok(json_response(StatusCode::OK, &ModelRouteList { models, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let route = exchange.gateway.control.model_route(exchange.context.tenant(), &named(exchange)?).await?;
    details(exchange, route).await
}

pub(crate) async fn set(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let given = exchange.param("name");
    let name: ModelRouteName = given.parse()?;
    let (spec, _) = exchange.json::<ModelRouteSpec>().await?;
    let refuse = |reason: &str| Err(Refusal::bad_request(format!("upstream: {reason}")));
    match Target::parse(&spec.upstream) {
        Err(reason) if !spec.upstream.is_empty() => return refuse(reason),
        Ok(target) if target.path.contains('?') => return refuse("it has a query; write the base URL, such as https://host/v1"),
        _ => {}
    }
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), name.to_string());
    let change = Box::pin(async move { Ok(control.set_model_route(&tenant, name, spec).await?) });
    let set = audit::change_with(exchange, "model.set", of, change).await?;
    details(exchange, set).await
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let name = named(exchange)?;
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), name.clone());
    let change = Box::pin(async move { Ok(control.remove_model_route(&tenant, &of).await?) });
    audit::change_with(exchange, "model.remove", name.to_string(), change).await?;
    Ok(json_response(StatusCode::OK, &RemovedModelRoute { name, removed: true }))
}
