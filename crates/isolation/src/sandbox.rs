//! The first process of a sandbox, from its clone to the exec of the guest's program.
//!
//! It takes the sandbox's ids, enters its cgroup and executes the program from an overlay that no other sandbox shares. All
//! this is done in advance, so no create waits for an exec. [`FirstProcess`](crate::FirstProcess) is the rest.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use crate::descriptors;
use crate::first_process::{AtStage, CONTROL, DEVICES, PROGRAM, Report, Staged, check, enter};
use crate::launcher::Failure;
use crate::mounts::{attach, mount};
use crate::spawner;

/// The launcher's input for a new first process.
pub(crate) struct InitArgs {
    pub(crate) control: OwnedFd,
    /// A mount of the directory with the guest's program, and the program's name in it.
    pub(crate) program: (OwnedFd, String),
    /// The program's arguments, its name first.
    pub(crate) argv: Vec<String>,
    pub(crate) guest_entrances: Vec<OwnedFd>,
    pub(crate) work_entrances: Vec<OwnedFd>,
    /// Its `/dev`, as a mount that is not attached yet.
    pub(crate) devices: OwnedFd,
}

/// Becomes the program. Reports a failed stage over the control socket and ends the process.
pub(crate) fn run(args: &InitArgs) -> ! {
    if let Ok(control) = lift(&args.control) {
        let Err(failure) = execute(args, &control);
        let report = serde_json::to_vec(&Report::Failed(failure)).unwrap_or_default();
        let _ = descriptors::send(control.as_fd(), &report, &[]);
    }
    std::process::exit(1)
}

fn execute(args: &InitArgs, control: &OwnedFd) -> Staged<std::convert::Infallible> {
    become_root().at("ids")?;
    enter(&args.guest_entrances).at("guest cgroup")?;
    mount("tmpfs", "/stage", "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, "size=64k,mode=700").at("stage")?;
    let program = program(&args.program).and_then(|program| lift(&program)).at("program")?;
    let entrances = args.work_entrances.iter().enumerate().map(|(number, fd)| (spawner::entrance_variable(number), fd));
    let inherited = [(CONTROL, control), (DEVICES, &args.devices), (PROGRAM, &program)];
    let inherited = inherited.into_iter().map(|(name, fd)| (name.to_owned(), fd)).chain(entrances);
    let env = hand_on(inherited).at("descriptors")?;
    Err(Failure::new("exec", &exec(&program, &args.argv, &env)))
}

/// Opens the guest's program on this sandbox's separate overlay. On the host's file itself, which all sandboxes and the server
/// run, each of them could see the others' locks and uses. Its pages stay shared.
fn program((dir, name): &(OwnedFd, String)) -> io::Result<OwnedFd> {
    for dir in ["/stage/programs", "/stage/nothing", "/stage/program"] {
        fs::create_dir(dir)?;
    }
    attach(dir.as_fd(), Path::new("/stage/programs"))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount("program", "/stage/program", "overlay", flags, "lowerdir=/stage/programs:/stage/nothing,userxattr")?;
    let open = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOFOLLOW;
    Ok(rustix::fs::open(format!("/stage/program/{name}"), open, rustix::fs::Mode::empty())?)
}

/// Switches to the sandbox's root: until now the process had the host's ids, which have no meaning here.
fn become_root() -> io::Result<()> {
    // SAFETY: plain system calls in a process with one thread.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_setresuid, 0, 0, 0))?;
        // The change of identity made /proc/self inaccessible.
        check(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0).into())?;
        libc::setsid();
        // The launcher ignores it; an ignored signal stays ignored through exec, and programs would lose their children.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
    Ok(())
}

/// The lowest descriptor number that stays usable while those below are moved to their final numbers.
const HIGH: i32 = 100;

fn lift(fd: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, HIGH)?)
}

/// Copies the descriptors that the program inherits to 3 and up, and returns the environment that names them. Everything else
/// closes at exec.
fn hand_on<'a>(inherited: impl Iterator<Item = (String, &'a OwnedFd)>) -> io::Result<BTreeMap<String, String>> {
    let lifted: Vec<(String, OwnedFd)> = inherited.map(|(name, fd)| Ok((name, lift(fd)?))).collect::<io::Result<_>>()?;
    // SAFETY: only marks descriptors to be closed at exec.
    unsafe { check(libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC))? };
    let mut env = BTreeMap::new();
    for (target, (name, fd)) in (3..HIGH).zip(&lifted) {
        // SAFETY: what may be at `target` is a descriptor of the launcher, which this copy of it uses no more: it executes the
        // program, or reports over the control socket, which is above `HIGH`, and exits. dup2 leaves close-on-exec off.
        check(unsafe { libc::dup2(fd.as_raw_fd(), target) }.into())?;
        env.insert(name.clone(), target.to_string());
    }
    Ok(env)
}

/// Becomes the program; returns only an error.
fn exec(program: &OwnedFd, argv: &[String], env: &BTreeMap<String, String>) -> io::Error {
    let text = |list: Vec<String>| list.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
    let (Ok(argv), Ok(env)) = (text(argv.to_vec()), text(env.iter().map(|(k, v)| format!("{k}={v}")).collect())) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>();
    // SAFETY: NULL-terminated lists of NUL-terminated strings, alive during the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            pointers(&argv).as_ptr(),
            pointers(&env).as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}
