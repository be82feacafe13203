//! One rule: from what a user wrote to what is compared.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use arenite_model::{NetworkRule, RuleFields, RulePorts, RuleProtocol};
use ipnet::IpNet;

use super::Seen;
use super::path::PathPattern;
use crate::EgressError;
use crate::name::normalize_written;

/// Ports of UDP that a rule has to name: DNS, and QUIC.
const SPECIAL_UDP: [u16; 2] = [53, QUIC];
const QUIC: u16 = 443;
pub(super) const MAX_PORTS: usize = 64;
const MAX_METHODS: usize = 16;
const MAX_PATHS: usize = 64;
const MAX_PATH: usize = 512;
/// Longest rule as text; also what an error repeats.
const MAX_TEXT: usize = 1024;

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) text: Arc<str>,
    pub(super) target: RuleTarget,
    ports: Ports,
    pub(super) protocol: Option<RuleProtocol>,
    http: Option<Box<HttpConditions>>,
    is_deny: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RuleTarget {
    Name(Box<str>),
    /// All names that end in a dot and this name.
    Below(Box<str>),
    EveryName,
    Net(IpNet),
}

#[derive(Debug, PartialEq, Eq)]
enum Ports {
    Web,
    All,
    Ranges(Box<[(u16, u16)]>),
}

impl Ports {
    fn contains(&self, port: u16) -> bool {
        match self {
            Self::Web => matches!(port, 80 | 443),
            Self::All => true,
            Self::Ranges(ranges) => ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)),
        }
    }

    /// Whether the port is named by itself.
    fn names(&self, port: u16) -> bool {
        matches!(self, Self::Ranges(ranges) if ranges.contains(&(port, port)))
    }
}

#[derive(Debug)]
struct HttpConditions {
    methods: Vec<Box<str>>,
    paths: Vec<PathPattern>,
}

impl Rule {
    pub(super) fn parse(rule: &NetworkRule, is_deny: bool) -> Result<Self, EgressError> {
        let text = describe(rule);
        let parsed = match rule {
            NetworkRule::Text(text) => parse_text(text),
            NetworkRule::Fields(fields) => parse_fields(fields),
        };
        let parsed = parsed.and_then(|parsed| if text.len() > MAX_TEXT { Err("it is too long".to_owned()) } else { Ok(parsed) });
        match parsed {
            Ok(Parsed { target, ports, protocol, http }) => {
                let ports = ports.unwrap_or(if is_deny { Ports::All } else { Ports::Web });
                Ok(Self { text: text.into(), target, ports, protocol, http, is_deny })
            }
            Err(reason) => Err(EgressError::Rule { rule: text.chars().take(MAX_TEXT).collect(), reason }),
        }
    }

    pub(super) fn ports(&self) -> Vec<(u16, u16)> {
        match &self.ports {
            Ports::Web => vec![(80, 80), (443, 443)],
            Ports::All => vec![(0, u16::MAX)],
            Ports::Ranges(ranges) => ranges.to_vec(),
        }
    }

    pub(super) fn has_port(&self, port: u16, seen: Seen<'_>) -> bool {
        if seen == Seen::Udp && !self.is_deny { self.has_udp_port(port) } else { self.ports.contains(port) }
    }

    /// For any protocol.
    pub(super) fn has_any_port(&self, port: u16) -> bool {
        self.ports.contains(port)
    }

    fn has_udp_port(&self, port: u16) -> bool {
        match &self.ports {
            Ports::Web => false,
            // What QUIC says of its server is encrypted, so a name can't be compared.
            _ if port == QUIC && self.has_name() => false,
            ports if SPECIAL_UDP.contains(&port) => ports.names(port),
            ports => ports.contains(port),
        }
    }

    fn has_name(&self) -> bool {
        !matches!(self.target, RuleTarget::Net(_))
    }

    /// Whether it lets DNS of other resolvers pass.
    pub(super) fn allows_other_dns(&self) -> bool {
        self.protocol == Some(RuleProtocol::Udp) && self.has_udp_port(53)
    }

    /// Refuses a rule for UDP that would allow nothing.
    pub(super) fn check_udp(&self) -> Result<(), EgressError> {
        let reason = match (self.protocol, &self.ports) {
            (Some(RuleProtocol::Udp), _) if self.is_deny => return Ok(()),
            (Some(RuleProtocol::Udp), Ports::Web) => "rules for udp need ports, as in time.example.com:123/udp",
            (Some(RuleProtocol::Udp), ports) if ports.names(QUIC) && self.has_name() => {
                "in QUIC (UDP on port 443), no name is seen: write the server's address, or leave the rule out, and programs use TCP"
            }
            _ => return Ok(()),
        };
        Err(EgressError::Rule { rule: self.text.to_string(), reason: reason.to_owned() })
    }

