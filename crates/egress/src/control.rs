//! What the server says and hears: one JSON object on each line.
//!
//! ```text
//!  server ─► {"set": {"address": "10.209.0.7", "sandbox": "…", "policy": {…}, "close_open": true}}
//!            {"remove": {"address": "10.209.0.7"}}     {"ready": 7}
//!         ◄─ {"event": {…}}   {"lost": 3}   {"refused": {…}}   {"ready": 7}
//!         ◄─ {"owner": {"number": 4, "client": "10.209.0.7:40112", …}} ─► {"owned": {"number": 4, "process": {…}}}
//! ```
//!
//! Messages take effect in their order. `ready` is answered when all before it are in effect: each later decision is by the new
//! policies. A policy or a secret that can't be compiled closes the sandbox. What can't be read as a message ends the process,
//! because it may have been a policy.

use std::net::IpAddr;
use std::sync::Arc;

use arenite_model::{NetworkPolicy, NetworkProcess, SecretPlace, SecretText};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::mpsc;
use zeroize::Zeroize;

use crate::error::EgressError;
use crate::events::{EgressEvent, Events};
use crate::owner::{OwnerQuestion, Owners};
use crate::policy::CompiledPolicy;
use crate::sandbox::Sandboxes;
use crate::secrets::SandboxSecrets;
use crate::tls::AuthorityKeys;

/// Longest message of the server: a policy with all rules, each at its longest.
const MAX_MESSAGE: usize = 16 << 20;
/// Answers that wait to be written; then messages wait to be read.
pub(crate) const ANSWERS: usize = 64;

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FromServer {
    Set(Box<SetPolicy>),
    /// Forgets a sandbox and closes its connections.
    Remove {
        address: IpAddr,
    },
    /// To be answered when all before it is in effect.
    Ready(u64),
    /// Answers [`ToServer::Owner`].
    Owned {
        number: u64,
        /// None: it was not found, or there were too many questions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<NetworkProcess>,
    },
}

/// The policy of the sandbox at an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPolicy {
    pub address: IpAddr,
    pub sandbox: String,
    pub policy: NetworkPolicy,
    /// What it refuses is refused whatever the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<NetworkPolicy>,
    /// Closes connections that this policy refuses.
    #[serde(default)]
    pub close_open: bool,
    /// In effect for each request that begins after this message, also on open connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<BoundSecret>,
    /// Signs certificates for the hosts of secrets. Without it, their TLS is not ended and nothing is inserted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<AuthorityKeys>,
}

/// A secret of a sandbox: what its programs have, and what the proxy puts in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundSecret {
    pub name: String,
    /// 8 to 256 letters, digits, and underscores each. Answers that have the value get the first one instead.
    pub placeholders: Vec<String>,
    /// Empty: the secret was revoked, and requests with its placeholders are refused.
    pub value: SecretText,
    /// Names, or `*.` and a name, with ports after a colon where they are not 443, or 5432 for Postgres alone.
    pub hosts: Vec<String>,
    pub places: Vec<SecretPlace>,
}

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToServer {
    Event(EgressEvent),
    /// How many events were lost since the last one, because the server read too slowly.
    Lost(u64),
    /// The policy of a sandbox could not be used; it reaches nothing.
    Refused {
        address: IpAddr,
        code: String,
        message: String,
    },
    Ready(u64),
    /// Asks which process of a sandbox has a socket.
    Owner(OwnerQuestion),
}

/// Follows the server's messages. Returns when the server ended.
pub(crate) async fn follow(
    input: impl AsyncRead + Unpin,
    sandboxes: &Sandboxes,
    owners: &Owners,
    answers: mpsc::Sender<ToServer>,
) -> Result<(), EgressError> {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = MAX_MESSAGE as u64 + 1;
        let length = (&mut input).take(most).read_until(b'\n', &mut line).await.map_err(EgressError::Control)?;
        if line.last() != Some(&b'\n') {
            // A message without its end was cut off with the server.
            return if length > MAX_MESSAGE { Err(EgressError::LongMessage { most: MAX_MESSAGE }) } else { Ok(()) };
        }
        let message = serde_json::from_slice(&line).map_err(|error| EgressError::Control(error.into()));
        // It may have values of secrets.
        line.zeroize();
        let message = message?;
        if let Some(answer) = apply(message, sandboxes, owners)
            && answers.send(answer).await.is_err()
        {
            return Ok(());
        }
    }
}

fn apply(message: FromServer, sandboxes: &Sandboxes, owners: &Owners) -> Option<ToServer> {
    match message {
        FromServer::Ready(number) => Some(ToServer::Ready(number)),
        FromServer::Owned { number, process } => {
            owners.answer(number, process);
            None
        }
        FromServer::Remove { address } => {
            sandboxes.remove(address);
            None
        }
        FromServer::Set(set) => match compile(&set, sandboxes) {
            Ok((policy, secrets)) => {
                sandboxes.set(set.address, &set.sandbox, policy, secrets, set.close_open);
                None
            }
            Err(error) => {
                sandboxes.remove(set.address);
                Some(ToServer::Refused { address: set.address, code: error.code().to_owned(), message: error.to_string() })
            }
        },
    }
}

