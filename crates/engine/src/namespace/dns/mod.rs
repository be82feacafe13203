//! Forwards sandboxes' DNS queries to the host's resolvers, which sandboxes could not reach.
//!
//! Queries are forwarded unchanged, each from a new port and under a new id. An answer counts only if it comes from the
//! resolver that was asked, under that id, for that question. Nothing is cached. The forwarder runs in the server: while that
//! is down, sandboxes resolve no names.
//!
//! What exceeds a limit is answered with a failure at once (UDP) or closed (TCP), so that one sandbox can't exhaust what the
//! others need.

mod message;
mod resolvers;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::Ipv4Net;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use self::message::{Fault, MAX_QUERY, Query, Rcode, is_refusal};
pub(super) use self::resolvers::Resolvers;
use super::network::HOST_NAMES;

const QUERIES: Bound = Bound { of_one: 128, of_all: 1024 };
const CONNECTIONS: Bound = Bound { of_one: 8, of_all: 256 };
/// Queries over one TCP connection, one after another.
const QUERIES_OF_CONNECTION: usize = 128;
/// Time for one resolver to answer.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Attempts for each resolver, because packets get lost.
const ROUNDS: usize = 2;
/// Time for all attempts together; clients give up at about that time.
const ALL_ATTEMPTS: Duration = Duration::from_secs(8);
/// Time until the next query on a TCP connection, and to transfer a query or answer.
const IDLE: Duration = Duration::from_secs(10);
/// Unrelated messages until a resolver is given up.
const STRANGERS: usize = 16;
const RECEIVE_BUFFER: usize = 2 << 20;
const MAX_UDP_ANSWER: usize = 4096;
/// Pause after a failure to receive or accept (for example without free descriptors), so as not to spin.
const PAUSE: Duration = Duration::from_millis(100);

/// The running forwarder; it stops when dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    resolvers: Resolvers,
    clients: Ipv4Net,
    /// The address of [`HOST_NAMES`]; none: they are ordinary names.
    host: Option<Ipv4Addr>,
    queries: Arc<Load>,
    connections: Arc<Load>,
}

impl Forwarder {
    /// Listens on `address` by UDP and TCP, for clients in `clients`. `host` is the answer for [`HOST_NAMES`].
    pub(super) async fn start(
        address: SocketAddr,
        clients: Ipv4Net,
        resolvers: Resolvers,
        host: Option<Ipv4Addr>,
    ) -> io::Result<Self> {
        let udp = UdpSocket::bind(address).await?;
        // A burst from many sandboxes waits here. Best effort: it needs CAP_NET_ADMIN.
        if let Err(error) = set_socket_recv_buffer_size_force(&udp, RECEIVE_BUFFER) {
            tracing::debug!(%error, "the buffer for queries keeps its size");
        }
        let tcp = TcpListener::bind(address).await?;
        let shared =
            Arc::new(Shared { resolvers, clients, host, queries: Load::new(QUERIES), connections: Load::new(CONNECTIONS) });
        let tasks = vec![tokio::spawn(serve_udp(Arc::new(udp), shared.clone())), tokio::spawn(serve_tcp(tcp, shared.clone()))];
        Ok(Self { shared, tasks: Mutex::new(tasks) })
    }

    pub(super) fn has_resolvers(&self) -> bool {
        !self.shared.resolvers.current().is_empty()
    }

    /// Ends all queries in progress and closes the port.
    pub(super) async fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task.abort();
            // Canceled by the abort.
            let _ = task.await;
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut running = JoinSet::new();
    let mut buffer = vec![0; MAX_QUERY + 1];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = running.join_next() => continue,
        };
        let (length, from) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "no query could be received");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(client) = shared.client(from) else {
            continue;
        };
        let query = match Query::parse(&buffer[..length]) {
            Ok(query) => query,
            Err(Fault::Malformed) => continue,
            Err(Fault::Declined(answer)) => {
                reply(&socket, &answer, from);
                continue;
            }
        };
        let Some(slot) = shared.queries.enter(client) else {
            reply(&socket, &query.failure(Rcode::ServerFailure), from);
            continue;
        };
        let (socket, shared) = (socket.clone(), shared.clone());
        running.spawn(async move {
            let _slot = slot;
            let answer = shared.resolve(&query, Transport::Udp).await;
            reply(&socket, &query.fit_udp(answer), from);
        });
    }
}

