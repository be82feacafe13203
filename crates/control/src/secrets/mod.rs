//! Secrets of tenants: values that their sandboxes use and never have.
//!
//! ```text
//!  PUT secrets/api ──► encrypted ──► a record of the store ──┐
//!  create: env {"KEY": "{{secret:api}}"}                     │ decrypted when a sandbox starts, and when the secret changes
//!      └──► KEY=arsec_… (a placeholder) in the sandbox       ▼
//!                  └──── in a request ────► egress proxy: puts the value in
//! ```
//!
//! Values are encrypted in the store, in memory only in the egress proxy and on their way there, and can't be read again. SSH keys never
//! go there: this server signs with them. Each change
//! is in effect in running sandboxes when it returns, on this node; other nodes follow with their next renewal.

mod keys;
mod ssh;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, RwLock};

use arenite_engine::{BoundSecret, EngineError, check_policy};
use arenite_model::{
    NetworkMode, NetworkPolicy, NetworkRule, PolicyMode, SandboxId, SandboxSpec, SandboxState, SecretBinding, SecretName,
    SecretPlace, SecretText, SpecError, TenantId,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::keys::{Keys, Sealed};
pub use self::keys::{SecretKeySource, new_key};
pub(crate) use self::ssh::add_socket;
use self::ssh::{check_env, check_host_keys, check_key, check_places, is_ssh};
use crate::registry::Entry;
use crate::store::{Record, RecordId, RecordKind};
use crate::{Control, ControlError};

/// The most secrets of a tenant, of a sandbox, and the most hosts of a secret.
const MAX_OF_TENANT: usize = 256;
const MAX_OF_SANDBOX: usize = 32;
const MAX_HOSTS: usize = 32;
const WHAT: &str = "secrets of this tenant";
/// The shortest and the longest value, in bytes. In answers, shorter values could not be told from other text.
const VALUE_BYTES: std::ops::RangeInclusive<usize> = 8..=8 << 10;
/// The most bytes of all values of a sandbox: the egress proxy keeps each in several encodings.
const MAX_BYTES_OF_SANDBOX: usize = 32 << 10;
/// The most placeholders that a sandbox has from those that it is a fork of, for each secret. The oldest are dropped.
const MAX_INHERITED: usize = 16;
/// A reference in a value of the environment: `{{secret:NAME}}`.
const OPEN: &str = "{{secret:";
const CLOSE: &str = "}}";
const PLACEHOLDER: &str = "arsec_";

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub name: SecretName,
    /// The servers that get it: names, with `*.` for those below, and perhaps ports. Empty: none; this server alone uses it.
    pub hosts: Vec<String>,
    pub places: Vec<SecretPlace>,
    /// For SSH: lines with the keys of the servers. With one or more, only logins to servers with these keys are signed.
    pub host_keys: Vec<String>,
    pub created_at: Timestamp,
    /// When its value was set.
    pub rotated_at: Timestamp,
}

/// A change of a secret. What is absent stays; a new secret needs a value.
#[derive(Debug, Clone, Default)]
pub struct SetSecret {
    pub value: Option<SecretText>,
    pub hosts: Option<Vec<String>>,
    pub places: Option<Vec<SecretPlace>>,
    pub host_keys: Option<Vec<String>>,
}

/// The value of a record.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    sealed: Sealed,
    /// The size of the value.
    bytes: usize,
    hosts: Vec<String>,
    places: Vec<SecretPlace>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    host_keys: Vec<String>,
    created_at: Timestamp,
    rotated_at: Timestamp,
}

/// What this server keeps of secrets in memory.
#[derive(Default)]
pub(crate) struct Secrets {
    keys: RwLock<Option<Arc<Keys>>>,
    /// Held while the store and what is bound change.
    change: tokio::sync::Mutex<()>,
}

impl Stored {
    fn shown(self, name: SecretName) -> Secret {
        let Self { hosts, places, host_keys, created_at, rotated_at, .. } = self;
        Secret { name, hosts, places, host_keys, created_at, rotated_at }
    }
}

fn record_id(tenant: &TenantId, name: &SecretName) -> RecordId {
    RecordId { kind: RecordKind::Secret, tenant: tenant.clone(), key: name.to_string() }
}

