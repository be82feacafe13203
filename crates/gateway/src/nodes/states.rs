//! States of disks on their way between nodes: snapshots for creates on nodes that lack them, and their removal everywhere.
//!
//! ```text
//!  create on B ──► the snapshot's nodes, its own first ──GET /nodes/states/ID──► an archive ──► a copy on B ──► the sandbox
//! ```
//!
//! Only nodes reach these paths: they are on the connections between nodes, and no client's request is passed on to them. Creates
//! of a snapshot that arrive together wait for one transfer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_control::{ControlError, ReceivedState, Snapshot, SnapshotPlace};
use arenite_model::{ErrorCode, NodeName, SnapshotName, StateId, TenantId};
use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use super::pass::{Attempt, Passed, send_to};
use crate::export::{Pieces, streamed};
use crate::gateway::Gateway;
use crate::refusal::{Refusal, json_response};
use crate::snapshots::store_body;

const PATH: &str = "/nodes/states/";
/// Time for a node to read a state, before it sends the first byte.
const HEAD_TIME: Duration = Duration::from_secs(600);
/// Time for a whole state.
const TRANSFER_TIME: Duration = Duration::from_secs(3600);
/// How long a removal waits until other nodes have removed their copies. Then they go on by themselves.
const REMOVAL_TIME: Duration = Duration::from_secs(5);
/// The most bytes of a node's refusal.
const MAX_REFUSAL: usize = 64 << 10;

type Transfer = Shared<BoxFuture<'static, Result<(), Refusal>>>;

/// The transfers to this node, by the states of snapshots.
#[derive(Default)]
pub(super) struct Transfers(Mutex<HashMap<StateId, Transfer>>);

impl Transfers {
    fn running(&self) -> MutexGuard<'_, HashMap<StateId, Transfer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a request at one of the paths between nodes. None: it is another path.
pub(super) async fn answer(gateway: &Arc<Gateway>, method: Method, path: String) -> Option<Response<Body>> {
    let state = path.strip_prefix(PATH)?;
    let answered = match (state.parse(), method) {
        (Ok(state), Method::GET) => send(gateway, &state).await,
        (Ok(state), Method::DELETE) => match gateway.control.drop_copy(&state).await {
            Ok(()) => Ok(Response::new(Body::empty())),
            Err(error) => Err(error.into()),
        },
        _ => Err(Refusal::not_found("there is nothing at this path between nodes")),
    };
    Some(answered.unwrap_or_else(|refusal| json_response(refusal.status, &refusal.problem())))
}

async fn send(gateway: &Gateway, state: &StateId) -> Result<Response<Body>, Refusal> {
    let sent = gateway.control.send_state(state).await?;
    let bytes = sent.archive.bytes();
    let broken = |error: std::io::Error| Refusal::new(ErrorCode::Internal, format!("the state could not be read: {error}"));
    let mut answer = streamed(move |out: &mut Pieces<std::io::Error>| sent.archive.write(out), broken).await?;
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    Ok(answer)
}

/// Copies a snapshot from another node, if this one lacks it. A snapshot that does not exist is left to the create.
pub(crate) async fn bring_snapshot(
    gateway: &Arc<Gateway>,
    tenant: &TenantId,
    name: &SnapshotName,
    restart_processes: bool,
) -> Result<(), Refusal> {
    let Some(peers) = &gateway.peers else { return Ok(()) };
    let snapshot = gateway.control.snapshot(tenant, name).await?;
    let is_own = snapshot.node == gateway.control.own_node();
    if !is_own
        && snapshot.memory_bytes.is_some()
        && !restart_processes
        && let Some(node) = &snapshot.node
    {
        let reason = format!("the processes of snapshot {name} can only go on where they were sealed, on the node {node}");
        return Err(Refusal::new(ErrorCode::Conflict, reason)
            .hint("create the sandbox there, or without its processes: restart_processes, or --restart-processes"));
    }
    if gateway.control.has_snapshot(&snapshot) {
        return Ok(());
    }
    let transfer = {
        let mut running = peers.transfers.running();
        let begin = || begin_transfer(Arc::clone(gateway), snapshot.clone());
        running.entry(snapshot.state.clone()).or_insert_with(begin).clone()
    };
    transfer.await
}

/// Runs a transfer to its end, also if the creates that wait for it leave.
fn begin_transfer(gateway: Arc<Gateway>, snapshot: Snapshot) -> Transfer {
    let shared = Arc::clone(&gateway);
    let task = gateway.tasks.spawn(async move {
        let state = snapshot.state.clone();
        let cut = shared.cut.clone();
        let copied = cut.run_until_cancelled(copy(&shared, snapshot)).await;
        if let Some(peers) = &shared.peers {
            peers.transfers.running().remove(&state);
        }
        copied.unwrap_or_else(|| Err(Refusal::new(ErrorCode::SandboxFailed, "the server stops")))
    });
    let ended = async move {
        task.await.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, format!("the transfer broke off: {error}"))))
    };
    ended.boxed().shared()
}

async fn copy(gateway: &Arc<Gateway>, snapshot: Snapshot) -> Result<(), Refusal> {
    let control = &gateway.control;
    // Another transfer may have ended just now.
    if control.has_snapshot(&snapshot) {
        return Ok(());
    }
    let (own, mut failed) = (control.own_node(), Vec::new());
    for SnapshotPlace { node, state } in control.places_of_snapshot(&snapshot).await? {
        if Some(&node) == own.as_ref() {
            continue;
        }
        let received = match receive(gateway, &snapshot.tenant, &node, &state).await {
            Ok(received) => received,
            Err(Failed::Here(refusal)) => return Err(refusal),
            Err(Failed::There(reason)) => {
                tracing::warn!(%node, snapshot = %snapshot.name, reason, "a snapshot could not be copied");
                failed.push(format!("{node}: {reason}"));
                continue;
            }
        };
        match control.add_copy(received, snapshot.clone()).await {
            Err(error @ ControlError::Image(_)) => {
                tracing::warn!(%node, snapshot = %snapshot.name, %error, "a snapshot that was copied is damaged");
                failed.push(format!("{node}: {error}"));
            }
            added => return Ok(added?),
        }
    }
    let message = format!("snapshot {} could not be copied from another node: {}", snapshot.name, failed.join("; "));
    Err(Refusal::new(ErrorCode::SandboxFailed, message)
        .hint("arenite node ls shows which nodes are up; the next create tries all that have the snapshot"))
}

