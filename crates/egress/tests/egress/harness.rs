use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arenite_egress::{
    ClosedRanges, EgressConfig, EgressError, EgressEvent, EventKind, OriginalDestination, OwnerQuestion, ToServer, UdpConfig,
    serve,
};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::fake_resolver::FakeResolver;

/// The sandbox of most tests.
pub(crate) const SANDBOX: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
/// Servers are at 127.1.*, which the operator allows. The rest of loopback is closed.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);
pub(crate) const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 2);
pub(crate) const CLOSED: Ipv4Addr = Ipv4Addr::new(127, 9, 0, 1);
/// No test waits longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) dns: SocketAddr,
    pub(crate) resolver: FakeResolver,
    destinations: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>>,
    input: Option<WriteHalf<DuplexStream>>,
    messages: mpsc::Receiver<ToServer>,
    seen: Vec<EgressEvent>,
    running: AbortOnDrop,
    tasks: JoinSet<()>,
    barriers: u64,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        Self::start_trusting(Vec::new()).await
    }

    /// A proxy that trusts these authorities of servers.
    pub(crate) async fn start_trusting(roots: Vec<CertificateDer<'static>>) -> Self {
        let destinations: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>> = Arc::default();
        let known = destinations.clone();
        let lookup = move |stream: &TcpStream| {
            let peer = stream.peer_addr()?;
            known.lock().unwrap().remove(&peer).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let proxy = Self::start_with(Arc::new(lookup), roots).await;
        Self { destinations, ..proxy }
    }

    pub(crate) async fn start_with(lookup: Arc<dyn OriginalDestination>, roots: Vec<CertificateDer<'static>>) -> Self {
        Self::start_with_udp(lookup, roots, None).await
    }

    pub(crate) async fn start_with_udp(
        lookup: Arc<dyn OriginalDestination>,
        roots: Vec<CertificateDer<'static>>,
        udp: Option<UdpConfig>,
    ) -> Self {
        let resolver = FakeResolver::start().await;
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let (dns_udp, dns_tcp) = dns_sockets();
        let dns = dns_udp.local_addr().unwrap();
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        let config = EgressConfig {
            tcp,
            dns_udp,
            dns_tcp,
            udp,
            closed: ClosedRanges {
                denied: nets(&["127.0.0.0/8", "10.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16", "::/0"]),
                allowed: nets(&["127.1.0.0/16"]),
                always: Vec::new(),
                allow_own: true,
            },
            resolvers: Some(vec![resolver.address]),
            destinations: lookup,
            roots,
        };
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (their_input, their_output) = tokio::io::split(theirs);
        let running = AbortOnDrop(tokio::spawn(serve(config, their_input, their_output)));
        let (output, input) = tokio::io::split(ours);
        let (sender, messages) = mpsc::channel(10_000);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let message = serde_json::from_str(&line).unwrap();
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        let input = Some(input);
        Self {
            address,
            dns,
            resolver,
            destinations: Arc::default(),
            input,
            messages,
            seen: Vec::new(),
            running,
            tasks,
            barriers: 0,
        }
    }

    /// A proxy with a policy for [`SANDBOX`].
    pub(crate) async fn with_policy(policy: &str) -> Self {
        let mut proxy = Self::start().await;
        proxy.set(policy, false).await;
        proxy
    }

    /// Returns when the policy is in effect.
    pub(crate) async fn set(&mut self, policy: &str, close_open: bool) {
        let set =
            format!(r#"{{"set": {{"address": "{SANDBOX}", "sandbox": "box", "policy": {policy}, "close_open": {close_open}}}}}"#);
        self.send(&set).await;
        self.barrier().await;
    }

    pub(crate) async fn send(&mut self, message: &str) {
        let line = format!("{}\n", message.replace('\n', " "));
        self.input.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
    }

    pub(crate) async fn barrier(&mut self) {
        self.barriers += 1;
        let number = self.barriers;
        self.send(&format!(r#"{{"ready": {number}}}"#)).await;
        loop {
            match self.message().await {
                ToServer::Ready(ready) if ready == number => return,
                ToServer::Event(event) => self.seen.push(event),
                ToServer::Owner(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next message that is no event.
    pub(crate) async fn refused(&mut self) -> ToServer {
        loop {
            match self.message().await {
                ToServer::Event(event) => self.seen.push(event),
                ToServer::Owner(_) => {}
                other => return other,
            }
        }
    }

    async fn message(&mut self) -> ToServer {
        timeout(LIMIT, self.messages.recv()).await.expect("no message in time").expect("the proxy ended")
    }

    /// The next event that fits; earlier ones are dropped.
    pub(crate) async fn event(&mut self, fits: impl Fn(&EgressEvent) -> bool) -> EgressEvent {
        if let Some(at) = self.seen.iter().position(&fits) {
            return self.seen.remove(at);
        }
        loop {
            if let ToServer::Event(event) = self.message().await
                && fits(&event)
            {
                return event;
            }
        }
    }

    /// The next question about a socket's owner; events before it are kept.
    pub(crate) async fn question(&mut self) -> OwnerQuestion {
        loop {
            match self.message().await {
                ToServer::Owner(question) => return question,
                ToServer::Event(event) => self.seen.push(event),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn refusal(&mut self) -> EgressEvent {
        self.event(|event| !event.allowed).await
    }

    pub(crate) async fn end(&mut self) -> EgressEvent {
        self.event(|event| event.kind == EventKind::End).await
    }

    /// Closes the server's end, as when the server dies.
    pub(crate) async fn end_server(&mut self) -> Result<(), EgressError> {
        let mut input = self.input.take().unwrap();
        input.shutdown().await.unwrap();
        timeout(LIMIT, &mut self.running.0).await.unwrap().unwrap()
    }

    /// A connection of [`SANDBOX`] to an address, as it looks after the redirect.
    pub(crate) async fn connect(&self, to: SocketAddr) -> TcpStream {
        self.connector().connect(SANDBOX, to).await
    }

    pub(crate) fn connector(&self) -> Connector {
        Connector { proxy: self.address, destinations: self.destinations.clone() }
    }

    /// Sends text, and returns all that comes back until the end.
    pub(crate) async fn exchange(&self, to: SocketAddr, text: &str) -> String {
        let mut stream = self.connect(to).await;
        stream.write_all(text.as_bytes()).await.unwrap();
        read_text(&mut stream).await
    }

    /// A server that runs while the proxy does.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// A server that sends `greeting`, and then back what it gets.
    pub(crate) async fn echo(&mut self, address: Ipv4Addr, port: u16, greeting: &'static str) -> SocketAddr {
        let listener = TcpListener::bind((address, port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        self.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    stream.write_all(greeting.as_bytes()).await?;
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await?;
                    write.shutdown().await
                });
            }
        });
        address
    }
}

struct AbortOnDrop(JoinHandle<Result<(), EgressError>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Clone)]
pub(crate) struct Connector {
    proxy: SocketAddr,
    destinations: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>>,
}

impl Connector {
    pub(crate) async fn connect(&self, from: Ipv4Addr, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let own = socket.local_addr().unwrap();
        self.destinations.lock().unwrap().insert(own, to);
        socket.connect(self.proxy).await.unwrap()
    }
}

/// A port that is free for UDP and TCP.
fn dns_sockets() -> (std::net::UdpSocket, std::net::TcpListener) {
    for _ in 0..50 {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Ok(tcp) = std::net::TcpListener::bind(udp.local_addr().unwrap()) {
            return (udp, tcp);
        }
    }
    panic!("no port is free for UDP and TCP");
}

pub(crate) async fn read_text(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("no end in time").unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) async fn read_exactly(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(LIMIT, stream.read_exact(&mut bytes)).await.expect("no bytes in time").unwrap();
    bytes
}

/// Whether the connection is reset, before any byte.
pub(crate) async fn is_reset(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    let read = timeout(LIMIT, stream.read(&mut byte)).await.expect("neither bytes nor an end in time");
    matches!(read, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
}
