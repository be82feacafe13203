//! One process of each program: started on demand, and ended when no client is connected.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::error::PageError;
use super::program::Program;
use super::running::Running;
use super::start::start;
use arenite_guest_runtime::Runtime;
use arenite_guest_shell::shell::ShellService;

/// A program without connections ends after this time, unless [`IDLE_VARIABLE`] sets another.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The variable for this time, in seconds.
const IDLE_VARIABLE: &str = "PAGES_IDLE_SECONDS";
/// Its valid range: up to a week.
const IDLES: std::ops::RangeInclusive<u64> = 1..=7 * 24 * 3600;

/// The outcome of a start, shared by all callers that wait for it.
type Outcome = Result<Arc<Running>, Arc<PageError>>;
/// A start; `None` while it is in progress.
type Start = watch::Receiver<Option<Outcome>>;

#[derive(Debug)]
pub struct PagesService {
    pub(super) runtime: Arc<Runtime>,
    pub(super) shell: Arc<ShellService>,
    vscode: Mutex<Option<Start>>,
    jupyterlab: Mutex<Option<Start>>,
}

impl PagesService {
    pub fn new(runtime: Arc<Runtime>, shell: Arc<ShellService>) -> Self {
        Self { runtime, shell, vscode: Mutex::default(), jupyterlab: Mutex::default() }
    }

    /// Returns the program, and starts it if needed. Concurrent callers wait for the same start and get the same outcome. The
    /// start goes on when the caller leaves.
    pub(super) async fn get(&self, program: Program) -> Outcome {
        let mut start = self.start(program);
        match start.wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
            Ok(Some(outcome)) => outcome,
            Ok(None) | Err(_) => Err(Arc::new(PageError::BrokeOff(program))),
        }
    }

    /// The latest start, if it is in progress or its program runs; else a new one.
    fn start(&self, program: Program) -> Start {
        let place = match program {
            Program::VsCode => &self.vscode,
            Program::JupyterLab => &self.jupyterlab,
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(latest) = place.as_ref().filter(|latest| is_good(latest)) {
            return latest.clone();
        }
        let (told, latest) = watch::channel(None);
        *place = Some(latest.clone());
        drop(place);
        let runtime = Arc::clone(&self.runtime);
        tokio::spawn(async move {
            let outcome = start(&runtime, program).await.map(Arc::new).map_err(Arc::new);
            if let Ok(running) = &outcome {
                let (running, idle) = (Arc::clone(running), idle(&runtime));
                tokio::spawn(async move { running.end_when_unused(idle).await });
            }
            // Held by the service, unless another start replaced it.
            let _ = told.send(Some(outcome));
        });
        latest
    }
}

fn is_good(start: &Start) -> bool {
    match &*start.borrow() {
        Some(Ok(running)) => !running.has_ended(),
        Some(Err(_)) => false,
        // If the sender is gone, the start has broken off.
        None => start.has_changed().is_ok(),
    }
}

fn idle(runtime: &Runtime) -> Duration {
    let config = runtime.config();
    let given = config.env.get(IDLE_VARIABLE).and_then(|seconds| seconds.trim().parse().ok());
    given.filter(|seconds| IDLES.contains(seconds)).map_or(IDLE, Duration::from_secs)
}