/// Why a state could not be received.
pub(super) enum Failed {
    /// This node can't take it from any other, either.
    Here(Refusal),
    /// Another node may have it.
    There(String),
}

/// Receives a state of another node.
pub(super) async fn receive(
    gateway: &Gateway,
    tenant: &TenantId,
    node: &NodeName,
    state: &StateId,
) -> Result<ReceivedState, Failed> {
    let here = |error: ControlError| Failed::Here(error.into());
    let place = gateway.control.wait_to_receive().await.map_err(here)?;
    let asked = ask(gateway, tenant, node, Method::GET, state, Attempt::Once);
    let late = |_| Failed::There(format!("it did not send the state within {} s", HEAD_TIME.as_secs()));
    let answer = timeout(HEAD_TIME, asked).await.map_err(late)?.map_err(|refusal| Failed::There(refusal.message))?;
    let length = answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let length = length.ok_or_else(|| Failed::There("it did not say how large the state is".to_owned()))?;
    let received = gateway.control.begin_receive(place, length).await.map_err(here)?;
    let file = received.file().map_err(|error| {
        Failed::Here(Refusal::new(ErrorCode::Internal, format!("the file for a state could not be opened: {error}")))
    })?;
    let stored = store_body(answer.into_body(), file, length, gateway.config.next_piece, TRANSFER_TIME);
    let stored = tokio::select! {
        stored = stored => stored,
        () = gateway.control.until_lost(node) => return Err(Failed::There("it was given up".to_owned())),
    };
    match stored {
        Ok(()) => Ok(received),
        // This node's disk.
        Err(refusal) if matches!(refusal.code, ErrorCode::Exhausted | ErrorCode::Internal) => Err(Failed::Here(refusal)),
        Err(refusal) => Err(Failed::There(refusal.message)),
    }
}

/// A node's success.
async fn ask(
    gateway: &Gateway,
    tenant: &TenantId,
    node: &NodeName,
    method: Method,
    state: &StateId,
    attempt: Attempt,
) -> Result<Response<Body>, Refusal> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = format!("{PATH}{state}").parse().map_err(|_| Refusal::bad_request("the path can't be read"))?;
    let answer = send_to(gateway, node, &Passed::of_server(tenant.clone()), request, attempt).await?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let said = Limited::new(body, MAX_REFUSAL).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let said: serde_json::Value = serde_json::from_slice(&said).unwrap_or_default();
    let message = said["message"].as_str().map_or_else(|| format!("it answered with status {}", head.status), str::to_owned);
    let code = if head.status == StatusCode::NOT_FOUND { ErrorCode::NotFound } else { ErrorCode::SandboxFailed };
    Err(Refusal::new(code, message))
}

/// A node's answer to a request of a caller.
pub(crate) async fn call(
    gateway: &Gateway,
    node: &NodeName,
    passed: &Passed,
    request: Request<Body>,
) -> Result<Response<Body>, Refusal> {
    Ok(send_to(gateway, node, passed, request, Attempt::Wait).await?)
}

/// Makes other nodes remove their copies of a snapshot that was removed. One that does not answer does it later by itself.
pub(crate) async fn drop_copies(gateway: &Arc<Gateway>, tenant: &TenantId, name: &SnapshotName) -> Result<(), Refusal> {
    let copies = gateway.control.copies_elsewhere(tenant, name).await?;
    if copies.is_empty() {
        return Ok(());
    }
    let (shared, tenant) = (Arc::clone(gateway), tenant.clone());
    let removed = gateway.tasks.spawn(async move {
        let gateway = &shared;
        let tenant = &tenant;
        join_all(copies.into_iter().map(|SnapshotPlace { node, state }| async move {
            let asked = ask(gateway, tenant, &node, Method::DELETE, &state, Attempt::Wait);
            if let Some(Err(refusal)) = gateway.cut.run_until_cancelled(asked).await {
                tracing::warn!(%node, reason = refusal.message, "a copy of a removed snapshot stays until its node removes it");
            }
        }))
        .await;
    });
    if timeout(REMOVAL_TIME, removed).await.is_err() {
        tracing::debug!(snapshot = %name, "a removal goes on at other nodes");
    }
    Ok(())
}

/// Removes a snapshot on the node that it is of. False: that is this one, or it does not run.
pub(crate) async fn remove_snapshot(gateway: &Gateway, passed: &Passed, name: &SnapshotName) -> Result<bool, Refusal> {
    let snapshot = gateway.control.snapshot(&passed.principal.tenant, name).await?;
    let other = snapshot.node.filter(|node| Some(node) != gateway.control.own_node().as_ref());
    let Some(node) = other.filter(|node| gateway.control.may_answer(node)) else { return Ok(false) };
    let path = format!("/api/v2/snapshots/{name}");
    match super::calls::send_json(gateway, passed, &node, Method::DELETE, &path, None).await {
        // It was given up meanwhile.
        Err(_) if !gateway.control.may_answer(&node) => Ok(false),
        removed => removed.map(|_| true),
    }
}
