use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Reasoned;

/// Runs pieces of work on all processors, and returns their results in order. After a failure, no more are started.
pub(super) fn each<T: Send>(count: usize, work: impl Fn(usize) -> Reasoned<T> + Sync) -> Reasoned<Vec<T>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    if threads <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || -> Reasoned<Vec<(usize, T)>> {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(done);
            }
            done.push((at, work(at).inspect_err(|_| next.store(count, Ordering::Relaxed))?));
        }
    };
    let mut done = std::thread::scope(|scope| -> Reasoned<_> {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut done = run()?;
        for other in others {
            done.extend(other.join().map_err(|_| "a thread of the embedder broke down".to_owned())??);
        }
        Ok(done)
    })?;
    done.sort_unstable_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, answer)| answer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_order_and_a_failure_ends_it() {
        assert_eq!(each(1000, |at| Ok(at * 2)).unwrap(), (0..1000).map(|at| at * 2).collect::<Vec<_>>());
        assert!(each::<()>(0, |_| Ok(())).unwrap().is_empty());
        let done = AtomicUsize::new(0);
        let outcome = each(1 << 40, |at| {
            done.fetch_add(1, Ordering::Relaxed);
            if at == 5 { Err("five".to_owned()) } else { Ok(()) }
        });
        assert_eq!(outcome.unwrap_err(), "five");
    }
}
