//! Calls to sandboxes by parts of this server: MCP's hub, and AgentFlow's workers. They are leased and recorded as all others
//! are, and their answers stay in this program.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};

use super::call::GuestRequest;
use super::checkpoint::Checkpointed;
use super::link::PortFailure;
use super::relay::Relay;
use super::{Act, begin, call, headers, incoming, preview, uri};
use crate::gateway::{Context, Gateway};
use crate::nodes;
use crate::preview::Preview;
use crate::proxy::record::Record;
use crate::refusal::Refusal;
use crate::steps;
use crate::target::{self, Target};

/// Calls the API of a sandbox's guest at the target's path. The answer's headers are the guest's own.
pub(crate) async fn call_guest(
    gateway: &Arc<Gateway>,
    context: &Context,
    target: &Target,
    request: Request<Bytes>,
) -> Result<Response<Body>, Refusal> {
    if let Some(answer) = nodes::call_guest(gateway, context, target, &request).await? {
        return Ok(answer);
    }
    let lease = target::lease(gateway, context, &target.sandbox_ref).await?;
    let (parts, bytes) = request.into_parts();
    let given = incoming::hold(gateway, bytes.clone()).await?;
    let uri = uri(&target.path, parts.uri.query())?;
    let act = Act { context, sandbox: &lease.sandbox, method: &parts.method, uri: &uri, path: &target.path.decoded };
    let checkpointed = Checkpointed::begin(gateway, &lease, act.method, act.path, false).await?;
    let record = match steps::is_step(&parts.method, act.path, false) {
        true => Record::from_step(begin(gateway, &act, Some(&bytes)).await?),
        false => Record::default(),
    };
    let headers = headers::to_guest(&parts.headers, context, &target.prefix, false, false);
    let trace = context.trace.clone();
    let request = GuestRequest { method: &parts.method, uri, headers, given, upgrade: false, trace };
    let mut called = call::call_guest(gateway, lease, record, request).await?;
    called.checkpointed = checkpointed;
    if !headers::is_told_as_json(called.answer.headers()) {
        called.record.is_payload();
    }
    let headers = called.answer.headers().clone();
    Ok(Relay::response(gateway, called, headers))
}

/// Calls a program on a port of a sandbox. The answer's headers are the program's own.
pub(crate) async fn call_port(
    gateway: &Arc<Gateway>,
    context: &Context,
    preview: &Preview,
    request: Request<Bytes>,
) -> Result<Response<Body>, PortFailure> {
    preview.check()?;
    let lease = target::lease(gateway, context, &preview.sandbox_ref).await?;
    let (parts, bytes) = request.into_parts();
    let called = preview::call(gateway, context, preview, lease, &parts, Body::from(bytes)).await?;
    let headers = called.answer.headers().clone();
    Ok(Relay::response(gateway, called, headers))
}
