//! States of sandboxes' disks in `/api/v2`: checkpoints, rollbacks, comparisons and forks of a sandbox, and a tenant's snapshots.

use std::sync::Arc;

use arenite_control::{
    ControlError, CreateRequest, ForkStart, Provenance, Sandbox, Snapshot, SnapshotRequest, SpecOverlay, StartState, check_labels,
};
use arenite_engine::{AfterReturn, DiskState, ProcessFate, Return, Returned, SealedState};
use arenite_model::{NodeName, SandboxName, SandboxSpec, SnapshotName};
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::types::{
    CheckpointInfo, CreateSnapshot, DeletedState, Differences, ForkSandbox, HistoryInfo, NewCheckpoint, ProcessesAfter,
    ResetSandbox, ReturnProcesses, RollBack, SnapshotInfo, SnapshotList,
};
use crate::api::{self, DIALECT, PATH, find};
use crate::batch::{self, Several};
use crate::changes;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleAnswer, LifecycleCall};
use crate::lists::PageQuery;
use crate::nodes::{self, Passed};
use crate::path::query_pairs;
use crate::refusal::{Refusal, json_response};

/// The paths of a comparison, unless it names another number.
const DEFAULT_PATHS: usize = 1000;
const MAX_PATHS: usize = 10_000;

fn described(state: SealedState, frozen_ms: Option<f64>) -> CheckpointInfo {
    let SealedState { id, number, parent, note, disk_bytes, memory_bytes, created_at, auto, hash, .. } = state;
    let processes = if memory_bytes.is_some() { ProcessesAfter::Kept } else { ProcessesAfter::Ended };
    CheckpointInfo { id, number, parent, note, disk_bytes, memory_bytes, created_at, processes, frozen_ms, auto, hash }
}

/// Who asks for a change, and how its step is named.
pub(crate) struct StateCall<'a> {
    pub(crate) gateway: &'a Arc<Gateway>,
    pub(crate) context: &'a Context,
    pub(crate) dialect: &'static str,
    pub(crate) action: String,
    pub(crate) arguments: Option<Value>,
}

impl<'a> StateCall<'a> {
    fn of_exchange(exchange: &'a Exchange, action: String, arguments: Option<Value>) -> Self {
        let (gateway, context) = (&exchange.gateway, &exchange.context);
        Self { gateway, context, dialect: DIALECT, action, arguments }
    }

    fn step(&self) -> LifecycleCall {
        LifecycleCall { dialect: self.dialect, action: self.action.clone(), arguments: self.arguments.clone() }
    }

    async fn recorded(
        &self,
        name: &SandboxName,
        action: &'static str,
        change: impl Future<Output = Result<LifecycleAnswer, Refusal>> + Send + 'static,
    ) -> Result<LifecycleAnswer, Refusal> {
        lifecycle::recorded(self.gateway, self.context, self.step(), name.clone(), action, change).await
    }

    fn owned(&self) -> (Arc<Gateway>, Context) {
        (Arc::clone(self.gateway), self.context.clone())
    }

    /// Reads a state of a sandbox: `beginning`, `current`, a checkpoint's number, or its id.
    pub(crate) async fn read_state(&self, sandbox: &SandboxName, text: &str) -> Result<DiskState, Refusal> {
        read_state(self.gateway, self.context, sandbox, text).await
    }

    pub(crate) async fn checkpoint(&self, name: SandboxName, new: NewCheckpoint) -> Result<LifecycleAnswer, Refusal> {
        let ((gateway, context), of) = (self.owned(), name.clone());
        let sealed = async move {
            let NewCheckpoint { note, keep_processes } = new;
            let sealed = gateway.control.checkpoint(context.tenant(), &of, note, keep_processes).await?;
            let frozen = sealed.frozen.as_secs_f64() * 1e3;
            Ok((StatusCode::CREATED, json!(described(sealed.state, Some(frozen)))))
        };
        self.recorded(&name, "sandbox.checkpoint", sealed).await
    }

