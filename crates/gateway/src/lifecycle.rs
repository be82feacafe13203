//! Creating, deleting, changing, pausing, resuming and restarting sandboxes as steps of the sandbox's own trajectory, in any dialect.
//!
//! Each runs as a separate task, so that a client that leaves never causes an action without a record. So a create continues
//! without its client, even if it still waits for its turn. `Control` detaches each change as well: a lease makes changes too,
//! and runs in no such task.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use arenite_control::tenants::Tenants;
use arenite_control::{ControlError, CreateClient, CreateRequest, HeldKey, PullProgress, Sandbox, SandboxChange, StartState};
use arenite_model::{ErrorCode, PauseKind, SandboxId, SandboxName, TenantId};
use arenite_trajectory::{Intent, OpenStep, Origin, Outcome, OutcomeKind, TrajectoryError, without_userinfo};
use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;

use crate::api::types::RemovedSandbox;
use crate::audit;
use crate::gateway::{Context, Gateway};
use crate::idempotency;
use crate::nodes;
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef};

/// The caller of a lifecycle change, and its dialect.
#[derive(Debug, Clone)]
pub(crate) struct LifecycleCall {
    pub(crate) dialect: &'static str,
    /// Method and path.
    pub(crate) action: String,
    pub(crate) arguments: Option<Value>,
}

/// An answer in the dialect's format; recorded as the step's observation.
pub(crate) type LifecycleAnswer = (StatusCode, Value);

/// Creates a sandbox.
pub(crate) async fn create(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    request: CreateRequest,
    answer: impl FnOnce(Sandbox) -> LifecycleAnswer + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    create_keyed(gateway, context, call, request, None, answer).await
}

/// The same with an idempotency key, under which the answer is stored.
pub(crate) async fn create_keyed(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    mut request: CreateRequest,
    key: Option<HeldKey>,
    answer: impl FnOnce(Sandbox) -> LifecycleAnswer + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    let (gateway, context) = (Arc::clone(gateway), context.clone());
    let object = request.name.as_ref().map(SandboxName::to_string);
    // Dropped when the client leaves.
    let _client = wait_with_client(&mut request);
    audited(&Arc::clone(&gateway), &context.clone(), "sandbox.create", object, async move {
        let left = match &key {
            Some(key) => key.left().await?.pop(),
            None => None,
        };
        request.provenance.keyed = key.as_ref().map(|key| key.keyed(0));
        let created = create_recorded(&gateway, &context, call, request, left, answer).await;
        idempotency::settle(key, created).await
    })
    .await
}

/// What has to be kept as long as the client of a create waits for it, unless the caller keeps it: a create does not wait for the pull
/// of an image without its client.
pub(crate) fn wait_with_client(request: &mut CreateRequest) -> Option<watch::Receiver<Option<PullProgress>>> {
    if request.client.is_some() {
        return None;
    }
    let (client, progress) = CreateClient::new();
    request.client = Some(client);
    Some(progress)
}

/// Creates a sandbox, or takes the one that an earlier create with the same key left. Its id is known only after the creation, so
/// the step is written then. A sandbox is removed again if its step can't be written.
pub(crate) async fn create_recorded(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    mut request: CreateRequest,
    left: Option<Sandbox>,
    answer: impl FnOnce(Sandbox) -> LifecycleAnswer,
) -> Result<LifecycleAnswer, Refusal> {
    check_create(gateway, context, &request)?;
    // Tenants would share directories of the host.
    request.own_volumes_only = !context.principal.operator;
    request.parent.clone_from(&context.principal.inside);
    let has_steps = |sandbox: &Sandbox| {
        gateway.recorder.steps(&sandbox.tenant, sandbox.id.as_str(), 0, 1).is_ok_and(|steps| !steps.is_empty())
    };
    let sandbox = match left {
        Some(sandbox) if has_steps(&sandbox) => return Ok(answer(sandbox)),
        Some(sandbox) => sandbox,
        None => {
            let since = Instant::now();
            if let StartState::Snapshot { name, restart_processes } = &request.start {
                nodes::bring_snapshot(gateway, context.tenant(), name, *restart_processes).await?;
            }
            let sandbox = gateway.control.create(context.tenant(), request).await?;
            if let Some(trace) = &context.trace {
                trace.creation(since, sandbox.id.as_str(), &sandbox.stages);
            }
            sandbox
        }
    };
    match begin(gateway, context, &sandbox, call) {
        Ok(step) => Ok(done(step, answer(sandbox))),
        Err(error) => {
            if let Err(left) = gateway.control.delete(context.tenant(), &sandbox.name).await {
                tracing::error!(sandbox = %sandbox.id, %left, "a sandbox without a record could not be removed");
            }
            Err(error.into())
        }
    }
}

