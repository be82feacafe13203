//! Arguments of `arenite set`.

use arenite_model::SandboxName;
use clap::Args;

use super::{Format, Idle, Server};
use crate::config::values::Span;

#[derive(Debug, Args)]
#[command(after_help = "\
A paused sandbox stays paused. Changes of the timeouts start the idle time again.

Examples:
  arenite set demo --label team=a --unlabel draft
  arenite set demo --extend 30m                    end it 30 minutes later
  arenite set demo --expires-in 1h                 end it in an hour
  arenite set demo --timeout 2h                    end it 2 hours after its creation
  arenite set demo --timeout 0                     let it live as long as the server allows
  arenite set demo --idle-timeout 10m --idle-policy pause")]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct SetArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// Label to set; repeatable
    #[arg(long, short, value_name = "KEY=VALUE", group = "change")]
    pub(crate) label: Vec<String>,
    /// Label to remove; repeatable
    #[arg(long, value_name = "KEY", group = "change")]
    pub(crate) unlabel: Vec<String>,
    /// Delete it this time after its creation; 0: never
    #[arg(long, value_name = "TIME", group = "change")]
    pub(crate) timeout: Option<Span>,
    /// Delete it this time from now
    #[arg(long, value_name = "TIME", group = "change", conflicts_with = "timeout")]
    pub(crate) expires_in: Option<Span>,
    /// Delete it this much later
    #[arg(long, value_name = "TIME", group = "change", conflicts_with_all = ["timeout", "expires_in"])]
    pub(crate) extend: Option<Span>,
    /// Apply the idle policy after this time without a call; 0: never
    #[arg(long, value_name = "TIME", group = "change")]
    pub(crate) idle_timeout: Option<Span>,
    /// Action after the idle timeout
    #[arg(long, value_enum, group = "change")]
    pub(crate) idle_policy: Option<Idle>,
    /// Pause it to its disk after it was frozen for this time; 0: never
    #[arg(long, value_name = "TIME", group = "change")]
    pub(crate) disk_after: Option<Span>,
    /// Pause it to its disk when it is frozen and the host is short of memory
    #[arg(long, value_name = "BOOL", group = "change", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) disk_under_pressure: Option<bool>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
