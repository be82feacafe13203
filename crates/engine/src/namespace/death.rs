//! How a sandbox's guest ended, from what the kernel says about it.

use std::os::fd::{AsFd, OwnedFd};

use arenite_isolation::exit::{Exit, exit_of};
use arenite_model::{Death, DeathReason, SandboxId, Tier};

use super::host::Host;

/// Signals that a process gets for its own fault, with their names.
const FAULTS: [(i32, &str); 7] =
    [(4, "SIGILL"), (5, "SIGTRAP"), (6, "SIGABRT"), (7, "SIGBUS"), (8, "SIGFPE"), (11, "SIGSEGV"), (31, "SIGSYS")];
const SIGKILL: i32 = 9;

/// The end of a guest behind a pidfd. Blocks until it is reaped.
pub(super) fn of_guest(host: &Host, id: &SandboxId, tier: Tier, pidfd: &OwnedFd) -> Death {
    let exit = exit_of(pidfd.as_fd());
    match tier {
        Tier::Gvisor => of_keeper(exit, is_oom(host, id, tier)),
        Tier::Namespace | Tier::Machine => of_exit(exit, is_oom(host, id, tier)),
    }
}

/// The end of a guest while no server was there. Its cgroups still count.
pub(super) fn unseen(host: &Host, id: &SandboxId, tier: Tier) -> Death {
    if is_oom(host, id, tier) {
        return Death::new(DeathReason::Oom);
    }
    Death::with_message(DeathReason::Unknown, "its guest ended while no server was there")
}

/// Whether the kernel killed it for its memory. gVisor runs in the cgroup of the workload, and its end is that of the guest.
fn is_oom(host: &Host, id: &SandboxId, tier: Tier) -> bool {
    let of_guest = host.cgroups.guest_oom_kills(id);
    let of_work = || host.cgroups.counts(id).ok().and_then(|counts| counts.oom_kills);
    let kills = if tier == Tier::Gvisor { of_work().max(of_guest) } else { of_guest };
    kills.is_some_and(|kills| kills > 0)
}

/// Under gVisor: the end of the process that keeps it, which follows that of gVisor.
fn of_keeper(exit: Option<Exit>, is_oom: bool) -> Death {
    match exit {
        Some(Exit::Status(_)) | None if is_oom => Death::new(DeathReason::Oom),
        Some(Exit::Status(_)) => Death::with_message(DeathReason::GuestFailed, "gVisor or the guest in it ended"),
        other => of_exit(other, is_oom),
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
        assert_eq!(of_keeper(Some(Exit::Status(0)), true).reason, DeathReason::Oom);
        assert_eq!(of_keeper(Some(Exit::Status(0)), false).reason, DeathReason::GuestFailed);
        assert_eq!(of_keeper(Some(Exit::Signal(9)), false).reason, DeathReason::Killed);
    }
}
