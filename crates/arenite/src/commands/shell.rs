//! `completions` and `man`: what shells and manual pages need of the command line.
//!
//! The scripts call this program for each completion, so that it completes names of what is on the server.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;

use crate::cli::{Cli, CompletionsArgs, ManArgs, Server};
use crate::client::{Client, DEFAULT_SERVER};
use crate::config::values::Secret;
use crate::failure::{Attempt, Failure, Outcome};
use crate::names::{
    GROUP, IMAGE, KEY, Kind, MODEL, NODE, QUARANTINED, SANDBOX, SECRET, SNAPSHOT, TEMPLATE, TENANT, VOLUME, WEBHOOK,
};
use crate::output;

/// The variable by which a script asks for completions.
const VARIABLE: &str = "ARENITE_COMPLETE";
/// Longest wait for names. A person waits for them, and can type instead.
const PATIENCE: Duration = Duration::from_millis(400);

/// Completes a command line and exits, if a script asks for it.
pub(crate) fn complete() {
    CompleteEnv::with_factory(|| with_names(Cli::command(), "")).var(VARIABLE).bin("arenite").completer("arenite").complete();
}

pub(crate) fn completions(args: &CompletionsArgs) -> Outcome {
    let shells = Shells::builtins();
    let shell = args.shell.to_string();
    let completer = shells.completer(&shell).ok_or_else(|| Failure::new(format!("there are no completions for {shell}")))?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, "arenite", "arenite", "arenite", &mut script);
    written.attempt(|| format!("could not write the completions for {shell}"))?;
    if shell == "zsh" {
        // zsh loads the file as a function at the first completion, which this call then does.
        script.extend_from_slice(b"if [[ $funcstack[1] == _arenite ]]; then _clap_dynamic_completer_arenite \"$@\"; fi\n");
    }
    output::bytes(&script);
    Ok(ExitCode::SUCCESS)
}

/// Adds completions of names to the arguments of a command and of those below it.
fn with_names(command: clap::Command, family: &str) -> clap::Command {
    let own = command.get_name().to_owned();
    // All at once: changing a single argument would move it behind the others, and with it its place on the command line.
    let command = command.mut_args(|argument| match named_by(family, &own, argument.get_id().as_str()) {
        Some((kind, end)) => argument.add(ArgValueCompleter::new(move |current: &OsStr| candidates(kind, end, current))),
        None => argument,
    });
    command.mut_subcommands(|below| with_names(below, &own))
}

/// What an argument names, and what follows the name.
fn named_by(family: &str, command: &str, argument: &str) -> Option<(Kind, &'static str)> {
    let kind = match (family, command, argument) {
        // Copies complete files by themselves, and sandboxes here.
        ("arenite", "cp", "source" | "target") => return Some((SANDBOX, ":/")),
        ("snapshot", "cp", "source") => return Some((SNAPSHOT, ":/")),
        ("image", "build", "secret" | "target") | (_, "usage", "group") => return None,
        ("volume", "cp", "source") => VOLUME,
        // Names of what is yet to exist.
        (_, "create" | "cp" | "import", "name") => return None,
        ("snapshot", _, "name" | "names") => SNAPSHOT,
        ("volume", _, "name" | "names") => VOLUME,
        ("group", _, "name" | "names") => GROUP,
        ("node", _, "name") => NODE,
        ("tenant", _, "name") => TENANT,
        ("secret", _, "name" | "names") => SECRET,
        ("model", _, "name" | "names") => MODEL,
        ("template", _, "names") => TEMPLATE,
        ("key", _, "id" | "ids") => KEY,
        ("webhook", _, "id" | "ids") => WEBHOOK,
        ("quarantine", _, "id" | "ids") => QUARANTINED,
        (_, _, "sandbox" | "sandboxes" | "trajectory" | "bind") => SANDBOX,
        (_, _, "image" | "images" | "on") => IMAGE,
        (_, _, "snapshot") => SNAPSHOT,
        (_, _, "template") => TEMPLATE,
        (_, _, "group") => GROUP,
        (_, _, "tenant") => TENANT,
        (_, _, "secret") => SECRET,
        (_, _, "volume") => return Some((VOLUME, ":/")),
        _ => return None,
    };
    Some((kind, ""))
}

/// The names on the server that start with the word. None if it doesn't answer in time: a completion has no place for errors.
fn candidates(kind: Kind, end: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = current.to_str() else { return Vec::new() };
    let names = names(kind, &server(std::env::args_os())).unwrap_or_default();
    let fits = names.into_iter().filter(|name| name.starts_with(start) && !name.contains(char::is_control));
    fits.map(|name| CompletionCandidate::new(format!("{name}{end}"))).collect()
}

fn names(kind: Kind, server: &Server) -> Option<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let names = runtime.block_on(async { Client::connect_to(server).ok()?.names(kind, PATIENCE).await });
    // A name that is being resolved must not delay the exit.
    runtime.shutdown_background();
    names
}

/// The server that a command line names, or else the variables.
fn server(words: impl Iterator<Item = OsString>) -> Server {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let option = |name: &str, variable: &str| {
        let following = words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
        let joined = || words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
        following.or_else(joined).or_else(|| std::env::var(variable).ok())
    };
    Server {
        server: option("--server", "ARENITE_SERVER").unwrap_or_else(|| DEFAULT_SERVER.to_owned()),
        api_key: option("--api-key", "ARENITE_API_KEY").map(Secret),
        ca: option("--ca", "ARENITE_CA").map(Into::into),
    }
}

pub(crate) fn man(args: &ManArgs) -> Outcome {
    let dir = &args.dir;
    fs::create_dir_all(dir).attempt(|| format!("could not create {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir).attempt(|| format!("could not write manual pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_that_of_the_command_line() {
        let found = |words: &[&str]| server(words.iter().map(OsString::from)).server;
        assert_eq!(found(&["arenite", "--", "arenite", "ls", "--server", "http://a:1", "x"]), "http://a:1");
        assert_eq!(found(&["arenite", "--", "arenite", "ls", "--server=http://b:1"]), "http://b:1");
    }

    #[test]
    fn arguments_are_known_by_their_commands() {
        let kind = |family, command, argument| named_by(family, command, argument).map(|(kind, _)| kind);
        assert_eq!(kind("arenite", "exec", "sandbox"), Some(SANDBOX));
        assert_eq!(kind("volume", "rm", "names"), Some(VOLUME));
        assert_eq!(kind("volume", "create", "name"), None);
        assert_eq!(kind("snapshot", "create", "name"), None);
        assert_eq!(kind("snapshot", "create", "sandbox"), Some(SANDBOX));
        assert_eq!(kind("group", "create", "name"), None);
        assert_eq!(kind("tenant", "set", "name"), Some(TENANT));
        assert_eq!(kind("arenite", "usage", "group"), None);
    }
}
