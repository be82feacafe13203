//! Places creates on nodes.
//!
//! A create goes on to the next node if one can't be reached, or answers that it takes none: neither has carried out anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::nodes::PlacementWish;
use arenite_control::{CreateRequest, SpecOverlay};
use arenite_model::{ErrorCode, IdempotencyKey, ImageName, NodeName, SnapshotName, Tier};
use axum::body::Body;
use http::{HeaderValue, Method, Response};
use serde::Deserialize;
use serde_json::Value;

use super::pass::{Attempt, NODE, Unsent, send};
use crate::api;
use crate::exchange::Exchange;
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef};

/// Paths that create sandboxes.
const PATHS: [&str; 2] = ["/api/v2/sandboxes", "/api/v1/sandbox"];
/// The answer of a node that takes no creates, in the header of nodes.
const ELSEWHERE: HeaderValue = HeaderValue::from_static("elsewhere");

/// What the creates of all interfaces say about their node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Placed {
    image: Option<String>,
    snapshot: Option<String>,
    restart_processes: bool,
    template: Option<String>,
    /// Agent-Sandbox's name of a template.
    environment: Option<String>,
    tier: Option<Tier>,
    group: Option<Value>,
    node_selector: Option<BTreeMap<String, String>>,
    volumes: Vec<Mounted>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mounted {
    name: String,
}

pub(super) fn is_create(exchange: &Exchange) -> bool {
    exchange.parts.method == Method::POST && PATHS.contains(&exchange.path.decoded.as_str())
}

/// Refuses a create that another node has placed here, if this node takes none.
pub(super) fn refuse_placed(exchange: &Exchange) -> Option<Response<Body>> {
    let gateway = &exchange.gateway;
    let is_repeat = exchange.passed().is_some_and(|passed| passed.is_repeat);
    if !is_create(exchange) || is_repeat || !gateway.control.is_draining() && !gateway.stopping.is_cancelled() {
        return None;
    }
    let refusal = Refusal::new(ErrorCode::Exhausted, "the node takes no creates: it drains, or its server stops");
    let mut answer = (exchange.route.surface.refuse)(&refusal.of_request(&exchange.path.raw));
    answer.headers_mut().insert(NODE, ELSEWHERE);
    Some(answer)
}

/// The answer of the node that creates the sandbox. None: it is this one.
pub(super) async fn place(exchange: &mut Exchange) -> Result<Option<Response<Body>>, Refusal> {
    let control = Arc::clone(&exchange.gateway.control);
    let body = api::read(exchange.take_body()).await?;
    let placed: Placed = serde_json::from_slice(&body).unwrap_or_default();
    // A group is on this node.
    if placed.group.as_ref().is_some_and(|group| !group.is_null()) {
        exchange.put_body(body);
        return Ok(None);
    }
    // A volume is on the node that made it.
    for name in placed.volumes.iter().filter_map(|mounted| mounted.name.parse().ok()) {
        match control.node_of_volume(exchange.context.tenant(), &name).await? {
            Some(node) => return Ok(Some(send(exchange, &node, Body::from(body), Attempt::Repeat).await?)),
            None if control.volume(exchange.context.tenant(), &name).await.is_ok() => {
                exchange.put_body(body);
                return Ok(None);
            }
            None => {}
        }
    }
    let mut wish = match placed.snapshot.as_ref().and_then(|name| name.parse().ok()) {
        None => wish(exchange, placed),
        Some(name) => match place_at_snapshot(exchange, &name, placed).await? {
            SnapshotWish::Anywhere(wish) => wish,
            SnapshotWish::On(node) => return Ok(Some(send(exchange, &node, Body::from(body), Attempt::Repeat).await?)),
            SnapshotWish::Here => {
                exchange.put_body(body);
                return Ok(None);
            }
        },
    };
    let key = exchange.parts.headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    if let Some(key) = key.and_then(|key| key.parse::<IdempotencyKey>().ok()) {
        if let Some(node) = control.owner_of_key(exchange.context.tenant(), &key).await? {
            match send(exchange, &node, Body::from(body.clone()), Attempt::Repeat).await {
                Err(Unsent::NotConnected(_)) => {}
                answered => return Ok(Some(answered?)),
            }
        }
        wish.key = Some(key.to_string());
    }
    let mut refused: Vec<NodeName> = Vec::new();
    while let Some(node) = control.place(&wish, &refused)? {
        match send(exchange, &node, Body::from(body.clone()), Attempt::Once).await {
            Ok(answer) if answer.headers().contains_key(NODE) => {}
            Ok(answer) => return Ok(Some(answer)),
            Err(Unsent::NotConnected(_)) => {}
            Err(Unsent::Refused(refusal)) => return Err(refusal),
            Err(Unsent::BrokenOff(_)) => {
                let refusal = format!("the node {node} broke off a create that was placed on it");
                return Err(Refusal::new(ErrorCode::SandboxFailed, refusal)
                    .hint("it may have created the sandbox: see arenite ls; a create with an Idempotency-Key can be repeated"));
            }
        }
        tracing::debug!(%node, "a create is placed on another node");
        refused.push(node);
    }
    exchange.put_body(body);
    Ok(None)
}

