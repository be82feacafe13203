//! Applies rules to requests: the browser pauses each request that may match one, and waits for a decision.
//!
//! ```text
//!  rules ──Fetch.enable──► Chromium ──Fetch.requestPaused──► listener ──► a task: decide, answer
//! ```
//!
//! A separate connection sets this for the whole browser, so rules apply in all tabs, in windows from their first request, in
//! frames, and in workers. It exists only while there are rules. When it ends, the browser releases the paused requests.
//! WebSockets are not paused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::NetworkError;
use super::rules::{Request, Rules, Verdict};
use arenite_guest_cdp::{CdpError, Client, Event, Events, Lost, Target};

/// Timeout for the browser to accept a decision.
const ANSWER: Duration = Duration::from_secs(20);
/// Timeout for loaded pages to be notified.
const REFRESH: Duration = Duration::from_secs(5);
/// Maximum pages, frames, and workers that are notified.
const MAX_TARGETS: usize = 512;
/// Maximum requests that are decided concurrently.
const MAX_HELD: usize = 16_384;
/// Maximum permits for answers that are being sent to the browser; an answer takes one per started MiB.
const MAX_ANSWERS: u32 = 64;

/// The rules, and the connection that applies them in the running browser.
#[derive(Debug, Default)]
pub(crate) struct Network {
    rules: Current,
    /// Held while rules change.
    interception: tokio::sync::Mutex<Option<Interception>>,
}

/// The current rules.
#[derive(Debug, Clone, Default)]
struct Current(Arc<Mutex<Arc<Rules>>>);

impl Current {
    fn lock(&self) -> MutexGuard<'_, Arc<Rules>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.lock())
    }
}

/// A connection that pauses requests in a browser. It closes on drop.
#[derive(Debug)]
struct Interception {
    client: Client,
    port: u16,
    path: String,
    _listener: DropGuard,
}

impl Network {
    /// Ensures that the rules apply in a browser that has just started or lost its connection.
    pub(crate) async fn ensure(&self, port: u16, path: &str) -> Result<(), CdpError> {
        if self.rules.get().is_empty() {
            return Ok(());
        }
        let mut interception = self.interception.lock().await;
        match &*interception {
            Some(there) if there.is_of(port, path) => Ok(()),
            _ => self.apply(&mut interception, port, path).await,
        }
    }

    /// Changes the rules, atomically, and returns when they apply in the browser.
    pub(super) async fn change<T>(
        &self,
        port: u16,
        path: &str,
        change: impl FnOnce(&mut Rules) -> Result<T, NetworkError>,
    ) -> Result<T, NetworkError> {
        let mut interception = self.interception.lock().await;
        let before = self.rules.get();
        let mut rules = Rules::clone(&before);
        let done = change(&mut rules)?;
        *self.rules.lock() = Arc::new(rules);
        if let Err(error) = self.apply(&mut interception, port, path).await {
            // The next call recreates it, with the previous rules.
            *self.rules.lock() = before;
            *interception = None;
            return Err(error.into());
        }
        Ok(done)
    }

    async fn apply(&self, interception: &mut Option<Interception>, port: u16, path: &str) -> Result<(), CdpError> {
        let rules = self.rules.get();
        let there = interception.as_ref().filter(|there| there.is_of(port, path));
        match there {
            Some(there) if rules.is_empty() => {
                let _: IgnoredAny = there.client.call("Fetch.disable", json!({})).await?;
                *interception = None;
            }
            Some(there) => enable(&there.client, &rules).await?,
            None if rules.is_empty() => *interception = None,
            None => {
                // Dropped first, so that the old listener does not continue beside the new one.
                *interception = None;
                *interception = Some(Interception::start(port, path, &self.rules).await?);
            }
        }
        Ok(())
    }
}

impl Interception {
    async fn start(port: u16, path: &str, rules: &Current) -> Result<Self, CdpError> {
        let client = Client::connect(port, path).await?;
        let stopped = CancellationToken::new();
        let listener = stopped.clone();
        let (heard, events, current) = (client.clone(), client.events(), rules.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = listener.cancelled() => {}
                () = listen(&heard, events, &current) => {}
            }
        });
        let this = Self { client, port, path: path.to_owned(), _listener: stopped.drop_guard() };
        enable(&this.client, &rules.get()).await?;
        refresh(&this.client).await;
        Ok(this)
    }

    fn is_of(&self, port: u16, path: &str) -> bool {
        self.port == port && self.path == path && !self.client.is_closed()
    }
}

