//! Networks of sandboxes: prepared namespaces, one shared policy, and a DNS forwarder.
//!
//! ```text
//!  sandbox's namespace                          host
//!  eth0  10.209.x.y/32 ──veth──  ar<tag>-<index>   route 10.209.x.y/32
//!        default via 10.209.0.1  ar<tag>-gw        10.209.0.1/32: the forwarder listens there
//!  lo    127.0.0.1, ::1          nft table inet arenite_<tag>: policy and address translation
//! ```
//!
//! - The namespace belongs to the host's user namespace: a sandbox's root can read its network, but can't change it or send raw
//!   packets. Two settings of the namespace allow ports below 1024 and `ping`.
//! - Each sandbox has its own link to the host. There is no shared segment on which a sandbox could listen to or impersonate
//!   another. Both ends know each other's hardware address, so there is no ARP.
//! - Only IPv4 leaves a sandbox. It has `::1` and no other IPv6, and IPv6 packets on its link are dropped.
//! - A sandbox with a policy reaches only the egress proxy, to which the rules redirect its TCP, UDP, and DNS. A set in the table has the
//!   addresses of such sandboxes. It outlives the server, so that they stay closed until the next one has their policies.
//! - [`NetworkConfig`] says what a sandbox may reach. It never reaches the host or other sandboxes, except the forwarder's port
//!   53. Refusals are answered, so that a program fails at once instead of waiting.
//! - Ports of the host's loopback that the operator opens are reached at the gateway's address, under the names of
//!   [`HOST_NAMES`]. The kernel translates the address, so the service sees the sandbox's address and not its own host's.
//! - Nothing here needs the server: when it is killed, running sandboxes keep their network. Only names are not answered until
//!   the next start, which finds everything by the tag. A namespace ends with its last process, and its link, route and
//!   neighbour entry with it.
//! - Forwarding is turned on for the host if it was off. Chains of other tools that drop forwarded packets are reported, not
//!   changed.

mod addresses;
mod config;
mod egress;
mod error;
mod flow_sockets;
mod owners;
mod rtnl;
mod rules;
mod subnet;
mod udp_route;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_egress::{AuthorityKeys, BoundSecret, EgressError, EgressEvent};
use arenite_isolation::{kernel_file, netns};
use ipnet::Ipv4Net;
use tokio::sync::{Semaphore, broadcast};

use self::addresses::Addresses;
pub use self::config::{DENIED, HOST_NAMES, NetworkConfig};
use self::egress::Egress;
pub use self::egress::{EffectivePolicy, NetworkLog, check_policy, egress_main, suggest_rules};
pub use self::error::NetworkError;
pub use self::owners::{LocateProcesses, SandboxProcesses};
use self::rtnl::{End, Link, Mac, Rtnl};
use super::dns::{Forwarder, Resolvers};

type Result<T> = std::result::Result<T, NetworkError>;

/// Namespaces that are prepared concurrently; the kernel serialises most of the work anyway.
const PREPARED_AT_ONCE: usize = 8;
/// Maximum number of links of dying namespaces to skip in a row.
const ATTEMPTS: usize = 64;
/// The MTU of most links, for a host without a default route.
const FALLBACK_MTU: u32 = 1500;
/// The loopback interface has this index in every namespace.
const LOOPBACK: u32 = 1;

/// A connected and configured namespace. It lives while a process is in it or `netns` is open.
#[derive(Debug)]
pub struct PreparedNet {
    pub netns: OwnedFd,
    pub address: Ipv4Addr,
    /// To be released by [`Network::release`].
    pub index: u32,
    /// Also the address of the DNS forwarder.
    pub gateway: Ipv4Addr,
}

/// The network of one data directory.
#[derive(Debug)]
pub struct Network {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    egress: Arc<Egress>,
    making: Semaphore,
}

