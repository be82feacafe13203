//! UDP of sandboxes, on loopback: the redirect and the sockets of flows are the tests' own, without the servers' addresses. What the
//! kernel does is tested with real sandboxes.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket as StdUdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arenite_egress::{Datagram, EventKind, Protocol, Reason, UdpConfig, UdpSockets, Undelivered};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::harness::{CLOSED, LIMIT, Proxy, SANDBOX, SERVER};
use crate::names::ask;

const PORT: u16 = 1230;

/// Knows to where each client sends, and what was reported to it.
#[derive(Debug, Clone, Default)]
struct FakeSockets {
    destinations: Arc<Mutex<HashMap<SocketAddrV4, SocketAddrV4>>>,
    reports: Arc<Mutex<Vec<(SocketAddrV4, Undelivered)>>>,
}

impl UdpSockets for FakeSockets {
    fn receive(&self, redirected: &StdUdpSocket, buffer: &mut [u8]) -> io::Result<Datagram> {
        let (length, SocketAddr::V4(from)) = redirected.recv_from(buffer)? else { return Err(io::ErrorKind::InvalidData.into()) };
        Ok(Datagram { length, from, to: self.destinations.lock().unwrap()[&from] })
    }

    fn open(&self, client: SocketAddrV4, _server: SocketAddrV4) -> io::Result<StdUdpSocket> {
        let socket = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(client)?;
        Ok(socket)
    }

    fn report(&self, _client: SocketAddrV4, server: SocketAddrV4, why: Undelivered) {
        self.reports.lock().unwrap().push((server, why));
    }
}

struct Udp {
    proxy: Proxy,
    redirected: SocketAddr,
    sockets: FakeSockets,
}

/// A socket of the sandbox that sends to one server.
struct Client {
    socket: UdpSocket,
    redirected: SocketAddr,
}

impl Client {
    async fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.redirected).await.unwrap();
    }

    async fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 65_535];
        let length = timeout(LIMIT, self.socket.recv(&mut buffer)).await.expect("no answer in time").unwrap();
        buffer.truncate(length);
        buffer
    }

    async fn is_silent(&self) -> bool {
        timeout(Duration::from_millis(100), self.socket.recv(&mut [0; 9])).await.is_err()
    }
}

impl Udp {
    async fn with_policy(policy: &str) -> Self {
        let sockets = FakeSockets::default();
        let redirected = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        let address = redirected.local_addr().unwrap();
        let config = UdpConfig { redirected, sockets: Arc::new(sockets.clone()) };
        let lookup = |_: &TcpStream| Err(io::ErrorKind::NotFound.into());
        let mut proxy = Proxy::start_with_udp(Arc::new(lookup), Vec::new(), Some(config)).await;
        proxy.set(policy, false).await;
        Self { proxy, redirected: address, sockets }
    }

    async fn client(&self, server: SocketAddrV4) -> Client {
        let socket = UdpSocket::bind((SANDBOX, 0)).await.unwrap();
        let SocketAddr::V4(own) = socket.local_addr().unwrap() else { panic!("not IPv4") };
        self.sockets.destinations.lock().unwrap().insert(own, server);
        Client { socket, redirected: self.redirected }
    }

    /// A server that sends back what it gets.
    async fn echo(&mut self, address: Ipv4Addr) -> SocketAddrV4 {
        let socket = UdpSocket::bind((address, 0)).await.unwrap();
        let SocketAddr::V4(own) = socket.local_addr().unwrap() else { panic!("not IPv4") };
        self.proxy.spawn(async move {
            let mut buffer = vec![0; 65_535];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                socket.send_to(&buffer[..length], from).await.unwrap();
            }
        });
        own
    }

    async fn wait_for_report(&self, wanted: (SocketAddrV4, Undelivered)) {
        let wait = async {
            while !self.sockets.reports.lock().unwrap().contains(&wanted) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, wait).await.expect("no report in time");
    }
}

