//! The system calls that processes of a sandbox may make.
//!
//! Three filters, compiled once: one answers EPERM to what is known and denied, one the same as a kernel without them to kinds
//! of sockets, one ENOSYS to what is not known to be allowed, so that a libc that tries something newer falls back. No `no_new_privs`: `sudo` works, and the filters are
//! installed while the process still has its rights in the sandbox's user namespace.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Cond, SeccompFilter,
    SeccompRule as Rule, TargetArch, sock_filter,
};

/// The compiled filters, in the order of their installation.
#[derive(Debug, Clone)]
pub(crate) struct Filters(Vec<BpfProgram>);

/// Namespaces that no process in a sandbox may create: nested user namespaces open kernel code that sandboxes don't need.
const NEW_NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];

/// The denied calls, with any arguments.
const DENIED: &[i64] = &[
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fsconfig,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_open_by_handle_at,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_kcmp,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// Answered with success, without any effect. `sync` would flush every disk of the host, for as long as its other writers take;
/// a sandbox's own files need no flush, since they don't outlive the host (see the overlay's `volatile`).
const DONE_ALREADY: i64 = libc::SYS_sync;

/// The allowed ones. What is neither here nor in `DENIED` (io_uring, clone3, kernels' newer additions) answers ENOSYS:
/// clone3's flags are behind a pointer that a filter can't read, and libc falls back to clone. So does asynchronous I/O by
/// `io_setup`: the kernel counts its events for the whole host, without a limit for a user or a cgroup.
#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_fstat, libc::SYS_lseek, libc::SYS_mmap, libc::SYS_mprotect,
    libc::SYS_munmap, libc::SYS_brk, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_ioctl,
    libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_sched_yield, libc::SYS_mremap,
    libc::SYS_msync, libc::SYS_mincore, libc::SYS_madvise, libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_dup,
    libc::SYS_nanosleep, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_getpid, libc::SYS_sendfile, libc::SYS_socket,
    libc::SYS_connect, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_shutdown,
    libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_socketpair, libc::SYS_setsockopt,
    libc::SYS_getsockopt, libc::SYS_clone, libc::SYS_execve, libc::SYS_exit, libc::SYS_wait4, libc::SYS_kill, libc::SYS_uname,
    libc::SYS_semget, libc::SYS_semop, libc::SYS_semctl, libc::SYS_shmdt, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv,
    libc::SYS_msgctl, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_truncate,
    libc::SYS_ftruncate, libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_fchmod, libc::SYS_fchown,
    libc::SYS_umask, libc::SYS_gettimeofday, libc::SYS_getrlimit, libc::SYS_getrusage, libc::SYS_sysinfo, libc::SYS_times,
    libc::SYS_ptrace, libc::SYS_getuid, libc::SYS_getgid, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_geteuid,
    libc::SYS_getegid, libc::SYS_setpgid, libc::SYS_getppid, libc::SYS_setsid, libc::SYS_setreuid, libc::SYS_setregid,
    libc::SYS_getgroups, libc::SYS_setgroups, libc::SYS_setresuid, libc::SYS_getresuid, libc::SYS_setresgid, libc::SYS_getresgid,
    libc::SYS_getpgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_getsid, libc::SYS_capget, libc::SYS_capset,
    libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack,
    libc::SYS_personality, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_getpriority, libc::SYS_setpriority,
    libc::SYS_sched_setparam, libc::SYS_sched_getparam, libc::SYS_sched_setscheduler, libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval, libc::SYS_mlock,
    libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall, libc::SYS_prctl, libc::SYS_setrlimit, libc::SYS_chroot,
    libc::SYS_gettid, libc::SYS_readahead, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr,
    libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr, libc::SYS_tkill,
    libc::SYS_futex, libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity, libc::SYS_remap_file_pages, libc::SYS_getdents64,
    libc::SYS_set_tid_address, libc::SYS_restart_syscall, libc::SYS_semtimedop, libc::SYS_fadvise64, libc::SYS_timer_create,
    libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_exit_group, libc::SYS_epoll_ctl, libc::SYS_tgkill,
    libc::SYS_mq_open, libc::SYS_mq_unlink, libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify,
    libc::SYS_mq_getsetattr, libc::SYS_waitid, libc::SYS_ioprio_set, libc::SYS_ioprio_get, libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch, libc::SYS_openat, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_fchownat,
    libc::SYS_newfstatat, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat,
    libc::SYS_fchmodat, libc::SYS_faccessat, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_set_robust_list,
    libc::SYS_get_robust_list, libc::SYS_splice, libc::SYS_tee, libc::SYS_sync_file_range, libc::SYS_vmsplice,
    libc::SYS_utimensat, libc::SYS_epoll_pwait, libc::SYS_timerfd_create, libc::SYS_fallocate, libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime, libc::SYS_accept4, libc::SYS_signalfd4, libc::SYS_eventfd2, libc::SYS_epoll_create1, libc::SYS_dup3,
    libc::SYS_pipe2, libc::SYS_inotify_init1, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_recvmmsg, libc::SYS_prlimit64, libc::SYS_name_to_handle_at, libc::SYS_syncfs, libc::SYS_sendmmsg,
    libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_sched_setattr, libc::SYS_sched_getattr,
    libc::SYS_renameat2, libc::SYS_seccomp, libc::SYS_getrandom, libc::SYS_memfd_create, libc::SYS_execveat, libc::SYS_membarrier,
    libc::SYS_mlock2, libc::SYS_copy_file_range, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_pkey_mprotect,
    libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_statx, libc::SYS_rseq, libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_open, libc::SYS_close_range, libc::SYS_openat2, libc::SYS_pidfd_getfd, libc::SYS_faccessat2,
    libc::SYS_process_madvise, libc::SYS_epoll_pwait2, libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self, libc::SYS_memfd_secret, libc::SYS_process_mrelease, libc::SYS_futex_waitv,
    libc::SYS_fchmodat2, libc::SYS_getcpu, libc::SYS_accept, libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_get_mempolicy,
];

