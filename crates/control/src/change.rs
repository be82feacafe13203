//! Changes of a sandbox's labels and times, by request.
//!
//! ```text
//!  lock ──► is it there, in bounds, in this version? ──► row ──► engine's copy ──► readers, reaper, events
//! ```
//!
//! The reaper ends a lifetime under the same lock. So an extension comes before the end, or is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use arenite_model::{IdlePolicy, NetworkPolicy, SandboxName, SandboxState, SpecError};
use jiff::Timestamp;

use crate::children::over;
use crate::clock::later;
use crate::life::unfit;
use crate::registry::Entry;
use crate::secrets::observe_for_secrets;
use crate::tenants::{Principal, Quota, QuotaExceeded};
use crate::{Control, ControlError, Sandbox, memo};

/// Labels of one sandbox, and the bytes of a label's key and value together.
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 1024;

/// A change of a sandbox. Absent parts stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxChange {
    /// Labels to set; those without a value are removed.
    pub labels: BTreeMap<String, Option<String>>,
    pub timeout: Option<TimeoutChange>,
    /// In seconds; 0: never idle.
    pub idle_timeout_seconds: Option<u64>,
    pub idle_policy: Option<IdlePolicy>,
    /// In seconds; 0: a frozen sandbox stays frozen.
    pub disk_after_seconds: Option<u64>,
    pub disk_under_pressure: Option<bool>,
    /// None in it: all that an open network allows.
    pub network_policy: Option<Option<NetworkPolicy>>,
    /// Closes connections that the new policy refuses.
    pub close_open: bool,
    /// The versions that it may have before the change (see [`Sandbox::version`]); none: any.
    pub versions: Option<Vec<String>>,
}

/// A change of the end of a lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutChange {
    /// The lifetime from the creation on, in seconds; 0: unlimited.
    Lifetime(u64),
    /// The lifetime from now on, in seconds.
    FromNow(u64),
    /// The end itself.
    Until(Timestamp),
    /// Adds to the lifetime, in seconds. An unlimited one stays unlimited.
    Extend(u64),
}

impl SandboxChange {
    fn concerns_times(&self) -> bool {
        let idle = self.idle_timeout_seconds.is_some() || self.idle_policy.is_some();
        self.timeout.is_some() || idle || self.disk_after_seconds.is_some() || self.disk_under_pressure.is_some()
    }
}

/// Refuses labels that no sandbox may have.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), SpecError> {
    let invalid = |reason: String| Err(SpecError::Invalid { field: "labels", reason });
    if labels.len() > MAX_LABELS {
        return invalid(format!("give at most {MAX_LABELS}"));
    }
    match labels.iter().find(|(key, value)| key.is_empty() || key.len() + value.len() > MAX_LABEL_BYTES) {
        Some((key, _)) => {
            let key: String = key.chars().take(80).collect();
            invalid(format!("{key:?} is refused: a key is not empty, and with its value at most {MAX_LABEL_BYTES} bytes"))
        }
        None => Ok(()),
    }
}

impl Control {
    /// Changes the labels and times of a sandbox, which is neither woken nor started. Two extensions at once both count. A change of
    /// times counts as a use. A change to what it already is does nothing.
    ///
    /// # Errors
    /// [`ControlError::Changed`] if it has another version; [`ControlError::Expired`] at the end of its lifetime;
    /// [`ControlError::OutOfBounds`] if the caller would lose it; [`ControlError::Quota`] beyond the tenant's longest lifetime.
    pub async fn change(&self, caller: &Principal, name: &SandboxName, change: SandboxChange) -> Result<Sandbox, ControlError> {
        let operation = self.operation()?;
        let entry = self.find(&caller.tenant, name)?;
        let caller = caller.clone();
        self.detached(operation, |control| async move {
            let _change = entry.change.lock().await;
            control.still_there(&entry)?;
            control.change_locked(&entry, &caller, change).await
        })
        .await
    }

