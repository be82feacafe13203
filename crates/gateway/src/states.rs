//! States of sandboxes' disks in `/api/v2`: checkpoints, rollbacks, comparisons and forks of a sandbox, and a tenant's snapshots.

use std::sync::Arc;

use arenite_control::{
    ControlError, CreateRequest, Provenance, Sandbox, Snapshot, SnapshotRequest, SpecOverlay, StartState, check_labels,
};
use arenite_engine::{DiskState, Return, Returned, SealedState};
use arenite_model::{SandboxName, SandboxSpec, SnapshotName};
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::types::{
    CheckpointInfo, CreateSnapshot, DeletedState, Differences, ForkSandbox, HistoryInfo, NewCheckpoint, ProcessesAfter,
    ResetSandbox, RollBack, SnapshotInfo, SnapshotList,
};
use crate::api::{self, DIALECT, PATH, find};
use crate::batch::{self, Several};
use crate::changes;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleCall};
use crate::lists::PageQuery;
use crate::path::query_pairs;
use crate::refusal::{Refusal, json_response};

/// The paths of a comparison, unless it names another number.
const DEFAULT_PATHS: usize = 1000;
const MAX_PATHS: usize = 10_000;

fn described(state: SealedState, frozen_ms: Option<f64>) -> CheckpointInfo {
    let SealedState { id, number, parent, note, disk_bytes, created_at, .. } = state;
    CheckpointInfo { id, number, parent, note, disk_bytes, created_at, frozen_ms }
}

/// Reads a state of a sandbox: `beginning`, `current`, a checkpoint's number, or its id.
async fn read_state(exchange: &Exchange, sandbox: &SandboxName, text: &str) -> Result<DiskState, Refusal> {
    match text {
        "beginning" => return Ok(DiskState::Beginning),
        "current" => return Ok(DiskState::Current),
        _ => {}
    }
    if let Ok(id) = text.parse() {
        return Ok(DiskState::Sealed(id));
    }
    let number: u32 = text.parse().map_err(|_| {
        Refusal::bad_request(format!("{text:?} is not a state: give a checkpoint's number or id, beginning, or current"))
    })?;
    let history = exchange.gateway.control.history(exchange.context.tenant(), sandbox).await?;
    let found = history.checkpoints.into_iter().find(|checkpoint| checkpoint.number == number);
    let found = found.ok_or_else(|| {
        Refusal::not_found(format!("sandbox {sandbox} has no checkpoint {number}"))
            .hint(format!("arenite history {sandbox} lists them"))
    })?;
    Ok(DiskState::Sealed(found.id))
}

pub(crate) async fn checkpoint(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (NewCheckpoint { note }, arguments) = exchange.json().await?;
    let call = LifecycleCall {
        dialect: DIALECT,
        action: format!("POST {PATH}/sandboxes/{name}/checkpoints"),
        arguments: Some(arguments),
    };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let (control, tenant, of) = (Arc::clone(&gateway.control), context.tenant().clone(), name.clone());
    let sealed = async move {
        let sealed = control.checkpoint(&tenant, &of, note).await?;
        let frozen = sealed.frozen.as_secs_f64() * 1e3;
        Ok((StatusCode::CREATED, json!(described(sealed.state, Some(frozen)))))
    };
    let (status, body) = lifecycle::recorded(&gateway, &context, call, name, "sandbox.checkpoint", sealed).await?;
    Ok(json_response(status, &body))
}

pub(crate) async fn history(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let history = exchange.gateway.control.history(exchange.context.tenant(), &name).await?;
    let (checkpoints, next_cursor) =
        PageQuery::read(exchange)?.take(history.checkpoints, |checkpoint| format!("{:010}", checkpoint.number))?;
    let checkpoints = checkpoints.into_iter().map(|state| described(state, None)).collect();
    Ok(json_response(StatusCode::OK, &HistoryInfo { checkpoints, head: history.head, next_cursor }))
}

pub(crate) async fn remove_checkpoint(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let text = exchange.param("checkpoint").to_owned();
    let DiskState::Sealed(id) = read_state(exchange, &name, &text).await? else {
        return Err(Refusal::bad_request("only a checkpoint can be removed"));
    };
    let call =
        LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/sandboxes/{name}/checkpoints/{id}"), arguments: None };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let (control, tenant, of) = (Arc::clone(&gateway.control), context.tenant().clone(), name.clone());
    let removed = async move {
        control.remove_checkpoint(&tenant, &of, id.clone()).await?;
        Ok((StatusCode::OK, json!(DeletedState { name: id.to_string(), deleted: true })))
    };
    let (status, body) = lifecycle::recorded(&gateway, &context, call, name, "sandbox.remove_checkpoint", removed).await?;
    Ok(json_response(status, &body))
}

