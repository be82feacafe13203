//! Prepared slots: everything that does not depend on the spec, done in advance.
//!
//! A slot has its id, its range of user ids, a network namespace, cgroups with the default limits, a writable layer, and its
//! first two processes, which wait inside all of these. These are the slow parts of a create: entering a cgroup alone costs 5
//! to 13 ms on version 1, since the kernel waits for a grace period.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::launcher::{IDS, LaunchError, Prepare, Prepared};
use arenite_isolation::{Report, descriptors};
use arenite_model::{NetworkMode, Resources, SandboxId, StateId};

use super::data_dir::{make_shared_dir, write_shared_file};
use super::engine::END_LIMIT;
use super::kept::Continued;
use super::network::Network;
use super::{Host, at, command, restart};
use crate::EngineError;

/// Timeout of a stage in the kernel. Far above what a busy host needs.
const STAGE_LIMIT: Duration = Duration::from_secs(30);

/// A sandbox that is ready to start.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: SandboxId,
    pub(super) mode: NetworkMode,
    /// Whether it has the host's KVM.
    pub(super) kvm: bool,
    pub(super) limits: Resources,
    pub(super) uid_index: u32,
    /// The index of its address, if its network is open.
    pub(super) net_index: Option<u32>,
    /// The address of its resolver.
    pub(super) gateway: Option<Ipv4Addr>,
    /// The sandbox that it is for, if that has another id: one that returns to a state of its disk.
    pub(super) sandbox: Option<SandboxId>,
    /// Its writable layer; empty for a build, which provides one.
    pub(super) layer: PathBuf,
    /// The layer belonged to a sandbox before.
    pub(super) kept: Option<Box<Kept>>,
    pub(super) first: Prepared,
    pub(super) userns: OwnedFd,
    control: OwnedFd,
}

/// What a restarted sandbox keeps.
#[derive(Debug)]
pub(super) struct Kept {
    /// The index of its ids, which stay reserved while its record exists.
    pub(super) uid_index: Option<u32>,
    /// The directories below its writable layer, the lowest first.
    pub(super) layers: Vec<PathBuf>,
    /// The number of writes of its record.
    pub(super) revision: u32,
    /// The state that its disk was created as.
    pub(super) source: Option<StateId>,
    /// The checkpoint that its disk comes from.
    pub(super) head: Option<StateId>,
    /// The highest number that a checkpoint of it has had.
    pub(super) last_checkpoint: u32,
    /// It was paused to its disk, and is until the guest has started.
    pub(super) stopped: bool,
    /// The processes that go on in it. None: its program starts.
    pub(super) processes: Option<Continued>,
    /// A process that was killed, and that ends before anything starts.
    pub(super) after: Option<Arc<OwnedFd>>,
}

/// What a slot is for.
enum Use {
    /// A sandbox, or a step of the operator's build on the host's network.
    New,
    Again(Box<Kept>),
    /// A step of a client's build with these limits.
    Step(Resources),
}

/// The writable layer of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerOf {
    New,
    Kept,
    /// A build provides its layer.
    Build,
}

/// Ranges of host ids for sandboxes: above those that systemd gives to containers (up to 1,879,048,191).
#[derive(Debug)]
pub(super) struct IdRanges {
    used: Mutex<(HashSet<u32>, u32)>,
}

const FIRST_ID: u32 = 0x7000_0000;
/// The number of ranges. The first is for image builds, one of which runs at a time.
const RANGES: u32 = (u32::MAX - FIRST_ID) / IDS;

impl IdRanges {
    pub(super) const BUILDS: u32 = 0;

    /// `start` is the first range to try, so that two installations on a host seldom use the same ids.
    pub(super) fn new(start: u32) -> Self {
        Self { used: Mutex::new((HashSet::new(), start % RANGES)) }
    }

