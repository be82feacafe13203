//! Does operations on a server, as the API does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::tenants::{ApiKey, KeyText, Principal};
use arenite_control::{
    ChildBudget, Control, ControlError, CreateRequest, KeyHold, Lease, Provenance, ResourcesOverlay, Sandbox, SandboxChange,
    SpecOverlay, TimeoutChange,
};
use arenite_model::{GroupName, IdlePolicy, PauseKind, SandboxId, TenantId};
use tokio::task::JoinHandle;

use crate::op::{Create, NAMES, Op, TENANTS};
use crate::state::{Bound, NewKey, Outcome, Refusal, SIZES, answer_of, fingerprint, group_text, key_text};

/// The most keys of a tenant.
const KEYS: usize = 12;

pub(crate) fn tenant_id(tenant: u8) -> TenantId {
    TENANTS[usize::from(tenant)].parse().expect("a tenant")
}

fn group_name(group: u8) -> GroupName {
    group_text(group).parse().expect("a group")
}

/// Does an operation.
pub(crate) async fn perform(control: Arc<Control>, bound: Bound) -> (Outcome, Option<Lease>) {
    let mut lease = None;
    let done = answer(&control, &bound, &mut lease).await;
    (done.unwrap_or_else(|error| Outcome::Refused(Refusal::from_error(&error), error.to_string())), lease)
}

