//! Proxying of calls to guests.
//!
//! ```text
//!  body read, if it is JSON ──► intent on record ──► connection from the pool, or dialled ──► request ──► head ──► body
//!         │ 413                      │ refused           │ 502: failed                    │ 502: failed    │
//!         ▼                          ▼                                                                     ▼
//!      no step                 nothing was called                              outcome on record before the last byte
//! ```

mod command;
mod content_type;
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

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arenite_control::Lease;
use arenite_model::protocol::HELLO_PATH;
use arenite_model::{ErrorCode, SandboxId, SandboxState};
use arenite_trajectory::{OpenStep, Origin, TrajectoryError};
use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use crate::auth::{Credential, Identity};
use crate::gateway::{Context, Gateway};
use crate::guard::Host;
use crate::own_host;
use crate::path::{Path, query_value};
use crate::refusal::Refusal;
use crate::steps;
use crate::target::{self, Target};
use crate::timing::Timing;

use headers::Shown;
use incoming::Given;
use link::{Link, NoAnswer};
use outgoing::{Outgoing, Progress, Streamed};
use record::Record;
use redirect::Redirected;
use relay::Relay;
use watch::Watch;

pub(crate) use command::Commands;
pub(crate) use incoming::read_whole;
pub(crate) use internal::{InternalAnswer, internal_get};
pub(crate) use pool::Pools;
pub(crate) use preview::forward as forward_to_port;
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

/// Passes one call on and returns its answer.
#[allow(clippy::too_many_arguments)]
pub(crate) async fn forward(
    gateway: &Arc<Gateway>,
    context: &Context,
    host: &Host,
    who: &Identity,
    target: &Target,
    parts: &mut Parts,
    body: Body,
    timing: &mut Timing,
) -> Result<Response<Body>, Refusal> {
    let upgrade = tunnel::is_wanted(parts);
    let lease = target::lease(&gateway.control, &context.tenant, &target.sandbox_ref).await?;
    timing.mark("wake");
    if let Some(answer) = own_host::of_program(gateway, context, host, target, parts, who, &lease.sandbox.id)? {
        return Ok(answer);
    }
    let given = incoming::read(gateway, parts, body).await?;
    let uri = uri(&target.path, parts)?;
    let path = target.path.decoded.as_str();
    let command = command::named(&parts.headers).filter(|_| !upgrade);
    let record = if !steps::is_step(&parts.method, path, upgrade)
        || steps::is_viewing(context.origin, &parts.method, path, upgrade)
    {
        if let Some(command) = command.filter(|command| command.is_last) {
            gateway.commands.end(&lease.sandbox.id, &command);
        }
        Record::default()
    } else if let Some(watch) =
        Watch::for_path(path).filter(|_| upgrade && context.origin == Origin::Person && !names_command(&uri))
    {
        let path_and_query = uri.path_and_query().map_or("/", |p| p.as_str());
        let intent = steps::intent(context, &lease.sandbox, &parts.method, path_and_query, None);
        Record::looking(gateway.recorder.clone(), intent, watch)
    } else if let Some(command) = command.filter(|_| command::takes(path)) {
        let path_and_query = uri.path_and_query().map_or("/", |p| p.as_str());
        let body = match &given {
            Given::Held { bytes, .. } => Some(&**bytes),
            Given::Streamed(_) => None,
        };
        let intent = |arguments| steps::intent(context, &lease.sandbox, &parts.method, path_and_query, arguments);
        let commands = &gateway.commands;
        let part = commands.begin(&gateway.recorder, &lease.sandbox.id, &command, (&parts.method, path_and_query), body, intent);
        Record::of_part(part.map_err(unrecorded)?)
    } else {
        let held = match &given {
            // Input of a WebSocket is streamed, and recorded as its arguments.
            Given::Held { bytes, .. } if !upgrade => Some(bytes.clone()),
            _ => None,
        };
        Record::from_step(begin(gateway, context, &lease, &parts.method, (&uri, path), held).await?)
    };
    timing.mark("record");
    let progress = Arc::new(Progress::default());
    // A large body releases its permit when its answer starts: until then it may be held.
    let (outgoing, permit) = match given {
        Given::Held { bytes, permit } => {
            progress.sent();
            (Outgoing::held(bytes), permit)
        }
        Given::Streamed(body) => (Outgoing::Streamed(Streamed::new(gateway, body, record.clone(), Arc::clone(&progress))), None),
    };
    let mut request = Request::new(outgoing);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers::to_guest(&parts.headers, context, &target.prefix, upgrade, target.is_website());

    let called = called(gateway, &lease.sandbox, call(gateway, &lease.sandbox.id, request, upgrade, timing)).await;
    drop(permit);
    let called = called.map_err(|refusal| if progress.is_idle() { late_body() } else { refusal });
    let (link, answer) = called.inspect_err(|refusal| {
        if progress.is_broken() {
            record.aborted("the client broke its request off");
        } else {
            record.failed(None, refusal.message.clone());
        }
    })?;
    timing.mark("tool");
    if let Err(refusal) = headers::check_protocol(answer.headers()) {
        record.failed(Some(answer.status().as_u16()), refusal.message.clone());
        return Err(refusal);
    }
    let owns = |path: &str| target::is_path_of(&target.sandbox_ref, path, &parts.headers);
    let redirected = Redirected {
        path: parts.uri.path(),
        origin: context.outer_origin(),
        outer: context.outer_path(),
        owns: (!target.own_host).then_some(&owns),
        keyed: who.shown == Credential::Header,
        method: &parts.method,
        status: answer.status(),
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let head = headers::to_client(answer.headers(), Shown::at(target), false, &redirected);
        return tunnel::open(gateway, parts, upgrade, link, lease, head, record);
    }
    let (head, body) = answer.into_parts();
    let status = head.status;
    let bodiless = parts.method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    if !headers::is_told_as_json(&head.headers) {
        record.is_payload();
    }
    let headers = headers::to_client(&head.headers, Shown::at(target), bodiless, &redirected);
    let relay = Relay::new(Arc::clone(gateway), (link, lease, progress), body, record, (status.as_u16(), &head.headers));
    let mut answer = Response::new(Body::new(relay));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    Ok(answer)
}

