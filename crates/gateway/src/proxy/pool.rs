//! Idle connections to guests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arenite_model::SandboxId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::link::Link;

/// The most idle connections per sandbox; further ones are closed after their call.
const MAX_IDLE_PER_SANDBOX: usize = 16;
const MAX_IDLE: usize = 4096;
/// An idle connection is closed after this time, and up to a quarter more.
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

    /// Takes the most recently used one: it is the likeliest to be alive, and the others can expire.
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

    /// Closes idle connections to a sandbox that was deleted or paused.
    pub(crate) fn retire(&self, id: &SandboxId) {
        let mut idle = self.idle();
        let gone = idle.links.remove(id);
        idle.count -= gone.as_ref().map_or(0, VecDeque::len);
        drop(idle);
        // Connections are closed outside the lock.
        drop(gone);
    }

    /// Closes connections that were idle for too long. Sleeps while there are none.
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
