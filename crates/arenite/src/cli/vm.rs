//! `vm`: what can be said of machines.

use std::path::PathBuf;

use arenite_model::ImageName;
use clap::{Args, Subcommand};

use super::{DataDir, Format};
use crate::config::values::Size;

#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Build a machine from an Imagefile, and the image that it is in
    Build(VmBuildArgs),
    /// Put a qcow2 disk that you have into an image
    Import(VmImportArgs),
    /// Try whether machines boot with this host's KVM, and use it from then on if they do
    Probe(VmProbeArgs),
    /// List images with a machine
    #[command(visible_alias = "ls")]
    List(VmListArgs),
}

/// What a machine is made of, whatever its disk.
#[derive(Debug, Clone, Args)]
pub(crate) struct VmSettings {
    /// Memory of the machine; its sandboxes need some 400 MiB more
    #[arg(long, default_value = "1g", value_name = "SIZE")]
    pub(crate) memory: Size,
    /// Processors of the machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub(crate) cpus: u32,
    /// Port that the agent in the machine listens on; 0: there is none
    #[arg(long, default_value_t = 5000, value_name = "PORT")]
    pub(crate) agent_port: u16,
    /// Seconds from its start until the agent must answer
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400), value_name = "SECONDS")]
    pub(crate) boot_seconds: u32,
    /// Don't boot it now; each sandbox then boots its own
    #[arg(long)]
    pub(crate) cold: bool,
    /// Build every step anew
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Show the output of every step
    #[arg(long, short)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A machine is a sandbox in which one QEMU runs. Of the Imagefile's files a disk is made that boots, in a sandbox, so that the host
needs none of the tools. Then the machine is booted once and its state kept: sandboxes of the image begin there, in seconds.
Without an Imagefile it is the one that comes with Arenite: Debian with a small desktop and the agent.

An Imagefile of yours brings /boot/vmlinuz and /boot/initrd.img with drivers for virtio, and may bring words for the kernel
in /etc/machine-boot. FROM machine-root stands on the one that comes along, once that was built.

Examples:
  sudo arenite vm build                              the machine that comes with Arenite, as image 'machine'
  sudo arenite vm build office -f Imagefile --size 8g
  arenite create demo --image machine
  curl http://127.0.0.1:8080/sandbox/demo/v1/machine")]
pub(crate) struct VmBuildArgs {
    /// The image's name
    #[arg(default_value = "machine")]
    pub(crate) name: ImageName,
    /// The Imagefile of what is in the machine
    #[arg(long, short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Directory that COPY takes from [default: the Imagefile's]
    #[arg(long, value_name = "DIR", requires = "file")]
    pub(crate) context: Option<PathBuf>,
    /// Size of the machine's disk; what is not written takes no room
    #[arg(long, default_value = "4g", value_name = "SIZE")]
    pub(crate) size: Size,
    #[command(flatten)]
    pub(crate) settings: VmSettings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The disk must be one whole qcow2 that boots by BIOS. One with a backing file, or with its data elsewhere, is refused; it is looked at in a
sandbox. Without an agent that speaks OSWorld's protocol (--agent-port 0), it counts as ready when it runs, and what only an
agent can do is refused.

Examples:
  sudo arenite vm import osworld Ubuntu.qcow2 --memory 4g --cpus 4
  sudo arenite vm import plain disk.qcow2 --agent-port 0 --devices plain --cold")]
pub(crate) struct VmImportArgs {
    /// The image's name
    pub(crate) name: ImageName,
    /// The disk
    #[arg(value_name = "QCOW2")]
    pub(crate) path: PathBuf,
    /// Devices that the system on the disk has drivers for: virtio, or plain ones (IDE, e1000, USB)
    #[arg(long, default_value = "virtio", value_parser = ["virtio", "plain"])]
    pub(crate) devices: String,
    #[command(flatten)]
    pub(crate) settings: VmSettings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
That /dev/kvm opens does not mean that machines boot with it. So one is booted, in a sandbox, and what that shows is kept for this host: sandboxes
that are made from then on run their machines with KVM, or without. `vm build` and `vm import` do the same when nothing is known
yet, and keep the machine's state as it will run. A state that was kept without KVM is not taken up with it: build the image anew.

With KVM, code in a machine's sandbox reaches the device; --off keeps it from all.

Examples:
  sudo arenite vm probe
  sudo arenite vm probe office --seconds 120
  sudo arenite vm probe --off")]
pub(crate) struct VmProbeArgs {
    /// An image with a machine that has an agent
    #[arg(default_value = "machine")]
    pub(crate) image: ImageName,
    /// Seconds in which its agent must answer
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "SECONDS")]
    pub(crate) seconds: u32,
    /// Don't try; machines run without KVM
    #[arg(long, conflicts_with_all = ["image", "seconds"])]
    pub(crate) off: bool,
    /// Show the output of every step
    #[arg(long, short)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct VmListArgs {
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}