async fn enable(client: &Client, rules: &Rules) -> Result<(), CdpError> {
    let patterns: Vec<Value> = rules.wildcards().into_iter().map(|wildcards| json!({"urlPattern": wildcards})).collect();
    let _: IgnoredAny = client.call("Fetch.enable", json!({"patterns": patterns})).await?;
    Ok(())
}

/// Applies the rules to loaded pages. Their loaders were created before the browser was asked to pause anything. Enabling
/// interception on a page, even for no URL, recreates its loader.
async fn refresh(client: &Client) {
    let tell = |target: Target| async move {
        let session = client.attach(&target.target_id).await?;
        let nothing = json!({"patterns": [{"urlPattern": "arenite-nothing:"}]});
        let _: IgnoredAny = session.call("Fetch.enable", nothing).await?;
        let _: IgnoredAny = session.call("Fetch.disable", json!({})).await?;
        session.detach().await
    };
    let kinds = ["page", "iframe", "worker", "service_worker", "shared_worker", "webview"];
    let all = async {
        let targets = client.targets().await?.into_iter();
        let some = targets.filter(|target| kinds.contains(&&*target.r#type)).take(MAX_TARGETS);
        // A target may be closed by now, or be of a kind that loads nothing.
        join_all(some.map(tell)).await;
        Ok::<_, CdpError>(())
    };
    match timeout(REFRESH, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the browser's pages can't be told of rules for requests"),
        Err(_) => tracing::debug!("the browser's pages were slow to be told of rules for requests"),
    }
}

/// Decides on paused requests until the connection ends.
async fn listen(client: &Client, mut events: Events, rules: &Current) {
    let (held, answers) = (Arc::new(Semaphore::new(MAX_HELD)), Arc::new(Semaphore::new(MAX_ANSWERS as usize)));
    loop {
        match events.next().await {
            Ok(event) if event.method == "Fetch.requestPaused" => {
                let Ok(permit) = Arc::clone(&held).acquire_owned().await else { return };
                let (client, rules, answers) = (client.clone(), rules.get(), Arc::clone(&answers));
                tokio::spawn(async move {
                    decide(&client, &event, &rules, &answers).await;
                    drop(permit);
                });
            }
            Ok(_) => {}
            // Some paused requests are unknown: release all of them in the browser, and start again.
            Err(Lost::Behind(missed)) => {
                tracing::warn!(missed, "requests came faster than rules for them were looked at");
                if let Err(error) = again(client, rules).await {
                    tracing::warn!(%error, "rules for requests don't hold until the next call");
                    return;
                }
            }
            Err(Lost::Closed) => return,
        }
    }
}

async fn again(client: &Client, current: &Current) -> Result<(), CdpError> {
    let _: IgnoredAny = client.call("Fetch.disable", json!({})).await?;
    loop {
        let rules = current.get();
        enable(client, &rules).await?;
        // The rules may have changed meanwhile.
        if Arc::ptr_eq(&rules, &current.get()) {
            break;
        }
    }
    refresh(client).await;
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Paused {
    request_id: String,
    request: Request,
}

/// Sends the decision for a request to the browser. If that fails, nothing waits for the request any more.
async fn decide(client: &Client, event: &Event, rules: &Rules, answers: &Semaphore) {
    let Paused { request_id: id, request } = match event.read() {
        Ok(paused) => paused,
        Err(error) => return tracing::warn!(%error, "the browser holds a request that can't be read"),
    };
    let verdict = rules.decide(&request);
    let size = if let Verdict::Answer { body, .. } = &verdict { body.len() >> 20 } else { 0 };
    let permits = (u32::try_from(size).unwrap_or(MAX_ANSWERS) + 1).min(MAX_ANSWERS);
    let Ok(_permit) = answers.acquire_many(permits).await else { return };
    let (method, params) = match verdict {
        Verdict::Pass => ("Fetch.continueRequest", json!({"requestId": id})),
        Verdict::Headers(headers) => ("Fetch.continueRequest", json!({"requestId": id, "headers": headers})),
        Verdict::Abort => ("Fetch.failRequest", json!({"requestId": id, "errorReason": "Failed"})),
        Verdict::Answer { status, headers, body } => {
            ("Fetch.fulfillRequest", json!({"requestId": id, "responseCode": status, "responseHeaders": headers, "body": &*body}))
        }
    };
    let answered: Result<IgnoredAny, _> = client.send(None, method, params, ANSWER).await;
    if let Err(error @ CdpError::Refused { .. }) = answered {
        tracing::debug!(%error, method, "the browser takes no such answer for a request");
        // No request may hang because of it.
        let _: Result<IgnoredAny, _> = client.send(None, "Fetch.continueRequest", json!({"requestId": id}), ANSWER).await;
    }
}
