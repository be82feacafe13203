//! Whether a sandbox could be created now, and if not, why.

use std::sync::Arc;
use std::time::Duration;

use arenite_engine::HostCapacity;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::{Control, ControlError};

/// Timeout of each check.
const LIMIT: Duration = Duration::from_secs(1);
/// How long a result is valid.
const AGE: Duration = Duration::from_secs(1);

/// The last result, and its time. Concurrent callers wait for the running check.
#[derive(Default)]
pub(crate) struct Health {
    last: Mutex<Option<(Instant, Arc<[String]>)>>,
}

impl Control {
    /// Current warnings for the operator, as text.
    pub fn warnings(&self) -> Vec<String> {
        self.store.notes().into_iter().chain(self.quarantine_warning()).collect()
    }

    /// The host's free capacity.
    pub async fn capacity(&self) -> Result<HostCapacity, ControlError> {
        Ok(self.engine.capacity().await?)
    }

    /// Why no sandbox could be created now; empty if one could. Without paths, since anyone may read it. At most about two
    /// seconds old.
    pub async fn problems(&self) -> Arc<[String]> {
        let mut last = self.health.last.lock().await;
        if let Some((at, problems)) = &*last
            && at.elapsed() < AGE
        {
            return Arc::clone(problems);
        }
        let (disk, engine, store) = tokio::join!(self.disk_problem(), self.engine_problems(), self.store_problem());
        let stops = self.cluster.leave.has_begun().then(|| "this node stops".to_owned());
        let problems: Arc<[String]> = disk.into_iter().chain(engine).chain(store).chain(stops).collect();
        if last.as_ref().is_none_or(|(_, before)| before[..] != problems[..]) {
            for problem in problems.iter() {
                tracing::warn!(%problem, "not ready");
            }
        }
        *last = Some((Instant::now(), Arc::clone(&problems)));
        problems
    }

    async fn disk_problem(&self) -> Option<String> {
        // `engine_problems` reports an engine that does not answer.
        let capacity = tokio::time::timeout(LIMIT, self.engine.capacity()).await.ok()?.ok()?;
        let limits = &self.config.limits;
        let wanted = limits.disk_reserve_bytes.saturating_add(limits.disk_estimate_bytes);
        let (available, total) = (capacity.disk_available_bytes, capacity.disk_total_bytes);
        (total > 0 && available < wanted).then(|| {
            format!("{} MiB of disk are free, and a sandbox needs {} MiB with the reserve", available >> 20, wanted >> 20)
        })
    }

    async fn engine_problems(&self) -> Vec<String> {
        match tokio::time::timeout(LIMIT, self.engine.health()).await {
            Ok(problems) => problems,
            Err(_) => vec![format!("the engine gave no answer within {LIMIT:?}")],
        }
    }

    async fn store_problem(&self) -> Option<String> {
        match tokio::time::timeout(LIMIT, self.store.check()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("the store of sandboxes can't be written to: {}", error.public())),
            Err(_) => Some(format!("the store of sandboxes gave no answer within {LIMIT:?}")),
        }
    }
}
