//! The sandbox's main command: `args` from its image or its creator, run once, with its output in a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::Command;

/// The directory for its output and the guest's own log. It is on the sandbox's disk, so the disk limit bounds them.
pub(crate) const LOG_DIR: &str = "/var/log/arenite";

/// Starts it, if there is one. Failures are written to its log, where users look for them.
pub(crate) fn start(runtime: Arc<Runtime>) {
    if runtime.config().args.is_empty() {
        return;
    }
    tokio::spawn(async move {
        let outcome = match run(&runtime).await {
            Ok(exit) => format!("arenite: the main command ended: {exit:?}\n"),
            Err(error) => format!("arenite: the main command could not run: {error}\n"),
        };
        let told = log().and_then(|mut file| file.write_all(outcome.as_bytes()));
        if let Err(error) = told {
            tracing::error!(%error, outcome, "the main command's log could not be written");
        }
    });
}

fn log() -> io::Result<File> {
    fs::create_dir_all(LOG_DIR)?;
    OpenOptions::new().create(true).append(true).open(format!("{LOG_DIR}/main.log"))
}

async fn run(runtime: &Runtime) -> Result<arenite_guest_runtime::process::Exit, Box<dyn std::error::Error + Send + Sync>> {
    let output = OwnedFd::from(log()?);
    let command = Command {
        argv: runtime.config().args.clone(),
        env: runtime.environment(&runtime.user, &[]),
        cwd: runtime.default_dir().display().to_string(),
        user: &runtime.user,
        stdio: [File::open("/dev/null")?.into(), output.try_clone()?, output],
        controlling_tty: false,
    };
    Ok(runtime.processes.spawn(command).await?.wait().await)
}