struct Shared {
    tag: String,
    subnet: Ipv4Net,
    mtu: u32,
    /// Whether sandboxes reach ports of the host's loopback.
    opens_host: bool,
    /// Whether UDP of sandboxes with a policy reaches the egress proxy.
    redirects_udp: bool,
    addresses: Mutex<Addresses>,
    notes: Vec<String>,
    _claim: subnet::Claim,
    _tag: UnixListener,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("tag", &self.tag)
            .field("subnet", &self.subnet)
            .field("mtu", &self.mtu)
            .finish_non_exhaustive()
    }
}

impl Network {
    /// Installs the policy and starts the DNS forwarder. Reuses what an earlier start left; call [`Self::adopt`] next.
    pub async fn open(config: NetworkConfig) -> Result<Self> {
        let resolvers = Resolvers::new(config.resolvers.clone());
        let opens_host = !config.host_ports.is_empty();
        let settings = config.clone();
        let shared = blocking(move || Shared::open(&config)).await?;
        let address = SocketAddr::from((gateway_of(shared.subnet), 53));
        let host = opens_host.then(|| gateway_of(shared.subnet));
        let forwarder = Forwarder::start(address, shared.subnet, resolvers, host)
            .await
            .map_err(|source| NetworkError::Dns { address, source })?;
        let egress = Egress::start(gateway_of(shared.subnet), shared.subnet, &settings, shared.redirects_udp);
        Ok(Self { shared: Arc::new(shared), forwarder, egress, making: Semaphore::new(PREPARED_AT_ONCE) })
    }

    pub fn subnet(&self) -> Ipv4Net {
        self.shared.subnet
    }

    pub fn gateway(&self) -> Ipv4Addr {
        gateway_of(self.shared.subnet)
    }

    /// Prepares an open network, ready to use: loopback and `eth0` are up, with address and default route.
    pub async fn prepare(&self) -> Result<PreparedNet> {
        let _permit = self.making.acquire().await;
        let shared = self.shared.clone();
        blocking(move || shared.prepare(None)).await
    }

    /// Connects an existing namespace in the same way. It has no link but loopback yet, and its root no rights over it.
    pub async fn connect(&self, netns: OwnedFd) -> Result<PreparedNet> {
        let _permit = self.making.acquire().await;
        let shared = self.shared.clone();
        blocking(move || shared.prepare(Some(netns.as_fd()))).await
    }

    /// Gives an existing namespace, which has only loopback, the settings of a closed one. Blocks for less than a millisecond.
    pub fn keep_closed(netns: BorrowedFd<'_>) -> Result<()> {
        netns::enter(netns, || {
            configure_namespace()?;
            let mut inside = Rtnl::open().map_err(NetworkError::netlink("open a netlink socket"))?;
            inside.up(LOOPBACK).map_err(NetworkError::netlink("bring loopback up"))
        })
    }

    /// Prepares a network with only loopback. Usually blocks for less than a millisecond.
    pub fn prepare_closed() -> Result<OwnedFd> {
        let (netns, ()) = netns::create(|_| {
            configure_namespace()?;
            let mut inside = Rtnl::open().map_err(NetworkError::netlink("open a netlink socket"))?;
            inside.up(LOOPBACK).map_err(NetworkError::netlink("bring loopback up"))
        })?;
        Ok(netns)
    }

    /// Bytes that a sandbox received and sent.
    pub fn traffic(&self, index: u32) -> Option<(u64, u64)> {
        let link = link_name(&self.shared.tag, index);
        let count = |name: &str| {
            let text = kernel_file::read(format!("/sys/class/net/{link}/statistics/{name}")).ok()?;
            text.trim().parse().ok()
        };
        // The host's end of the pair sends what the sandbox receives.
        Some((count("tx_bytes")?, count("rx_bytes")?))
    }

