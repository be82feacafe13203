//! Addresses that the proxy never connects to, whatever a policy allows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use ipnet::IpNet;

/// The ranges that are closed to sandboxes: private networks, loopback, metadata services, the host, and other sandboxes.
#[derive(Debug, Clone, Default)]
pub struct ClosedRanges {
    /// The operator's denied ranges.
    pub denied: Vec<IpNet>,
    /// The operator's exceptions to `denied`.
    pub allowed: Vec<IpNet>,
    /// Closed without exception, such as the subnet of the sandboxes.
    pub always: Vec<IpNet>,
    /// Whether `allowed` also opens the host's own addresses. Servers leave this off.
    pub allow_own: bool,
}

impl ClosedRanges {
    /// Whether the address is closed. Mapped addresses count as the IPv4 addresses that they contain.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_in = |list: &[IpNet]| list.iter().any(|net| net.contains(&address));
        if is_in(&self.always) || is_no_host(address) {
            return true;
        }
        let is_allowed = is_in(&self.allowed);
        if is_in(&self.denied) && !is_allowed {
            return true;
        }
        // A host's public address leads to its services, past the rules for its neighbours.
        !(self.allow_own && is_allowed) && is_own(address)
    }
}

fn is_no_host(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Whether the address belongs to this host: the kernel sends to an own address from that address. No packet is sent.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let Ok(socket) = UdpSocket::bind((any, 0)) else {
        // Out of descriptors: closed, as nothing is known.
        return true;
    };
    // Without a route, it is no address of this host, and a connection fails by itself.
    socket.connect((address, 9)).is_ok() && socket.local_addr().is_ok_and(|own| own.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    fn contains(closed: &ClosedRanges, address: &str) -> bool {
        closed.contains(address.parse().unwrap())
    }

    #[test]
    fn only_the_operator_opens_ranges() {
        let closed = ClosedRanges {
            denied: nets(&["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/0"]),
            allowed: nets(&["10.1.0.0/16", "10.209.0.0/16"]),
            always: nets(&["10.209.0.0/16"]),
            allow_own: false,
        };
        for address in [
            "10.2.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "::1",
            "::ffff:10.2.0.1",
            "2001:db8::1",
            "10.209.0.7",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            assert!(contains(&closed, address), "{address}");
        }
        for address in ["10.1.0.1", "203.0.113.1", "::ffff:10.1.0.1"] {
            assert!(!contains(&closed, address), "{address}");
        }
    }

    #[test]
    fn the_hosts_own_addresses_are_closed() {
        // Nothing is denied, as for a public address of the host.
        assert!(contains(&ClosedRanges::default(), "127.0.0.1"));
        assert!(contains(&ClosedRanges { allowed: nets(&["127.0.0.0/8"]), ..ClosedRanges::default() }, "127.0.0.1"));
        let open = ClosedRanges { allowed: nets(&["127.0.0.0/8"]), allow_own: true, ..ClosedRanges::default() };
        assert!(!contains(&open, "127.0.0.1"));
    }
}
