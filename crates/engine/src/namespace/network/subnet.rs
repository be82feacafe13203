//! Selection of an installation's subnet.
//!
//! Installations on one host must not share a /16, also if they start at the same moment. The gateway's address marks a subnet
//! in use; it stays when the server stops. An abstract socket claims a subnet that is about to be used. The kernel scopes it to
//! this network namespace and drops it with the process, however it ends.

use std::io;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::rtnl::{Link, Rtnl};
use super::{NetworkError, Result};

pub(super) const PREFIX: u8 = 16;
const FIRST: u8 = 209;
const LAST: u8 = 240;
/// Routes at least this specific mean that the addresses are in use. Wider ones (a VPN's 10.0.0.0/8) are only avoided if there
/// is a choice, since we add no more than a route for each sandbox.
const SPECIFIC: u8 = 16;

/// A claimed subnet. The claim lasts while this value lives.
pub(super) struct Claim {
    pub subnet: Ipv4Net,
    _reservation: UnixListener,
}

impl Claim {
    fn new(subnet: Ipv4Net, reservation: UnixListener) -> Self {
        Self { subnet, _reservation: reservation }
    }
}

/// Reserves a name for this process in this network namespace; none if another process has it.
pub(super) fn reserve(name: &str) -> io::Result<Option<UnixListener>> {
    let address = SocketAddr::from_abstract_name(format!("arenite-{name}"))?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(Some(listener)),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reserves a name that only an earlier server of this data directory can have had. A process that it forked just before it
/// ended keeps the name until it runs its program, so this retries for a fraction of a second.
pub(super) fn reserve_again(name: &str) -> io::Result<Option<UnixListener>> {
    for _ in 0..20 {
        if let Some(listener) = reserve(name)? {
            return Ok(Some(listener));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
}

/// The subnet of an earlier start, the wanted one, or the first unused one.
pub(super) fn claim(host: &mut Rtnl, gateway_link: Option<&Link>, wanted: Option<Ipv4Net>) -> Result<Claim> {
    let addresses = host.addresses().map_err(NetworkError::netlink("list the host's addresses"))?;
    let ours = gateway_link.and_then(|link| {
        let (_, address) = addresses.iter().find(|(index, _)| *index == link.index)?;
        Some(of_gateway(address.addr()))
    });
    if let Some(subnet) = wanted {
        let subnet = check(subnet)?;
        if let Some(has) = ours.filter(|o| *o != subnet) {
            return Err(NetworkError::SubnetFixed { wanted: subnet, has });
        }
        return take_again(subnet);
    }
    if let Some(subnet) = ours {
        return take_again(subnet);
    }
    let routes = host.routes().map_err(NetworkError::netlink("list the host's routes"))?;
    let used: Vec<Ipv4Net> = routes
        .into_iter()
        .map(|(net, _)| net)
        .chain(addresses.into_iter().map(|(_, net)| net))
        .filter(|net| net.prefix_len() > 0)
        .collect();
    for least_specific in [1, SPECIFIC] {
        for second in FIRST..=LAST {
            let subnet = of_gateway(Ipv4Addr::new(10, second, 0, 1));
            let free = used.iter().filter(|net| net.prefix_len() >= least_specific).all(|net| !overlap(*net, subnet));
            if free && let Some(claim) = take_fresh(host, subnet)? {
                return Ok(claim);
            }
        }
    }
    Err(NetworkError::NoSubnet)
}

/// Claims, then checks again: between our first check and the claim, another installation may have claimed it, put its gateway
/// there and gone.
fn take_fresh(host: &mut Rtnl, subnet: Ipv4Net) -> Result<Option<Claim>> {
    let claim = take(subnet)?;
    let addresses = host.addresses().map_err(NetworkError::netlink("list the host's addresses"))?;
    Ok(claim.filter(|_| !addresses.iter().any(|(_, net)| net.addr() == super::gateway_of(subnet))))
}

fn take(subnet: Ipv4Net) -> Result<Option<Claim>> {
    let reserved = reserve(&name_of(subnet)).map_err(NetworkError::host("reserve a subnet"))?;
    Ok(reserved.map(|listener| Claim::new(subnet, listener)))
}

fn take_again(subnet: Ipv4Net) -> Result<Claim> {
    reserve_again(&name_of(subnet))
        .map_err(NetworkError::host("reserve a subnet"))?
        .map(|listener| Claim::new(subnet, listener))
        .ok_or(NetworkError::SubnetTaken { subnet })
}

fn name_of(subnet: Ipv4Net) -> String {
    format!("subnet-{}", subnet.network())
}

fn check(subnet: Ipv4Net) -> Result<Ipv4Net> {
    if subnet.prefix_len() == PREFIX && subnet.trunc() == subnet { Ok(subnet) } else { Err(NetworkError::BadSubnet { subnet }) }
}

fn of_gateway(gateway: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new_assert(gateway, PREFIX).trunc()
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn overlaps() {
        let ours = net("10.209.0.0/16");
        for other in ["10.0.0.0/8", "10.209.3.4/32", "10.208.0.0/15", "10.209.0.0/16"] {
            assert!(overlap(net(other), ours), "{other}");
        }
        for other in ["10.208.0.0/16", "10.210.0.0/15", "192.168.0.0/16"] {
            assert!(!overlap(net(other), ours), "{other}");
        }
    }

    #[test]
    fn only_whole_sixteens_are_taken() {
        assert!(check(net("10.5.0.0/16")).is_ok());
        for bad in ["10.5.1.0/16", "10.5.0.0/24", "10.0.0.0/8"] {
            assert!(check(net(bad)).is_err(), "{bad}");
        }
    }
}