pub(crate) async fn roll_back(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (RollBack { to, processes }, arguments) = exchange.json().await?;
    let to = match to {
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::String(text)) => text,
        _ => return Err(Refusal::bad_request("to is missing: give a checkpoint's number or id, or beginning")),
    };
    let to = match read_state(exchange, &name, &to).await? {
        DiskState::Current => return Err(Refusal::bad_request("to is current, which is no earlier state")),
        state => state,
    };
    return_to(exchange, name, "rollback", arguments, to, None, processes).await
}

pub(crate) async fn reset(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (ResetSandbox { snapshot, processes }, arguments) = exchange.json().await?;
    changes::check_version(exchange, &find(exchange).await?)?;
    return_to(exchange, name, "reset", arguments, DiskState::Beginning, snapshot, processes).await
}

async fn return_to(
    exchange: &mut Exchange,
    name: SandboxName,
    verb: &str,
    arguments: Value,
    to: DiskState,
    snapshot: Option<SnapshotName>,
    processes: ProcessesAfter,
) -> Answered {
    let call =
        LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes/{name}/{verb}"), arguments: Some(arguments) };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let (control, tenant, of) = (Arc::clone(&gateway.control), context.tenant().clone(), name.clone());
    let (shared, caller) = (Arc::clone(&gateway), context.clone());
    let returned = async move {
        let back = Return { to, restart: processes == ProcessesAfter::Restart };
        let (sandbox, returned) = control.return_to(&tenant, &of, back, snapshot).await?;
        Ok((StatusCode::OK, rolled_back(&shared, &caller, sandbox, processes, returned)))
    };
    let (status, body) = lifecycle::recorded(&gateway, &context, call, name, "sandbox.rollback", returned).await?;
    Ok(json_response(status, &body))
}

fn rolled_back(gateway: &Gateway, context: &Context, sandbox: Sandbox, processes: ProcessesAfter, returned: Returned) -> Value {
    let fate = match processes {
        ProcessesAfter::Restart => "restarted",
        ProcessesAfter::End => "ended",
    };
    json!({ "sandbox": api::shape(gateway, context, sandbox), "processes": fate, "ended": returned.ended })
}

pub(crate) async fn diff(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (mut before, mut after, mut limit) = ("beginning".to_owned(), "current".to_owned(), DEFAULT_PATHS);
    for (key, value) in query_pairs(exchange.parts.uri.query().unwrap_or_default()) {
        match &*key {
            "before" => before = value,
            "after" => after = value,
            _ => {
                limit =
                    value.parse().ok().filter(|limit| (1..=MAX_PATHS).contains(limit)).ok_or_else(|| {
                        Refusal::bad_request(format!("limit is {value:?}, and not a number from 1 to {MAX_PATHS}"))
                    })?;
            }
        }
    }
    let sides = (read_state(exchange, &name, &before).await?, read_state(exchange, &name, &after).await?);
    let found = exchange.gateway.control.compare(exchange.context.tenant(), &name, sides.0, sides.1, limit).await?;
    Ok(json_response(StatusCode::OK, &Differences { before, after, paths: found.paths, truncated: found.truncated }))
}

pub(crate) async fn fork(exchange: &mut Exchange) -> Answered {
    let parent = find(exchange).await?;
    let (fork, arguments) = exchange.json::<ForkSandbox>().await?;
    let several =
        Several::read(Some(fork.count.unwrap_or(1)), fork.min)?.ok_or_else(|| Refusal::bad_request("count is missing"))?;
    fork.labels.as_ref().map_or(Ok(()), check_labels).map_err(ControlError::from)?;
    let name = parent.name;
    let call =
        LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes/{name}/fork"), arguments: Some(arguments) };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let (shared, caller) = (Arc::clone(&gateway), context.clone());
    let of = name.clone();
    let forked = async move {
        let (parent, state) = shared.control.begin_fork(caller.tenant(), &of).await?;
        let request = fork_request(fork, &parent, SandboxSpec { state: Some(state.clone()), ..parent.spec.clone() });
        let child_call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes/{of}/fork"), arguments: None };
        let shape = {
            let (shared, caller) = (Arc::clone(&shared), caller.clone());
            move |sandbox| api::shape(&shared, &caller, sandbox)
        };
        let created = batch::create(&shared, &caller, child_call, request, several, None, shape).await;
        shared.control.end_fork(&state).await;
        created
    };
    let (status, body) = lifecycle::recorded(&gateway, &context, call, name, "sandbox.fork", forked).await?;
    Ok(json_response(status, &body))
}

