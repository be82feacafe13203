//! Decides which task runs next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::agent::Workshop;
use crate::attempt::{Attempt, Bench, Done};
use crate::error::RolloutError;
use crate::journal::{History, Journal};
use crate::outcome::Status;
use crate::progress::{Observer, Progress};
use crate::ramp::Ramp;
use crate::results::Records;
use crate::runner::Options;
use crate::server::{Absence, Presence, Server};
use crate::task::Task;

/// An attempt that has run for this long shows that the infrastructure can take it; agents may take hours to their end.
const SETTLED: Duration = Duration::from_secs(5);
/// Maximum pause before another attempt.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A moment that never comes, for timers that aren't set.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// The attempts at an unfinished task.
#[derive(Debug, Clone, Copy, Default)]
struct Tried {
    /// Attempts that were ever started.
    begun: u32,
    /// Of the attempts since the task was last done, those that the infrastructure failed, and those that the agent failed.
    by_infrastructure: u32,
    by_agent: u32,
}

/// An attempt in progress.
#[derive(Debug)]
struct Running {
    began: Instant,
    era: u64,
    has_settled: bool,
}

/// Runs the tasks of a rollout: retries, back-off, and concurrency.
pub(crate) struct Scheduler {
    options: Options,
    bench: Arc<Bench>,
    tasks: Arc<[Arc<Task>]>,
    presence: watch::Receiver<Presence>,
    observer: Arc<dyn Observer>,
    ramp: Ramp,
    tried: HashMap<usize, Tried>,
    waiting: VecDeque<usize>,
    /// Tasks that wait for their next attempt.
    later: BinaryHeap<Reverse<(Instant, usize)>>,
    running: HashMap<usize, Running>,
    /// Attempts that are not settled yet, the oldest first.
    young: VecDeque<(Instant, usize)>,
    attempts: JoinSet<Result<Done, RolloutError>>,
    progress: Progress,
    began: Instant,
    fault: Option<RolloutError>,
}

impl Scheduler {
    /// Tasks that are not done. One with only infrastructure failures says nothing about the agent, and counts as not done for
    /// a later runner.
    pub(crate) fn unfinished(history: &History, tasks: usize) -> Vec<usize> {
        let is_done = |task: &usize| history.decided(*task).is_some_and(|(_, end)| end.status != Status::Infrastructure);
        (0..tasks).filter(|task| !is_done(task)).collect()
    }

    #[allow(clippy::too_many_arguments, reason = "everything of a run meets here")]
    pub(crate) fn new(
        options: &Options,
        workshop: Workshop,
        tasks: &Arc<[Arc<Task>]>,
        waiting: Vec<usize>,
        history: &History,
        server: &Arc<Server>,
        (presence, absence): (watch::Receiver<Presence>, Absence),
        journal: &Arc<Journal>,
        observer: &Arc<dyn Observer>,
        records: &Arc<Records>,
    ) -> Self {
        let mut progress = Progress { total: tasks.len(), done: tasks.len() - waiting.len(), ..Progress::default() };
        progress.done_before = progress.done;
        let tried = waiting.iter().map(|task| (*task, tried(history, *task))).collect();
        for task in 0..tasks.len() {
            if let Some((_, end)) = history.decided(task).filter(|(_, end)| end.status != Status::Infrastructure) {
                *progress.by_status.entry(end.status).or_default() += 1;
            }
        }
        let bench = Bench {
            run: history.run.clone(),
            workshop,
            server: Arc::clone(server),
            presence: presence.clone(),
            absence,
            journal: Arc::clone(journal),
            records: Arc::clone(records),
            observer: Arc::clone(observer),
            attempts: options.attempts.max(1),
            agent_retries: options.agent_retries,
        };
        Self {
            bench: Arc::new(bench),
            tasks: Arc::clone(tasks),
            presence,
            observer: Arc::clone(observer),
            ramp: Ramp::new(options.first_workers, options.workers, !options.ramp),
            tried,
            waiting: waiting.into(),
            later: BinaryHeap::new(),
            running: HashMap::new(),
            young: VecDeque::new(),
            attempts: JoinSet::new(),
            progress,
            began: Instant::now(),
            fault: None,
            options: options.clone(),
        }
    }