    pub(super) fn has_protocol(&self, seen: Seen<'_>) -> bool {
        let is_net = matches!(self.target, RuleTarget::Net(_));
        let has_protocol = match (self.protocol, seen) {
            // Without a protocol, a name is allowed where it can be seen. A denied one is denied everywhere.
            (None, Seen::Tcp) => is_net || self.is_deny,
            (None, Seen::Udp) => self.is_deny,
            (None, Seen::Tls | Seen::EndedTls | Seen::Http { .. } | Seen::Https { .. } | Seen::Postgres) => true,
            (Some(RuleProtocol::Tcp), seen) => !matches!(seen, Seen::Udp),
            (Some(RuleProtocol::Udp), seen) => matches!(seen, Seen::Udp),
            (Some(RuleProtocol::Http), seen) => matches!(seen, Seen::Http { .. }),
            (Some(RuleProtocol::Https), seen) => matches!(seen, Seen::Tls | Seen::EndedTls | Seen::Https { .. }),
        };
        has_protocol
            && match (&self.http, seen) {
                (None, _) => true,
                (Some(http), Seen::Http { method, path } | Seen::Https { method, path }) => {
                    (http.methods.is_empty() || http.methods.iter().any(|m| **m == *method))
                        && (http.paths.is_empty() || http.paths.iter().any(|p| p.matches(path)))
                }
                // What can't be compared is not allowed.
                (Some(_), Seen::Tls) => self.is_deny,
                // Each request will be compared.
                (Some(_), Seen::EndedTls) => !self.is_deny,
                (Some(_), _) => false,
            }
    }

    /// Whether the rule is about all ports and protocols.
    pub(super) fn is_unconditional(&self) -> bool {
        self.ports == Ports::All && self.protocol.is_none() && self.http.is_none()
    }

    pub(super) fn has_paths(&self) -> bool {
        self.http.as_ref().is_some_and(|http| !http.paths.is_empty())
    }
}

/// A host of a secret: a name or the names below it, and ports.
#[derive(Debug)]
pub(crate) struct HostPattern {
    target: RuleTarget,
    ports: Ports,
}

impl HostPattern {
    /// `HOST[:PORTS]`. The error says what is wrong.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        let Parsed { target, ports, protocol, .. } = parse_text(text)?;
        if protocol.is_some() || !matches!(target, RuleTarget::Name(_) | RuleTarget::Below(_)) {
            return Err(format!("write a name, or *. and a name, with ports after a colon where they are not {default_port}"));
        }
        let default = || Ports::Ranges([(default_port, default_port)].into());
        Ok(Self { target, ports: ports.unwrap_or_else(default) })
    }

    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports.contains(port)
    }

    pub(crate) fn contains(&self, name: &str, port: u16) -> bool {
        let has_name = match &self.target {
            RuleTarget::Name(own) => **own == *name,
            RuleTarget::Below(own) => name.strip_suffix(&**own).is_some_and(|labels| labels.ends_with('.')),
            RuleTarget::EveryName | RuleTarget::Net(_) => false,
        };
        has_name && self.ports.contains(port)
    }
}

struct Parsed {
    target: RuleTarget,
    ports: Option<Ports>,
    protocol: Option<RuleProtocol>,
    http: Option<Box<HttpConditions>>,
}

/// `HOST[:PORTS][/PROTOCOL]`.
fn parse_text(text: &str) -> Result<Parsed, String> {
    if text.contains("://") {
        return Err("write the host without https:// and without a path".to_owned());
    }
    let (rest, protocol) = match text.rsplit_once('/') {
        Some((rest, end)) => match parse_protocol(end) {
            Some(protocol) => (rest, Some(protocol)),
            None => (text, None),
        },
        None => (text, None),
    };
    let (host, ports) = split_ports(rest)?;
    let ports = ports.map(|ports| ranges(ports.split(',').map(parse_range))).transpose()?;
    Ok(Parsed { target: parse_target(host)?, ports, protocol, http: None })
}

fn parse_fields(fields: &RuleFields) -> Result<Parsed, String> {
    let target = match (&fields.host, &fields.cidr) {
        (Some(host), None) => match parse_target(host)? {
            RuleTarget::Net(_) => return Err("addresses go into cidr, not into host".to_owned()),
            name => name,
        },
        (None, Some(cidr)) => {
            RuleTarget::Net(parse_net(cidr).ok_or_else(|| format!("{cidr:?} is neither an address nor a network"))?)
        }
        _ => return Err("it needs either host or cidr".to_owned()),
    };
    let one = |ports: &RulePorts| match ports {
        RulePorts::One(port) => parse_range(&port.to_string()),
        RulePorts::Range(text) => parse_range(text),
    };
    let ports = if fields.ports.is_empty() { None } else { Some(ranges(fields.ports.iter().map(one))?) };
    Ok(Parsed { target, ports, protocol: fields.protocol, http: parse_http(fields)? })
}

