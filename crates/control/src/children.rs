//! Children: sandboxes that an agent creates from inside another, under its budget.
//!
//! A sandbox with a [`ChildBudget`] gets a token. Its text is derived from a secret of the server and the sandbox's id, so it is
//! stored nowhere, and a restarted sandbox gets the same one. It is accepted only on connections that come out of this
//! sandbox. The budget counts all sandboxes below: children of children consume it too, as well as their parents' budgets.
//!
//! A sandbox ends its children when it ends, and a start ends those that have lost their parent.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arenite_model::protocol::{AGENT_KEY_ENV, AGENT_KEY_FILE, AGENT_KEY_FILE_ENV, AGENT_SERVER_ENV, AGENT_SERVER_PORT};
use arenite_model::{DeathReason, KeyId, NetworkMode, Resources, SandboxId, SandboxSpec, SandboxState, TenantId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use utoipa::ToSchema;

use crate::registry::{Entry, Registry};
use crate::secrets::add_socket;
use crate::tenants::{Principal, is_key_text, key_text};
use crate::{Control, ControlError, CreateRequest, Sandbox};

/// The deepest tree below a sandbox.
const MAX_DEPTH: u32 = 8;
/// The most sandboxes of a budget.
const MAX_SANDBOXES: u32 = 1_000;
/// The file of the secret in the data directory.
const SECRET: &str = "agents.secret";
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// What a sandbox's agent may create. Counts all sandboxes below it that exist at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChildBudget {
    /// From 0 to 1000. With 0, the agent creates none, and can call the tenant's models.
    pub sandboxes: u32,
    /// The sum of their CPU limits, in thousandths of a core.
    pub cpu_millis: u64,
    /// The sum of their memory limits, in bytes.
    pub memory_bytes: u64,
    /// How deep the tree below the sandbox may be, from 1 to 8. With 1, its children create none.
    #[serde(default = "one")]
    pub depth: u32,
    /// The longest lifetime of each, in seconds; by default they live as long as their parent.
    #[serde(default)]
    pub lifetime_seconds: Option<u64>,
}

fn one() -> u32 {
    1
}

impl ChildBudget {
    fn check(&self) -> Result<(), ControlError> {
        let bounds = [
            ("sandboxes", u64::from(self.sandboxes), 0, u64::from(MAX_SANDBOXES)),
            ("depth", u64::from(self.depth), 1, u64::from(MAX_DEPTH)),
            ("lifetime_seconds", self.lifetime_seconds.unwrap_or(1), 1, u64::MAX),
        ];
        for (field, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(arenite_model::SpecError::OutOfBounds { field, value, least, most }.into());
            }
        }
        Ok(())
    }
}

/// A child that is being created, and has no entry yet.
pub(crate) struct PendingChild {
    ancestors: Vec<SandboxId>,
    resources: Resources,
}

/// The secret of the tokens, read at the first use.
#[derive(Default)]
pub(crate) struct AgentSecret(OnceLock<[u8; 32]>);

impl AgentSecret {
    fn get(&self, data_dir: &Path) -> Result<&[u8; 32], ControlError> {
        if let Some(secret) = self.0.get() {
            return Ok(secret);
        }
        let path = data_dir.join(SECRET);
        let secret = read_or_create(&path).map_err(|error| ControlError::AgentSecret { path, reason: error.to_string() })?;
        Ok(self.0.get_or_init(|| secret))
    }
}

