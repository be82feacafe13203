//! The sandboxes of AgentFlow's workers: created, called and removed like all others, and recorded in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use arenite_control::tenants::Principal;
use arenite_control::{CreateRequest, ForkStart, Provenance, ResourcesOverlay, Sandbox, SpecOverlay, StartState};
use arenite_model::protocol::CarriedSessions;
use arenite_model::{ImageName, SandboxName, SandboxSpec, SandboxState, StateId, TenantId};
use arenite_synthesis::{Caller, GuestAnswer, GuestRequest, SandboxRequest, Sandboxes, SynthesisError};
use arenite_trajectory::Origin;
use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleCall};
use crate::path::Path;
use crate::preview::{Preview, PreviewOrigin};
use crate::proxy;
use crate::refusal::Refusal;
use crate::target::{SandboxRef, Target};

const DIALECT: &str = "agentflow";
/// Largest answer of a sandbox to a tool, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Images for workers that name none; the first that is built is used. They contain what all backends need, and nothing in them
/// runs before it is used.
const FULLEST: [&str; 3] = ["aio", "browser", "code"];
/// How long the list of built images is cached.
const BELIEVED: Duration = Duration::from_secs(10);

/// Holds the gateway weakly, because the gateway holds the workers.
pub(crate) struct WorkerSandboxes {
    gateway: Weak<Gateway>,
    image: Mutex<Option<(Instant, Option<&'static str>)>>,
}

impl WorkerSandboxes {
    pub(crate) fn new(gateway: &Arc<Gateway>) -> Self {
        Self { gateway: Arc::downgrade(gateway), image: Mutex::default() }
    }

    fn gateway(&self) -> Result<Arc<Gateway>, SynthesisError> {
        self.gateway.upgrade().ok_or(SynthesisError::Stopping)
    }

    /// The most complete image that is built; none: the server's default.
    async fn image(&self, gateway: &Gateway) -> Option<ImageName> {
        let known = *self.image.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, image)) = known.filter(|(at, _)| at.elapsed() < BELIEVED) {
            return image?.parse().ok();
        }
        let listed = gateway.control.list_images(&TenantId::default_tenant()).await.ok()?;
        let image = FULLEST.into_iter().find(|name| listed.iter().any(|image| image.name.as_str() == *name));
        *self.image.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), image));
        image?.parse().ok()
    }
}

fn context(gateway: &Gateway, caller: &Caller) -> Context {
    Context {
        // The rights were checked where the call came in.
        principal: Arc::new(Principal::server(caller.tenant.clone())),
        dialect: DIALECT,
        request_id: caller.request_id.clone(),
        client: caller.origin.clone(),
        // The server itself has no address.
        origin: if caller.origin.is_some() { Origin::Agent } else { Origin::System },
        base_url: None,
        trace: gateway.traces.find(&caller.request_id),
    }
}

fn said(refusal: Refusal) -> SynthesisError {
    unreachable(match refusal.hint {
        Some(hint) => format!("{}; {hint}", refusal.message),
        None => refusal.message,
    })
}

fn unreachable(reason: impl ToString) -> SynthesisError {
    SynthesisError::Unreachable { reason: reason.to_string() }
}

fn request(sandbox_request: &SandboxRequest, labels: BTreeMap<String, String>) -> Result<CreateRequest, SynthesisError> {
    let cpu_millis = match sandbox_request.cpus {
        None => None,
        Some(cpus) if cpus > 0.0 && cpus <= 1024.0 => Some((cpus * 1e3).ceil() as u32),
        Some(cpus) => return Err(SynthesisError::Cpus { cpus }),
    };
    let bytes = |megabytes: Option<u64>| megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20));
    Ok(CreateRequest {
        spec: SpecOverlay {
            image: sandbox_request.image.clone(),
            env: (!sandbox_request.env.is_empty()).then(|| sandbox_request.env.clone()),
            network: sandbox_request.network,
            resources: ResourcesOverlay {
                memory_bytes: bytes(sandbox_request.memory_mb),
                cpu_millis,
                pids: sandbox_request.pids,
                disk_bytes: bytes(sandbox_request.disk_mb),
                ..ResourcesOverlay::default()
            },
            // It lives as long as its sessions.
            timeout_seconds: Some(0),
            idle_timeout_seconds: Some(0),
            labels: Some(labels),
            ..SpecOverlay::default()
        },
        origin: DIALECT.to_owned(),
        ..CreateRequest::default()
    })
}

/// A sandbox as the state of another worker's.
fn fork_request(
    parent: &Sandbox,
    state: StateId,
    sessions: Option<Arc<CarriedSessions>>,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
) -> CreateRequest {
    let spec = SandboxSpec { state: Some(state), restart_processes: false, ..parent.spec.clone() };
    CreateRequest {
        template: parent.template.clone(),
        spec: SpecOverlay {
            env: (!env.is_empty()).then_some(env),
            labels: Some(parent.spec.labels.clone().into_iter().chain(labels).collect()),
            ..SpecOverlay::default()
        },
        start: StartState::Fork(Box::new(ForkStart { spec, sessions })),
        origin: DIALECT.to_owned(),
        provenance: Provenance { forked_from: Some(parent.id.clone()), ..Provenance::default() },
        ..CreateRequest::default()
    }
}

fn sandbox_ref(name: &str) -> Result<SandboxRef, SynthesisError> {
    Ok(SandboxRef::Name(name.parse()?))
}

