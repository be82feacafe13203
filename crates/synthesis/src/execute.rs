//! Runs tools.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_trajectory::{Intent, Origin, Outcome, OutcomeKind, Work};
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::answer::{Failure, Meta, Returned, ToolAnswer, code, random_hex, trace_id, truncated};
use crate::backend::ToolCall;
use crate::catalog::Tool;
use crate::names::trajectory_id;
use crate::retry::{Request, Running, Waiting};
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest};
use crate::session::Session;
use crate::synthesis::{Create, Synthesis};

/// Time reserved before the deadline, so that the answer reaches the client in time.
const MARGIN: Duration = Duration::from_millis(100);
/// Parameters about the session, which only the server sets.
const OURS: [&str; 3] = ["worker_id", "session_id", "session_info"];
const DIALECT: &str = "agentflow";
/// Longest action name, in characters.
const MAX_NAME: usize = 200;

/// One call.
#[derive(Debug, Clone, Default)]
pub struct Execute {
    pub worker: String,
    pub action: Action,
    /// The client's own id, kept in answer and record.
    pub trace_id: Option<String>,
    /// Identifies the trajectory together with the worker.
    pub task: Option<String>,
    /// The step that this one continues, if not the one before.
    pub parent: Option<u64>,
    /// The client's token counts of its model.
    pub tokens: Option<Box<RawValue>>,
}

/// A tool and its parameters.
#[derive(Debug, Clone, Default)]
pub struct Action {
    pub name: String,
    /// None, for null in a batch, is refused.
    pub params: Option<Map<String, Value>>,
    /// In seconds; 0: none; negative: already expired.
    pub timeout: Option<i64>,
}

/// An answer, and its JSON.
#[derive(Debug, Clone)]
pub struct Done {
    pub code: i64,
    pub status: u16,
    pub json: Arc<RawValue>,
}

impl Done {
    fn from_answer(answer: &ToolAnswer, status: u16) -> Self {
        let json = serde_json::value::to_raw_value(answer).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { code: answer.code, status, json: json.into() }
    }
}

/// State of a call, for its answer and record.
struct Way<'a> {
    begun: Instant,
    trace_id: String,
    tool: &'a str,
    resource: Option<&'a str>,
}

impl Way<'_> {
    fn meta<'a>(&'a self, session: Option<&'a str>) -> Meta<'a> {
        Meta {
            tool: self.tool,
            took: Some(self.begun.elapsed()),
            resource_type: self.resource,
            session_id: session,
            trace_id: &self.trace_id,
        }
    }

    fn failed(&self, session: Option<&str>, failure: Failure) -> ToolAnswer {
        let is_infrastructure = failure.is_infrastructure;
        let answer = ToolAnswer::new(failure.code, failure.message, failure.data, self.meta(session));
        ToolAnswer { is_infrastructure, ..answer }
    }
}

/// The session of a call.
struct Held {
    session: Arc<Session>,
    handle: Option<SandboxHandle>,
    /// Created for this call.
    temporary: bool,
    /// False for a tool without a session, which uses only its sandbox.
    shown: bool,
}

impl Synthesis {
    /// Runs a tool. `request` identifies the client's request: if the client leaves and repeats the same request within
    /// [`crate::GRACE`], it gets the answer of the first.
    pub async fn execute(
        self: &Arc<Self>,
        caller: &Caller,
        execute: Execute,
        request: impl Fn() -> Request + Send + Sync + 'static,
    ) -> Done {
        let worker = execute.worker.clone();
        let run = |synthesis: Arc<Self>, caller: Caller, cancel: CancellationToken| async move {
            synthesis.perform(&caller, execute, Timestamp::now(), &cancel).await
        };
        self.join_or_start(caller, &worker, request, run).await
    }

