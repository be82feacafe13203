//! A real sandbox, created by the real launcher, tested from inside. Needs root.
//!
//! This program has three roles: the test, the launcher that it starts, and the probe that runs as PID 1 of the sandbox and
//! reports what it sees over an inherited pipe. So it has its own `main`.

#![allow(clippy::unwrap_used, reason = "a test without the test harness")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use arenite_isolation::cgroup::{Cgroups, Entrances, Layout};
use arenite_isolation::launcher::{Launcher, Prepare, Prepared};
use arenite_isolation::mounts::{Attributes, detached};
use arenite_isolation::spawner::{self, Request};
use arenite_isolation::{Begin, FirstProcess, Given, Report, descriptors};
use arenite_model::{Resources, SandboxId};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("launcher") => arenite_isolation::launcher::main(),
        Some("probe") => probe(),
        Some("child") => child(),
        Some("cgroup") => print!("{}", own_cgroup()),
        Some("spawner") => spawner::main(),
        // Arguments of a test runner, such as `--list`, have no meaning here.
        _ => {
            test();
            println!("1 passed, 0 failed");
        }
    }
}

const UID_BASE: u32 = 1_900_000_000;

fn id(number: u8) -> SandboxId {
    format!("s{number:0>11}").parse().unwrap()
}

/// Removes all cgroups, also if the test fails: by then the launcher and its processes are gone.
struct Removed<'a>(&'a Cgroups);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        for _ in 0..100 {
            if self.0.processes(&id(1)).is_empty() && self.0.remove(&id(1)).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        self.0.close();
    }
}

