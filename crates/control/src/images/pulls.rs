//! Pulls under way: one for all that want the same image at once, and none that nobody waits for.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_image::ImageError;
use arenite_model::TenantId;
use tokio::sync::{Notify, Semaphore, watch};

use super::PullProgress;
use crate::ControlError;
use crate::admission::refuse;

/// Pulls that run at once.
const AT_ONCE: usize = 4;
/// Pulls that run or wait, in all and of one owner. The second keeps one tenant from taking all places.
const MOST: usize = 64;
const MOST_OF_OWNER: usize = 8;
/// Pulls of one owner that run at once, so that a registry that hangs does not hold those of others up.
const AT_ONCE_OF_OWNER: usize = 2;
/// Creates and other calls that wait for pulls.
const MOST_WAITERS: usize = 1024;
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// What is pulled, and for which tenant; none: for all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PullKey {
    pub(crate) owner: Option<TenantId>,
    /// The whole reference.
    pub(crate) image: String,
}

/// Changes the progress of a pull.
pub(crate) type Change<'a> = &'a dyn Fn(&mut PullProgress);

#[derive(Default)]
pub(crate) struct Pulls {
    state: Mutex<State>,
    permits: RunPermits,
}

/// Held by pulls that run.
struct RunPermits(Arc<Semaphore>);

impl Default for RunPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

#[derive(Default)]
struct State {
    running: HashMap<PullKey, Arc<Pull>>,
    /// The permits of each owner with a pull.
    of_owner: HashMap<Option<TenantId>, Arc<Semaphore>>,
    waiters: usize,
    is_closed: bool,
}

struct Pull {
    key: PullKey,
    progress: watch::Sender<PullProgress>,
    done: watch::Sender<Option<Result<(), ControlError>>>,
    cancel: AtomicBool,
    cancelled: Notify,
    /// Changed while the state is locked.
    waiters: AtomicUsize,
}