#[tokio::test]
async fn a_flow_is_two_events_with_its_bytes() {
    let mut udp = Udp::with_policy(&format!(r#"{{"allow": ["{SERVER}:1-52,54-65535/udp"]}}"#)).await;
    let server = udp.echo(SERVER).await;
    let client = udp.client(server).await;
    for length in [3, 0, 60_000] {
        client.send(&vec![7; length]).await;
        assert_eq!(client.receive().await, vec![7; length]);
    }
    let decided = udp.proxy.event(|event| event.kind == EventKind::Decision).await;
    assert_eq!((decided.protocol, decided.allowed, decided.port), (Protocol::Udp, true, server.port()));
    // Flows end with their permission, also when open connections stay.
    udp.proxy.set(r#"{"allow": []}"#, false).await;
    let end = udp.proxy.end().await;
    assert_eq!((end.connection, end.bytes_sent, end.bytes_received), (decided.connection, 60_003, 60_003));
    client.send(b"again").await;
    assert!(client.is_silent().await);
    assert_eq!(udp.proxy.refusal().await.reason, Reason::NoRule);
    udp.wait_for_report((server, Undelivered::Refused)).await;
}

#[tokio::test]
async fn refused_datagrams_are_one_event_a_second() {
    let mut udp = Udp::with_policy(&format!(r#"{{"allow": ["{SERVER}:{PORT}/udp", "{CLOSED}:{PORT}/udp"]}}"#)).await;
    let elsewhere = SocketAddrV4::new(SERVER, PORT + 1);
    let client = udp.client(elsewhere).await;
    for _ in 0..50 {
        client.send(b"x").await;
    }
    let first = udp.proxy.refusal().await;
    assert_eq!((first.protocol, first.reason, first.address), (Protocol::Udp, Reason::NoRule, Some((*elsewhere.ip()).into())));
    let mut count = first.count;
    while count < 50 {
        count += udp.proxy.refusal().await.count;
    }
    assert_eq!(count, 50);
    udp.wait_for_report((elsewhere, Undelivered::Refused)).await;
    let closed = udp.client(SocketAddrV4::new(CLOSED, PORT)).await;
    closed.send(b"x").await;
    assert_eq!(udp.proxy.refusal().await.reason, Reason::ClosedAddress);
}

#[tokio::test]
async fn a_server_without_a_listener_is_reported() {
    let udp = Udp::with_policy(&format!(r#"{{"allow": ["{SERVER}:{PORT}/udp"]}}"#)).await;
    let nobody = SocketAddrV4::new(SERVER, PORT);
    let client = udp.client(nobody).await;
    client.send(b"x").await;
    udp.wait_for_report((nobody, Undelivered::NoListener)).await;
}

#[tokio::test]
async fn a_name_allows_the_addresses_that_it_was_resolved_to() {
    let mut udp = Udp::with_policy(r#"{"allow": ["time.test:1-52,54-65535/udp", "other.test:443"]}"#).await;
    let server = udp.echo(SERVER).await;
    udp.proxy.resolver.name("time.test", &[SERVER]);
    udp.proxy.resolver.name("other.test", &[SERVER]);
    let client = udp.client(server).await;
    client.send(b"early").await;
    assert_eq!(udp.proxy.refusal().await.reason, Reason::NoRule, "nobody has resolved it");
    ask(&udp.proxy, SANDBOX, "other.test", 1).await;
    client.send(b"other").await;
    assert!(client.is_silent().await, "the name has no rule for UDP");
    ask(&udp.proxy, SANDBOX, "time.test", 1).await;
    client.send(b"hello").await;
    assert_eq!(client.receive().await, b"hello");
    let decided = udp.proxy.event(|event| event.allowed && event.protocol == Protocol::Udp).await;
    assert_eq!(decided.name.as_deref(), Some("time.test"));
}

#[tokio::test]
async fn flows_of_a_sandbox_are_bounded() {
    let mut udp = Udp::with_policy(&format!(r#"{{"allow": ["{SERVER}:1-52,54-65535/udp"]}}"#)).await;
    let server = udp.echo(SERVER).await;
    let mut clients = Vec::new();
    for _ in 0..256 {
        let client = udp.client(server).await;
        client.send(b"x").await;
        assert_eq!(client.receive().await, b"x");
        clients.push(client);
    }
    let more = udp.client(server).await;
    more.send(b"x").await;
    assert_eq!(udp.proxy.refusal().await.reason, Reason::TooMany);
    clients[0].send(b"still").await;
    assert_eq!(clients[0].receive().await, b"still");
    // Those that are unused for longest make space, and the one in use stays.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    clients[0].send(b"used").await;
    assert_eq!(clients[0].receive().await, b"used");
    for _ in 0..5 {
        let client = udp.client(server).await;
        let mut answer = None;
        while answer.is_none() {
            client.send(b"new").await;
            answer = timeout(Duration::from_millis(200), client.socket.recv(&mut [0; 9])).await.ok();
        }
        udp.proxy.end().await;
        clients.push(client);
    }
    clients[0].send(b"still").await;
    assert_eq!(clients[0].receive().await, b"still");
    udp.proxy.set(r#"{"allow": []}"#, false).await;
    for _ in 0..256 - 5 {
        udp.proxy.end().await;
    }
}
