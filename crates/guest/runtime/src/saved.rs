//! Saves of this process, and what they do to times.
//!
//! A process that is restored finds that the time in between has passed at once. What was last used before a save counts as used
//! when the process runs on: otherwise, a restored guest would first end all sessions and programs as unused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The last save. It is of the process, as saves are.
static LAST: Mutex<Save> = Mutex::new(Save::None);

#[derive(Debug, Clone, Copy)]
enum Save {
    None,
    /// Announced. A restored process starts here.
    Pending,
    /// The process runs on since then.
    Over(Instant),
}

fn last() -> MutexGuard<'static, Save> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process is about to be saved.
pub fn begin() {
    *last() = Save::Pending;
}

/// The process runs on, or was restored.
pub fn end() {
    *last() = Save::Over(Instant::now());
}

/// When something counts as last used.
pub fn last_use(at: Instant) -> Instant {
    counted(at, *last())
}

fn counted(at: Instant, save: Save) -> Instant {
    match save {
        Save::None => at,
        Save::Pending => Instant::now(),
        Save::Over(since) => at.max(since),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_used_before_a_save_counts_as_used_after_it() {
        let used = Instant::now();
        tokio::time::advance(Duration::from_secs(7200)).await;
        assert_eq!(counted(used, Save::None), used);
        assert_eq!(counted(used, Save::Pending), Instant::now());
        let since = Instant::now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(counted(used, Save::Over(since)), since);
        let later = Instant::now();
        assert_eq!(counted(later, Save::Over(since)), later);
    }
}
