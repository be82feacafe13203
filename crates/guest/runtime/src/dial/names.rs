//! Resolves names to IPv4 addresses with `/etc/hosts` and the servers of `/etc/resolv.conf`. A sandbox has no IPv6 route out.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The most bytes of each of the two files.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_SERVERS: usize = 3;
const MAX_SEARCHED: usize = 6;
const MAX_ADDRESSES: usize = 8;
/// The time for one answer of one server.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
const DNS_PORT: u16 = 53;

/// Resolves a host to at least one address.
///
/// # Errors
/// `NotFound` for an unknown name, `InvalidInput` for an invalid one, otherwise the network's error.
pub async fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
    }
    let valid = |label: &str| (1..64).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_graphic());
    if name.len() > 253 || !name.split('.').all(valid) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no host name")));
    }
    let known = hosts(&text("/etc/hosts"), &name);
    if !known.is_empty() {
        return Ok(known);
    }
    let configuration = Configuration::read(&text("/etc/resolv.conf"));
    let searched = configuration.search.iter().map(|domain| format!("{name}.{domain}"));
    let dotted = name.contains('.') || host.ends_with('.');
    let names: Vec<String> = match dotted {
        true => vec![name.clone()],
        false => searched.chain([name.clone()]).collect(),
    };
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("the name {host:?} is not known"));
    let mut last = unknown();
    for name in names {
        match ask_all(&configuration.servers, &name).await {
            Ok(addresses) if addresses.is_empty() => last = unknown(),
            Ok(addresses) => return Ok(addresses),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    // A pipe in its place must not block the guest.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Without the file there are no entries, and the caller reports that.
    if let Ok(file) = open(path, flags, Mode::empty()) {
        let _ = File::from(file).take(MAX_FILE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn fields(text: &str) -> impl Iterator<Item = std::str::SplitAsciiWhitespace<'_>> {
    text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default().split_ascii_whitespace())
}

fn hosts(text: &str, name: &str) -> Vec<IpAddr> {
    fields(text)
        .filter_map(|mut fields| {
            let address = fields.next()?.parse().ok()?;
            fields.any(|alias| alias.eq_ignore_ascii_case(name)).then_some(address)
        })
        .filter(IpAddr::is_ipv4)
        .take(MAX_ADDRESSES)
        .collect()
}

struct Configuration {
    servers: Vec<IpAddr>,
    search: Vec<String>,
}

impl Configuration {
    fn read(text: &str) -> Self {
        let mut found = Self { servers: Vec::new(), search: Vec::new() };
        for mut fields in fields(text) {
            match fields.next() {
                Some("nameserver") => found.servers.extend(fields.next().and_then(|a| a.parse::<IpAddr>().ok())),
                Some("search" | "domain") => found.search = fields.take(MAX_SEARCHED).map(str::to_ascii_lowercase).collect(),
                _ => {}
            }
        }
        found.servers.truncate(MAX_SERVERS);
        if found.servers.is_empty() {
            found.servers.push(Ipv4Addr::LOCALHOST.into());
        }
        found
    }
}

/// Asks the servers. No addresses: a server answered that there are none.
async fn ask_all(servers: &[IpAddr], name: &str) -> io::Result<Vec<IpAddr>> {
    let mut last = io::Error::new(io::ErrorKind::TimedOut, format!("no name server answered for {name:?}"));
    for _ in 0..ROUNDS {
        for server in servers {
            match timeout(PATIENCE, ask(SocketAddr::new(*server, DNS_PORT), name)).await {
                Ok(Ok(addresses)) => return Ok(addresses),
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
    }
    Err(last)
}

async fn ask(server: SocketAddr, name: &str) -> io::Result<Vec<IpAddr>> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    // Connected: datagrams from other senders don't arrive.
    socket.connect(server).await?;
    let id = (getrandom::u32().map_err(io::Error::other)? & 0xffff) as u16;
    socket.send(&query(id, name)).await?;
    let mut answer = [0; 4096];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(outcome) = read(&answer[..length], id) {
            return outcome
                .map_err(|code| io::Error::other(format!("the name server could not tell about {name:?} (code {code})")));
        }
    }
}

/// Builds a query for A records.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(name.len() + 18);
    message.extend(id.to_be_bytes());
    // Recursion desired; one question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The addresses in an answer, or the server's error code; `None` if it does not answer this query.
fn read(message: &[u8], id: u16) -> Option<Result<Vec<IpAddr>, u8>> {
    let number = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    if number(0)? != id || message.get(2)? & 0x80 == 0 {
        return None;
    }
    match message.get(3)? & 0xf {
        0 => {}
        // The name does not exist.
        3 => return Some(Ok(Vec::new())),
        code => return Some(Err(code)),
    }
    let (questions, answers) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = name_end(message, at)? + 4;
    }
    let mut addresses = Vec::new();
    for _ in 0..answers {
        at = name_end(message, at)?;
        let (kind, length) = (number(at)?, number(at + 8)? as usize);
        let data = message.get(at + 10..at + 10 + length)?;
        if let (1, Ok(octets)) = (kind, <[u8; 4]>::try_from(data)) {
            addresses.push(IpAddr::from(octets));
        }
        at += 10 + length;
    }
    addresses.truncate(MAX_ADDRESSES);
    Some(Ok(addresses))
}

/// The offset after the name that starts at `at`.
fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + length as usize,
            // A pointer to the rest of the name.
            192.. => return Some(at + 2),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read() {
        let text = "127.0.0.1 localhost\n10.0.0.7\tdb.local DB # x\n::1 db\n#1.1.1.1 db\nbroken db\n";
        assert_eq!(hosts(text, "db"), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        assert!(hosts(text, "x").is_empty());
        let found = Configuration::read("search a.example b\nnameserver 10.1.1.1\n; nameserver 9.9.9.9\noptions ndots:1\n");
        assert_eq!((found.servers, found.search.len()), (vec!["10.1.1.1".parse::<IpAddr>().unwrap()], 2));
        assert_eq!(Configuration::read("").servers.len(), 1);
    }

    #[test]
    fn answers_are_read_and_hostile_ones_do_no_harm() {
        let question = query(7, "a.example");
        assert_eq!(&question[12..], b"\x01a\x07example\0\0\x01\0\x01");
        let mut answer = question.clone();
        (answer[2], answer[7]) = (0x81, 2);
        let alias = [0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12];
        let address = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1];
        answer.extend(alias);
        answer.extend(address);
        assert_eq!(read(&answer, 7), Some(Ok(vec!["192.0.2.1".parse().unwrap()])));
        assert_eq!(read(&answer, 8), None);
        for cut in 0..answer.len() {
            let _ = read(&answer[..cut], 7);
        }
        answer[3] = 3;
        assert_eq!(read(&answer, 7), Some(Ok(Vec::new())));
        answer[3] = 2;
        assert_eq!(read(&answer, 7), Some(Err(2)));
    }

    #[tokio::test]
    async fn addresses_and_the_host_itself_need_no_server() {
        for (host, address) in
            [("192.0.2.3", "192.0.2.3"), ("[::1]", "::1"), ("localhost", "127.0.0.1"), ("a.LOCALHOST.", "127.0.0.1")]
        {
            assert_eq!(resolve(host).await.unwrap(), [address.parse::<IpAddr>().unwrap()], "{host}");
        }
        for host in ["", "a..b", "a b", &"x".repeat(64)] {
            assert_eq!(resolve(host).await.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{host:?}");
        }
    }
}