    pub(super) fn take(&self) -> Option<u32> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let (set, next) = &mut *used;
        for _ in 0..RANGES {
            let index = (*next).max(1);
            *next = (index + 1) % RANGES;
            if set.insert(index) {
                return Some(index);
            }
        }
        None
    }

    pub(super) fn adopt(&self, index: u32) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).0.insert(index);
    }

    pub(super) fn give_back(&self, index: u32) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).0.remove(&index);
    }

    pub(super) fn base(index: u32) -> u32 {
        FIRST_ID + index * IDS
    }

    /// The range that starts with this id.
    pub(super) fn index(base: u32) -> Option<u32> {
        let above = base.checked_sub(FIRST_ID)?;
        (above % IDS == 0 && above / IDS < RANGES).then_some(above / IDS)
    }
}

impl Host {
    /// Prepares a sandbox under an id. On failure nothing of it is left.
    pub(super) async fn prepare(self: &Arc<Self>, id: SandboxId, mode: NetworkMode, kvm: bool) -> Result<Slot, EngineError> {
        self.prepare_on(id, (mode, false), kvm, Use::New).await
    }

    /// Ends a slot, and removes what it has. Blocks until its processes have ended.
    pub(super) fn discard(&self, slot: &Slot) {
        kill(&slot.first.pidfd);
        wait_end(&slot.first.pidfd, END_LIMIT);
        self.sweep(&slot.id, slot.uid_index, slot.net_index);
    }

    /// Prepares a sandbox for a step of a client's build, with its own ids, network and limits.
    pub(super) async fn prepare_limited_step(
        self: &Arc<Self>,
        id: SandboxId,
        mode: NetworkMode,
        limits: Resources,
    ) -> Result<Slot, EngineError> {
        self.prepare_on(id, (mode, false), false, Use::Step(limits)).await
    }

    /// Prepares a sandbox for a step of a build, on the host's network or with only loopback.
    pub(super) async fn prepare_step(self: &Arc<Self>, id: SandboxId, is_offline: bool, kvm: bool) -> Result<Slot, EngineError> {
        self.prepare_on(id, (NetworkMode::Host, is_offline), kvm, Use::New).await
    }

    /// The same for a sandbox that restarts on its disk. On failure the disk stays.
    pub(super) async fn prepare_again(
        self: &Arc<Self>,
        id: SandboxId,
        mode: NetworkMode,
        kvm: bool,
        kept: Kept,
    ) -> Result<Slot, EngineError> {
        self.prepare_on(id, (mode, false), kvm, Use::Again(Box::new(kept))).await
    }

    async fn prepare_on(
        self: &Arc<Self>,
        id: SandboxId,
        (mode, is_offline): (NetworkMode, bool),
        kvm: bool,
        purpose: Use,
    ) -> Result<Slot, EngineError> {
        let (kept, limits, layer) = match purpose {
            Use::New if mode == NetworkMode::Host => (None, self.config.default_resources.clone(), LayerOf::Build),
            Use::New => (None, self.config.default_resources.clone(), LayerOf::New),
            Use::Again(kept) => (Some(kept), self.config.default_resources.clone(), LayerOf::Kept),
            Use::Step(limits) => (None, limits, LayerOf::Build),
        };
        let of_before = kept.as_ref().and_then(|kept| kept.uid_index);
        let uid_index = match (mode, of_before) {
            (NetworkMode::Host, _) => IdRanges::BUILDS,
            (_, Some(index)) => index,
            _ => self.ids.take().ok_or_else(|| at("user ids", io::Error::other("all ranges are in use")))?,
        };
        let (netns, net_index, gateway) = match mode {
            NetworkMode::Host if !is_offline => (None, None, None),
            NetworkMode::Host | NetworkMode::None => {
                (Some(Network::prepare_closed().map_err(|e| at("network", io::Error::other(e)))?), None, None)
            }
            NetworkMode::Open => {
                let net = match self.network()?.prepare().await {
                    Ok(net) => net,
                    Err(error) => {
                        if of_before.is_none() {
                            self.ids.give_back(uid_index);
                        }
                        return Err(at("network", io::Error::other(error)));
                    }
                };
                (Some(net.netns), Some(net.index), Some(net.gateway))
            }
        };
        let host = self.clone();
        let blocking = tokio::task::spawn_blocking(move || {
            let made = host.prepare_blocking(&id, kvm, &limits, uid_index, netns, (gateway, layer));
            match made {
                Ok((layer, first, userns, control)) => Ok(Slot {
                    id,
                    mode,
                    kvm,
                    limits,
                    uid_index,
                    net_index,
                    gateway,
                    sandbox: None,
                    layer,
                    kept,
                    first,
                    userns,
                    control,
                }),
                Err(error) => {
                    match kept {
                        None => host.sweep(&id, uid_index, net_index),
                        Some(kept) => {
                            host.end_again(&id, net_index);
                            if kept.uid_index.is_none() {
                                host.ids.give_back(uid_index);
                            }
                        }
                    }
                    Err(error)
                }
            }
        });
        blocking.await.map_err(|error| at("task", io::Error::other(error)))?
    }

