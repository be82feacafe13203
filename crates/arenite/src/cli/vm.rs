//! Arguments of `arenite vm`.

use std::path::PathBuf;

use arenite_model::ImageName;
use clap::{Args, Subcommand};

use super::{DataDir, Format, Output};
use crate::config::values::Size;

#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Build a VM from an Imagefile, and the image that contains it
    Build(VmBuildArgs),
    /// Import an existing qcow2 disk as an image
    Import(VmImportArgs),
    /// Test whether VMs boot with this host's KVM, and use it from then on if they do
    Probe(VmProbeArgs),
    /// List images with a VM
    #[command(visible_alias = "ls")]
    List(VmListArgs),
}

/// Hardware of a VM.
#[derive(Debug, Clone, Args)]
pub(crate) struct VmSettings {
    /// Memory of the VM; its sandboxes need some 400 MiB more
    #[arg(long, default_value = "1g", value_name = "SIZE")]
    pub(crate) memory: Size,
    /// Processors of the VM
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub(crate) cpus: u32,
    /// Port that the agent in the VM listens on; 0 for no agent
    #[arg(long, default_value_t = 5000, value_name = "PORT")]
    pub(crate) agent_port: u16,
    /// Seconds from its start until the agent must answer
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400), value_name = "SECONDS")]
    pub(crate) boot_seconds: u32,
    /// Don't boot it now; each sandbox then boots its own
    #[arg(long)]
    pub(crate) cold: bool,
    /// Rebuild every step
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
Builds a bootable disk from the Imagefile's files, and an image that runs it under QEMU. All tools run in sandboxes; the host needs
none of them. The build boots the VM once and saves its state, so that sandboxes of the image start from there, in seconds.
Without an Imagefile, it builds the VM that comes with Arenite: Debian with a small desktop and the agent.

Your Imagefile provides /boot/vmlinuz and /boot/initrd.img with virtio drivers, and optionally kernel options
in /etc/vm-boot. To extend the VM that comes with Arenite, build it once and write FROM vm-root.

Examples:
  sudo arenite vm build                              build the VM that comes with Arenite, as image 'vm'
  sudo arenite vm build office -f Imagefile --size 8g
  arenite create demo --image vm
  curl http://127.0.0.1:8080/sandbox/demo/v1/vm")]
pub(crate) struct VmBuildArgs {
    /// Name of the image
    #[arg(default_value = "vm")]
    pub(crate) name: ImageName,
    /// The Imagefile of the VM's content
    #[arg(long, short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Directory that COPY copies from [default: the Imagefile's]
    #[arg(long, value_name = "DIR", requires = "file")]
    pub(crate) context: Option<PathBuf>,
    /// Size of the VM's disk; unwritten space takes no room
    #[arg(long, default_value = "4g", value_name = "SIZE")]
    pub(crate) size: Size,
    #[command(flatten)]
    pub(crate) settings: VmSettings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The disk must be a single, complete qcow2 file that boots by BIOS. A disk with a backing file or external data is refused; the check
runs in a sandbox. Without an agent that speaks OSWorld's protocol (--agent-port 0), the VM counts as ready when it runs, and
operations that need an agent are refused.

Examples:
  sudo arenite vm import osworld Ubuntu.qcow2 --memory 4g --cpus 4
  sudo arenite vm import plain disk.qcow2 --agent-port 0 --devices plain --cold")]
pub(crate) struct VmImportArgs {
    /// Name of the image
    pub(crate) name: ImageName,
    /// Path of the disk
    #[arg(value_name = "QCOW2")]
    pub(crate) path: PathBuf,
    /// Devices that the disk's system has drivers for: virtio, or plain ones (IDE, e1000, USB)
    #[arg(long, default_value = "virtio", value_parser = ["virtio", "plain"])]
    pub(crate) devices: String,
    #[command(flatten)]
    pub(crate) settings: VmSettings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
On some hosts /dev/kvm opens but no VM boots with it. This command boots one in a sandbox and saves the result for this host: new
sandboxes run their VMs with KVM, or without. `vm build` and `vm import` do the same when no result is saved
yet, and save the VM's state for that mode. A state saved without KVM cannot be resumed with it: rebuild the image.

With KVM, code in a VM's sandbox can reach the device; --off removes it from all sandboxes.

Examples:
  sudo arenite vm probe
  sudo arenite vm probe office --seconds 120
  sudo arenite vm probe --off")]
pub(crate) struct VmProbeArgs {
    /// An image with a VM that has an agent
    #[arg(default_value = "vm")]
    pub(crate) image: ImageName,
    /// Seconds within which its agent must answer
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "SECONDS")]
    pub(crate) seconds: u32,
    /// Don't test; run VMs without KVM
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
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}
