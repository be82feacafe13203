//! Starts QEMU on an image's disk.

use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use super::qmp::Qmp;
use super::service::VmError;
use super::settings::{Devices, Settings};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Command, Exit, Kept, OwnedProcess, Said, ScratchDir, told};

/// The directory for what the VM writes, in the sandbox's own layer.
const STATE: &str = "/var/lib/machine/state";
const PROGRAM: &str = "qemu-system-x86_64";
const TOOL: &str = "qemu-img";
/// Timeout for `qemu-img` to create a layer, which is some hundred kilobytes.
const MAKE: Duration = Duration::from_secs(60);
/// Size of the cache for translated code, in MiB. QEMU's default would be a gigabyte.
const TRANSLATED_MIB: u32 = 256;

/// A state of the VM that is saved in its disk: memory, devices, and the disk's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SavedState {
    /// Of when the VM was first ready.
    Ready,
    /// Of a checkpoint or a snapshot of the sandbox. It stays in the disk only until that is sealed.
    Sealed,
}

impl SavedState {
    pub(super) fn tag(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Sealed => "sealed",
        }
    }
}

/// A started QEMU, with its monitor.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) process: Kept,
    pub(super) qmp: Qmp,
    /// A directory that it may write to; it is removed with the process.
    pub(super) dir: PathBuf,
    pub(super) said: Said,
}

/// The VM's files in the sandbox's layer.
#[derive(Debug, Clone)]
pub(super) struct StateDir(PathBuf);

impl StateDir {
    /// Creates the directory, owned by the sandbox's user.
    pub(super) fn open(runtime: &Runtime) -> io::Result<Self> {
        let dir = PathBuf::from(STATE);
        if dir.is_dir() {
            return Ok(Self(dir));
        }
        dir.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(runtime.user.uid), Some(runtime.user.gid))?;
        }
        Ok(Self(dir))
    }

    /// The disk that the VM writes to: a layer over the image's.
    fn disk(&self) -> PathBuf {
        self.0.join("overlay.qcow2")
    }

    /// The file that records the settings of a saved state.
    fn settings_of(&self, state: SavedState) -> PathBuf {
        self.0.join(state.tag()).with_extension("json")
    }

    /// The file that marks that the VM was started in this sandbox: its disk differs from the image's.
    fn started(&self) -> PathBuf {
        self.0.join("started")
    }

    /// The path for the last screen of a VM that did not get ready.
    pub(super) fn last_screen(&self) -> PathBuf {
        self.0.join("last-screen.png")
    }

    /// Whether the disk has such a state, and it fits these settings.
    pub(super) fn has(&self, state: SavedState, settings: &Settings) -> bool {
        std::fs::read_to_string(self.settings_of(state)).is_ok_and(|text| text.trim() == settings.fingerprint())
    }

    pub(super) fn note(&self, state: SavedState, settings: &Settings) -> io::Result<()> {
        std::fs::write(self.settings_of(state), settings.fingerprint())
    }

    /// Whether the disk has such a state, for any settings.
    pub(super) fn has_some(&self, state: SavedState) -> bool {
        self.settings_of(state).exists()
    }

    pub(super) fn forget(&self, state: SavedState) -> io::Result<()> {
        remove(&self.settings_of(state))
    }

    /// Whether the disk has a saved state from the image that was never used.
    pub(super) fn is_warm(&self, settings: &Settings) -> bool {
        self.has(SavedState::Ready, settings) && self.disk().exists() && !self.started().exists()
    }

    /// Removes the mark of a start: an image's VM is unused in each of its sandboxes.
    pub(super) fn forget_started(&self) -> io::Result<()> {
        std::fs::remove_file(self.started())
    }

    pub(super) fn note_started(&self) -> io::Result<()> {
        std::fs::write(self.started(), "")
    }

    /// Removes everything that the VM has written.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.forget(SavedState::Ready)?;
        self.forget(SavedState::Sealed)?;
        remove(&self.disk())
    }
}

/// Removes a file, if it exists.
fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Settings {
    /// What a saved state depends on: it can't be loaded with other devices or another memory size, and with KVM only on the same
    /// processor.
    fn fingerprint(&self) -> String {
        let Self { disk, memory_mb, cpus, agent_port, devices, width, height, .. } = self;
        let made = format!("{disk} {memory_mb} {cpus} {agent_port} {devices:?} {width}x{height}");
        if self.has_kvm() { format!("{made} kvm {}", processor()) } else { made }
    }
}

/// The name and the features of the host's processor.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    format!("{} {}", line("model name"), line("flags"))
}

/// Runs `qemu-img` to its end.
async fn tool(runtime: &Runtime, arguments: &[&str]) -> Result<(), VmError> {
    let program = runtime.locate(TOOL).ok_or(VmError::NoQemu(TOOL))?;
    let at = |source| VmError::Io { what: "qemu-img", source };
    let (output, stderr) = process::output_pipe(&runtime.user).map_err(at)?;
    let child = runtime.processes.spawn(Command {
        argv: [program.as_str()].iter().chain(arguments).map(|word| (*word).to_owned()).collect(),
        env: runtime.environment(&runtime.user, &[]),
        cwd: "/".to_owned(),
        user: &runtime.user,
        stdio: [process::dev_null().map_err(at)?, stderr.try_clone().map_err(at)?, stderr],
        controlling_tty: false,
    });
    let child = child.await.map_err(VmError::NotSpawned)?;
    let said = Said::default();
    let listening = tokio::spawn(said.clone().listen(output));
    let mut process = OwnedProcess::new(child, ScratchDir::new(&runtime.user).map_err(at)?);
    let ended = timeout(MAKE, process.wait()).await;
    drop(timeout(Duration::from_millis(500), listening).await);
    match ended {
        Ok(Exit::Code(0)) => Ok(()),
        _ => Err(VmError::NoDisk(told(&said.text()))),
    }
}

