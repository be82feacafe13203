//! Handles a shortage of file descriptors.
//!
//! ```text
//!  available ──► few left: new connections get health routes and deletes, else 503 ──► none left: a spare one is
//!                                                                                     closed for one connection
//! ```

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_engine::descriptors::DescriptorCount;

/// Descriptors held in reserve: the number of connections that can be accepted when none is left.
const SPARES: usize = 4;

/// The server's last descriptors.
#[derive(Default)]
pub(crate) struct Descriptors {
    spares: Mutex<Vec<File>>,
    /// Whether the shortage was logged.
    is_logged: AtomicBool,
}

/// Few descriptors are left of this limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shortage {
    pub(crate) limit: u64,
}

/// A spare descriptor in use for a connection. Dropping this makes it spare again.
pub(crate) struct Lent(Arc<Descriptors>);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.refill();
    }
}

impl Descriptors {
    pub(crate) fn new() -> Arc<Self> {
        let descriptors = Arc::new(Self::default());
        descriptors.refill();
        descriptors
    }

    fn spares(&self) -> MutexGuard<'_, Vec<File>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refill(&self) {
        let mut spares = self.spares();
        while spares.len() < SPARES {
            // Another thread took it; the next check tries again.
            let Ok(file) = File::open("/dev/null") else { return };
            spares.push(file);
        }
    }

    /// Whether few are left. Logs the start and the end of a shortage.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        let count = DescriptorCount::now()?;
        let is_logged = self.is_logged.load(Ordering::Relaxed);
        if count.available() < count.reserve() {
            self.log(count.limit);
            return Some(Shortage { limit: count.limit });
        }
        if is_logged && count.available() >= 2 * count.reserve() {
            self.is_logged.store(false, Ordering::Relaxed);
            tracing::info!("descriptors are available again");
            self.refill();
        }
        None
    }

    fn log(&self, limit: u64) {
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                limit,
                "few descriptors are left: calls on new connections are refused; delete sandboxes, or raise LimitNOFILE (ulimit -n)"
            );
        }
    }

    /// Closes a spare one, so that a connection can be accepted instead.
    pub(crate) fn lend(self: &Arc<Self>) -> Option<(Lent, Shortage)> {
        let limit = DescriptorCount::now().map_or(0, |count| count.limit);
        self.log(limit);
        let spare = self.spares().pop()?;
        drop(spare);
        Some((Lent(Arc::clone(self)), Shortage { limit }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_lent_and_come_back() {
        let descriptors = Descriptors::new();
        let lent: Vec<_> = (0..SPARES).map(|_| descriptors.lend().unwrap()).collect();
        assert!(descriptors.lend().is_none());
        drop(lent);
        assert_eq!(descriptors.spares().len(), SPARES);
    }
}