    /// Releases the address for reuse, once the namespace is gone.
    pub fn release(&self, index: u32) {
        let address = address_of(self.shared.subnet, index);
        if self.egress.has(address) {
            if let Err(error) = rules::unpolice(&self.shared.tag, address) {
                // A sandbox that gets it reaches nothing.
                tracing::warn!(%address, %error, "an address stays closed until the next start");
                return;
            }
            self.egress.remove(address, true);
        }
        self.shared.addresses().release(index);
    }

    /// Lets the sandbox with this address reach only what a policy allows; without one, all that its network allows. When this
    /// returns, it is in effect for new connections, and for open ones if `close_open` is set. Blocks for milliseconds.
    pub fn police(&self, index: u32, sandbox: &str, policy: Option<EffectivePolicy<'_>>, close_open: bool) -> Result<()> {
        let address = address_of(self.shared.subnet, index);
        let Some(policy) = policy else {
            if self.egress.has(address) {
                rules::unpolice(&self.shared.tag, address)?;
                self.egress.remove(address, false);
            }
            return Ok(());
        };
        // The policy comes first: without it, the redirect refuses everything.
        let in_effect = self.egress.set(policy.set(address, sandbox, close_open), address);
        rules::police(&self.shared.tag, address, policy.allows_other_dns())?;
        in_effect.wait();
        Ok(())
    }

