//! Arguments of `arenite volume`.

use arenite_model::VolumeName;
use clap::{Args, Subcommand};

use super::{Format, ListOutput, Output, Server};
use crate::config::values::Size;

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create an empty volume
    Create(VolumeCreateArgs),
    /// List volumes
    Ls(VolumeLsArgs),
    /// Show volumes as JSON
    Inspect(VolumeInspectArgs),
    /// Change the size and the labels of a volume
    Set(VolumeSetArgs),
    /// Copy a volume at once
    Cp(VolumeCpArgs),
    /// Remove volumes with their files
    Rm(VolumeRmArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A volume outlives sandboxes, and several sandboxes can mount it at once. Each sees what the others write.

Examples:
  arenite volume create models --size 50GiB
  arenite create demo --volume models:/models
  arenite create other --volume models/first:/data:ro       one directory of it, read-only
  arenite volume create data --bucket shared                in a bucket that the operator declared")]
pub(crate) struct VolumeCreateArgs {
    /// Name: lower-case letters, digits and inner hyphens
    pub(crate) name: VolumeName,
    /// What it may hold, from 16MiB; in a bucket, what may wait there for its upload [default: 10GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// Keep its files in this bucket
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: Option<String>,
    /// Label; repeatable
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeInspectArgs {
    /// The volumes
    #[arg(required = true)]
    pub(crate) names: Vec<VolumeName>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Below what the volume holds, a size makes all further writes fail.

Examples:
  arenite volume set models --size 100GiB
  arenite volume set models --label team=a --unlabel draft")]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct VolumeSetArgs {
    /// The volume
    pub(crate) name: VolumeName,
    /// What it may hold
    #[arg(long, value_name = "SIZE", group = "change")]
    pub(crate) size: Option<Size>,
    /// Label to set; repeatable
    #[arg(long, short, value_name = "KEY=VALUE", group = "change")]
    pub(crate) label: Vec<String>,
    /// Label to remove; repeatable
    #[arg(long, value_name = "KEY", group = "change")]
    pub(crate) unlabel: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The copy shares its files with the other volume until one of them changes, so it takes no time and no space at first. It needs a
storage pool.

Examples:
  arenite volume cp models models-of-friday")]
pub(crate) struct VolumeCpArgs {
    /// The volume to copy
    #[arg(value_name = "SRC")]
    pub(crate) source: VolumeName,
    /// The name of the copy
    #[arg(value_name = "DST")]
    pub(crate) name: VolumeName,
    /// What the copy may hold [default: as much as the other volume]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// Label of the copy; repeatable
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A volume that a sandbox has is not removed. With --force, it is removed if all these sandboxes are failed or lost: they keep their
own files, and can't be started again.

Examples:
  arenite volume rm models
  arenite volume rm models --force")]
pub(crate) struct VolumeRmArgs {
    /// The volumes
    #[arg(required = true)]
    pub(crate) names: Vec<VolumeName>,
    /// Also take them from sandboxes that have ended
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