    /// Returns a sandbox to a state, or to a snapshot.
    pub(crate) async fn return_to(
        &self,
        name: SandboxName,
        to: DiskState,
        snapshot: Option<SnapshotName>,
        processes: Option<ReturnProcesses>,
    ) -> Result<LifecycleAnswer, Refusal> {
        let ((gateway, context), of) = (self.owned(), name.clone());
        let returned = async move {
            let processes = processes.map(|processes| match processes {
                ReturnProcesses::Keep => AfterReturn::Keep,
                ReturnProcesses::Restart => AfterReturn::Restart,
                ReturnProcesses::End => AfterReturn::End,
            });
            let back = Return { to, processes };
            let (sandbox, returned) = gateway.control.return_to(context.tenant(), &of, back, snapshot).await?;
            Ok((StatusCode::OK, rolled_back(&gateway, &context, sandbox, returned)))
        };
        self.recorded(&name, "sandbox.rollback", returned).await
    }

    pub(crate) async fn fork(&self, name: SandboxName, fork: ForkSandbox) -> Result<LifecycleAnswer, Refusal> {
        let several = Several::read(Some(fork.count.unwrap_or(1)), fork.min)?;
        let several = several.ok_or_else(|| Refusal::bad_request("count is missing"))?;
        fork.labels.as_ref().map_or(Ok(()), check_labels).map_err(ControlError::from)?;
        let checkpoint = match &fork.from_checkpoint {
            Some(checkpoint) => match self.read_state(&name, &state_text(checkpoint)?).await? {
                DiskState::Sealed(state) => Some(state),
                _ => return Err(Refusal::bad_request("from_checkpoint is not a checkpoint: give its number or id")),
            },
            None => None,
        };
        let ((gateway, context), of) = (self.owned(), name.clone());
        let (dialect, action) = (self.dialect, self.action.clone());
        let forked = async move {
            let keeps = checkpoint.is_some();
            let (parent, state, sessions) =
                gateway.control.begin_fork(context.tenant(), &of, checkpoint, fork.keep_processes).await?;
            let spec = SandboxSpec { state: Some(state.clone()), restart_processes: false, ..parent.spec.clone() };
            let request = fork_request(dialect, fork, &parent, ForkStart { spec, sessions });
            let child_call = LifecycleCall { dialect, action, arguments: None };
            let shape = {
                let (gateway, context) = (Arc::clone(&gateway), context.clone());
                move |sandbox| api::started(&gateway, &context, sandbox)
            };
            let created = batch::create(&gateway, &context, child_call, request, several, None, shape).await;
            if !keeps {
                gateway.control.end_fork(&state).await;
            }
            created
        };
        self.recorded(&name, "sandbox.fork", forked).await
    }

    pub(crate) async fn snapshot(&self, sandbox: SandboxName, request: SnapshotRequest) -> Result<LifecycleAnswer, Refusal> {
        let ((gateway, context), of) = (self.owned(), sandbox.clone());
        let sealed = async move {
            let snapshot = gateway.control.create_snapshot(context.tenant(), &of, request).await?;
            Ok((StatusCode::CREATED, json!(shown(snapshot))))
        };
        self.recorded(&sandbox, "snapshot.create", sealed).await
    }

    pub(crate) async fn remove_snapshot(&self, name: SnapshotName) -> Result<LifecycleAnswer, Refusal> {
        let (gateway, context) = self.owned();
        let removed = async move {
            let removed = async {
                if nodes::remove_snapshot(&gateway, &Passed::from_context(&context), &name).await? {
                    return Ok(true);
                }
                gateway.control.remove_snapshot(context.tenant(), &name).await?;
                nodes::drop_copies(&gateway, context.tenant(), &name).await?;
                Ok(false)
            };
            let removed = removed.await;
            // The other node has audited it.
            if matches!(removed, Ok(true)) {
                return Ok(name);
            }
            let removed = removed.map(|_| name.clone());
            crate::audit::record_result(&gateway, &context, "snapshot.delete", name.as_str(), removed).await
        };
        let name = self.gateway.run_to_end(removed).await?;
        Ok((StatusCode::OK, json!(DeletedState { name: name.to_string(), deleted: true })))
    }

    /// The checkpoints of a sandbox, as in the API.
    pub(crate) async fn history(&self, sandbox: &SandboxName) -> Result<Value, Refusal> {
        let history = self.gateway.control.history(self.context.tenant(), sandbox).await?;
        let checkpoints = history.checkpoints.into_iter().map(|state| described(state, None)).collect();
        Ok(json!(HistoryInfo { checkpoints, head: history.head, next_cursor: None }))
    }