/// The status and the whole body of an answer.
async fn whole(answer: Response<Body>) -> Result<(u16, Vec<u8>), SynthesisError> {
    let (head, body) = answer.into_parts();
    let read = Limited::new(body, MAX_ANSWER).collect().await;
    let bytes =
        read.map_err(|_| unreachable(format!("the sandbox's answer broke off or is over {} MiB", MAX_ANSWER >> 20)))?.to_bytes();
    Ok((head.status.as_u16(), bytes.into()))
}

#[async_trait]
impl Sandboxes for WorkerSandboxes {
    async fn make(
        &self,
        caller: &Caller,
        sandbox_request: &SandboxRequest,
        labels: BTreeMap<String, String>,
    ) -> Result<String, SynthesisError> {
        let gateway = self.gateway()?;
        let arguments = json!({ "labels": labels, "image": sandbox_request.image });
        let call = LifecycleCall { dialect: DIALECT, action: "a worker's sandbox".to_owned(), arguments: Some(arguments) };
        let answer = |sandbox: Sandbox| (StatusCode::OK, Value::from(sandbox.name.as_str()));
        let context = context(&gateway, caller);
        let unnamed = || unreachable("the sandbox has no name");
        let mut sandbox_request = sandbox_request.clone();
        if let Some(parent) = &sandbox_request.fork_of {
            let parent: SandboxName = parent.parse()?;
            let env = sandbox_request.env.clone();
            let forked = async {
                let (parent, state, sessions) = gateway.control.begin_fork(&caller.tenant, &parent, None, false).await?;
                let request = fork_request(&parent, state.clone(), sessions, env, labels);
                let created = lifecycle::create(&gateway, &context, call, request, answer).await;
                gateway.control.end_fork(&state).await;
                created
            };
            let (_, name) = forked.await.map_err(said)?;
            return name.as_str().map(str::to_owned).ok_or_else(unnamed);
        }
        if sandbox_request.image.is_none() {
            sandbox_request.image = self.image(&gateway).await;
        }
        let request = request(&sandbox_request, labels)?;
        let (_, name) = lifecycle::create(&gateway, &context, call, request, answer).await.map_err(said)?;
        name.as_str().map(str::to_owned).ok_or_else(unnamed)
    }

    async fn remove(&self, caller: &Caller, name: &str) {
        let (Ok(gateway), Ok(name)) = (self.gateway(), name.parse::<SandboxName>()) else { return };
        let call = LifecycleCall { dialect: DIALECT, action: "a worker's sandbox is removed".to_owned(), arguments: None };
        let answer = |_| (StatusCode::OK, Value::Null);
        if let Err(refusal) = lifecycle::delete(&gateway, &context(&gateway, caller), call, name.clone(), answer).await
            && refusal.status != StatusCode::NOT_FOUND
        {
            tracing::error!(sandbox = %name, error = refusal.message, "a worker's sandbox could not be removed");
        }
    }

    async fn is_there(&self, caller: &Caller, name: &str) -> bool {
        let (Ok(gateway), Ok(name)) = (self.gateway(), name.parse::<SandboxName>()) else { return false };
        let found = gateway.control.get(&caller.tenant, &name).await;
        found.is_ok_and(|sandbox| matches!(sandbox.state, SandboxState::Running | SandboxState::Paused))
    }

    async fn tenants(&self) -> Vec<TenantId> {
        let Ok(gateway) = self.gateway() else { return Vec::new() };
        let tenants: BTreeSet<TenantId> = gateway.control.list_all().into_iter().map(|sandbox| sandbox.tenant).collect();
        tenants.into_iter().collect()
    }

    async fn labelled(&self, tenant: &TenantId, label: &str) -> Vec<String> {
        let Ok(gateway) = self.gateway() else { return Vec::new() };
        let all = gateway.control.list(tenant).await.unwrap_or_default();
        all.into_iter().filter(|one| one.spec.labels.contains_key(label)).map(|one| one.name.to_string()).collect()
    }

    async fn call(&self, caller: &Caller, name: &str, path: &str, body: Option<&Value>) -> Result<GuestAnswer, SynthesisError> {
        let gateway = self.gateway()?;
        let (method, bytes) = match body {
            Some(body) => (Method::POST, serde_json::to_vec(body).map_err(unreachable)?),
            None => (Method::GET, Vec::new()),
        };
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Bytes::from(bytes)).map_err(unreachable)?;
        let path = Path::parse(request.uri().path()).map_err(said)?;
        let target = Target { sandbox_ref: sandbox_ref(name)?, path, prefix: String::new(), own_host: false };
        let called = proxy::call_guest(&gateway, &context(&gateway, caller), &target, request).await;
        let (status, bytes) = whole(called.map_err(said)?).await?;
        let json = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok(GuestAnswer { status, json, bytes })
    }

    async fn send(&self, caller: &Caller, name: &str, request: GuestRequest<'_>) -> Result<(u16, Vec<u8>), SynthesisError> {
        let gateway = self.gateway()?;
        let port = request.port;
        // The program is called as on a separate host: nothing is redirected or inserted into its pages.
        let preview = Preview {
            port,
            sandbox_ref: sandbox_ref(name)?,
            path: request.path.to_owned(),
            prefix: String::new(),
            origin: PreviewOrigin::Port,
        };
        let mut head = Request::builder().method(request.method).uri(request.path);
        if let Some(kind) = request.content_type {
            head = head.header(CONTENT_TYPE, kind);
        }
        let request = head.body(Bytes::from(request.body)).map_err(unreachable)?;
        match proxy::call_port(&gateway, &context(&gateway, caller), &preview, request).await {
            Ok(answer) => whole(answer).await,
            Err(failed) if failed.nothing_listens => Err(SynthesisError::NothingListens { port }),
            Err(failed) => Err(said(failed.refusal)),
        }
    }
}
