use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The wall clock as read at start, advanced by the monotonic clock. A step of the host's clock reaps nothing early, and tests
/// can move time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    wall: Timestamp,
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { wall: Timestamp::now(), start: Instant::now() }
    }

    /// The current time in whole microseconds, as in the store: a time reads the same after a restart.
    pub(crate) fn now(&self) -> Timestamp {
        let now = later(self.wall, self.start.elapsed());
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
    }

    /// The instant of the monotonic clock at that time.
    pub(crate) fn instant_of(&self, time: Timestamp) -> Instant {
        let from_start = time.duration_since(self.wall);
        self.start + std::time::Duration::try_from(from_start).unwrap_or_default()
    }

    pub(crate) fn started_at(&self) -> Timestamp {
        self.wall
    }
}

/// Saturates at the end of time.
pub(crate) fn later(time: Timestamp, by: std::time::Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| time.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}