/// A client that does not read its answers loses them; the server does not wait for it.
fn reply(socket: &UdpSocket, answer: &[u8], to: SocketAddr) {
    if let Err(error) = socket.try_send_to(answer, to) {
        tracing::trace!(%error, %to, "an answer was dropped");
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    let mut running = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = running.join_next() => continue,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "no connection could be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let slot = shared.client(from).and_then(|client| Some((client, shared.connections.enter(client)?)));
        if let Some((client, slot)) = slot {
            let shared = shared.clone();
            running.spawn(async move {
                let _slot = slot;
                if let Err(error) = shared.converse(stream, client).await {
                    tracing::trace!(%error, %from, "a connection for names ended");
                }
            });
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Shared {
    fn client(&self, from: SocketAddr) -> Option<Ipv4Addr> {
        match from.ip() {
            IpAddr::V4(v4) if self.clients.contains(&v4) => Some(v4),
            _ => None,
        }
    }

    async fn converse(&self, mut stream: TcpStream, client: Ipv4Addr) -> io::Result<()> {
        for _ in 0..QUERIES_OF_CONNECTION {
            let message = timeout(IDLE, read_message(&mut stream, MAX_QUERY)).await??;
            let answer = match Query::parse(&message) {
                Err(Fault::Malformed) => return Ok(()),
                Err(Fault::Declined(answer)) => answer,
                Ok(query) => match self.queries.enter(client) {
                    Some(_slot) => self.resolve(&query, Transport::Tcp).await,
                    None => query.failure(Rcode::ServerFailure),
                },
            };
            timeout(IDLE, write_message(&mut stream, &answer)).await??;
        }
        Ok(())
    }

    /// The answer of the first resolver that answers, ready for the client.
    async fn resolve(&self, query: &Query, transport: Transport) -> Vec<u8> {
        if let Some(host) = self.host
            && HOST_NAMES.iter().any(|name| query.asks_for(name))
        {
            return query.answer(host);
        }
        let resolvers = self.resolvers.current();
        let mut refusal = None;
        let attempts = async {
            for resolver in (0..ROUNDS).flat_map(|_| resolvers.iter()) {
                match timeout(ATTEMPT, ask(query, *resolver, transport)).await {
                    Ok(Ok(answer)) if is_refusal(&answer) => refusal = Some(answer),
                    Ok(Ok(answer)) => return Some(answer),
                    Ok(Err(error)) => tracing::debug!(%error, %resolver, "a resolver failed"),
                    Err(_) => tracing::debug!(%resolver, "a resolver did not answer in time"),
                }
            }
            None
        };
        let answer = timeout(ALL_ATTEMPTS, attempts).await.unwrap_or_default();
        match answer.or(refusal) {
            Some(answer) => query.restore(answer),
            None => query.failure(Rcode::ServerFailure),
        }
    }
}

async fn ask(query: &Query, resolver: SocketAddr, transport: Transport) -> io::Result<Vec<u8>> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let question = query.with_id(id);
    if transport == Transport::Tcp {
        let mut stream = TcpStream::connect(resolver).await?;
        write_message(&mut stream, &question).await?;
        let answer = read_message(&mut stream, usize::from(u16::MAX)).await?;
        return if query.is_answered_by(&answer, id) { Ok(answer) } else { Err(not_an_answer()) };
    }
    let any = match resolver {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Connected, so that the kernel drops packets of other senders to this port.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(&question).await?;
    let mut buffer = vec![0; MAX_UDP_ANSWER + 1];
    for _ in 0..STRANGERS {
        let length = socket.recv(&mut buffer).await?;
        if query.is_answered_by(&buffer[..length], id) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
    Err(not_an_answer())
}

fn not_an_answer() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came was not the answer to the question")
}

async fn read_message(stream: &mut TcpStream, most: usize) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    // One write, so that it is usually one packet.
    let mut framed = Vec::with_capacity(2 + message.len());
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    stream.write_all(&framed).await
}

#[derive(Debug, Clone, Copy)]
struct Bound {
    of_one: usize,
    of_all: usize,
}

/// Counts operations in progress, per sandbox and in total.
#[derive(Debug)]
struct Load {
    bound: Bound,
    now: Mutex<(usize, HashMap<Ipv4Addr, usize>)>,
}

impl Load {
    fn new(bound: Bound) -> Arc<Self> {
        Arc::new(Self { bound, now: Mutex::default() })
    }

    /// None at the limit.
    fn enter(self: &Arc<Self>, client: Ipv4Addr) -> Option<Slot> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, each) = &mut *now;
        let one = each.get(&client).copied().unwrap_or_default();
        if *all >= self.bound.of_all || one >= self.bound.of_one {
            return None;
        }
        *all += 1;
        each.insert(client, one + 1);
        Some(Slot { load: self.clone(), client })
    }
}

/// One operation in progress; it ends when dropped.
struct Slot {
    load: Arc<Load>,
    client: Ipv4Addr,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut now = self.load.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, each) = &mut *now;
        *all -= 1;
        if let Some(one) = each.get_mut(&self.client) {
            *one -= 1;
            if *one == 0 {
                each.remove(&self.client);
            }
        }
    }
}
