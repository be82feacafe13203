//! Changes of sandboxes as events, in one bounded history.
//!
//! ```text
//!  change of a sandbox ──► history ◄── readers, each with a position
//! ```
//!
//! Readers hold only a position and read the history from there, so a slow one costs no memory. One that falls behind the
//! history learns that it missed events, and goes on with the oldest one that is left.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_model::{Death, PauseKind, SandboxId, SandboxName, SandboxState, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::Sandbox;

/// The most events in the history, and their most bytes, estimated.
const KEPT: usize = 8_192;
const KEPT_BYTES: usize = 16 << 20;
/// Estimated size of an event without its labels and its reason.
const BASE_BYTES: usize = 512;

/// What happened to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum EventKind {
    /// Its creation started.
    #[serde(rename = "sandbox.creating")]
    Creating,
    /// It was taken from a warm pool; `sandbox.created` follows.
    #[serde(rename = "sandbox.claimed")]
    Claimed,
    /// It runs for the first time.
    #[serde(rename = "sandbox.created")]
    Created,
    /// Its creation failed or was cancelled, and nothing is left of it.
    #[serde(rename = "sandbox.create_failed")]
    CreateFailed,
    #[serde(rename = "sandbox.paused")]
    Paused,
    #[serde(rename = "sandbox.resumed")]
    Resumed,
    /// It failed or was lost; the reason says why. Its files are kept.
    #[serde(rename = "sandbox.died")]
    Died,
    /// It runs again after it died.
    #[serde(rename = "sandbox.started")]
    Started,
    /// Its lifetime was extended.
    #[serde(rename = "sandbox.extended")]
    Extended,
    /// Something else of it changed, such as its labels.
    #[serde(rename = "sandbox.changed")]
    Changed,
    /// It was taken out of quarantine.
    #[serde(rename = "sandbox.adopted")]
    Adopted,
    /// Its deletion started.
    #[serde(rename = "sandbox.deleting")]
    Deleting,
    /// It does not exist any more.
    #[serde(rename = "sandbox.deleted")]
    Deleted,
}

impl EventKind {
    pub const ALL: [Self; 13] = [
        Self::Creating,
        Self::Claimed,
        Self::Created,
        Self::CreateFailed,
        Self::Paused,
        Self::Resumed,
        Self::Died,
        Self::Started,
        Self::Extended,
        Self::Changed,
        Self::Adopted,
        Self::Deleting,
        Self::Deleted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "sandbox.creating",
            Self::Claimed => "sandbox.claimed",
            Self::Created => "sandbox.created",
            Self::CreateFailed => "sandbox.create_failed",
            Self::Paused => "sandbox.paused",
            Self::Resumed => "sandbox.resumed",
            Self::Died => "sandbox.died",
            Self::Started => "sandbox.started",
            Self::Extended => "sandbox.extended",
            Self::Changed => "sandbox.changed",
            Self::Adopted => "sandbox.adopted",
            Self::Deleting => "sandbox.deleting",
            Self::Deleted => "sandbox.deleted",
        }
    }

    /// The event of a sandbox with this state before and after a change.
    fn of_states(before: SandboxState, after: SandboxState) -> Self {
        use SandboxState::{Creating, Deleting, Failed, Lost, Paused, Running};
        match (before, after) {
            (before, after) if before == after => Self::Changed,
            (Creating, Running) => Self::Created,
            (Paused, Running) => Self::Resumed,
            (_, Running) => Self::Started,
            (_, Paused) => Self::Paused,
            (_, Failed | Lost) => Self::Died,
            (_, Deleting) => Self::Deleting,
            (_, Creating) => Self::Creating,
        }
    }

    pub(crate) fn of_change(before: &Sandbox, after: &Sandbox) -> Self {
        let is_later = match (before.expires_at, after.expires_at) {
            (Some(before), Some(after)) => before < after,
            (before, after) => before.is_some() && after.is_none(),
        };
        match Self::of_states(before.state, after.state) {
            Self::Changed if before.pause() != after.pause() => Self::Paused,
            Self::Changed if is_later => Self::Extended,
            kind => kind,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EventKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
            format!("a type of event is one of {}", all.join(", "))
        })
    }
}

/// Identifies an event. Numbers grow by one; each start of a server has another epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId {
    epoch: u64,
    number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.epoch, self.number)
    }
}

impl FromStr for EventId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once('-')
            .and_then(|(epoch, number)| Some(Self { epoch: u64::from_str_radix(epoch, 16).ok()?, number: number.parse().ok()? }));
        parsed.ok_or_else(|| format!("invalid event id {:?}", text.chars().take(80).collect::<String>()))
    }
}

