//! The model: what a server should have and answer.

mod answers;
mod crash;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::tenants::{Quota, Role, TenantLimits};
use arenite_control::{ControlError, Group, Sandbox};
use arenite_engine::FoundState;
use arenite_model::{IdlePolicy, KeyId, Resources, SandboxId, SandboxName, SandboxState};
use jiff::Timestamp;
use serde_json::Value;

use crate::op::{Create, NAMES, Op, TENANTS, Target};
use crate::usage::{Metered, UNREAD};

/// CPU, memory and disk of sandboxes. The pool has those of the first size, which are the defaults.
pub(crate) const SIZES: [(u32, u64, u64); 3] = [(2000, 2 << 30, 10 << 30), (1000, 1 << 30, 5 << 30), (4000, 4 << 30, 20 << 30)];
/// The most sandboxes of the server.
pub(crate) const MAX_SANDBOXES: usize = 24;
/// How long dead sandboxes are kept.
pub(crate) const KEPT: Duration = Duration::from_secs(60);
/// Delay of the server before it tries a removal again.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Exists,
    Conflict,
    Gone,
    Quota(Quota),
    Full,
    NoGroup,
    GroupExists,
    GroupEnding,
    NotBelow,
    OverBudget,
    Cancelled,
    Engine,
    KeyReused,
    KeyEnded,
    Other,
}

impl Refusal {
    pub(crate) fn from_error(error: &ControlError) -> Self {
        match error {
            ControlError::NotFound { .. } | ControlError::NoSuchId { .. } => Self::Missing,
            ControlError::AlreadyExists { .. } => Self::Exists,
            ControlError::Conflict { .. } => Self::Conflict,
            ControlError::Gone { .. } => Self::Gone,
            ControlError::Quota(exceeded) => Self::Quota(exceeded.quota),
            ControlError::Exhausted { .. } => Self::Full,
            ControlError::NoGroup { .. } => Self::NoGroup,
            ControlError::GroupExists { .. } => Self::GroupExists,
            ControlError::GroupEnding { .. } => Self::GroupEnding,
            ControlError::NotBelow { .. } => Self::NotBelow,
            ControlError::OverBudget { .. } => Self::OverBudget,
            ControlError::Cancelled { .. } => Self::Cancelled,
            ControlError::Engine(_) => Self::Engine,
            ControlError::IdempotencyKeyReused { .. } => Self::KeyReused,
            ControlError::KeyEnded { .. } => Self::KeyEnded,
            _ => Self::Other,
        }
    }
}

/// What an operation answered.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Done,
    Made(Box<Sandbox>),
    Several(Vec<Sandbox>),
    /// The stored answer of a create with the same key.
    Replayed(String),
    Group(Group),
    Key(NewKey),
    /// With the error's text, to print it.
    #[allow(dead_code, reason = "only printed")]
    Refused(Refusal, String),
    /// There was nothing to do it on.
    Skipped,
}

#[derive(Debug, Clone)]
pub(crate) struct NewKey {
    pub(crate) id: KeyId,
    pub(crate) text: String,
    pub(crate) expires_at: Option<Timestamp>,
}

/// An operation with the sandboxes that it is about.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    pub(crate) op: Op,
    pub(crate) name: Option<SandboxName>,
    pub(crate) parent: Option<SandboxId>,
    pub(crate) key: Option<KeyId>,
}

impl Bound {
    /// Whether it may end this sandbox, or end it as a part of something.
    fn may_end(&self, sandbox: &Held, model: &Model) -> bool {
        let is_hit = |one: &Held| match &self.op {
            Op::Wait(_) => {
                let lapses = one.group().and_then(|group| model.tenant(one.tenant()).groups.get(&group));
                Model::due(one).is_some_and(|(at, _)| at <= model.now)
                    || lapses.is_some_and(|group| group.expires_at <= model.now)
            }
            op if op.tenant() != Some(one.tenant()) => false,
            Op::Delete(_) => self.name.as_ref() == Some(&one.row.name),
            Op::EndGroup { group, .. } => one.group() == Some(*group),
            // One with too few is removed.
            Op::Batch { .. } => one.row.provenance.keyed.is_some(),
            _ => false,
        };
        is_hit(sandbox) || sandbox.row.provenance.ancestors.iter().filter_map(|id| model.sandboxes.get(id)).any(is_hit)
    }

