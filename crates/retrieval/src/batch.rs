//! Batches concurrent queries.
//!
//! ```text
//!  query ──► queue ──► no batch is running: at once, alone
//!                      a batch is running:  the queries that arrive until it ends go next, together
//!                      the queue is long, or a query has waited long: another batch starts in parallel
//! ```
//!
//! A single query never waits for others, and no timer polls for work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::oneshot;

use crate::search::{Found, Query};
use crate::{Error, Result};

/// Maximum number of waiting queries.
const MAX_WAITING: usize = 10_000;

/// Settings of batching. The names are those of AgentFlow's configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knobs {
    /// The number of waiting queries that starts another batch in parallel to the running one.
    pub trigger_batch_size: usize,
    pub max_batch_size: usize,
    /// Maximum time that a query waits for a running batch.
    pub max_wait_time: Duration,
}

impl Default for Knobs {
    fn default() -> Self {
        Self { trigger_batch_size: 16, max_batch_size: 32, max_wait_time: Duration::from_millis(50) }
    }
}

/// Statistics in the format of AgentFlow's batcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BatchStats {
    pub total_queries: u64,
    pub total_batches: u64,
    pub avg_batch_size: f64,
    pub queue_size: usize,
    pub running: bool,
    pub trigger_batch_size: usize,
    pub max_batch_size: usize,
    /// In seconds.
    pub max_wait_time: f64,
}

type Answering<Q, A> = Box<dyn Fn(&[Q]) -> Vec<Result<A>> + Send + Sync>;

struct Waiting<Q, A> {
    query: Q,
    since: Instant,
    to: oneshot::Sender<Result<A>>,
}

struct State<Q, A> {
    waiting: VecDeque<Waiting<Q, A>>,
    running: usize,
    queries: u64,
    batches: u64,
    /// Whether a task already watches how long the first query has waited.
    watched: bool,
}

struct Shared<Q, A> {
    answer: Answering<Q, A>,
    knobs: Knobs,
    most_running: usize,
    state: Mutex<State<Q, A>>,
}

/// Answers concurrent queries in batches. Requires a runtime.
pub struct Batcher<Q = Query, A = Vec<Found>>(Arc<Shared<Q, A>>);

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// `answer` receives queries, and returns a result for each. It may block.
    pub fn new(knobs: Knobs, answer: impl Fn(&[Q]) -> Vec<Result<A>> + Send + Sync + 'static) -> Self {
        let most_running = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
        let state = State { waiting: VecDeque::new(), running: 0, queries: 0, batches: 0, watched: false };
        Self(Arc::new(Shared { answer: Box::new(answer), knobs, most_running, state: Mutex::new(state) }))
    }

    /// Answers a query.
    ///
    /// # Errors
    /// Those of the search, or if the queue is full.
    pub async fn search(&self, query: Q) -> Result<A> {
        let (to, answer) = oneshot::channel();
        {
            let mut state = self.0.state();
            if state.waiting.len() >= MAX_WAITING {
                return Err(Error::Invalid("too many queries wait already; try again later".to_owned()));
            }
            state.queries += 1;
            state.waiting.push_back(Waiting { query, since: Instant::now(), to });
            let crowded = state.waiting.len() >= self.0.knobs.trigger_batch_size && state.running < self.0.most_running;
            if state.running == 0 || crowded {
                self.begin(&mut state);
            } else if !state.watched {
                state.watched = true;
                let this = self.clone();
                tokio::spawn(async move { this.watch().await });
            }
        }
        answer.await.unwrap_or_else(|_| Err(Error::Invalid("the search ended without an answer".to_owned())))
    }

    fn begin(&self, state: &mut State<Q, A>) {
        state.running += 1;
        let shared = self.0.clone();
        tokio::task::spawn_blocking(move || shared.run());
    }

    /// Starts another batch if the first query in the queue has waited too long. Ends when the queue is empty.
    async fn watch(self) {
        loop {
            let wait = {
                let mut state = self.0.state();
                let Some(first) = state.waiting.front() else {
                    state.watched = false;
                    return;
                };
                let left = self.0.knobs.max_wait_time.saturating_sub(first.since.elapsed());
                if left.is_zero() && state.running < self.0.most_running {
                    self.begin(&mut state);
                }
                // If the maximum number of batches runs, the first to end takes the next queries.
                if left.is_zero() { self.0.knobs.max_wait_time.max(Duration::from_millis(1)) } else { left }
            };
            tokio::time::sleep(wait).await;
        }
    }

    pub fn stats(&self) -> BatchStats {
        let (state, knobs) = (self.0.state(), &self.0.knobs);
        let answered = state.queries - state.waiting.len() as u64;
        BatchStats {
            total_queries: state.queries,
            total_batches: state.batches,
            avg_batch_size: if state.batches == 0 { 0.0 } else { answered as f64 / state.batches as f64 },
            queue_size: state.waiting.len(),
            running: true,
            trigger_batch_size: knobs.trigger_batch_size,
            max_batch_size: knobs.max_batch_size,
            max_wait_time: knobs.max_wait_time.as_secs_f64(),
        }
    }
}

