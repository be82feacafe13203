//! Starts the shell of a session.

use arenite_isolation::spawner::{SpawnError, Stage};

use super::driver;
use super::marks::Marks;
use super::pty::Pty;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Child, Command};

pub(super) struct Shell {
    pub(super) pty: Pty,
    pub(super) child: Child,
    pub(super) marks: Marks,
    /// Its directory: the requested one, or the next best.
    pub(super) dir: String,
}

/// Starts a shell in `dir`. If it can't be entered, uses the default directory, else `/`. `keep_links`: `pwd` shows `dir`
/// unchanged. `plain`: without the user's start-up files.
pub(super) async fn start(runtime: &Runtime, dir: &str, keep_links: bool, plain: bool) -> Result<Shell, SpawnError> {
    let default = runtime.default_dir().display().to_string();
    let mut failed = None;
    for dir in [dir, &default, "/"] {
        match start_in(runtime, dir, keep_links, plain).await {
            Err(e @ SpawnError::Failed { stage: Stage::Directory, .. }) => failed = Some(e),
            other => return other,
        }
    }
    Err(failed.unwrap_or(SpawnError::Nul))
}

async fn start_in(runtime: &Runtime, dir: &str, keep_links: bool, plain: bool) -> Result<Shell, SpawnError> {
    let descriptors =
        |source| SpawnError::Failed { program: "bash".to_owned(), cwd: dir.to_owned(), stage: Stage::Descriptors, source };
    let nonce = getrandom::u64().map_err(|e| descriptors(std::io::Error::other(e)))?;
    let nonce = format!("{nonce:016x}");
    let (pty, slave) = Pty::open(&runtime.user).map_err(descriptors)?;
    let again = || slave.try_clone().map_err(descriptors);
    let stdio = [again()?, again()?, slave];
    let mut argv = vec!["bash".to_owned()];
    if plain {
        argv.push("--norc".to_owned());
    }
    let child = runtime
        .processes
        .spawn(Command {
            argv,
            env: environment(runtime, dir, keep_links, &nonce),
            cwd: dir.to_owned(),
            user: &runtime.user,
            stdio,
            controlling_tty: true,
        })
        .await?;
    let dir = match keep_links {
        true => dir.to_owned(),
        false => std::fs::canonicalize(dir).map_or_else(|_| dir.to_owned(), |d| d.display().to_string()),
    };
    Ok(Shell { pty, child, marks: Marks::new(&nonce), dir })
}

fn environment(runtime: &Runtime, dir: &str, keep_links: bool, nonce: &str) -> Vec<(String, String)> {
    let mut extra = vec![(driver::SETUP_VARIABLE.to_owned(), driver::setup(nonce))];
    // No person is there to leave a pager. The sandbox's environment can set another one.
    for (name, value) in [("TERM", "xterm-256color"), ("PAGER", "cat"), ("GIT_PAGER", "cat")] {
        if !runtime.config().env.contains_key(name) {
            extra.push((name.to_owned(), value.to_owned()));
        }
    }
    if keep_links {
        extra.push(("PWD".to_owned(), dir.to_owned()));
    }
    runtime.environment(&runtime.user, &extra)
}
