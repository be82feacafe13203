use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{VectorIndex, check};
use crate::{Error, Hit, Ordinals, Result};

/// Queries of one pass.
const MOST: usize = 64;

/// Lets concurrent searches share passes. Who comes while nobody searches does so at once, alone. Who comes meanwhile joins those who
/// go next, all together: nobody waits for company, and nobody waits for more than the pass under way.
///
/// For indexes whose search costs a pass through all vectors, whoever asks: [`super::Flat`], and [`super::Vectors`] of such.
pub struct Coalescing<V> {
    index: V,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    searching: bool,
    waiting: VecDeque<Arc<Asked>>,
}

struct Asked {
    query: Vec<f32>,
    k: usize,
    allowed: Option<Arc<Ordinals>>,
    turn: Mutex<Turn>,
    changed: Condvar,
}

enum Turn {
    Waits,
    /// It is this one's thread that searches next, for all who wait.
    Leads,
    Over(Result<Vec<Hit>>),
}

impl<V: VectorIndex> Coalescing<V> {
    pub fn new(index: V) -> Self {
        Self { index, queue: Mutex::default() }
    }

    pub fn index(&self) -> &V {
        &self.index
    }

    /// As [`VectorIndex::search`]. Blocks the thread; searches with the same `allowed` share a pass.
    pub fn search(&self, query: &[f32], k: usize, allowed: Option<&Arc<Ordinals>>) -> Result<Vec<Hit>> {
        check(&[query], self.index.dimension())?;
        let asked = Arc::new(Asked {
            query: query.to_vec(),
            k,
            allowed: allowed.cloned(),
            turn: Mutex::new(Turn::Waits),
            changed: Condvar::new(),
        });
        let mut queue = locked(&self.queue);
        queue.waiting.push_back(asked.clone());
        let leads = !std::mem::replace(&mut queue.searching, true);
        drop(queue);
        if leads {
            self.lead();
        }
        loop {
            let mut turn = locked(&asked.turn);
            while matches!(*turn, Turn::Waits) {
                turn = asked.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
            }
            if let Turn::Over(found) = std::mem::replace(&mut *turn, Turn::Waits) {
                return found;
            }
            drop(turn);
            self.lead();
        }
    }

    /// Searches once for all who wait, first of all for the one who leads, and lets the next lead.
    fn lead(&self) {
        let mut queue = locked(&self.queue);
        let end = queue.waiting.len().min(MOST);
        let party = Party { queue: &self.queue, members: queue.waiting.drain(..end).collect() };
        drop(queue);

        let mut left: Vec<&Arc<Asked>> = party.members.iter().collect();
        while let Some(first) = left.first() {
            let allowed = first.allowed.clone();
            let same = |asked: &&Arc<Asked>| match (&asked.allowed, &allowed) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(same);
            let k = now.iter().map(|asked| asked.k).max().unwrap_or_default();
            let queries: Vec<&[f32]> = now.iter().map(|asked| asked.query.as_slice()).collect();
            match self.index.search_many(&queries, k, allowed.as_deref()) {
                Ok(found) => now.iter().zip(found).for_each(|(asked, mut hits)| {
                    hits.truncate(asked.k);
                    asked.answer(Ok(hits));
                }),
                Err(error) => now.iter().for_each(|asked| asked.answer(Err(Error::Invalid(error.to_string())))),
            }
            left = later;
        }
    }
}

impl Asked {
    fn answer(&self, found: Result<Vec<Hit>>) {
        *locked(&self.turn) = Turn::Over(found);
        self.changed.notify_one();
    }
}

/// Those who share a pass. However it ends, each of them gets an answer and someone else gets to lead.
struct Party<'a> {
    queue: &'a Mutex<Queue>,
    members: Vec<Arc<Asked>>,
}

impl Drop for Party<'_> {
    fn drop(&mut self) {
        for asked in &self.members {
            if !matches!(*locked(&asked.turn), Turn::Over(_)) && std::thread::panicking() {
                asked.answer(Err(Error::Invalid("the search ended without an answer".into())));
            }
        }
        let mut queue = locked(self.queue);
        match queue.waiting.front() {
            Some(next) => {
                *locked(&next.turn) = Turn::Leads;
                next.changed.notify_one();
            }
            None => queue.searching = false,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::vectors::{
        Flat, Metric, Precision,
        testing::{Numbers, write},
    };

    /// Lets the first search end only when the others wait, and one in company fails by a panic.
    struct Slow {
        flat: Flat,
        passes: AtomicUsize,
        go_on: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl VectorIndex for Slow {
        fn dimension(&self) -> usize {
            self.flat.dimension()
        }

        fn len(&self) -> usize {
            self.flat.len()
        }

        fn search_from(&self, base: u32, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
            let before = self.passes.fetch_add(1, Ordering::SeqCst);
            if before == 0 {
                locked(&self.go_on).recv().unwrap();
            }
            assert!(k != 13, "thirteen are too many");
            self.flat.search_from(base, queries, k, allowed)
        }
    }

    #[test]
    fn who_comes_meanwhile_shares_the_next_pass() {
        let folder = tempfile::tempdir().unwrap();
        let vectors = Numbers::new(2).clustered(500, 16);
        let flat = write(&folder.path().join("vectors"), &vectors, Precision::F32, Metric::InnerProduct);
        let plain = Flat::open(&folder.path().join("vectors")).unwrap();
        let (go, go_on) = std::sync::mpsc::channel();
        let shared = Coalescing::new(Slow { flat, passes: AtomicUsize::new(0), go_on: Mutex::new(go_on) });
        let even: Arc<Ordinals> = Arc::new((0..500).step_by(2).collect());
        std::thread::scope(|scope| {
            for (number, query) in vectors.iter().enumerate().take(21) {
                let (shared, plain, allowed) = (&shared, &plain, (number % 2 == 1).then_some(&even));
                let k = 1 + number % 5;
                scope.spawn(move || {
                    let found = shared.search(query, k, allowed).unwrap();
                    assert_eq!(found, plain.search(query, k, allowed.map(Arc::as_ref)).unwrap());
                });
                // The first is on its way before the others come.
                while number == 0 && shared.index().passes.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
            }
            while locked(&shared.queue).waiting.len() < 20 {
                std::thread::yield_now();
            }
            go.send(()).unwrap();
        });
        // The one who was first, then ten with the filter and ten without it.
        assert_eq!(shared.index().passes.load(Ordering::SeqCst), 3);
        assert!(!locked(&shared.queue).searching);
    }

    #[test]
    fn a_search_that_fails_does_not_stop_those_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let vectors = Numbers::new(2).clustered(50, 16);
        let flat = write(&folder.path().join("vectors"), &vectors, Precision::F32, Metric::InnerProduct);
        let shared = Coalescing::new(Slow { flat, passes: AtomicUsize::new(1), go_on: Mutex::new(std::sync::mpsc::channel().1) });
        std::thread::scope(|scope| assert!(scope.spawn(|| shared.search(&vectors[0], 13, None)).join().is_err()));
        assert_eq!(shared.search(&vectors[0], 2, None).unwrap()[0].ordinal, 0);
        assert!(matches!(shared.search(&vectors[0][1..], 2, None), Err(Error::Dimension { .. })));
    }
}
