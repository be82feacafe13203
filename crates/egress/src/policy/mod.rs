//! Policies, compiled so that a decision costs a few lookups for each label of a name, however many rules there are.

mod path;
mod rule;
mod suggest;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use arenite_model::{NetworkPolicy, PolicyMode, RuleProtocol};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub(crate) use self::path::plain_path;
pub(crate) use self::rule::HostPattern;
use self::rule::{Rule, RuleTarget};
pub use self::suggest::{Observed, suggest};
use crate::EgressError;

/// Maximum number of rules of any policy. Users have [`NetworkPolicy::MAX_RULES`].
const MAX_RULES: usize = 10_000;

/// What a connection leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A name as [`normalize_name`](crate::normalize_name) gives it.
    Name(&'a str),
    Address(IpAddr),
}

/// What is spoken on a connection, as far as the proxy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// TLS that is passed on as it is.
    Tls,
    /// TLS that the proxy ends; each of its requests is decided on later.
    EndedTls,
    Http {
        method: &'a str,
        path: &'a str,
    },
    /// A request in TLS that the proxy ended.
    Https {
        method: &'a str,
        path: &'a str,
    },
    /// Postgres, of which the proxy does the login. The server proves its name by TLS.
    Postgres,
    /// Something else, or not known yet.
    Tcp,
    Udp,
}

/// Why something is allowed or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A rule of `allow` has it.
    Rule,
    /// The policy only observes.
    Observe,
    /// A rule of `deny` has it.
    Denied,
    /// No rule of `allow` has it.
    NoRule,
    /// The floor refuses it: a rule of its `deny` has it, or none of its `allow`.
    Floor,
    /// The address is private, of the host, or closed by the operator in another way.
    ClosedAddress,
    /// The name has no address that may be reached.
    NoAddress,
    /// The resolvers did not answer.
    NotResolved,
    /// No connection to the address could be made.
    NotConnected,
    /// TLS without a name (SNI).
    NoName,
    /// The first message of TLS is malformed or too long.
    MalformedTls,
    /// The request of HTTP has no single, valid host, or one that does not fit the connection.
    MalformedHttp,
    /// The path has parts that servers read in different ways, and a rule has paths.
    AmbiguousPath,
    /// A request to use the server as a proxy.
    Connect,
    /// Neither TLS nor HTTP, and no rule for `tcp` has a name at this address.
    UnknownProtocol,
    /// The client sent nothing in time.
    Silent,
    /// The sender has no policy.
    UnknownSandbox,
    /// Too many connections.
    TooMany,
    /// The client did not complete the handshake of TLS that the proxy ends, for example because it does not trust the sandbox's
    /// certificate authority.
    ClientHandshake,
    /// The host of a request is not the server name of its TLS connection.
    HostMismatch,
    /// A placeholder is where its secret may not be.
    SecretMisplaced,
    /// The secret of a placeholder has no value any more.
    SecretRevoked,
    /// The value of a secret would leave by another way.
    SecretLeak,
    /// The server's certificate is not valid.
    InvalidCertificate,
    /// The server of a secret offers no TLS.
    ServerWithoutTls,
    /// The connection does not start as Postgres' protocol does.
    MalformedPostgres,
    /// The Postgres server asks for an authentication without a password, or answers in another way than its protocol says.
    ServerLogin,
    /// The server encoded its answer, so that it can't be searched for values of secrets.
    EncodedAnswer,
    /// A key of the sandbox's secrets signed the login.
    Signed,
    /// What was to be signed is no login by this key.
    NoLogin,
    /// The client did not prove that it logs in to a server of the secret.
    WrongHost,
    /// Another host asked for the signature, over a forwarded connection to the agent.
    Forwarded,
}

