//! Addresses of names, without those that sandboxes may not reach.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::message::{Query, Rcode, TYPE_A, is_truncated, rcode};
use super::records::{only_answers, read_addresses};
use super::{Resolvers, Transport};
use crate::ClosedRanges;

/// What the resolvers say about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Without closed ones.
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// The names on the way to them.
    pub(crate) aliases: Vec<String>,
    /// In seconds.
    pub(crate) ttl: u32,
    /// A closed address that was taken out.
    pub(crate) closed: Option<Ipv4Addr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupError {
    NoSuchName,
    /// No resolver gave a usable answer.
    Failed,
}

/// Asks the resolvers, and takes closed addresses out of what they say.
#[derive(Debug)]
pub(crate) struct Lookup {
    resolvers: Resolvers,
    pub(crate) closed: Arc<ClosedRanges>,
}

impl Lookup {
    pub(crate) fn new(resolvers: Resolvers, closed: Arc<ClosedRanges>) -> Self {
        Self { resolvers, closed }
    }

    pub(crate) async fn addresses(&self, name: &str) -> Result<Resolved, LookupError> {
        let query = Query::for_name(name, TYPE_A).ok_or(LookupError::NoSuchName)?;
        let answer = self.ask(&query).await.ok_or(LookupError::Failed)?;
        match rcode(&answer) {
            code if code == Rcode::NoError as u8 => {}
            code if code == Rcode::NoSuchName as u8 => return Err(LookupError::NoSuchName),
            _ => return Err(LookupError::Failed),
        }
        let chain = read_addresses(&query, &answer).ok_or(LookupError::Failed)?;
        let (closed, addresses): (Vec<_>, Vec<_>) =
            chain.addresses.into_iter().partition(|address| self.closed.contains(IpAddr::V4(*address)));
        Ok(Resolved { addresses, aliases: chain.aliases, ttl: chain.ttl, closed: closed.first().copied() })
    }

    /// The answer to a question for other records than addresses. None if there is no usable one.
    pub(super) async fn records(&self, query: &Query) -> Option<Vec<u8>> {
        let answer = self.ask(query).await?;
        if rcode(&answer) == Rcode::NoSuchName as u8 {
            return Some(query.failure(Rcode::NoSuchName));
        }
        if rcode(&answer) == Rcode::NoError as u8 { only_answers(query, answer) } else { None }
    }

    async fn ask(&self, query: &Query) -> Option<Vec<u8>> {
        let answer = self.resolvers.resolve(query, Transport::Udp).await?;
        if is_truncated(&answer) { self.resolvers.resolve(query, Transport::Tcp).await } else { Some(answer) }
    }
}