/// Where a create from a snapshot goes.
enum SnapshotWish {
    /// The snapshot can be copied.
    Anywhere(PlacementWish),
    On(NodeName),
    /// This node creates it, or refuses it.
    Here,
}

async fn place_at_snapshot(exchange: &Exchange, name: &SnapshotName, placed: Placed) -> Result<SnapshotWish, Refusal> {
    let (control, tenant) = (&exchange.gateway.control, exchange.context.tenant());
    let Ok(snapshot) = control.snapshot(tenant, name).await else {
        // The chosen node refuses it.
        return Ok(SnapshotWish::Anywhere(wish(exchange, placed)));
    };
    // Processes go on only where they were sealed.
    if snapshot.memory_bytes.is_some() && !placed.restart_processes {
        let other = snapshot.node.filter(|node| Some(node) != control.own_node().as_ref());
        return Ok(other.map_or(SnapshotWish::Here, SnapshotWish::On));
    }
    let places = control.places_of_snapshot(&snapshot).await?;
    let mut wish = control.snapshot_wish(tenant, &snapshot, places.into_iter().map(|place| place.node).collect());
    wish.selector = placed.node_selector.unwrap_or_default();
    Ok(SnapshotWish::Anywhere(wish))
}

/// The answer of another node to a call that creates the sandbox `default`, while this node drains. None: this one answers.
pub(super) async fn place_default(exchange: &mut Exchange, sandbox: &SandboxRef) -> Result<Option<Response<Body>>, Refusal> {
    let control = Arc::clone(&exchange.gateway.control);
    if !control.is_draining() || target::look_up(&control, &exchange.context, sandbox).await.is_ok() {
        return Ok(None);
    }
    let tenant = exchange.context.tenant().clone();
    let mut wish = control.placement_wish(&tenant, &CreateRequest::default());
    // All draining nodes choose the same one.
    wish.key = Some(format!("{tenant}/default"));
    let Some(node) = control.place(&wish, &[])? else { return Ok(None) };
    let body = exchange.take_body();
    Ok(Some(send(exchange, &node, body, Attempt::Wait).await?))
}

fn wish(exchange: &Exchange, placed: Placed) -> PlacementWish {
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let image: Option<Result<ImageName, _>> = text(placed.image).map(|image| image.parse());
    let request = CreateRequest {
        template: text(placed.template).or(text(placed.environment)),
        spec: SpecOverlay { image: image.and_then(Result::ok), tier: placed.tier, ..SpecOverlay::default() },
        ..CreateRequest::default()
    };
    let mut wish = exchange.gateway.control.placement_wish(exchange.context.tenant(), &request);
    wish.selector = placed.node_selector.unwrap_or_default();
    wish
}
