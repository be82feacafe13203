//! `reset`: what Arenite has on this host, and its removal.

use std::process::ExitCode;

use arenite_engine::EngineError;
use arenite_engine::namespace::Installation;

use crate::cli::ResetArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

pub(crate) fn reset(args: &ResetArgs) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("only root can see and remove what sandboxes use").hint("put sudo before the command"));
    }
    let found = Installation::inspect(&args.data_dir.data_dir).map_err(|error| refused(&error))?;
    if found.is_empty() {
        eprintln!("nothing of {} is on this host", found.data_dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    for (title, text) in describe(&found) {
        output::line(format_args!("{title:<16} {text}"));
    }
    if !found.others.is_empty() {
        let others: Vec<String> = found.others.iter().map(|dir| dir.display().to_string()).collect();
        eprintln!("other data directories in use on this host, which stay: {}", others.join(", "));
    }
    if !args.all {
        eprintln!("nothing was changed; arenite reset --all removes all of it");
        return Ok(ExitCode::SUCCESS);
    }
    if !args.force {
        output::confirm("remove all of it, with every sandbox, image and trajectory")?;
    }
    found.remove(&mut |step| output::line(step)).map_err(|error| refused(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(found: &Installation) -> Vec<(&'static str, String)> {
    let server = found.server.as_ref().map_or_else(|| "not running".to_owned(), ToString::to_string);
    let listed = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    let interfaces = match found.interfaces.len() {
        0..=4 => listed(&found.interfaces),
        number => format!("{} and {} others", found.interfaces[..3].join(", "), number - 3),
    };
    vec![
        ("data directory", found.data_dir.display().to_string()),
        ("server", server),
        ("sandboxes", format!("{}, with {} processes", found.sandboxes, found.processes)),
        ("interfaces", interfaces),
        ("storage pool", if found.has_mount { "mounted" } else { "not mounted" }.to_owned()),
        ("files", listed(&found.entries)),
    ]
}

fn refused(error: &EngineError) -> Failure {
    Failure::new(error.to_string()).maybe_hint(error.hint())
}