/// Deletes a sandbox, and ends its trajectory. Full records don't prevent a delete: it is then made without a record.
pub(crate) async fn delete(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    name: SandboxName,
    answer: impl FnOnce(Sandbox) -> LifecycleAnswer + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    let (gateway, context) = (Arc::clone(gateway), context.clone());
    audited(&Arc::clone(&gateway), &context.clone(), "sandbox.delete", Some(name.to_string()), async move {
        let sandbox = target::look_up(&gateway.control, &context, &SandboxRef::Name(name.clone())).await?;
        if !gateway.control.has_id(context.tenant(), &sandbox.id) && nodes::delete(&gateway, &context, &name).await? {
            return Ok(answer(sandbox));
        }
        // The trajectory of another node's sandbox is there.
        let step = gateway.control.has_id(context.tenant(), &sandbox.id).then(|| begin(&gateway, &context, &sandbox, call));
        let step = step.and_then(|step| {
            step.inspect_err(|error| tracing::error!(sandbox = %sandbox.id, %error, "a delete is not recorded")).ok()
        });
        if let Err(error) = gateway.control.delete(context.tenant(), &name).await {
            return Err(match step {
                Some(step) => failed(step, &sandbox.id, error),
                None => error.into(),
            });
        }
        let id = sandbox.id.to_string();
        let answer = answer(sandbox);
        let answer = match step {
            Some(step) => done(step, answer),
            None => answer,
        };
        gateway.recorder.close_trajectory(context.tenant(), &id);
        Ok(answer)
    })
    .await
}

/// The requested change. Labels and times change without waking the sandbox.
#[derive(Debug)]
pub(crate) enum Change {
    Pause(PauseKind),
    Resume,
    Start,
    Set(SandboxChange),
    Extend(SandboxChange),
}

/// Changes a sandbox. Succeeds if it is already as wanted.
pub(crate) async fn change(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    name: SandboxName,
    change: Change,
    answer: impl FnOnce(Sandbox) -> LifecycleAnswer + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    let (gateway, context) = (Arc::clone(gateway), context.clone());
    let action = match &change {
        Change::Pause(_) => "sandbox.pause",
        Change::Resume => "sandbox.resume",
        Change::Start => "sandbox.start",
        Change::Set(_) => "sandbox.change",
        Change::Extend(_) => "sandbox.extend",
    };
    audited(&Arc::clone(&gateway), &context.clone(), action, Some(name.to_string()), async move {
        let sandbox = target::look_up(&gateway.control, &context, &SandboxRef::Name(name.clone())).await?;
        let step = begin(&gateway, &context, &sandbox, call)?;
        let changed = match change {
            Change::Pause(kind) => gateway.control.pause(context.tenant(), &name, kind).await,
            Change::Resume => gateway.control.resume(context.tenant(), &name).await,
            Change::Start => gateway.control.start_sandbox(context.tenant(), &name).await,
            Change::Set(change) | Change::Extend(change) => gateway.control.change(&context.principal, &name, change).await,
        };
        match changed {
            Ok(sandbox) => Ok(done(step, answer(sandbox))),
            Err(error) => Err(failed(step, &sandbox.id, error)),
        }
    })
    .await
}

/// Makes a change of a sandbox as a step of its trajectory.
pub(crate) async fn recorded(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    name: SandboxName,
    action: &'static str,
    change: impl Future<Output = Result<LifecycleAnswer, Refusal>> + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    let (shared, caller) = (Arc::clone(gateway), context.clone());
    audited(gateway, context, action, Some(name.to_string()), async move {
        let sandbox = target::look_up(&shared.control, &caller, &SandboxRef::Name(name)).await?;
        let step = begin(&shared, &caller, &sandbox, call)?;
        match change.await {
            Ok(answer) => Ok(done(step, answer)),
            Err(refusal) => Err(refused(step, &sandbox.id, refusal)),
        }
    })
    .await
}

/// Takes a sandbox out of quarantine. Adopts it even if its step can't be written.
pub(crate) async fn adopt(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    id: SandboxId,
    name: Option<SandboxName>,
    answer: impl FnOnce(Sandbox) -> LifecycleAnswer + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    let (gateway, context) = (Arc::clone(gateway), context.clone());
    audited(&Arc::clone(&gateway), &context.clone(), "quarantine.adopt", Some(id.to_string()), async move {
        let sandbox = gateway.control.adopt_quarantined(context.tenant(), &id, name).await?;
        let step = begin(&gateway, &context, &sandbox, call);
        let answer = answer(sandbox);
        match step {
            Ok(step) => Ok(done(step, answer)),
            Err(error) => {
                tracing::error!(sandbox = %id, %error, "an adoption is not recorded");
                Ok(answer)
            }
        }
    })
    .await
}