fn read_or_create(path: &Path) -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    match OpenOptions::new().read(true).open(path) {
        Ok(mut file) => {
            file.read_exact(&mut secret)?;
            return Ok(secret);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    getrandom::fill(&mut secret).map_err(|error| io::Error::other(error.to_string()))?;
    // A crash never leaves a shorter one under the name.
    let new = path.with_extension("secret.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok(secret)
}

/// The random part of a sandbox's token.
fn secret_of(secret: &[u8; 32], id: &SandboxId) -> [u8; 32] {
    let inner = Sha256::new().chain_update(secret).chain_update(id.as_str()).finalize();
    Sha256::new().chain_update(secret).chain_update(inner).finalize().into()
}

/// A sandbox's id has the form of a key's id.
fn key_id(id: &SandboxId) -> Option<KeyId> {
    id.as_str().parse().ok()
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, ControlError> {
    Err(ControlError::NotBelow { reason: reason.into() })
}

/// Whether a sandbox's agent may act.
fn is_alive(state: SandboxState) -> bool {
    matches!(state, SandboxState::Running | SandboxState::Paused)
}

impl Control {
    /// The caller that a sandbox's token identifies, on a connection out of this sandbox.
    pub fn authenticate_agent(&self, id: &SandboxId, given: &str) -> Option<Arc<Principal>> {
        let entry = self.registry().by_id(id).cloned()?;
        let sandbox = entry.sandbox();
        if sandbox.provenance.child_budget.is_none() || !is_alive(sandbox.state) {
            return None;
        }
        let is_closed =
            |tenants: &Arc<crate::tenants::Tenants>| tenants.get(&sandbox.tenant).map_or(true, |tenant| tenant.disabled);
        if self.tenants().is_some_and(is_closed) {
            return None;
        }
        let key = key_id(id)?;
        let secret = secret_of(self.agent_secret.get(&self.config.data_dir).ok()?, id);
        is_key_text(given, &key, &secret).then(|| Arc::new(Principal::agent(sandbox.tenant.clone(), key, id.clone())))
    }

    /// The spec for the engine: with the floor of its tenant's networks. A sandbox with a budget gets the address of the server and its
    /// token, and one with an SSH key the socket of its agent.
    pub(crate) fn spec_for_engine(&self, sandbox: &Sandbox) -> Result<SandboxSpec, ControlError> {
        let mut spec = sandbox.spec.clone();
        spec.network_floor = self.network_floor(&sandbox.tenant).filter(|_| spec.network == NetworkMode::Open);
        if sandbox.provenance.child_budget.is_some()
            && let Some(key) = key_id(&sandbox.id)
        {
            let secret = secret_of(self.agent_secret.get(&self.config.data_dir)?, &sandbox.id);
            spec.env.insert(AGENT_SERVER_ENV.to_owned(), format!("http://127.0.0.1:{AGENT_SERVER_PORT}"));
            spec.env.insert(AGENT_KEY_ENV.to_owned(), key_text(&key, &secret));
            spec.env.insert(AGENT_KEY_FILE_ENV.to_owned(), AGENT_KEY_FILE.to_owned());
        }
        add_socket(&mut spec);
        Ok(spec)
    }

    /// Checks a request from inside a sandbox, except for what other creates change, and restricts its spec to what its parent
    /// may do. Returns the sandboxes above the child, the topmost first.
    pub(crate) fn ancestors(
        &self,
        tenant: &TenantId,
        request: &CreateRequest,
        spec: &mut SandboxSpec,
    ) -> Result<Vec<SandboxId>, ControlError> {
        let own = request.provenance.child_budget.as_ref();
        own.map_or(Ok(()), ChildBudget::check)?;
        let Some(parent) = &request.parent else { return Ok(Vec::new()) };
        let entry = self.registry().owned(tenant, parent).cloned();
        let parent = entry.ok_or_else(|| ControlError::NoSuchId { id: parent.clone() })?.sandbox();
        if parent.provenance.child_budget.is_none() || !is_alive(parent.state) {
            return refuse(format!("sandbox {} may create none", parent.name));
        }
        if request.provenance.group.is_some() {
            return refuse("it ends with the one that creates it, so it joins no group");
        }
        if parent.spec.network == NetworkMode::None && spec.network != NetworkMode::None {
            if request.spec.network.is_some() {
                return refuse("the one that creates it has no network");
            }
            spec.network = NetworkMode::None;
        }
        if let Some(policy) = &parent.spec.network_policy
            && spec.network != NetworkMode::None
        {
            if request.spec.network_policy.as_ref().is_some_and(|own| own != policy) {
                return refuse("the network policy of the one that creates it applies to it");
            }
            spec.network_policy = Some(policy.clone());
        }
        let is_parents = |volume: &arenite_model::VolumeMount| parent.spec.volumes.iter().any(|theirs| volume.is_within(theirs));
        if !spec.volumes.iter().all(is_parents) {
            return refuse("it has volumes or directories of the host that the one that creates it lacks");
        }
        let mut ancestors = parent.provenance.ancestors.clone();
        ancestors.push(parent.id.clone());
        for (budget, distance) in budgets(&self.registry(), &ancestors)? {
            let depth = distance + own.map_or(0, |own| own.depth);
            if depth > budget.depth {
                return Err(over("levels", u64::from(budget.depth), 0, u64::from(depth)));
            }
            if let Some(most) = budget.lifetime_seconds {
                if let Some(asked) = request.spec.timeout_seconds.filter(|asked| *asked == 0 || *asked > most) {
                    return Err(over("seconds of life", most, 0, if asked == 0 { u64::MAX } else { asked }));
                }
                spec.timeout_seconds = Some(spec.timeout_seconds.map_or(most, |own| own.min(most)));
            }
        }
        Ok(ancestors)
    }

    /// Refuses a child when the budget of a sandbox above it is used up. The caller holds the registry, and registers the child.
    pub(crate) fn reserve_child(
        registry: &mut Registry,
        ancestors: Vec<SandboxId>,
        resources: Resources,
    ) -> Result<Option<Arc<PendingChild>>, ControlError> {
        let Some(first) = ancestors.first() else { return Ok(None) };
        let theirs = |sandbox: &Sandbox| sandbox.provenance.ancestors.contains(first);
        let existing: Vec<Arc<Sandbox>> = registry.all().map(|entry| entry.sandbox()).filter(|one| theirs(one)).collect();
        let existing = existing.iter().map(|sandbox| (&sandbox.provenance.ancestors, &sandbox.spec.resources));
        let pending = registry.children.iter().map(|child| (&child.ancestors, &child.resources));
        let all: Vec<_> = existing.chain(pending).collect();
        for ((budget, _), id) in budgets(registry, &ancestors)?.into_iter().zip(&ancestors) {
            let below = || all.iter().filter(|(ancestors, _)| ancestors.contains(id)).map(|(_, resources)| resources);
            let sum = |amount: Amount| below().map(|resources| amount(resources)).sum::<u64>();
            let limits: [(&'static str, u64, Amount); 3] = [
                ("sandboxes", u64::from(budget.sandboxes), |_| 1),
                ("thousandths of a core", budget.cpu_millis, |resources| u64::from(resources.cpu_millis)),
                ("bytes of memory", budget.memory_bytes, |resources| resources.memory_bytes),
            ];
            for (what, limit, amount) in limits {
                let (used, wanted) = (sum(amount), amount(&resources));
                if used.saturating_add(wanted) > limit {
                    return Err(over(what, limit, used, wanted));
                }
            }
        }
        let child = Arc::new(PendingChild { ancestors, resources });
        registry.children.push(Arc::clone(&child));
        Ok(Some(child))
    }

    /// Refuses a child if a sandbox above it is gone or ends.
    pub(crate) fn check_ancestors(&self, sandbox: &Sandbox) -> Result<(), ControlError> {
        let registry = self.registry();
        let is_there = |id: &SandboxId| registry.by_id(id).is_some_and(|entry| is_alive(entry.sandbox().state));
        if sandbox.provenance.ancestors.iter().all(is_there) { Ok(()) } else { refuse("the one that creates it has ended") }
    }

    /// Ends all sandboxes below one that ends.
    pub(crate) fn end_children(&self, parent: &Sandbox) -> JoinHandle<()> {
        let below: Vec<Arc<Entry>> = match parent.provenance.child_budget {
            None => Vec::new(),
            Some(_) => {
                let registry = self.registry();
                registry.all().filter(|entry| entry.sandbox().provenance.ancestors.contains(&parent.id)).cloned().collect()
            }
        };
        let control = self.shared();
        tokio::spawn(async move { control.end_all(below).await })
    }

    /// Ends the sandboxes that have lost one above them while the server was down.
    pub(crate) async fn end_orphans(self: Arc<Self>) {
        let orphans: Vec<Arc<Entry>> = {
            let registry = self.registry();
            let is_there = |id: &SandboxId| registry.by_id(id).is_some_and(|above| is_alive(above.sandbox().state));
            registry.all().filter(|entry| !entry.sandbox().provenance.ancestors.iter().all(is_there)).cloned().collect()
        };
        self.end_all(orphans).await;
    }

    async fn end_all(&self, entries: Vec<Arc<Entry>>) {
        // A start cleans up what a stop leaves.
        let Some(Ok(_operation)) = (!entries.is_empty()).then(|| self.operation()) else { return };
        for (entry, destroyed) in self.destroy_each(entries, DeathReason::ParentEnded).await {
            match destroyed {
                Ok(()) => tracing::info!(id = %entry.id, name = %entry.name, "ended a sandbox with the one that created it"),
                Err(ControlError::NotFound { .. }) => {}
                // It is in state deleting, and the reaper tries again.
                Err(error) => {
                    tracing::error!(id = %entry.id, %error, "a sandbox could not be ended with the one that created it")
                }
            }
        }
    }
}

impl Control {
    /// The longest lifetime of a child that the budgets above it allow, in seconds.
    pub(crate) fn child_lifetime(&self, sandbox: &Sandbox) -> Result<Option<u64>, ControlError> {
        let budgets = budgets(&self.registry(), &sandbox.provenance.ancestors)?;
        Ok(budgets.into_iter().filter_map(|(budget, _)| budget.lifetime_seconds).min())
    }
}

/// What a sandbox takes of a budget.
type Amount = fn(&Resources) -> u64;

/// The budgets of sandboxes, and their distances from a child below the last.
fn budgets(registry: &Registry, ancestors: &[SandboxId]) -> Result<Vec<(ChildBudget, u32)>, ControlError> {
    let distance = |index: usize| u32::try_from(ancestors.len() - index).unwrap_or(u32::MAX);
    let budget = |(index, id): (usize, &SandboxId)| {
        let budget = registry.by_id(id).and_then(|entry| entry.sandbox().provenance.child_budget.clone());
        Some((budget?, distance(index)))
    };
    let budgets: Option<Vec<_>> = ancestors.iter().enumerate().map(budget).collect();
    budgets.map_or_else(|| refuse("the one that creates it has ended"), Ok)
}

pub(crate) fn over(what: &'static str, limit: u64, used: u64, wanted: u64) -> ControlError {
    ControlError::OverBudget { what, limit, used, wanted, retry_after: RETRY_AFTER }
}
