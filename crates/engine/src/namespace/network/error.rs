use std::io;
use std::net::SocketAddr;

use ipnet::Ipv4Net;
use thiserror::Error;

/// Why the network could not be set up.
#[derive(Debug, Error)]
pub enum NetworkError {
    #[error("{tag:?} is no network tag: 4 to 6 lower-case letters and digits")]
    BadTag { tag: String },
    #[error("{subnet} is no subnet for sandboxes: a whole /16, such as 10.209.0.0/16")]
    BadSubnet { subnet: Ipv4Net },
    #[error("another server uses {subnet} for its sandboxes")]
    SubnetTaken { subnet: Ipv4Net },
    #[error("the sandboxes of this data directory live in {has}, so {wanted} can't be used")]
    SubnetFixed { wanted: Ipv4Net, has: Ipv4Net },
    #[error("none of 10.209.0.0/16 to 10.240.0.0/16 is free")]
    NoSubnet,
    #[error("another server already runs the network of this data directory ({tag})")]
    Running { tag: String },
    #[error("all {most} addresses of {subnet} are in use")]
    Full { subnet: Ipv4Net, most: u32 },
    #[error("could not run {program}: {source}")]
    Program { program: &'static str, source: io::Error },
    #[error("the firewall's rules were refused: {message}")]
    Rules { message: String },
    #[error("could not {what}: {source}")]
    Netlink { what: String, source: io::Error },
    #[error("could not set {path} to {value}: {source}")]
    Setting { path: String, value: &'static str, source: io::Error },
    #[error("could not listen for names on {address}: {source}")]
    Dns { address: SocketAddr, source: io::Error },
    #[error("could not {what}: {source}")]
    Host { what: String, source: io::Error },
}

impl NetworkError {
    pub(super) fn netlink(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Netlink { what, source }
    }

    pub(super) fn host(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Host { what, source }
    }

    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "install nftables (Debian, Ubuntu: apt install nftables)"
            }
            Self::SubnetTaken { .. } | Self::NoSubnet => "choose another subnet in the configuration",
            Self::SubnetFixed { .. } => "remove the sandboxes and close the network before its subnet is changed",
            Self::Running { .. } => "stop it first, or give this one another data directory",
            Self::Full { .. } => "delete sandboxes",
            Self::Dns { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                "a name server of this host holds port 53 on all addresses: bind it to its own (dnsmasq: bind-interfaces)"
            }
            Self::Netlink { source, .. } | Self::Setting { source, .. } | Self::Host { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                "the namespace engine needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN)"
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}

impl From<io::Error> for NetworkError {
    fn from(source: io::Error) -> Self {
        Self::Host { what: "make a network namespace".to_owned(), source }
    }
}
