//! The sandboxes that have a policy, by their addresses, and their connections.
//!
//! A policy is replaced under the same lock under which connections are admitted. So a connection is either admitted by the
//! earlier policy, and then open when the new one comes, or decided by the new one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use tokio::sync::Notify;

use crate::dns::Resolved;
use crate::names::Names;
use crate::policy::{CompiledPolicy, Decision, Reason, Seen, Target};
use crate::secrets::SandboxSecrets;

/// Maximum number of concurrent connections of a sandbox.
const MAX_CONNECTIONS: usize = 1_024;

/// All sandboxes with a policy.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes {
    table: RwLock<HashMap<IpAddr, Arc<Sandbox>>>,
}

/// One sandbox at one address.
#[derive(Debug)]
pub(crate) struct Sandbox {
    id: Arc<str>,
    state: Mutex<State>,
    names: Mutex<Names>,
}

#[derive(Debug)]
struct State {
    policy: Arc<CompiledPolicy>,
    secrets: Option<Arc<SandboxSecrets>>,
    is_gone: bool,
    open: HashMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    admitted: Option<Admission>,
    /// The secret that its login used.
    secret: Option<Arc<str>>,
    close: Arc<Notify>,
}

/// What a connection does, so that another policy can decide on it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    /// None: the address alone is known.
    pub(crate) name: Option<Arc<str>>,
    /// To which the proxy is connected.
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) spoken: Spoken,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spoken {
    Tls,
    Http {
        method: Box<str>,
        path: Box<str>,
    },
    /// In TLS that the proxy ended.
    Https {
        method: Box<str>,
        path: Box<str>,
    },
    Postgres,
    Tcp,
    Udp,
}

impl Admission {
    pub(crate) fn target(&self) -> Target<'_> {
        self.name.as_deref().map_or(Target::Address(self.address), Target::Name)
    }

    pub(crate) fn decide(&self, policy: &CompiledPolicy) -> Decision {
        let seen = match &self.spoken {
            Spoken::Tls => Seen::Tls,
            Spoken::Tcp => Seen::Tcp,
            Spoken::Postgres => Seen::Postgres,
            Spoken::Udp => Seen::Udp,
            Spoken::Http { method, path } => Seen::Http { method, path },
            Spoken::Https { method, path } => Seen::Https { method, path },
        };
        let decision = policy.decide(self.target(), self.port, seen);
        if decision.allowed
            && let Some(denied) = policy.denies_address(self.address, self.port, seen)
        {
            return denied;
        }
        decision
    }
}

impl Sandboxes {
    pub(crate) fn find(&self, address: IpAddr) -> Option<Arc<Sandbox>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(&address.to_canonical()).cloned()
    }

    /// Gives the sandbox at an address its policy and its secrets. Another sandbox that had the address is removed. With
    /// `close_open`, connections are closed that the new policy refuses.
    pub(crate) fn set(
        &self,
        address: IpAddr,
        id: &str,
        policy: CompiledPolicy,
        secrets: Option<Arc<SandboxSecrets>>,
        close_open: bool,
    ) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let policy = Arc::new(policy);
        let known = table.get(&address.to_canonical()).filter(|known| *known.id == *id);
        match known {
            Some(known) => known.replace(policy, secrets, close_open),
            None => {
                let state = State { policy, secrets, is_gone: false, open: HashMap::new() };
                let new = Sandbox { id: id.into(), state: Mutex::new(state), names: Mutex::default() };
                if let Some(old) = table.insert(address.to_canonical(), Arc::new(new)) {
                    old.close();
                }
            }
        }
    }

    /// Closes the connections of the sandbox at an address and forgets it.
    pub(crate) fn remove(&self, address: IpAddr) {
        let removed = self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&address.to_canonical());
        if let Some(removed) = removed {
            removed.close();
        }
    }
}

impl Sandbox {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn shared_id(&self) -> Arc<str> {
        self.id.clone()
    }

    pub(crate) fn policy(&self) -> Arc<CompiledPolicy> {
        self.state().policy.clone()
    }

    /// None if it has none.
    pub(crate) fn secrets(&self) -> Option<Arc<SandboxSecrets>> {
        self.state().secrets.clone()
    }

    /// Whether these are still the secrets.
    pub(crate) fn has_secrets(&self, secrets: Option<&Arc<SandboxSecrets>>) -> bool {
        self.state().secrets.as_ref().map(Arc::as_ptr) == secrets.map(Arc::as_ptr)
    }

    pub(crate) fn decide_query(&self, name: &str) -> Decision {
        self.policy().decide_query(name)
    }

    pub(crate) fn remember(&self, name: &str, resolved: &Resolved, now: Instant) {
        self.names().insert(name, &resolved.addresses, resolved.ttl, now);
    }

    pub(crate) fn addresses_of(&self, name: &str) -> Option<Vec<Ipv4Addr>> {
        self.names().addresses_of(name, Instant::now())
    }

    /// The names that the resolver gave this address for.
    pub(crate) fn names_of(&self, address: IpAddr) -> Vec<Arc<str>> {
        match address.to_canonical() {
            IpAddr::V4(address) => self.names().names_of(address, Instant::now()),
            IpAddr::V6(_) => Vec::new(),
        }
    }

    /// The names that it once gave this address for, as far as they are remembered.
    pub(crate) fn earlier_names_of(&self, address: IpAddr) -> Vec<Arc<str>> {
        match address.to_canonical() {
            IpAddr::V4(address) => self.names().earlier_names_of(address).to_vec(),
            IpAddr::V6(_) => Vec::new(),
        }
    }