impl Reason {
    /// A sentence part for people, such as `no rule allows it`.
    pub fn text(self) -> &'static str {
        match self {
            Self::Rule => "a rule allows it",
            Self::Observe => "the policy only observes",
            Self::Denied => "a rule denies it",
            Self::NoRule => "no rule allows it",
            Self::Floor => "the floor of its tenant does not allow it",
            Self::ClosedAddress => "the address is in a range that is closed to sandboxes",
            Self::NoAddress => "the name has no address that sandboxes may reach",
            Self::NotResolved => "the name could not be resolved",
            Self::NotConnected => "the address did not accept a connection",
            Self::NoName => "the TLS connection names no server",
            Self::MalformedTls => "the TLS handshake is malformed",
            Self::MalformedHttp => "the request does not name one valid host that fits the connection",
            Self::AmbiguousPath => "the path is ambiguous",
            Self::Connect => "CONNECT is not allowed",
            Self::UnknownProtocol => "the protocol names no server",
            Self::Silent => "the client sent nothing",
            Self::UnknownSandbox => "the sender has no policy",
            Self::TooMany => "the sandbox has too many connections",
            Self::ClientHandshake => "the client did not complete the TLS handshake",
            Self::HostMismatch => "the request's host is not the server name of its TLS connection",
            Self::SecretMisplaced => "a secret is where it may not be",
            Self::SecretRevoked => "a secret was revoked",
            Self::SecretLeak => "it has the value of a secret that is not for it",
            Self::InvalidCertificate => "the server's certificate is not valid",
            Self::ServerWithoutTls => "the server offers no TLS",
            Self::MalformedPostgres => "the connection does not start as Postgres' protocol does",
            Self::ServerLogin => "the server asks for a login that is not supported",
            Self::EncodedAnswer => "the server's answer is encoded, although this was not asked for",
            Self::Signed => "a key of a secret signed the login",
            Self::NoLogin => "what was to be signed is no login by this key",
            Self::WrongHost => "the client did not prove that the server is one of the secret",
            Self::Forwarded => "another host asked for the signature",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What a policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// The rule that decided, as its author wrote it.
    pub rule: Option<Arc<str>>,
    pub reason: Reason,
}

impl Decision {
    pub(crate) fn refused(reason: Reason) -> Self {
        Self { allowed: false, rule: None, reason }
    }

    fn by_rule(allowed: bool, rule: &Rule) -> Self {
        let reason = if allowed { Reason::Rule } else { Reason::Denied };
        Self { allowed, rule: Some(rule.text.clone()), reason }
    }

    /// Whether it is refused because no rule has it. A rule for another target of the same connection may.
    pub(crate) fn lacks_rule(&self) -> bool {
        !self.allowed && self.rule.is_none() && matches!(self.reason, Reason::NoRule | Reason::Floor)
    }

    /// Whether a rule of `deny` has it.
    pub(crate) fn is_denied(&self) -> bool {
        !self.allowed && self.rule.is_some() && matches!(self.reason, Reason::Denied | Reason::Floor)
    }

    /// What passes both policies. A denial comes first: it ends the search for another target, which a missing rule does not.
    fn under(self, floor: Option<Self>) -> Self {
        match floor {
            Some(floor) if !floor.allowed && (floor.is_denied() || !self.is_denied()) => Self { reason: Reason::Floor, ..floor },
            _ => self,
        }
    }
}

/// A policy that is ready for decisions.
#[derive(Debug)]
pub struct CompiledPolicy {
    mode: PolicyMode,
    allow: RuleIndex,
    deny: RuleIndex,
    /// Ports of rules that have a name and the protocol `tcp`, without overlaps.
    named_tcp: Box<[(u16, u16)]>,
    /// The same for `udp`.
    named_udp: Box<[(u16, u16)]>,
    /// Another policy that has to allow everything, too.
    floor: Option<Box<Self>>,
}

impl CompiledPolicy {
    /// Checks and compiles what a user wrote. The error names the rule.
    pub fn compile(policy: &NetworkPolicy) -> Result<Self, EgressError> {
        let count = policy.rule_count();
        if count > MAX_RULES {
            return Err(EgressError::TooManyRules { count, most: MAX_RULES });
        }
        let index = |rules: &[arenite_model::NetworkRule], is_deny| {
            let parsed = rules.iter().map(|rule| Rule::parse(rule, is_deny)).collect::<Result<Vec<_>, _>>()?;
            Ok::<_, EgressError>(RuleIndex::new(parsed))
        };
        let allow = index(&policy.allow, false)?;
        let [named_tcp, named_udp] = [RuleProtocol::Tcp, RuleProtocol::Udp].map(|protocol| allow.named_ports(protocol));
        Ok(Self { mode: policy.mode, allow, deny: index(&policy.deny, true)?, named_tcp, named_udp, floor: None })
    }