fn test() {
    let dir = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let lower = dir.path().join("lower");
    fs::create_dir_all(lower.join("bin")).unwrap();
    fs::write(lower.join("bin/again"), "").unwrap();
    fs::write(lower.join("marker"), "from the layer").unwrap();
    fs::copy(&program, lower.join("bin/probe")).unwrap();
    let lowest = dir.path().join("lowest");
    fs::create_dir_all(&lowest).unwrap();
    fs::write(lowest.join("marker"), "from the layer below").unwrap();
    let upper = dir.path().join("upper");
    for sub in ["upper", "work"] {
        fs::create_dir_all(upper.join(sub)).unwrap();
    }

    let cgroups = Cgroups::open(Layout::of_host().unwrap(), &format!("arenite-launch-{}", std::process::id())).unwrap();
    let _removed = Removed(&cgroups);
    let launcher = Launcher::start(&program).unwrap();
    let entrances = cgroups.create(&id(1), &Resources::default()).unwrap();
    let work_entrances = entrances.work.len();
    let programs = dir.path().join("programs");
    fs::create_dir(&programs).unwrap();
    fs::hard_link(&program, programs.join("probe")).or_else(|_| fs::copy(&program, programs.join("probe")).map(drop)).unwrap();
    let (first, control) = prepared(&launcher, &programs, &entrances, false);
    assert_eq!(cgroups.processes(&id(1)).len(), 2, "PID 1 and the spawner are in their cgroups");

    let other = cgroups.create(&id(2), &Resources::default()).unwrap();
    let (second, _control) = prepared(&launcher, &programs, &other, true);
    let device = |pid: i32| {
        let found = fs::metadata(format!("/proc/{pid}/root/stage/dev/kvm"));
        found.map(|found| std::os::unix::fs::MetadataExt::rdev(&found)).map_err(|error| error.kind())
    };
    assert_eq!(device(second.pid), Ok(rustix::fs::makedev(10, 232)), "asked for");
    assert_eq!(device(first.pid), Err(std::io::ErrorKind::NotFound));
    let inode = |pid: i32, file: &str| {
        let found = fs::metadata(format!("/proc/{pid}/{file}")).unwrap();
        (std::os::unix::fs::MetadataExt::dev(&found), std::os::unix::fs::MetadataExt::ino(&found))
    };
    for file in ["root/stage/dev", "root/stage/dev/null", "root/stage/dev/tty", "root/stage/proc/cmdline", "ns/user", "ns/time"] {
        assert_ne!(inode(first.pid, file), inode(second.pid, file), "two sandboxes share {file}");
    }
    assert_eq!(owner(first.pid), UID_BASE, "limits by user are charged to the sandbox's own");
    rustix::process::pidfd_send_signal(&second.pidfd, rustix::process::Signal::KILL).unwrap();

    let userns = File::open(format!("/proc/{}/ns/user", first.pid)).unwrap();
    let mapped = |path: &Path, read_only| {
        detached(path, Attributes { read_only, idmap: Some(userns.as_fd()), ..Attributes::default() }).unwrap()
    };
    let (mut output, answer) = std::io::pipe().unwrap();
    let answer = OwnedFd::from(answer);
    let (lowest, lower, upper_mount) = (mapped(&lowest, true), mapped(&lower, true), mapped(&upper, false));
    let begin = Begin {
        layers: 2,
        upper: "upper".to_owned(),
        work: "work".to_owned(),
        hostname: "quarry".to_owned(),
        shm_bytes: 8 << 20,
        open_files: 4096,
        given: vec!["answer".to_owned()],
        scratch: Vec::new(),
        command: Some("/bin/again".to_owned()),
        binds: Vec::new(),
        tmpfs: Vec::new(),
        container: None,
    };
    let started = Instant::now();
    let given = [lowest.as_fd(), lower.as_fd(), upper_mount.as_fd(), answer.as_fd()];
    descriptors::send(control.as_fd(), &serde_json::to_vec(&begin).unwrap(), &given).unwrap();
    match report(&control) {
        Some(Report::Running) => {}
        other => panic!("{other:?}"),
    }
    println!("begin to running: {:?}", started.elapsed());
    assert!(report(&control).is_none(), "hangs up");
    drop(answer);
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    let seen: BTreeMap<String, String> = serde_json::from_str(&text).unwrap_or_else(|e| {
        panic!("{e}: {text:?}; the probe said: {}", fs::read_to_string(upper.join("upper/panic")).unwrap_or_default())
    });
    println!("{seen:#?}");

    let expect = |key: &str, value: &str| assert_eq!(seen.get(key).map(String::as_str), Some(value), "{key}");
    expect("pid", "1");
    expect("uid", "0");
    expect("hostname", "quarry");
    expect("marker", "from the layer");
    expect("write", "ok");
    expect("host files", "absent");
    // Its standard ones, the answer's, the spawner's, and an entrance of each of the workload's cgroups.
    expect("descriptors", &(5 + work_entrances).to_string());
    expect("cgroup", "/");
    expect("mount", "Operation not permitted (os error 1)");
    expect("unshare user", "Operation not permitted (os error 1)");
    expect("io_uring", "Function not implemented (os error 38)");
    expect("asynchronous I/O", "Function not implemented (os error 38)");
    expect("sync", "answered 0");
    expect("packet socket", "Address family not supported by protocol (os error 97)");
    expect("masked", "");
    expect("sysctl", "Read-only file system (os error 30)");
    expect("dev", "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero");
    expect("dev write", "Read-only file system (os error 30)");
    expect("shm", "8388608");
    expect("pty", "ok");
    expect("child", "uid 1000 gid 1000 groups [7, 1000] sid-leader true fds 0 1 2 status 0");
    expect("child of a second spawner", "uid 1000 gid 1000 groups [7, 1000] sid-leader true fds 0 1 2 status 0");
    expect("its cgroup", "/../work status 0");
    expect("missing program", "Exec: No such file or directory (os error 2)");
    let of_the_host = std::os::unix::fs::MetadataExt::dev(&fs::metadata(&program).unwrap()).to_string();
    for running in ["/proc/self/exe", "/bin/again"] {
        assert_ne!(seen[running], of_the_host, "{running} is the host's file, which can be locked and watched");
    }
    assert!(!seen["mounts"].contains(dir.path().to_str().unwrap()), "the host's paths");
    expect("processes", "1 2");
    expect("capabilities", "00000000a80c25fb");
    assert_eq!(fs::read_to_string(upper.join("upper/written")).unwrap(), "by the sandbox");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(upper.join("upper/written")).unwrap());
    assert_eq!(owner, 0, "ids on disk are the sandbox's own");

    let mut waiting = [rustix::event::PollFd::new(&first.pidfd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut waiting, Some(&rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
    assert!(cgroups.processes(&id(1)).is_empty(), "nothing outlives PID 1");
}

/// The host's user who created a process's user namespace.
fn owner(pid: i32) -> u32 {
    const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
    let namespace = File::open(format!("/proc/{pid}/ns/user")).unwrap();
    let mut owner = 0u32;
    // SAFETY: the call writes one id to memory that lives during it.
    let asked = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&namespace), NS_GET_OWNER_UID, &raw mut owner) };
    assert_eq!(asked, 0);
    owner
}

