//! Records of what the network policy of a sandbox decided. They stand between the steps and have no numbers.
//!
//! A program can cause many of them, so a log has a limited number. Further ones are counted: a record has their number whenever it
//! has doubled.

use std::fs::File;
use std::io;

use arenite_model::{NetworkProcess, SshLogin};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Kind;
use crate::line::Lines;
use crate::record::Head;

/// Maximum number of network records of a trajectory.
pub(crate) const MOST: u64 = 10_000;

/// A refusal, the end of an allowed connection, or a signed login by SSH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkEvent {
    #[serde(alias = "time")]
    pub at: Timestamp,
    pub allowed: bool,
    /// `dns`, `tls`, `http`, `https`, `postgres`, `ssh`, `tcp` or `udp`.
    pub protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    pub reason: String,
    /// Equal refusals of a second are one record.
    pub count: u64,
    /// By the sandbox.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub duration_ms: u64,
    /// That made the connection or sent the query, where it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<NetworkProcess>,
    /// The login by SSH that was signed or not. Without a known server, its record has no name and the port 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshLogin>,
    /// The last step that started before this was written; set by the log.
    #[serde(default)]
    pub after: u64,
}

/// The network records of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkEvents {
    /// In the order in which they were recorded.
    pub events: Vec<NetworkEvent>,
    /// Decisions beyond the limit on records; the next lower power of two.
    pub left_out: u64,
}

/// An event, or a number of left out ones, as a line of the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NetworkRecord {
    pub(crate) v: u32,
    pub(crate) kind: Kind,
    pub(crate) last: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failures: Option<crate::Failures>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ended: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkEvent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<u64>,
    pub(crate) at: Timestamp,
}

/// The number of network records of a log, and of those that were left out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NetworkCount {
    pub(crate) records: u64,
    pub(crate) left_out: u64,
}

/// The network records of a log.
pub(crate) fn network(file: File, len: u64) -> io::Result<NetworkEvents> {
    let mut lines = Lines::new(file, 0, len)?;
    let mut found = NetworkEvents::default();
    while let Some((_, line)) = lines.next_line()? {
        if Head::parse(line).is_some_and(|head| head.kind == Kind::Network)
            && let Ok(NetworkRecord { network, left_out, last, .. }) = serde_json::from_slice(line)
        {
            found.left_out = left_out.unwrap_or(found.left_out);
            found.events.extend(network.map(|event| NetworkEvent { after: last, ..event }));
        }
    }
    Ok(found)
}
