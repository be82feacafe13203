//! The rate of a tenant's requests: a bucket that holds one second's worth.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use arenite_model::TenantId;
use tokio::time::Instant;

/// The most buckets. Beyond it, all are full again.
const MAX_BUCKETS: usize = 10_000;

#[derive(Default)]
pub(crate) struct Rates {
    buckets: Mutex<HashMap<TenantId, Bucket>>,
}

struct Bucket {
    requests: f64,
    filled: Instant,
}

impl Rates {
    /// Takes a request out of the tenant's bucket. False if it is empty.
    pub(crate) fn take(&self, tenant: &TenantId, per_second: u64) -> bool {
        let most = per_second as f64;
        let now = Instant::now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(tenant) {
            buckets.clear();
        }
        let bucket = buckets.entry(tenant.clone()).or_insert(Bucket { requests: most, filled: now });
        let more = now.duration_since(bucket.filled).as_secs_f64() * most;
        bucket.requests = (bucket.requests + more).min(most);
        bucket.filled = now;
        let has_one = bucket.requests >= 1.0;
        bucket.requests -= f64::from(u8::from(has_one));
        has_one
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_has_as_many_requests_as_the_limit() {
        let rates = Rates::default();
        let (a, b): (TenantId, TenantId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let taken = |tenant| (0..100).filter(|_| rates.take(tenant, 10)).count();
        assert_eq!((taken(&a), taken(&a), taken(&b)), (10, 0, 10));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(taken(&a), 5);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(taken(&a), 10, "an idle tenant saves up no more than a second");
        assert!(!rates.take(&a, 1));
    }
}
