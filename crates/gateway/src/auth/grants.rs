//! Tickets and sessions: random secrets that replace credentials for a limited time. They are only in memory: a new server
//! knows none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arenite_control::tenants::Principal;
use arenite_model::ErrorCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::digest;
use crate::guard::{Host, HostKind};
use crate::refusal::Refusal;

/// The most of a kind at a time; beyond this, the one that expires first is removed.
const MOST: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct Grant {
    /// It ends when the principal's key does.
    pub(crate) principal: Arc<Principal>,
    pub(crate) until: Instant,
    pub(crate) scope: Scope,
    /// When the credential behind the grant expires; none: never. Nothing derived from the grant lasts longer.
    pub(crate) maker_until: Option<Instant>,
    /// It is a ticket, or was derived from one.
    pub(crate) by_ticket: bool,
}

/// The hosts on which a grant is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All names of the server itself, which have the same routes. No sandbox host is among them.
    Server,
    /// One host, with its port.
    Host(String),
}

impl Scope {
    /// The hosts with exactly the rights of this one.
    pub(crate) fn from_host(host: &Host) -> Self {
        match host.kind {
            HostKind::Server => Self::Server,
            HostKind::Sandbox(_) | HostKind::Preview { .. } => Self::Host(host.authority.clone()),
        }
    }

    fn covers(&self, host: &Host) -> bool {
        match self {
            Self::Server => host.kind == HostKind::Server,
            Self::Host(authority) => *authority == host.authority,
        }
    }
}

/// Grants of one kind, by their digests.
#[derive(Default)]
pub(crate) struct Grants {
    held: Mutex<HashMap<[u8; 32], Grant>>,
}

impl Grants {
    fn held(&self) -> MutexGuard<'_, HashMap<[u8; 32], Grant>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues a new secret for the grant.
    pub(crate) fn issue(&self, grant: Grant) -> Result<String, Refusal> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|error| Refusal::new(ErrorCode::Internal, format!("the host has no random bytes: {error}")))?;
        let word = URL_SAFE_NO_PAD.encode(random);
        let mut held = self.held();
        if held.len() >= MOST {
            let now = Instant::now();
            held.retain(|_, grant| grant.until > now);
        }
        if held.len() >= MOST {
            let first = held.iter().min_by_key(|(_, grant)| grant.until).map(|(word, _)| *word);
            first.and_then(|word| held.remove(&word));
        }
        held.insert(digest(&word), grant);
        Ok(word)
    }

    /// The grant of a secret on this host. A secret can be used any number of times.
    pub(crate) fn find(&self, word: &str, host: &Host) -> Option<Grant> {
        let held = self.held();
        held.get(&digest(word)).filter(|grant| grant.until > Instant::now() && grant.scope.covers(host)).cloned()
    }

    pub(crate) fn revoke(&self, word: &str) {
        self.held().remove(&digest(word));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn grant(seconds: u64, scope: Scope) -> Grant {
        let until = Instant::now() + Duration::from_secs(seconds);
        Grant { principal: Arc::new(Principal::operator()), until, scope, maker_until: None, by_ticket: false }
    }

    fn host(authority: &str, kind: HostKind) -> Host {
        Host { authority: authority.to_owned(), kind }
    }

    #[test]
    fn a_word_is_good_for_its_time_and_its_hosts() {
        let server = host("localhost:8080", HostKind::Server);
        let address = host("127.0.0.1:8080", HostKind::Server);
        let own = host("sabcdefghijk.localhost:8080", HostKind::Sandbox("sabcdefghijk".parse().unwrap()));
        let preview = host("3000-sabcdefghijk.localhost:8080", HostKind::Preview { port: 3000, id: None });
        let grants = Grants::default();
        let of_server = grants.issue(grant(60, Scope::from_host(&server))).unwrap();
        let of_own = grants.issue(grant(60, Scope::from_host(&own))).unwrap();
        let of_address = grants.issue(grant(60, Scope::Host(address.authority.clone()))).unwrap();
        for (word, wanted) in [
            (&of_server, [true, true, false, false]),
            (&of_own, [false, false, true, false]),
            (&of_address, [false, true, false, false]),
            (&of_server[1..].to_owned(), [false; 4]),
            (&String::new(), [false; 4]),
        ] {
            let found = [&server, &address, &own, &preview].map(|host| grants.find(word, host).is_some());
            assert_eq!(found, wanted);
        }
        let over = grants.issue(grant(0, Scope::Server)).unwrap();
        assert!(grants.find(&over, &server).is_none());
        grants.revoke(&of_server);
        assert!(grants.find(&of_server, &server).is_none());
    }

    #[test]
    fn there_is_a_most() {
        let server = host("localhost", HostKind::Server);
        let grants = Grants::default();
        let first = grants.issue(grant(10, Scope::Server)).unwrap();
        for _ in 1..MOST {
            grants.issue(grant(100, Scope::Server)).unwrap();
        }
        assert!(grants.find(&first, &server).is_some());
        let last = grants.issue(grant(100, Scope::Server)).unwrap();
        assert!(grants.find(&first, &server).is_none() && grants.find(&last, &server).is_some());
        assert_eq!(grants.held().len(), MOST);
    }
}
