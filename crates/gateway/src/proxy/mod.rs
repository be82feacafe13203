//! Proxying of calls to guests.
//!
//! ```text
//!  body read, if it is JSON ──► intent on record ──► connection from the pool, or dialled ──► request ──► head ──► body
//!         │ 413                      │ refused           │ 502: failed                    │ 502: failed    │
//!         ▼                          ▼                                                                     ▼
//!      no step                 nothing was called                              outcome on record before the last byte
//! ```

mod call;
mod checkpoint;
mod command;
mod content_type;
mod guest_calls;
mod headers;
mod incoming;
mod internal;
mod link;
mod outgoing;
mod pool;
pub(crate) mod preview;
mod preview_headers;
mod record;
mod redirect;
mod relay;
mod shared_origin;
mod tunnel;
mod watch;
mod wire;

use std::sync::Arc;

use arenite_control::Sandbox;
use arenite_model::ErrorCode;
use arenite_trajectory::{Intent, OpenStep, Origin, TrajectoryError};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::Value;

use crate::auth::Credential;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::path::{Path, query_value};
use crate::refusal::Refusal;
use crate::{own_host, steps, target};

use call::GuestRequest;
use checkpoint::Checkpointed;
use headers::Shown;
use incoming::Given;
use record::Record;
use redirect::Redirected;
use relay::Relay;
use watch::Watch;

pub(crate) use command::Commands;
pub(crate) use guest_calls::{call_guest, call_port};
pub(crate) use incoming::read_whole;
pub(crate) use internal::{InternalAnswer, internal_get, wait_for_inside};
pub(crate) use link::WayOut;
pub(crate) use pool::Pools;
pub(crate) use shared_origin::SANDBOXED;

/// Size in bytes from which arguments are recorded off the async threads.
const LARGE_ARGUMENTS: usize = 256 << 10;

/// The sandbox could not be reached, or sent an invalid answer.
fn unreachable(why: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::SandboxFailed, format!("the sandbox can't be reached: {}", why.into()))
}

/// The sandbox accepted a call but shows no sign of life.
fn silent() -> Refusal {
    Refusal::new(ErrorCode::Timeout, "the sandbox does not answer: its guest gives no sign of life")
        .hint("its root may have stopped the guest, or the host is overloaded; if it stays so, delete the sandbox")
}

/// The client stopped sending before the end of its request's body.
pub(crate) fn late_body() -> Refusal {
    Refusal {
        status: StatusCode::REQUEST_TIMEOUT,
        ..Refusal::new(ErrorCode::Timeout, "the rest of the request's body did not come in time")
    }
}

/// Passes a request on to its sandbox's guest, and the answer back.
pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let target = exchange.target()?;
    let lease = target::lease(&exchange.gateway, &exchange.context, &target.sandbox_ref).await?;
    exchange.timing.mark("wake");
    if let Some(answer) = own_host::of_program(exchange, &target, &lease.sandbox.id)? {
        return Ok(answer);
    }
    let body = exchange.take_body();
    let Exchange { gateway, context, parts, caller, timing, .. } = exchange;
    let upgrade = tunnel::is_wanted(parts);
    let given = incoming::read(gateway, parts, body).await?;
    let uri = uri(&target.path, parts.uri.query())?;
    let act = Act { context, sandbox: &lease.sandbox, method: &parts.method, uri: &uri, path: &target.path.decoded };
    let held = match &given {
        Given::Held { bytes, .. } => Some(bytes.clone()),
        Given::Streamed(_) => None,
    };
    let checkpointed = Checkpointed::begin(gateway, &lease, act.method, act.path, upgrade).await?;
    let record = record(gateway, &act, &parts.headers, held.as_ref(), upgrade).await?;
    timing.mark("record");
    let headers = headers::to_guest(&parts.headers, context, &target.prefix, upgrade, target.is_website());
    let trace = context.trace.clone();
    let request = GuestRequest { method: &parts.method, uri, headers, given, upgrade, trace };
    let mut called = call::call_guest(gateway, lease, record, request).await?;
    called.checkpointed = checkpointed;
    timing.mark_at("dial", called.dialled);
    timing.mark("tool");

    let owns = |path: &str| target::is_path_of(&target.sandbox_ref, path, &parts.headers);
    let status = called.answer.status();
    let redirected = Redirected {
        path: parts.uri.path(),
        origin: context.outer_origin(),
        outer: context.outer_path(),
        owns: (!target.own_host).then_some(&owns),
        keyed: caller.shown == Credential::Header,
        method: &parts.method,
        status,
    };
    let from_guest = called.answer.headers();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let head = headers::to_client(from_guest, Shown::at(&target), false, &redirected);
        return tunnel::open(exchange, called, head);
    }
    let bodiless = parts.method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    if !headers::is_told_as_json(from_guest) {
        called.record.is_payload();
    }
    let headers = headers::to_client(from_guest, Shown::at(&target), bodiless, &redirected);
    Ok(Relay::response(gateway, called, headers))
}

