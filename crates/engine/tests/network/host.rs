//! A separate host for each test.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use arenite_engine::namespace::network::NetworkConfig;
use arenite_isolation::netns;

pub(crate) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(crate) const WAN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Outside addresses that a sandbox must not reach, each routed there by the host.
pub(crate) const PRIVATE: [&str; 6] = ["10.77.0.1", "169.254.169.254", "172.16.5.5", "192.168.5.5", "100.64.5.5", "198.18.5.5"];
pub(crate) const PORT: u16 = 8080;
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Runs a test in a separate host. The thread's children, the runtime's and the commands', are in it too.
pub(crate) fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce(Outside) -> F + Send) {
    let (_host, passed) = netns::create(|host| {
        let outside = Outside::connect(host)?;
        io::Result::Ok(thread::scope(|scope| {
            let run = scope.spawn(move || {
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test(outside));
            });
            run.join()
        }))
    })
    .unwrap();
    if let Err(panic) = passed {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) struct Outside {
    pub(crate) netns: OwnedFd,
}

impl Outside {
    fn connect(host: BorrowedFd<'_>) -> io::Result<Self> {
        let (netns, ()) = netns::create(|_| {
            ip("link set lo up");
            ip("link add eth0 mtu 1400 type veth peer name wan mtu 1400");
            // Through this process's table of descriptors.
            let path = format!("/proc/{}/fd/{}", std::process::id(), raw(host));
            ip(&format!("link set wan netns {path}"));
            ip("address add 198.51.100.1/24 dev eth0");
            ip("link set eth0 up");
            for address in PRIVATE {
                ip(&format!("address add {address}/32 dev lo"));
            }
            ip("address add 203.0.113.5/32 dev lo");
            ip("route add 10.208.0.0/12 via 198.51.100.2");
            serve(Ipv4Addr::UNSPECIFIED, PORT);
            io::Result::Ok(())
        })?;
        ip("link set lo up");
        ip("address add 198.51.100.2/24 dev wan");
        ip("link set wan up");
        ip("route add default via 198.51.100.1");
        Ok(Self { netns })
    }
}

pub(crate) fn raw(fd: BorrowedFd<'_>) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}

pub(crate) fn ip(arguments: &str) {
    run("ip", &arguments.split(' ').collect::<Vec<_>>());
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Answers each client with its source address, for the life of the process.
pub(crate) fn serve(address: Ipv4Addr, port: u16) {
    let listener = TcpListener::bind((address, port)).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            let _ = stream.write_all(from.ip().to_string().as_bytes());
        }
    });
}

/// Our source address, as the server at `to` sees it.
pub(crate) fn ask_address(to: impl ToSocketAddrs) -> io::Result<Ipv4Addr> {
    let to = to.to_socket_addrs()?.next().unwrap();
    let mut stream = TcpStream::connect_timeout(&to, LONG)?;
    stream.set_read_timeout(Some(LONG))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    text.parse().map_err(io::Error::other)
}

pub(crate) fn in_net<T: Send>(net: &impl AsFd, visit: impl FnOnce() -> T + Send) -> T {
    netns::enter(net.as_fd(), || io::Result::Ok(visit())).unwrap()
}

/// Asserts that refusals are immediate, without a timeout.
pub(crate) fn assert_refused(to: impl ToSocketAddrs + std::fmt::Debug) {
    let error = ask_address(&to).expect_err(&format!("{to:?} was reached"));
    assert!(matches!(error.kind(), ErrorKind::HostUnreachable | ErrorKind::ConnectionRefused), "{to:?}: {error}");
}

pub(crate) fn config(tag: &str) -> NetworkConfig {
    NetworkConfig { tag: tag.to_owned(), resolvers: Some(Vec::new()), ..NetworkConfig::default() }
}

pub(crate) fn links(tag: &str) -> Vec<String> {
    let mut names: Vec<String> = run("ip", &["-o", "link"])
        .lines()
        .filter_map(|l| Some(l.split(": ").nth(1)?.split('@').next()?.to_owned()))
        .filter(|n| n.starts_with(&format!("ar{tag}-")))
        .collect();
    names.sort_unstable();
    names
}

pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