/// Removes a quarantined sandbox, and ends its trajectory.
pub(crate) async fn remove_quarantined(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    id: SandboxId,
) -> Result<LifecycleAnswer, Refusal> {
    let (gateway, context) = (Arc::clone(gateway), context.clone());
    audited(&Arc::clone(&gateway), &context.clone(), "quarantine.remove", Some(id.to_string()), async move {
        let owner = gateway.control.remove_quarantined(&id).await?;
        let owner = owner.unwrap_or_else(|| context.tenant().clone());
        let answer = (StatusCode::OK, serde_json::json!(RemovedSandbox { id: id.clone(), deleted: true }));
        let answer = match begin_at(&gateway, &context, (&owner, id.as_str(), id.as_str()), call) {
            Ok(step) => done(step, answer),
            Err(error) => {
                tracing::error!(sandbox = %id, %error, "a delete is not recorded");
                answer
            }
        };
        gateway.recorder.close_trajectory(&owner, id.as_str());
        Ok(answer)
    })
    .await
}

/// Refuses creates that the caller may not make: beyond the bounds of its key. A worker may still request a sandbox when its tenant is already disabled or removed.
pub(crate) fn check_create(gateway: &Gateway, context: &Context, request: &CreateRequest) -> Result<(), Refusal> {
    let principal = &context.principal;
    let is_closed = |tenants: &Arc<Tenants>| tenants.get(&principal.tenant).map_or(true, |tenant| tenant.disabled);
    if gateway.control.tenants().is_some_and(is_closed) {
        return Err(Refusal::new(ErrorCode::Forbidden, format!("tenant {} is disabled", principal.tenant)));
    }
    let none = BTreeMap::new();
    if principal.inside.is_none() && !principal.covers(request.name.as_ref(), request.spec.labels.as_ref().unwrap_or(&none)) {
        return Err(Refusal::new(ErrorCode::Forbidden, "the caller's key is bound to sandboxes, and this would be another")
            .hint("create one with a name or a label that the key is bound to"));
    }
    Ok(())
}

/// Runs a change to its end, whether or not its client waits for it, and records it in the audit log.
async fn audited(
    gateway: &Arc<Gateway>,
    context: &Context,
    action: &'static str,
    object: Option<String>,
    change: impl Future<Output = Result<LifecycleAnswer, Refusal>> + Send + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    audited_boxed(gateway, context, action, object, Box::pin(change)).await
}

/// The same, compiled once for all changes.
async fn audited_boxed(
    gateway: &Arc<Gateway>,
    context: &Context,
    action: &'static str,
    object: Option<String>,
    change: BoxFuture<'static, Result<LifecycleAnswer, Refusal>>,
) -> Result<LifecycleAnswer, Refusal> {
    let (shared, context) = (Arc::clone(gateway), context.clone());
    let audited = async move {
        let changed = change.await;
        let object = object.or_else(|| changed.as_ref().ok().and_then(|(_, answer)| Some(answer["name"].as_str()?.to_owned())));
        audit::record_result(&shared, &context, action, object.as_deref().unwrap_or("-"), changed).await
    };
    gateway.run_to_end(audited).await
}

fn begin(gateway: &Gateway, context: &Context, sandbox: &Sandbox, call: LifecycleCall) -> Result<OpenStep, TrajectoryError> {
    tracing::Span::current().record("sandbox", sandbox.id.as_str());
    // A sandbox in quarantine may be another tenant's than the operator's.
    begin_at(gateway, context, (&sandbox.tenant, sandbox.id.as_str(), sandbox.name.as_str()), call)
}

fn begin_at(
    gateway: &Gateway,
    context: &Context,
    (tenant, id, name): (&TenantId, &str, &str),
    call: LifecycleCall,
) -> Result<OpenStep, TrajectoryError> {
    let step = gateway.recorder.begin(Intent {
        tenant: tenant.clone(),
        trajectory: id.to_owned(),
        sandbox_name: name.to_owned(),
        dialect: call.dialect,
        action: call.action,
        arguments: call.arguments.map(without_userinfo),
        origin: cause(context, call.dialect),
        client: context.client.clone(),
        request_id: context.request_id.clone(),
        work: None,
    })?;
    tracing::Span::current().record("step", step.id());
    Ok(step)
}

/// Lifecycle changes are the system's, unless an agent called a tool for it or a person pressed a button.
fn cause(context: &Context, dialect: &str) -> Origin {
    match context.origin {
        Origin::Agent if dialect != "mcp" => Origin::System,
        other => other,
    }
}

fn done(step: OpenStep, answer: LifecycleAnswer) -> LifecycleAnswer {
    finish(step, answer.0, OutcomeKind::Ok, &answer.1, None);
    answer
}

