//! The first process of a container that another program isolates, such as Docker, and what that program needs for it.
//!
//! ```text
//!  container: /.arenite/arenite guest container     server
//!  connect to /.arenite/start              ──────►  knows the process by the connection, connects its network
//!  start the spawner, serve                ◄──────  names and descriptors, as from a launcher
//! ```
//!
//! `/.arenite` is a read-only mount that only this container sees. No code of an image has run before the descriptors arrive,
//! and the server takes one connection. The limits, capabilities and the seccomp profile are in effect from the start.
//!
//! Under gVisor, a listening socket of the host is of no use to the guest. So it gets a proof instead, connects to
//! `/.arenite/calls` with it, and receives connected sockets. It connects again when the server has ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::first_process::{Given, MASKED, READ_ONLY, limit, quiet_stdio};
use crate::seccomp::{ALLOWED, ALLOWED_HERE, DENIED, DENIED_FAMILIES, NEW_NAMESPACES};
use crate::{capabilities, descriptors, spawner};

/// The argument after `guest` that starts [`begin`].
pub const ARGUMENT: &str = "container";
/// The mount with the program and the socket.
pub const DIR: &str = "/.arenite";
/// The program's name in [`DIR`].
pub const PROGRAM: &str = "arenite";
/// The socket's name in [`DIR`].
pub const START: &str = "start";
/// The name in [`DIR`] of the socket to which the guest connects under gVisor, after that. It sends its proof and receives
/// messages with a connection each.
pub const CALLS: &str = "calls";
/// Length of the proof, in bytes.
pub const PROOF_BYTES: usize = 32;
/// Maximum size of the message, in bytes.
const MAX_BYTES: usize = 4 << 10;

/// What the first process gets, with the descriptors in the order of their names.
#[derive(Debug, Serialize, Deserialize)]
struct Start {
    /// Maximum number of open descriptors of a process.
    open_files: u64,
    given: Vec<String>,
}

/// Takes this process's descriptors from the server. Call it in a process with one thread, the first of a container.
///
/// # Errors
/// No server waits, or it has ended.
pub fn begin() -> io::Result<Given> {
    let server = UnixStream::connect(format!("{DIR}/{START}"))?;
    let mut message = vec![0; MAX_BYTES];
    let (length, given) = descriptors::receive(server.as_fd(), &mut message)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let start: Start = serde_json::from_slice(&message[..length])?;
    if start.given.len() != given.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    drop(server);
    quiet_stdio()?;
    limit(start.open_files)?;
    let named: BTreeMap<_, _> = start.given.into_iter().zip(given).collect();
    Ok(Given { named, spawner: spawner::fork_off()?, work_entrances: Vec::new() })
}

/// Starts a process that no server starts, such as the first of a pod. Call it in a process with one thread.
///
/// # Errors
/// The process that starts commands can't be started.
pub fn begin_alone(open_files: u64) -> io::Result<Given> {
    limit(open_files)?;
    Ok(Given { named: BTreeMap::new(), spawner: spawner::fork_off()?, work_entrances: Vec::new() })
}

/// The server's side of [`begin`]: sends the descriptors with their names.
pub fn start(container: BorrowedFd<'_>, open_files: u64, given: &[(&str, BorrowedFd<'_>)]) -> io::Result<()> {
    let (names, descriptors): (Vec<_>, Vec<_>) = given.iter().map(|(name, fd)| ((*name).to_owned(), *fd)).unzip();
    let message = serde_json::to_vec(&Start { open_files, given: names })?;
    descriptors::send(container, &message, &descriptors)
}

/// The capabilities of the container's root: those of a sandbox, without raw sockets. A sandbox's root has none over its
/// network, and a container's would.
pub fn capabilities() -> impl Iterator<Item = &'static str> {
    capabilities::KEPT.iter().map(|(_, name)| *name).filter(|name| *name != "NET_RAW")
}

/// Paths that the container must not see: what describes the host, and all of its devices.
pub fn masked_paths() -> Vec<String> {
    MASKED.iter().map(|name| format!("/proc/{name}")).chain(["/sys".to_owned()]).collect()
}

/// Paths that the container must not write.
pub fn read_only_paths() -> Vec<String> {
    READ_ONLY.iter().map(|name| format!("/proc/{name}")).collect()
}

/// The bits of an `ioctl`'s request that the kernel reads.
const WORD: u64 = 0xffff_ffff;
/// Requests that push input into a terminal. They differ in their last four bits.
const TERMINAL_INPUT: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Masks and values that match every request except these: libseccomp has no rule for what is not in a list, and a rule without
/// arguments would win over those with some.
fn all_but_terminal_input() -> Vec<(u64, u64)> {
    let common = TERMINAL_INPUT[0] & !0xf;
    let other_above = (4..32).map(|bit| (1 << bit, !common & (1 << bit)));
    let other_below = (0..16).map(|low| common | low).filter(|request| !TERMINAL_INPUT.contains(request));
    other_above.chain(other_below.map(|request| (WORD, request))).collect()
}