    /// Refuses rules that can be compiled and would allow nothing.
    pub fn check(&self) -> Result<(), EgressError> {
        self.allow.rules.iter().try_for_each(Rule::check_udp)
    }

    /// Whether queries to other resolvers than the sandbox's own may pass. Then those that don't are refused, not answered.
    pub fn allows_other_dns(&self) -> bool {
        self.mode == PolicyMode::Allowlist && self.allow.rules.iter().any(Rule::allows_other_dns)
    }

    /// The same policy, which allows nothing that the floor refuses.
    pub fn with_floor(self, floor: Option<&NetworkPolicy>) -> Result<Self, EgressError> {
        let floor = floor.map(Self::compile).transpose()?.map(Box::new);
        Ok(Self { floor, ..self })
    }

    /// Whether it, or its floor, lets pass what no rule has. Then the names of connections count.
    pub fn observes(&self) -> bool {
        self.mode == PolicyMode::Observe || self.floor().is_some_and(Self::observes)
    }

    fn floor(&self) -> Option<&Self> {
        self.floor.as_deref()
    }

    /// Whether a connection or request is allowed.
    pub fn decide(&self, target: Target<'_>, port: u16, seen: Seen<'_>) -> Decision {
        let mut own = self.decide_alone(target, port, seen);
        // A policy that observes does so over TCP. As a floor, it leaves UDP to the policy above it.
        if seen == Seen::Udp && own.reason == Reason::Observe {
            own = Decision::refused(Reason::NoRule);
        }
        own.under(self.floor().map(|floor| floor.decide_alone(target, port, seen)))
    }

    fn decide_alone(&self, target: Target<'_>, port: u16, seen: Seen<'_>) -> Decision {
        let matches = |rule: &&Rule| rule.has_port(port, seen) && rule.has_protocol(seen);
        if let Some(rule) = self.deny.find(target, matches) {
            return Decision::by_rule(false, rule);
        }
        if let Some(rule) = self.allow.find(target, matches) {
            return Decision::by_rule(true, rule);
        }
        self.without_rule()
    }

    /// Whether names may be resolved: a rule allows the name with any port and protocol, and none denies all of it.
    pub fn decide_query(&self, name: &str) -> Decision {
        self.decide_query_alone(name).under(self.floor().map(|floor| floor.decide_query(name)))
    }

    fn decide_query_alone(&self, name: &str) -> Decision {
        if let Some(rule) = self.deny.find(Target::Name(name), |rule| rule.is_unconditional()) {
            return Decision::by_rule(false, rule);
        }
        if let Some(rule) = self.allow.find(Target::Name(name), |_| true) {
            return Decision::by_rule(true, rule);
        }
        self.without_rule()
    }

    /// The refusal of a name that is denied as a whole.
    pub(crate) fn denies_name(&self, name: &str) -> Option<Decision> {
        let of_floor = self.floor().and_then(|floor| floor.denies_name(name));
        let own = self.deny.find(Target::Name(name), |rule| rule.is_unconditional());
        Self::denial(own, of_floor)
    }

    /// The refusal of an address, to which an allowed name leads.
    pub(crate) fn denies_address(&self, address: IpAddr, port: u16, seen: Seen<'_>) -> Option<Decision> {
        let of_floor = self.floor().and_then(|floor| floor.denies_address(address, port, seen));
        let own = self.deny.find(Target::Address(address), |rule| rule.has_port(port, seen) && rule.has_protocol(seen));
        Self::denial(own, of_floor)
    }