fn failed(step: OpenStep, sandbox: &SandboxId, error: ControlError) -> Refusal {
    refused(step, sandbox, Refusal::from(error))
}

fn refused(step: OpenStep, sandbox: &SandboxId, refusal: Refusal) -> Refusal {
    let refusal = refusal.of_step(sandbox.as_str(), step.id());
    let said = serde_json::json!({ "code": refusal.code, "message": refusal.message });
    finish(step, refusal.status, OutcomeKind::Error, &said, Some(refusal.message.clone()));
    refusal
}

fn finish(mut step: OpenStep, status: StatusCode, result: OutcomeKind, said: &Value, error: Option<String>) {
    step.response_tap().feed(without_userinfo(said.clone()).to_string().as_bytes());
    // The change is done. If its outcome can't be written, that is counted, and the step reads as interrupted.
    if let Err(error) = step.finish(Outcome { status: Some(status.as_u16()), result, error }) {
        tracing::error!(%error, "the outcome of a step could not be recorded");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arenite_control::fake_engine::Point;
    use arenite_model::TenantId;
    use arenite_trajectory::Limits;
    use serde_json::json;

    use super::*;
    use crate::harness::Harness;

    fn steps(server: &Harness, id: &str) -> Vec<(String, Option<OutcomeKind>)> {
        let steps = server.gateway.recorder.steps(&TenantId::default_tenant(), id, 0, 100).unwrap();
        steps.into_iter().map(|s| (s.action, s.outcome)).collect()
    }

    #[tokio::test]
    async fn a_client_that_leaves_leaves_no_act_without_its_record() {
        let server = Harness::new().await;
        server.engine.delay(Point::BeforeCreate, Duration::from_millis(200));
        let create = server.call("POST", "/api/v2/sandboxes", json!({ "name": "left" }));
        assert!(tokio::time::timeout(Duration::from_millis(20), create).await.is_err());
        server.gateway.tasks.close();
        server.gateway.tasks.wait().await;
        let made = server.call("GET", "/api/v2/sandboxes/left", Value::Null).await.json;
        let recorded = steps(&server, made["id"].as_str().unwrap());
        assert_eq!(recorded, [("POST /api/v2/sandboxes".to_owned(), Some(OutcomeKind::Ok))]);
    }

    #[tokio::test]
    async fn a_failed_act_is_recorded_as_that() {
        let server = Harness::new().await;
        let made = server.call("POST", "/api/v2/sandboxes", json!({ "name": "x" })).await.json;
        server.engine.fail(Point::Pause, 1);
        let refused = server.call("POST", "/api/v2/sandboxes/x/pause", Value::Null).await;
        assert!(refused.status >= 500, "{}", refused.text);
        let recorded = steps(&server, made["id"].as_str().unwrap());
        assert_eq!(recorded[1], ("POST /api/v2/sandboxes/x/pause".to_owned(), Some(OutcomeKind::Error)));
    }

    #[tokio::test]
    async fn credentials_in_an_environment_are_given_to_the_sandbox_and_to_no_record() {
        let server = Harness::new().await;
        let body = json!({ "name": "x", "env": { "PROXY_SERVER": "me:sekrit@proxy.test:3128" } });
        let made = server.call("POST", "/api/v2/sandboxes", body).await;
        assert!(made.text.contains("me:sekrit@"), "{}", made.text);
        let id = made.json["id"].as_str().unwrap();
        let recorded = server.gateway.recorder.steps(&TenantId::default_tenant(), id, 0, 100).unwrap();
        let told = serde_json::to_string(&recorded).unwrap();
        assert!(told.contains("redacted@proxy.test:3128") && !told.contains("sekrit"), "{told}");
    }

    #[tokio::test]
    async fn when_records_are_full_nothing_is_made_and_everything_can_be_deleted() {
        let server = Harness::recording(Limits { logs_bytes: 0, ..Limits::default() }, |_, _| {}).await;
        let refused = server.call("POST", "/api/v2/sandboxes", json!({ "name": "x" })).await;
        assert!(refused.status >= 400, "{}", refused.text);
        let list = async || server.call("GET", "/api/v2/sandboxes", Value::Null).await.json["sandboxes"].take();
        assert_eq!(list().await, json!([]));
        let request = CreateRequest { name: Some("x".parse().unwrap()), ..CreateRequest::default() };
        server.gateway.control.create(&TenantId::default_tenant(), request).await.unwrap();
        assert!(server.call("POST", "/api/v2/sandboxes/x/pause", Value::Null).await.status >= 400);
        assert_eq!(server.call("DELETE", "/api/v2/sandboxes/x", Value::Null).await.status, 200);
        assert_eq!(list().await, json!([]));
    }
}
