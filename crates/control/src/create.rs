//! From a request to a running sandbox.

use std::sync::Arc;
use std::time::Duration;

use arenite_engine::{Created, EngineError};
use arenite_model::protocol::CarriedSessions;
use arenite_model::{NetworkMode, SandboxId, SandboxName, SandboxSpec, SandboxState, SpecError, TenantId, Tier};
use tokio::time::Instant;

use crate::admission::{AdmissionPermit, refuse};
use crate::children::PendingChild;
use crate::clock::later;
use crate::counters::count;
use crate::events::EventKind;
use crate::registry::{Claim, Entry};
use crate::sandbox::StartState;
use crate::store::StoreError;
use crate::tenants::{Quota, QuotaExceeded, Reserved};
use crate::{Control, ControlError, CreateRequest, Provenance, Sandbox, memo};

/// A reservation for a create: the name, and one sandbox of the maximum number. Released when dropped.
struct NameReservation {
    control: Arc<Control>,
    tenant: TenantId,
    name: Option<SandboxName>,
    claim: Arc<Claim>,
    /// The number is not yet counted by an entry.
    pending: bool,
    /// The same for budgets of the sandboxes above.
    child: Option<Arc<PendingChild>>,
    released: bool,
}

impl NameReservation {
    /// Refuses a create beyond the tenant's quotas, or beyond the budgets of the sandboxes above, before anything is spent on it. The
    /// store decides about the tenant's creates that race.
    fn take(
        control: Arc<Control>,
        tenant: &TenantId,
        name: Option<SandboxName>,
        ancestors: Vec<SandboxId>,
        spec: &SandboxSpec,
    ) -> Result<Self, ControlError> {
        let limits = control.tenant_limits(tenant);
        let wanted = &Reserved::from_spec(spec);
        let mut used = if limits.apply_to_sandboxes() { control.reserved(tenant) } else { Reserved::default() };
        let mut registry = control.registry_mut();
        if let Some(name) = &name
            && (registry.by_name(tenant, name).is_some() || registry.claim(tenant, name).is_some())
        {
            return Err(ControlError::AlreadyExists { name: name.clone() });
        }
        if let Some(name) = &name
            && let Some(id) = control.quarantine.named(tenant, name)
        {
            return Err(ControlError::Quarantined { name: name.clone(), id });
        }
        let number = registry.len() + registry.pending;
        if number >= control.config.limits.max_sandboxes {
            return refuse(format!("there are {number} sandboxes in all, which is the most"), Duration::from_secs(30));
        }
        let (theirs, creating) = registry.tenant(tenant).map_or((0, 0), |t| (t.entries.len() + t.pending, t.creating as u64));
        used.sandboxes = theirs as u64;
        used.check(wanted, &limits)?;
        if let Some(limit) = limits.concurrent_creates.filter(|limit| creating >= *limit) {
            return Err(QuotaExceeded { quota: Quota::ConcurrentCreates, limit, used: creating, requested: 1 }.into());
        }
        let child = Control::reserve_child(&mut registry, ancestors, spec.resources.clone())?;
        let claim = Claim::new();
        registry.pending += 1;
        let slot = registry.tenant_mut(tenant);
        slot.pending += 1;
        slot.creating += 1;
        if let Some(name) = &name {
            slot.claims.insert(name.clone(), Arc::clone(&claim));
        }
        drop(registry);
        Ok(Self { control, tenant: tenant.clone(), name, claim, pending: true, child, released: false })
    }

    /// False if an unnamed sandbox took the name as its id in the meantime.
    fn fill(&mut self, entry: &Arc<Entry>) -> bool {
        let mut registry = self.control.registry_mut();
        let fits = registry.insert(entry);
        if fits {
            self.pending = false;
            registry.pending -= 1;
            registry.tenant_mut(&self.tenant).pending -= 1;
            registry.forget_child(self.child.take());
        }
        fits
    }

    fn is_cancelled(&self) -> bool {
        self.claim.is_cancelled() || self.control.is_stopping()
    }

    fn cancelled(&self, name: &SandboxName) -> Result<(), ControlError> {
        match self.is_cancelled() {
            true => Err(ControlError::Cancelled { name: name.clone() }),
            false => Ok(()),
        }
    }