/// A change of a sandbox.
#[derive(Debug, Clone)]
pub struct Event {
    pub event: EventId,
    pub at: Timestamp,
    pub kind: EventKind,
    pub tenant: TenantId,
    pub id: SandboxId,
    pub name: SandboxName,
    pub labels: Arc<BTreeMap<String, String>>,
    /// None: the sandbox is gone.
    pub state: Option<SandboxState>,
    /// None: it is not paused.
    pub pause_kind: Option<PauseKind>,
    /// Why it died.
    pub reason: Option<String>,
    /// The same with its kind; also why it is deleted.
    pub died: Option<Death>,
    /// When its lifetime ends.
    pub expires_at: Option<Timestamp>,
}

impl Event {
    fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 64).sum();
        let died = self.died.as_ref().map_or(0, |death| death.message.len());
        BASE_BYTES + labels + self.reason.as_ref().map_or(0, String::len) + died
    }
}

/// A reader fell behind the history, or it continues after an event that the history does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("events are missing")]
pub struct MissedEvents;

/// Why there is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoEvent {
    #[error("nothing has happened yet")]
    Yet,
    #[error(transparent)]
    Missed(#[from] MissedEvents),
}

/// The history of a server.
pub(crate) struct Events {
    epoch: u64,
    history: Mutex<History>,
    /// The number of the last event.
    latest: watch::Sender<u64>,
}

#[derive(Default)]
struct History {
    events: VecDeque<Event>,
    bytes: usize,
    /// The number of the last event.
    latest: u64,
}

impl History {
    /// The number of the oldest event, or of the next one.
    fn first(&self) -> u64 {
        self.latest + 1 - self.events.len() as u64
    }
}

impl Events {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            epoch: u64::try_from(now.as_microsecond()).unwrap_or_default(),
            history: Mutex::default(),
            latest: watch::Sender::new(0),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, kind: EventKind, sandbox: &Sandbox, at: Timestamp) {
        let is_gone = matches!(kind, EventKind::Deleted | EventKind::CreateFailed);
        let mut history = self.history();
        history.latest += 1;
        let event = Event {
            event: EventId { epoch: self.epoch, number: history.latest },
            at,
            kind,
            tenant: sandbox.tenant.clone(),
            id: sandbox.id.clone(),
            name: sandbox.name.clone(),
            labels: Arc::new(sandbox.spec.labels.clone()),
            state: (!is_gone).then_some(sandbox.state),
            pause_kind: sandbox.pause(),
            reason: sandbox.reason.clone(),
            died: sandbox.died.clone(),
            expires_at: sandbox.expires_at,
        };
        history.bytes += event.bytes();
        history.events.push_back(event);
        while history.events.len() > KEPT || history.bytes > KEPT_BYTES && history.events.len() > 1 {
            let bytes = history.events.pop_front().map_or(0, |event| event.bytes());
            history.bytes -= bytes;
        }
        // While the history is locked, so that numbers only grow.
        self.latest.send_replace(history.latest);
    }

    /// A reader of all events from now on.
    pub(crate) fn subscribe(self: &Arc<Self>) -> EventReader {
        let next = self.history().latest + 1;
        self.read_from(next, false)
    }

    /// A reader of the history and of all events from now on.
    pub(crate) fn read_all(self: &Arc<Self>) -> EventReader {
        let next = self.history().first();
        self.read_from(next, false)
    }

    /// A reader that continues after an event.
    pub(crate) fn read_after(self: &Arc<Self>, event: EventId) -> EventReader {
        let (first, latest) = {
            let history = self.history();
            (history.first(), history.latest)
        };
        if event.epoch == self.epoch && event.number <= latest {
            self.read_from(event.number + 1, false)
        } else {
            self.read_from(first, true)
        }
    }

    fn read_from(self: &Arc<Self>, next: u64, missed: bool) -> EventReader {
        EventReader { latest: self.latest.subscribe(), events: Arc::clone(self), next, missed }
    }
}

/// Reads events in their order.
pub struct EventReader {
    events: Arc<Events>,
    latest: watch::Receiver<u64>,
    /// The number of the next event.
    next: u64,
    missed: bool,
}

impl EventReader {
    /// The next event, as soon as there is one. A call that is cancelled loses none.
    pub async fn recv(&mut self) -> Result<Event, MissedEvents> {
        loop {
            self.latest.mark_unchanged();
            match self.try_recv() {
                Ok(event) => return Ok(event),
                Err(NoEvent::Missed(missed)) => return Err(missed),
                // The sender lives as long as the history that this reader holds.
                Err(NoEvent::Yet) => {
                    let _ = self.latest.changed().await;
                }
            }
        }
    }

    /// The next event, if it has happened.
    pub fn try_recv(&mut self) -> Result<Event, NoEvent> {
        let history = self.events.history();
        let first = history.first();
        if std::mem::take(&mut self.missed) || self.next < first {
            self.next = self.next.max(first);
            return Err(MissedEvents.into());
        }
        let found = usize::try_from(self.next - first).ok().and_then(|at| history.events.get(at));
        let event = found.cloned().ok_or(NoEvent::Yet)?;
        self.next += 1;
        Ok(event)
    }

