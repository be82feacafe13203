//! Sessions with targets, and their events.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::client::{CALL_TIME, CdpError, Client};

/// A session with one target; cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    id: Arc<str>,
}

impl Session {
    pub(super) fn new(client: Client, id: Arc<str>) -> Self {
        Self { client, id }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Calls a method of the target, and waits up to [`CALL_TIME`] for the answer.
    pub async fn call<R: DeserializeOwned>(&self, method: &'static str, params: impl Serialize) -> Result<R, CdpError> {
        self.call_within(method, params, CALL_TIME).await
    }

    pub async fn call_within<R: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize,
        patience: Duration,
    ) -> Result<R, CdpError> {
        self.client.send(Some(&self.id), method, params, patience).await
    }

    /// As [`Self::call_within`]; returns the result as JSON text.
    pub async fn exchange(&self, method: &'static str, params: Value, patience: Duration) -> Result<Box<RawValue>, CdpError> {
        self.client.exchange(Some(&self.id), method, params, patience).await
    }

    /// Subscribes to the target's events. Subscribe before the call that causes them.
    pub fn events(&self) -> Events {
        self.client.events_of(self.id.clone())
    }

    /// Ends the session; the target stays.
    pub async fn detach(self) -> Result<(), CdpError> {
        let _: serde::de::IgnoredAny = self.client.call("Target.detachFromTarget", json!({"sessionId": &*self.id})).await?;
        Ok(())
    }
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// `None`: an event of the browser itself.
    pub session: Option<String>,
    pub method: String,
    pub params: Box<RawValue>,
}

impl Event {
    /// Parses the parameters into `P`.
    pub fn read<'a, P: serde::Deserialize<'a>>(&'a self) -> Result<P, serde_json::Error> {
        serde_json::from_str(self.params.get())
    }
}

/// Why there is no next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The listener was too slow: query the state again, then continue.
    #[error("{0} events of the browser were missed")]
    Behind(u64),
    #[error("the browser has ended")]
    Closed,
}

/// A subscription to events.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Arc<Event>>,
    closed: CancellationToken,
    session: Option<Arc<str>>,
}

impl Events {
    pub(super) fn new(receiver: broadcast::Receiver<Arc<Event>>, closed: CancellationToken, session: Option<Arc<str>>) -> Self {
        Self { receiver, closed, session }
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next(&mut self) -> Result<Arc<Event>, Lost> {
        loop {
            let received = tokio::select! {
                biased;
                received = self.receiver.recv() => received,
                () = self.closed.cancelled() => return Err(Lost::Closed),
            };
            match received {
                Ok(event) if self.session.is_none() || event.session.as_deref() == self.session.as_deref() => return Ok(event),
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => return Err(Lost::Behind(missed)),
                Err(RecvError::Closed) => return Err(Lost::Closed),
            }
        }
    }
}
