//! A VM in the sandbox: one QEMU, for images with a disk and a settings file, `/etc/arenite/vm.json`.
//!
//! ```text
//!  Control (of the desktop: routes, actions, tools)
//!   └─► service ─► VM: QEMU's process, started as the sandbox's user; its disk is a layer over the image's
//!                    ├─ qmp: QEMU's monitor, on the process's stdin and stdout
//!                    ├─ hands, keys: mouse and keyboard; picture: its screen
//!                    └─ agent: HTTP to the agent in the VM, over a port of the sandbox's loopback
//!                         └─ tree: the accessibility trees of its programs
//! ```
//!
//! Nothing of it runs before the first call. A VM that ended is restarted by the next call, on the same disk. It is never stopped
//! for lack of use, because the content of its memory would be lost.

mod agent;
mod hands;
mod keys;
mod picture;
mod qmp;
mod record;
mod routes;
mod service;
mod settings;
mod start;
mod tree;

pub use record::Film;
pub use routes::{VmApi, engine_router, router};
pub use service::{Vm, VmError, VmService, VmState, VmStatus};
pub use service::{keep_ready, probe_kvm};

/// As a RUN's first word: boots the image's VM and keeps its state. The rest distinguishes one such step from another.
pub const KEEP_READY: &str = "arenite-vm-ready";
/// As a RUN's first word, then a number of seconds: tests whether the image's VM boots with KVM within that time.
pub const PROBE_KVM: &str = "arenite-vm-probe-kvm";