/// Older calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[i64] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_poll, libc::SYS_access, libc::SYS_pipe, libc::SYS_select,
    libc::SYS_dup2, libc::SYS_pause, libc::SYS_alarm, libc::SYS_fork, libc::SYS_vfork, libc::SYS_getdents, libc::SYS_rename,
    libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_creat, libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink,
    libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_mknod, libc::SYS_arch_prctl, libc::SYS_time,
    libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_utimes, libc::SYS_inotify_init, libc::SYS_futimesat,
    libc::SYS_signalfd, libc::SYS_eventfd, libc::SYS_getpgrp, libc::SYS_ustat,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[i64] = &[];

impl Filters {
    /// Compiles the filters for this machine.
    pub(crate) fn compile() -> io::Result<Self> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
        let mut denied: BTreeMap<i64, Vec<Rule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
        let rule = |conditions: Vec<Cond>| Rule::new(conditions);
        let bits = |argument, mask: u64| Cond::new(argument, Len::Qword, Op::MaskedEq(mask), mask);
        let equal = |argument, value: u64| Cond::new(argument, Len::Dword, Op::Eq, value);
        let mut build = || -> Result<Vec<Rule>, seccompiler::BackendError> {
            let namespaces: Result<Vec<_>, _> =
                NEW_NAMESPACES[..7].iter().map(|flag| rule(vec![bits(0, *flag as u64)?])).collect();
            denied.insert(libc::SYS_clone, namespaces?);
            // Input pushed into a terminal that another process reads.
            denied.insert(libc::SYS_ioctl, vec![rule(vec![equal(1, libc::TIOCSTI)?])?, rule(vec![equal(1, libc::TIOCLINUX)?])?]);
            let mut sockets = Vec::new();
            for family in [
                libc::AF_VSOCK,
                libc::AF_ALG,
                libc::AF_PACKET,
                libc::AF_BLUETOOTH,
                libc::AF_CAN,
                libc::AF_TIPC,
                libc::AF_RDS,
                libc::AF_XDP,
                libc::AF_KEY,
            ] {
                sockets.push(rule(vec![equal(0, family as u64)?])?);
            }
            let not_route = Cond::new(2, Len::Dword, Op::Ne, libc::NETLINK_ROUTE as u64)?;
            sockets.push(rule(vec![equal(0, libc::AF_NETLINK as u64)?, not_route])?);
            Ok(sockets)
        };
        let sockets = build().map_err(io::Error::other)?;
        let compile = |rules, otherwise, matched| -> io::Result<BpfProgram> {
            let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(io::Error::other)?;
            filter.try_into().map_err(|e: seccompiler::BackendError| io::Error::other(e))
        };
        Ok(Self(vec![
            known_only(arch, ALLOWED.iter().chain(ALLOWED_HERE).chain(DENIED).copied())?,
            compile(denied, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?,
            // The kernel's own answer if such sockets are not built in: programs (Debian's groupadd, with the audit socket)
            // continue after this one, and fail after EPERM.
            compile(
                BTreeMap::from([(libc::SYS_socket, sockets)]),
                SeccompAction::Allow,
                SeccompAction::Errno(libc::EAFNOSUPPORT as u32),
            )?,
        ]))
    }