    /// Whether it may change the state of this sandbox.
    fn may_change(&self, sandbox: &Held) -> bool {
        self.op.tenant() == Some(sandbox.tenant())
            && self.name.as_ref() == Some(&sandbox.row.name)
            && matches!(self.op, Op::Pause(_) | Op::Resume(_) | Op::Start(_) | Op::Call { .. })
    }

    /// Whether it may change the end of this sandbox's life.
    fn may_extend(&self, sandbox: &Held) -> bool {
        self.op.tenant() == Some(sandbox.tenant())
            && self.name.as_ref() == Some(&sandbox.row.name)
            && matches!(self.op, Op::Extend { .. })
    }

    /// Whether it may create this sandbox.
    fn may_create(&self, row: &Sandbox) -> bool {
        let size = |size: u8| SIZES[usize::from(size)].1 == row.spec.resources.memory_bytes;
        self.op.tenant() == Some(tenant_number(row))
            && match &self.op {
                Op::Create(create) => {
                    let is_named = match create.name {
                        Some(name) => NAMES[usize::from(name)] == row.name.as_str(),
                        None => row.name.as_str() == row.id.as_str(),
                    };
                    is_named && size(create.size)
                }
                Op::Batch { size: of, .. } => row.name.as_str() == row.id.as_str() && size(*of),
                _ => false,
            }
    }
}

fn tenant_number(row: &Sandbox) -> u8 {
    TENANTS.iter().position(|tenant| *tenant == row.tenant.as_str()).expect("a tenant of the test") as u8
}

/// A sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// As it was created, with its current state.
    pub(crate) row: Sandbox,
    pub(crate) since: Timestamp,
    idle_from: Timestamp,
    pub(crate) leases: usize,
    /// A crash interrupted its start: its row says running, and the engine does not.
    is_half_started: bool,
    /// It is in state deleting, and died before.
    was_dead: bool,
    /// The order of creation.
    number: u64,
    pub(crate) metered: Metered,
}

impl Held {
    pub(crate) fn tenant(&self) -> u8 {
        tenant_number(&self.row)
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.row.state, SandboxState::Running | SandboxState::Paused)
    }

    fn is_dead(&self) -> bool {
        matches!(self.row.state, SandboxState::Failed | SandboxState::Lost)
    }

    fn group(&self) -> Option<u8> {
        self.row.provenance.group.as_ref().map(|group| group.as_str()[1..].parse().expect("a group of the test"))
    }

    fn is_below(&self, id: &SandboxId) -> bool {
        self.row.provenance.ancestors.contains(id)
    }

    /// What it reserves: sandboxes, CPU, memory, disk.
    fn reserves(&self) -> [u64; 4] {
        let Resources { cpu_millis, memory_bytes, disk_bytes, .. } = self.row.spec.resources;
        if self.is_dead() || self.was_dead { [1, 0, 0, disk_bytes] } else { [1, cpu_millis.into(), memory_bytes, disk_bytes] }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct GroupModel {
    ttl: Duration,
    pub(crate) expires_at: Timestamp,
    pub(crate) is_ending: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct KeyModel {
    id: KeyId,
    pub(crate) text: String,
    pub(crate) role: Role,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    revoked: bool,
}

/// An idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RecordModel {
    fingerprint: String,
    /// The body of the answer; none: a create that ended with its server.
    answer: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct TenantModel {
    pub(crate) limits: TenantLimits,
    pub(crate) groups: BTreeMap<u8, GroupModel>,
    pub(crate) keys: Vec<KeyModel>,
    pub(crate) disabled: bool,
    records: BTreeMap<u8, RecordModel>,
}

/// The other operations of a step, and what it makes possible.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rivals {
    pub(crate) ops: Vec<Bound>,
    /// The number of failures of the engine.
    pub(crate) faults: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) now: Timestamp,
    pub(crate) sandboxes: BTreeMap<SandboxId, Held>,
    pub(crate) tenants: Vec<TenantModel>,
    /// Sandboxes that are gone, for their usage.
    pub(crate) gone: Vec<Held>,
    /// Sandboxes that the current step ended: a fault may leave them in state deleting.
    doomed: BTreeSet<SandboxId>,
    created: u64,
}

type Checked = Result<(), String>;