/// The path and query for the sandbox.
fn uri(path: &Path, parts: &Parts) -> Result<Uri, Refusal> {
    let text = match parts.uri.query() {
        Some(query) => format!("{}?{query}", path.raw),
        None => path.raw.clone(),
    };
    text.parse().map_err(|_| Refusal::bad_request("the path or the query can't be read"))
}

/// Records the intent.
async fn begin(
    gateway: &Arc<Gateway>,
    context: &Context,
    lease: &Lease,
    method: &Method,
    (uri, decoded_path): (&Uri, &str),
    held: Option<Bytes>,
) -> Result<OpenStep, Refusal> {
    let path_and_query = uri.path_and_query().map_or("/", |p| p.as_str());
    let intent = |arguments| steps::intent(context, &lease.sandbox, method, path_and_query, arguments);
    let redacted = held.as_deref().and_then(|body| steps::without_credentials(decoded_path, body));
    let begun = match held {
        Some(_) if redacted.is_some() => gateway.recorder.begin(intent(redacted)),
        Some(body) if body.len() > LARGE_ARGUMENTS => {
            let (gateway, intent) = (Arc::clone(gateway), intent(None));
            let begin = move || gateway.recorder.begin_with_body(intent, &body);
            match tokio::task::spawn_blocking(begin).await {
                Ok(begun) => begun,
                Err(error) => {
                    return Err(Refusal::new(ErrorCode::Internal, format!("recording failed: {error}")));
                }
            }
        }
        Some(body) if body.is_empty() => gateway.recorder.begin(intent(steps::of_query(path_and_query))),
        Some(body) => gateway.recorder.begin_with_body(intent(None), &body),
        None => gateway.recorder.begin(intent(None)),
    };
    begun.map_err(unrecorded)
}

/// A terminal that runs a command from its start is more than viewing.
fn names_command(uri: &Uri) -> bool {
    query_value(uri.query(), "command").is_some()
}

