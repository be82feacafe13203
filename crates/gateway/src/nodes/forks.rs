//! Forks on other nodes: those of a request that the parent's node has no room for.
//!
//! ```text
//!  fork on A, which is full ──an order for some of them──► B ──the parent's state──► A
//!                                                          B ──► a state for these forks ──► sandboxes
//! ```
//!
//! What only the parent's node has stays there: volumes, groups, and processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::{CreateRequest, ForkStart, Provenance, Sandbox, SpecOverlay, StartState};
use arenite_model::protocol::{CarriedSessions, MAX_CARRIED};
use arenite_model::{ErrorCode, NodeName, SandboxId, SandboxName, SandboxSpec, StateId};
use arenite_trajectory::Origin;
use axum::body::Body;
use futures_util::future::join_all;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::pass::{Attempt, Passed, send_to};
use super::states::{Failed, receive};
use crate::api::{self, DIALECT};
use crate::audit;
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleCall};
use crate::refusal::{Refusal, json_response};

/// The path between nodes.
pub(super) const PATH: &str = "/nodes/forks";
/// The largest order, in bytes: a spec, and the sessions of the parent.
const MAX_ORDER: usize = MAX_CARRIED + (1 << 20);
/// The largest answer, in bytes: of 100 sandboxes.
const MAX_ANSWER: usize = 16 << 20;

/// Forks that a node shall create.
#[derive(Serialize, Deserialize)]
struct ForkOrder {
    /// The node that has the state.
    source: NodeName,
    state: StateId,
    /// Complete, apart from the state.
    spec: SandboxSpec,
    template: Option<String>,
    names: Vec<Option<SandboxName>>,
    action: String,
    origin: Origin,
    client_tag: Option<String>,
    forked_from: Option<SandboxId>,
    #[serde(default)]
    sessions: Option<CarriedSessions>,
    /// The variables of the request, which the spec has, too.
    #[serde(default)]
    own_env: BTreeMap<String, String>,
}

/// What became of one of them.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Forked {
    Created(Value),
    Refused { code: String, message: String, retry_after: Option<u64> },
}

/// Whether forks of a request can be on other nodes.
fn may_move(gateway: &Gateway, context: &Context, request: &CreateRequest) -> Option<ForkStart> {
    let StartState::Fork(start) = &request.start else { return None };
    let spec = &start.spec;
    let is_bound = gateway.peers.is_none()
        || context.principal.inside.is_some()
        || request.provenance.group.is_some()
        || !spec.volumes.is_empty()
        || gateway.control.keeps_processes(spec) != Some(false);
    (!is_bound).then(|| ForkStart::clone(start))
}

/// Creates forks on other nodes, which this one refused for want of room. Returns those that were created, and the last refusal of
/// each of the others.
pub(crate) async fn fork_elsewhere(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: &LifecycleCall,
    request: &CreateRequest,
    refused: Vec<(usize, Option<SandboxName>, Refusal)>,
) -> (Vec<Value>, Vec<(usize, Refusal)>) {
    let (mut created, mut left) = (Vec::new(), refused);
    let (Some(ForkStart { mut spec, sessions }), Some(own)) = (may_move(gateway, context, request), gateway.control.own_node())
    else {
        return (created, left.into_iter().map(|(index, _, refusal)| (index, refusal)).collect());
    };
    request.spec.clone().lay_over(&mut spec);
    let (wish, mut except) = (gateway.control.fork_wish(context.tenant(), &spec), vec![own.clone()]);
    while !left.is_empty() {
        // Each of them counts for the next one's place.
        let mut by_node: BTreeMap<NodeName, Vec<(usize, Option<SandboxName>, Refusal)>> = BTreeMap::new();
        let mut unplaced = Vec::new();
        for fork in left {
            match gateway.control.place(&wish, &except) {
                Ok(Some(node)) => by_node.entry(node).or_default().push(fork),
                _ => unplaced.push(fork),
            }
        }
        left = unplaced;
        if by_node.is_empty() {
            break;
        }
        let orders = by_node.into_iter().map(|(node, forks)| {
            let order = ForkOrder {
                source: own.clone(),
                state: spec.state.clone().unwrap_or_else(StateId::random),
                spec: spec.clone(),
                template: request.template.clone(),
                names: forks.iter().map(|(_, name, _)| name.clone()).collect(),
                action: call.action.clone(),
                origin: context.origin,
                client_tag: request.provenance.client_tag.clone(),
                forked_from: request.provenance.forked_from.clone(),
                sessions: sessions.as_deref().cloned(),
                own_env: request.spec.env.clone().unwrap_or_default(),
            };
            async move { (send(gateway, context, &node, &order).await, node, forks) }
        });
        for (answered, node, forks) in join_all(orders.collect::<Vec<_>>()).await {
            let answered = answered.unwrap_or_else(|refusal| {
                tracing::warn!(%node, reason = refusal.message, "forks could not be created on another node");
                let refused = |_| Forked::Refused {
                    code: refusal.code.as_str().to_owned(),
                    message: refusal.message.clone(),
                    retry_after: refusal.retry_after,
                };
                forks.iter().map(refused).collect()
            });
            for ((index, name, _), forked) in forks.into_iter().zip(answered) {
                match forked {
                    Forked::Created(sandbox) => created.push(sandbox),
                    Forked::Refused { code, message, retry_after } => {
                        if !except.contains(&node) {
                            except.push(node.clone());
                        }
                        let code = ErrorCode::ALL.into_iter().find(|one| one.as_str() == code).unwrap_or(ErrorCode::Internal);
                        let message = format!("on the node {node}: {message}");
                        left.push((index, name, Refusal { retry_after, ..Refusal::new(code, message) }));
                    }
                }
            }
        }
    }
    left.sort_by_key(|(index, ..)| *index);
    (created, left.into_iter().map(|(index, _, refusal)| (index, refusal)).collect())
}

