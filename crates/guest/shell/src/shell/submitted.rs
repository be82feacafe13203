//! A call that waits for its command.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::run::{Phase, Run};
use super::service::ShellError;
use super::session::Session;
use super::types::{ShellCommandResult, ShellStatus};
use arenite_guest_runtime::until;

/// A command in its session's queue.
pub(super) struct Submitted {
    pub(super) session: Arc<Session>,
    pub(super) run: Arc<Run>,
    pub(super) is_async: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) no_change_timeout: Option<Duration>,
    pub(super) limit: Option<usize>,
}

impl Submitted {
    /// Waits for the command's end, up to the call's timeouts.
    pub(super) async fn follow(&self) -> ShellStatus {
        if self.is_async {
            return ShellStatus::Running;
        }
        let mut phase = self.run.watch();
        loop {
            if let Phase::Ended(status) = *phase.borrow_and_update() {
                return status;
            }
            // While queued, the output of the earlier command counts as change.
            let quiet = self.no_change_timeout.and_then(|limit| {
                let before = self.session.changed().filter(|_| self.run.began().is_none());
                before.max(Some(self.run.changed()))?.checked_add(limit)
            });
            let now = Instant::now();
            if self.deadline.is_some_and(|at| at <= now) {
                return ShellStatus::Running;
            }
            if quiet.is_some_and(|at| at <= now) {
                let hint = "not started: the session is busy with an earlier command; \
                            stop that with /v1/shell/kill, or use another session";
                if self.run.withdraw(hint.to_owned()) {
                    let queue = &mut self.session.state().queue;
                    queue.retain(|run| !Arc::ptr_eq(run, &self.run));
                }
                return ShellStatus::NoChangeTimeout;
            }
            let next = [self.deadline, quiet].into_iter().flatten().min();
            tokio::select! {
                _ = phase.changed() => {}
                () = until(next) => {}
            }
        }
    }

    pub(super) fn result(&self, status: ShellStatus) -> Result<ShellCommandResult, ShellError> {
        if let Some(Err(reason)) = &*self.session.opened.borrow() {
            return Err(reason.clone().into());
        }
        let renewed = self.session.state().renewed.take();
        let output = self.run.output(self.limit);
        let nothing_yet = output.is_empty() && status == ShellStatus::Running;
        Ok(ShellCommandResult {
            session_id: self.session.id.to_string(),
            command: self.run.command.clone(),
            status,
            output: Some(output).filter(|_| !nothing_yet),
            console: Some(self.session.console()),
            exit_code: self.run.exit_code().filter(|_| status == ShellStatus::Completed),
            hint: self.run.hint().or(renewed),
        })
    }
}
