//! Connections to guests that wait for their next call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arenite_model::SandboxId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::link::Link;

/// Beyond these a connection is closed after its call.
const MAX_IDLE_PER_SANDBOX: usize = 16;
const MAX_IDLE: usize = 4096;
/// An idle connection is closed after this, and up to a quarter more.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Pools {
    idle: Mutex<Idle>,
    some: Notify,
}

#[derive(Default)]
struct Idle {
    links: HashMap<SandboxId, VecDeque<(Instant, Link)>>,
    count: usize,
}

impl Pools {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one used last: it is the likeliest to be alive, and the others can grow old.
    pub(super) fn take(&self, id: &SandboxId) -> Option<Link> {
        let mut idle = self.idle();
        let links = idle.links.get_mut(id)?;
        let (_, link) = links.pop_back()?;
        if links.is_empty() {
            idle.links.remove(id);
        }
        idle.count -= 1;
        Some(link)
    }

    pub(super) fn put(&self, id: &SandboxId, link: Link) {
        if !link.is_to_guest() {
            return;
        }
        let mut idle = self.idle();
        if idle.count >= MAX_IDLE {
            return;
        }
        let links = idle.links.entry(id.clone()).or_default();
        if links.len() >= MAX_IDLE_PER_SANDBOX {
            return;
        }
        links.push_back((Instant::now(), link));
        idle.count += 1;
        if idle.count == 1 {
            self.some.notify_one();
        }
    }

    /// The sandbox is gone or paused: closes what waits.
    pub(crate) fn retire(&self, id: &SandboxId) {
        let mut idle = self.idle();
        let gone = idle.links.remove(id);
        idle.count -= gone.as_ref().map_or(0, VecDeque::len);
        drop(idle);
        // Closing is done outside the lock.
        drop(gone);
    }

    /// Closes what waits for too long, and sleeps while nothing waits.
    pub(crate) async fn expire(&self, stop: &CancellationToken) {
        let rounds = async {
            loop {
                if self.idle().count == 0 {
                    self.some.notified().await;
                }
                tokio::time::sleep(IDLE / 4).await;
                drop(self.expired());
            }
        };
        tokio::select! {
            () = rounds => {}
            () = stop.cancelled() => {}
        }
    }

    fn expired(&self) -> Vec<Link> {
        let mut gone = Vec::new();
        let mut idle = self.idle();
        idle.links.retain(|_, links| {
            while links.front().is_some_and(|(since, _)| since.elapsed() >= IDLE) {
                gone.extend(links.pop_front().map(|(_, link)| link));
            }
            !links.is_empty()
        });
        idle.count -= gone.len();
        gone
    }
}
