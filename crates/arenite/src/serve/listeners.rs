//! The server's listening sockets: bound here, or passed by a service manager or the previous server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;

use arenite_isolation::descriptors;

use crate::config::Config;
use crate::config::values::OptionalListen;
use crate::failure::{Attempt, Failure};

/// The sockets of a service manager (`LISTEN_FDS`), if any. Call it first in the program.
pub(super) fn of_service_manager() -> Result<Vec<TcpListener>, Failure> {
    let what = || "the sockets of the service manager (LISTEN_FDS) can't be used".to_owned();
    let given = descriptors::of_service_manager().attempt(what)?;
    let listeners = given.into_iter().map(|socket| {
        let is_listening = rustix::net::sockopt::socket_acceptconn(socket.as_fd())?;
        let listener = TcpListener::from(socket);
        // Fails for a socket other than TCP.
        listener.local_addr()?;
        if is_listening { Ok(listener) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "one of them does not listen")) }
    });
    listeners.collect::<io::Result<_>>().attempt(what)
}

/// All sockets to serve on: those that were passed for configured addresses, and new ones for the other addresses. AgentFlow's
/// address is optional: if another process has it, the server does without.
pub(super) fn open(config: &Config, mut passed: Vec<TcpListener>) -> Result<Vec<TcpListener>, Failure> {
    let mut take = |address: SocketAddr| {
        let at = passed.iter().position(|listener| listener.local_addr().is_ok_and(|local| local == address));
        at.map_or_else(|| arenite_gateway::listen_on(address), |at| Ok(passed.swap_remove(at)))
    };
    let mut listeners = Vec::new();
    for &address in &config.listen {
        listeners.push(take(address).map_err(|error| refused(address, &error))?);
    }
    if let OptionalListen::At(address) = config.agentflow_listen
        && !config.listen.contains(&address)
    {
        match take(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => tracing::warn!(
                "AgentFlow's address {address} can't be used: {}; going on without it (--agentflow-listen names another, or off)",
                why(address, &error)
            ),
        }
    }
    Ok(listeners)
}

fn refused(address: SocketAddr, error: &io::Error) -> Failure {
    Failure::new(format!("could not listen on {address}: {}", why(address, error)))
        .hint("--listen names another address; to replace a server of the same data directory: arenite serve --take-over")
}

fn why(address: SocketAddr, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error.to_string();
    }
    match holder(address) {
        Some((pid, name)) => format!("{name} (pid {pid}) listens there"),
        None => "another process listens there".to_owned(),
    }
}

/// The process that listens on an address, if this process may see it.
fn holder(address: SocketAddr) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<String> = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(listening)
        .filter(|(local, _)| overlaps(local, address))
        .map(|(_, inode)| format!("socket:[{inode}]"))
        .collect();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let mut links = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            links.any(|link| inodes.iter().any(|inode| link.as_os_str() == inode.as_str()))
        })
        .map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            (pid, name.trim().to_owned())
        })
        .next()
}

/// Local address and inode of a listening socket in a line of `/proc/net/tcp`: `0: 0100007F:1F90 00000000:0000 0A …`.
fn listening(line: &str) -> Option<((Option<Ipv4Addr>, u16), &str)> {
    const LISTEN: &str = "0A";
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = columns.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Addresses of IPv6 are longer; only their port is compared.
    let address = if address.len() == 8 { u32::from_str_radix(address, 16).ok() } else { None };
    let address = address.map(|number| Ipv4Addr::from(number.to_le_bytes()));
    columns.get(3).filter(|state| **state == LISTEN)?;
    Some(((address, port), columns.get(9)?))
}

fn overlaps((local, port): &(Option<Ipv4Addr>, u16), address: SocketAddr) -> bool {
    let same = match (local, address) {
        (Some(local), SocketAddr::V4(wanted)) => local == wanted.ip() || local.is_unspecified() || wanted.ip().is_unspecified(),
        _ => true,
    };
    same && *port == address.port()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(holder(address).unwrap().0, std::process::id());
        let error = arenite_gateway::listen_on(address).unwrap_err();
        let message = refused(address, &error).to_string();
        assert!(message.contains(&format!("(pid {})", std::process::id())), "{message}");
        assert!(holder(SocketAddr::new([127, 99, 0, 1].into(), address.port())).is_none());
    }
}
