//! The threads of a search: a single search gets all cores, and concurrent ones together get no more than there are.

use std::{
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Threads of all searches of this process, in addition to the callers'.
static HELPING: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` for each of 0..`units`, on this thread and on as many others as are free, up to `threads` in all. Each thread
/// takes the next unit when it is done with one, and collects into the state that `begin` created for it.
pub(crate) fn spread<S: Send>(
    threads: usize,
    units: usize,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) + Sync,
) -> Vec<S> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut state = begin();
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                return state;
            }
            work(&mut state, unit);
        }
    };
    let helpers = Helpers::take(threads.min(units).saturating_sub(1));
    thread::scope(|scope| {
        let started: Vec<_> =
            (0..helpers.0).map_while(|_| thread::Builder::new().name("vectors".into()).spawn_scoped(scope, run).ok()).collect();
        let mut states = vec![run()];
        for helper in started {
            match helper.join() {
                Ok(state) => states.push(state),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        states
    })
}

/// Permission to start threads, released when dropped.
struct Helpers(usize);

impl Helpers {
    fn take(wanted: usize) -> Self {
        let most = cores() - 1;
        let mut taken = 0;
        let _ = HELPING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |helping| {
            taken = wanted.min(most.saturating_sub(helping));
            Some(helping + taken)
        });
        Self(taken)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_done_once() {
        for (threads, units) in [(1, 100), (8, 100), (3, 2), (4, 0)] {
            let mut done: Vec<usize> =
                spread(threads, units, Vec::new, |done: &mut Vec<usize>, unit| done.push(unit)).into_iter().flatten().collect();
            done.sort_unstable();
            assert_eq!(done, (0..units).collect::<Vec<_>>());
        }
        assert!(HELPING.load(Ordering::Relaxed) < cores());
    }
}