    fn release(&mut self) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let mut registry = self.control.registry_mut();
        registry.pending -= usize::from(self.pending);
        registry.forget_child(self.child.take());
        let slot = registry.tenant_mut(&self.tenant);
        slot.pending -= usize::from(self.pending);
        slot.creating -= 1;
        if let Some(name) = &self.name
            && slot.claims.get(name).is_some_and(|claim| Arc::ptr_eq(claim, &self.claim))
        {
            slot.claims.remove(name);
        }
        registry.forget_if_empty(&self.tenant);
    }

    /// Removes the claim from the registry before its waiters learn the result, so that they don't find it again.
    fn finish(mut self, result: Result<(), ControlError>) {
        self.release();
        self.claim.finish(result);
    }
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        self.release();
        // The caller left the queue: waiters check for themselves.
        self.claim.finish_if_open();
    }
}

/// Adds a stage's duration.
fn stage(stages: &mut Vec<(String, f64)>, name: &str, since: &mut Instant) {
    let now = Instant::now();
    let time = now.duration_since(*since).as_secs_f64() * 1e3;
    *since = now;
    match stages.iter_mut().find(|(there, _)| there == name) {
        Some((_, sum)) => *sum += time,
        None => stages.push((name.to_owned(), time)),
    }
}

impl Control {
    /// Creates a sandbox; when this returns, it serves calls. The create completes even if the caller disconnects, unless it
    /// still waits in the queue.
    pub async fn create(&self, tenant: &TenantId, request: CreateRequest) -> Result<Sandbox, ControlError> {
        let mut since = Instant::now();
        let operation = self.operation()?;
        self.check_drain()?;
        let (template, mut spec) = self.resolve(tenant, &request)?;
        let own_only = request.own_volumes_only && request.spec.volumes.is_some();
        let volumes = self.find_volumes(tenant, &mut spec, own_only).await?;
        let ancestors = self.ancestors(tenant, &request, &mut spec)?;
        self.bind_secrets(tenant, ancestors.last(), &mut spec).await?;
        self.limit_life(tenant, request.spec.timeout_seconds, &mut spec).inspect_err(|e| self.tally_error(e))?;
        self.limit_tier(tenant, ancestors.last(), &mut spec).inspect_err(|e| self.tally_error(e))?;
        self.check_group(tenant, request.provenance.group.as_ref())?;
        let provenance = Provenance { ancestors: ancestors.clone(), ..request.provenance };
        let reservation =
            NameReservation::take(self.shared(), tenant, request.name, ancestors, &spec).inspect_err(|e| self.tally_error(e))?;
        let found = match spec.state {
            // Its image is that of the state, also if another has that name now.
            Some(_) => Ok(false),
            None => self.find_image(tenant, &mut spec, request.client.as_ref(), &reservation.claim).await,
        };
        let has_waited = match found {
            Ok(has_waited) => has_waited,
            Err(error) => {
                self.tally_error(&error);
                reservation.finish(Err(error.clone()));
                return Err(error);
            }
        };
        let mut stages = Vec::with_capacity(8);
        if has_waited {
            stage(&mut stages, "pull", &mut since);
        }
        // A waiting create belongs to its caller: a disconnect removes it from the queue.
        let permit = tokio::select! {
            biased;
            () = reservation.claim.cancelled() => Err(self.cancelled_in_queue(&reservation)),
            permit = self.admission.admit(&*self.engine) => permit,
        };
        let permit = match permit {
            Ok(permit) => permit,
            Err(error) => {
                self.tally_error(&error);
                reservation.finish(Err(error.clone()));
                return Err(error);
            }
        };
        stage(&mut stages, "admit", &mut since);
        let sessions = match request.start {
            StartState::Fork(start) => start.sessions,
            _ => None,
        };
        let own_env = request.spec.env.unwrap_or_default().into_keys().collect();
        spec.sessions = sessions.map(|sessions| Arc::new(CarriedSessions { own_env, ..sessions.as_ref().clone() }));
        self.detached(operation, |control| async move {
            let mut reservation = reservation;
            // Until its row shows that it has them.
            let _volumes = volumes;
            let made = control.make(&mut reservation, permit, template, spec, (request.origin, provenance), stages).await;
            match &made {
                Ok(sandbox) => {
                    count(&control.tally.created);
                    tracing::info!(id = %sandbox.id, name = %sandbox.name, "made a sandbox");
                }
                Err(error) => {
                    control.tally_error(error);
                    tracing::warn!(%error, "a sandbox could not be made");
                }
            }
            reservation.finish(made.as_ref().map(|_| ()).map_err(ControlError::clone));
            made
        })
        .await
    }

