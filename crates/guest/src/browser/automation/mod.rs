//! A connection of our own that knows the browser's tabs, what is in them and what happens there.
//!
//! ```text
//!  Chromium ──events──► pump ──notes──► Tab: frames and their worlds, dialog, console, requests under way
//!                         └─ a new tab ──► attach ──► Tab is ready
//!  operations ──calls──► a Tab's session, and wait for what the pump notes
//! ```
//!
//! It is made by the first operation that works in pages, and again when its connection broke or fell behind. Only tabs of the
//! person's own profile are known: those that other clients open in contexts of theirs are theirs. Tabs are attached to one
//! by one. An attachment by the browser itself (`Target.setAutoAttach`) would hold up the windows that pages open.
//!
//! The pump never waits for anything: what takes an answer of the browser is done beside it.

mod dialogs;
mod downloads;
mod pump;
mod tab;
mod tabs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::watch;

use super::cdp::{CdpError, Client};
use super::network::Traffic;
pub(in crate::browser) use dialogs::{AnsweredDialog, Dialog, DialogAnswer};
pub(crate) use downloads::{Download, Progress};
pub(super) use pump::{described, exception};
pub(super) use tab::{Frame, HELD, Message, Stage, Tab, TabState, World};
use tabs::Tabs;

/// Our own JavaScript in every frame, in a world beside the page's: pages can't see or change it.
pub(super) const WORLD: &str = "arenite";

/// A connection, and what is known over it.
#[derive(Debug)]
pub(super) struct Automation {
    client: Client,
    /// The context of the person's own profile.
    context: String,
    tabs: Mutex<Tabs>,
    downloads: downloads::Downloads,
    traffic: Mutex<Traffic>,
    /// Told whenever a tab came, went or was chosen.
    changed: watch::Sender<()>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Automation {
    pub(super) async fn start(port: u16, path: &str) -> Result<Arc<Self>, CdpError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Contexts {
            default_browser_context_id: String,
        }
        let client = Client::connect(port, path).await?;
        let contexts: Contexts = client.call("Target.getBrowserContexts", json!({})).await?;
        let automation = Arc::new(Self {
            context: contexts.default_browser_context_id,
            tabs: Mutex::default(),
            downloads: Default::default(),
            traffic: Mutex::default(),
            changed: watch::Sender::new(()),
            client,
        });
        tokio::spawn(pump::run(automation.client.events(), Arc::downgrade(&automation)));
        // From here on the browser tells of its tabs, first of those that are there.
        let call = |method, params| automation.client.call::<IgnoredAny>(method, params);
        let downloads = json!({"behavior": "default", "eventsEnabled": true});
        tokio::try_join!(
            call("Target.setDiscoverTargets", json!({"discover": true})),
            call("Browser.setDownloadBehavior", downloads)
        )?;
        Ok(automation)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// What is known of the pages' requests.
    pub(super) fn traffic(&self) -> MutexGuard<'_, Traffic> {
        lock(&self.traffic)
    }

    pub(super) fn downloads(&self) -> &downloads::Downloads {
        &self.downloads
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn tabs(&self) -> MutexGuard<'_, Tabs> {
        lock(&self.tabs)
    }
}