async fn answer(control: &Arc<Control>, bound: &Bound, lease: &mut Option<Lease>) -> Result<Outcome, ControlError> {
    let Some(tenant) = bound.op.tenant() else { return Ok(Outcome::Done) };
    let id = tenant_id(tenant);
    let tenants = control.tenants().expect("tenants are on");
    let made = |sandbox| Outcome::Made(Box::new(sandbox));
    if bound.op.target().is_some() && bound.name.is_none() && !matches!(bound.op, Op::Create(_)) {
        return Ok(Outcome::Skipped);
    }
    let name = || bound.name.as_ref().expect("it was checked");
    Ok(match &bound.op {
        Op::Create(create) if create.parent.is_some() && bound.parent.is_none() => Outcome::Skipped,
        Op::Create(create) => {
            let requests = vec![request(create, bound.parent.clone())];
            create_all(control, tenant, create.key, fingerprint(&bound.op), requests, None).await?
        }
        Op::Batch { count, min, size, key, .. } => {
            let one = SpecOverlay { resources: resources(*size), ..endless() };
            let one = CreateRequest { spec: one, origin: "model".to_owned(), ..CreateRequest::default() };
            create_all(control, tenant, *key, fingerprint(&bound.op), vec![one; *count], Some(*min)).await?
        }
        Op::Call { lasts, .. } => {
            let held = control.lease(&id, name()).await?;
            held.count_call();
            *lease = lasts.then_some(held);
            Outcome::Done
        }
        Op::Pause(_) => made(control.pause(&id, name(), PauseKind::Freeze).await?),
        Op::Resume(_) => made(control.resume(&id, name()).await?),
        Op::Start(_) => made(control.start_sandbox(&id, name()).await?),
        Op::Extend { seconds, from_now, .. } => {
            let timeout = if *from_now { TimeoutChange::FromNow(*seconds) } else { TimeoutChange::Extend(*seconds) };
            let change = SandboxChange { timeout: Some(timeout), ..SandboxChange::default() };
            made(control.change(&Principal::server(id), name(), change).await?)
        }
        Op::Delete(_) => {
            control.delete(&id, name()).await?;
            Outcome::Done
        }
        Op::OpenGroup { group, ttl, .. } => {
            Outcome::Group(control.create_group(&id, group_name(*group), Duration::from_secs(*ttl)).await?)
        }
        Op::RenewGroup { group, ttl, .. } => {
            Outcome::Group(control.renew_group(&id, &group_name(*group), ttl.map(Duration::from_secs)).await?)
        }
        Op::EndGroup { group, .. } => {
            let group = group_name(*group);
            control.close_group(&id, &group).await?;
            let mut failed = None;
            for sandbox in control.sandboxes_of_group(&id, &group) {
                match control.delete(&id, &sandbox.name).await {
                    Ok(()) | Err(ControlError::NotFound { .. }) => {}
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            control.end_group(&id, &group).await?;
            Outcome::Done
        }
        Op::Limit { quota, limit, .. } => {
            tenants.set_limits(&id, &[(*quota, *limit)].into()).await?;
            Outcome::Done
        }
        Op::NewKey { .. } if tenants.keys(Some(&id)).len() >= KEYS => Outcome::Skipped,
        Op::NewKey { role, life, .. } => {
            let new = arenite_control::tenants::NewKey {
                tenant: id,
                name: "model".to_owned(),
                role: *role,
                expires_in: life.map(Duration::from_secs),
                bound: Vec::new(),
                operator: false,
            };
            key(tenants.create_key(new).await?)
        }
        Op::RotateKey { overlap, .. } => match &bound.key {
            Some(which) => key(tenants.rotate_key(which, Duration::from_secs(*overlap)).await?),
            None => Outcome::Skipped,
        },
        Op::RevokeKey { .. } => match &bound.key {
            Some(which) => {
                tenants.revoke_key(which).await?;
                Outcome::Done
            }
            None => Outcome::Skipped,
        },
        Op::Disable { disabled, .. } => {
            tenants.set_disabled(&id, *disabled).await?;
            Outcome::Done
        }
        Op::Release(_) | Op::End(_) | Op::Wait(_) => Outcome::Done,
    })
}

/// Creates sandboxes as the API does: with their key, and all or at least `min`.
async fn create_all(
    control: &Arc<Control>,
    tenant: u8,
    key: Option<u8>,
    fingerprint: String,
    requests: Vec<CreateRequest>,
    min: Option<usize>,
) -> Result<Outcome, ControlError> {
    let id = tenant_id(tenant);
    let held = match key {
        None => None,
        Some(key) => match control.hold_key(&id, key_text(key).parse().expect("a key"), fingerprint).await? {
            KeyHold::Answered(answer) => return Ok(Outcome::Replayed(answer.body)),
            KeyHold::Held(held) => Some(held),
        },
    };
    let mut left: BTreeMap<usize, Sandbox> = BTreeMap::new();
    if let Some(held) = &held {
        for sandbox in held.left().await? {
            left.insert(sandbox.provenance.keyed.as_ref().map_or(0, |keyed| keyed.index), sandbox);
        }
    }
    let creates: Vec<JoinHandle<_>> = requests
        .into_iter()
        .enumerate()
        .map(|(index, mut request)| {
            let (control, id, left) = (Arc::clone(control), id.clone(), left.remove(&index));
            request.provenance.keyed = held.as_ref().map(|held| held.keyed(index));
            tokio::spawn(async move {
                match left {
                    Some(left) => Ok(left),
                    None => control.create(&id, request).await,
                }
            })
        })
        .collect();
    let (mut made, mut refused) = (Vec::new(), None);
    for create in creates {
        match create.await.unwrap_or(Err(ControlError::Stopping)) {
            Ok(sandbox) => made.push(sandbox),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    if made.len() < min.unwrap_or(1) {
        for sandbox in &made {
            control.delete(&id, &sandbox.name).await?;
        }
        if let Some(held) = held {
            held.free().await;
        }
        return Err(refused.expect("a create that is missing was refused"));
    }
    if let Some(held) = held {
        held.finish(201, &answer_of(&made)).await;
    }
    Ok(match min {
        Some(_) => Outcome::Several(made),
        None => Outcome::Made(Box::new(made.remove(0))),
    })
}

fn endless() -> SpecOverlay {
    SpecOverlay { timeout_seconds: Some(0), idle_timeout_seconds: Some(0), ..SpecOverlay::default() }
}

fn resources(size: u8) -> ResourcesOverlay {
    let (cpu, memory, disk) = SIZES[usize::from(size)];
    ResourcesOverlay { cpu_millis: Some(cpu), memory_bytes: Some(memory), disk_bytes: Some(disk), ..ResourcesOverlay::default() }
}

fn request(create: &Create, parent: Option<SandboxId>) -> CreateRequest {
    let spec = SpecOverlay {
        resources: resources(create.size),
        timeout_seconds: Some(create.life),
        idle_timeout_seconds: Some(create.idle),
        idle_policy: Some(if create.pauses_when_idle { IdlePolicy::Pause } else { IdlePolicy::Delete }),
        ..SpecOverlay::default()
    };
    let child_budget = create.budget.map(|(sandboxes, depth)| {
        let (cpu, memory, _) = SIZES[0];
        let number = u64::from(sandboxes);
        ChildBudget {
            sandboxes,
            cpu_millis: number * u64::from(cpu),
            memory_bytes: number * memory,
            depth,
            lifetime_seconds: None,
        }
    });
    let provenance = Provenance { group: create.group.map(group_name), child_budget, ..Provenance::default() };
    CreateRequest {
        start: arenite_control::StartState::Image,
        own_volumes_only: false,
        name: create.name.map(|name| NAMES[usize::from(name)].parse().expect("a name")),
        template: None,
        spec,
        origin: "model".to_owned(),
        provenance,
        parent,
        client: None,
    }
}

fn key((key, text): (ApiKey, KeyText)) -> Outcome {
    Outcome::Key(NewKey { id: key.id, text: text.as_str().to_owned(), expires_at: key.expires_at })
}