/// A create whose sandboxes are like the parent, apart from what the request names.
fn fork_request(fork: ForkSandbox, parent: &Sandbox, spec: SandboxSpec) -> CreateRequest {
    // The labels are the fork's, so bounds of a key apply to all of them.
    let labels = parent.spec.labels.clone().into_iter().chain(fork.labels.unwrap_or_default()).collect();
    CreateRequest {
        name: fork.name,
        template: parent.template.clone(),
        start: StartState::Fork(Box::new(spec)),
        spec: SpecOverlay {
            env: fork.env,
            args: fork.args,
            labels: Some(labels),
            resources: fork.resources.unwrap_or_default(),
            timeout_seconds: fork.timeout_seconds,
            idle_timeout_seconds: fork.idle_timeout_seconds,
            idle_policy: fork.idle_policy,
            ..SpecOverlay::default()
        },
        origin: DIALECT.to_owned(),
        provenance: Provenance {
            client_tag: fork.client_tag,
            group: fork.group.or_else(|| parent.provenance.group.clone()),
            forked_from: Some(parent.id.clone()),
            ..Provenance::default()
        },
        parent: None,
        client: None,
    }
}

fn shown(snapshot: Snapshot) -> SnapshotInfo {
    let Snapshot { name, state, sandbox, image, tier, labels, note, disk_bytes, created_at, node, .. } = snapshot;
    SnapshotInfo { name, state, sandbox, image, tier, labels, note, disk_bytes, created_at, node }
}

fn snapshot_named(exchange: &Exchange) -> Result<SnapshotName, Refusal> {
    Ok(exchange.param("name").parse()?)
}

pub(crate) async fn create_snapshot(exchange: &mut Exchange) -> Answered {
    let (CreateSnapshot { name, sandbox, labels, note }, arguments) = exchange.json().await?;
    let missing = |field: &str| Refusal::bad_request(format!("{field} is missing"));
    let name = name.ok_or_else(|| missing("name"))?;
    let sandbox = sandbox.ok_or_else(|| missing("sandbox"))?;
    let request = SnapshotRequest { name, labels: labels.unwrap_or_default(), note };
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/snapshots"), arguments: Some(arguments) };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let (control, tenant, of) = (Arc::clone(&gateway.control), context.tenant().clone(), sandbox.clone());
    let sealed = async move {
        let snapshot = control.create_snapshot(&tenant, &of, request).await?;
        Ok((StatusCode::CREATED, json!(shown(snapshot))))
    };
    let (status, body) = lifecycle::recorded(&gateway, &context, call, sandbox, "snapshot.create", sealed).await?;
    Ok(json_response(status, &body))
}

pub(crate) async fn snapshots(exchange: &mut Exchange) -> Answered {
    let snapshots = exchange.gateway.control.snapshots(exchange.context.tenant());
    let (snapshots, next_cursor) = PageQuery::read(exchange)?.take(snapshots, |snapshot| snapshot.name.to_string())?;
    let snapshots = snapshots.into_iter().map(shown).collect();
    Ok(json_response(StatusCode::OK, &SnapshotList { snapshots, next_cursor }))
}

pub(crate) async fn snapshot(exchange: &mut Exchange) -> Answered {
    let snapshot = exchange.gateway.control.snapshot(exchange.context.tenant(), &snapshot_named(exchange)?)?;
    Ok(json_response(StatusCode::OK, &shown(snapshot)))
}

pub(crate) async fn remove_snapshot(exchange: &mut Exchange) -> Answered {
    let name = snapshot_named(exchange)?;
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let removed = async move {
        let removed = gateway.control.remove_snapshot(context.tenant(), &name).await.map_err(Refusal::from);
        crate::audit::record_result(&gateway, &context, "snapshot.delete", name.as_str(), removed).await
    };
    let snapshot = exchange.gateway.run_to_end(removed).await?;
    Ok(json_response(StatusCode::OK, &DeletedState { name: snapshot.name.to_string(), deleted: true }))
}