    /// Refuses a requested lifetime beyond the tenant's maximum, and shortens one that nobody requested.
    fn limit_life(&self, tenant: &TenantId, requested: Option<u64>, spec: &mut SandboxSpec) -> Result<(), ControlError> {
        let Some(limit) = self.tenant_limits(tenant).max_timeout_seconds else { return Ok(()) };
        if let Some(requested) = requested.filter(|requested| *requested > limit) {
            return Err(QuotaExceeded { quota: Quota::MaxTimeoutSeconds, limit, used: 0, requested }.into());
        }
        spec.timeout_seconds = Some(spec.timeout_seconds.map_or(limit, |own| own.min(limit)));
        Ok(())
    }

    /// Applies the minimum of the tenant and that of the sandbox above: an agent can't create a sandbox with less isolation than
    /// gVisor, if it has that.
    pub(crate) fn limit_tier(
        &self,
        tenant: &TenantId,
        parent: Option<&SandboxId>,
        spec: &mut SandboxSpec,
    ) -> Result<(), ControlError> {
        let of_tenant = self.tenant_limits(tenant).min_tier;
        let of_parent = parent.and_then(|id| self.registry().by_id(id)?.sandbox().spec.tier).filter(|tier| *tier == Tier::Gvisor);
        for minimum in [of_tenant, of_parent].into_iter().flatten().filter(|minimum| *minimum != Tier::Namespace) {
            match spec.tier {
                Some(tier) if !tier.satisfies(minimum) => return Err(ControlError::BelowTier { tier, minimum }),
                Some(_) => {}
                None => spec.tier = Some(minimum),
            }
        }
        Ok(())
    }

    fn tally_error(&self, error: &ControlError) {
        count(match error {
            ControlError::Exhausted { .. } | ControlError::Quota(_) => &self.tally.refused,
            _ => &self.tally.failed,
        });
    }

    fn cancelled_in_queue(&self, reservation: &NameReservation) -> ControlError {
        match &reservation.name {
            Some(name) => ControlError::Cancelled { name: name.clone() },
            None => ControlError::Stopping,
        }
    }

    /// The checked template and spec of a request.
    pub(crate) fn resolve(
        &self,
        tenant: &TenantId,
        request: &CreateRequest,
    ) -> Result<(Option<String>, SandboxSpec), ControlError> {
        let (template, mut spec) = self.start_spec(tenant, request)?;
        request.spec.lay_over(&mut spec);
        spec.check()?;
        self.check_network_policy(&spec)?;
        if let Some(floor) = self.network_floor(tenant).filter(|_| spec.network == NetworkMode::Open) {
            self.engine.check_network_policy(&floor)?;
        }
        if spec.checkpoint.is_auto() {
            self.engine.check_states()?;
            if spec.tier == Some(Tier::Gvisor) {
                let reason = "under gVisor, only states with processes can be sealed while a sandbox runs".to_owned();
                return Err(SpecError::Invalid { field: "checkpoint", reason }.into());
            }
        }
        let wants_command =
            request.spec.args.as_ref().is_some_and(|args| !args.is_empty()) || request.spec.image_command == Some(true);
        if wants_command && self.keeps_processes(&spec) == Some(true) {
            return Err(ControlError::Spec(SpecError::Invalid {
                field: "args",
                reason: "the processes of the state go on, and no main command is started; leave one of the two out".to_owned(),
            }));
        }
        self.check_pauses_of(&spec)?;
        if spec.network == NetworkMode::Host {
            return Err(ControlError::Spec(SpecError::Invalid {
                field: "network",
                reason: "the host's own network is for image builds only".to_owned(),
            }));
        }
        Ok((template, spec))
    }

    /// Refuses a network policy that could not be enforced.
    pub(crate) fn check_network_policy(&self, spec: &SandboxSpec) -> Result<(), ControlError> {
        let Some(policy) = &spec.network_policy else { return Ok(()) };
        if spec.network != NetworkMode::Open {
            let reason = "a sandbox without a network has no policy for it".to_owned();
            return Err(SpecError::Invalid { field: "network", reason }.into());
        }
        Ok(self.engine.check_network_policy(policy)?)
    }

