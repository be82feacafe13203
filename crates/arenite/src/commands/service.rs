//! `service install|uninstall`: Arenite as a service of systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cli::{ServiceCommand, ServiceInstallArgs, ServiceUninstallArgs};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

/// The units that packages install too.
const UNITS: [(&str, &str); 2] = [
    ("arenite.service", include_str!("../../../../packaging/arenite.service")),
    ("arenite.socket", include_str!("../../../../packaging/arenite.socket")),
];
/// The program of the packaged unit.
const PACKAGED_PROGRAM: &str = "/usr/bin/arenite";
/// Units of the administrator, which take precedence over those of packages.
const UNIT_DIR: &str = "etc/systemd/system";

pub(crate) fn run(command: &ServiceCommand) -> Outcome {
    match command {
        ServiceCommand::Install(args) => install(args),
        ServiceCommand::Uninstall(args) => uninstall(args),
    }
}

fn install(args: &ServiceInstallArgs) -> Outcome {
    let manages_host = check_host(args.root.as_deref())?;
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().attempt(|| "could not find this program".into())?,
    };
    let program = program.to_str().filter(|path| is_plain_path(path)).ok_or_else(|| {
        Failure::new(format!("the path {} can't be written into a unit file", program.display()))
            .hint("use an absolute path without spaces, quotes, backslashes and % signs")
    })?;
    let dir = unit_dir(args.root.as_deref());
    fs::create_dir_all(&dir).attempt(|| format!("could not create {}", dir.display()))?;
    for (name, unit) in UNITS {
        let path = dir.join(name);
        fs::write(&path, unit.replace(PACKAGED_PROGRAM, program)).attempt(|| format!("could not write {}", path.display()))?;
        output::line(format_args!("wrote {}", path.display()));
    }
    if manages_host {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", "arenite.socket", "arenite.service"])?;
        output::line("started arenite.service; its log is shown by: journalctl -u arenite");
    }
    Ok(ExitCode::SUCCESS)
}

fn uninstall(args: &ServiceUninstallArgs) -> Outcome {
    let manages_host = check_host(args.root.as_deref())?;
    let dir = unit_dir(args.root.as_deref());
    let installed: Vec<PathBuf> = UNITS.iter().map(|(name, _)| dir.join(name)).filter(|path| path.exists()).collect();
    if installed.is_empty() {
        return Err(Failure::new(format!("there are no units of Arenite in {}", dir.display()))
            .hint("those of a package are removed with the package: apt remove arenite"));
    }
    if manages_host {
        systemctl(&["disable", "--now", "arenite.service", "arenite.socket"])?;
    }
    for path in &installed {
        fs::remove_file(path).attempt(|| format!("could not remove {}", path.display()))?;
        output::line(format_args!("removed {}", path.display()));
    }
    if manages_host {
        systemctl(&["daemon-reload"])?;
    }
    eprintln!("sandboxes and data stay; arenite reset --all removes them");
    Ok(ExitCode::SUCCESS)
}

/// Whether systemd of this host is to be asked: not for another root directory.
fn check_host(root: Option<&Path>) -> Result<bool, Failure> {
    if root.is_some() {
        return Ok(false);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("services are managed by root").hint("put sudo before the command"));
    }
    if !Path::new("/run/systemd/system").is_dir() {
        return Err(Failure::new("this host is not run by systemd")
            .hint("start the server with: arenite serve; or write the units into another root directory with --root"));
    }
    Ok(true)
}

fn unit_dir(root: Option<&Path>) -> PathBuf {
    root.unwrap_or(Path::new("/")).join(UNIT_DIR)
}

/// Whether systemd reads the path as it is written.
fn is_plain_path(path: &str) -> bool {
    path.starts_with('/') && path.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_' | '+'))
}

fn systemctl(args: &[&str]) -> Result<(), Failure> {
    let shown = format!("systemctl {}", args.join(" "));
    let status = Command::new("systemctl").args(args).status().attempt(|| format!("could not run {shown}"))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{shown} failed ({status})"))) }
}