fn unrecorded(error: TrajectoryError) -> Refusal {
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

/// Waits for the start of a call's answer. Calls may take long, mostly because of a command. So when an answer is late, the guest
/// is pinged in parallel.
async fn called<T>(
    gateway: &Gateway,
    sandbox: &arenite_control::Sandbox,
    call: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let limit = gateway.config.call_limit;
    let mut call = pin!(tokio::time::timeout(limit, call));
    loop {
        let dead = async {
            tokio::time::sleep(gateway.config.late).await;
            !lives(gateway, sandbox).await
        };
        tokio::select! {
            called = &mut call => {
                let gave_up = || Refusal::new(ErrorCode::Timeout, format!("the sandbox gave no answer within {} s", limit.as_secs()));
                return called.unwrap_or_else(|_| Err(gave_up()));
            }
            dead = dead => if dead { return Err(silent()) },
        }
    }
}

/// Whether a guest still answers. A guest that was paused meanwhile need not.
async fn lives(gateway: &Gateway, sandbox: &arenite_control::Sandbox) -> bool {
    let asked = internal_get(gateway, &sandbox.id, HELLO_PATH);
    if matches!(tokio::time::timeout(gateway.config.late, asked).await, Ok(Ok(_))) {
        return true;
    }
    let now = gateway.control.get(&sandbox.tenant, &sandbox.name).await;
    now.is_ok_and(|now| now.id == sandbox.id && now.state == SandboxState::Paused)
}

/// Makes the call, on an idle connection if one exists. A connection that the guest has closed meanwhile is replaced, if the
/// guest can't have acted on the request.
async fn call(
    gateway: &Arc<Gateway>,
    id: &SandboxId,
    mut request: Request<Outgoing>,
    upgrade: bool,
    timing: &mut Timing,
) -> Result<(Link, Response<Incoming>), Refusal> {
    // An upgraded connection does not return to the pool, so it is not taken from it.
    let mut link = if upgrade { Link::open(gateway, id).await? } else { connect(gateway, id).await? };
    timing.mark("dial");
    let copy = copy(&request);
    let failed = match link.send(request).await {
        Ok(answer) => return Ok((link, answer)),
        Err(failed) => failed,
    };
    let again = if failed.reused_and_lost(&copy) { failed.unsent.or(copy) } else { None };
    let Some(again) = again else {
        return Err(refusal(&failed.error, failed.flooded));
    };
    request = again;
    link = Link::open(gateway, id).await?;
    match link.send(request).await {
        Ok(answer) => Ok((link, answer)),
        Err(failed) => Err(refusal(&failed.error, failed.flooded)),
    }
}

async fn connect(gateway: &Gateway, id: &SandboxId) -> Result<Link, Refusal> {
    while let Some(mut link) = gateway.pools.take(id) {
        if link.is_usable().await {
            gateway.metrics.guest_reused.fetch_add(1, Ordering::Relaxed);
            return Ok(link);
        }
    }
    Link::open(gateway, id).await
}

/// A copy of the request, if its body is held.
fn copy(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let Outgoing::Held(bytes) = request.body() else { return None };
    let mut copy = Request::new(Outgoing::Held(bytes.clone()));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

impl NoAnswer {
    /// Whether the idle connection was closed meanwhile without effect: either the guest did not receive the request, or a
    /// repetition of it has the same effect.
    fn reused_and_lost(&self, copy: &Option<Request<Outgoing>>) -> bool {
        let harmless = copy.as_ref().is_some_and(|r| r.method().is_safe());
        self.reused && self.silent && (self.unsent.is_some() || self.not_taken || harmless)
    }
}

fn refusal(error: &hyper::Error, flooded: bool) -> Refusal {
    let why = if flooded {
        "its guest sent informational answers without end".to_owned()
    } else if error.is_parse_too_large() {
        "the head of its guest's answer is too large".to_owned()
    } else if error.is_parse() {
        "its guest's answer is not HTTP".to_owned()
    } else if error.is_user() {
        return Refusal::bad_request("the request's body broke off");
    } else {
        "its guest closed the connection without an answer".to_owned()
    };
    unreachable(why)
}