impl Pulls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the pull of `key`, which `work` does on a separate thread unless it is under way.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: PullKey,
        work: impl FnOnce(&AtomicBool, &mut dyn FnMut(Change<'_>)) -> Result<(), ImageError> + Send + 'static,
    ) -> Result<Waiter, ControlError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(ControlError::Stopping);
        }
        if state.waiters >= MOST_WAITERS {
            return refuse(format!("{MOST_WAITERS} calls wait for images already, which is the most"), RETRY_AFTER);
        }
        let pull = match state.running.get(&key) {
            Some(pull) => Arc::clone(pull),
            None => {
                let of_owner = state.running.keys().filter(|other| other.owner == key.owner).count();
                if state.running.len() >= MOST || of_owner >= MOST_OF_OWNER {
                    return refuse("too many other images are being pulled".to_owned(), RETRY_AFTER);
                }
                let places =
                    state.of_owner.entry(key.owner.clone()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE_OF_OWNER)));
                let pull = Arc::new(Pull::new(key.clone()));
                tokio::spawn(Arc::clone(self).run(Arc::clone(&pull), Arc::clone(places), work));
                state.running.insert(key, Arc::clone(&pull));
                pull
            }
        };
        state.waiters += 1;
        pull.waiters.fetch_add(1, Ordering::Relaxed);
        drop(state);
        Ok(Waiter { progress: pull.progress.subscribe(), done: pull.done.subscribe(), pulls: Arc::clone(self), pull })
    }

    async fn run(
        self: Arc<Self>,
        pull: Arc<Pull>,
        of_owner: Arc<Semaphore>,
        work: impl FnOnce(&AtomicBool, &mut dyn FnMut(Change<'_>)) -> Result<(), ImageError> + Send + 'static,
    ) {
        let permits = async {
            // Neither is ever closed.
            (of_owner.acquire_owned().await, Arc::clone(&self.permits.0).acquire_owned().await)
        };
        let result = tokio::select! {
            biased;
            () = pull.cancelled.notified() => Err(ImageError::Cancelled.into()),
            permits = permits => {
                let running = Arc::clone(&pull);
                // A registry may hang: the permits are free when the thread ends, and not when nobody waits any more.
                let worked = tokio::task::spawn_blocking(move || {
                    let _permits = permits;
                    let change = &mut |change: Change<'_>| running.progress.send_modify(|progress| change(progress));
                    work(&running.cancel, change)
                });
                match worked.await {
                    Ok(worked) => worked.map_err(ControlError::from),
                    Err(_) => Err(ControlError::Stopping),
                }
            }
        };
        match &result {
            Ok(()) => tracing::info!(image = pull.key.image, "pulled an image"),
            Err(error) => tracing::warn!(image = pull.key.image, %error, "an image could not be pulled"),
        }
        self.forget(&mut self.state(), &pull);
        pull.done.send_replace(Some(result));
    }

    fn forget(&self, state: &mut State, pull: &Arc<Pull>) {
        if state.running.get(&pull.key).is_some_and(|running| Arc::ptr_eq(running, pull)) {
            state.running.remove(&pull.key);
        }
        let owner = &pull.key.owner;
        // A thread that ends later has a share of it.
        if state.of_owner.get(owner).is_some_and(|places| places.available_permits() == AT_ONCE_OF_OWNER)
            && state.running.keys().all(|key| key.owner != *owner)
        {
            state.of_owner.remove(owner);
        }
    }

    /// Ends all pulls, and refuses later ones.
    pub(crate) fn close(&self) {
        let running: Vec<_> = {
            let mut state = self.state();
            state.is_closed = true;
            state.running.drain().map(|(_, pull)| pull).collect()
        };
        for pull in running {
            pull.cancel();
            pull.done.send_replace(Some(Err(ControlError::Stopping)));
        }
    }

    /// The pulls of an owner, by image.
    pub(crate) fn list(&self, owner: Option<&TenantId>) -> Vec<PullProgress> {
        let mut list: Vec<_> = {
            let state = self.state();
            let theirs = state.running.values().filter(|pull| pull.key.owner.as_ref() == owner);
            theirs.map(|pull| pull.progress.borrow().clone()).collect()
        };
        list.sort_by(|a, b| a.image.cmp(&b.image));
        list
    }
}

impl fmt::Debug for Pulls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulls").finish_non_exhaustive()
    }
}

impl Pull {
    fn new(key: PullKey) -> Self {
        let progress = PullProgress { image: key.image.clone(), ..PullProgress::default() };
        Self {
            key,
            progress: watch::Sender::new(progress),
            done: watch::Sender::new(None),
            cancel: AtomicBool::new(false),
            cancelled: Notify::new(),
            waiters: AtomicUsize::new(0),
        }
    }

    fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.cancelled.notify_one();
    }
}

/// Waits for a pull, which is cancelled when the last one is dropped.
pub(crate) struct Waiter {
    pulls: Arc<Pulls>,
    pull: Arc<Pull>,
    progress: watch::Receiver<PullProgress>,
    done: watch::Receiver<Option<Result<(), ControlError>>>,
}

impl Waiter {
    pub(crate) fn progress(&mut self) -> PullProgress {
        self.progress.borrow_and_update().clone()
    }

