//! How long a request waits for the store, in whichever tasks it runs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

tokio::task_local! {
    static WAITS: StoreWaits;
}

/// A sum of the waits of one request for the store.
#[derive(Debug, Clone, Default)]
pub struct StoreWaits {
    nanoseconds: Arc<AtomicU64>,
}

impl StoreWaits {
    /// Counts the waits of `work`.
    pub async fn count<T>(&self, work: impl Future<Output = T>) -> T {
        WAITS.scope(self.clone(), work).await
    }

    /// The sum; zero if the store was not asked.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

/// Work for another task. Its waits count for the request that spawns it.
pub async fn counted_here<T>(waits: Option<StoreWaits>, work: impl Future<Output = T>) -> T {
    match waits {
        Some(waits) => waits.count(work).await,
        None => work.await,
    }
}

/// The counter of the current request, for a task that it spawns.
pub fn current_waits() -> Option<StoreWaits> {
    WAITS.try_with(StoreWaits::clone).ok()
}

/// Adds the time since then to the current request, if there is one.
pub(super) fn add_since(since: Instant) {
    let took = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let _ = WAITS.try_with(|waits| waits.nanoseconds.fetch_add(took, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_of_spawned_work_count_for_its_request() {
        let (waits, other) = (StoreWaits::default(), StoreWaits::default());
        let slow = || Instant::now().checked_sub(Duration::from_millis(5)).unwrap();
        add_since(slow());
        other.count(async {}).await;
        waits
            .count(async {
                let inner = tokio::spawn(counted_here(current_waits(), async move { add_since(slow()) }));
                inner.await.unwrap();
                add_since(slow());
                tokio::spawn(async move { add_since(slow()) }).await.unwrap();
            })
            .await;
        assert!(waits.total() >= Duration::from_millis(10) && waits.total() < Duration::from_secs(5));
        assert_eq!(other.total(), Duration::ZERO);
        assert!(current_waits().is_none());
    }
}