    /// Joins a run of the same request that another client left, or starts one in a separate task, so that it outlives its
    /// client.
    pub(crate) async fn join_or_start<F: Future<Output = Done> + Send + 'static>(
        self: &Arc<Self>,
        caller: &Caller,
        worker: &str,
        request: impl Fn() -> Request + Send + Sync + 'static,
        run: impl FnOnce(Arc<Self>, Caller, CancellationToken) -> F,
    ) -> Done {
        let left = if self.orphans.is_empty() { None } else { self.orphans.adopt(&request()) };
        let running = left.unwrap_or_else(|| {
            let cancel = CancellationToken::new();
            let (tell, done) = watch::channel(None);
            let run = run(Arc::clone(self), caller.clone(), cancel.clone());
            self.tasks.spawn(async move {
                let done = run.await;
                let _ = tell.send(Some(done));
            });
            Running { done, cancel }
        });
        let mut waiting = Waiting { orphans: Arc::clone(&self.orphans), request: Box::new(request), running: Some(running) };
        match waiting.wait().await {
            Some(done) => done,
            None => {
                tracing::error!(worker, "a call broke off in the server");
                let way = Way { begun: Instant::now(), trace_id: trace_id(), tool: "", resource: None };
                let broken = Failure::new(code::UNEXPECTED_ERROR, "the call broke off in the server; its log says why");
                Done::from_answer(&way.failed(None, broken), 500)
            }
        }
    }

    /// Runs a tool to its end, or until it is cancelled.
    pub(crate) async fn perform(
        self: &Arc<Self>,
        caller: &Caller,
        mut execute: Execute,
        queued_at: Timestamp,
        cancel: &CancellationToken,
    ) -> Done {
        let begun = Instant::now();
        // No tool has a longer name.
        let name = truncated(&std::mem::take(&mut execute.action.name), MAX_NAME);
        let params = execute.action.params.take();
        // The trace id that the client passes to the tool in its parameters also names the call everywhere else.
        let told = params.as_ref().and_then(|params| params.get("trace_id")).and_then(Value::as_str);
        let trace_id = told.map(str::to_owned).or_else(|| execute.trace_id.take()).unwrap_or_else(trace_id);
        let timeout = execute.action.timeout.filter(|timeout| *timeout != 0);
        // An expired deadline is detected when the tool would be called.
        let deadline = timeout.filter(|seconds| *seconds > 0).map(|seconds| {
            let all = Duration::from_secs(seconds.unsigned_abs().min(10 * 365 * 86_400));
            begun + all.saturating_sub(MARGIN)
        });
        if execute.worker.is_empty() {
            let meta = Meta { tool: &name, took: None, resource_type: None, session_id: None, trace_id: &trace_id };
            let answer = ToolAnswer::new(code::UNEXPECTED_ERROR, "worker_id is required", json!({}), meta);
            return Done::from_answer(&answer, answer.status());
        }
        let mut found = self.catalog.find(&name);
        if matches!(found, Err(None)) {
            // It may be one that is about to be discovered.
            self.discovered().await;
            found = self.catalog.find(&name);
        }
        let known = found.as_ref().ok().cloned();
        let way = match &known {
            Some(tool) => Way { begun, trace_id, tool: &tool.spec.name, resource: tool.spec.resource.as_deref() },
            None => Way { begun, trace_id, tool: &name, resource: None },
        };
        let refused = match (&found, &params) {
            (Err(None), _) => {
                let failure = Failure::new(code::INVALID_REQUEST_FORMAT, format!("Tool not found: {name}"));
                Some(failure.with(json!({ "action": name })))
            }
            (Err(Some(candidates)), _) => {
                let quoted: Vec<String> = candidates.iter().map(|one| format!("'{one}'")).collect();
                let message = format!(
                    "Ambiguous tool name '{name}'. Multiple matches: [{}]. Please use full name with prefix.",
                    quoted.join(", ")
                );
                Some(Failure::new(code::INVALID_REQUEST_FORMAT, message).with(json!({ "candidates": candidates })))
            }
            (_, None) => Some(Failure::new(code::UNEXPECTED_ERROR, "params is null, and has to be an object")),
            _ => None,
        };
        let (tool, mut params) = match (refused, found, params) {
            (None, Ok(tool), Some(params)) => (tool, params),
            (refused, _, params) => {
                let answer =
                    way.failed(None, refused.unwrap_or_else(|| Failure::new(code::UNEXPECTED_ERROR, "it can't be called")));
                return self.recorded(caller, &execute, &way, None, params, queued_at, answer);
            }
        };
        for ours in OURS {
            params.remove(ours);
        }
        if let Err(failure) = tool.loaded.backend.check(way.tool, &params, &execute.worker) {
            let answer = way.failed(None, failure);
            return self.recorded(caller, &execute, &way, None, Some(params), queued_at, answer);
        }

        let held = tokio::select! {
            held = self.hold(caller, &execute.worker, &tool) => held,
            () = over(deadline) => return self.recorded(caller, &execute, &way, None, Some(params), queued_at, timed_out(&way, None, timeout)),
            () = cancel.cancelled() => return self.recorded(caller, &execute, &way, None, Some(params), queued_at, cancelled(&way, None)),
        };
        let held = match held {
            Ok(held) => held,
            Err((session, failure)) => {
                let answer = way.failed(session.as_deref(), failure);
                return self.recorded(caller, &execute, &way, None, Some(params), queued_at, answer);
            }
        };
        let session = held.as_ref().and_then(|held| held.session_id());
        let handle = held.as_ref().and_then(|held| held.handle.as_ref());
        if let Some(held) = held.as_ref().filter(|held| held.shown && !held.temporary) {
            let trajectory = trajectory_id(&execute.worker, execute.task.as_deref());
            held.session.note_begin(&self.recorder, &caller.tenant, &trajectory);
        }
        let step = match self.begin(caller, &execute, &way, handle, &params, queued_at) {
            Ok(step) => step,
            Err(error) => {
                tracing::error!(%error, "a step could not be recorded, so its call is refused");
                let message = "the call can't be recorded, so it is not made; the server's log says why";
                let answer = way.failed(session, Failure::new(code::UNEXPECTED_ERROR, message));
                let done = Done::from_answer(&answer, answer.status());
                self.release_call(caller, &tool, held);
                return done;
            }
        };

        let ended = held.as_ref().filter(|held| !held.temporary).map(|held| held.session.ended.clone()).unwrap_or_default();
        let guard = held.as_ref().map(|held| held.session.calls.token());
        let call = ToolCall {
            tool: &tool.spec.name,
            params,
            worker: &execute.worker,
            trace_id: &way.trace_id,
            session: held.as_ref().filter(|held| held.shown).map(|held| &held.session),
            handle,
            deadline,
        };
        let (answer, result) = tokio::select! {
            biased;
            () = async {}, if timeout.is_some_and(|timeout| timeout < 0) => (timed_out(&way, session, timeout), None),
            returned = tool.loaded.backend.call(call) => (self.returned(&way, held.as_ref(), returned), None),
            () = over(deadline) => (timed_out(&way, session, timeout), None),
            () = ended.cancelled() => {
                let failure = Failure::new(code::RESOURCE_NOT_INITIALIZED, "the session was destroyed during the call");
                (way.failed(session, failure), None)
            }
            () = cancel.cancelled() => (cancelled(&way, session), Some(OutcomeKind::Aborted)),
        };
        drop(guard);
        let done = finish(step, &answer, result);
        self.release_call(caller, &tool, held);
        done
    }

    /// Builds the answer from a tool's return value.
    fn returned(&self, way: &Way<'_>, held: Option<&Held>, returned: Result<Returned, Failure>) -> ToolAnswer {
        let session = held.and_then(Held::session_id);
        let mut answer = match returned {
            Ok(Returned::Data(data)) => ToolAnswer::success(data, way.meta(session)),
            Ok(Returned::Envelope(envelope)) => match of_envelope(envelope, way.meta(session)) {
                Ok(answer) => answer,
                // Not a tool's answer, so it has no facts about its session.
                Err(failure) => return way.failed(session, failure),
            },
            // An aborted call has no facts about a temporary session either; a tool's report has.
            Err(failure) if failure.code == code::UNEXPECTED_ERROR => return way.failed(session, failure),
            Err(failure) => way.failed(session, failure),
        };
        if let Some(held) = held {
            if held.temporary && held.shown {
                answer.meta.insert("temporary_session".to_owned(), true.into());
            } else {
                held.session.used();
            }
        }
        answer
    }

    /// The session of a call: the worker's own, or one that lives as long as the call. None for a tool that needs neither session
    /// nor sandbox.
    async fn hold(
        self: &Arc<Self>,
        caller: &Caller,
        worker: &str,
        tool: &Tool,
    ) -> Result<Option<Held>, (Option<String>, Failure)> {
        let backend = &tool.loaded.backend;
        let refused = |session: Option<&Session>, kind: &str, error: &str| {
            let failure = Failure::new(code::RESOURCE_NOT_INITIALIZED, format!("Resource initialization failed: {error}"));
            let failure = failure.with(json!({ "resource_type": kind, "details": error })).of_infrastructure();
            (session.map(|session| session.facts.id.clone()), failure)
        };
        let Some(kind) = tool.session_type() else {
            if !backend.needs_sandbox() {
                return Ok(None);
            }
            // It uses the sandbox of the worker's sessions. If there is none, a hidden session keeps one for later calls, until
            // the worker's idle time is over or the worker leaves.
            let known = self.worker(&caller.tenant, worker);
            let shared = known.sessions().into_iter().find(|session| session.sandbox().is_some() && !session.is_alone());
            let session = shared.unwrap_or_else(|| {
                let create = Create { worker: worker.to_owned(), ..Create::default() };
                known.session_or("", |number| Session::new(self.facts(&create, number, true).0, false, false)).0
            });
            self.make_ready(caller, &known, &session).await;
            if let Some(error) = session.error() {
                let refused = refused(None, backend.name(), error);
                self.end(caller, &known, &session).await;
                return Err(refused);
            }
            let handle = self.handle(caller, &session);
            return Ok(Some(Held { session, handle, temporary: false, shown: false }));
        };
        // A backend that discovers its tools need not be warm for sessions, which start what they need themselves.
        if backend.is_resource()
            && !backend.discovers()
            && let Err(error) = tool.loaded.warm_up().await
        {
            tracing::debug!(backend = backend.name(), %error, "a backend could not be warmed up; the tool is called all the same");
        }
        let known = self.worker(&caller.tenant, worker);
        if let Some(session) = known.session(kind) {
            self.make_ready(caller, &known, &session).await;
            if let Some(error) = session.error() {
                return Err(refused(Some(&session), kind, error));
            }
            let handle = self.handle(caller, &session);
            return Ok(Some(Held { session, handle, temporary: false, shown: true }));
        }
        let create = Create { worker: worker.to_owned(), resource_type: kind.to_owned(), ..Create::default() };
        let (facts, compatible) = self.facts(&create, known.number(kind), true);
        let session = Arc::new(Session::new(facts, compatible, false));
        let handle = match backend.sandbox_request(&session.facts.config) {
            None => None,
            Some(sandbox_request) => Some(match SandboxRequest::from_config(&session.facts.config) {
                Ok(own) => self
                    .spare_or_own_sandbox(caller, &session, &own.over(&sandbox_request), true)
                    .await
                    .map_err(|error| refused(Some(&session), kind, &error.to_string()))?,
                Err(error) => return Err(refused(Some(&session), kind, &error.to_string())),
            }),
        };
        // The call's time may be over before the session is ready.
        let mut unready = Unready { synthesis: self, caller, handle };
        if backend.is_resource()
            && let Err(error) = backend.initialize(&session, unready.handle.as_ref()).await
        {
            return Err(refused(Some(&session), kind, &error.to_string()));
        }
        let handle = unready.handle.take();
        Ok(Some(Held { session, handle, temporary: true, shown: true }))
    }

    /// Releases what a call created for itself. Runs in the background.
    fn release_call(self: &Arc<Self>, caller: &Caller, tool: &Tool, held: Option<Held>) {
        let Some(held) = held.filter(|held| held.temporary) else { return };
        let backend = Arc::clone(&tool.loaded.backend);
        if held.handle.is_none() && !backend.is_resource() {
            return;
        }
        let (synthesis, caller) = (Arc::clone(self), caller.clone());
        self.tasks.spawn(async move {
            if backend.is_resource() {
                backend.cleanup(&held.session, held.handle.as_ref()).await;
            }
            synthesis.remove_sandbox(&caller, held.handle);
        });
    }

    fn remove_sandbox(self: &Arc<Self>, caller: &Caller, handle: Option<SandboxHandle>) {
        let Some(handle) = handle else { return };
        let (synthesis, caller) = (Arc::clone(self), caller.clone());
        self.tasks.spawn(async move { synthesis.sandboxes.remove(&caller, &handle.name).await });
    }

    fn begin(
        &self,
        caller: &Caller,
        execute: &Execute,
        way: &Way<'_>,
        handle: Option<&SandboxHandle>,
        params: &Map<String, Value>,
        queued_at: Timestamp,
    ) -> Result<arenite_trajectory::OpenStep, arenite_trajectory::TrajectoryError> {
        let intent = Intent {
            tenant: caller.tenant.clone(),
            trajectory: trajectory_id(&execute.worker, execute.task.as_deref()),
            sandbox_name: String::new(),
            dialect: DIALECT,
            action: way.tool.to_owned(),
            arguments: None,
            origin: Origin::Agent,
            client: caller.origin.clone(),
            request_id: caller.request_id.clone(),
            work: Some(Work {
                worker: execute.worker.chars().take(256).collect(),
                task: execute.task.as_ref().map(|task| task.chars().take(256).collect()),
                parent: execute.parent,
                trace_id: way.trace_id.chars().take(256).collect(),
                queued_at,
                sandbox: handle.map(|handle| handle.name.clone()),
                timeout: execute.action.timeout,
                tokens: execute.tokens.clone(),
            }),
        };
        let body = serde_json::to_vec(params).unwrap_or_default();
        self.recorder.begin_with_body(intent, &body)
    }

    /// An answer to a call that reached no tool, with its step.
    #[allow(clippy::too_many_arguments)]
    fn recorded(
        &self,
        caller: &Caller,
        execute: &Execute,
        way: &Way<'_>,
        handle: Option<&SandboxHandle>,
        params: Option<Map<String, Value>>,
        queued_at: Timestamp,
        answer: ToolAnswer,
    ) -> Done {
        match self.begin(caller, execute, way, handle, &params.unwrap_or_default(), queued_at) {
            Ok(step) => finish(step, &answer, None),
            Err(error) => {
                tracing::warn!(%error, "a call that was refused is not recorded");
                Done::from_answer(&answer, answer.status())
            }
        }
    }
}