    /// Registers a connection. None at the limit, or if the sandbox is gone.
    pub(crate) fn open(self: &Arc<Self>) -> Option<OpenConnection> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let mut state = self.state();
        if state.is_gone || state.open.len() >= MAX_CONNECTIONS {
            return None;
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let close = Arc::new(Notify::new());
        state.open.insert(number, Open { admitted: None, secret: None, close: close.clone() });
        Some(OpenConnection { sandbox: self.clone(), number, close })
    }

    fn replace(&self, policy: Arc<CompiledPolicy>, secrets: Option<Arc<SandboxSecrets>>, close_open: bool) {
        let mut state = self.state();
        state.policy = policy;
        state.secrets = secrets;
        for open in state.open.values() {
            let Some(admitted) = &open.admitted else { continue };
            // Nothing ends a flow of UDP, so a flow must not outlive its permission.
            let is_refused = || (close_open || admitted.spoken == Spoken::Udp) && !admitted.decide(&state.policy).allowed;
            if open.is_revoked(admitted, state.secrets.as_deref()) || is_refused() {
                open.close.notify_one();
            }
        }
    }

    fn close(&self) {
        let mut state = self.state();
        state.is_gone = true;
        state.open.values().for_each(|open| open.close.notify_one());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Whether its login used a secret that is no longer for its host.
    fn is_revoked(&self, admitted: &Admission, secrets: Option<&SandboxSecrets>) -> bool {
        self.secret.as_deref().is_some_and(|secret| {
            let name = admitted.name.as_deref().unwrap_or_default();
            !secrets.is_some_and(|secrets| secrets.still_logs_in(secret, name, admitted.port))
        })
    }
}

/// A registered connection; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) number: u64,
    close: Arc<Notify>,
}

impl OpenConnection {
    /// The decision that counts, by the policy of this moment. Bytes are passed on only after it.
    pub(crate) fn admit(&self, admission: Admission) -> Decision {
        self.admit_under(&mut self.sandbox.state(), admission)
    }

    /// The same for a login with a secret. It is refused if the secrets are no longer those that it was made with.
    pub(crate) fn admit_login(&self, admission: Admission, secrets: &Arc<SandboxSecrets>, secret: Option<&str>) -> Decision {
        let mut state = self.sandbox.state();
        if state.secrets.as_ref().map(Arc::as_ptr) != Some(Arc::as_ptr(secrets)) {
            return Decision::refused(Reason::SecretRevoked);
        }
        let decision = self.admit_under(&mut state, admission);
        if decision.allowed
            && let Some(open) = state.open.get_mut(&self.number)
        {
            open.secret = secret.map(Into::into);
        }
        decision
    }

    fn admit_under(&self, state: &mut State, admission: Admission) -> Decision {
        if state.is_gone {
            return Decision::refused(Reason::UnknownSandbox);
        }
        let decision = admission.decide(&state.policy);
        if decision.allowed
            && let Some(open) = state.open.get_mut(&self.number)
        {
            open.admitted = Some(admission);
        }
        decision
    }

    /// Ends when a new policy refuses what the connection does, its secret is revoked, or the sandbox is gone. For one waiter.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.sandbox.state().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &str) -> CompiledPolicy {
        let policy = serde_json::from_str(&format!(r#"{{"allow": {allow}}}"#)).unwrap();
        CompiledPolicy::compile(&policy).unwrap()
    }

    fn tls(name: &str) -> Admission {
        Admission { name: Some(name.into()), address: "192.0.2.1".parse().unwrap(), port: 443, spoken: Spoken::Tls }
    }

    async fn is_closed(connection: &OpenConnection) -> bool {
        tokio::time::timeout(std::time::Duration::ZERO, connection.closed()).await.is_ok()
    }

    #[tokio::test]
    async fn a_new_policy_closes_what_it_refuses() {
        let sandboxes = Sandboxes::default();
        let address: IpAddr = "10.209.0.7".parse().unwrap();
        sandboxes.set(address, "one", policy(r#"["a.example", "b.example"]"#), None, false);
        let sandbox = sandboxes.find(address).unwrap();
        let [a, b] = ["a.example", "b.example"].map(|name| {
            let connection = sandbox.open().unwrap();
            assert!(connection.admit(tls(name)).allowed);
            connection
        });
        sandboxes.set(address, "one", policy(r#"["a.example"]"#), None, false);
        assert!(!is_closed(&b).await, "open connections stay");
        assert!(!b.admit(tls("b.example")).allowed, "new ones are refused");
        sandboxes.set(address, "one", policy(r#"["a.example"]"#), None, true);
        assert!(!is_closed(&a).await);
        assert!(is_closed(&b).await);
        sandboxes.set(address, "two", policy(r#"["a.example"]"#), None, false);
        assert!(is_closed(&a).await, "another sandbox has the address");
        assert!(!a.admit(tls("a.example")).allowed);
        assert!(sandbox.open().is_none());
        assert_eq!(sandboxes.find(address).unwrap().id(), "two");
    }

    #[tokio::test]
    async fn connections_are_bounded() {
        let sandboxes = Sandboxes::default();
        let address: IpAddr = "10.209.0.7".parse().unwrap();
        sandboxes.set(address, "one", policy("[]"), None, false);
        let sandbox = sandboxes.find(address).unwrap();
        let mut open: Vec<_> = (0..MAX_CONNECTIONS).map(|_| sandbox.open().unwrap()).collect();
        assert!(sandbox.open().is_none());
        open.pop();
        assert!(sandbox.open().is_some());
    }

    #[test]
    fn a_denied_address_is_denied_by_any_name() {
        let policy = serde_json::from_str(r#"{"allow": ["*"], "deny": ["192.0.2.0/24"]}"#).unwrap();
        let decision = tls("a.example").decide(&CompiledPolicy::compile(&policy).unwrap());
        assert_eq!((decision.allowed, decision.rule.as_deref()), (false, Some("192.0.2.0/24")));
    }
}