fn parse_http(fields: &RuleFields) -> Result<Option<Box<HttpConditions>>, String> {
    if fields.methods.is_empty() && fields.paths.is_empty() {
        return Ok(None);
    }
    if !matches!(fields.protocol, Some(RuleProtocol::Http | RuleProtocol::Https)) {
        return Err("methods and paths need the protocol http or https".to_owned());
    }
    if fields.methods.len() > MAX_METHODS || fields.paths.len() > MAX_PATHS {
        return Err(format!("it has more than {MAX_METHODS} methods or {MAX_PATHS} paths"));
    }
    let mut methods = Vec::new();
    for method in &fields.methods {
        if method.is_empty() || method.len() > 32 || !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
            return Err(format!("{method:?} is no method, such as GET"));
        }
        methods.push(method.to_ascii_uppercase().into());
    }
    if let Some(path) = fields.paths.iter().find(|path| !path.starts_with(['/', '*']) || path.len() > MAX_PATH) {
        return Err(format!("the path {path:?} does not start with / or is longer than {MAX_PATH} bytes"));
    }
    if let Some(path) = fields.paths.iter().find(|path| path.contains(['?', '#', '%'])) {
        return Err(format!("the path {path:?} is compared decoded and without a query: write it without ?, #, and %"));
    }
    let paths = fields.paths.iter().map(|path| PathPattern::new(path)).collect();
    Ok(Some(Box::new(HttpConditions { methods, paths })))
}

/// The host and the text of its ports. Brackets are around an IPv6 address with ports.
fn split_ports(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
        return match after.strip_prefix(':') {
            Some(ports) => Ok((host, Some(ports))),
            None if after.is_empty() => Ok((host, None)),
            None => Err("only :PORTS may follow the brackets".to_owned()),
        };
    }
    if parse_net(text).is_some() {
        return Ok((text, None));
    }
    Ok(match text.rsplit_once(':') {
        Some((host, ports)) => (host, Some(ports)),
        None => (text, None),
    })
}

fn parse_target(host: &str) -> Result<RuleTarget, String> {
    if host == "*" {
        return Ok(RuleTarget::EveryName);
    }
    if let Some(net) = parse_net(host) {
        return Ok(RuleTarget::Net(net));
    }
    if host.contains('/') {
        return Err(format!("{host:?} is no network, such as 192.0.2.0/24, and paths need an object with the field paths"));
    }
    let (name, is_below) = match host.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (host, false),
    };
    if name.contains('*') {
        return Err("a star stands alone or at the start, as in *.example.com".to_owned());
    }
    let name = normalize_written(name).map_err(|error| format!("{name:?} is no host name: {error}"))?.into();
    Ok(if is_below { RuleTarget::Below(name) } else { RuleTarget::Name(name) })
}

fn parse_net(text: &str) -> Option<IpNet> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Some(net.trunc());
    }
    text.parse::<IpAddr>().ok().map(|address| IpNet::from(address.to_canonical()))
}

fn parse_protocol(text: &str) -> Option<RuleProtocol> {
    [RuleProtocol::Tcp, RuleProtocol::Udp, RuleProtocol::Http, RuleProtocol::Https].into_iter().find(|p| p.as_str() == text)
}

fn parse_range(text: &str) -> Result<(u16, u16), String> {
    if text == "*" {
        return Ok((0, u16::MAX));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    // `parse` would take a sign.
    let port = |text: &str| if text.bytes().all(|b| b.is_ascii_digit()) { text.parse::<u16>().ok() } else { None };
    match (port(first), port(last)) {
        (Some(first), Some(last)) if 0 < first && first <= last => Ok((first, last)),
        _ => Err(format!("{text:?} is no port and no range of ports, such as 443 or 8000-8100")),
    }
}

fn ranges(parsed: impl Iterator<Item = Result<(u16, u16), String>>) -> Result<Ports, String> {
    let ranges = parsed.collect::<Result<Vec<_>, _>>()?;
    if ranges.len() > MAX_PORTS {
        return Err(format!("it has more than {MAX_PORTS} ports"));
    }
    if ranges.contains(&(0, u16::MAX)) { Ok(Ports::All) } else { Ok(Ports::Ranges(ranges.into())) }
}

/// The rule on one line, for events and messages.
fn describe(rule: &NetworkRule) -> String {
    let fields = match rule {
        NetworkRule::Text(text) => return text.clone(),
        NetworkRule::Fields(fields) => fields,
    };
    let mut text = fields.host.as_ref().or(fields.cidr.as_ref()).cloned().unwrap_or_default();
    let ports: Vec<String> = fields
        .ports
        .iter()
        .map(|ports| match ports {
            RulePorts::One(port) => port.to_string(),
            RulePorts::Range(range) => range.clone(),
        })
        .collect();
    if !ports.is_empty() {
        let _ = write!(text, ":{}", ports.join(","));
    }
    if let Some(protocol) = fields.protocol {
        let _ = write!(text, "/{protocol}");
    }
    for list in [&fields.methods, &fields.paths] {
        if !list.is_empty() {
            let _ = write!(text, " {}", list.join(","));
        }
    }
    text
}
