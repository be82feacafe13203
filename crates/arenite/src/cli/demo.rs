//! Arguments of `arenite open` and `demo`.

use arenite_model::{ImageName, SandboxName};
use clap::Args;

use super::Server;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints the address, and opens it with $BROWSER, or else with xdg-open. With an API key, the address has a ticket, which signs the
browser in and expires soon: the server's ticket_ttl_seconds says when.

Examples:
  arenite open demo                    its dashboard
  arenite open demo --port 3000        what it serves on port 3000
  arenite open demo --print            only print the address")]
pub(crate) struct OpenArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// Open what the sandbox serves on this port
    #[arg(long, short, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Print the address, and open nothing
    #[arg(long)]
    pub(crate) print: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A scripted agent works in a new sandbox: commands, files, Python, a checkpoint, a mistake and its rollback, and a fork that tries
two ways. Each step shows the command that does the same. Everything is deleted at the end, also after Ctrl-C.

Examples:
  arenite demo
  arenite demo --no-wait
  arenite demo --keep                  keep the sandboxes, to look around")]
pub(crate) struct DemoArgs {
    /// Image of the sandbox [default: the server's]
    #[arg(long, short, value_name = "IMAGE")]
    pub(crate) image: Option<ImageName>,
    /// Name of the sandbox [default: demo- and a random number]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// Keep the sandboxes
    #[arg(long)]
    pub(crate) keep: bool,
    /// Speed: 2 is twice as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    pub(crate) speed: f64,
    /// Don't pause between steps
    #[arg(long, conflicts_with = "speed")]
    pub(crate) no_wait: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.1..=100.0).contains(&speed) => Ok(speed),
        _ => Err("write a factor from 0.1 to 100".to_owned()),
    }
}