    /// The spec that a request's parts are laid over.
    fn start_spec(&self, tenant: &TenantId, request: &CreateRequest) -> Result<(Option<String>, SandboxSpec), ControlError> {
        let of_state = match &request.start {
            StartState::Image => None,
            StartState::Snapshot { name, restart_processes } => {
                let spec = self.spec_of_snapshot(tenant, name)?;
                Some(SandboxSpec { restart_processes: *restart_processes, ..spec })
            }
            StartState::Fork(start) => return Ok((request.template.clone(), start.spec.clone())),
        };
        if of_state.is_some() && request.spec.image.is_some() {
            let reason = "a snapshot has an image; leave it out".to_owned();
            return Err(SpecError::Invalid { field: "image", reason }.into());
        }
        if request.template.is_none()
            && let Some(spec) = of_state
        {
            return Ok((None, spec));
        }
        let (template, mut spec, names_network) = match (&request.template, &request.spec.image) {
            (None, Some(image)) => (None, SandboxSpec::of_image(image.clone()), false),
            (named, _) => {
                let template = match named {
                    Some(name) => self.templates.get(name)?,
                    None => self.templates.of_unnamed()?,
                };
                (Some(template.name), template.spec, template.names_network)
            }
        };
        if !names_network {
            self.lay_default_network(tenant, &mut spec);
        }
        Ok((
            template,
            match of_state {
                Some(SandboxSpec { image, image_owner, state, restart_processes, tier, .. }) => {
                    SandboxSpec { image, image_owner, state, restart_processes, tier, ..spec }
                }
                None => spec,
            },
        ))
    }

    async fn make(
        &self,
        reservation: &mut NameReservation,
        _permit: AdmissionPermit,
        template: Option<String>,
        spec: SandboxSpec,
        (origin, provenance): (String, Provenance),
        mut stages: Vec<(String, f64)>,
    ) -> Result<Sandbox, ControlError> {
        let mut since = Instant::now();
        let spec = SandboxSpec { tier: Some(self.engine.tier(&spec).await?), ..spec };
        let ahead = self.pool.take(&spec);
        let is_ahead = ahead.is_some();
        let id = match ahead {
            Some(id) => id,
            None => tokio::time::timeout(self.config.engine_timeout, self.engine.reserve()).await.map_err(|_| {
                ControlError::Exhausted { reason: "the engine has no id to give".to_owned(), retry_after: Duration::from_secs(5) }
            })??,
        };
        stage(&mut stages, "reserve", &mut since);
        let name = match &reservation.name {
            Some(name) => name.clone(),
            // An id is a valid name: both are DNS labels.
            None => id
                .as_str()
                .parse()
                .map_err(|e: arenite_model::IdError| SpecError::Invalid { field: "name", reason: e.to_string() })?,
        };
        let now = self.clock.now();
        let entry = Arc::new(Entry::new(Sandbox {
            id,
            tenant: reservation.tenant.clone(),
            name,
            state: SandboxState::Creating,
            pause_kind: None,
            expires_at: spec.timeout_seconds.map(|seconds| later(now, Duration::from_secs(seconds))),
            spec,
            template,
            provenance,
            reason: None,
            died: None,
            revision: 1,
            isolation: Vec::new(),
            origin,
            created_at: now,
            last_used_at: now,
            state_since: now,
            stages: Vec::new(),
            node: None,
        }));
        let _change = entry.change.lock().await;
        if !reservation.fill(&entry) {
            self.give_back(&entry).await;
            return Err(ControlError::AlreadyExists { name: entry.name.clone() });
        }
        self.announce(&entry.sandbox(), EventKind::Creating);
        match self.build(reservation, &entry, is_ahead, stages, since).await {
            Ok(sandbox) => Ok(sandbox),
            Err(error @ ControlError::Quota(_)) if is_ahead => {
                // Another create was faster, and the sandbox is still unused.
                self.vanish(&entry);
                self.return_to_pool(&entry).await;
                Err(error)
            }
            Err(error) => {
                // An engine error leaves nothing behind.
                let left = is_ahead || !matches!(error, ControlError::Engine(_));
                if is_ahead {
                    self.unwrite(&entry.sandbox()).await;
                }
                self.discard(&entry, left).await;
                Err(error)
            }
        }
    }