/// The filters of a sandbox as a seccomp profile of Docker. It differs in two points: other families of sockets than IP, Unix
/// and netlink's routes are refused too, and a call that libseccomp does not know gets the profile's default answer.
pub fn seccomp_profile() -> Value {
    let answer = |errno: i32| json!({"action": "SCMP_ACT_ERRNO", "errnoRet": errno});
    let rule = |names: &[&str], args: Value, mut action: Value| {
        action["names"] = json!(names);
        action["args"] = args;
        action
    };
    let allow = || json!({"action": "SCMP_ACT_ALLOW"});
    let argument = |index: u32, operator: &str, value: u64, two: u64| json!([{"index": index, "value": value, "valueTwo": two, "op": operator}]);
    let equal = |index, value: i32| argument(index, "SCMP_CMP_EQ", value as u64, 0);
    let with_arguments = ["clone", "ioctl", "socket"];
    let allowed: Vec<&str> =
        ALLOWED.iter().chain(ALLOWED_HERE).map(|(name, _)| *name).filter(|name| !with_arguments.contains(name)).collect();
    let denied: Vec<&str> = DENIED.iter().map(|(name, _)| *name).collect();
    let mut calls = vec![
        rule(&allowed, json!([]), allow()),
        rule(&denied, json!([]), answer(libc::EPERM)),
        // Without any effect, as in a sandbox.
        rule(&["sync"], json!([]), answer(0)),
        // libseccomp of older hosts answers EPERM to what has no rule, and libc falls back after ENOSYS only.
        rule(&["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup"], json!([]), answer(libc::ENOSYS)),
    ];
    // CLONE_NEWTIME is a signal's number here, and only for `clone3` and `unshare` a flag.
    let flags = NEW_NAMESPACES[..7].iter().fold(0u64, |all, flag| all | *flag as u64);
    calls.push(rule(&["clone"], argument(0, "SCMP_CMP_MASKED_EQ", flags, 0), allow()));
    for flag in &NEW_NAMESPACES[..7] {
        calls.push(rule(&["clone"], argument(0, "SCMP_CMP_MASKED_EQ", *flag as u64, *flag as u64), answer(libc::EPERM)));
    }
    for (mask, value) in all_but_terminal_input() {
        calls.push(rule(&["ioctl"], argument(1, "SCMP_CMP_MASKED_EQ", mask, value), allow()));
    }
    for request in TERMINAL_INPUT {
        calls.push(rule(&["ioctl"], argument(1, "SCMP_CMP_MASKED_EQ", WORD, request), answer(libc::EPERM)));
    }
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        calls.push(rule(&["socket"], equal(0, family), allow()));
    }
    let both = |first: Value, second: Value| match (first, second) {
        (Value::Array(first), Value::Array(second)) => Value::Array(first.into_iter().chain(second).collect()),
        (other, _) => other,
    };
    let netlink = |operator| both(equal(0, libc::AF_NETLINK), argument(2, operator, libc::NETLINK_ROUTE as u64, 0));
    calls.push(rule(&["socket"], netlink("SCMP_CMP_EQ"), allow()));
    calls.push(rule(&["socket"], netlink("SCMP_CMP_NE"), answer(libc::EAFNOSUPPORT)));
    for family in DENIED_FAMILIES {
        calls.push(rule(&["socket"], equal(0, family), answer(libc::EAFNOSUPPORT)));
    }
    let architecture = if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" };
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::ENOSYS,
        "architectures": [architecture],
        "syscalls": calls,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn descriptors_arrive_by_their_names() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/proc/self/status").unwrap();
        start(ours.as_fd(), 7, &[("a", file.as_fd()), ("b", file.as_fd())]).unwrap();
        let mut message = [0; MAX_BYTES];
        let (length, given) = descriptors::receive(theirs.as_fd(), &mut message).unwrap();
        let started: Start = serde_json::from_slice(&message[..length]).unwrap();
        assert_eq!((started.open_files, started.given, given.len()), (7, vec!["a".to_owned(), "b".to_owned()], 2));
        let mut text = String::new();
        given.into_iter().map(File::from).next().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.starts_with("Name:"));
    }

    #[test]
    fn every_request_passes_except_input_into_terminals() {
        let rules = all_but_terminal_input();
        let passes = |request: u64| rules.iter().any(|(mask, value)| request & mask == *value);
        let requests = (0..=0xffff).chain([WORD, 0x8004_5412, 0x5_0000_5401, 1 << 31]);
        for request in requests {
            assert_eq!(passes(request), !TERMINAL_INPUT.contains(&request), "{request:#x}");
        }
        // The kernel reads the lower half alone.
        assert!(TERMINAL_INPUT.iter().all(|request| !passes(7 << 32 | request)));
    }

    #[test]
    fn the_profile_has_each_call_once_without_arguments() {
        let profile = seccomp_profile();
        let rules = profile["syscalls"].as_array().unwrap();
        let plain = rules.iter().filter(|rule| rule["args"].as_array().unwrap().is_empty());
        let mut names: Vec<&str> = plain.flat_map(|rule| rule["names"].as_array().unwrap()).filter_map(Value::as_str).collect();
        assert!(names.contains(&"read") && names.contains(&"mount") && names.contains(&"newfstatat"));
        let number = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), number);
        let capabilities: Vec<_> = capabilities().collect();
        assert!(capabilities.contains(&"CHOWN") && !capabilities.contains(&"NET_RAW"));
    }
}