    /// Runs until every task is done, or the run stops.
    pub(crate) async fn work(mut self) -> Result<(), RolloutError> {
        let stop = self.bench.workshop.stop.clone();
        loop {
            let now = Instant::now();
            self.settle(now);
            while let Some(Reverse((due, task))) = self.later.peek().copied()
                && due <= now
            {
                self.later.pop();
                // Before untried tasks: the retried ones had those slots.
                self.waiting.push_front(task);
            }
            let presence = *self.presence.borrow_and_update();
            let is_stopping = stop.is_cancelled();
            self.start(!is_stopping && presence.is_there);
            self.tell(presence, is_stopping);
            if self.attempts.is_empty() && (is_stopping || (self.waiting.is_empty() && self.later.is_empty())) {
                break;
            }
            let never = now + NEVER;
            let due = self.later.peek().map_or(never, |Reverse((due, _))| *due);
            let settling = self.young.front().map_or(never, |(began, _)| *began + SETTLED);
            let given_up = presence.away_since.map_or(never, |since| since + self.options.patience);
            tokio::select! {
                Some(done) = self.attempts.join_next() => match done {
                    Ok(Ok(done)) => self.note(&done),
                    Ok(Err(error)) => self.give_up(error),
                    Err(error) => self.give_up(RolloutError::Io {
                        what: "end an attempt in",
                        path: self.options.out.clone(),
                        source: std::io::Error::other(error),
                    }),
                },
                () = stop.cancelled(), if !is_stopping => {}
                Ok(()) = self.presence.changed() => {}
                () = sleep_until(due), if !is_stopping => {}
                () = sleep_until(settling) => {}
                () = sleep_until(given_up), if !is_stopping => {
                    let server = self.bench.server.base().to_owned();
                    self.give_up(RolloutError::ServerGone { server, waited: self.options.patience });
                }
            }
        }
        match self.fault {
            Some(fault) => Err(fault),
            None if self.waiting.is_empty() && self.later.is_empty() => Ok(()),
            None => Err(RolloutError::Interrupted),
        }
    }

    /// Starts attempts up to the limit.
    fn start(&mut self, may_start: bool) {
        while may_start && self.attempts.len() < self.ramp.limit() {
            let Some(task) = self.waiting.pop_front() else { return };
            let tried = self.tried.entry(task).or_default();
            tried.begun += 1;
            let attempt =
                Attempt { task, number: tried.begun, by_infrastructure: tried.by_infrastructure, by_agent: tried.by_agent };
            let now = Instant::now();
            self.running.insert(task, Running { began: now, era: self.ramp.era(), has_settled: false });
            self.young.push_back((now, task));
            let (bench, of) = (Arc::clone(&self.bench), Arc::clone(&self.tasks[task]));
            self.attempts.spawn(async move { bench.make(attempt, &of).await });
        }
    }

    /// Records attempts that have run for a while.
    fn settle(&mut self, now: Instant) {
        while let Some((began, task)) = self.young.front().copied().filter(|(began, _)| *began + SETTLED <= now) {
            self.young.pop_front();
            if let Some(running) = self.running.get_mut(&task).filter(|running| running.began == began) {
                running.has_settled = true;
                self.ramp.went_well();
            }
        }
    }

    /// Records an ended attempt.
    fn note(&mut self, done: &Done) {
        let Some(running) = self.running.remove(&done.task) else { return };
        if done.status == Status::Infrastructure || done.server_was_busy {
            self.ramp.was_too_much(running.era);
        } else if !running.has_settled && done.status != Status::Interrupted {
            self.ramp.went_well();
        }
        if done.is_final {
            self.progress.done += 1;
            *self.progress.by_status.entry(done.status).or_default() += 1;
            self.tried.remove(&done.task);
            return;
        }
        let tried = self.tried.entry(done.task).or_default();
        let pause = match done.status {
            Status::Infrastructure => {
                tried.by_infrastructure += 1;
                self.progress.retries += 1;
                backoff(self.options.backoff, tried.by_infrastructure)
            }
            Status::Agent => {
                tried.by_agent += 1;
                Duration::ZERO
            }
            _ => Duration::ZERO,
        };
        self.later.push(Reverse((Instant::now() + pause, done.task)));
    }

    /// Ends the run because of an error.
    fn give_up(&mut self, error: RolloutError) {
        self.fault.get_or_insert(error);
        self.bench.workshop.stop.cancel();
    }

    fn tell(&mut self, presence: Presence, is_stopping: bool) {
        if presence.is_there == self.progress.is_server_away {
            let server = self.bench.server.base();
            self.observer.note(&match presence.is_there {
                true => format!("the server at {server} is there again"),
                false => {
                    let patience = self.options.patience.as_secs();
                    format!("no server answers at {server}; nothing is started until it is back, for up to {patience} s")
                }
            });
        }
        self.progress.is_server_away = !presence.is_there;
        self.progress.is_stopping = is_stopping;
        self.progress.running = self.attempts.len();
        self.progress.limit = self.ramp.limit();
        self.progress.elapsed = self.began.elapsed();
        self.observer.changed(&self.progress);
    }
}

/// The attempts at a task, from the journal.
fn tried(history: &History, task: usize) -> Tried {
    let attempts = history.tasks.get(&task).map(Vec::as_slice).unwrap_or_default();
    let mut tried = Tried::default();
    for attempt in attempts {
        tried.begun = tried.begun.max(attempt.number);
        match &attempt.end {
            Some(end) if end.is_final => (tried.by_infrastructure, tried.by_agent) = (0, 0),
            Some(end) if end.status == Status::Infrastructure => tried.by_infrastructure += 1,
            Some(end) if end.status == Status::Agent => tried.by_agent += 1,
            _ => {}
        }
    }
    tried
}

/// The pause before the next attempt; doubles with each. A random part keeps tasks that failed together from retrying together.
fn backoff(first: Duration, failed: u32) -> Duration {
    let whole = first.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(MAX_BACKOFF);
    let mut random = [0u8];
    // Without random bytes they retry together.
    let _ = getrandom::fill(&mut random);
    whole.mul_f64(0.75 + f64::from(random[0]) / 512.0)
}