    /// Installs the filters on this thread and all that it starts. Needs CAP_SYS_ADMIN in its user namespace.
    pub(crate) fn install(&self) -> io::Result<()> {
        for program in &self.0 {
            let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
            // SAFETY: `program` points at `length` instructions of the kernel's own layout, alive during the call, which only reads them.
            let installed = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
            if installed < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Allows these calls, and answers ENOSYS to all others. One comparison for each run of numbers: one for each call would be
/// eight times as much for the kernel to translate, at every create.
fn known_only(arch: TargetArch, calls: impl Iterator<Item = i64>) -> io::Result<BpfProgram> {
    let mut numbers = calls.map(u32::try_from).collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    numbers.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if number <= *last + 1 => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let does = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    // Offsets in `struct seccomp_data`.
    let load = |offset| does(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let answer = |k| does(libc::BPF_RET | libc::BPF_K, k, 0, 0);
    let jump = |comparison, k, jt, jf| does(libc::BPF_JMP | comparison | libc::BPF_K, k, jt, jf);
    let audit = match arch {
        TargetArch::x86_64 => 0xc000_003e,
        TargetArch::aarch64 => 0xc000_00b7,
        TargetArch::riscv64 => 0xc000_00f3,
    };
    let mut program = vec![load(4), jump(libc::BPF_JEQ, audit, 1, 0), answer(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    let done_already = u32::try_from(DONE_ALREADY).map_err(io::Error::other)?;
    program.extend([jump(libc::BPF_JEQ, done_already, 0, 1), answer(libc::SECCOMP_RET_ERRNO)]);
    for (at, (first, last)) in runs.iter().enumerate() {
        // Instructions behind these two, before the two answers.
        let rest = u8::try_from(2 * (runs.len() - at - 1)).map_err(io::Error::other)?;
        program.push(jump(libc::BPF_JGE, *first, 0, rest.checked_add(1).ok_or_else(|| io::Error::other("too many runs"))?));
        program.push(jump(libc::BPF_JGT, *last, 0, rest + 1));
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's answer to a call.
    fn run(program: &[sock_filter], arch: u32, number: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let branch = |holds: bool| usize::from(if holds { jt } else { jf });
            at += match u32::from(code) {
                0x20 => {
                    value = if k == 4 { arch } else { number };
                    0
                }
                0x15 => branch(value == k),
                0x35 => branch(value >= k),
                0x25 => branch(value > k),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            };
        }
    }

    #[test]
    fn what_is_known_passes_and_nothing_else() {
        let calls = [0, 1, 2, 5, 7, 8, 300, 449];
        let program = known_only(TargetArch::x86_64, calls.into_iter().rev()).unwrap();
        for number in (0..600).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
            let wanted = match i64::from(number) {
                libc::SYS_sync => 0x0005_0000,
                known if calls.contains(&known) => 0x7fff_0000,
                _ => 0x0005_0000 | libc::ENOSYS as u32,
            };
            assert_eq!(run(&program, 0xc000_003e, number), wanted, "{number}");
        }
        assert_eq!(run(&program, 0x4000_0003, 0), 0x8000_0000);
        // Each call's number is separate: too many to jump over.
        assert!(known_only(TargetArch::x86_64, (0..200).map(|n| 2 * n)).is_err());
    }

    #[test]
    fn the_lists_have_room() {
        assert!(Filters::compile().unwrap().0[0].len() < 200);
    }
}
