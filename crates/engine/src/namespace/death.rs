//! How a sandbox's guest ended, from what the kernel says about it.

use std::os::fd::{AsFd, OwnedFd};

use arenite_isolation::exit::{Exit, exit_of};
use arenite_model::{Death, DeathReason, SandboxId};

use super::host::Host;

/// Signals that a process gets for its own fault, with their names.
const FAULTS: [(i32, &str); 7] =
    [(4, "SIGILL"), (5, "SIGTRAP"), (6, "SIGABRT"), (7, "SIGBUS"), (8, "SIGFPE"), (11, "SIGSEGV"), (31, "SIGSYS")];
const SIGKILL: i32 = 9;

/// The end of a guest behind a pidfd. Blocks until it is reaped.
pub(super) fn of_guest(host: &Host, id: &SandboxId, pidfd: &OwnedFd) -> Death {
    let is_oom = host.cgroups.guest_oom_kills(id).is_some_and(|kills| kills > 0);
    of_exit(exit_of(pidfd.as_fd()), is_oom)
}

/// The end of a guest while no server was there. Its cgroups still count.
pub(super) fn unseen(host: &Host, id: &SandboxId) -> Death {
    match host.cgroups.guest_oom_kills(id) {
        Some(kills) if kills > 0 => Death::new(DeathReason::Oom),
        _ => Death::with_message(DeathReason::Unknown, "its guest ended while no server was there"),
    }
}

fn of_exit(exit: Option<Exit>, is_oom: bool) -> Death {
    match exit {
        Some(Exit::Signal(SIGKILL)) | None if is_oom => Death { signal: exit.map(|_| SIGKILL), ..Death::new(DeathReason::Oom) },
        None => Death::new(DeathReason::Unknown),
        Some(Exit::Status(status)) => {
            let message = format!("its guest exited with status {status}");
            Death { exit_status: Some(status), ..Death::with_message(DeathReason::Exit, message) }
        }
        Some(Exit::Signal(signal)) => {
            let death = match FAULTS.iter().find(|(number, _)| *number == signal) {
                Some((_, name)) => Death::with_message(DeathReason::GuestFailed, format!("its guest crashed with {name}")),
                None if signal == SIGKILL => Death::with_message(DeathReason::Killed, "its guest was killed with SIGKILL"),
                None => Death::with_message(DeathReason::Killed, format!("its guest was ended by signal {signal}")),
            };
            Death { signal: Some(signal), ..death }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_named_by_what_the_kernel_says() {
        for (exit, is_oom, wanted) in [
            (Some(Exit::Signal(9)), true, (DeathReason::Oom, None, Some(9))),
            (Some(Exit::Signal(9)), false, (DeathReason::Killed, None, Some(9))),
            (Some(Exit::Signal(15)), true, (DeathReason::Killed, None, Some(15))),
            (Some(Exit::Signal(6)), true, (DeathReason::GuestFailed, None, Some(6))),
            (Some(Exit::Status(1)), true, (DeathReason::Exit, Some(1), None)),
            (Some(Exit::Status(0)), false, (DeathReason::Exit, Some(0), None)),
            (None, true, (DeathReason::Oom, None, None)),
            (None, false, (DeathReason::Unknown, None, None)),
        ] {
            let death = of_exit(exit, is_oom);
            assert_eq!((death.reason, death.exit_status, death.signal), wanted, "{exit:?}");
        }
    }
}