impl<Q, A> Shared<Q, A> {
    fn state(&self) -> MutexGuard<'_, State<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers batches until the queue is empty.
    fn run(&self) {
        loop {
            let batch: Vec<Waiting<Q, A>> = {
                let mut state = self.state();
                let size = state.waiting.len().min(self.knobs.max_batch_size.max(1));
                if size == 0 {
                    // Under the same lock, or a query that arrives now would wait for a runner that is ending.
                    state.running -= 1;
                    return;
                }
                state.batches += 1;
                state.waiting.drain(..size).collect()
            };
            // Queries without a waiting caller are dropped.
            let batch: Vec<Waiting<Q, A>> = batch.into_iter().filter(|one| !one.to.is_closed()).collect();
            let (queries, senders): (Vec<Q>, Vec<_>) = batch.into_iter().map(|one| (one.query, one.to)).unzip();
            // Every query without an answer gets an error: a panic ends this batch, not later ones.
            let answers = catch_unwind(AssertUnwindSafe(|| (self.answer)(&queries))).unwrap_or_default();
            for (to, answer) in senders.into_iter().zip(answers) {
                let _ = to.send(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn query(text: &str) -> Query {
        Query { text: text.to_owned(), top_k: 1, mode: None, filter: None }
    }

    fn batcher(knobs: Knobs) -> (Batcher, mpsc::Receiver<Vec<String>>, mpsc::Sender<()>) {
        let (seen, batches) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let batcher: Batcher = Batcher::new(knobs, move |queries: &[Query]| {
            seen.send(queries.iter().map(|query| query.text.clone()).collect()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            queries
                .iter()
                .map(|query| if query.text == "bad" { Err(Error::Invalid("bad".to_owned())) } else { Ok(Vec::new()) })
                .collect()
        });
        (batcher, batches, go)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_comes_while_one_is_answered_goes_together() {
        let knobs = Knobs { trigger_batch_size: 100, max_batch_size: 3, max_wait_time: Duration::from_secs(3600) };
        let (batcher, batches, go) = batcher(knobs);
        let ask = |text: &'static str| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.search(query(text)).await })
        };
        let first = ask("1");
        assert_eq!(batches.recv().unwrap(), ["1"], "a lone query does not wait");
        let mut later = Vec::new();
        for (text, waiting) in [("2", 1), ("bad", 2), ("4", 3), ("5", 4)] {
            later.push(ask(text));
            while batcher.stats().queue_size < waiting {
                tokio::task::yield_now().await;
            }
        }
        (0..3).for_each(|_| go.send(()).unwrap());
        assert!(first.await.unwrap().is_ok());
        assert_eq!(
            (batches.recv().unwrap(), batches.recv().unwrap()),
            (vec!["2".into(), "bad".into(), "4".into()], vec!["5".into()])
        );
        let mut answers = Vec::new();
        for one in later {
            answers.push(one.await.unwrap().is_ok());
        }
        assert_eq!(answers, [true, false, true, true]);
        let stats = batcher.stats();
        assert_eq!((stats.total_queries, stats.total_batches, stats.queue_size), (5, 3, 0));
        assert!((stats.avg_batch_size - 5.0 / 3.0).abs() < 1e-9);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_that_waited_long_is_answered_beside() {
        let knobs = Knobs { max_wait_time: Duration::from_millis(5), ..Knobs::default() };
        let (batcher, batches, go) = batcher(knobs);
        let ask = |text: &'static str| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.search(query(text)).await })
        };
        let first = ask("1");
        assert_eq!(batches.recv().unwrap(), ["1"]);
        let second = ask("2");
        assert_eq!(batches.recv().unwrap(), ["2"], "while the first is under way still");
        (0..2).for_each(|_| go.send(()).unwrap());
        assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_search_that_panics_fails_its_queries_alone() {
        let batcher: Batcher = Batcher::new(Knobs::default(), |queries: &[Query]| {
            assert!(queries[0].text != "bad", "as asked");
            queries.iter().map(|_| Ok(Vec::new())).collect()
        });
        assert!(batcher.search(query("bad")).await.is_err());
        assert!(batcher.search(query("good")).await.is_ok());
    }
}