    /// The differences of two states, as in the API.
    pub(crate) async fn diff(
        &self,
        sandbox: &SandboxName,
        before: String,
        after: String,
        limit: usize,
    ) -> Result<Value, Refusal> {
        let sides = (self.read_state(sandbox, &before).await?, self.read_state(sandbox, &after).await?);
        let found = self.gateway.control.compare(self.context.tenant(), sandbox, sides.0, sides.1, limit).await?;
        Ok(json!(Differences { before, after, paths: found.paths, truncated: found.truncated }))
    }

    /// The snapshots of the caller's tenant, as in the API.
    pub(crate) async fn snapshots(&self) -> Result<Value, Refusal> {
        let snapshots = self.gateway.control.snapshots(self.context.tenant()).await?;
        let snapshots = described_snapshots(self.gateway, self.context, snapshots).await?;
        Ok(json!(SnapshotList { snapshots, next_cursor: None }))
    }
}

/// A state as a request names it: by number or text.
fn state_text(given: &Value) -> Result<String, Refusal> {
    match given {
        Value::Number(number) => Ok(number.to_string()),
        Value::String(text) => Ok(text.clone()),
        other => Err(Refusal::bad_request(format!("{other} is not a state: give a checkpoint's number or id"))),
    }
}

async fn read_state(gateway: &Gateway, context: &Context, sandbox: &SandboxName, text: &str) -> Result<DiskState, Refusal> {
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
    let history = gateway.control.history(context.tenant(), sandbox).await?;
    let found = history.checkpoints.into_iter().find(|checkpoint| checkpoint.number == number);
    let found = found.ok_or_else(|| {
        Refusal::not_found(format!("sandbox {sandbox} has no checkpoint {number}"))
            .hint(format!("arenite history {sandbox} lists them"))
    })?;
    Ok(DiskState::Sealed(found.id))
}

fn answered((status, body): LifecycleAnswer) -> Answered {
    Ok(json_response(status, &body))
}

pub(crate) async fn checkpoint(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (new, arguments) = exchange.json().await?;
    let action = format!("POST {PATH}/sandboxes/{name}/checkpoints");
    answered(StateCall::of_exchange(exchange, action, Some(arguments)).checkpoint(name, new).await?)
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
    let call = StateCall::of_exchange(exchange, format!("DELETE {PATH}/sandboxes/{name}/checkpoints/{text}"), None);
    let DiskState::Sealed(id) = call.read_state(&name, &text).await? else {
        return Err(Refusal::bad_request("only a checkpoint can be removed"));
    };
    let ((gateway, context), of) = (call.owned(), name.clone());
    let removed = async move {
        gateway.control.remove_checkpoint(context.tenant(), &of, id.clone()).await?;
        Ok((StatusCode::OK, json!(DeletedState { name: id.to_string(), deleted: true })))
    };
    answered(call.recorded(&name, "sandbox.remove_checkpoint", removed).await?)
}

pub(crate) async fn roll_back(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (RollBack { to, processes }, arguments) = exchange.json().await?;
    let to = to.ok_or_else(|| Refusal::bad_request("to is missing: give a checkpoint's number or id, or beginning"))?;
    let to = state_text(&to)?;
    let call = StateCall::of_exchange(exchange, format!("POST {PATH}/sandboxes/{name}/rollback"), Some(arguments));
    let to = call.read_state(&name, &to).await?;
    if to == DiskState::Current {
        return Err(Refusal::bad_request("to is current, which is no earlier state"));
    }
    answered(call.return_to(name, to, None, processes).await?)
}

pub(crate) async fn reset(exchange: &mut Exchange) -> Answered {
    let sandbox = find(exchange).await?;
    let (ResetSandbox { snapshot, processes }, arguments) = exchange.json().await?;
    changes::check_version(exchange, &sandbox)?;
    let call = StateCall::of_exchange(exchange, format!("POST {PATH}/sandboxes/{}/reset", sandbox.name), Some(arguments));
    answered(call.return_to(sandbox.name, DiskState::Beginning, snapshot, processes).await?)
}