    /// Restores the policies of running sandboxes after a start. Held addresses that had one stay closed, and those of others become
    /// open.
    pub fn restore_policies(&self, all: &[(u32, String, EffectivePolicy<'_>)], is_held: impl Fn(u32) -> bool) -> Result<()> {
        let mut addresses = rules::policed(&self.shared.tag);
        addresses.retain(|address| self.index_of(*address).is_some_and(&is_held));
        self.egress.hold(&addresses);
        for (index, sandbox, policy) in all {
            let address = address_of(self.shared.subnet, *index);
            // Until it is in effect, the sandbox reaches nothing.
            let _ = self.egress.set(policy.set(address, sandbox, false), address);
            addresses.push(address);
        }
        let other_dns = all.iter().filter(|(_, _, policy)| policy.allows_other_dns());
        let other_dns: Vec<Ipv4Addr> = other_dns.map(|(index, _, _)| address_of(self.shared.subnet, *index)).collect();
        rules::replace_policed(&self.shared.tag, &addresses, &other_dns)
    }

    /// Replaces what the egress proxy puts into a sandbox's requests. When this returns, it is in effect. Blocks for milliseconds.
    pub fn set_secrets(&self, sandbox: &str, secrets: Vec<BoundSecret>) {
        if let Some(in_effect) = self.egress.set_secrets(sandbox, secrets) {
            in_effect.wait();
        }
    }

    /// The certificate authority of a sandbox with secrets: the one that it had, `known`, or a new one. The egress proxy has it with
    /// the sandbox's next policy.
    pub fn authority(&self, sandbox: &str, known: Option<&AuthorityKeys>) -> std::result::Result<AuthorityKeys, EgressError> {
        self.egress.authority(sandbox, known)
    }

    /// Lets events of sandboxes name the processes that caused them.
    pub fn locate_processes_by(&self, locate: LocateProcesses) {
        self.egress.owners.locate_by(locate);
    }

    /// Forgets the secrets of a destroyed sandbox.
    pub fn forget_secrets(&self, sandbox: &str) {
        self.egress.forget_secrets(sandbox);
    }

    /// What the egress proxy decided for a sandbox.
    pub fn log(&self, sandbox: &str) -> NetworkLog {
        self.egress.log(sandbox)
    }

    /// Adds a decision of the server itself.
    pub fn note(&self, event: EgressEvent) {
        self.egress.note_event(event);
    }

    /// What it decides, from now on.
    pub fn events(&self) -> broadcast::Receiver<EgressEvent> {
        self.egress.events()
    }

    /// Keeps the addresses of running sandboxes after a start, and removes links that no running sandbox uses. Returns
    /// descriptions of what was removed, for the log.
    pub async fn adopt(&self, in_use: &[u32]) -> Vec<String> {
        self.shared.addresses().take(in_use);
        let in_use: HashSet<u32> = in_use.iter().copied().collect();
        let shared = self.shared.clone();
        blocking(move || {
            for index in &in_use {
                shared.open_host(&link_name(&shared.tag, *index))?;
            }
            shared.remove_links(|index| !in_use.contains(&index))
        })
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "links of ended sandboxes stay; their addresses are not used again");
            Vec::new()
        })
    }

    /// The indexes of those running sandboxes that have no link to this host: it was deleted, or the server is in another network
    /// namespace than before.
    pub async fn unconnected(&self, running: Vec<u32>) -> Result<Vec<u32>> {
        let tag = self.shared.tag.clone();
        blocking(move || {
            let present: HashSet<String> = interfaces(&tag)?.into_iter().collect();
            Ok(running.into_iter().filter(|index| !present.contains(&link_name(&tag, *index))).collect())
        })
        .await
    }

    /// Gives a running sandbox a new link with the same address.
    pub async fn reconnect(&self, index: u32, netns: OwnedFd) -> Result<()> {
        let shared = self.shared.clone();
        blocking(move || {
            netns::enter(netns.as_fd(), || {
                let mut inside = Rtnl::open().map_err(NetworkError::netlink("open a netlink socket"))?;
                // Its other end is in a namespace that is going away, or was left by another server.
                find(&mut inside, "eth0")?.map_or(Ok(false), |link| delete(&mut inside, &link))
            })?;
            shared.connect(&mut host_netlink()?, index, Some(netns.as_fd())).map(|_| ())
        })
        .await
    }

    /// Like [`Self::adopt`] if the addresses in use are unknown: none is reused, and no link is removed.
    pub async fn adopt_all(&self) {
        let shared = self.shared.clone();
        let taken = blocking(move || {
            let links = host_netlink()?.links().map_err(NetworkError::netlink("list the host's links"))?;
            let prefix = interface_prefix(&shared.tag);
            let indexes: Vec<u32> = links.iter().filter_map(|link| link.name.strip_prefix(&prefix)?.parse().ok()).collect();
            shared.addresses().take(&indexes);
            Ok(())
        });
        if let Err(error) = taken.await {
            tracing::warn!(%error, "links of sandboxes could not be listed; an address in use is found when it is tried");
        }
    }

    /// The index of an address of this network.
    pub fn index_of(&self, address: Ipv4Addr) -> Option<u32> {
        let subnet = self.shared.subnet;
        subnet.contains(&address).then(|| address.to_bits() - subnet.network().to_bits())
    }

    /// Warnings for the operator: what was changed on the host, and what there may keep sandboxes from the network. Runs the
    /// host's firewall tools.
    pub async fn warnings(&self) -> Vec<String> {
        let shared = self.shared.clone();
        let mut all = self.shared.notes.clone();
        if !self.forwarder.has_resolvers() {
            all.push("no resolver is known (none in /etc/resolv.conf): sandboxes can't look names up".to_owned());
        }
        let found = blocking(move || Ok(rules::obstacles(&shared.tag))).await;
        all.extend(found.unwrap_or_default());
        all
    }

    /// Stops the DNS forwarder. With `remove_table`, also removes all objects on the host: running sandboxes lose their
    /// network. What can't be removed is logged.
    pub async fn close(&self, remove_table: bool) {
        self.forwarder.stop().await;
        if remove_table {
            let shared = self.shared.clone();
            if let Err(error) = blocking(move || remove(&shared.tag)).await {
                tracing::warn!(%error, "something of the network stays on the host; the next start uses it again");
            }
        }
    }
}

