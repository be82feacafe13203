//! The sandbox or the worker that a call of a model belongs to, and the path of the API.
//!
//! | path | the call belongs to |
//! | --- | --- |
//! | `/models/{route}/v1/…` | the sandbox or the worker that a header names; from inside a sandbox, to it; otherwise to none |
//! | `/models/{route}/sandbox/{name}/v1/…` | this sandbox |
//! | `/models/{route}/worker/{worker}/v1/…` | this worker |
//! | `/models/{route}/worker/{worker}/task/{task}/v1/…` | this worker, at this task |

use arenite_control::Sandbox;
use arenite_model::{ErrorCode, SandboxId};
use arenite_synthesis::trajectory_id;
use arenite_trajectory::{Intent, MODEL_DIALECT, Work};
use http::HeaderMap;
use jiff::Timestamp;

use crate::agent_calls::FromInside;
use crate::dialect::agentflow;
use crate::exchange::Exchange;
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef};

/// Longest name of a worker or a task, in bytes.
const MAX_WORKER: usize = 256;

/// A parsed path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelPath<'a> {
    pub(super) route: &'a str,
    of: PathSubject<'a>,
    /// What comes after `/v1/`.
    pub(super) endpoint: &'a str,
}

#[derive(Debug, PartialEq, Eq)]
enum PathSubject<'a> {
    Nothing,
    Sandbox(&'a str),
    Worker { worker: &'a str, task: Option<&'a str> },
}

impl<'a> ModelPath<'a> {
    /// `path` is decoded; none of its parts has a slash.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix("/models/")?.splitn(8, '/').collect();
        let (route, of, rest) = match &parts[..] {
            [route, "v1", rest @ ..] => (route, PathSubject::Nothing, rest),
            [route, "sandbox", name, "v1", rest @ ..] => (route, PathSubject::Sandbox(name), rest),
            [route, "worker", worker, "v1", rest @ ..] => (route, PathSubject::Worker { worker, task: None }, rest),
            [route, "worker", worker, "task", task, "v1", rest @ ..] => {
                (route, PathSubject::Worker { worker, task: Some(task) }, rest)
            }
            _ => return None,
        };
        let start = rest.first()?.as_ptr().addr() - path.as_ptr().addr();
        Some(Self { route, of, endpoint: path.get(start..)? })
    }
}

/// Whether it is the path of a call of a model.
pub(crate) fn is_call(path: &str) -> bool {
    ModelPath::parse(path).is_some()
}

/// The sandbox in the path of a call, to find its node.
pub(crate) fn sandbox_in_path(path: &str) -> Option<SandboxRef> {
    match ModelPath::parse(path)?.of {
        PathSubject::Sandbox(name) => Some(SandboxRef::Name(name.parse().ok()?)),
        _ => None,
    }
}

/// The worker in the path of a call, or in its header.
pub(crate) fn worker_in_path<'a>(path: &'a str, headers: &'a HeaderMap) -> Option<&'a str> {
    match ModelPath::parse(path)?.of {
        PathSubject::Worker { worker, .. } => Some(worker),
        PathSubject::Sandbox(_) => None,
        PathSubject::Nothing => header(headers),
    }
}

fn header(headers: &HeaderMap) -> Option<&str> {
    headers.get(agentflow::WORKER)?.to_str().ok().filter(|worker| !worker.is_empty())
}

/// What a call belongs to.
pub(super) enum Subject {
    Nothing,
    Sandbox(Box<Sandbox>),
    Worker { worker: String, task: Option<String> },
}