    async fn change_locked(&self, entry: &Entry, caller: &Principal, change: SandboxChange) -> Result<Sandbox, ControlError> {
        let before = entry.current();
        let name = || entry.name.clone();
        // Its labels may have changed since the caller found it.
        if !caller.sees(&before) {
            return Err(ControlError::NotFound { name: name() });
        }
        if matches!(before.state, SandboxState::Creating | SandboxState::Deleting) {
            return Err(unfit(&before, "changed"));
        }
        if change.versions.as_ref().is_some_and(|versions| !versions.contains(&before.version())) {
            return Err(ControlError::Changed { name: name(), version: before.version() });
        }
        let now = self.clock.now();
        if before.expires_at.is_some_and(|end| end <= now) {
            return Err(ControlError::Expired { name: name() });
        }
        let mut after = before.clone();
        if !change.labels.is_empty() {
            for (key, value) in &change.labels {
                match value {
                    Some(value) => after.spec.labels.insert(key.clone(), value.clone()),
                    None => after.spec.labels.remove(key),
                };
            }
            check_labels(&after.spec.labels)?;
            if caller.inside.is_none() && !caller.covers(Some(&entry.name), &after.spec.labels) {
                return Err(ControlError::OutOfBounds { name: name() });
            }
        }
        if let Some(timeout) = change.timeout {
            self.set_end(&mut after, timeout, caller, now)?;
        }
        if let Some(seconds) = change.idle_timeout_seconds {
            after.spec.idle_timeout_seconds = (seconds > 0).then_some(seconds);
        }
        if let Some(seconds) = change.disk_after_seconds {
            after.spec.disk_after_seconds = (seconds > 0).then_some(seconds);
        }
        after.spec.disk_under_pressure = change.disk_under_pressure.unwrap_or(after.spec.disk_under_pressure);
        after.spec.idle_policy = change.idle_policy.unwrap_or(after.spec.idle_policy);
        if let Some(policy) = &change.network_policy {
            if caller.inside.is_some() {
                return Err(ControlError::OutOfBounds { name: name() });
            }
            after.spec.network_policy.clone_from(policy);
            observe_for_secrets(&mut after.spec);
            self.check_network_policy(&after.spec)?;
        }
        self.check_pauses_of(&after.spec)?;
        if change.concerns_times() {
            // Else a change could be acknowledged, and an idle sandbox be gone right after.
            entry.used_at(now);
            after.last_used_at = entry.last_used();
        }
        if after.spec == before.spec && after.expires_at == before.expires_at {
            self.reconsider(entry);
            return Ok(after);
        }
        after.revision += 1;
        if let Err(error) = self.store.update(&after).await {
            // A database may write a failed update later, and its last one counts.
            let _ = self.store.update(&before).await;
            return Err(ControlError::store("remember a change of a sandbox")(error));
        }
        if after.spec.network_policy != before.spec.network_policy {
            let set = async {
                let spec = self.spec_for_engine(&after)?;
                Ok::<_, ControlError>(self.engine.set_network_policy(&entry.id, &spec, change.close_open).await?)
            };
            if let Err(error) = set.await {
                let _ = self.store.update(&before).await;
                return Err(error);
            }
        }
        if let Err(error) = self.engine.update_row(&memo::row(&after)).await {
            // The next start compares the two.
            tracing::warn!(id = %entry.id, %error, "the engine's copy of a sandbox's row could not be changed");
        }
        self.show(entry, after.clone());
        tracing::info!(id = %entry.id, name = %entry.name, revision = after.revision, "changed a sandbox");
        Ok(after)
    }

    /// Sets the end of a lifetime, within what the tenant and the budgets above may have.
    fn set_end(
        &self,
        sandbox: &mut Sandbox,
        timeout: TimeoutChange,
        caller: &Principal,
        now: Timestamp,
    ) -> Result<(), ControlError> {
        let (created_at, before) = (sandbox.created_at, sandbox.expires_at);
        let after = |seconds| later(created_at, Duration::from_secs(seconds));
        let mut end = match timeout {
            TimeoutChange::Lifetime(seconds) => (seconds > 0).then(|| after(seconds)),
            TimeoutChange::FromNow(seconds) => Some(later(now, Duration::from_secs(seconds))),
            // Rows have whole microseconds.
            TimeoutChange::Until(end) => Some(Timestamp::from_microsecond(end.as_microsecond()).unwrap_or(end)),
            TimeoutChange::Extend(seconds) => before.map(|before| later(before, Duration::from_secs(seconds))),
        };
        if end == before {
            return Ok(());
        }
        // After a limit was lowered, a sandbox keeps the lifetime that it has.
        let is_beyond = |end: Timestamp, limit| end > after(limit) && before.is_none_or(|before| end > before);
        if let Some(limit) = self.tenant_limits(&sandbox.tenant).max_timeout_seconds {
            if let Some(end) = end.filter(|end| is_beyond(*end, limit)) {
                let requested = seconds_between(created_at, end);
                return Err(QuotaExceeded { quota: Quota::MaxTimeoutSeconds, limit, used: 0, requested }.into());
            }
            end = end.or(Some(before.map_or(after(limit), |before| before.max(after(limit)))));
        }
        // A budget binds the agent that creates with it, and nobody above.
        if caller.inside.is_some()
            && let Some(limit) = self.child_lifetime(sandbox)?
            && end.is_none_or(|end| is_beyond(end, limit))
        {
            return Err(over("seconds of life", limit, 0, end.map_or(u64::MAX, |end| seconds_between(created_at, end))));
        }
        if let Some(end) = end.filter(|end| *end <= now) {
            let reason = format!("its lifetime would have ended at {end}, and it is {now}");
            return Err(SpecError::Invalid { field: "timeout", reason }.into());
        }
        sandbox.expires_at = end;
        sandbox.spec.timeout_seconds = end.map(|end| seconds_between(created_at, end));
        Ok(())
    }
}

/// Whole seconds, rounded up.
fn seconds_between(start: Timestamp, end: Timestamp) -> u64 {
    let time = end.duration_since(start);
    time.as_secs().unsigned_abs() + u64::from(time.subsec_nanos() > 0)
}
