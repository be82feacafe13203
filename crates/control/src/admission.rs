//! Admission: whether the host has capacity for one more sandbox.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_engine::descriptors::DescriptorCount;
use arenite_engine::{Engine, HostCapacity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::{ControlError, Limits};

/// How long a reading of the host's capacity is valid. Sandboxes admitted since then are counted against it.
const READING_AGE: Duration = Duration::from_millis(200);

/// Admits creates one by one while the host has capacity.
pub(crate) struct Admission {
    limits: Limits,
    permits: Arc<Semaphore>,
    queued: Arc<AtomicUsize>,
    capacity: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    capacity: Option<(HostCapacity, Instant)>,
    /// Admitted creates that the reading doesn't fully include.
    unseen: u64,
}

/// Permission to run one create; released when dropped.
pub(crate) struct AdmissionPermit {
    _permit: OwnedSemaphorePermit,
}

/// Counts a create in the queue, even if its caller disconnects.
struct Queued(Arc<AtomicUsize>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limits.max_concurrent_creates.max(1))),
            queued: Arc::default(),
            capacity: Mutex::default(),
            limits,
        }
    }

    /// Refuses all waiting and all later requests.
    pub(crate) fn close(&self) {
        self.permits.close();
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    pub(crate) fn under_way(&self) -> usize {
        self.limits.max_concurrent_creates.max(1).saturating_sub(self.permits.available_permits())
    }

    /// Waits for a permit, then checks that memory and disk suffice.
    pub(crate) async fn admit(&self, engine: &dyn Engine) -> Result<AdmissionPermit, ControlError> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        self.look(engine).await?;
        Ok(AdmissionPermit { _permit: permit })
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, ControlError> {
        let before = self.queued.fetch_add(1, Ordering::AcqRel);
        let _queued = Queued(Arc::clone(&self.queued));
        if before >= self.limits.create_queue {
            return refuse(format!("{before} creates wait already, which is the most"), Duration::from_secs(2));
        }
        let permit = Arc::clone(&self.permits).acquire_owned();
        match tokio::time::timeout(self.limits.create_queue_wait, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(ControlError::Stopping),
            Err(_) => refuse(
                format!("no capacity within {:?}, the longest wait of a create", self.limits.create_queue_wait),
                Duration::from_secs(5),
            ),
        }
    }

    /// Refuses only by a new reading: creates from a pool are so fast that many of them, which take nothing more of the host, are
    /// counted against one.
    async fn look(&self, engine: &dyn Engine) -> Result<(), ControlError> {
        let fresh = {
            let reading = self.reading();
            reading.capacity.filter(|(_, at)| at.elapsed() < READING_AGE)
        };
        if let Some((capacity, _)) = fresh
            && self.check(capacity).is_ok()
        {
            return Ok(());
        }
        let capacity = engine.capacity().await?;
        {
            let mut reading = self.reading();
            reading.capacity = Some((capacity, Instant::now()));
            reading.unseen = self.under_way().saturating_sub(1) as u64;
        }
        self.check(capacity)
    }

    /// Counts one more create against a reading, unless that exceeds it.
    fn check(&self, capacity: HostCapacity) -> Result<(), ControlError> {
        let mut reading = self.reading();
        let creates = reading.unseen + 1;
        let limits = &self.limits;
        // A total of zero means that the engine doesn't know.
        for (what, available, total, reserve, estimate) in [
            (
                "memory",
                capacity.memory_available_bytes,
                capacity.memory_total_bytes,
                limits.memory_reserve_bytes,
                limits.memory_estimate_bytes,
            ),
            (
                "disk",
                capacity.disk_available_bytes,
                capacity.disk_total_bytes,
                limits.disk_reserve_bytes,
                limits.disk_estimate_bytes,
            ),
        ] {
            let wanted = reserve.saturating_add(estimate.saturating_mul(creates));
            if total > 0 && available < wanted {
                return refuse(
                    format!(
                        "{} MiB of {what} are available on the host and {} MiB are needed, {} MiB of that as reserve",
                        available >> 20,
                        wanted >> 20,
                        reserve >> 20,
                    ),
                    Duration::from_secs(10),
                );
            }
        }
        let wanted = DescriptorCount { open: 0, limit: capacity.descriptors_total }.needed_for(creates);
        if capacity.descriptors_total > 0 && capacity.descriptors_available < wanted {
            return refuse(
                format!(
                    "the server may open {} more descriptors, of {} in all, and {wanted} are needed; LimitNOFILE (ulimit -n) sets its limit",
                    capacity.descriptors_available, capacity.descriptors_total,
                ),
                Duration::from_secs(10),
            );
        }
        reading.unseen = creates;
        Ok(())
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn refuse<T>(reason: String, retry_after: Duration) -> Result<T, ControlError> {
    Err(ControlError::Exhausted { reason, retry_after })
}
