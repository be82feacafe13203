//! Each decision as an event, on a bounded channel that never makes a connection wait.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arenite_model::{NetworkProcess, SshLogin};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::owner::Owner;
use crate::policy::{Decision, Reason};
use crate::refusals::{Refusals, Repetition};

/// Events that wait for the server.
const QUEUE: usize = 8_192;
/// Names, methods, and paths in events, in characters.
const MAX_TEXT: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A name was asked for.
    Dns,
    Tls,
    /// One request of HTTP.
    Http,
    /// One request of HTTP in TLS that the proxy ended.
    Https,
    /// A connection to Postgres of which the proxy does the login.
    Postgres,
    /// A login by SSH with a key of a secret. The server itself decides on it, and not the proxy.
    Ssh,
    /// TCP in which no name is seen.
    Tcp,
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Something was allowed or refused.
    Decision,
    /// A connection ended that was allowed before. Bytes and duration are its own.
    End,
}

/// A decision, or the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEvent {
    pub time: Timestamp,
    pub kind: EventKind,
    pub sandbox: String,
    pub protocol: Protocol,
    /// Number of the connection in this process; the same in its decisions and its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// To which the proxy connected, or the client wanted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    pub port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    pub allowed: bool,
    pub reason: Reason,
    /// How many decisions this stands for: equal refusals of a second are one event and, at its end, another with the rest.
    pub count: u64,
    /// By the sandbox.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub duration_ms: u64,
    /// That made the connection or sent the query, where it was found. Equal refusals of different processes have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<NetworkProcess>,
    /// Only in events of SSH. Without a known server, they have no name and the port 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Box<SshLogin>>,
}

impl EgressEvent {
    /// A decision on a login by SSH, to a server and its port if they are known.
    pub fn ssh(sandbox: &str, server: Option<(String, u16)>, reason: Reason, login: SshLogin) -> Self {
        let (name, port) = server.map_or((None, 0), |(name, port)| (Some(name), port));
        let decision = Decision { allowed: reason == Reason::Signed, rule: None, reason };
        Self {
            ssh: Some(Box::new(login)),
            ..Draft { name: name.as_deref(), ..Draft::new(sandbox, Protocol::Ssh, port) }.event(&decision)
        }
    }

    pub(crate) fn is_same_refusal(&self, other: &Self) -> bool {
        let key = |event: &Self| (event.kind, event.protocol, event.name.clone(), event.address, event.port, event.reason);
        !self.allowed && !other.allowed && self.method.is_none() && key(self) == key(other)
    }
}

/// What is decided on.
#[derive(Debug, Clone)]
pub(crate) struct Draft<'a> {
    pub(crate) sandbox: &'a str,
    pub(crate) protocol: Protocol,
    pub(crate) connection: Option<u64>,
    pub(crate) name: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) method: Option<&'a str>,
    pub(crate) path: Option<&'a str>,
    /// Events wait for it. None: nobody was asked.
    pub(crate) owner: Option<&'a Owner>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(sandbox: &'a str, protocol: Protocol, port: u16) -> Self {
        Self { sandbox, protocol, connection: None, name: None, address: None, port, method: None, path: None, owner: None }
    }

    fn event(&self, decision: &Decision) -> EgressEvent {
        let text = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
        EgressEvent {
            time: Timestamp::now(),
            kind: EventKind::Decision,
            sandbox: self.sandbox.to_owned(),
            protocol: self.protocol,
            connection: self.connection,
            name: self.name.map(text),
            address: self.address,
            port: self.port,
            method: self.method.map(text),
            path: self.path.map(text),
            rule: decision.rule.as_deref().map(text),
            allowed: decision.allowed,
            reason: decision.reason,
            count: 1,
            bytes_sent: 0,
            bytes_received: 0,
            duration_ms: 0,
            process: None,
            ssh: None,
        }
    }
}

/// The end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) duration: Duration,
}