/// The sandbox of a session that is being prepared for one call. It is removed if that fails or is aborted.
struct Unready<'a> {
    synthesis: &'a Arc<Synthesis>,
    caller: &'a Caller,
    handle: Option<SandboxHandle>,
}

impl Drop for Unready<'_> {
    fn drop(&mut self) {
        self.synthesis.remove_sandbox(self.caller, self.handle.take());
    }
}

impl Held {
    fn session_id(&self) -> Option<&str> {
        self.shown.then_some(self.session.facts.id.as_str())
    }
}

async fn over(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn timed_out(way: &Way<'_>, session: Option<&str>, timeout: Option<i64>) -> ToolAnswer {
    let timeout = timeout.unwrap_or_default();
    let failure = Failure::new(code::TIMEOUT, format!("Tool execution timed out after {timeout}s"));
    way.failed(session, failure.with(json!({ "timeout": timeout })))
}

fn cancelled(way: &Way<'_>, session: Option<&str>) -> ToolAnswer {
    way.failed(session, Failure::new(code::UNEXPECTED_ERROR, "the client left, so the call was cancelled"))
}

/// Completes an envelope that a tool built itself. Its own fields take precedence, except the trace.
fn of_envelope(mut envelope: Map<String, Value>, ours: Meta<'_>) -> Result<ToolAnswer, Failure> {
    let (Some(code), Some(message)) =
        (envelope.get("code").and_then(Value::as_i64), envelope.get("message").and_then(Value::as_str))
    else {
        return Err(legacy("dict"));
    };
    let message = message.to_owned();
    let trace_id = ours.trace_id.to_owned();
    let mut meta = ours.into_map();
    if let Some(Value::Object(theirs)) = envelope.remove("meta") {
        meta.extend(theirs);
    }
    meta.insert("trace_id".to_owned(), trace_id.into());
    Ok(ToolAnswer { code, message, data: envelope.remove("data").unwrap_or_default(), meta, is_infrastructure: false })
}

/// The failure for a tool that returned no envelope.
pub(crate) fn legacy(returned_type: &str) -> Failure {
    let message = "Tool returned legacy response format; expected {code, message, data, meta}";
    Failure::new(code::UNEXPECTED_ERROR, message).with(json!({ "returned_type": returned_type }))
}

/// Writes the outcome of a step, and returns the answer.
fn finish(mut step: arenite_trajectory::OpenStep, answer: &ToolAnswer, result: Option<OutcomeKind>) -> Done {
    let done = Done::from_answer(answer, answer.status());
    step.response_tap().feed(done.json.get().as_bytes());
    let ok = answer.is_success();
    if !ok {
        step.set_class(answer.class());
    }
    let result = result.unwrap_or(if ok { OutcomeKind::Ok } else { OutcomeKind::Error });
    let outcome = Outcome { status: Some(done.status), result, error: (!ok).then(|| answer.message.clone()) };
    // The call is done. If its outcome can't be written, that is counted, and the step reads as interrupted.
    if let Err(error) = step.finish(outcome) {
        tracing::error!(%error, "the outcome of a step could not be recorded");
    }
    done
}

/// A unique name.
pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", random_hex(8))
}