    /// The result of the pull. None: the progress is another than that of the last call of [`Self::progress`].
    pub(crate) async fn next(&mut self) -> Option<Result<(), ControlError>> {
        tokio::select! {
            biased;
            // The waiter holds the senders.
            done = self.done.wait_for(Option::is_some) => {
                Some(done.map_or(Err(ControlError::Stopping), |done| done.clone().unwrap_or(Ok(()))))
            }
            _ = self.progress.changed() => None,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.pulls.state();
        state.waiters -= 1;
        if self.pull.waiters.fetch_sub(1, Ordering::Relaxed) == 1 && self.pull.done.borrow().is_none() {
            // One that comes now begins another.
            self.pulls.forget(&mut state, &self.pull);
            self.pull.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use arenite_model::ErrorCode;

    use super::*;

    fn key(owner: Option<&str>, image: &str) -> PullKey {
        PullKey { owner: owner.map(|owner| owner.parse().unwrap()), image: image.to_owned() }
    }

    async fn result(waiter: &mut Waiter) -> Result<(), ControlError> {
        loop {
            waiter.progress();
            if let Some(result) = waiter.next().await {
                return result;
            }
        }
    }

    #[tokio::test]
    async fn one_pull_is_for_all_that_wait() {
        let pulls = Arc::new(Pulls::default());
        let (end, ended) = mpsc::channel::<()>();
        let mut first = pulls
            .join(key(None, "a"), move |_, progress| {
                progress(&|progress| progress.bytes = 7);
                ended.recv().map_err(|_| ImageError::Cancelled)
            })
            .unwrap();
        let mut second = pulls.join(key(None, "a"), |_, _| panic!("it is under way")).unwrap();
        let mut other = pulls.join(key(Some("one"), "a"), |_, _| Ok(())).unwrap();
        result(&mut other).await.unwrap();
        assert!(second.next().await.is_none());
        assert_eq!(second.progress().bytes, 7);
        assert_eq!(pulls.list(None).len(), 1);
        drop(first.pull.clone());
        end.send(()).unwrap();
        result(&mut first).await.unwrap();
        result(&mut second).await.unwrap();
        assert!(pulls.list(None).is_empty());
        // What has ended is not joined.
        let mut again = pulls.join(key(None, "a"), |_, _| Err(ImageError::Busy)).unwrap();
        assert_eq!(result(&mut again).await.unwrap_err().code(), ErrorCode::Conflict);
    }

    #[tokio::test]
    async fn a_pull_ends_when_the_last_waiter_leaves() {
        let pulls = Arc::new(Pulls::default());
        let (sender, receiver) = mpsc::channel();
        let work = move |cancel: &AtomicBool, progress: &mut dyn FnMut(Change<'_>)| {
            progress(&|progress| progress.bytes = 1);
            while !cancel.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            sender.send(()).unwrap();
            Err(ImageError::Cancelled)
        };
        let mut first = pulls.join(key(None, "a"), work).unwrap();
        // It has started.
        assert!(first.next().await.is_none());
        let second = pulls.join(key(None, "a"), |_, _| Ok(())).unwrap();
        drop(first);
        assert_eq!(pulls.list(None).len(), 1);
        drop(second);
        assert!(pulls.list(None).is_empty());
        // A create that comes now does not get the cancelled one.
        let mut next = pulls.join(key(None, "a"), |_, _| Ok(())).unwrap();
        result(&mut next).await.unwrap();
        tokio::task::spawn_blocking(move || receiver.recv().unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn pulls_are_bounded_and_end_with_the_server() {
        let pulls = Arc::new(Pulls::default());
        let wait = |cancel: &AtomicBool, _: &mut dyn FnMut(Change<'_>)| {
            while !cancel.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        };
        let mut held: Vec<_> = (0..MOST_OF_OWNER).map(|n| pulls.join(key(Some("one"), &n.to_string()), wait).unwrap()).collect();
        assert_eq!(pulls.join(key(Some("one"), "x"), wait).err().unwrap().code(), ErrorCode::Exhausted);
        // Two of one tenant run; another's does not wait for the rest.
        let mut other = pulls.join(key(Some("two"), "x"), |_, _| Ok(())).unwrap();
        result(&mut other).await.unwrap();
        pulls.close();
        for waiter in &mut held {
            assert!(matches!(result(waiter).await, Err(ControlError::Stopping)));
        }
        assert!(matches!(pulls.join(key(None, "x"), wait), Err(ControlError::Stopping)));
        drop(held);
        assert_eq!(pulls.state().waiters, 1, "the other one");
    }
}