/// What a ciphertext is bound to, so that rows can't be exchanged.
fn context(id: &RecordId) -> String {
    format!("{}/{}", id.tenant, id.key)
}

fn invalid(reason: impl Into<String>) -> ControlError {
    ControlError::InvalidSecret { reason: reason.into() }
}

fn check_value(value: &str, places: &[SecretPlace]) -> Result<(), ControlError> {
    if !VALUE_BYTES.contains(&value.len()) {
        return Err(invalid(format!("a value has {} to {} bytes", VALUE_BYTES.start(), VALUE_BYTES.end())));
    }
    if is_ssh(places) {
        return check_key(value);
    }
    if value.contains(char::is_control) {
        return Err(invalid("a value has no control characters and no line breaks, since it is put into headers"));
    }
    Ok(())
}

/// Hosts are names with `*.` before them or ports behind them, as in rules of network policies.
fn check_hosts(hosts: &[String]) -> Result<(), ControlError> {
    if hosts.len() > MAX_HOSTS {
        return Err(invalid(format!("give at most {MAX_HOSTS} hosts")));
    }
    for host in hosts {
        let name = host.split(':').next().unwrap_or_default();
        let is_address = name.parse::<Ipv4Addr>().is_ok() || host.starts_with('[') || host.matches(':').count() > 1;
        if host.contains('/') || is_address || name.trim_start_matches("*.").is_empty() || name == "*" {
            return Err(invalid(format!("{host:?} is not a host name, such as api.example.com or *.example.com:8443")));
        }
    }
    let rules = hosts.iter().map(|host| NetworkRule::Text(host.clone())).collect();
    let policy = NetworkPolicy { allow: rules, ..NetworkPolicy::default() };
    Ok(check_policy(&policy).map_err(EngineError::from)?)
}

impl Control {
    /// A tenant's secrets, by name.
    pub async fn secrets(&self, tenant: &TenantId) -> Result<Vec<Secret>, ControlError> {
        let unread = ControlError::store("read the secrets");
        let records = self.store.records_of(RecordKind::Secret, tenant).await.map_err(&unread)?;
        let mut secrets = Vec::with_capacity(records.len());
        for record in records {
            let name = record.parse_key().map_err(&unread)?;
            secrets.push(record.parse::<Stored>().map_err(&unread)?.shown(name));
        }
        secrets.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(secrets)
    }

    pub async fn secret(&self, tenant: &TenantId, name: &SecretName) -> Result<Secret, ControlError> {
        Ok(self.stored_secret(tenant, name).await?.shown(name.clone()))
    }

    /// A secret's value, for a request that this server makes for the tenant.
    pub async fn secret_value(&self, tenant: &TenantId, name: &SecretName) -> Result<SecretText, ControlError> {
        let stored = self.stored_secret(tenant, name).await?;
        if is_ssh(&stored.places) {
            return Err(invalid(format!("the secret {name} is an SSH key, which is never sent")));
        }
        self.open_secret(&record_id(tenant, name), &stored).await
    }

