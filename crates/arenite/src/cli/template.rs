//! Arguments of `arenite template`.

use clap::{Args, Subcommand};

use super::{ListOutput, Output, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List templates
    Ls(TemplateLsArgs),
    /// Show templates with all their settings
    Inspect(TemplateInspectArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite template ls
  arenite create demo --template default")]
pub(crate) struct TemplateLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateInspectArgs {
    /// The templates
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}