type Compiled = (CompiledPolicy, Option<Arc<SandboxSecrets>>);

fn compile(set: &SetPolicy, sandboxes: &Sandboxes) -> Result<Compiled, EgressError> {
    let known = sandboxes.find(set.address).filter(|known| known.id() == set.sandbox).and_then(|known| known.secrets());
    let policy = CompiledPolicy::compile(&set.policy)?.with_floor(set.floor.as_ref())?;
    Ok((policy, SandboxSecrets::compile(set, known)?))
}

/// What waits to be written, the most urgent first.
pub(crate) struct Queues {
    pub(crate) answers: mpsc::Receiver<ToServer>,
    pub(crate) questions: mpsc::Receiver<ToServer>,
    pub(crate) events: mpsc::Receiver<EgressEvent>,
}

/// Writes events, answers, and questions. Returns when the server does not read any more.
pub(crate) async fn report(output: impl AsyncWrite + Unpin, events: Arc<Events>, queues: Queues) {
    let Queues { mut answers, mut questions, events: mut queue } = queues;
    let mut output = BufWriter::new(output);
    loop {
        let message = tokio::select! {
            biased;
            Some(answer) = answers.recv() => answer,
            Some(question) = questions.recv() => question,
            Some(event) = queue.recv() => ToServer::Event(event),
            else => return,
        };
        let lost = events.take_lost();
        let lost = (lost > 0).then_some(ToServer::Lost(lost));
        for message in lost.iter().chain([&message]) {
            if let Err(error) = write(&mut output, message).await {
                tracing::debug!(%error, "the server does not read events");
                return;
            }
        }
        if queue.is_empty() && answers.is_empty() && questions.is_empty() && output.flush().await.is_err() {
            return;
        }
    }
}

async fn write(output: &mut (impl AsyncWrite + Unpin), message: &ToServer) -> Result<(), EgressError> {
    let mut line = serde_json::to_vec(message).map_err(|error| EgressError::Control(error.into()))?;
    line.push(b'\n');
    output.write_all(&line).await.map_err(EgressError::Control)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn follow_text(text: &str, sandboxes: &Sandboxes) -> (Result<(), EgressError>, Vec<ToServer>) {
        let (sender, mut receiver) = mpsc::channel(ANSWERS);
        let owners = Owners::channel(Events::channel().0).0;
        let result = follow(text.as_bytes(), sandboxes, &owners, sender).await;
        let mut answers = Vec::new();
        while let Some(answer) = receiver.recv().await {
            answers.push(answer);
        }
        (result, answers)
    }

    #[tokio::test]
    async fn messages_take_effect_in_order() {
        let sandboxes = Sandboxes::default();
        let text = r#"{"set": {"address": "10.209.0.7", "sandbox": "a", "policy": {"allow": ["a.example"]}}}
{"ready": 1}
{"set": {"address": "10.209.0.8", "sandbox": "b", "policy": {}, "close_open": true}}
{"remove": {"address": "10.209.0.8"}}
{"ready": 2}
{"ready": 3"#;
        let (result, answers) = follow_text(text, &sandboxes).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(answers, [ToServer::Ready(1), ToServer::Ready(2)], "the last one was cut off");
        assert_eq!(sandboxes.find("10.209.0.7".parse().unwrap()).unwrap().id(), "a");
        assert!(sandboxes.find("10.209.0.8".parse().unwrap()).is_none());
    }

    #[tokio::test]
    async fn a_policy_that_can_not_be_compiled_closes_the_sandbox() {
        let sandboxes = Sandboxes::default();
        let text = r#"{"set": {"address": "10.209.0.7", "sandbox": "a", "policy": {"allow": ["a.example"]}}}
{"set": {"address": "10.209.0.7", "sandbox": "a", "policy": {"allow": ["https://x"]}}}
"#;
        let (result, answers) = follow_text(text, &sandboxes).await;
        assert!(result.is_ok());
        assert!(matches!(&answers[..], [ToServer::Refused { code, .. }] if code == "invalid_rule"), "{answers:?}");
        assert!(sandboxes.find("10.209.0.7".parse().unwrap()).is_none());
    }

    #[tokio::test]
    async fn what_is_no_message_ends_the_process() {
        for text in ["{}\n", "{\"sett\": 1}\n", "\n", "{\"set\": {\"address\": \"10.209.0.7\"}}\n"] {
            let (result, _) = follow_text(text, &Sandboxes::default()).await;
            assert!(matches!(result, Err(EgressError::Control(_))), "{text}");
        }
    }
}
