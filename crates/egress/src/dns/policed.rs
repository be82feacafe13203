//! The resolver of sandboxes with a policy.
//!
//! | question | answer |
//! | --- | --- |
//! | a name that the policy does not allow | no such name (NXDOMAIN): programs fail at once and try nothing else |
//! | A | addresses that may be reached, under the name of the question; they are remembered for the sandbox |
//! | AAAA | no record: sandboxes have no IPv6, and programs go on with A at once |
//! | HTTPS, SVCB, ANY | no record: without keys for encrypted ClientHellos and hints for QUIC, programs use plain TLS |
//! | others, such as TXT and SRV | the resolvers' answer, without the records beside it |
//!
//! An allowed name may lead to others by CNAME; only a name that a rule denies ends the chain. Names below an allowed wildcard are
//! asked as they are, so a sandbox can send data in them to the servers of that domain.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::message::{Query, Rcode, TYPE_A};
use super::{Answers, Lookup, LookupError, Transport};
use crate::events::{Draft, Events, Protocol};
use crate::owner::{Owners, SocketTransport};
use crate::policy::{Decision, Reason};
use crate::sandbox::{Sandbox, Sandboxes};

const PORT: u16 = 53;
const TYPE_AAAA: u16 = 28;
/// SVCB, HTTPS, and ANY.
const UNANSWERED: [u16; 3] = [64, 65, 255];

#[derive(Debug)]
pub(crate) struct PolicedAnswers {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) lookup: Arc<Lookup>,
    pub(crate) events: Arc<Events>,
    pub(crate) owners: Arc<Owners>,
}

impl Answers for PolicedAnswers {
    fn serves(&self, client: SocketAddr) -> bool {
        self.sandboxes.find(client.ip()).is_some()
    }

    async fn answer(&self, client: SocketAddr, query: &Query, transport: Transport) -> Vec<u8> {
        let Some(sandbox) = self.sandboxes.find(client.ip()) else {
            return query.failure(Rcode::Refused);
        };
        let Ok(name) = query.name() else {
            return query.failure(Rcode::NoSuchName);
        };
        let decision = if query.is_internet() { sandbox.decide_query(&name) } else { Decision::refused(Reason::NoRule) };
        if sandbox.secrets().is_some_and(|secrets| secrets.leaks_in_name(&name)) {
            // The rule says where it would have gone; the name has the value.
            let draft = Draft::new(sandbox.id(), Protocol::Dns, PORT);
            self.events.decided(&draft, &Decision { allowed: false, reason: Reason::SecretLeak, ..decision });
            return query.failure(Rcode::NoSuchName);
        }
        // Programs ask for both kinds of addresses at once; that is one event.
        let is_second = query.kind() == TYPE_AAAA || UNANSWERED.contains(&query.kind());
        if !decision.allowed {
            let transport = match transport {
                Transport::Udp => SocketTransport::Udp,
                Transport::Tcp => SocketTransport::Tcp,
            };
            let owner = self.owners.ask(&sandbox, transport, client, None);
            let draft = Draft { name: Some(&name), owner: Some(&owner), ..Draft::new(sandbox.id(), Protocol::Dns, PORT) };
            if is_second {
                self.events.refused_again(&draft, &decision);
            } else {
                self.events.decided(&draft, &decision);
            }
            owner.settle().await;
            return query.failure(Rcode::NoSuchName);
        }
        if is_second {
            return query.failure(Rcode::NoError);
        }
        if query.kind() == TYPE_A {
            return self.addresses(&sandbox, query, &name, decision).await;
        }
        self.note(&sandbox, &name, None, &decision);
        self.lookup.records(query).await.unwrap_or_else(|| query.failure(Rcode::ServerFailure))
    }
}

impl PolicedAnswers {
    async fn addresses(&self, sandbox: &Sandbox, query: &Query, name: &str, decision: Decision) -> Vec<u8> {
        let resolved = match self.lookup.addresses(name).await {
            Ok(resolved) => resolved,
            Err(error) => {
                let (reason, rcode) = match error {
                    LookupError::NoSuchName => (Reason::NoAddress, Rcode::NoSuchName),
                    LookupError::Failed => (Reason::NotResolved, Rcode::ServerFailure),
                };
                self.note(sandbox, name, None, &Decision { allowed: false, reason, ..decision });
                return query.failure(rcode);
            }
        };
        if let Some(denied) = resolved.aliases.iter().find_map(|alias| sandbox.policy().denies_name(alias)) {
            self.note(sandbox, name, None, &denied);
            return query.failure(Rcode::NoSuchName);
        }
        sandbox.remember(name, &resolved, Instant::now());
        let (address, decision) = match (resolved.addresses.first(), resolved.closed) {
            (Some(address), _) => (Some(*address), decision),
            (None, Some(closed)) => (Some(closed), Decision { allowed: false, reason: Reason::ClosedAddress, ..decision }),
            (None, None) => (None, decision),
        };
        self.note(sandbox, name, address, &decision);
        query.answer_addresses(&resolved.addresses, resolved.ttl)
    }

    fn note(&self, sandbox: &Sandbox, name: &str, address: Option<Ipv4Addr>, decision: &Decision) {
        let draft = Draft { name: Some(name), address: address.map(IpAddr::V4), ..Draft::new(sandbox.id(), Protocol::Dns, PORT) };
        self.events.decided(&draft, decision);
    }
}
