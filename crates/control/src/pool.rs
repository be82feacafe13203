//! Pools of sandboxes created in advance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{SandboxId, SandboxSpec, Tier};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::registry::Entry;
use crate::template::MAX_POOL;
use crate::{Control, ControlError};

/// Maximum number of sandboxes of all pools together.
const MOST: usize = 256;
/// Refills only after this much time without a create, so that refills don't compete with the new sandbox; at once if none is
/// left.
const QUIET: Duration = Duration::from_millis(500);
/// Interval between checks of the templates.
const LOOK: Duration = Duration::from_secs(30);
/// The pause after a failure, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The part of a spec that is fixed when a sandbox is created.
fn fixed_part(spec: &SandboxSpec) -> SandboxSpec {
    SandboxSpec {
        image_owner: spec.image_owner.clone(),
        resources: spec.resources.clone(),
        network: spec.network,
        network_policy: spec.network_policy.clone(),
        // None waits with secrets: those of a sandbox are made with it.
        secrets: spec.secrets.clone(),
        volumes: spec.volumes.clone(),
        // Pools hold what an image has without gVisor, which can't be assigned later.
        tier: spec.tier.filter(|tier| *tier == Tier::Gvisor),
        ..SandboxSpec::of_image(spec.image.clone())
    }
}

/// The sandboxes that wait in pools.
#[derive(Default)]
pub(crate) struct Pool {
    waiting: Mutex<Waiting>,
    taken: Notify,
}

#[derive(Default)]
struct Waiting {
    sandboxes: Vec<(SandboxSpec, SandboxId)>,
    last_taken: Option<Instant>,
    closed: bool,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sandbox that fits the spec.
    pub(crate) fn take(&self, spec: &SandboxSpec) -> Option<SandboxId> {
        let mut waiting = self.lock();
        if waiting.sandboxes.is_empty() {
            return None;
        }
        let fixed = fixed_part(spec);
        // The oldest: its runtimes have had time to settle.
        let at = waiting.sandboxes.iter().position(|(spec, _)| *spec == fixed)?;
        let (_, id) = waiting.sandboxes.remove(at);
        waiting.last_taken = Some(Instant::now());
        drop(waiting);
        self.taken.notify_one();
        Some(id)
    }

    /// Makes the pools be compared with what is wanted.
    pub(crate) fn look_again(&self) {
        self.taken.notify_one();
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().sandboxes.len()
    }

    /// Adds a sandbox; returns it if the pool was closed in the meantime.
    fn add(&self, spec: SandboxSpec, id: SandboxId) -> Result<(), SandboxId> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(id);
        }
        waiting.sandboxes.push((spec, id));
        Ok(())
    }

    fn remove(&self, id: &SandboxId) -> bool {
        let mut waiting = self.lock();
        let before = waiting.sandboxes.len();
        waiting.sandboxes.retain(|(_, there)| there != id);
        waiting.sandboxes.len() < before
    }

    /// Takes out the sandboxes that are no longer wanted.
    fn surplus(&self, wanted: &HashMap<SandboxSpec, usize>) -> Vec<SandboxId> {
        let mut seen: HashMap<SandboxSpec, usize> = HashMap::new();
        let mut waiting = self.lock();
        let all = std::mem::take(&mut waiting.sandboxes);
        let (kept, surplus): (Vec<_>, Vec<_>) = all.into_iter().partition(|(spec, _)| {
            let number = seen.entry(spec.clone()).or_default();
            *number += 1;
            *number <= wanted.get(spec).copied().unwrap_or(0)
        });
        waiting.sandboxes = kept;
        surplus.into_iter().map(|(_, id)| id).collect()
    }

    /// The spec with the largest shortage, and how long to wait before the next create.
    fn lacking(&self, wanted: &HashMap<SandboxSpec, usize>) -> Option<(SandboxSpec, Duration)> {
        let waiting = self.lock();
        let number = |spec: &SandboxSpec| waiting.sandboxes.iter().filter(|(there, _)| there == spec).count();
        let (spec, have) = wanted
            .iter()
            .map(|(spec, want)| (spec, *want, number(spec)))
            .filter(|(_, want, have)| have < want)
            .max_by_key(|(_, want, have)| want - have)
            .map(|(spec, _, have)| (spec.clone(), have))?;
        let since = waiting.last_taken.map_or(QUIET, |at| at.elapsed());
        let wait = if have == 0 { Duration::ZERO } else { QUIET.saturating_sub(since) };
        Some((spec, wait))
    }
}