/// The first half of a sandbox, with the socket that it listens on.
fn prepared(launcher: &Launcher, programs: &Path, entrances: &Entrances, kvm: bool) -> (Prepared, OwnedFd) {
    let (control, theirs) = descriptors::packet_pair().unwrap();
    let programs = detached(programs, Attributes { read_only: true, ..Attributes::default() }).unwrap();
    let given: Vec<BorrowedFd<'_>> = [theirs.as_fd(), programs.as_fd()]
        .into_iter()
        .chain(entrances.guest.iter().chain(&entrances.work).map(|f| f.as_fd()))
        .collect();
    let request = Prepare {
        uid_base: UID_BASE,
        host_network: true,
        kvm,
        program: "probe".to_owned(),
        argv: vec!["probe".to_owned(), "probe".to_owned()],
        guest_entrances: entrances.guest.len(),
    };
    let first = launcher.prepare(request, &given).unwrap();
    drop(theirs);
    assert!(matches!(report(&control), Some(Report::Ready)), "prepared");
    (first, control)
}

fn report(control: &OwnedFd) -> Option<Report> {
    let mut buffer = [0u8; 4096];
    let (length, _) = descriptors::receive(control.as_fd(), &mut buffer).unwrap();
    (length > 0).then(|| serde_json::from_slice(&buffer[..length]).unwrap())
}