impl Shared {
    fn open(config: &NetworkConfig) -> Result<Self> {
        let tag = config.tag.clone();
        let right = (4..=6).contains(&tag.len()) && tag.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9'));
        if !right {
            return Err(NetworkError::BadTag { tag });
        }
        let reserved = subnet::reserve_again(&format!("network-{tag}"))
            .map_err(NetworkError::host("reserve the network's tag"))?
            .ok_or_else(|| NetworkError::Running { tag: tag.clone() })?;
        let mut host = host_netlink()?;
        let name = gateway_name(&tag);
        let found = find(&mut host, &name)?;
        let claim = subnet::claim(&mut host, found.as_ref(), config.subnet)?;
        let subnet = claim.subnet;
        // The policy is installed before anything can be connected.
        let policed = rules::policed(&tag);
        let features = rules::install(&rules::Rules { tag: &tag, subnet, config, policed: &policed })?;
        set_up_gateway(&mut host, &name, found, gateway_of(subnet))?;
        let mut notes = Vec::new();
        let redirected = features.udp.then(|| udp_route::set_up(&mut host, &tag, subnet));
        if let Some(Err(error)) = &redirected {
            tracing::warn!(%error, "the route of redirected UDP could not be set");
        }
        let redirects_udp = matches!(redirected, Some(Ok(())));
        if !redirects_udp {
            notes.push("this host can't redirect UDP (no nft tproxy, or no routing rules): rules of network policies for udp allow nothing".to_owned());
        }
        if !features.counted {
            notes.push("this kernel can't limit a sandbox's connections (no nft connlimit): one sandbox can fill the host's connection table".to_owned());
        }
        for path in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/default/forwarding"] {
            if fs::read_to_string(path).is_ok_and(|v| v.trim() == "0") {
                set(path, "1")?;
                notes.push(format!("{path} was 0 and is now 1: this host forwards packets"));
            }
        }
        Ok(Self {
            mtu: default_mtu(&mut host)?,
            opens_host: !config.host_ports.is_empty(),
            redirects_udp,
            tag,
            subnet,
            addresses: Mutex::new(Addresses::new()),
            notes,
            _claim: claim,
            _tag: reserved,
        })
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, existing: Option<BorrowedFd<'_>>) -> Result<PreparedNet> {
        let mut host = host_netlink()?;
        for _ in 0..ATTEMPTS {
            let index = self.addresses().next().ok_or(NetworkError::Full { subnet: self.subnet, most: addresses::MOST })?;
            match self.connect(&mut host, index, existing) {
                Ok(made) => return Ok(made),
                Err(error) => {
                    self.addresses().release(index);
                    // The kernel still has a namespace that had this address before.
                    if !matches!(&error, NetworkError::Netlink { source, .. } if source.kind() == io::ErrorKind::AlreadyExists) {
                        return Err(error);
                    }
                }
            }
        }
        Err(NetworkError::Netlink {
            what: format!("find an unused link among {ATTEMPTS}"),
            source: io::ErrorKind::AlreadyExists.into(),
        })
    }

    fn connect(&self, host: &mut Rtnl, index: u32, existing: Option<BorrowedFd<'_>>) -> Result<PreparedNet> {
        let gateway = gateway_of(self.subnet);
        let address = address_of(self.subnet, index);
        let outside = link_name(&self.tag, index);
        let mut set_up = |netns: BorrowedFd<'_>| {
            configure_namespace()?;
            let ends = [End { name: &outside, mac: mac_of(gateway) }, End { name: "eth0", mac: mac_of(address) }];
            host.add_veth(&ends[0], &ends[1], netns, self.mtu)
                .map_err(NetworkError::netlink(format!("make the link {outside}")))?;
            connect_host(host, &outside, address, gateway)?;
            connect_inside(address, gateway)?;
            // The host's end came up without a peer, and sends only after the kernel's link watcher has run, which may take a
            // while on a busy host. A request for the link makes that happen now (kernel 6.8); otherwise a first answer is
            // lost.
            host.link(&outside).map(|_| ()).map_err(NetworkError::netlink(format!("ask for the link {outside}")))
        };
        let netns = match existing {
            None => netns::create(&mut set_up)?.0,
            Some(netns) => {
                netns::enter(netns, || set_up(netns))?;
                netns.try_clone_to_owned().map_err(NetworkError::host("keep a network namespace"))?
            }
        };
        self.open_host(&outside)?;
        Ok(PreparedNet { netns, address, index, gateway })
    }

    /// Allows packets from a sandbox's link to be translated to the host's loopback. Those that the rules don't translate stay
    /// out.
    fn open_host(&self, link: &str) -> Result<()> {
        if self.opens_host { set(&format!("/proc/sys/net/ipv4/conf/{link}/route_localnet"), "1") } else { Ok(()) }
    }

    /// Removes the links with an index that `unwanted` selects.
    fn remove_links(&self, unwanted: impl Fn(u32) -> bool) -> Result<Vec<String>> {
        let mut host = host_netlink()?;
        let links = host.links().map_err(NetworkError::netlink("list the host's links"))?;
        let mut removed = Vec::new();
        for link in links {
            let index = link.name.strip_prefix(&interface_prefix(&self.tag)).and_then(|n| n.parse::<u32>().ok());
            if index.is_some_and(&unwanted) && delete(&mut host, &link)? {
                removed.push(format!("network link {}", link.name));
            }
        }
        Ok(removed)
    }
}