    /// The event up to which it has read everything.
    pub fn position(&self) -> EventId {
        EventId { epoch: self.events.epoch, number: self.next - 1 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arenite_model::SandboxSpec;

    use super::*;

    fn sandbox(labels: usize) -> Sandbox {
        let at = Timestamp::UNIX_EPOCH;
        let mut spec = SandboxSpec::of_image("base".parse().unwrap());
        spec.labels = (0..labels).map(|n| (format!("{n:04}"), "x".repeat(1000))).collect();
        Sandbox {
            id: SandboxId::random(),
            tenant: TenantId::default_tenant(),
            name: "demo".parse().unwrap(),
            state: SandboxState::Running,
            pause_kind: None,
            spec,
            template: None,
            reason: None,
            died: None,
            revision: 1,
            isolation: Vec::new(),
            origin: String::new(),
            created_at: at,
            last_used_at: at,
            state_since: at,
            expires_at: None,
            provenance: crate::Provenance::default(),
            stages: Vec::new(),
            node: None,
        }
    }

    fn events() -> Arc<Events> {
        Arc::new(Events::new(Timestamp::now()))
    }

    fn number(event: Event) -> u64 {
        event.event.number
    }

    #[test]
    fn types_and_ids_are_read_as_they_are_written() {
        for kind in EventKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        let id = EventId { epoch: 0xfe, number: 12 };
        assert_eq!(id.to_string(), "fe-12");
        assert_eq!("fe-12".parse(), Ok(id));
        for bad in ["", "-", "fe", "fe-", "-1", "fe-x", "xyz-1", "fe--1", "1-99999999999999999999999"] {
            assert!(bad.parse::<EventId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_change_is_named_by_what_it_changed() {
        let before = sandbox(0);
        let changed = |change: fn(&mut Sandbox)| {
            let mut after = before.clone();
            change(&mut after);
            EventKind::of_change(&before, &after)
        };
        assert_eq!(changed(|after| after.state = SandboxState::Paused), EventKind::Paused);
        assert_eq!(changed(|after| after.state = SandboxState::Lost), EventKind::Died);
        assert_eq!(changed(|after| after.spec.labels.clear()), EventKind::Changed);
        assert_eq!(changed(|after| after.expires_at = Some(Timestamp::MAX)), EventKind::Changed, "it was endless");
        let limited = Sandbox { expires_at: Some(Timestamp::UNIX_EPOCH), ..before.clone() };
        assert_eq!(EventKind::of_change(&limited, &before), EventKind::Extended);
        let died = Sandbox { state: SandboxState::Failed, ..before.clone() };
        assert_eq!(EventKind::of_change(&died, &before), EventKind::Started);
    }

    #[tokio::test]
    async fn readers_go_on_where_they_were_and_learn_what_they_missed() {
        let (events, sandbox) = (events(), sandbox(0));
        let publish = |times: usize| {
            for _ in 0..times {
                events.publish(EventKind::Paused, &sandbox, Timestamp::now());
            }
        };
        publish(2);
        let mut from_now = events.subscribe();
        assert_eq!(from_now.try_recv().unwrap_err(), NoEvent::Yet);
        assert_eq!(number(events.read_all().recv().await.unwrap()), 1);
        publish(1);
        let third = from_now.recv().await.unwrap();
        assert_eq!(from_now.position(), third.event);
        publish(1);
        assert_eq!(number(events.read_after(third.event).recv().await.unwrap()), 4);

        let waiting = tokio::spawn(async move {
            from_now.recv().await.unwrap();
            from_now.recv().await
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        publish(1);
        assert_eq!(number(waiting.await.unwrap().unwrap()), 5);

        publish(KEPT);
        let mut late = events.read_after(third.event);
        assert_eq!(late.recv().await.unwrap_err(), MissedEvents);
        assert_eq!(number(late.recv().await.unwrap()), 6);

        // Of an earlier start, and of the future.
        for unknown in [EventId { epoch: 1, number: 3 }, EventId { number: u64::MAX, ..third.event }] {
            let mut reader = events.read_after(unknown);
            assert_eq!(reader.recv().await.unwrap_err(), MissedEvents);
            assert_eq!(number(reader.recv().await.unwrap()), 6);
        }
    }

    #[test]
    fn large_labels_shorten_the_history() {
        let (events, sandbox) = (events(), sandbox(64));
        for _ in 0..1000 {
            events.publish(EventKind::Paused, &sandbox, Timestamp::now());
        }
        let history = events.history();
        assert!(history.bytes <= KEPT_BYTES && history.events.len() < 300);
        assert_eq!(history.bytes, history.events.iter().map(Event::bytes).sum::<usize>());
    }
}
