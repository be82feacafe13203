//! From what was seen to the smallest allowlist that allows it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use arenite_model::{NetworkRule, RuleProtocol};

use super::rule::MAX_PORTS;
use crate::Protocol;

/// A connection or request that was seen in the mode `observe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub name: Option<String>,
    pub address: Option<IpAddr>,
    pub port: u16,
    pub protocol: Protocol,
}

/// The smallest allowlist of what was observed: each name or address with the ports that were used, sorted. Names that were only
/// resolved are left out. Nothing is widened to a wildcard.
pub fn suggest(observed: &[Observed]) -> Vec<NetworkRule> {
    let mut hosts: BTreeMap<String, PortsByProtocol> = BTreeMap::new();
    for seen in observed {
        let Some((host, is_name)) = host(seen) else { continue };
        let ports = hosts.entry(host).or_default();
        match seen.protocol {
            // Neither reaches anything itself.
            Protocol::Dns | Protocol::Ssh => continue,
            Protocol::Udp => ports.udp.insert(seen.port),
            // The rule for a name without a protocol allows only what shows the name.
            Protocol::Tcp if is_name => ports.tcp.insert(seen.port),
            Protocol::Tcp | Protocol::Tls | Protocol::Http | Protocol::Https | Protocol::Postgres => {
                ports.plain.insert(seen.port)
            }
        };
    }
    let mut rules = Vec::new();
    for (host, PortsByProtocol { plain, tcp, udp }) in hosts {
        let plain: BTreeSet<u16> = plain.difference(&tcp).copied().collect();
        if plain.iter().eq(&[80, 443]) {
            rules.push(NetworkRule::Text(host.clone()));
        } else {
            write_rules(&mut rules, &host, &plain, None);
        }
        write_rules(&mut rules, &host, &tcp, Some(RuleProtocol::Tcp));
        write_rules(&mut rules, &host, &udp, Some(RuleProtocol::Udp));
    }
    rules
}

#[derive(Default)]
struct PortsByProtocol {
    plain: BTreeSet<u16>,
    tcp: BTreeSet<u16>,
    udp: BTreeSet<u16>,
}

fn write_rules(rules: &mut Vec<NetworkRule>, host: &str, ports: &BTreeSet<u16>, protocol: Option<RuleProtocol>) {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let protocol = protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
    for ports in ports.chunks(MAX_PORTS) {
        rules.push(NetworkRule::Text(format!("{host}:{}{protocol}", ports.join(","))));
    }
}

fn host(seen: &Observed) -> Option<(String, bool)> {
    match (&seen.name, seen.address) {
        (Some(name), _) => Some((name.clone(), true)),
        (None, Some(IpAddr::V4(address))) => Some((address.to_string(), false)),
        (None, Some(IpAddr::V6(address))) => Some((format!("[{address}]"), false)),
        (None, None) => None,
    }
}
