use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The longest sleep: timers reach two years, lifetimes any number of seconds.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The wall clock as read at start, advanced by the monotonic clock. A step of the host's clock reaps nothing early, and tests
/// can move time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    host: fn() -> Timestamp,
    wall: Timestamp,
    start: Instant,
}

impl Clock {
    /// `host` reads the host's clock.
    pub(crate) fn start(host: fn() -> Timestamp) -> Self {
        Self { host, wall: host(), start: Instant::now() }
    }

    /// The host's clock, which may have been set since the start.
    pub(crate) fn host_now(&self) -> Timestamp {
        (self.host)()
    }

    /// The current time in whole microseconds, as in the store: a time reads the same after a restart.
    pub(crate) fn now(&self) -> Timestamp {
        let now = later(self.wall, self.start.elapsed());
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
    }

    /// The instant of the monotonic clock at that time.
    pub(crate) fn instant_of(&self, time: Timestamp) -> Instant {
        let from_start = time.duration_since(self.wall);
        self.start + Duration::try_from(from_start).unwrap_or_default()
    }

    /// Sleeps until that time, a day at most; without one, for ever.
    pub(crate) async fn sleep_until(&self, time: Option<Timestamp>) {
        match time {
            // Timers have steps of a millisecond: not just before the time, but just after.
            Some(time) => {
                let (at, now) = (self.instant_of(time), Instant::now());
                tokio::time::sleep_until(at.clamp(now, now + LONGEST) + Duration::from_millis(1)).await;
            }
            None => std::future::pending().await,
        }
    }

    pub(crate) fn started_at(&self) -> Timestamp {
        self.wall
    }
}

/// Saturates at the end of time.
pub(crate) fn later(time: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| time.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}
