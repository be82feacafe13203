//! One call to a guest: the connection, the request, and the head of the answer.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arenite_control::{Lease, Sandbox};
use arenite_model::protocol::HELLO_PATH;
use arenite_model::{ErrorCode, SandboxId, SandboxState};
use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;

use super::checkpoint::Checkpointed;
use super::incoming::Given;
use super::link::{Link, NoAnswer};
use super::outgoing::{Outgoing, Progress, Streamed};
use super::record::Record;
use super::{headers, internal_get, late_body, silent, unreachable};
use crate::gateway::Gateway;
use crate::refusal::Refusal;
use crate::traces::Trace;

/// A request as the guest gets it.
pub(super) struct GuestRequest<'a> {
    pub(super) method: &'a Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) given: Given,
    /// It asks for a WebSocket.
    pub(super) upgrade: bool,
    pub(super) trace: Option<Arc<Trace>>,
}

/// A call with the head of its answer. The body is still on the connection, which holds the sandbox.
pub(super) struct Called {
    pub(super) link: Link,
    pub(super) lease: Lease,
    /// Of the request's body, which may still be on its way.
    pub(super) progress: Arc<Progress>,
    pub(super) record: Record,
    pub(super) checkpointed: Option<Checkpointed>,
    pub(super) answer: Response<Incoming>,
    /// When the connection was there.
    pub(super) dialled: Instant,
}

/// Calls the guest of a leased sandbox. Its record gets the outcome if there is no answer.
pub(super) async fn call_guest(
    gateway: &Arc<Gateway>,
    lease: Lease,
    record: Record,
    guest_request: GuestRequest<'_>,
) -> Result<Called, Refusal> {
    if record.is_of_step() {
        lease.count_call();
    }
    let progress = Arc::new(Progress::default());
    // A large body releases its permit when its answer starts: until then it may be held.
    let (outgoing, permit) = match guest_request.given {
        Given::Held { bytes, permit } => {
            progress.sent();
            (Outgoing::held(bytes), permit)
        }
        Given::Streamed(body) => (Outgoing::Streamed(Streamed::new(gateway, body, record.clone(), Arc::clone(&progress))), None),
    };
    let mut request = Request::new(outgoing);
    *request.method_mut() = guest_request.method.clone();
    *request.uri_mut() = guest_request.uri;
    *request.headers_mut() = guest_request.headers;
    let spans = guest_request.trace.map(|trace| trace.call(request.headers_mut()));

    let called = call(gateway, &lease.sandbox.id, request, guest_request.upgrade);
    let called = answer_of(gateway, &lease.sandbox, called).await;
    drop(permit);
    let called = called.map_err(|refusal| if progress.is_idle() { late_body() } else { refusal });
    let (link, answer, dialled) = called.inspect_err(|refusal| {
        if progress.is_broken() {
            record.aborted("the client broke its request off");
        } else {
            record.failed(None, refusal.message.clone());
        }
    })?;
    if let Err(refusal) = headers::check_protocol(answer.headers()) {
        record.failed(Some(answer.status().as_u16()), refusal.message.clone());
        return Err(refusal);
    }
    if let Some(spans) = spans {
        spans.finish(lease.sandbox.id.as_str(), dialled, answer.headers());
    }
    Ok(Called { link, lease, progress, record, checkpointed: None, answer, dialled })
}

/// Waits for the start of a call's answer. Calls may take long, mostly because of a command. So when an answer is late, the guest
/// is pinged in parallel.
async fn answer_of<T>(
    gateway: &Gateway,
    sandbox: &Sandbox,
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
async fn lives(gateway: &Gateway, sandbox: &Sandbox) -> bool {
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
) -> Result<(Link, Response<Incoming>, Instant), Refusal> {
    // An upgraded connection does not return to the pool, so it is not taken from it.
    let mut link = if upgrade { Link::open(gateway, id).await? } else { connect(gateway, id).await? };
    let dialled = Instant::now();
    let copy = copy(&request);
    let failed = match link.send(request).await {
        Ok(answer) => return Ok((link, answer, dialled)),
        Err(failed) => failed,
    };
    let again = if failed.reused_and_lost(&copy) { failed.unsent.or(copy) } else { None };
    let Some(again) = again else {
        return Err(refusal(&failed.error, failed.flooded));
    };
    request = again;
    link = Link::open(gateway, id).await?;
    match link.send(request).await {
        Ok(answer) => Ok((link, answer, dialled)),
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

pub(super) fn refusal(error: &hyper::Error, flooded: bool) -> Refusal {
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