    /// Writes the row, creates the sandbox, and updates the row, so that a crash never leaves a sandbox without a row. The row of one
    /// from a pool is written once, as that of a running sandbox: if the server ends before the engine has assigned it, the next
    /// start finds it unclaimed.
    async fn build(
        &self,
        reservation: &NameReservation,
        entry: &Entry,
        is_ahead: bool,
        mut stages: Vec<(String, f64)>,
        mut since: Instant,
    ) -> Result<Sandbox, ControlError> {
        let creating = entry.sandbox();
        reservation.cancelled(&entry.name)?;
        // The registry has it now, so a group that begins to end from here on deletes it.
        self.check_group(&entry.tenant, creating.provenance.group.as_ref())?;
        self.check_ancestors(&creating)?;
        let limits = self.tenant_limits(&entry.tenant);
        let claimed = is_ahead.then(|| self.running(entry));
        let row = claimed.as_ref().unwrap_or(&creating);
        self.store.insert_within(row, &limits).await.map_err(|error| match error {
            StoreError::Taken => ControlError::AlreadyExists { name: entry.name.clone() },
            error => ControlError::store("remember a new sandbox")(error),
        })?;
        stage(&mut stages, "store", &mut since);
        self.pass_secrets(entry, &creating.spec).await?;
        let create = self.begin(entry, &creating, is_ahead);
        let (created, is_claimed) = self.bounded("the creation", &entry.name, create).await?;
        reservation.cancelled(&entry.name)?;
        let engine = created.stages.into_iter();
        stages.extend(engine.map(|(name, time)| (name.to_owned(), time.as_secs_f64() * 1e3)));
        since = Instant::now();
        let mut running = match claimed {
            Some(claimed) if is_claimed => claimed.isolated(created.tier, created.isolation),
            _ => {
                let running = self.running(entry).isolated(created.tier, created.isolation);
                self.store.update(&running).await.map_err(ControlError::store("remember a running sandbox"))?;
                stage(&mut stages, "store", &mut since);
                running
            }
        };
        running.stages = stages;
        entry.used_at(running.state_since);
        self.show(entry, running.clone());
        entry.open();
        Ok(running)
    }

    /// The new sandbox when it runs, without its isolation.
    fn running(&self, entry: &Entry) -> Sandbox {
        let mut running = self.in_state(entry, SandboxState::Running, None);
        // They are open.
        running.spec.sessions = None;
        Sandbox { last_used_at: running.state_since, ..running }
    }

    /// Takes the sandbox from its pool, or makes the engine create it. Returns whether it was from the pool.
    async fn begin(&self, entry: &Entry, creating: &Sandbox, is_ahead: bool) -> Result<(Created, bool), EngineError> {
        let row = memo::row(creating);
        let spec = self.spec_for_engine(creating).map_err(|error| EngineError::Host {
            what: "could not make the sandbox's token".to_owned(),
            source: std::io::Error::other(error),
        })?;
        if is_ahead {
            let adopt = async {
                // Before anything of the tenant runs in it.
                if spec.network_floor.is_some() {
                    self.engine.set_network_policy(&row.id, &spec, false).await?;
                }
                self.engine.adopt(&row, &spec).await
            };
            let (adopted, ()) = tokio::join!(adopt, self.claim_meter(entry));
            match adopted {
                Ok(created) => {
                    count(&self.tally.adopted);
                    self.announce(creating, EventKind::Claimed);
                    return Ok((created, true));
                }
                Err(error) => {
                    tracing::warn!(id = %row.id, %error, "a sandbox made ahead could not be given away; making another");
                    self.unwrite(creating).await;
                    self.engine.destroy(&row.id).await?;
                    self.forget_meter(&entry.id);
                }
            }
        }
        Ok((self.engine.create(&row, &spec).await?, false))
    }

    /// Changes the row of a claim that failed back: until the sandbox runs or the row is removed, a start undoes the create.
    async fn unwrite(&self, creating: &Sandbox) {
        if let Err(error) = self.store.update(creating).await {
            tracing::error!(id = %creating.id, %error, "the row of a sandbox that does not run says that it does");
        }
    }

    /// Undoes a started create.
    async fn discard(&self, entry: &Arc<Entry>, left: bool) {
        if left && !self.give_back(entry).await {
            // Stays in state deleting, and the reaper retries.
            let deleting = self.in_state(entry, SandboxState::Deleting, None);
            if let Err(error) = self.store.update(&deleting).await {
                tracing::error!(id = %entry.id, %error, "a sandbox's state could not be stored");
            }
            self.show(entry, deleting);
            return;
        }
        if let Err(error) = self.store.remove(&entry.id).await {
            // The row says creating, so the next start removes it.
            tracing::error!(id = %entry.id, %error, "the row of a sandbox that was not made stays");
        }
        self.vanish(entry);
    }

    async fn give_back(&self, entry: &Entry) -> bool {
        let destroy = self.engine.destroy(&entry.id);
        match self.bounded("the removal", &entry.name, destroy).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(id = %entry.id, %error, "what was begun of a sandbox could not be removed");
                false
            }
        }
    }
}