    fn prepare_blocking(
        &self,
        id: &SandboxId,
        kvm: bool,
        limits: &Resources,
        uid_index: u32,
        netns: Option<OwnedFd>,
        (gateway, layer): (Option<Ipv4Addr>, LayerOf),
    ) -> Result<(PathBuf, Prepared, OwnedFd, OwnedFd), EngineError> {
        let layer = match layer {
            LayerOf::Build => None,
            LayerOf::Kept => Some(self.kept_layer(id, gateway)?),
            LayerOf::New => Some(self.writable_layer(id, limits, gateway)?),
        };
        let entrances = self.cgroups.create(id, limits).map_err(cgroup)?;
        let request = || Prepare {
            uid_base: IdRanges::base(uid_index),
            host_network: netns.is_none(),
            kvm,
            program: self.program.name().to_owned(),
            argv: vec!["arenite".to_owned(), "guest".to_owned()],
            guest_entrances: entrances.guest.len(),
        };
        let given: Vec<BorrowedFd<'_>> = entrances.guest.iter().chain(&entrances.work).map(|f| f.as_fd()).collect();
        let launched = match self.launch(request(), netns.as_ref(), &given) {
            Err(LaunchFailure::NeedsAnother(error)) => {
                tracing::warn!(%id, %error, "trying once more with another launcher");
                self.end_processes(id);
                self.launch(request(), netns.as_ref(), &given)
            }
            other => other,
        };
        let (first, control) = launched.map_err(LaunchFailure::into_engine_error)?;
        let userns = fs::File::open(format!("/proc/{}/ns/user", first.pid)).map_err(|e| at("user namespace", e))?;
        match report(&control)? {
            Some(Report::Ready) => Ok((layer.unwrap_or_default(), first, userns.into(), control)),
            Some(Report::Failed(failure)) => Err(stage(failure)),
            _ => Err(at("first process", io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Why the launcher did not create a sandbox's first process.
enum LaunchFailure {
    /// It ended, or was killed because it did not answer.
    NeedsAnother(LaunchError),
    Other(EngineError),
}

impl LaunchFailure {
    fn into_engine_error(self) -> EngineError {
        match self {
            Self::NeedsAnother(error) => at("launcher", io::Error::other(error)),
            Self::Other(error) => error,
        }
    }
}

impl Host {
    /// Makes the launcher create the namespaces and the first process, and returns that process with the server's end of its
    /// control socket. Processes of failed attempts end when that socket closes: each attempt has its own.
    fn launch(
        &self,
        request: Prepare,
        netns: Option<&OwnedFd>,
        entrances: &[BorrowedFd<'_>],
    ) -> Result<(Prepared, OwnedFd), LaunchFailure> {
        let other = |stage: &str, error| LaunchFailure::Other(at(stage, error));
        let (control, theirs) = descriptors::packet_pair().map_err(|e| other("control socket", e))?;
        let programs = self.program.mount().map_err(|e| other("program", e))?;
        let given: Vec<BorrowedFd<'_>> = [theirs.as_fd()]
            .into_iter()
            .chain(netns.map(|n| n.as_fd()))
            .chain([programs.as_fd()])
            .chain(entrances.iter().copied())
            .collect();
        let launcher = self.launcher().map_err(LaunchFailure::Other)?;
        match launcher.prepare(request, &given) {
            Ok(first) => Ok((first, control)),
            Err(LaunchError::Failed(failure)) => Err(LaunchFailure::Other(stage(failure))),
            Err(error) if error.needs_another() => Err(LaunchFailure::NeedsAnother(error)),
            Err(error) => Err(other("launcher", io::Error::other(error))),
        }
    }

    /// Creates a writable layer with the files that name its resolver, and the path of `aio`.
    fn writable_layer(&self, id: &SandboxId, limits: &Resources, gateway: Option<Ipv4Addr>) -> Result<PathBuf, EngineError> {
        let layer = self.storage.create_layer(id, limits.disk_bytes).map_err(|e| at("writable layer", io::Error::other(e)))?;
        self.storage.mark_unused(id).map_err(|e| at("writable layer", io::Error::other(e)))?;
        let etc = layer.join("upper/etc");
        make_shared_dir(&etc)
            .and_then(|()| write_shared_file(&etc.join("resolv.conf"), resolver(gateway).as_bytes()))
            .and_then(|()| command::make_place(&layer.join("upper")))
            .map_err(|e| at("writable layer", e))?;
        Ok(layer)
    }

    /// Opens the writable layer that a sandbox left.
    fn kept_layer(&self, id: &SandboxId, gateway: Option<Ipv4Addr>) -> Result<PathBuf, EngineError> {
        let layer = self.storage.reuse_layer(id).map_err(|e| at("writable layer", io::Error::other(e)))?;
        self.write_resolver(&layer, gateway)?;
        Ok(layer)
    }

    /// Names a sandbox's resolver on its used disk.
    pub(super) fn write_resolver(&self, layer: &std::path::Path, gateway: Option<Ipv4Addr>) -> Result<(), EngineError> {
        restart::write_etc(&layer.join("upper"), "resolv.conf", resolver(gateway).as_bytes()).map_err(|e| at("etc", e))
    }
}

/// Content of `/etc/resolv.conf`.
pub(super) fn resolver(gateway: Option<Ipv4Addr>) -> String {
    match gateway {
        Some(gateway) => format!("nameserver {gateway}\noptions timeout:5 attempts:2\n"),
        None => "# this sandbox has no network\n".to_owned(),
    }
}

impl Slot {
    /// The sandbox that it is for.
    pub(super) fn sandbox_id(&self) -> &SandboxId {
        self.sandbox.as_ref().unwrap_or(&self.id)
    }

    fn continued(&self) -> Option<&Continued> {
        self.kept.as_ref()?.processes.as_ref()
    }

    /// The image of the processes that go on in it under gVisor.
    pub(super) fn image(&self) -> Option<&Path> {
        match self.continued()? {
            Continued::Gvisor(dir) => Some(dir),
            Continued::Vm => None,
        }
    }

    /// Whether processes of an image go on in it, so that nothing starts.
    pub(super) fn is_restored(&self) -> bool {
        self.image().is_some()
    }

    /// Whether the VM of its disk goes on in it.
    pub(super) fn continues_vm(&self) -> bool {
        matches!(self.continued(), Some(Continued::Vm))
    }

    /// Sends the configuration, and waits until the guest runs.
    pub(super) fn begin(&self, begin: &arenite_isolation::Begin, given: &[BorrowedFd<'_>]) -> Result<(), EngineError> {
        if let Some(after) = self.kept.as_ref().and_then(|kept| kept.after.as_ref())
            && !wait_end(after, END_LIMIT)
        {
            return Err(EngineError::Timeout { what: "ending the sandbox's processes", limit: END_LIMIT });
        }
        let message = serde_json::to_vec(begin).map_err(|e| at("request", e.into()))?;
        descriptors::send(self.control.as_fd(), &message, given).map_err(|e| at("control socket", e))?;
        match report(&self.control)? {
            Some(Report::Running) => Ok(()),
            Some(Report::Failed(failure)) => Err(stage(failure)),
            Some(Report::Ready) | None => Err(at("first process", io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// The next report of a sandbox that is being created; none if it hung up.
fn report(control: &OwnedFd) -> Result<Option<Report>, EngineError> {
    let limit = rustix::time::Timespec::try_from(STAGE_LIMIT).expect("30 s fit");
    let mut waiting = [rustix::event::PollFd::new(control, rustix::event::PollFlags::IN)];
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut waiting, Some(&limit))) {
        Ok(0) => return Err(EngineError::Timeout { what: "setting up the sandbox", limit: STAGE_LIMIT }),
        Ok(_) => {}
        Err(error) => return Err(at("control socket", error.into())),
    }
    let mut buffer = [0u8; 4096];
    let (length, _) = descriptors::receive(control.as_fd(), &mut buffer).map_err(|e| at("control socket", e))?;
    if length == 0 {
        return Ok(None);
    }
    serde_json::from_slice(&buffer[..length]).map(Some).map_err(|e| at("control socket", e.into()))
}

fn stage(failure: arenite_isolation::launcher::Failure) -> EngineError {
    let source = io::Error::from_raw_os_error(failure.errno);
    let hint = match failure.stage.as_str() {
        "overlay" | "overlay is read-only" | "layer" => {
            Some("overlay in user namespaces over id-mapped layers needs Linux 5.19".to_owned())
        }
        "clone3" | "id map" => {
            Some("user namespaces may be off: see /proc/sys/user/max_user_namespaces; a server in a chroot gets none".to_owned())
        }
        _ => None,
    };
    EngineError::Stage { stage: failure.stage, source, hint }
}

pub(super) fn cgroup(error: arenite_isolation::cgroup::CgroupError) -> EngineError {
    let kind = error.source.kind();
    EngineError::Stage { stage: format!("cgroup {}", error.what), source: io::Error::new(kind, error), hint: None }
}

/// When a process started, in the kernel's ticks since boot: with the pid, it identifies a process within this boot. None if
/// there is no such process.
pub(super) fn start_time(pid: i32) -> io::Result<Option<u64>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // It ended between open and read.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name, in brackets, may contain anything: fields count from the last bracket.
    let field = || text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok();
    Ok(field())
}

/// Waits, blocking, until the process behind a pidfd has ended. False at the limit.
pub(super) fn wait_end(pidfd: &OwnedFd, limit: Duration) -> bool {
    let limit = rustix::time::Timespec::try_from(limit).expect("a limit of seconds fits");
    let mut waiting = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    matches!(rustix::io::retry_on_intr(|| rustix::event::poll(&mut waiting, Some(&limit))), Ok(n) if n > 0)
}

/// Sends SIGKILL through a pidfd; fine if the process has ended.
pub(super) fn kill(pidfd: &OwnedFd) {
    // ESRCH, the only error for a pidfd, means that there is nothing to do.
    let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_repeat_until_given_back_and_fit_the_id_space() {
        let ranges = IdRanges::new(RANGES - 2);
        let (a, b, c) = (ranges.take().unwrap(), ranges.take().unwrap(), ranges.take().unwrap());
        assert_eq!((a, b, c), (RANGES - 2, RANGES - 1, 1), "wraps round, past the one for builds");
        ranges.adopt(2);
        assert_eq!(ranges.take(), Some(3));
        assert!(u64::from(IdRanges::base(RANGES - 1)) + u64::from(IDS) <= u64::from(u32::MAX));
        assert_eq!((IdRanges::index(IdRanges::base(a)), IdRanges::index(FIRST_ID + 1)), (Some(a), None));
        ranges.give_back(a);
        assert!(ranges.used.lock().unwrap().0.len() == 4);
    }

    #[test]
    fn a_process_is_told_by_its_start() {
        assert!(start_time(std::process::id() as i32).unwrap().is_some_and(|t| t > 0));
        assert_eq!(start_time(i32::MAX).unwrap(), None);
    }
}
