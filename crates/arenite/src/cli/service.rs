//! Arguments of `service`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::Shell;

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write the units, and start the server now and at every boot
    Install(ServiceInstallArgs),
    /// Stop the server and remove the units; sandboxes and data stay
    Uninstall(ServiceUninstallArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The server reads its settings from /etc/arenite.toml. The addresses are those of arenite.socket: change them with
'systemctl edit arenite.socket'.

Examples:
  sudo arenite service install
  sudo arenite service install --program /opt/arenite/arenite
  arenite service install --root ./image                           units for an image of a host")]
pub(crate) struct ServiceInstallArgs {
    /// The program that the service runs [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Write below this directory, and start nothing
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ServiceUninstallArgs {
    /// Remove from below this directory, and stop nothing
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The script also completes names of sandboxes, images and the like, which it asks the server of ARENITE_SERVER for.

Examples:
  source <(arenite completions bash)   try it in this shell
  arenite completions bash | sudo tee /usr/share/bash-completion/completions/arenite
  arenite completions zsh > ~/.zfunc/_arenite
  arenite completions fish > ~/.config/fish/completions/arenite.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write into
    pub(crate) dir: PathBuf,
}