fn rolled_back(gateway: &Gateway, context: &Context, sandbox: Sandbox, returned: Returned) -> Value {
    let fate = match returned.processes {
        ProcessFate::Kept => ProcessesAfter::Kept,
        ProcessFate::Restarted => ProcessesAfter::Restarted,
        ProcessFate::Ended => ProcessesAfter::Ended,
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
    let found = StateCall::of_exchange(exchange, String::new(), None).diff(&name, before, after, limit).await?;
    Ok(json_response(StatusCode::OK, &found))
}

pub(crate) async fn fork(exchange: &mut Exchange) -> Answered {
    let name = find(exchange).await?.name;
    let (fork, arguments) = exchange.json::<ForkSandbox>().await?;
    let action = format!("POST {PATH}/sandboxes/{name}/fork");
    answered(StateCall::of_exchange(exchange, action, Some(arguments)).fork(name, fork).await?)
}

/// A create of sandboxes like the parent, apart from what the request names.
fn fork_request(dialect: &str, fork: ForkSandbox, parent: &Sandbox, start: ForkStart) -> CreateRequest {
    // The labels are the fork's, so bounds of a key apply to all of them.
    let labels = parent.spec.labels.clone().into_iter().chain(fork.labels.unwrap_or_default()).collect();
    CreateRequest {
        name: fork.name,
        template: parent.template.clone(),
        start: StartState::Fork(Box::new(start)),
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
        origin: dialect.to_owned(),
        provenance: Provenance {
            client_tag: fork.client_tag,
            group: fork.group.or_else(|| parent.provenance.group.clone()),
            forked_from: Some(parent.id.clone()),
            ..Provenance::default()
        },
        parent: None,
        client: None,
        // Volumes are the parent's.
        own_volumes_only: false,
    }
}

/// A snapshot that was just made.
pub(crate) fn shown(snapshot: Snapshot) -> SnapshotInfo {
    let nodes = snapshot.node.clone().into_iter().collect();
    on_nodes(snapshot, nodes)
}

fn on_nodes(snapshot: Snapshot, nodes: Vec<NodeName>) -> SnapshotInfo {
    let Snapshot { name, state, sandbox, image, tier, labels, note, disk_bytes, memory_bytes, created_at, node, .. } = snapshot;
    SnapshotInfo { name, state, sandbox, image, tier, labels, note, disk_bytes, memory_bytes, created_at, node, nodes }
}

async fn described_snapshots(
    gateway: &Gateway,
    context: &Context,
    snapshots: Vec<Snapshot>,
) -> Result<Vec<SnapshotInfo>, Refusal> {
    let places = gateway.control.places_of_snapshots(context.tenant(), &snapshots).await?;
    let nodes = places.into_iter().map(|places| places.into_iter().map(|place| place.node).collect());
    Ok(snapshots.into_iter().zip(nodes).map(|(snapshot, nodes)| on_nodes(snapshot, nodes)).collect())
}

fn snapshot_named(exchange: &Exchange) -> Result<SnapshotName, Refusal> {
    Ok(exchange.param("name").parse()?)
}

pub(crate) async fn create_snapshot(exchange: &mut Exchange) -> Answered {
    let (CreateSnapshot { name, sandbox, labels, note, keep_processes }, arguments) = exchange.json().await?;
    let missing = |field: &str| Refusal::bad_request(format!("{field} is missing"));
    let name = name.ok_or_else(|| missing("name"))?;
    let sandbox = sandbox.ok_or_else(|| missing("sandbox"))?;
    let request = SnapshotRequest { name, labels: labels.unwrap_or_default(), note, keep_processes };
    answered(
        StateCall::of_exchange(exchange, format!("POST {PATH}/snapshots"), Some(arguments)).snapshot(sandbox, request).await?,
    )
}

pub(crate) async fn snapshots(exchange: &mut Exchange) -> Answered {
    let snapshots = exchange.gateway.control.snapshots(exchange.context.tenant()).await?;
    let (snapshots, next_cursor) = PageQuery::read(exchange)?.take(snapshots, |snapshot| snapshot.name.to_string())?;
    let snapshots = described_snapshots(&exchange.gateway, &exchange.context, snapshots).await?;
    Ok(json_response(StatusCode::OK, &SnapshotList { snapshots, next_cursor }))
}

pub(crate) async fn snapshot(exchange: &mut Exchange) -> Answered {
    let snapshot = exchange.gateway.control.snapshot(exchange.context.tenant(), &snapshot_named(exchange)?).await?;
    let described = described_snapshots(&exchange.gateway, &exchange.context, vec![snapshot]).await?;
    Ok(json_response(StatusCode::OK, &described[0]))
}

pub(crate) async fn remove_snapshot(exchange: &mut Exchange) -> Answered {
    let name = snapshot_named(exchange)?;
    answered(StateCall::of_exchange(exchange, String::new(), None).remove_snapshot(name).await?)
}
