//! Starts the shell of a session.

use arenite_isolation::spawner::{SpawnError, Stage};
use thiserror::Error;

use super::marks::Marks;
use super::posix::Letterbox;
use super::pty::Pty;
use super::{driver, posix};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Child, Command};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::shells::CommandShell;

pub(super) struct Shell {
    pub(super) pty: Pty,
    pub(super) child: Child,
    pub(super) marks: Marks,
    /// Its directory: the requested one, or the next best.
    pub(super) dir: String,
    /// How it gets its commands, if it is not bash.
    pub(super) letterbox: Option<Letterbox>,
}

impl Shell {
    /// The line that makes it mark its prompts.
    pub(super) fn first_line(&self) -> &'static str {
        match self.letterbox {
            Some(_) => posix::FIRST_LINE,
            None => driver::FIRST_LINE,
        }
    }
}

/// Why there is no shell.
#[derive(Debug, Error)]
pub(super) enum StartError {
    #[error("{}", Requirement::SHELL.message())]
    NoShell,
    #[error(transparent)]
    NotSpawned(#[from] SpawnError),
}

/// Starts a shell in `dir`. If it can't be entered, uses the default directory, else `/`. `keep_links`: `pwd` shows `dir`
/// unchanged. `plain`: without the user's start-up files. `carried`: lines that bash runs after them.
pub(super) async fn start(
    runtime: &Runtime,
    dir: &str,
    keep_links: bool,
    plain: bool,
    carried: &str,
) -> Result<Shell, StartError> {
    let default = runtime.default_dir().display().to_string();
    let mut failed = None;
    for dir in [dir, &default, "/"] {
        match start_in(runtime, dir, keep_links, plain, carried).await {
            Err(e @ StartError::NotSpawned(SpawnError::Failed { stage: Stage::Directory, .. })) => failed = Some(e),
            other => return other,
        }
    }
    Err(failed.unwrap_or(StartError::NoShell))
}

async fn start_in(runtime: &Runtime, dir: &str, keep_links: bool, plain: bool, carried: &str) -> Result<Shell, StartError> {
    let mut env = environment(runtime, dir, keep_links);
    let shell = CommandShell::find(&env).ok_or(StartError::NoShell)?;
    let descriptors =
        |source| SpawnError::Failed { program: shell.name().to_owned(), cwd: dir.to_owned(), stage: Stage::Descriptors, source };
    let nonce = getrandom::u64().map_err(|e| descriptors(std::io::Error::other(e)))?;
    let nonce = format!("{nonce:016x}");
    let (pty, slave) = Pty::open(&runtime.user).map_err(descriptors)?;
    let again = || slave.try_clone().map_err(descriptors);
    let stdio = [again()?, again()?, slave];
    let mut argv = vec![shell.name().to_owned()];
    let letterbox = match shell {
        CommandShell::Bash => {
            set(&mut env, driver::SETUP_VARIABLE, driver::setup(&nonce) + carried);
            if plain {
                argv.push("--norc".to_owned());
            }
            None
        }
        CommandShell::Sh => {
            set(&mut env, driver::SETUP_VARIABLE, posix::setup(&nonce));
            let (name, value) = posix::HISTORY;
            set(&mut env, name, value.to_owned());
            if plain {
                // It names the user's start-up file.
                env.retain(|(name, _)| name != "ENV");
            }
            Some(Letterbox::new(&runtime.user).map_err(descriptors)?)
        }
    };
    let child = runtime
        .processes
        .spawn(Command { argv, env, cwd: dir.to_owned(), user: &runtime.user, stdio, controlling_tty: true })
        .await?;
    let dir = match keep_links {
        true => dir.to_owned(),
        false => std::fs::canonicalize(dir).map_or_else(|_| dir.to_owned(), |d| d.display().to_string()),
    };
    Ok(Shell { pty, child, marks: Marks::new(&nonce), dir, letterbox })
}

fn set(env: &mut Vec<(String, String)>, name: &str, value: String) {
    env.retain(|(known, _)| known != name);
    env.push((name.to_owned(), value));
}

fn environment(runtime: &Runtime, dir: &str, keep_links: bool) -> Vec<(String, String)> {
    let mut extra = Vec::new();
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
