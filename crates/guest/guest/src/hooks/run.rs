//! Runs the hooks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arenite_model::protocol::SHUTDOWN_SECONDS;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::service::{SHUTDOWN, SandboxHook, list};
use crate::hooks::Hooks;
use crate::main_command::LOG_DIR;
use arenite_guest_runtime::process::{Command, Signal, kill_members, seconds};

/// Timeout of a hook at the sandbox's start, in seconds.
pub(super) const START_SECONDS: f64 = 60.0;

/// Runs the hooks before the first call, one after the other.
pub(crate) async fn before_services(hooks: &Arc<Hooks>) {
    for event in ["init", "pre_services"] {
        for hook in list(hooks, event) {
            run(hooks, &hook, Duration::MAX).await;
        }
    }
}

/// Runs the hooks that start with the first calls.
pub(crate) fn when_ready(hooks: Arc<Hooks>) {
    let listed = list(&hooks, "post_ready");
    if !listed.is_empty() {
        tokio::spawn(async move { join_all(listed.iter().map(|hook| run(&hooks, hook, Duration::MAX))).await });
    }
}

/// Starts the hooks of the sandbox's end: the lower priority first, equal ones at once, and all within [`SHUTDOWN_SECONDS`]. They
/// go on if the returned handle is dropped. `None`: there are no such hooks.
pub(crate) fn shutdown(hooks: &Arc<Hooks>) -> Option<tokio::task::JoinHandle<()>> {
    let listed = list(hooks, SHUTDOWN);
    if listed.is_empty() {
        return None;
    }
    let hooks = hooks.clone();
    Some(tokio::spawn(async move {
        let until = Instant::now() + Duration::from_secs(SHUTDOWN_SECONDS);
        for equal in listed.chunk_by(|a, b| a.priority == b.priority) {
            join_all(equal.iter().map(|hook| run(&hooks, hook, until.saturating_duration_since(Instant::now())))).await;
        }
    }))
}

fn log() -> io::Result<File> {
    fs::create_dir_all(LOG_DIR)?;
    OpenOptions::new().create(true).append(true).open(format!("{LOG_DIR}/hooks.log"))
}

/// Runs one within its time and `left`, and logs the outcome.
async fn run(hooks: &Arc<Hooks>, hook: &SandboxHook, left: Duration) {
    let outcome = match attempt(hooks, hook, seconds(hook.timeout).min(left)).await {
        Ok(outcome) => outcome,
        Err(error) => format!("could not run: {error}"),
    };
    let line = format!("arenite: hook {} ({}): {outcome}\n", hook.name, hook.event);
    if let Err(error) = log().and_then(|mut log| log.write_all(line.as_bytes())) {
        tracing::error!(%error, line, "the log of hooks could not be written");
    }
}

async fn attempt(
    hooks: &Arc<Hooks>,
    hook: &SandboxHook,
    limit: Duration,
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    if limit.is_zero() {
        return Ok("not run: no time was left".to_owned());
    }
    let null = || File::options().read(true).write(true).open("/dev/null");
    let output = OwnedFd::from(log().or_else(|_| null())?);
    let command = Command {
        argv: vec!["sh".to_owned(), "-c".to_owned(), hook.command.clone()],
        env: hooks.runtime.environment(&hooks.runtime.user, &[("HOOK_EVENT".to_owned(), hook.event.clone())]),
        cwd: hooks.runtime.default_dir().display().to_string(),
        user: &hooks.runtime.user,
        stdio: [null()?.into(), output.try_clone()?, output],
        controlling_tty: false,
    };
    let mut child = hooks.runtime.processes.spawn(command).await?;
    if let Ok(exit) = timeout(limit, child.wait()).await {
        return Ok(format!("ended: {exit:?}"));
    }
    let (pid, marker) = (child.pid, child.marker.clone());
    tokio::task::spawn_blocking(move || kill_members(Some(pid), &marker, Signal::KILL)).await?;
    Ok(format!("killed after {:.1} s", limit.as_secs_f64()))
}