/// Finds it, for a caller that may act for it.
pub(super) async fn find(exchange: &Exchange, path: &ModelPath<'_>) -> Result<Subject, Refusal> {
    let (control, context, headers) = (&exchange.gateway.control, &exchange.context, &exchange.parts.headers);
    if let Some(FromInside(id)) = exchange.parts.extensions.get() {
        // Its own budget applies, whatever the path says: its children would give it others.
        return Ok(Subject::Sandbox(Box::new(control.get_by_id(context.tenant(), id).await?)));
    }
    let named = match &path.of {
        PathSubject::Sandbox(name) => Some(SandboxRef::Name(name.parse()?)),
        PathSubject::Nothing if headers.contains_key(target::HEADER) => Some(target::named(headers)?),
        _ => None,
    };
    if let Some(named) = named {
        let found = target::look_up(control, context, &named).await?;
        return Ok(Subject::Sandbox(Box::new(found)));
    }
    if context.principal.is_bound() {
        let message = "the caller's key is bound to sandboxes, and the call names none";
        return Err(Refusal::new(ErrorCode::Forbidden, message)
            .hint("use the path /models/{route}/sandbox/{name}/v1, or a key without bounds"));
    }
    let (worker, task) = match &path.of {
        PathSubject::Worker { worker, task } => (Some(*worker), *task),
        _ => (header(headers), None),
    };
    let Some(worker) = worker else { return Ok(Subject::Nothing) };
    for name in [Some(worker), task].into_iter().flatten() {
        if name.is_empty() || name.len() > MAX_WORKER {
            return Err(Refusal::bad_request(format!("a worker and a task have names of 1 to {MAX_WORKER} bytes")));
        }
    }
    Ok(Subject::Worker { worker: worker.to_owned(), task: task.map(str::to_owned) })
}

impl Subject {
    /// The key and the label of its budget. A sandbox and those that its agent creates have one.
    pub(super) fn budget(&self) -> Option<(String, String)> {
        match self {
            Self::Nothing => None,
            Self::Sandbox(sandbox) => {
                let top = sandbox.provenance.ancestors.first().unwrap_or(&sandbox.id);
                Some((format!("sandbox/{top}"), format!("the sandbox {}", sandbox.name)))
            }
            Self::Worker { worker, .. } => Some((format!("worker/{worker}"), format!("the worker {worker}"))),
        }
    }

    /// The sandbox that it is.
    pub(super) fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Sandbox(sandbox) => Some(&sandbox.id),
            Self::Nothing | Self::Worker { .. } => None,
        }
    }

    /// The intent of its step; none for a call that belongs to nothing.
    pub(super) fn intent(&self, exchange: &Exchange, endpoint: &str) -> Option<Intent> {
        let context = &exchange.context;
        let (trajectory, sandbox_name, work) = match self {
            Self::Nothing => return None,
            Self::Sandbox(sandbox) => (sandbox.id.to_string(), sandbox.name.to_string(), None),
            Self::Worker { worker, task } => {
                let work = Work {
                    worker: worker.clone(),
                    task: task.clone(),
                    parent: None,
                    trace_id: context.request_id.clone(),
                    queued_at: Timestamp::now(),
                    sandbox: None,
                    timeout: None,
                    tokens: None,
                };
                (trajectory_id(worker, task.as_deref()), String::new(), Some(work))
            }
        };
        Some(Intent {
            tenant: context.tenant().clone(),
            trajectory,
            sandbox_name,
            dialect: MODEL_DIALECT,
            action: format!("POST /v1/{endpoint}"),
            arguments: None,
            origin: context.origin,
            client: context.client.clone(),
            request_id: context.request_id.clone(),
            work,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_the_route_the_subject_and_the_endpoint() {
        let worker = |task| PathSubject::Worker { worker: "w 1", task };
        for (path, wanted) in [
            ("/models/main/v1/chat/completions", Some(("main", PathSubject::Nothing, "chat/completions"))),
            ("/models/main/sandbox/demo/v1/messages", Some(("main", PathSubject::Sandbox("demo"), "messages"))),
            ("/models/main/worker/w 1/v1/responses", Some(("main", worker(None), "responses"))),
            ("/models/main/worker/w 1/task/t/v1/models/a", Some(("main", worker(Some("t")), "models/a"))),
            ("/models/main/worker/w 1/task/t/v1/models/a/b/c/d", Some(("main", worker(Some("t")), "models/a/b/c/d"))),
            ("/models/v1/v1/messages", Some(("v1", PathSubject::Nothing, "messages"))),
            ("/models/main/v1", None),
            ("/models/main", None),
            ("/models/main/sandbox/v1/messages", None),
        ] {
            let found = ModelPath::parse(path).map(|path| (path.route, path.of, path.endpoint));
            assert_eq!(found, wanted, "{path}");
        }
    }
}