    /// Creates a secret, or changes it. A new value is in effect when this returns: the next request of each sandbox has it.
    pub async fn set_secret(&self, tenant: &TenantId, name: SecretName, set: SetSecret) -> Result<Secret, ControlError> {
        if let Some(hosts) = &set.hosts {
            check_hosts(hosts)?;
        }
        if set.places.as_ref().is_some_and(Vec::is_empty) {
            return Err(invalid("give at least one place: header, query, body, postgres, or ssh"));
        }
        let tenant = tenant.clone();
        self.detached(self.operation()?, |control| async move {
            let _change = control.secrets.change.lock().await;
            let id = record_id(&tenant, &name);
            let known = match control.stored_secret(&tenant, &name).await {
                Err(ControlError::NoSecret { .. }) => None,
                known => Some(known?),
            };
            let now = control.clock.now();
            let failed = ControlError::store("remember a secret");
            if known.is_none() {
                let count = control.store.count_records(RecordKind::Secret, &tenant).await.map_err(&failed)?;
                if count >= MAX_OF_TENANT as u64 {
                    return Err(ControlError::TooMany { what: WHAT, most: MAX_OF_TENANT });
                }
            }
            let mut places = match (set.places, &known) {
                (Some(places), _) => places,
                (None, Some(known)) => known.places.clone(),
                (None, None) => vec![SecretPlace::Header],
            };
            places.sort();
            places.dedup();
            check_places(&places, known.as_ref().map(|known| &*known.places))?;
            if let Some(value) = &set.value {
                check_value(value.as_str(), &places)?;
            }
            let (sealed, bytes, rotated_at) = match (&set.value, &known) {
                (Some(value), _) => {
                    let bytes = value.as_str().len();
                    control.check_room(&tenant, &name, bytes).await?;
                    let keys = control.secret_keys(None, true).await?;
                    (keys.seal(&context(&id), value.as_str()), bytes, now)
                }
                (None, Some(known)) => (known.sealed.clone(), known.bytes, known.rotated_at),
                (None, None) => return Err(invalid("a new secret needs a value")),
            };
            let hosts = set.hosts.or_else(|| known.as_ref().map(|known| known.hosts.clone()));
            let hosts = hosts.unwrap_or_default();
            let host_keys = set.host_keys.or_else(|| known.as_ref().map(|known| known.host_keys.clone())).unwrap_or_default();
            check_host_keys(&host_keys, &hosts, &places)?;
            let created_at = known.map_or(now, |known| known.created_at);
            let stored = Stored { sealed, bytes, hosts, places, host_keys, created_at, rotated_at };
            let value = crate::store::to_json(&stored).map_err(&failed)?;
            control.store.put_record(Record { id, value, expires_at: None }).await.map_err(&failed)?;
            control.renew_secret(&tenant, &name, None).await?;
            Ok(stored.shown(name))
        })
        .await
    }

