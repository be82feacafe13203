//! Trajectories of all nodes. Each is on the node that recorded it, so the nodes are asked: for a list all of them at once, and
//! for a trajectory until one says that it has it. Workers are listed in the same way.
//!
//! A node asks the others in the name of its client. A node that was asked answers for itself alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arenite_control::nodes::{Node, NodeState, SandboxKey};
use arenite_model::{NodeName, SandboxId, TenantId};
use axum::body::Body;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryFutureExt};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::exchange::Exchange;
use crate::refusal::Refusal;
use crate::trajectories::blocking;

use super::pass::{Attempt, Passed, Unsent, pass, send_to};

/// Time for a node to list what it has, or to say whether it has one.
const ANSWER: Duration = Duration::from_secs(3);
/// The most bytes of a page of a node's list.
const MAX_LIST_BYTES: usize = 16 << 20;
/// How long the node of a trajectory is remembered, and of how many trajectories.
const KNOWN: Duration = Duration::from_secs(10);
const MAX_KNOWN: usize = 20_000;

/// What the other nodes have of a page of a list.
pub(crate) struct Theirs<T> {
    pub(crate) entries: Vec<T>,
    /// A node has more than its entries here.
    pub(crate) has_more: bool,
    /// Why entries of a node are missing.
    pub(crate) warnings: Vec<String>,
}

/// The nodes of trajectories, and since when they are known.
#[derive(Default)]
pub(super) struct Whereabouts(Mutex<HashMap<(TenantId, String), (NodeName, Instant)>>);

impl Whereabouts {
    fn known(&self) -> MutexGuard<'_, HashMap<(TenantId, String), (NodeName, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, key: &(TenantId, String)) -> Option<NodeName> {
        self.known().get(key).filter(|(_, at)| at.elapsed() < KNOWN).map(|(node, _)| node.clone())
    }

    fn learn(&self, key: (TenantId, String), node: NodeName) {
        let mut known = self.known();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, (node, Instant::now()));
    }
}

/// A page of a node's list.
#[derive(Deserialize)]
struct Listed<T> {
    #[serde(alias = "trajectories", alias = "workers")]
    entries: Vec<T>,
    next_cursor: Option<String>,
}

/// Pages of the other nodes' lists for a request for a page of all. `what` names the entries.
pub(crate) async fn list<T: DeserializeOwned>(exchange: &Exchange, what: &str) -> Theirs<T> {
    let mut theirs = Theirs { entries: Vec::new(), has_more: false, warnings: Vec::new() };
    if exchange.gateway.peers.is_none() || exchange.passed().is_some() {
        return theirs;
    }
    let (up, away) = nodes(exchange);
    let path = exchange.parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let pages = join_all(up.iter().map(|node| async move { (node, page(exchange, node, path).await) })).await;
    for (node, page) in pages {
        match page {
            Ok(page) => {
                theirs.has_more |= page.next_cursor.is_some();
                theirs.entries.extend(page.entries);
            }
            Err(why) => {
                tracing::warn!(%node, why, "a node did not list its {what}");
                theirs.warnings.push(format!("the node {node} did not answer: its {what} are missing"));
            }
        }
    }
    theirs.warnings.extend(away.iter().map(|node| {
        let state = node.state.as_str();
        format!("the node {} is {state}: {what} that only it has are missing", node.name)
    }));
    theirs
}

async fn page<T: DeserializeOwned>(exchange: &Exchange, node: &NodeName, path: &str) -> Result<Listed<T>, String> {
    let answered = async {
        let answer = ask(exchange, node, path).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_LIST_BYTES).collect().map_err(|error| error.to_string()).await?;
        match status {
            StatusCode::OK => serde_json::from_slice(&body.to_bytes()).map_err(|error| error.to_string()),
            other => Err(format!("it answered {other}")),
        }
    };
    timeout(ANSWER, answered).await.unwrap_or_else(|_| Err(format!("no answer within {ANSWER:?}")))
}

