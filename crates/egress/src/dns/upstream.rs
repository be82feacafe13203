//! Asking the host's resolvers.
//!
//! Queries are forwarded unchanged, each from a new port and under a new id. An answer counts only if it comes from the resolver
//! that was asked, under that id, for that question. Nothing is cached.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::message::{Query, is_refusal};
use super::resolvers::Resolvers;

/// Time for one resolver to answer.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Attempts for each resolver, because packets get lost.
const ROUNDS: usize = 2;
/// Time for all attempts together; clients give up at about that time.
const ALL_ATTEMPTS: Duration = Duration::from_secs(8);
/// Unrelated messages until a resolver is given up.
const STRANGERS: usize = 16;
const MAX_UDP_ANSWER: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

impl Resolvers {
    /// The answer of the first resolver that answers, ready for the client. None if none did.
    pub async fn resolve(&self, query: &Query, transport: Transport) -> Option<Vec<u8>> {
        let resolvers = self.current();
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
        answer.or(refusal).map(|answer| query.restore(answer))
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

pub(super) async fn read_message(stream: &mut TcpStream, most: usize) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

pub(super) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    // One write, so that it is usually one packet.
    let mut framed = Vec::with_capacity(2 + message.len());
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    stream.write_all(&framed).await
}