/// The host's interfaces of a data directory's network.
pub(super) fn interfaces(tag: &str) -> Result<Vec<String>> {
    let links = host_netlink()?.links().map_err(NetworkError::netlink("list the host's links"))?;
    let prefix = interface_prefix(tag);
    Ok(links.into_iter().map(|link| link.name).filter(|name| name.starts_with(&prefix)).collect())
}

/// Removes all that a data directory's network has on the host. Sandboxes that live lose their network.
pub(super) fn remove(tag: &str) -> Result<()> {
    let mut host = host_netlink()?;
    for name in interfaces(tag)? {
        if let Some(link) = find(&mut host, &name)? {
            delete(&mut host, &link)?;
        }
    }
    udp_route::remove(&mut host, tag);
    match rules::remove(tag) {
        // Without the program there can be no table.
        Err(NetworkError::Program { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn connect_host(host: &mut Rtnl, name: &str, address: Ipv4Addr, gateway: Ipv4Addr) -> Result<()> {
    let what = |step: &str| NetworkError::netlink(format!("{step} {name}"));
    let link = host.link(name).map_err(what("find the link"))?;
    no_ipv6(host, link.index).map_err(what("keep IPv6 off the link"))?;
    host.up(link.index).map_err(what("bring up the link"))?;
    host.add_host_route(link.index, address, Some(gateway)).map_err(what("add a route over"))?;
    host.add_neighbour(link.index, address, mac_of(address)).map_err(what("add a neighbour on"))
}

/// Connects the sandbox's end. Runs in the sandbox's namespace.
fn connect_inside(address: Ipv4Addr, gateway: Ipv4Addr) -> Result<()> {
    let what = |step: &str| NetworkError::netlink(format!("{step} in the sandbox's network"));
    let mut inside = Rtnl::open().map_err(what("open a netlink socket"))?;
    inside.up(LOOPBACK).map_err(what("bring loopback up"))?;
    let eth0 = inside.link("eth0").map_err(what("find eth0"))?.index;
    inside.up(eth0).map_err(what("bring eth0 up"))?;
    inside.add_address(eth0, address).map_err(what("set the address"))?;
    inside.add_neighbour(eth0, gateway, mac_of(gateway)).map_err(what("add the gateway as neighbour"))?;
    inside.add_host_route(eth0, gateway, None).map_err(what("add the route to the gateway"))?;
    inside.add_default_route(eth0, gateway).map_err(what("add the default route"))
}

/// Runs in the new namespace, before it has a link: `/proc/sys/net` is the namespace's own.
fn configure_namespace() -> Result<()> {
    // Its root has no capability over this namespace, which both would need otherwise.
    set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
    set("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")?;
    // Links created from now on have no IPv6; loopback exists already and keeps it.
    let ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    if Path::new(ipv6).exists() {
        set(ipv6, "1")?;
    }
    Ok(())
}

/// The gateway's address is on a bridge without ports: an interface that every kernel has, that needs no sandbox, and that
/// stays when the server stops.
fn set_up_gateway(host: &mut Rtnl, name: &str, found: Option<Link>, gateway: Ipv4Addr) -> Result<()> {
    let what = |step: &str| NetworkError::netlink(format!("{step} {name}"));
    let link = match found {
        Some(link) => link,
        None => {
            host.add_bridge(name).map_err(what("make the interface"))?;
            host.link(name).map_err(what("find the interface"))?
        }
    };
    no_ipv6(host, link.index).map_err(what("keep IPv6 off"))?;
    host.add_address(link.index, gateway).map_err(what("set the address of"))?;
    host.up(link.index).map_err(what("bring up"))
}

fn no_ipv6(host: &mut Rtnl, index: u32) -> io::Result<()> {
    match host.without_ipv6_address(index) {
        // A host without IPv6.
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn find(host: &mut Rtnl, name: &str) -> Result<Option<Link>> {
    match host.link(name) {
        Ok(link) => Ok(Some(link)),
        Err(e) if is_no_device(&e) => Ok(None),
        Err(e) => Err(NetworkError::netlink(format!("look for {name}"))(e)),
    }
}

/// False if it was already gone.
fn delete(host: &mut Rtnl, link: &Link) -> Result<bool> {
    match host.delete_link(link.index) {
        Ok(()) => Ok(true),
        Err(e) if is_no_device(&e) => Ok(false),
        Err(e) => Err(NetworkError::netlink(format!("delete {}", link.name))(e)),
    }
}

fn is_no_device(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) || error.kind() == io::ErrorKind::NotFound
}

/// The MTU of the host's default route.
fn default_mtu(host: &mut Rtnl) -> Result<u32> {
    let routes = host.routes().map_err(NetworkError::netlink("list the host's routes"))?;
    let Some(out) = routes.into_iter().find(|(net, _)| net.prefix_len() == 0).and_then(|(_, interface)| interface) else {
        return Ok(FALLBACK_MTU);
    };
    let links = host.links().map_err(NetworkError::netlink("list the host's links"))?;
    let link = links.into_iter().find(|l| l.index == out);
    Ok(link.map_or(FALLBACK_MTU, |l| l.mtu.clamp(576, 65535)))
}

fn host_netlink() -> Result<Rtnl> {
    Rtnl::open().map_err(NetworkError::netlink("open a netlink socket"))
}

fn set(path: &str, value: &'static str) -> Result<()> {
    fs::write(path, value).map_err(|source| NetworkError::Setting { path: path.to_owned(), value, source })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(NetworkError::host("work on the network")(io::Error::other(e))))
}

/// The prefix of an installation's interface names. The dash ends the tag, which keeps `abcd` from matching `abcde`.
fn interface_prefix(tag: &str) -> String {
    format!("ar{tag}-")
}

fn gateway_name(tag: &str) -> String {
    format!("ar{tag}-gw")
}

/// At most 14 of the 15 bytes that a name may have.
fn link_name(tag: &str, index: u32) -> String {
    format!("ar{tag}-{index}")
}

fn gateway_of(subnet: Ipv4Net) -> Ipv4Addr {
    address_of(subnet, 1)
}

fn address_of(subnet: Ipv4Net, index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(subnet.network().to_bits() | index)
}

/// A locally administered hardware address derived from an IPv4 address.
fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    [0x0a, 0xfe, a, b, c, d]
}