/// The way to start the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launch {
    Boot,
    /// Load a saved state.
    TakeUp(SavedState),
    /// In the build of an image, which is on the host's network: the VM has no network access, and its agent is reached on this
    /// port.
    Alone(u16),
}

/// Starts QEMU on the VM's disk, which is created if it is missing.
pub(super) async fn start(runtime: &Runtime, settings: &Settings, state: &StateDir, launch: Launch) -> Result<Started, VmError> {
    let program = runtime.locate(PROGRAM).ok_or(VmError::NoQemu(PROGRAM))?;
    if !Path::new(&settings.disk).is_file() {
        return Err(VmError::NoDisk(format!(": there is no file {}", settings.disk)));
    }
    let disk = state.disk().display().to_string();
    if !state.disk().exists() {
        tool(runtime, &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &settings.disk, &disk]).await?;
    }
    state.note_started().map_err(|source| VmError::Io { what: "its state", source })?;
    let at = |source| VmError::Io { what: "QEMU", source };
    let dir = ScratchDir::new(&runtime.user).map_err(at)?;
    let path = dir.path().to_owned();
    let (stdin, writer) = process::input_pipe(&runtime.user).map_err(at)?;
    let (reader, stdout) = process::output_pipe(&runtime.user).map_err(at)?;
    let (output, stderr) = process::output_pipe(&runtime.user).map_err(at)?;
    let mut argv = arguments(settings, &disk, &path, launch);
    argv.insert(0, program);
    let child = runtime.processes.spawn(Command {
        argv,
        env: runtime.environment(&runtime.user, &[]),
        cwd: "/".to_owned(),
        user: &runtime.user,
        stdio: [stdin, stdout, stderr],
        controlling_tty: false,
    });
    let child = child.await.map_err(VmError::NotSpawned)?;
    let said = Said::default();
    let listening = tokio::spawn(said.clone().listen(output));
    let mut process = OwnedProcess::new(child, dir);
    match Qmp::over(reader, writer).await {
        Ok(qmp) => Ok(Started { process: process.keep(), qmp, dir: path, said }),
        Err(error) => {
            drop(timeout(Duration::from_millis(500), listening).await);
            let exit = timeout(Duration::from_millis(500), process.wait()).await;
            let how = exit.map_or_else(|_| error.to_string(), |exit| exit.to_string());
            Err(VmError::Ended { how, said: said.text() })
        }
    }
}

/// QEMU's command line. It starts with no devices but those named here.
fn arguments(settings: &Settings, disk: &str, dir: &Path, launch: Launch) -> Vec<String> {
    let Settings { memory_mb, cpus, agent_port, width, height, .. } = settings;
    let mut words = Vec::new();
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
    add("-name", "machine".into());
    add("-machine", "pc,hpet=off,vmport=off,usb=off".into());
    match settings.has_kvm() {
        true => add("-accel", "kvm".into()),
        false => add("-accel", format!("tcg,thread=multi,tb-size={TRANSLATED_MIB}")),
    }
    add("-cpu", "max".into());
    add("-smp", cpus.to_string());
    add("-m", format!("{memory_mb}M"));
    add("-rtc", "base=utc".into());
    add("-boot", "menu=off,strict=on".into());
    add("-display", "none".into());
    add("-device", format!("VGA,edid=on,xres={width},yres={height},xmax={width},ymax={height},vgamem_mb=32"));
    // Only socket files and pipes: nothing else in the sandbox reaches them by an address.
    add("-vnc", format!("unix:{}/vnc", dir.display()));
    add("-chardev", "stdio,id=monitor,signal=off".into());
    add("-mon", "chardev=monitor,mode=control".into());
    // The sandbox's disk does not wait for the host's either.
    add("-blockdev", format!("driver=file,node-name=file0,filename={disk},cache.no-flush=on,discard=unmap"));
    add("-blockdev", "driver=qcow2,node-name=disk0,file=file0,discard=unmap".into());
    // A separate network, which reaches what a process of this sandbox reaches.
    let forward = match (launch, agent_port) {
        (_, 0) => String::new(),
        (Launch::Alone(outside), port) => format!(",restrict=on,hostfwd=tcp:127.0.0.1:{outside}-:{port}"),
        (_, port) => format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}"),
    };
    add("-netdev", format!("user,id=net0{forward}"));
    let devices: &[&str] = match settings.devices {
        Devices::Virtio => &[
            "virtio-blk-pci,drive=disk0,bootindex=0",
            "virtio-net-pci,netdev=net0,romfile=",
            "virtio-keyboard-pci",
            "virtio-tablet-pci",
            "virtio-rng-pci",
        ],
        Devices::Plain => &["ide-hd,drive=disk0,bootindex=0", "e1000,netdev=net0,romfile=", "qemu-xhci", "usb-tablet"],
    };
    devices.iter().for_each(|device| add("-device", (*device).into()));
    if let Launch::TakeUp(state) = launch {
        add("-loadvm", state.tag().into());
    }
    // From here on, QEMU uses no more of the kernel than it needs.
    add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny".into());
    words.extend(["-nodefaults", "-no-user-config"].map(str::to_owned));
    words
}
