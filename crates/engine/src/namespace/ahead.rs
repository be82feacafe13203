//! Complete sandboxes created in advance, and assigned on request.
//!
//! Beyond a slot, which waits for its spec, the guest of such a sandbox runs, and a Jupyter kernel in it if its image has one:
//! that takes half a second, which no caller should wait for. What depends on the request comes last: name, host name,
//! environment, directory and main command.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use arenite_isolation::uts;
use arenite_model::protocol::{ACTIVITY_PATH, Activity, BECOME_PATH, Become, PREPARE_PATH};
use arenite_model::{SandboxId, SandboxName, SandboxSpec, Tier};
use tokio::net::UnixStream;

use super::at;
use super::engine::{NamespaceEngine, guest_config};
use super::guest_calls::{Guest, ask};
use crate::{Created, Engine, EngineError, Row};

/// Time for a guest to start its runtimes.
const PREPARE_LIMIT: Duration = Duration::from_secs(90);
/// Time for a guest to apply the request's spec.
const BECOME_LIMIT: Duration = Duration::from_secs(5);
/// Time for a guest to report its activity.
const ACTIVITY_LIMIT: Duration = Duration::from_secs(2);

impl NamespaceEngine {
    pub(super) async fn make_ahead(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        if self.tier(spec).await? == Tier::Gvisor {
            return Err(EngineError::Unsupported {
                what: "a pool of sandboxes under gVisor".to_owned(),
                reason: "their host name can't be set after their start".to_owned(),
            });
        }
        let id = self.reserve().await?;
        let name: SandboxName = id.as_str().parse().map_err(|error| at("name", io::Error::other(error)))?;
        self.start_sandbox(&id, &name, None, spec).await?;
        let socket = self.shared.host.records.socket(&id);
        let prepared = ask(Guest::Socket(&socket), "POST", PREPARE_PATH, Vec::new(), PREPARE_LIMIT).await;
        match prepared {
            Ok(answer) => self.keep(&id, answer.connection),
            Err(error) => {
                self.destroy(&id).await?;
                return Err(at("starting runtimes", error));
            }
        }
        Ok(id)
    }

    /// Keeps the connection to a pooled guest for its assignment, and after that for the first call.
    fn keep(&self, id: &SandboxId, connection: Option<UnixStream>) {
        if let Some(live) = self.shared.state().live.get_mut(id) {
            live.connection = connection;
        }
    }

    /// A client's work in a sandbox that continues without a call, as reported by its guest.
    pub(super) async fn client_work(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        activity_of(UnixStream::connect(self.shared.host.records.socket(id)).await).await
    }

    /// Assigns a pooled sandbox. Its steps take microseconds each, except the guest's, so they run on the caller's thread: to wake
    /// others would take longer.
    pub(super) async fn give_away(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let begun = Instant::now();
        let (shared, id) = (&self.shared, &row.id);
        let (pidfd, mut record, image, connection) = {
            let mut state = shared.state();
            let live = state.live.get_mut(id).ok_or_else(|| EngineError::NotFound { id: id.clone() })?;
            let image = live.image.take().ok_or_else(|| EngineError::NotFound { id: id.clone() })?;
            (live.pidfd.clone(), live.record.clone(), image, live.connection())
        };
        if !shared.host.images.is_current(&image).map_err(|e| at("image", io::Error::other(e)))? {
            return Err(at("image", io::Error::other("it was rebuilt or removed since this sandbox was prepared")));
        }
        let hostname = spec.hostname.clone().unwrap_or_else(|| row.name.to_string());
        uts::set_hostname(pidfd.as_fd(), &hostname).map_err(|e| at("host name", e))?;
        let tier = record.tier.unwrap_or_default();
        let config = guest_config(id, &row.name, spec, &image, tier, shared.host.config.extra_ca.is_some());
        let body = serde_json::to_vec(&Become { config, hostname }).map_err(|e| at("guest configuration", e.into()))?;
        let socket = shared.host.records.socket(id);
        let guest = connection.map_or(Guest::Socket(&socket), Guest::Connection);
        let answer = ask(guest, "POST", BECOME_PATH, body, BECOME_LIMIT).await.map_err(|e| at("guest configuration", e))?;
        // Last: a record that still says pooled shows a start that no client got the sandbox.
        (record.pooled, record.name, record.memo) = (false, Some(row.name.clone()), Some(row.memo.clone()));
        record.revision += 1;
        shared.host.records.overwrite(&record).map_err(|e| at("record", e))?;
        if let Some(live) = shared.state().live.get_mut(id) {
            live.record = record;
        }
        self.keep(id, answer.connection);
        Ok(Created { tier, isolation: shared.isolation(tier), stages: vec![("adopt", begun.elapsed())] })
    }
}

/// The same, over a connection to the guest.
pub(crate) async fn activity_of(connection: io::Result<UnixStream>) -> Result<Option<String>, EngineError> {
    let connection = connection.map_err(|e| at("activity", e))?;
    let answer = ask(Guest::Connection(connection), "GET", ACTIVITY_PATH, Vec::new(), ACTIVITY_LIMIT);
    let answer = answer.await.map_err(|e| at("activity", e))?;
    let activity: Activity = serde_json::from_str(&answer.text).map_err(|e| at("activity", e.into()))?;
    Ok(activity.running)
}
