//! Forwards sandboxes' DNS queries to the host's resolvers, which sandboxes could not reach.
//!
//! Queries are forwarded unchanged, and nothing is cached: see `arenite_egress::dns`. The forwarder runs in the server: while that
//! is down, sandboxes resolve no names.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub(super) use arenite_egress::dns::Resolvers;
use arenite_egress::dns::{Answers, DnsServer, Query, Rcode, Transport};
use ipnet::Ipv4Net;

use super::network::HOST_NAMES;

/// The running forwarder; it stops when dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    answers: Arc<ForwardedAnswers>,
    server: DnsServer,
}

#[derive(Debug)]
struct ForwardedAnswers {
    resolvers: Resolvers,
    clients: Ipv4Net,
    /// The address of [`HOST_NAMES`]; none: they are ordinary names.
    host: Option<Ipv4Addr>,
}

impl Forwarder {
    /// Listens on `address` by UDP and TCP, for clients in `clients`. `host` is the answer for [`HOST_NAMES`].
    pub(super) async fn start(
        address: SocketAddr,
        clients: Ipv4Net,
        resolvers: Resolvers,
        host: Option<Ipv4Addr>,
    ) -> io::Result<Self> {
        let answers = Arc::new(ForwardedAnswers { resolvers, clients, host });
        Ok(Self { server: DnsServer::bind(address, answers.clone()).await?, answers })
    }

    pub(super) fn has_resolvers(&self) -> bool {
        !self.answers.resolvers.current().is_empty()
    }

    /// Ends all queries in progress and closes the port.
    pub(super) async fn stop(&self) {
        self.server.stop().await;
    }
}

impl Answers for ForwardedAnswers {
    fn serves(&self, client: SocketAddr) -> bool {
        matches!(client.ip(), IpAddr::V4(address) if self.clients.contains(&address))
    }

    async fn answer(&self, _client: SocketAddr, query: &Query, transport: Transport) -> Vec<u8> {
        if let Some(host) = self.host
            && HOST_NAMES.iter().any(|name| query.asks_for(name))
        {
            return query.answer(host);
        }
        let answer = self.resolvers.resolve(query, transport).await;
        answer.unwrap_or_else(|| query.failure(Rcode::ServerFailure))
    }
}
