//! Which process of a sandbox made a connection. This process has no rights to see that, so it asks the server.
//!
//! ```text
//!  accepted ──► Owners::ask ──{"owner": …}──► server ──{"owned": …}──► Owner
//!      └─ decided ──► event ──────────── waits there for the answer ─────► published
//! ```
//!
//! Connections don't wait for answers. Only refusals do, for a moment: the end of a refused connection often ends its process.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::NetworkProcess;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use crate::control::ToServer;
use crate::dns::{Bound, Load};
use crate::events::{EgressEvent, Events};
use crate::sandbox::Sandbox;

/// Questions without an answer. Beyond it, nothing is asked, and events name no process.
const QUESTIONS: Bound = Bound { of_one: 64, of_all: 1_024 };
/// How long events wait for the answer.
const ANSWER: Duration = Duration::from_millis(250);
/// How long a refusal waits for it.
const REFUSAL: Duration = Duration::from_millis(10);
/// Events of a connection that wait.
const WAITING: usize = 32;

/// A question to the server: which process has that socket?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerQuestion {
    /// For the answer.
    pub number: u64,
    pub sandbox: String,
    pub transport: SocketTransport,
    /// The socket's own address, in the sandbox.
    pub client: SocketAddr,
    /// To which it sends, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketTransport {
    Tcp,
    Udp,
}

/// Asks, and hands out the answers.
#[derive(Debug)]
pub(crate) struct Owners {
    questions: mpsc::Sender<ToServer>,
    pending: Mutex<HashMap<u64, oneshot::Sender<Option<NetworkProcess>>>>,
    load: Arc<Load<Arc<str>>>,
    number: AtomicU64,
    events: Arc<Events>,
}

impl Owners {
    pub(crate) fn channel(events: Arc<Events>) -> (Arc<Self>, mpsc::Receiver<ToServer>) {
        let (questions, receiver) = mpsc::channel(QUESTIONS.of_all);
        let (pending, load, number) = (Mutex::default(), Load::new(QUESTIONS), AtomicU64::new(1));
        (Arc::new(Self { questions, pending, load, number, events }), receiver)
    }

    /// Asks who has a socket, without waiting.
    pub(crate) fn ask(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        transport: SocketTransport,
        client: SocketAddr,
        server: Option<SocketAddr>,
    ) -> Arc<Owner> {
        let Some(slot) = self.load.enter(sandbox.shared_id()) else { return Owner::unknown() };
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let question = OwnerQuestion { number, sandbox: sandbox.id().to_owned(), transport, client, server };
        let (answer, answered) = oneshot::channel();
        self.pending().insert(number, answer);
        if self.questions.try_send(ToServer::Owner(question)).is_err() {
            self.pending().remove(&number);
            return Owner::unknown();
        }
        let owner = Arc::new(Owner::default());
        let (owners, asked, sandbox) = (self.clone(), owner.clone(), sandbox.clone());
        tokio::spawn(async move {
            let _slot = slot;
            let process = timeout(ANSWER, answered).await.ok().and_then(Result::ok).flatten();
            owners.pending().remove(&number);
            for (event, counts) in asked.resolve(process.map(|process| masked(process, &sandbox))) {
                owners.events.publish(event, counts);
            }
        });
        owner
    }

    /// The server's answer. One that is late has no effect.
    pub(crate) fn answer(&self, number: u64, process: Option<NetworkProcess>) {
        if let Some(answer) = self.pending().remove(&number) {
            // The question was given up.
            let _ = answer.send(process);
        }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Option<NetworkProcess>>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its texts without values of secrets, which it should not have.
fn masked(process: NetworkProcess, sandbox: &Sandbox) -> NetworkProcess {
    let Some(secrets) = sandbox.secrets() else { return process };
    let show = |text: &str, most: usize| {
        let shown = secrets.show(text);
        shown[..shown.floor_char_boundary(most)].to_owned()
    };
    NetworkProcess {
        name: show(&process.name, NetworkProcess::MAX_NAME),
        command: show(&process.command, NetworkProcess::MAX_COMMAND),
        ..process
    }
}

/// The process of a connection, as soon as it is known, and the events that wait for that.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    state: Mutex<State>,
    known: Notify,
}

#[derive(Debug)]
enum State {
    Asked(Vec<(EgressEvent, bool)>),
    Known(Option<NetworkProcess>),
}

impl Default for State {
    fn default() -> Self {
        Self::Asked(Vec::new())
    }
}

impl Owner {
    fn unknown() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Known(None)), known: Notify::new() })
    }

    /// The event with its process, or none if it waits. `counts` is for [`Events::publish`].
    pub(crate) fn attach(&self, mut event: EgressEvent, counts: bool) -> Option<EgressEvent> {
        match &mut *self.state() {
            State::Asked(waiting) => {
                // Datagrams are refused faster than the answer comes.
                if let Some((last, true)) = waiting.last_mut()
                    && counts
                    && last.is_same_refusal(&event)
                {
                    last.count += event.count;
                    return None;
                }
                if waiting.len() < WAITING {
                    waiting.push((event, counts));
                    return None;
                }
            }
            State::Known(process) => event.process.clone_from(process),
        }
        Some(event)
    }

    /// Waits a moment for the answer, before a client learns that it is refused.
    pub(crate) async fn settle(&self) {
        let mut known = std::pin::pin!(self.known.notified());
        known.as_mut().enable();
        if matches!(*self.state(), State::Asked(_)) {
            // It goes on without it.
            let _ = timeout(REFUSAL, known).await;
        }
    }

    fn resolve(&self, process: Option<NetworkProcess>) -> Vec<(EgressEvent, bool)> {
        let earlier = std::mem::replace(&mut *self.state(), State::Known(process.clone()));
        self.known.notify_waiters();
        let State::Asked(waiting) = earlier else { return Vec::new() };
        waiting.into_iter().map(|(event, counts)| (EgressEvent { process: process.clone(), ..event }, counts)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