async fn send(gateway: &Gateway, context: &Context, node: &NodeName, order: &ForkOrder) -> Result<Vec<Forked>, Refusal> {
    let mut request = Request::new(Body::from(json!(order).to_string()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = PATH.parse().map_err(|_| Refusal::bad_request("the path can't be read"))?;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (head, body) = send_to(gateway, node, &Passed::from_context(context), request, Attempt::Once).await?.into_parts();
    let broken = |_| Refusal::new(ErrorCode::SandboxFailed, format!("the answer of the node {node} broke off"));
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(broken)?.to_bytes();
    if !head.status.is_success() {
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = problem["message"].as_str().map_or_else(|| format!("the status is {}", head.status), str::to_owned);
        let code = ErrorCode::ALL.into_iter().find(|code| Some(code.as_str()) == problem["code"].as_str());
        return Err(Refusal::new(code.unwrap_or(ErrorCode::SandboxFailed), message));
    }
    let forked: Vec<Forked> = serde_json::from_slice(&body)
        .map_err(|error| Refusal::new(ErrorCode::Internal, format!("the answer of the node {node} can't be read: {error}")))?;
    match forked.len() == order.names.len() {
        true => Ok(forked),
        false => Err(Refusal::new(ErrorCode::Internal, format!("the node {node} answered for another number of forks"))),
    }
}

/// Answers another node's order.
pub(super) async fn answer(gateway: &Arc<Gateway>, passed: &Passed, body: Body) -> Response<Body> {
    let answered = take(gateway, passed, body).await;
    answered.unwrap_or_else(|refusal| json_response(refusal.status, &refusal.problem()))
}

async fn take(gateway: &Arc<Gateway>, passed: &Passed, body: Body) -> Result<Response<Body>, Refusal> {
    let order: ForkOrder = serde_json::from_slice(&api::read_up_to(body, MAX_ORDER).await?)
        .map_err(|error| Refusal::bad_request(format!("an order of another node can't be read: {error}")))?;
    if gateway.control.is_draining() || gateway.stopping.is_cancelled() {
        return Err(Refusal::new(ErrorCode::Exhausted, "the node takes no creates: it drains, or its server stops"));
    }
    let context = Context {
        principal: Arc::new(passed.principal.clone()),
        dialect: DIALECT,
        request_id: gateway.request_id(),
        client: Some(passed.client.to_string()),
        origin: order.origin,
        base_url: Some(format!("{}://{}{}", passed.scheme(), passed.host.authority, passed.prefix)),
        trace: None,
    };
    let shared = Arc::clone(gateway);
    let forked = gateway.run_to_end(async move { create(&shared, &context, order).await }).await?;
    Ok(json_response(StatusCode::OK, &forked))
}

async fn create(gateway: &Arc<Gateway>, context: &Context, order: ForkOrder) -> Result<Vec<Forked>, Refusal> {
    let received = match receive(gateway, context.tenant(), &order.source, &order.state).await {
        Ok(received) => received,
        Err(Failed::Here(refusal)) => return Err(refusal),
        Err(Failed::There(reason)) => {
            let message = format!("the state of the forks could not be copied from the node {}: {reason}", order.source);
            return Err(Refusal::new(ErrorCode::SandboxFailed, message));
        }
    };
    let spec = gateway.control.add_fork(received, context.tenant(), order.spec).await?;
    let request = CreateRequest {
        name: None,
        template: order.template,
        start: StartState::Fork(Box::new(ForkStart { spec: spec.clone(), sessions: order.sessions.map(Arc::new) })),
        spec: SpecOverlay { labels: Some(spec.labels.clone()), env: Some(order.own_env), ..SpecOverlay::default() },
        origin: DIALECT.to_owned(),
        provenance: Provenance { client_tag: order.client_tag, forked_from: order.forked_from, ..Provenance::default() },
        parent: None,
        client: None,
        own_volumes_only: false,
    };
    let call = LifecycleCall { dialect: DIALECT, action: order.action, arguments: None };
    let forks = order.names.into_iter().map(|name| {
        let (request, call) = (CreateRequest { name, ..request.clone() }, call.clone());
        async move {
            let object = request.name.as_ref().map_or_else(|| "-".to_owned(), SandboxName::to_string);
            let shape = |sandbox: Sandbox| (StatusCode::CREATED, api::started(gateway, context, sandbox));
            let created = lifecycle::create_recorded(gateway, context, call, request, None, shape).await;
            audit::record_result(gateway, context, "sandbox.create", &object, created).await
        }
    });
    let created = join_all(forks.collect::<Vec<_>>()).await;
    gateway.control.end_received_fork(context.tenant(), &spec).await;
    let forked = created.into_iter().map(|created| match created {
        Ok((_, sandbox)) => Forked::Created(sandbox),
        Err(refusal) => {
            Forked::Refused { code: refusal.code.as_str().to_owned(), message: refusal.message, retry_after: refusal.retry_after }
        }
    });
    Ok(forked.collect())
}