/// The path and query for the sandbox.
fn uri(path: &Path, query: Option<&str>) -> Result<Uri, Refusal> {
    let text = match query {
        Some(query) => format!("{}?{query}", path.raw),
        None => path.raw.clone(),
    };
    text.parse().map_err(|_| Refusal::bad_request("the path or the query can't be read"))
}

/// A call to a sandbox, as its step describes it.
struct Act<'a> {
    context: &'a Context,
    sandbox: &'a Sandbox,
    method: &'a Method,
    /// As the sandbox sees it.
    uri: &'a Uri,
    /// Its decoded path.
    path: &'a str,
}

impl Act<'_> {
    fn path_and_query(&self) -> &str {
        self.uri.path_and_query().map_or("/", |p| p.as_str())
    }

    fn intent(&self, arguments: Option<Value>) -> Intent {
        steps::intent(self.context, self.sandbox, self.method, self.path_and_query(), arguments)
    }

    /// A terminal that runs a command from its start is more than viewing.
    fn names_command(&self) -> bool {
        query_value(self.uri.query(), "command").is_some()
    }
}

/// Begins the step of a request, if it is one. `body`: none if it is streamed.
async fn record(
    gateway: &Arc<Gateway>,
    act: &Act<'_>,
    headers: &HeaderMap,
    body: Option<&Bytes>,
    upgrade: bool,
) -> Result<Record, Refusal> {
    let origin = act.context.origin;
    let command = command::named(headers).filter(|_| !upgrade);
    let is_viewing = steps::is_viewing(origin, act.method, act.path, upgrade);
    if !steps::is_step(act.method, act.path, upgrade) || is_viewing {
        if let Some(command) = command.filter(|command| command.is_last) {
            gateway.commands.end(&act.sandbox.id, &command);
        }
        return Ok(Record::default());
    }
    if upgrade
        && origin == Origin::Person
        && let Some(watch) = Watch::for_path(act.path).filter(|_| !act.names_command())
    {
        return Ok(Record::looking(gateway.recorder.clone(), act.intent(None), watch));
    }
    if let Some(command) = command.filter(|_| command::takes(act.path)) {
        let part = gateway.commands.begin(&gateway.recorder, &command, act, body.map(|bytes| &**bytes));
        return Ok(Record::of_part(part.map_err(unrecorded)?));
    }
    // Input of a WebSocket is streamed, and recorded as its arguments.
    let step = begin(gateway, act, body.filter(|_| !upgrade)).await?;
    Ok(Record::from_step(step))
}

/// Records the intent. `body`: none if it is streamed.
async fn begin(gateway: &Arc<Gateway>, act: &Act<'_>, body: Option<&Bytes>) -> Result<OpenStep, Refusal> {
    let redacted = body.and_then(|body| steps::without_credentials(act.path, body));
    let begun = match body {
        Some(_) if redacted.is_some() => gateway.recorder.begin(act.intent(redacted)),
        Some(body) if body.len() > LARGE_ARGUMENTS => {
            let (gateway, intent, body) = (Arc::clone(gateway), act.intent(None), body.clone());
            let begin = move || gateway.recorder.begin_with_body(intent, &body);
            match tokio::task::spawn_blocking(begin).await {
                Ok(begun) => begun,
                Err(error) => {
                    return Err(Refusal::new(ErrorCode::Internal, format!("recording failed: {error}")));
                }
            }
        }
        Some(body) if body.is_empty() => gateway.recorder.begin(act.intent(steps::of_query(act.path_and_query()))),
        Some(body) => gateway.recorder.begin_with_body(act.intent(None), body),
        None => gateway.recorder.begin(act.intent(None)),
    };
    let step = begun.map_err(unrecorded)?;
    tracing::Span::current().record("step", step.id());
    Ok(step)
}

pub(crate) fn unrecorded(error: TrajectoryError) -> Refusal {
    if matches!(error, TrajectoryError::TenantFull { .. }) {
        return error.into();
    }
    tracing::error!(%error, "a step could not be recorded, so its call is refused");
    let is_full = matches!(error, TrajectoryError::DiskFull);
    let mut refusal = Refusal::from(error);
    if is_full {
        refusal.status = StatusCode::INSUFFICIENT_STORAGE;
    } else if refusal.code == ErrorCode::Internal {
        refusal.status = StatusCode::INSUFFICIENT_STORAGE;
        refusal.message = "the call can't be recorded, so it is not made; the server's log says why".to_owned();
    } else {
        refusal.status = StatusCode::SERVICE_UNAVAILABLE;
    }
    refusal
}
