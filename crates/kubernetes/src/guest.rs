//! Connections to the guests of pods, and what the engine asks them.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use arenite_channel::{Connector, PublicKey};
use arenite_engine::{Connection, Usage, request_guest};
use arenite_model::protocol::{
    ACTIVITY_PATH, Activity, BECOME_PATH, Become, POD_FREEZE_PATH, POD_PATH, POD_PORT, POD_THAW_PATH, POD_USAGE_PATH, PodFacts,
    PodUsage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time for a connection and both proofs.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// Where a guest is, and which.
#[derive(Debug, Clone)]
pub(crate) struct GuestAddress {
    pub(crate) ip: IpAddr,
    /// None: the first connection, which learns it.
    pub(crate) key: Option<PublicKey>,
}

/// Connects, and proves both keys. Returns the guest's.
pub(crate) async fn connect(connector: &Connector, guest: &GuestAddress) -> io::Result<(Box<dyn Connection>, PublicKey)> {
    let connecting = async {
        let stream = TcpStream::connect(SocketAddr::new(guest.ip, POD_PORT)).await?;
        stream.set_nodelay(true)?;
        let (stream, key) = connector.connect(stream, guest.key.as_ref()).await?;
        Ok::<_, io::Error>((Box::new(stream) as Box<dyn Connection>, key))
    };
    timeout(CONNECT_LIMIT, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// What a pod is: its proof, and its image's environment. Untrusted but for the token.
pub(crate) async fn facts(connection: Box<dyn Connection>) -> io::Result<PodFacts> {
    ask(connection, "GET", POD_PATH, &()).await
}

/// Assigns the guest.
pub(crate) async fn assign(connection: Box<dyn Connection>, assignment: &Become) -> io::Result<()> {
    ask::<serde::de::IgnoredAny>(connection, "POST", BECOME_PATH, assignment).await.map(drop)
}

/// Stops all processes of the sandbox but the guest.
pub(crate) async fn freeze(connection: Box<dyn Connection>) -> io::Result<()> {
    ask::<serde::de::IgnoredAny>(connection, "POST", POD_FREEZE_PATH, &()).await.map(drop)
}

/// Continues them.
pub(crate) async fn thaw(connection: Box<dyn Connection>) -> io::Result<()> {
    ask::<serde::de::IgnoredAny>(connection, "POST", POD_THAW_PATH, &()).await.map(drop)
}

/// What the sandbox uses, as its guest reads it.
pub(crate) async fn usage(connection: Box<dyn Connection>) -> io::Result<Usage> {
    let PodUsage { memory_bytes, cpu_nanoseconds, pids, oom_kills, received_bytes, sent_bytes } =
        ask(connection, "GET", POD_USAGE_PATH, &()).await?;
    Ok(Usage {
        memory_bytes,
        cpu_nanoseconds,
        pids,
        disk_bytes: None,
        oom_kills,
        network_received_bytes: received_bytes,
        network_sent_bytes: sent_bytes,
    })
}

pub(crate) async fn activity(connection: Box<dyn Connection>) -> io::Result<Option<String>> {
    Ok(ask::<Activity>(connection, "GET", ACTIVITY_PATH, &()).await?.running)
}

async fn ask<T: DeserializeOwned>(
    connection: Box<dyn Connection>,
    method: &str,
    path: &str,
    body: &impl Serialize,
) -> io::Result<T> {
    let body = if method == "GET" { Vec::new() } else { serde_json::to_vec(body)? };
    let asked = async {
        let answer = request_guest(connection, method, path, body).await?;
        let is_ok = answer.is_ok();
        let text = answer.text(MAX_ANSWER).await?;
        if !is_ok {
            return Err(io::Error::other(format!("the guest refused: {}", text.chars().take(200).collect::<String>())));
        }
        Ok(serde_json::from_str(&text)?)
    };
    timeout(ANSWER_LIMIT, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// The environment of commands: the image's, as the guest found it, and the spec's over it.
pub(crate) fn environment(facts: &PodFacts, spec: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = facts.env.clone();
    env.extend(spec.clone());
    env
}
