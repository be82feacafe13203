//! Programs that write to their standard output when they are ready.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::service::DesktopError;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Command, OwnedProcess, Said, ScratchDir};

/// Timeout for the first output.
const START: Duration = Duration::from_secs(20);

/// A program to start as the sandbox's user.
pub(super) struct Announced {
    /// Its name in errors.
    pub(super) what: &'static str,
    pub(super) argv: Vec<String>,
    /// Environment beside the user's.
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: String,
    pub(super) stdin: OwnedFd,
    /// Removed after its end.
    pub(super) dir: ScratchDir,
}

impl Announced {
    /// Starts it, and waits for its first output.
    pub(super) async fn start(self, runtime: &Runtime) -> Result<OwnedProcess, DesktopError> {
        let what = self.what;
        let at = |source: io::Error| DesktopError::Io { what, source };
        let (mut announced, stdout) = process::output_pipe(&runtime.user).map_err(at)?;
        let (output, stderr) = process::output_pipe(&runtime.user).map_err(at)?;
        let command = Command {
            argv: self.argv,
            env: runtime.environment(&runtime.user, &self.env),
            cwd: self.cwd,
            user: &runtime.user,
            stdio: [self.stdin, stdout, stderr],
            controlling_tty: false,
        };
        let child = runtime.processes.spawn(command).await.map_err(DesktopError::NotSpawned)?;
        let mut process = OwnedProcess::new(child, self.dir);
        let said = Said::default();
        let listening = tokio::spawn(said.clone().listen(output));
        let mut buffer = [0; 512];
        match timeout(START, announced.read(&mut buffer)).await {
            Ok(Ok(1..)) => {
                // It and what it starts would block on a full pipe.
                tokio::spawn(Said::default().listen(announced));
                Ok(process)
            }
            Ok(_) => {
                drop(timeout(Duration::from_millis(200), listening).await);
                let how = process.wait().await.to_string();
                Err(DesktopError::Ended { what, how, said: said.text() })
            }
            Err(_) => Err(DesktopError::TooSlow { what, seconds: START.as_secs(), said: said.text() }),
        }
    }
}
