//! A server of DNS for sandboxes, by UDP and TCP. What it answers is the work of its [`Answers`].
//!
//! What exceeds a limit is answered with a failure at once (UDP) or closed (TCP), so that one sandbox can't exhaust what the
//! others need.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::load::{Bound, Load};
use super::message::{Fault, MAX_QUERY, Query, Rcode};
use super::upstream::{Transport, read_message, write_message};
use crate::accept::{PAUSE, next_connection};

const QUERIES: Bound = Bound { of_one: 128, of_all: 1024 };
const CONNECTIONS: Bound = Bound { of_one: 8, of_all: 256 };
/// Queries over one TCP connection, one after another.
const QUERIES_OF_CONNECTION: usize = 128;
/// Time until the next query on a TCP connection, and to transfer a query or answer.
const IDLE: Duration = Duration::from_secs(10);
const RECEIVE_BUFFER: usize = 2 << 20;

/// Answers the queries of sandboxes.
pub trait Answers: Send + Sync + 'static {
    /// Whether the sender is a sandbox. What others send is dropped.
    fn serves(&self, client: SocketAddr) -> bool;

    /// The answer for the client, of any length.
    fn answer(&self, client: SocketAddr, query: &Query, transport: Transport) -> impl Future<Output = Vec<u8>> + Send;
}

/// The running server; it stops when dropped.
#[derive(Debug)]
pub struct DnsServer {
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl DnsServer {
    /// Listens on `address` by UDP and TCP.
    pub async fn bind(address: SocketAddr, answers: Arc<impl Answers>) -> io::Result<Self> {
        let udp = UdpSocket::bind(address).await?;
        let tcp = TcpListener::bind(address).await?;
        Ok(Self::start(udp, tcp, answers))
    }

    pub fn start(udp: UdpSocket, tcp: TcpListener, answers: Arc<impl Answers>) -> Self {
        // A burst from many sandboxes waits here. Best effort: it needs CAP_NET_ADMIN.
        if let Err(error) = set_socket_recv_buffer_size_force(&udp, RECEIVE_BUFFER) {
            tracing::debug!(%error, "the buffer for queries keeps its size");
        }
        let shared = Arc::new(Shared { answers, queries: Load::new(QUERIES), connections: Load::new(CONNECTIONS) });
        let tasks = vec![tokio::spawn(serve_udp(Arc::new(udp), shared.clone())), tokio::spawn(serve_tcp(tcp, shared))];
        Self { tasks: Mutex::new(tasks) }
    }

    /// Ends all queries in progress and closes the port.
    pub async fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task.abort();
            // Canceled by the abort.
            let _ = task.await;
        }
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(JoinHandle::abort);
    }
}

struct Shared<A> {
    answers: Arc<A>,
    queries: Arc<Load<IpAddr>>,
    connections: Arc<Load<IpAddr>>,
}

async fn serve_udp<A: Answers>(socket: Arc<UdpSocket>, shared: Arc<Shared<A>>) {
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
        if !shared.answers.serves(from) {
            continue;
        }
        let query = match Query::parse(&buffer[..length]) {
            Ok(query) => query,
            Err(Fault::Malformed) => continue,
            Err(Fault::Declined(answer)) => {
                reply(&socket, &answer, from);
                continue;
            }
        };
        let Some(slot) = shared.queries.enter(from.ip()) else {
            reply(&socket, &query.failure(Rcode::ServerFailure), from);
            continue;
        };
        let (socket, shared) = (socket.clone(), shared.clone());
        running.spawn(async move {
            let _slot = slot;
            let answer = shared.answers.answer(from, &query, Transport::Udp).await;
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

async fn serve_tcp<A: Answers>(listener: TcpListener, shared: Arc<Shared<A>>) {
    let mut running = JoinSet::new();
    loop {
        let (stream, from) = next_connection(&listener, &mut running).await;
        let slot = if shared.answers.serves(from) { shared.connections.enter(from.ip()) } else { None };
        if let Some(slot) = slot {
            let shared = shared.clone();
            running.spawn(async move {
                let _slot = slot;
                if let Err(error) = shared.converse(stream, from).await {
                    tracing::trace!(%error, %from, "a connection for names ended");
                }
            });
        }
    }
}

impl<A: Answers> Shared<A> {
    async fn converse(&self, mut stream: TcpStream, client: SocketAddr) -> io::Result<()> {
        for _ in 0..QUERIES_OF_CONNECTION {
            let message = timeout(IDLE, read_message(&mut stream, MAX_QUERY)).await??;
            let answer = match Query::parse(&message) {
                Err(Fault::Malformed) => return Ok(()),
                Err(Fault::Declined(answer)) => answer,
                Ok(query) => match self.queries.enter(client.ip()) {
                    Some(_slot) => self.answers.answer(client, &query, Transport::Tcp).await,
                    None => query.failure(Rcode::ServerFailure),
                },
            };
            timeout(IDLE, write_message(&mut stream, &answer)).await??;
        }
        Ok(())
    }
}