impl Control {
    /// The number of sandboxes to keep ready for each spec, from the current configuration and templates. None while this node
    /// drains.
    fn wanted(&self) -> HashMap<SandboxSpec, usize> {
        let mut wanted: HashMap<SandboxSpec, usize> = HashMap::new();
        if self.is_draining() {
            return wanted;
        }
        let mut room = MOST;
        let mut want = |spec: &SandboxSpec, number: usize| {
            let number = number.min(MAX_POOL).min(room);
            room -= number;
            *wanted.entry(fixed_part(spec)).or_default() += number;
        };
        for template in self.templates.list().into_iter().filter(|template| template.pool > 0) {
            want(&template.spec, template.pool);
        }
        for (name, number) in &self.config.pools {
            match (self.templates.get(name), name.parse()) {
                (Ok(template), _) => want(&template.spec, *number),
                (Err(ControlError::NoTemplate { .. }), Ok(image)) => want(&SandboxSpec::of_image(image), *number),
                (Err(error), _) => tracing::warn!(pool = name, %error, "a pool can't be kept"),
            }
        }
        wanted
    }

    /// Keeps the pools filled, one sandbox at a time: what starts in it takes a core for half a second.
    pub(crate) async fn keep_pools(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let wanted = self.wanted();
            for id in self.pool.surplus(&wanted) {
                self.destroy_pooled(&id).await;
            }
            let Some((spec, wait)) = self.pool.lacking(&wanted) else {
                drop(timeout(LOOK, self.pool.taken.notified()).await);
                continue;
            };
            if !wait.is_zero() {
                // A sandbox taken in the meantime restarts the wait.
                drop(timeout(wait, self.pool.taken.notified()).await);
                continue;
            }
            match self.make_pooled(&spec).await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    tracing::warn!(image = %spec.image, %error, "a sandbox could not be made ahead; the next try is in {pause:?}");
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn make_pooled(&self, spec: &SandboxSpec) -> Result<(), ControlError> {
        let _operation = self.operation()?;
        // The same limits as for creates.
        let _turn = self.admission.admit(&*self.engine).await?;
        let id = self.engine.prepare(spec).await?;
        tracing::debug!(%id, image = %spec.image, "made a sandbox ahead");
        if let Err(id) = self.pool.add(spec.clone(), id) {
            self.destroy_pooled(&id).await;
        }
        Ok(())
    }

    /// Adds a sandbox that a create took and could not use.
    pub(crate) async fn return_to_pool(&self, entry: &Entry) {
        if let Err(id) = self.pool.add(fixed_part(&entry.sandbox().spec), entry.id.clone()) {
            self.destroy_pooled(&id).await;
        }
    }

    /// Removes a pooled sandbox that ended by itself.
    pub(crate) async fn drop_from_pool(&self, id: SandboxId) {
        if self.pool.remove(&id) {
            tracing::warn!(%id, "a sandbox that was made ahead has ended");
            self.destroy_pooled(&id).await;
            self.pool.taken.notify_one();
        }
    }

    async fn destroy_pooled(&self, id: &SandboxId) {
        if let Err(error) = self.engine.destroy(id).await {
            tracing::error!(%id, %error, "a sandbox that was made ahead could not be removed; the next start tries again");
        }
    }

    /// Destroys all pooled sandboxes. They were never used, so nothing is lost.
    pub(crate) async fn close_pools(&self) {
        let all = {
            let mut waiting = self.pool.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.sandboxes)
        };
        let mut removals = tokio::task::JoinSet::new();
        for (_, id) in all {
            let engine = Arc::clone(&self.engine);
            removals.spawn(async move {
                if let Err(error) = engine.destroy(&id).await {
                    tracing::error!(%id, %error, "a sandbox that was made ahead could not be removed; the next start tries again");
                }
            });
        }
        removals.join_all().await;
    }
}