    /// Removes a secret. Requests with its placeholders are refused when this returns.
    pub async fn remove_secret(&self, tenant: &TenantId, name: &SecretName) -> Result<(), ControlError> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.detached(self.operation()?, |control| async move {
            let _change = control.secrets.change.lock().await;
            let removed = control.stored_secret(&tenant, &name).await?;
            let forgotten = control.store.remove_record(&record_id(&tenant, &name)).await;
            forgotten.map_err(ControlError::store("forget a secret"))?;
            control.renew_secret(&tenant, &name, Some(removed)).await
        })
        .await
    }

    /// Removes all secrets of a tenant, before the tenant is removed.
    pub async fn remove_secrets_of(&self, tenant: &TenantId) -> Result<(), ControlError> {
        for secret in self.secrets(tenant).await? {
            match self.remove_secret(tenant, &secret.name).await {
                Ok(()) | Err(ControlError::NoSecret { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the keys again, and encrypts the secrets of all tenants with the first one. Returns how many were encrypted with another.
    pub async fn reencrypt_secrets(&self) -> Result<u64, ControlError> {
        self.detached(self.operation()?, |control| async move {
            let _change = control.secrets.change.lock().await;
            *control.secrets.keys.write().unwrap_or_else(PoisonError::into_inner) = None;
            let keys = control.secret_keys(None, false).await?;
            let failed = ControlError::store("remember a secret");
            let mut changed = 0;
            for record in control.store.records(RecordKind::Secret).await.map_err(&failed)? {
                let stored = record.parse::<Stored>().map_err(&failed)?;
                if stored.sealed.key == keys.current() {
                    continue;
                }
                let value = control.open_secret(&record.id, &stored).await?;
                let stored = Stored { sealed: keys.seal(&context(&record.id), value.as_str()), ..stored };
                let value = crate::store::to_json(&stored).map_err(&failed)?;
                control.store.put_record(Record { value, ..record }).await.map_err(&failed)?;
                changed += 1;
            }
            Ok(changed)
        })
        .await
    }

    /// Refuses a value that is too long for a sandbox that has it.
    async fn check_room(&self, tenant: &TenantId, name: &SecretName, bytes: usize) -> Result<(), ControlError> {
        let has = |entry: &Entry, spec: &SandboxSpec| {
            entry.tenant == *tenant && spec.secrets.iter().any(|binding| binding.name == *name)
        };
        for (entry, spec) in self.with_secrets(has) {
            let mut sum = bytes;
            for other in spec.secrets.iter().filter(|binding| binding.name != *name) {
                sum += self.stored_secret(tenant, &other.name).await.map_or(0, |stored| stored.bytes);
            }
            if sum > MAX_BYTES_OF_SANDBOX {
                return Err(invalid(format!(
                    "the values of sandbox {} would have {sum} bytes, and all of one have at most {MAX_BYTES_OF_SANDBOX}",
                    entry.name
                )));
            }
        }
        Ok(())
    }

    async fn stored_secret(&self, tenant: &TenantId, name: &SecretName) -> Result<Stored, ControlError> {
        let unread = ControlError::store("read a secret");
        let record = self.store.record(&record_id(tenant, name)).await.map_err(&unread)?;
        let record = record.ok_or_else(|| ControlError::NoSecret { name: name.clone() })?;
        record.parse::<Stored>().map_err(unread)
    }

    async fn open_secret(&self, id: &RecordId, stored: &Stored) -> Result<SecretText, ControlError> {
        let keys = self.secret_keys(Some(&stored.sealed.key), false).await?;
        let value = keys.open(&context(id), &stored.sealed);
        let value = value.ok_or_else(|| ControlError::SecretKeys {
            reason: format!("none of the keys decrypts the secret {:?} of the tenant {}", id.key, id.tenant),
        })?;
        Ok(SecretText::from(value.as_str().to_owned()))
    }

    /// The keys, read again if the wanted one is not among them: the file may have changed.
    async fn secret_keys(&self, wanted: Option<&str>, create: bool) -> Result<Arc<Keys>, ControlError> {
        let known = self.secrets.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(keys) = known.filter(|keys| wanted.is_none_or(|id| keys.has(id))) {
            return Ok(keys);
        }
        let source = &self.config.secret_keys;
        if *source == SecretKeySource::DataDir && self.nodes_store().is_some() {
            let reason = "the nodes of a cluster need the same keys for secrets; give each the option --secret-key-file or --secret-key-command";
            return Err(ControlError::SecretKeys { reason: reason.to_owned() });
        }
        let read = source.read(&self.config.data_dir, create).await;
        let keys = read.map_err(|reason| ControlError::SecretKeys { reason })?;
        *self.secrets.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&keys));
        Ok(keys)
    }

    /// Gives a new sandbox placeholders for its secrets, and for those that its environment refers to. With secrets, its
    /// connections need the egress proxy: without a policy, it gets one that observes. `parent` may pass on its own secrets only.
    pub(crate) async fn bind_secrets(
        &self,
        tenant: &TenantId,
        parent: Option<&SandboxId>,
        spec: &mut SandboxSpec,
    ) -> Result<(), ControlError> {
        let mut wanted: BTreeSet<SecretName> = spec.secrets.iter().map(|binding| binding.name.clone()).collect();
        let mut referred = BTreeSet::new();
        for value in spec.env.values() {
            referred.extend(references(value)?);
        }
        wanted.extend(referred.iter().cloned());
        if wanted.is_empty() {
            return Ok(());
        }
        let refuse = |reason: String| -> Result<(), ControlError> { Err(SpecError::Invalid { field: "secrets", reason }.into()) };
        if wanted.len() > MAX_OF_SANDBOX {
            return refuse(format!("a sandbox has at most {MAX_OF_SANDBOX} secrets"));
        }
        if spec.network != NetworkMode::Open {
            return refuse("a sandbox without a network has no use for secrets".to_owned());
        }
        let entry = parent.and_then(|id| self.registry().by_id(id).cloned());
        let (mut bytes, mut ssh) = (0, BTreeSet::new());
        let passed_on = entry.map(|entry| entry.sandbox().spec.secrets.clone());
        for name in &wanted {
            if parent.is_some() && !passed_on.iter().flatten().any(|binding| binding.name == *name) {
                // As for one that does not exist: an agent learns no names.
                return Err(ControlError::NoSecret { name: name.clone() });
            }
            let stored = self.stored_secret(tenant, name).await?;
            bytes += stored.bytes;
            if is_ssh(&stored.places) {
                if referred.contains(name) {
                    return refuse(format!(
                        "the secret {name} is an SSH key, which no variable can have; name it in secrets, and programs use it by the agent"
                    ));
                }
                ssh.insert(name.clone());
            }
            if stored.hosts.is_empty() {
                return refuse(format!("the secret {name} has no hosts; set them with: arenite secret set {name} --host HOST"));
            }
        }
        if bytes > MAX_BYTES_OF_SANDBOX {
            return refuse(format!(
                "their values have {bytes} bytes, and those of a sandbox have at most {MAX_BYTES_OF_SANDBOX}"
            ));
        }
        let bindings = std::mem::take(&mut spec.secrets);
        let bind = |name| if ssh.contains(&name) { bind_ssh(name) } else { bind(name, &bindings) };
        spec.secrets = wanted.into_iter().map(bind).collect();
        check_env(spec)?;
        observe_for_secrets(spec);
        self.check_network_policy(spec)?;
        for value in spec.env.values_mut() {
            for binding in spec.secrets.iter().filter(|binding| !binding.ssh) {
                *value = value.replace(&format!("{OPEN}{}{CLOSE}", binding.name), &binding.placeholder);
                for inherited in &binding.inherited {
                    *value = value.replace(inherited, &binding.placeholder);
                }
            }
        }
        // Placeholders are longer than some references.
        Ok(spec.check()?)
    }

    /// Gives the engine the values for a sandbox that starts.
    pub(crate) async fn pass_secrets(&self, entry: &Entry, spec: &SandboxSpec) -> Result<(), ControlError> {
        if spec.secrets.is_empty() {
            return Ok(());
        }
        self.pass_secrets_with(entry, spec, None).await
    }

    /// `removed`: a secret that has just been removed, so that requests to its hosts are still recognised.
    async fn pass_secrets_with(
        &self,
        entry: &Entry,
        spec: &SandboxSpec,
        removed: Option<(&SecretName, &Stored)>,
    ) -> Result<(), ControlError> {
        let mut bound = Vec::with_capacity(spec.secrets.len());
        for binding in spec.secrets.iter().filter(|binding| !binding.ssh) {
            let stored = match self.stored_secret(&entry.tenant, &binding.name).await {
                // The name may be that of another secret now.
                Ok(stored) => Some(stored).filter(|stored| !is_ssh(&stored.places)),
                Err(ControlError::NoSecret { .. }) => None,
                Err(error) => return Err(error),
            };
            let value = match &stored {
                Some(stored) => self.open_secret(&record_id(&entry.tenant, &binding.name), stored).await?,
                None => SecretText::from(String::new()),
            };
            let removed = removed.filter(|(name, _)| **name == binding.name).map(|(_, stored)| stored);
            let (hosts, places) =
                stored.as_ref().or(removed).map_or_else(Default::default, |s| (s.hosts.clone(), s.places.clone()));
            let placeholders = std::iter::once(&binding.placeholder).chain(&binding.inherited).cloned().collect();
            bound.push(BoundSecret { name: binding.name.to_string(), placeholders, value, hosts, places });
        }
        Ok(self.engine.set_secrets(&entry.id, bound).await?)
    }

    /// Passes a secret that has changed to the sandboxes here that have it.
    async fn renew_secret(&self, tenant: &TenantId, name: &SecretName, removed: Option<Stored>) -> Result<(), ControlError> {
        let removed = removed.as_ref().map(|stored| (name, stored));
        for (entry, spec) in
            self.with_secrets(|entry, spec| entry.tenant == *tenant && spec.secrets.iter().any(|binding| binding.name == *name))
        {
            self.pass_secrets_with(&entry, &spec, removed).await?;
        }
        Ok(())
    }

    /// Passes all secrets to the sandboxes here: after a start of the server, and when another node has changed some.
    pub(crate) async fn pass_all_secrets(&self) -> Result<(), ControlError> {
        let _change = self.secrets.change.lock().await;
        for (entry, spec) in self.with_secrets(|_, _| true) {
            // One that can't be decrypted stays without a value; the others go on.
            if let Err(error) = self.pass_secrets(&entry, &spec).await {
                tracing::error!(id = %entry.id, %error, "the secrets of a sandbox could not be passed to the egress proxy");
            }
        }
        Ok(())
    }

    fn with_secrets(&self, wanted: impl Fn(&Entry, &SandboxSpec) -> bool) -> Vec<(Arc<Entry>, SandboxSpec)> {
        let entries: Vec<Arc<Entry>> = self.registry().all().cloned().collect();
        let of_entry = |entry: Arc<Entry>| {
            let sandbox = entry.sandbox();
            let is_wanted = sandbox.state != SandboxState::Deleting && !sandbox.spec.secrets.is_empty();
            (is_wanted && wanted(&entry, &sandbox.spec)).then(|| (entry, sandbox.spec.clone()))
        };
        entries.into_iter().filter_map(of_entry).collect()
    }
}

/// The connections of a sandbox with secrets need the egress proxy: an open network becomes one that it observes.
pub(crate) fn observe_for_secrets(spec: &mut SandboxSpec) {
    if !spec.secrets.is_empty() && spec.network_policy.is_none() {
        spec.network_policy = Some(NetworkPolicy { mode: PolicyMode::Observe, ..NetworkPolicy::default() });
    }
}

/// The names that a value of the environment refers to.
fn references(value: &str) -> Result<Vec<SecretName>, ControlError> {
    let mut names = Vec::new();
    let mut rest = value;
    while let Some((_, after)) = rest.split_once(OPEN) {
        let Some((name, after)) = after.split_once(CLOSE) else {
            let reason = format!("a reference to a secret ends with {CLOSE}: {OPEN}NAME{CLOSE}");
            return Err(SpecError::Invalid { field: "env", reason }.into());
        };
        names.push(name.parse()?);
        rest = after;
    }
    Ok(names)
}

/// A new placeholder, with those of the sandbox that it is a fork of.
fn bind(name: SecretName, of_parent: &[SecretBinding]) -> SecretBinding {
    let parent = of_parent.iter().find(|binding| binding.name == name);
    let earlier = |parent: &SecretBinding| parent.inherited.iter().chain([&parent.placeholder]).cloned().collect::<Vec<_>>();
    let mut inherited = parent.map_or_else(Vec::new, earlier);
    // One from a request has none yet.
    inherited.retain(|placeholder| !placeholder.is_empty());
    inherited.drain(..inherited.len().saturating_sub(MAX_INHERITED));
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the kernel's random source answers");
    SecretBinding { name, placeholder: format!("{PLACEHOLDER}{}", hex::encode(random)), inherited, ssh: false }
}

fn bind_ssh(name: SecretName) -> SecretBinding {
    SecretBinding { name, placeholder: String::new(), inherited: Vec::new(), ssh: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_found_anywhere_in_a_value() {
        let names = |value| references(value).map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(names("plain {{ text }} {secret:a}").unwrap(), Vec::<String>::new());
        assert_eq!(names("{{secret:a}}").unwrap(), ["a"]);
        assert_eq!(names("https://{{secret:USER_1}}:{{secret:b-2}}@x").unwrap(), ["USER_1", "b-2"]);
        for bad in ["{{secret:a", "{{secret:}}", "{{secret:a b}}", "{{secret:a/b}}"] {
            assert!(names(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_fork_has_its_own_placeholder_and_those_before() {
        let name: SecretName = "api".parse().unwrap();
        let parent = bind(name.clone(), &[]);
        let child = bind(name.clone(), std::slice::from_ref(&parent));
        let grandchild = bind(name.clone(), std::slice::from_ref(&child));
        assert!(parent.inherited.is_empty() && child.placeholder != parent.placeholder);
        assert_eq!(grandchild.inherited, [parent.placeholder.clone(), child.placeholder]);
        assert!(bind("other".parse().unwrap(), &[parent]).inherited.is_empty());
        let late = (0..40).fold(grandchild, |before, _| bind(name.clone(), &[before]));
        assert_eq!(late.inherited.len(), MAX_INHERITED);
    }

    #[test]
    fn values_fit_into_headers() {
        let check_value = |value: &str| check_value(value, &[SecretPlace::Header]);
        check_value("sk-0123456789").unwrap();
        for bad in ["", "short", "line\nbreak-and-more", "a\0-and-more-text", &"x".repeat((8 << 10) + 1)] {
            assert!(check_value(bad).is_err(), "{bad:?}");
        }
    }
}