/// A node's answer to a `GET`.
async fn ask(exchange: &Exchange, node: &NodeName, path: &str) -> Result<Response<Body>, String> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().map_err(|_| "the path can't be read".to_owned())?;
    let answered = send_to(&exchange.gateway, node, &Passed::from_exchange(exchange), request, Attempt::Once).await;
    answered.map_err(|unsent: Unsent| Refusal::from(unsent).message)
}

/// The other nodes that are up, and those that are not.
fn nodes(exchange: &Exchange) -> (Vec<NodeName>, Vec<Node>) {
    let (up, away): (Vec<Node>, Vec<Node>) =
        exchange.gateway.control.peers().into_iter().partition(|node| node.state == NodeState::Up);
    (up.into_iter().map(|node| node.name).collect(), away)
}

/// Whether a request is for one trajectory.
pub(super) fn are_wanted(exchange: &Exchange) -> bool {
    exchange.route.pattern.starts_with("/api/v1/trajectories/{id}")
}

/// The answer of the other node that has the wanted trajectory. None: this one has it, or no node that answers.
pub(super) async fn pass_on(exchange: &mut Exchange) -> Result<Option<Response<Body>>, Refusal> {
    let (tenant, id) = (exchange.context.tenant().clone(), exchange.param("id").to_owned());
    let (recorder, owner, wanted) = (exchange.gateway.recorder.clone(), tenant.clone(), id.clone());
    if blocking(move || recorder.has(&owner, &wanted)).await? {
        return Ok(None);
    }
    let key = (tenant, id);
    match find(exchange, &key).await? {
        Some(node) => {
            if let Some(peers) = &exchange.gateway.peers {
                peers.whereabouts.learn(key, node.clone());
            }
            pass(exchange, &node).await.map(Some)
        }
        None => Ok(None),
    }
}

/// The node that says it has a trajectory. A node that hangs must not hold up the request, so none is believed to have it still.
async fn find(exchange: &mut Exchange, key: &(TenantId, String)) -> Result<Option<NodeName>, Refusal> {
    let (tenant, id) = key;
    let control = Arc::clone(&exchange.gateway.control);
    let known = exchange.gateway.peers.as_ref().and_then(|peers| peers.whereabouts.find(key));
    let owner = match id.parse::<SandboxId>() {
        Ok(sandbox) if known.is_none() => control.owner(tenant, SandboxKey::Id(sandbox)).await?,
        _ => None,
    };
    let path = format!("/api/v1/trajectories/{id}?limit=1");
    let likely = known.or(owner).filter(|node| control.peer(node).is_some());
    if let Some(node) = &likely {
        match has(exchange, node, &path).await {
            Ok(true) => return Ok(likely),
            Ok(false) => {}
            Err(why) => tracing::warn!(%node, why, "the node of a trajectory did not answer"),
        }
    }
    let (up, away) = nodes(exchange);
    let mut silent: Vec<String> = away.into_iter().map(|node| node.name.to_string()).collect();
    let mut asked: FuturesUnordered<_> = up.into_iter().map(|node| async { (has(exchange, &node, &path).await, node) }).collect();
    let mut found = None;
    while let Some((answered, node)) = asked.next().await {
        match answered {
            Ok(true) => {
                found = Some(node);
                break;
            }
            Ok(false) => {}
            Err(why) => {
                tracing::warn!(%node, why, "a node did not say whether it has a trajectory");
                silent.push(node.to_string());
            }
        }
    }
    drop(asked);
    if found.is_none() {
        exchange.silent_nodes = silent;
    }
    Ok(found)
}

async fn has(exchange: &Exchange, node: &NodeName, path: &str) -> Result<bool, String> {
    let answer = timeout(ANSWER, ask(exchange, node, path)).await.map_err(|_| format!("no answer within {ANSWER:?}"))??;
    match answer.status() {
        StatusCode::OK => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        other => Err(format!("it answered {other}")),
    }
}