    fn denial(own: Option<&Rule>, of_floor: Option<Decision>) -> Option<Decision> {
        let of_floor = of_floor.map(|denied| Decision { reason: Reason::Floor, ..denied });
        of_floor.or_else(|| own.map(|rule| Decision::by_rule(false, rule)))
    }

    /// Whether connections to this port may speak a protocol in which the proxy sees no name.
    pub(crate) fn has_named_tcp(&self, port: u16) -> bool {
        self.named_tcp.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Whether a rule for UDP on this port has a name.
    pub(crate) fn has_named_udp(&self, port: u16) -> bool {
        self.named_udp.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Whether rules for this name depend on paths, so that an ambiguous path can't be decided.
    pub(crate) fn compares_paths(&self, target: Target<'_>, port: u16) -> bool {
        let compares = |index: &&RuleIndex| index.find(target, |rule| rule.has_any_port(port) && rule.has_paths()).is_some();
        [&self.allow, &self.deny].iter().any(compares) || self.floor().is_some_and(|floor| floor.compares_paths(target, port))
    }

    fn without_rule(&self) -> Decision {
        match self.mode {
            PolicyMode::Allowlist => Decision::refused(Reason::NoRule),
            PolicyMode::Observe => Decision { allowed: true, rule: None, reason: Reason::Observe },
        }
    }
}

/// Rules by their targets. Where several match, the most exact target decides, then the order of the rules.
#[derive(Debug, Default)]
struct RuleIndex {
    rules: Vec<Rule>,
    /// By the whole name.
    exact: HashMap<Box<str>, Vec<u32>>,
    /// By what follows `*.`.
    below: HashMap<Box<str>, Vec<u32>>,
    every_name: Vec<u32>,
    nets: HashMap<IpNet, Vec<u32>>,
    /// The lengths of prefixes in `nets`, longest first: of IPv4, and of IPv6.
    prefixes: [Vec<u8>; 2],
}

impl RuleIndex {
    fn new(rules: Vec<Rule>) -> Self {
        let mut index = Self::default();
        for (number, rule) in (0..).zip(&rules) {
            match &rule.target {
                RuleTarget::Name(name) => index.exact.entry(name.clone()).or_default().push(number),
                RuleTarget::Below(name) => index.below.entry(name.clone()).or_default().push(number),
                RuleTarget::EveryName => index.every_name.push(number),
                RuleTarget::Net(net) => {
                    index.nets.entry(*net).or_default().push(number);
                    index.prefixes[usize::from(net.addr().is_ipv6())].push(net.prefix_len());
                }
            }
        }
        for lengths in &mut index.prefixes {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        index.rules = rules;
        index
    }

    fn named_ports(&self, protocol: RuleProtocol) -> Box<[(u16, u16)]> {
        let is_named = |rule: &&Rule| !matches!(rule.target, RuleTarget::Net(_)) && rule.protocol == Some(protocol);
        let mut ranges: Vec<(u16, u16)> = self.rules.iter().filter(is_named).flat_map(Rule::ports).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, merged| {
            let overlaps = next.0 <= merged.1.saturating_add(1);
            if overlaps {
                merged.1 = merged.1.max(next.1);
            }
            overlaps
        });
        ranges.into()
    }

    fn find(&self, target: Target<'_>, matches: impl Fn(&&Rule) -> bool) -> Option<&Rule> {
        let first = |numbers: &[u32]| numbers.iter().map(|number| &self.rules[*number as usize]).find(|rule| matches(rule));
        match target {
            Target::Name(name) => {
                if let Some(rule) = self.exact.get(name).and_then(|numbers| first(numbers)) {
                    return Some(rule);
                }
                let mut rest = name;
                while let Some((_, parent)) = rest.split_once('.') {
                    if let Some(rule) = self.below.get(parent).and_then(|numbers| first(numbers)) {
                        return Some(rule);
                    }
                    rest = parent;
                }
                first(&self.every_name)
            }
            Target::Address(address) => {
                let address = address.to_canonical();
                self.prefixes[usize::from(address.is_ipv6())].iter().find_map(|length| {
                    let net = IpNet::new(address, *length).ok()?.trunc();
                    first(self.nets.get(&net)?)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