fn expected(what: impl std::fmt::Debug, outcome: &Outcome) -> Checked {
    Err(format!("expected {what:?}, and the answer was {outcome:?}"))
}

pub(crate) fn answer_of(sandboxes: &[Sandbox]) -> Value {
    serde_json::json!({ "ids": sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect::<Vec<_>>() })
}

pub(crate) fn fingerprint(op: &Op) -> String {
    format!("{op:?}")
}

impl Model {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now,
            sandboxes: BTreeMap::new(),
            tenants: vec![TenantModel::default(); TENANTS.len()],
            gone: Vec::new(),
            doomed: BTreeSet::new(),
            created: 0,
        }
    }

    pub(crate) fn bind(&self, op: &Op) -> Bound {
        let name = op.target().and_then(|target| self.name_of(target));
        let parent = match op {
            Op::Create(Create { tenant, parent: Some(which), .. }) => {
                self.name_of(Target { tenant: *tenant, which: *which }).and_then(|name| self.find(*tenant, &name))
            }
            _ => None,
        };
        let key = match op {
            Op::RotateKey { tenant, which, .. } | Op::RevokeKey { tenant, which } => {
                self.tenant(*tenant).keys.get(usize::from(*which)).map(|key| key.id.clone())
            }
            _ => None,
        };
        Bound { op: op.clone(), name, parent, key }
    }

    /// The name of a target. A number beyond [`NAMES`] is of a sandbox without a name.
    fn name_of(&self, target: Target) -> Option<SandboxName> {
        if let Some(name) = NAMES.get(usize::from(target.which)) {
            return Some(name.parse().expect("a name of the test"));
        }
        let mut unnamed: Vec<&Held> =
            self.owned_by(target.tenant).filter(|held| held.row.name.as_str() == held.row.id.as_str()).collect();
        unnamed.sort_by_key(|held| held.number);
        unnamed.get(usize::from(target.which) - NAMES.len()).map(|held| held.row.name.clone())
    }

    pub(crate) fn owned_by(&self, tenant: u8) -> impl Iterator<Item = &Held> {
        self.sandboxes.values().filter(move |held| held.tenant() == tenant)
    }

    fn find(&self, tenant: u8, name: &SandboxName) -> Option<SandboxId> {
        self.owned_by(tenant).find(|held| held.row.name == *name).map(|held| held.row.id.clone())
    }

    fn tenant(&self, tenant: u8) -> &TenantModel {
        &self.tenants[usize::from(tenant)]
    }

    fn tenant_mut(&mut self, tenant: u8) -> &mut TenantModel {
        &mut self.tenants[usize::from(tenant)]
    }

    /// What a tenant's sandboxes reserve: sandboxes, CPU, memory, disk.
    pub(crate) fn reserved(&self, tenant: u8) -> [u64; 4] {
        self.owned_by(tenant).map(Held::reserves).fold([0; 4], add)
    }

    /// Whether a key is accepted.
    pub(crate) fn accepts(&self, tenant: u8, key: &KeyModel) -> bool {
        !self.tenant(tenant).disabled && self.is_valid(key)
    }

    fn is_valid(&self, key: &KeyModel) -> bool {
        !key.revoked && key.expires_at.is_none_or(|end| self.now < end)
    }

    /// Forgets what a step before ended.
    pub(crate) fn begin_step(&mut self) {
        self.doomed.clear();
    }

    /// Takes back the sandboxes that a fault left in state deleting.
    pub(crate) fn keep_undeleted(&mut self, seen: &[Sandbox], faults: usize) {
        let left: Vec<SandboxId> = seen
            .iter()
            .filter(|row| row.state == SandboxState::Deleting && self.doomed.contains(&row.id))
            .map(|row| row.id.clone())
            .take(faults)
            .collect();
        for id in left {
            let at = self.gone.iter().rposition(|held| held.row.id == id).expect("what is doomed was there");
            let mut held = self.gone.remove(at);
            // The next try comes after the first removal that failed.
            if held.row.state != SandboxState::Deleting {
                held.was_dead = held.is_dead();
                held.row.state = SandboxState::Deleting;
                held.since = self.now;
            }
            self.doomed.remove(&id);
            self.sandboxes.insert(id, held);
        }
    }

    fn set(&mut self, id: &SandboxId, state: SandboxState) {
        let now = self.now;
        let held = self.sandboxes.get_mut(id).expect("a sandbox of the model");
        held.row.state = state;
        held.since = now;
        if state == SandboxState::Running {
            held.idle_from = now;
        }
    }

    /// Removes a sandbox and those below it.
    fn remove(&mut self, id: &SandboxId) {
        let below: Vec<SandboxId> =
            self.sandboxes.values().filter(|held| held.is_below(id)).map(|held| held.row.id.clone()).collect();
        below.iter().chain([id]).for_each(|id| self.remove_one(id));
    }

    fn remove_one(&mut self, id: &SandboxId) {
        if let Some(mut held) = self.sandboxes.remove(id) {
            held.metered.end(self.now);
            self.doomed.insert(id.clone());
            self.gone.push(held);
        }
    }

    fn insert(&mut self, row: Sandbox) {
        self.created += 1;
        let metered = Metered::new(row.created_at);
        let held = Held {
            since: self.now,
            idle_from: self.now,
            leases: 0,
            is_half_started: false,
            was_dead: false,
            number: self.created,
            metered,
            row,
        };
        self.sandboxes.insert(held.row.id.clone(), held);
    }

    /// When something happens to a sandbox by itself, and whether it is only paused.
    fn due(held: &Held) -> Option<(Timestamp, bool)> {
        if held.row.state == SandboxState::Deleting {
            return Some((held.since + RETRY, false));
        }
        let end = held.row.expires_at.map(|end| (end, false));
        let other = match held.row.state {
            SandboxState::Failed | SandboxState::Lost => Some((held.since + KEPT, false)),
            SandboxState::Running if held.leases == 0 => held
                .row
                .spec
                .idle_timeout_seconds
                .map(|idle| (held.idle_from + Duration::from_secs(idle), held.row.spec.idle_policy == IdlePolicy::Pause)),
            _ => None,
        };
        end.into_iter().chain(other).min()
    }

    /// Ends and pauses what is due.
    pub(crate) fn reap(&mut self) {
        loop {
            let now = self.now;
            let next = self
                .sandboxes
                .values()
                .find_map(|held| Self::due(held).filter(|(at, _)| *at <= now).map(|(_, pauses)| (held.row.id.clone(), pauses)));
            match next {
                Some((id, true)) => self.set(&id, SandboxState::Paused),
                Some((id, false)) => self.remove(&id),
                None => break,
            }
        }
        for tenant in 0..TENANTS.len() as u8 {
            let due: Vec<u8> = self
                .tenant(tenant)
                .groups
                .iter()
                .filter(|(_, group)| group.expires_at <= self.now)
                .map(|(group, _)| *group)
                .collect();
            for group in due {
                self.members(tenant, group).iter().for_each(|id| self.remove(id));
                self.tenant_mut(tenant).groups.remove(&group);
            }
        }
    }
}

