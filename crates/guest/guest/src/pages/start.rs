//! Starts a program of the image and waits until it serves.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::error::PageError;
use super::program::Program;
use super::running::{Running, answers};
use super::{lab, vscode};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Arrivals, Command, OwnedProcess, Said, ScratchDir};

/// How long a program may take until it serves. Alone, VS Code takes half a second and JupyterLab two.
pub(super) const START: Duration = Duration::from_secs(120);
/// The pause between checks whether a program that listens also serves: no event reports it.
const PAUSE: Duration = Duration::from_millis(50);
/// Time to read the output of an ended program: all processes that could hold its pipe open have been killed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The command line and environment of a program.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) argv: Vec<String>,
    /// Added to the environment of commands.
    pub(super) env: Vec<(String, String)>,
}

/// The user's home as programs see it.
pub(super) fn home(runtime: &Runtime) -> PathBuf {
    let config = runtime.config();
    config.env.get("HOME").filter(|home| home.starts_with('/')).map_or_else(|| runtime.user.home.clone(), PathBuf::from)
}

/// Starts a program as the sandbox's user, and waits until it serves.
pub(super) async fn start(runtime: &Runtime, program: Program) -> Result<Running, PageError> {
    let command = runtime.locate(program.command()).ok_or(PageError::Missing(program))?;
    let at = |what: &'static str| move |why: io::Error| PageError::Io { program, what, why };
    let dir = ScratchDir::new(&runtime.user).map_err(at("its directory"))?;
    let socket = dir.path().join("socket").display().to_string();
    let launch = match program {
        Program::VsCode => vscode::launch(runtime, command, dir.path(), &socket).await,
        Program::JupyterLab => lab::launch(runtime, command, dir.path(), &socket),
    };
    let Launch { argv, env } = launch.map_err(at("its configuration"))?;
    let arrivals = Arrivals::watch(dir.path()).map_err(at("its directory"))?;
    let (output, stdout) = process::output_pipe(&runtime.user).map_err(at("its output"))?;
    let child = runtime
        .processes
        .spawn(Command {
            argv,
            env: runtime.environment(&runtime.user, &env),
            cwd: home(runtime).display().to_string(),
            user: &runtime.user,
            stdio: [process::dev_null().map_err(at("its input"))?, stdout.try_clone().map_err(at("its output"))?, stdout],
            controlling_tty: false,
        })
        .await
        .map_err(|why| PageError::NotSpawned { program, why })?;
    let said = Said::default();
    let listening = tokio::spawn(said.clone().listen(output));
    let mut owned = OwnedProcess::new(child, dir);
    let serves = async {
        arrivals.wait_for(std::slice::from_ref(&socket)).await?;
        while !answers(runtime, program, &socket).await {
            sleep(PAUSE).await;
        }
        Ok(())
    };
    let exit = tokio::select! {
        // An end that came first is reported as one.
        biased;
        exit = owned.wait() => exit,
        serves = timeout(START, serves) => match serves {
            Ok(Ok(())) => return Ok(Running::new(program, owned.keep(), socket, said)),
            Ok(Err(why)) => return Err(at("its socket")(why)),
            Err(_) => return Err(PageError::TooSlow { program, said: said.text() }),
        },
    };
    owned.end().await;
    drop(timeout(LAST_WORDS, listening).await);
    Err(PageError::Ended { program, how: exit.to_string(), said: said.text() })
}
