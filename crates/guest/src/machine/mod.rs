//! A machine in the sandbox: one QEMU, for images that bring a disk and say so in `/etc/arenite/machine.json`.
//!
//! ```text
//!  Control (of the desktop: routes, actions, tools)
//!   └─► service ─► machine: QEMU's process, started as the sandbox's user; its disk is a layer over the image's
//!                    ├─ qmp: QEMU's monitor, on the process's stdin and stdout
//!                    ├─ hands, keys: mouse and keyboard; picture: its screen
//!                    └─ agent: HTTP to what runs in the machine, over a port of the sandbox's loopback
//!                         └─ tree: what its programs say that they show
//! ```
//!
//! Nothing of it runs before the first call. A machine that ended is started again by the next call, on the same disk. It never
//! ends for want of use: what is in its memory is nowhere else.

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

pub(crate) use record::Film;
pub use routes::{MachineApi, router};
pub(crate) use service::keep_ready;
pub use service::{Machine, MachineError, MachineService, MachineState, MachineStatus};

/// As a RUN's only word: boots the image's machine and keeps its state.
pub const KEEP_READY: &str = "arenite-machine-ready";