/// Runs as PID 1 of the sandbox.
fn probe() {
    let given = FirstProcess::prepare().unwrap().expect("the launcher starts it").begin();
    std::panic::set_hook(Box::new(|panic| drop(fs::write("/panic", panic.to_string()))));
    let mut seen = BTreeMap::new();
    let mut see = |key: &str, value: String| drop(seen.insert(key.to_owned(), value));
    let result = |r: std::io::Result<()>| r.map_or_else(|e| e.to_string(), |()| "ok".to_owned());
    let open = |dir: &str| {
        let mut names: Vec<String> = fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    // The directory's own descriptor is among them.
    see("descriptors", (open("/proc/self/fd").len() - 1).to_string());
    see("pid", std::process::id().to_string());
    see("uid", rustix::process::geteuid().as_raw().to_string());
    see("hostname", rustix::system::uname().nodename().to_string_lossy().into_owned());
    see("marker", fs::read_to_string("/marker").unwrap_or_else(|e| e.to_string()));
    see("write", result(fs::write("/written", "by the sandbox")));
    let host = ["/root", "/home", "/usr", "/stage", "/sys/kernel"].iter().any(|p| Path::new(p).exists());
    see("host files", if host { "present" } else { "absent" }.to_owned());
    see("cgroup", own_cgroup());
    fs::create_dir_all("/mnt").unwrap();
    let call = |number: i64, a: u64, b: u64, c: u64| {
        // SAFETY: calls that are expected to be refused, with numbers or null pointers only.
        let r = unsafe { libc::syscall(number, a, b, c) };
        if r < 0 { std::io::Error::last_os_error().to_string() } else { format!("answered {r}") }
    };
    see("mount", call(libc::SYS_mount, 0, 0, 0));
    see("unshare user", call(libc::SYS_unshare, libc::CLONE_NEWUSER as u64, 0, 0));
    see("io_uring", call(libc::SYS_io_uring_setup, 1, 0, 0));
    see("asynchronous I/O", call(libc::SYS_io_setup, 1, 0, 0));
    see("sync", call(libc::SYS_sync, 0, 0, 0));
    see("packet socket", call(libc::SYS_socket, libc::AF_PACKET as u64, libc::SOCK_RAW as u64, 0));
    let told = ["kcore", "keys", "timer_list", "interrupts", "cmdline", "diskstats", "locks", "partitions", "pressure/cpu"]
        .iter()
        .filter(|n| fs::read(format!("/proc/{n}")).is_ok_and(|b| !b.is_empty()));
    see("masked", told.copied().collect::<Vec<_>>().join(" "));
    see("sysctl", result(fs::write("/proc/sys/kernel/domainname", "x")));
    see("dev", open("/dev").join(" "));
    see("dev write", result(fs::write("/dev/new", "x")));
    let shm = rustix::fs::statvfs("/dev/shm").unwrap();
    see("shm", (shm.f_blocks * shm.f_frsize).to_string());
    see(
        "pty",
        result(
            rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR)
                .and_then(|p| rustix::pty::grantpt(&p).and(rustix::pty::unlockpt(&p)))
                .map_err(Into::into),
        ),
    );
    let status = fs::read_to_string("/proc/self/status").unwrap();
    see("capabilities", status.lines().find_map(|l| l.strip_prefix("CapEff:\t")).unwrap().to_owned());
    for running in ["/proc/self/exe", "/bin/again"] {
        see(running, std::os::unix::fs::MetadataExt::dev(&fs::metadata(running).unwrap()).to_string());
    }
    see("mounts", fs::read_to_string("/proc/self/mountinfo").unwrap());
    see("processes", {
        let mut pids: Vec<i32> = open("/proc").iter().filter_map(|n| n.parse().ok()).collect();
        pids.sort_unstable();
        pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" ")
    });

    let Given { mut named, spawner: socket, work_entrances } = given;
    let ask = |socket: &OwnedFd, argv: &[&str]| {
        let (mut output, write) = std::io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let request = Request {
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            env: vec!["PATH=/nowhere:/bin".to_owned()],
            cwd: "/".to_owned(),
            uid: 1000,
            gid: 1000,
            groups: vec![7, 1000],
            controlling_tty: false,
        };
        let encoded = spawner::encode(&request).unwrap();
        spawner::send_request(socket.as_fd(), &encoded, [null.as_fd(), write.as_fd(), write.as_fd()]).unwrap();
        drop(write);
        let mut reply = [0u8; 64];
        let (length, _) = descriptors::receive(socket.as_fd(), &mut reply).unwrap();
        match spawner::decode_reply(&reply[..length], &request) {
            Ok(pid) => {
                let mut text = String::new();
                output.read_to_string(&mut text).unwrap();
                let (_, status) =
                    rustix::process::waitpid(rustix::process::Pid::from_raw(pid), rustix::process::WaitOptions::empty())
                        .unwrap()
                        .unwrap();
                format!("{text} status {}", status.exit_status().unwrap())
            }
            Err(spawner::SpawnError::Failed { stage, source, .. }) => {
                format!("{stage:?}: {source}")
            }
            Err(other) => other.to_string(),
        }
    };
    see("child", ask(&socket, &["probe", "child"]));
    see("missing program", ask(&socket, &["no-such-program"]));
    drop(socket);
    let second = spawner::restart(&work_entrances).unwrap();
    see("child of a second spawner", ask(&second, &["probe", "child"]));
    see("its cgroup", ask(&second, &["probe", "cgroup"]));
    File::from(named.remove("answer").unwrap()).write_all(&serde_json::to_vec(&seen).unwrap()).unwrap();
}

/// The first cgroup of this process that is not the root of its view.
fn own_cgroup() -> String {
    let all = fs::read_to_string("/proc/self/cgroup").unwrap();
    all.lines().map(|l| l.rsplit(':').next().unwrap()).find(|p| *p != "/").unwrap_or("/").to_owned()
}

/// Runs as a command of the sandbox's user.
fn child() {
    let mut fds: Vec<String> =
        fs::read_dir("/proc/self/fd").unwrap().flatten().map(|e| e.file_name().into_string().unwrap()).collect();
    fds.sort();
    fds.pop();
    let groups: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|g| g.as_raw()).collect();
    let leader = rustix::process::getsid(None).unwrap() == rustix::process::getpid();
    print!(
        "uid {} gid {} groups {groups:?} sid-leader {leader} fds {}",
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        fds.join(" ")
    );
}
