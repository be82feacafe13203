//! A kernel that is started ahead, for the first session or the next single execution.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::kernel::{Execution, Kernel, Status};
use super::kernelspec::KernelSpec;
use super::service::JupyterError;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::Budget;

/// How long an unused spare is kept after a single execution has requested it.
pub(super) const SPARE_TIME: Duration = Duration::from_secs(300);
/// How long it may take to adapt a spare.
const ADAPT: Duration = Duration::from_secs(10);
/// Variables that a program reads only when it starts: with another value it must be restarted.
const READ_AT_START: [&str; 8] = ["PYTHON", "LD_", "IPYTHON", "JUPYTER", "LC_", "LANG", "TZ", "HOME"];

/// A started kernel and its settings at the start.
#[derive(Debug)]
struct Spare {
    kernel: Kernel,
    /// The kernel's directory, which identifies it under all its names.
    spec: PathBuf,
    env: BTreeMap<String, String>,
    cwd: PathBuf,
    number: u64,
}

/// Holds at most one spare kernel.
#[derive(Debug, Default)]
pub(super) struct Spares(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    spare: Option<Spare>,
    is_starting: bool,
    number: u64,
}

impl Spares {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Starts a spare unless there is one. With a `time`, it ends after that if it is still unused.
    pub(super) async fn start(
        &self,
        runtime: &Runtime,
        budget: &Arc<Budget>,
        spec: &KernelSpec,
        time: Option<Duration>,
    ) -> Result<(), JupyterError> {
        {
            let mut state = self.lock();
            if state.is_starting || state.spare.as_ref().is_some_and(|spare| spare.kernel.ended().is_none()) {
                return Ok(());
            }
            state.is_starting = true;
        }
        let cwd = runtime.default_dir();
        let env = environment(runtime);
        let started = Kernel::start(runtime, spec, &cwd, budget).await;
        let mut state = self.lock();
        state.is_starting = false;
        state.number += 1;
        let number = state.number;
        let kernel = started.map_err(JupyterError::NotStarted)?;
        state.spare = Some(Spare { kernel, spec: spec.dir.clone(), env, cwd, number });
        drop(state);
        if let Some(time) = time {
            self.end_after(number, time);
        }
        Ok(())
    }

    fn end_after(&self, number: u64, time: Duration) {
        let state = Arc::downgrade(&self.0);
        let due = Instant::now() + time;
        tokio::spawn(async move {
            tokio::time::sleep_until(due).await;
            if let Some(state) = state.upgrade() {
                lock(&state).spare.take_if(|spare| spare.number == number);
            }
        });
    }

    /// Whether a spare is ready.
    pub(super) fn is_there(&self) -> bool {
        self.lock().spare.as_ref().is_some_and(|spare| spare.kernel.ended().is_none())
    }

    /// Ends the spare after [`SPARE_TIME`] if it is still unused.
    pub(super) fn expire(&self) {
        let number = self.lock().spare.as_ref().map(|spare| spare.number);
        if let Some(number) = number {
            self.end_after(number, SPARE_TIME);
        }
    }

    /// Takes the spare, if it is of this kind and can be changed to the settings that a new kernel would have.
    pub(super) async fn take(&self, runtime: &Runtime, spec: &KernelSpec, cwd: &Path) -> Option<Kernel> {
        let spare = self.lock().spare.take_if(|spare| spare.spec == spec.dir)?;
        let wanted = environment(runtime);
        let changes: BTreeMap<&String, &String> = wanted.iter().filter(|(k, v)| spare.env.get(*k) != Some(*v)).collect();
        let is_fit = spare.kernel.ended().is_none()
            && spare.env.keys().all(|name| wanted.contains_key(name))
            && !changes.keys().any(|name| READ_AT_START.iter().any(|start| name.starts_with(start)));
        if !is_fit {
            return None;
        }
        let cwd = (spare.cwd != cwd).then_some(cwd);
        if changes.is_empty() && cwd.is_none() {
            return Some(spare.kernel);
        }
        let adapted = adapt(&spare.kernel, spec, &json!(changes), cwd).await;
        adapted.is_ok_and(|done| done.is_some_and(|execution| execution.status == Status::Ok)).then_some(spare.kernel)
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn environment(runtime: &Runtime) -> BTreeMap<String, String> {
    runtime.environment(&runtime.user, &[]).into_iter().collect()
}

/// Changes a running kernel's environment and directory. `None`: not possible for this language.
pub(super) async fn adapt(
    kernel: &Kernel,
    spec: &KernelSpec,
    env: &serde_json::Value,
    cwd: Option<&Path>,
) -> Result<Option<Execution>, String> {
    if spec.language != "python" {
        return Ok(None);
    }
    // A JSON object of strings is also a Python dictionary. The code leaves no name behind.
    let cwd = cwd.map_or_else(String::new, |dir| format!(", os.chdir({})", json!(dir.display().to_string())));
    let code = format!("(lambda os: (os.environ.update({env}){cwd}))(__import__('os'))");
    kernel.execute(code, true, ADAPT).await.map(Some)
}