impl Rivals {
    fn end_group(&self, tenant: u8, group: u8) -> bool {
        self.ops
            .iter()
            .any(|other| matches!(other.op, Op::EndGroup { tenant: of, group: which } if (of, which) == (tenant, group)))
    }

    /// Whether another operation creates the sandbox with this name.
    fn create(&self, bound: &Bound) -> bool {
        self.ops.iter().any(|other| {
            matches!(other.op, Op::Create(_))
                && other.op.tenant() == bound.op.tenant()
                && other.name == bound.name
                && bound.name.is_some()
        })
    }

    fn may_end(&self, held: &Held, model: &Model) -> bool {
        self.ops.iter().any(|other| other.may_end(held, model))
    }
}

fn is_done(outcome: &Outcome) -> Checked {
    if matches!(outcome, Outcome::Done) { Ok(()) } else { expected("success", outcome) }
}

fn add(mut sum: [u64; 4], one: [u64; 4]) -> [u64; 4] {
    for (sum, one) in sum.iter_mut().zip(one) {
        *sum += one;
    }
    sum
}

fn reserve_of(size: u8) -> [u64; 4] {
    let (cpu, memory, disk) = SIZES[usize::from(size)];
    [1, cpu.into(), memory, disk]
}

pub(crate) fn group_text(group: u8) -> String {
    format!("g{group}")
}

pub(crate) fn key_text(key: u8) -> String {
    format!("key-{key}")
}
