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
pub(crate) const NEW_NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];

/// Families of sockets that answer as if the kernel did not have them.
pub(crate) const DENIED_FAMILIES: [i32; 9] = [
    libc::AF_VSOCK,
    libc::AF_ALG,
    libc::AF_PACKET,
    libc::AF_BLUETOOTH,
    libc::AF_CAN,
    libc::AF_TIPC,
    libc::AF_RDS,
    libc::AF_XDP,
    libc::AF_KEY,
];

/// A system call: its name in the kernel's tables, and its number here.
pub(crate) type Call = (&'static str, i64);

/// System calls by the names of libc's constants.
macro_rules! calls {
    ($($call:ident),* $(,)?) => { &[$((name_of(stringify!($call)), libc::$call)),*] };
}

/// `SYS_read` without its first four letters.
const fn name_of(constant: &'static str) -> &'static str {
    constant.split_at(4).1
}

/// The denied calls, with any arguments.
pub(crate) const DENIED: &[Call] = calls![
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_fsconfig,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_userfaultfd,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_swapon,
    SYS_swapoff,
    SYS_reboot,
    SYS_acct,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_open_by_handle_at,
    SYS_syslog,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_vhangup,
    SYS_fanotify_init,
    SYS_kcmp,
    SYS_mbind,
    SYS_set_mempolicy,
    SYS_migrate_pages,
    SYS_move_pages,
];

/// Answered with success, without any effect. `sync` would flush every disk of the host, for as long as its other writers take;
/// a sandbox's own files need no flush, since they don't outlive the host (see the overlay's `volatile`).
const DONE_ALREADY: i64 = libc::SYS_sync;

/// The allowed ones. What is neither here nor in `DENIED` (io_uring, clone3, kernels' newer additions) answers ENOSYS:
/// clone3's flags are behind a pointer that a filter can't read, and libc falls back to clone. So does asynchronous I/O by
/// `io_setup`: the kernel counts its events for the whole host, without a limit for a user or a cgroup.
#[rustfmt::skip]
pub(crate) const ALLOWED: &[Call] = calls![
    SYS_read, SYS_write, SYS_close, SYS_fstat, SYS_lseek, SYS_mmap, SYS_mprotect,
    SYS_munmap, SYS_brk, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_ioctl,
    SYS_pread64, SYS_pwrite64, SYS_readv, SYS_writev, SYS_sched_yield, SYS_mremap,
    SYS_msync, SYS_mincore, SYS_madvise, SYS_shmget, SYS_shmat, SYS_shmctl, SYS_dup,
    SYS_nanosleep, SYS_getitimer, SYS_setitimer, SYS_getpid, SYS_sendfile, SYS_socket,
    SYS_connect, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_shutdown,
    SYS_bind, SYS_listen, SYS_getsockname, SYS_getpeername, SYS_socketpair, SYS_setsockopt,
    SYS_getsockopt, SYS_clone, SYS_execve, SYS_exit, SYS_wait4, SYS_kill, SYS_uname,
    SYS_semget, SYS_semop, SYS_semctl, SYS_shmdt, SYS_msgget, SYS_msgsnd, SYS_msgrcv,
    SYS_msgctl, SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync, SYS_truncate,
    SYS_ftruncate, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_fchmod, SYS_fchown,
    SYS_umask, SYS_gettimeofday, SYS_getrlimit, SYS_getrusage, SYS_sysinfo, SYS_times,
    SYS_ptrace, SYS_getuid, SYS_getgid, SYS_setuid, SYS_setgid, SYS_geteuid,
    SYS_getegid, SYS_setpgid, SYS_getppid, SYS_setsid, SYS_setreuid, SYS_setregid,
    SYS_getgroups, SYS_setgroups, SYS_setresuid, SYS_getresuid, SYS_setresgid, SYS_getresgid,
    SYS_getpgid, SYS_setfsuid, SYS_setfsgid, SYS_getsid, SYS_capget, SYS_capset,
    SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_sigsuspend, SYS_sigaltstack,
    SYS_personality, SYS_statfs, SYS_fstatfs, SYS_getpriority, SYS_setpriority,
    SYS_sched_setparam, SYS_sched_getparam, SYS_sched_setscheduler, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval, SYS_mlock,
    SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_prctl, SYS_setrlimit, SYS_chroot,
    SYS_gettid, SYS_readahead, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr,
    SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr,
    SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_tkill,
    SYS_futex, SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_remap_file_pages, SYS_getdents64,
    SYS_set_tid_address, SYS_restart_syscall, SYS_semtimedop, SYS_fadvise64, SYS_timer_create,
    SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete, SYS_clock_gettime,
    SYS_clock_getres, SYS_clock_nanosleep, SYS_exit_group, SYS_epoll_ctl, SYS_tgkill,
    SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify,
    SYS_mq_getsetattr, SYS_waitid, SYS_ioprio_set, SYS_ioprio_get, SYS_inotify_add_watch,
    SYS_inotify_rm_watch, SYS_openat, SYS_mkdirat, SYS_mknodat, SYS_fchownat,
    SYS_newfstatat, SYS_unlinkat, SYS_renameat, SYS_linkat, SYS_symlinkat, SYS_readlinkat,
    SYS_fchmodat, SYS_faccessat, SYS_pselect6, SYS_ppoll, SYS_set_robust_list,
    SYS_get_robust_list, SYS_splice, SYS_tee, SYS_sync_file_range, SYS_vmsplice,
    SYS_utimensat, SYS_epoll_pwait, SYS_timerfd_create, SYS_fallocate, SYS_timerfd_settime,
    SYS_timerfd_gettime, SYS_accept4, SYS_signalfd4, SYS_eventfd2, SYS_epoll_create1, SYS_dup3,
    SYS_pipe2, SYS_inotify_init1, SYS_preadv, SYS_pwritev, SYS_rt_tgsigqueueinfo,
    SYS_recvmmsg, SYS_prlimit64, SYS_name_to_handle_at, SYS_syncfs, SYS_sendmmsg,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_sched_setattr, SYS_sched_getattr,
    SYS_renameat2, SYS_seccomp, SYS_getrandom, SYS_memfd_create, SYS_execveat, SYS_membarrier,
    SYS_mlock2, SYS_copy_file_range, SYS_preadv2, SYS_pwritev2, SYS_pkey_mprotect,
    SYS_pkey_alloc, SYS_pkey_free, SYS_statx, SYS_rseq, SYS_pidfd_send_signal,
    SYS_pidfd_open, SYS_close_range, SYS_openat2, SYS_pidfd_getfd, SYS_faccessat2,
    SYS_process_madvise, SYS_epoll_pwait2, SYS_landlock_create_ruleset, SYS_landlock_add_rule,
    SYS_landlock_restrict_self, SYS_memfd_secret, SYS_process_mrelease, SYS_futex_waitv,
    SYS_fchmodat2, SYS_getcpu, SYS_accept, SYS_sethostname, SYS_setdomainname, SYS_get_mempolicy,
];

/// Older calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const ALLOWED_HERE: &[Call] = calls![
    SYS_open, SYS_stat, SYS_lstat, SYS_poll, SYS_access, SYS_pipe, SYS_select,
    SYS_dup2, SYS_pause, SYS_alarm, SYS_fork, SYS_vfork, SYS_getdents, SYS_rename,
    SYS_mkdir, SYS_rmdir, SYS_creat, SYS_link, SYS_unlink, SYS_symlink, SYS_readlink,
    SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_mknod, SYS_arch_prctl, SYS_time,
    SYS_epoll_create, SYS_epoll_wait, SYS_utimes, SYS_inotify_init, SYS_futimesat,
    SYS_signalfd, SYS_eventfd, SYS_getpgrp, SYS_ustat,
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const ALLOWED_HERE: &[Call] = &[];

impl Filters {
    /// Compiles the filters for this machine.
    pub(crate) fn compile() -> io::Result<Self> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
        let mut denied: BTreeMap<i64, Vec<Rule>> = DENIED.iter().map(|(_, call)| (*call, Vec::new())).collect();
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
            for family in DENIED_FAMILIES {
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
            known_only(arch, ALLOWED.iter().chain(ALLOWED_HERE).chain(DENIED).map(|(_, call)| *call))?,
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
