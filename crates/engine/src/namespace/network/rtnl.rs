//! Requests to the kernel's routing tables, one at a time on a socket of the calling thread's network namespace.
//!
//! Blocking on purpose: the kernel answers before `send` returns, and a namespace is entered by a dedicated thread without a
//! runtime.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::Ipv4Net;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub(super) type Mac = [u8; 6];

pub(super) struct Rtnl {
    socket: Socket,
    sequence: u32,
}

/// The used fields of an interface.
pub(super) struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
}

/// One end of a veth pair.
pub(super) struct End<'a> {
    pub name: &'a str,
    pub mac: Mac,
}

impl Rtnl {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Creates a veth pair: `here` in the namespace of this socket, `there` in another.
    pub(super) fn add_veth(&mut self, here: &End<'_>, there: &End<'_>, netns: BorrowedFd<'_>, mtu: u32) -> io::Result<()> {
        let mut peer = end(there, mtu);
        peer.attributes.push(LinkAttribute::NetNsFd(netns.as_raw_fd()));
        let mut link = end(here, mtu);
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.create(RouteNetlinkMessage::NewLink(link))
    }

    pub(super) fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.attributes =
            vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)])];
        self.create(RouteNetlinkMessage::NewLink(link))
    }

    pub(super) fn delete_link(&mut self, index: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelLink(by_index(index)), 0)
    }

    pub(super) fn up(&mut self, index: u32) -> io::Result<()> {
        let mut link = by_index(index);
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Prevents an IPv6 address on the interface when it comes up; it then has no IPv6.
    pub(super) fn without_ipv6_address(&mut self, index: u32) -> io::Result<()> {
        let mut link = by_index(index);
        link.attributes =
            vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])])];
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    pub(super) fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut request = LinkMessage::default();
        request.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        self.exchange(RouteNetlinkMessage::GetLink(request), 0)?
            .into_iter()
            .find_map(as_link)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn links(&mut self) -> io::Result<Vec<Link>> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let links = self.exchange(request, NLM_F_DUMP)?;
        Ok(links.into_iter().filter_map(as_link).collect())
    }

    /// Gives the interface this single address, without a subnet.
    pub(super) fn add_address(&mut self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = 32;
        message.header.index = index;
        message.attributes = vec![AddressAttribute::Local(IpAddr::V4(address)), AddressAttribute::Address(IpAddr::V4(address))];
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// All IPv4 addresses with the index of their interface.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<(u32, Ipv4Net)>> {
        let mut request = AddressMessage::default();
        request.header.family = AddressFamily::Inet;
        let messages = self.exchange(RouteNetlinkMessage::GetAddress(request), NLM_F_DUMP)?;
        Ok(messages
            .into_iter()
            .filter_map(|m| match m {
                RouteNetlinkMessage::NewAddress(a) => {
                    let address = a.attributes.iter().find_map(|x| match x {
                        AddressAttribute::Local(IpAddr::V4(v4)) => Some(*v4),
                        _ => None,
                    })?;
                    Some((a.header.index, Ipv4Net::new(address, a.header.prefix_len).ok()?))
                }
                _ => None,
            })
            .collect())
    }

    /// Adds a route to one neighbour on the link itself.
    pub(super) fn add_host_route(&mut self, index: u32, to: Ipv4Addr, from: Option<Ipv4Addr>) -> io::Result<()> {
        let mut route = route(index, RouteScope::Link);
        route.header.destination_prefix_length = 32;
        route.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(to)));
        if let Some(from) = from {
            route.attributes.push(RouteAttribute::PrefSource(RouteAddress::Inet(from)));
        }
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(super) fn add_default_route(&mut self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let mut route = route(index, RouteScope::Universe);
        route.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        self.create(RouteNetlinkMessage::NewRoute(route))
    }

    /// Makes every address local in a table.
    pub(super) fn add_local_route(&mut self, table: u32) -> io::Result<()> {
        self.create(RouteNetlinkMessage::NewRoute(local_route(table)))
    }

    pub(super) fn delete_local_route(&mut self, table: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRoute(local_route(table)), 0)
    }

    /// Looks marked packets of a network up in a table.
    pub(super) fn add_mark_rule(&mut self, from: Ipv4Net, mark: u32, table: u32) -> io::Result<()> {
        let mut rule = mark_rule(mark, table);
        rule.header.action = RuleAction::ToTable;
        rule.header.src_len = from.prefix_len();
        rule.attributes.push(RuleAttribute::Source(IpAddr::V4(from.network())));
        self.create(RouteNetlinkMessage::NewRule(rule))
    }

    /// Deletes a rule with this mark and table, whatever its network.
    pub(super) fn delete_mark_rule(&mut self, mark: u32, table: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRule(mark_rule(mark, table)), 0)
    }

    /// All IPv4 unicast routes of all tables: destination and interface.
    pub(super) fn routes(&mut self) -> io::Result<Vec<(Ipv4Net, Option<u32>)>> {
        let mut request = RouteMessage::default();
        request.header.address_family = AddressFamily::Inet;
        let messages = self.exchange(RouteNetlinkMessage::GetRoute(request), NLM_F_DUMP)?;
        Ok(messages
            .into_iter()
            .filter_map(|m| match m {
                RouteNetlinkMessage::NewRoute(r) if r.header.kind == RouteType::Unicast => {
                    let mut destination = Ipv4Addr::UNSPECIFIED;
                    let mut interface = None;
                    for attribute in &r.attributes {
                        match attribute {
                            RouteAttribute::Destination(RouteAddress::Inet(v4)) => {
                                destination = *v4;
                            }
                            RouteAttribute::Oif(index) => interface = Some(*index),
                            _ => {}
                        }
                    }
                    let net = Ipv4Net::new(destination, r.header.destination_prefix_length);
                    Some((net.ok()?, interface))
                }
                _ => None,
            })
            .collect())
    }

    /// Sets a neighbour's hardware address, so that ARP is not needed and can't be spoofed.
    pub(super) fn add_neighbour(&mut self, index: u32, to: Ipv4Addr, mac: Mac) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes =
            vec![NeighbourAttribute::Destination(NeighbourAddress::Inet(to)), NeighbourAttribute::LinkLayerAddress(mac.to_vec())];
        self.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    fn create(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.change(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.exchange(message, flags | NLM_F_ACK).map(|_| ())
    }

    fn exchange(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
                let length = usize::try_from(answer.header.length).ok().filter(|l| *l > 0).ok_or(io::ErrorKind::InvalidData)?;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(message) => {
                        answers.push(message);
                        // A single object requested by name comes without an end mark.
                        if flags & (NLM_F_DUMP | NLM_F_ACK) == 0 {
                            return Ok(answers);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn end(end: &End<'_>, mtu: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes =
        vec![LinkAttribute::IfName(end.name.to_owned()), LinkAttribute::Address(end.mac.to_vec()), LinkAttribute::Mtu(mtu)];
    link
}

fn by_index(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link
}

fn as_link(message: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(link) = message else {
        return None;
    };
    let mut found = Link { index: link.header.index, name: String::new(), mtu: 0 };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name = name,
            LinkAttribute::Mtu(mtu) => found.mtu = mtu,
            _ => {}
        }
    }
    Some(found)
}

fn local_route(table: u32) -> RouteMessage {
    let mut route = route(super::LOOPBACK, RouteScope::Host);
    route.header.table = RouteHeader::RT_TABLE_UNSPEC;
    route.header.kind = RouteType::Local;
    route.attributes.push(RouteAttribute::Table(table));
    route
}

fn mark_rule(mark: u32, table: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = AddressFamily::Inet;
    rule.attributes = vec![RuleAttribute::FwMark(mark), RuleAttribute::Table(table)];
    rule
}

fn route(index: u32, scope: RouteScope) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = scope;
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![RouteAttribute::Oif(index)];
    route
}