/// Takes events without ever waiting. What does not fit is counted.
#[derive(Debug)]
pub(crate) struct Events {
    sender: mpsc::Sender<EgressEvent>,
    lost: AtomicU64,
    refusals: Refusals,
}

impl Events {
    pub(crate) fn channel() -> (Arc<Self>, mpsc::Receiver<EgressEvent>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Arc::new(Self { sender, lost: AtomicU64::new(0), refusals: Refusals::default() }), receiver)
    }

    /// The number of events that were lost since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn decided(self: &Arc<Self>, draft: &Draft<'_>, decision: &Decision) {
        self.emit(draft, draft.event(decision), true);
    }

    /// A refusal that belongs to another one: it is an event only if that one was none.
    pub(crate) fn refused_again(self: &Arc<Self>, draft: &Draft<'_>, decision: &Decision) {
        if !decision.allowed {
            self.emit(draft, draft.event(decision), false);
        }
    }

    pub(crate) fn ended(self: &Arc<Self>, draft: &Draft<'_>, decision: &Decision, traffic: Traffic) {
        let event = EgressEvent {
            kind: EventKind::End,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            duration_ms: u64::try_from(traffic.duration.as_millis()).unwrap_or(u64::MAX),
            ..draft.event(decision)
        };
        self.emit(draft, event, true);
    }

    fn emit(self: &Arc<Self>, draft: &Draft<'_>, event: EgressEvent, counts: bool) {
        let event = match draft.owner {
            Some(owner) => owner.attach(event, counts),
            None => Some(event),
        };
        if let Some(event) = event {
            self.publish(event, counts);
        }
    }

    /// Sends an event, or counts it among equal ones. A refusal that does not count is an event only if no equal one was.
    pub(crate) fn publish(self: &Arc<Self>, event: EgressEvent, counts: bool) {
        if event.allowed { self.send(event) } else { self.refuse(event, counts) }
    }

    fn refuse(self: &Arc<Self>, event: EgressEvent, counts: bool) {
        let (repetition, opens_window) = self.refusals.note(&event, counts);
        if repetition == Repetition::First {
            self.send(event);
        }
        if opens_window {
            let events = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Refusals::WINDOW).await;
                events.refusals.take().into_iter().for_each(|event| events.send(event));
            });
        }
    }

    fn send(&self, event: EgressEvent) {
        if self.sender.try_send(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_lost_and_counted_if_nobody_reads() {
        let (events, mut queue) = Events::channel();
        let decision = Decision { allowed: true, rule: Some("a.example".into()), reason: Reason::Rule };
        let draft = Draft { name: Some("a.example"), ..Draft::new("box", Protocol::Tls, 443) };
        for _ in 0..QUEUE + 3 {
            events.decided(&draft, &decision);
        }
        assert_eq!((events.take_lost(), events.take_lost()), (3, 0));
        let event = queue.recv().await.unwrap();
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains(r#""kind":"decision","sandbox":"box","protocol":"tls","name":"a.example","port":443"#), "{text}");
        assert_eq!(serde_json::from_str::<EgressEvent>(&text).unwrap(), event);
    }

    #[tokio::test(start_paused = true)]
    async fn different_refusals_of_a_sandbox_are_bounded() {
        let (events, mut queue) = Events::channel();
        for sandbox in ["loud", "quiet"] {
            for n in 0..if sandbox == "loud" { 5_000 } else { 10 } {
                let name = format!("{n}.example");
                let draft = Draft { name: Some(&name), ..Draft::new(sandbox, Protocol::Dns, 53) };
                events.decided(&draft, &Decision::refused(Reason::NoRule));
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut seen = (0, 0, 0);
        while let Ok(event) = queue.try_recv() {
            match event.sandbox.as_str() {
                "loud" => seen = (seen.0 + 1, seen.1 + event.count, seen.2),
                _ => seen.2 += event.count,
            }
        }
        assert_eq!(seen, (258, 5_000, 10), "the first ones, one for the rest, and its number");
    }
}
