//! Configuration of sandboxes' networks.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};

/// Ranges that sandboxes can't reach under `open`: this host, private and shared networks, metadata services, and all that is
/// not a unicast address. The documentation ranges are not included on purpose: nothing of value is there, and closed build
/// networks put their package mirrors on them.
pub const DENIED: &[(&str, &str)] = &[
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by carriers"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "a cloud's host service"),
    ("169.254.0.0/16", "link-local, metadata services"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarks"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved, broadcast"),
    ("::/0", "all of IPv6"),
];

/// The host's names in sandboxes, if the operator opens ports.
pub const HOST_NAMES: [&str; 2] = ["host.docker.internal", "host.arenite.internal"];

/// Settings of sandboxes' networks.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// A /16 for the sandboxes' addresses; none: the first unused one of 10.209.0.0/16 to 10.240.0.0/16.
    pub subnet: Option<Ipv4Net>,
    /// Ranges that sandboxes can't reach. IPv6 is never reachable.
    pub denied: Vec<IpNet>,
    /// Exceptions to `denied`. The host itself and other sandboxes stay closed.
    pub allowed: Vec<IpNet>,
    /// TCP ports of the host's 127.0.0.1 that sandboxes reach at [`HOST_NAMES`].
    pub host_ports: Vec<u16>,
    /// The DNS resolvers; none: the host's `/etc/resolv.conf`, read again when it changes.
    pub resolvers: Option<Vec<SocketAddr>>,
    /// PEM file of certificates of servers that the egress proxy trusts, in addition to the host's.
    pub extra_ca: Option<PathBuf>,
    /// 4 to 6 lower-case letters and digits, unique to the data directory: the mark of all objects on the host.
    pub tag: String,
}

impl Default for NetworkConfig {
    /// [`DENIED`], the host's resolvers, and no tag: the caller must set it.
    fn default() -> Self {
        Self {
            subnet: None,
            denied: DENIED.iter().map(|(net, _)| net.parse().expect("the list holds networks")).collect(),
            allowed: Vec::new(),
            host_ports: Vec::new(),
            extra_ca: None,
            resolvers: None,
            tag: String::new(),
        }
    }
}
