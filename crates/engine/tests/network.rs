//! Sandboxes' networks on the real kernel. Needs root, iproute2 and nftables.
//!
//! Each test has a host of its own: a network namespace that plays the host, with an "outside" behind it, so that the real
//! host's network is not touched and tests run side by side.
//!
//! ```text
//!  sandbox ── ar…-N │ host: wan 198.51.100.2/24 ── eth0 198.51.100.1/24 │ outside, where also live
//!                   │ default via 198.51.100.1                          │ 10.77.0.1, 169.254.169.254, 192.168.5.5 …
//! ```

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arenite_engine::namespace::network::{Network, NetworkConfig, NetworkError, PreparedNet};
use arenite_isolation::netns;

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const WAN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Addresses of the outside that a sandbox must not reach, each routed there by the host.
const PRIVATE: [&str; 6] = [
    "10.77.0.1",
    "169.254.169.254",
    "172.16.5.5",
    "192.168.5.5",
    "100.64.5.5",
    "198.18.5.5",
];
const PORT: u16 = 8080;
const LONG: Duration = Duration::from_secs(10);

/// Runs a test in a host of its own. The thread's children, the runtime's and the commands', are in it too.
fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce(Outside) -> F + Send) {
    let (_host, passed) = netns::create(|host| {
        let outside = Outside::connect(host)?;
        io::Result::Ok(thread::scope(|scope| {
            let run = scope.spawn(move || {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap()
                    .block_on(test(outside));
            });
            run.join()
        }))
    })
    .unwrap();
    if let Err(panic) = passed {
        std::panic::resume_unwind(panic);
    }
}

struct Outside {
    netns: OwnedFd,
}

impl Outside {
    fn connect(host: BorrowedFd<'_>) -> io::Result<Self> {
        let (netns, ()) = netns::create(|_| {
            ip("link set lo up");
            ip("link add eth0 mtu 1400 type veth peer name wan mtu 1400");
            // By way of this process's table of descriptors.
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

fn raw(fd: BorrowedFd<'_>) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}

fn ip(arguments: &str) {
    run("ip", &arguments.split(' ').collect::<Vec<_>>());
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Tells everyone who connects what address they come from. For as long as the process lives.
fn serve(address: Ipv4Addr, port: u16) {
    let listener = TcpListener::bind((address, port)).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            let _ = stream.write_all(from.ip().to_string().as_bytes());
        }
    });
}

/// The address that the server at `to` sees us come from.
fn ask_address(to: impl ToSocketAddrs) -> io::Result<Ipv4Addr> {
    let to = to.to_socket_addrs()?.next().unwrap();
    let mut stream = TcpStream::connect_timeout(&to, LONG)?;
    stream.set_read_timeout(Some(LONG))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    text.parse().map_err(io::Error::other)
}

fn in_net<T: Send>(net: &impl AsFd, visit: impl FnOnce() -> T + Send) -> T {
    netns::enter(net.as_fd(), || io::Result::Ok(visit())).unwrap()
}

/// Nothing that a sandbox may not reach makes it wait: the refusal comes at once.
fn assert_refused(to: impl ToSocketAddrs + std::fmt::Debug) {
    let error = ask_address(&to).expect_err(&format!("{to:?} was reached"));
    assert!(
        matches!(
            error.kind(),
            ErrorKind::HostUnreachable | ErrorKind::ConnectionRefused
        ),
        "{to:?}: {error}"
    );
}

fn config(tag: &str) -> NetworkConfig {
    NetworkConfig {
        tag: tag.to_owned(),
        resolvers: Some(Vec::new()),
        ..NetworkConfig::default()
    }
}

fn links(tag: &str) -> Vec<String> {
    let mut names: Vec<String> = run("ip", &["-o", "link"])
        .lines()
        .filter_map(|l| Some(l.split(": ").nth(1)?.split('@').next()?.to_owned()))
        .filter(|n| n.starts_with(&format!("ar{tag}-")))
        .collect();
    names.sort_unstable();
    names
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn open_reaches_the_outside_and_nothing_private() {
    on_a_host(|outside| async move {
        let network = Network::open(config("poli")).await.unwrap();
        let net = network.prepare().await.unwrap();
        let other = network.prepare().await.unwrap();
        assert_eq!(net.gateway, Ipv4Addr::new(10, 209, 0, 1));
        assert_ne!(net.address, other.address);
        serve(Ipv4Addr::UNSPECIFIED, 9999);
        serve(Ipv4Addr::LOCALHOST, 9998);
        in_net(&other.netns, || serve(Ipv4Addr::UNSPECIFIED, 9997));
        // A port that the host publishes: the service behind it is as closed as the host.
        run(
            "nft",
            &["add table ip published; \
               add chain ip published pre { type nat hook prerouting priority dstnat; }; \
               add chain ip published post { type nat hook postrouting priority srcnat; }; \
               add rule ip published pre tcp dport 7777 dnat to 203.0.113.5:8080; \
               add rule ip published post ct status dnat masquerade"],
        );

        // What is refused below is there, and the host reaches it.
        for address in PRIVATE {
            assert_eq!(ask_address((address, PORT)).unwrap(), WAN, "{address}");
        }
        assert!(ask_address((WAN, 9999)).is_ok());
        assert!(ask_address((other.address, 9997)).is_ok());
        in_net(&outside.netns, || {
            assert!(ask_address((WAN, 9999)).is_ok());
            assert!(ask_address((WAN, 7777)).is_ok(), "the published port works");
        });

        in_net(&net.netns, || {
            assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN, "not translated");
            assert!(ask_address(("203.0.113.5", PORT)).is_ok());
            for address in PRIVATE {
                assert_refused((address, PORT));
            }
            assert_refused((WAN, 9999));
            assert_refused((WAN, 7777));
            assert_refused((net.gateway, 9999));
            assert_refused((net.gateway, 9998));
            assert_refused((Ipv4Addr::LOCALHOST, 9998));
            assert_refused((other.address, 9997));
            assert_refused((other.address, 9996));
            assert!(TcpStream::connect_timeout(&("2001:db8::1", PORT).to_socket_addrs().unwrap().next().unwrap(), LONG).is_err());
            assert!(UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", "255.255.255.255:9").is_err());
        });

        // Nobody comes in from outside, neither to a sandbox nor to the forwarder of names.
        in_net(&net.netns, || serve(Ipv4Addr::UNSPECIFIED, PORT));
        assert!(ask_address((net.address, PORT)).is_ok(), "the host may");
        in_net(&outside.netns, || {
            for to in [(net.address, PORT), (net.gateway, 53)] {
                let result = TcpStream::connect_timeout(&to.into(), Duration::from_millis(400));
                assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut, "{to:?}");
            }
        });
    });
}

#[test]
fn a_sandbox_cannot_lie_about_its_address() {
    on_a_host(|outside| async move {
        let network = Network::open(config("spoof")).await.unwrap();
        let net = network.prepare().await.unwrap();
        let victim = network.prepare().await.unwrap();
        let heard = in_net(&outside.netns, || UdpSocket::bind((OUTSIDE, 5353)).unwrap());
        heard.set_read_timeout(Some(LONG)).unwrap();
        in_net(&net.netns, || {
            for address in [victim.address, Ipv4Addr::new(203, 0, 113, 77)] {
                // Only the host's root can do this; a sandbox's has no rights over its network.
                ip(&format!("address add {address}/32 dev eth0"));
                let liar = UdpSocket::bind((address, 0)).unwrap();
                liar.send_to(b"lie", (OUTSIDE, 5353)).unwrap();
            }
            let honest = UdpSocket::bind((net.address, 0)).unwrap();
            honest.send_to(b"truth", (OUTSIDE, 5353)).unwrap();
        });
        // They would have arrived first, the link keeps their order.
        let mut buffer = [0; 16];
        let (length, from) = heard.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&b"truth"[..], IpAddr::V4(WAN)));
    });
}

#[test]
fn a_prepared_network_is_ready_and_closed_means_loopback_only() {
    on_a_host(|_outside| async move {
        let network = Network::open(config("ready")).await.unwrap();
        let net = network.prepare().await.unwrap();
        let closed = network.prepare_closed().unwrap();
        let settings = || {
            let read = |path: &str| std::fs::read_to_string(path).unwrap();
            assert_eq!(read("/proc/sys/net/ipv4/ip_unprivileged_port_start").trim(), "0");
            assert_eq!(
                read("/proc/sys/net/ipv4/ping_group_range").split_ascii_whitespace().collect::<Vec<_>>(),
                ["0", "2147483647"]
            );
            let v6 = read("/proc/thread-self/net/if_inet6");
            assert_eq!(v6.lines().count(), 1, "{v6}");
            assert!(v6.trim_end().ends_with(" lo"), "{v6}");
            for loopback in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
                let listener = TcpListener::bind((loopback, 80)).unwrap();
                TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            }
        };
        in_net(&net.netns, || {
            settings();
            let eth0 = run("ip", &["-o", "link", "show", "eth0"]);
            assert!(eth0.contains(" mtu 1400 ") && eth0.contains("state UP"), "{eth0}");
            let out = run("ip", &["route", "get", "198.51.100.1"]);
            assert!(out.contains(&format!("via {} dev eth0 src {}", net.gateway, net.address)), "{out}");
        });
        in_net(&closed, || {
            settings();
            let error = ask_address((OUTSIDE, PORT)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
            assert_eq!(run("ip", &["-o", "link"]).lines().filter(|l| l.contains("eth0")).count(), 0);
        });
    });
}

#[test]
fn exceptions_win_over_what_is_denied_but_open_no_host() {
    on_a_host(|_outside| async move {
        let network = Network::open(NetworkConfig {
            allowed: vec!["10.77.0.0/24".parse().unwrap(), "198.51.100.0/24".parse().unwrap(), "10.209.0.0/16".parse().unwrap()],
            denied: [config("allow").denied, vec!["203.0.113.0/24".parse().unwrap(), "198.51.100.0/24".parse().unwrap()]].concat(),
            ..config("allow")
        })
        .await
        .unwrap();
        let net = network.prepare().await.unwrap();
        let other = network.prepare().await.unwrap();
        in_net(&other.netns, || serve(Ipv4Addr::UNSPECIFIED, 9997));
        serve(Ipv4Addr::UNSPECIFIED, 9999);
        in_net(&net.netns, || {
            assert_eq!(ask_address(("10.77.0.1", PORT)).unwrap(), WAN);
            assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN);
            assert_refused(("192.168.5.5", PORT));
            assert_refused(("203.0.113.5", PORT));
            assert_refused((WAN, 9999));
            assert_refused((other.address, 9997));
        });
    });
}

#[test]
fn installations_share_a_host_and_come_back_to_their_own() {
    on_a_host(|_outside| async move {
        // At the same moment.
        let (one, two) = tokio::join!(Network::open(config("one1")), Network::open(config("two2")));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_ne!(one.subnet(), two.subnet());
        assert!(matches!(
            Network::open(config("one1")).await.unwrap_err(),
            NetworkError::Running { .. }
        ));
        let taken = NetworkConfig { subnet: Some(two.subnet()), ..config("thr3") };
        assert!(matches!(
            Network::open(taken).await.unwrap_err(),
            NetworkError::SubnetTaken { .. }
        ));

        let kept = one.prepare().await.unwrap();
        let gone = one.prepare().await.unwrap();
        let cross = two.prepare().await.unwrap();
        in_net(&cross.netns, || serve(Ipv4Addr::UNSPECIFIED, PORT));
        let out = |net: &PreparedNet| in_net(&net.netns, || ask_address((OUTSIDE, PORT)).unwrap());
        in_net(&kept.netns, || assert_refused((cross.address, PORT)));

        // As by kill -9: the server goes, the sandboxes stay.
        let subnet = one.subnet();
        drop(one);
        assert_eq!(out(&kept), WAN);
        let newcomer = Network::open(config("new4")).await.unwrap();
        assert!(![subnet, two.subnet()].contains(&newcomer.subnet()), "it took the subnet of living sandboxes");
        newcomer.close(true).await;

        let one = Network::open(config("one1")).await.unwrap();
        assert_eq!(one.subnet(), subnet);
        assert_eq!(out(&kept), WAN);
        let removed = one.adopt(&[kept.index]).await;
        assert_eq!(removed.len(), 1, "{removed:?}");
        assert!(removed[0].contains(&gone.index.to_string()));
        assert_eq!(out(&kept), WAN);
        for _ in 0..4 {
            let net = one.prepare().await.unwrap();
            assert_ne!(net.index, kept.index);
            assert_eq!(out(&net), WAN);
        }

        one.close(true).await;
        two.close(true).await;
        for tag in ["one1", "two2", "new4"] {
            assert!(links(tag).is_empty(), "{:?}", links(tag));
        }
        assert_eq!(run("nft", &["list", "tables"]), "");
        assert!(!run("ip", &["route"]).contains("10.2"));
    });
}

#[test]
fn a_subnet_that_the_host_uses_is_passed_over() {
    on_a_host(|_outside| async move {
        ip("route add 10.209.128.0/17 via 198.51.100.1");
        ip("route add 10.210.3.4/32 via 198.51.100.1");
        ip("address add 10.211.0.1/24 dev lo");
        let network = Network::open(config("used")).await.unwrap();
        assert_eq!(network.subnet(), "10.212.0.0/16".parse().unwrap());
        drop(network);
        // A wide route of a VPN leaves no untouched one, so only what is specific counts.
        ip("route add 10.0.0.0/8 via 198.51.100.1");
        let other = Network::open(config("wide")).await.unwrap();
        assert_eq!(other.subnet(), "10.213.0.0/16".parse().unwrap());
        for (wrong, tag) in [("10.5.0.0/17", "fine"), ("10.5.0.0/16", "x"), ("10.5.0.0/16", "Upper")] {
            let config = NetworkConfig { subnet: Some(wrong.parse().unwrap()), ..config(tag) };
            assert!(Network::open(config).await.is_err());
        }
    });
}

#[test]
fn many_are_prepared_at_once_and_vanish_with_their_namespace() {
    on_a_host(|_outside| async move {
        let network = Arc::new(Network::open(config("many")).await.unwrap());
        let waiting: Vec<_> = (0..40)
            .map(|_| {
                let network = network.clone();
                tokio::spawn(async move { network.prepare().await.unwrap() })
            })
            .collect();
        let mut made = Vec::new();
        for net in waiting {
            made.push(net.await.unwrap());
        }
        let addresses: HashSet<_> = made.iter().map(|n| n.address).collect();
        assert_eq!(addresses.len(), 40);
        assert_eq!(links("many").len(), 41, "the gateway's and one each");
        for net in &made {
            in_net(&net.netns, || assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN));
        }
        let indexes: Vec<u32> = made.iter().map(|n| n.index).collect();
        drop(made);
        indexes.iter().for_each(|i| network.release(*i));
        eventually("links of dropped namespaces vanish", || links("many") == ["armany-gw"]);
        let routes = run("ip", &["route"]);
        assert!(!routes.contains("armany-"), "{routes}");
        // The address that was freed last is used last.
        assert_eq!(network.prepare().await.unwrap().index, 42);
    });
}

#[test]
fn what_stands_in_the_way_is_reported() {
    on_a_host(|_outside| async move {
        let network = Network::open(NetworkConfig { resolvers: None, ..config("warn") }).await.unwrap();
        let warnings = network.warnings().await;
        assert!(warnings.iter().any(|w| w.contains("ip_forward was 0")), "{warnings:?}");
        assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
        let found = |warnings: Vec<String>, text: &str| warnings.iter().any(|w| w.contains(text));
        assert!(!found(warnings, "drops forwarded"));
        run("nft", &["add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"]);
        assert!(found(network.warnings().await, "ip filter FORWARD drops forwarded"));
        run("nft", &["flush ruleset"]);
        assert!(found(network.warnings().await, "arenite_warn is gone"));
        // The next start puts it back.
        drop(network);
        let network = Network::open(config("warn")).await.unwrap();
        let warnings = network.warnings().await;
        assert!(!found(warnings, "is gone"));
        assert!(found(network.warnings().await, "no resolver is known"));
    });
}

/// A resolver on the host's loopback that behaves as the queried name says.
struct FakeResolver {
    address: SocketAddr,
    udp_queries: Arc<AtomicUsize>,
    tcp_queries: Arc<AtomicUsize>,
}

impl FakeResolver {
    fn start() -> Self {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(address).unwrap();
        let (udp_queries, tcp_queries) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let count = udp_queries.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::SeqCst);
                for answer in fake_answers(&buffer[..length], false) {
                    udp.send_to(&answer, from).unwrap();
                }
            }
        });
        let count = tcp_queries.clone();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = tcp.accept() {
                count.fetch_add(1, Ordering::SeqCst);
                let query = read_framed(&mut stream).unwrap();
                for answer in fake_answers(&query, true) {
                    write_framed(&mut stream, &answer);
                }
            }
        });
        Self { address, udp_queries, tcp_queries }
    }
}

fn fake_answers(query: &[u8], tcp: bool) -> Vec<Vec<u8>> {
    let contains = |name: &str| query.windows(name.len()).any(|w| w.eq_ignore_ascii_case(name.as_bytes()));
    let answer = |address: [u8; 4], records: u8| {
        let mut bytes = query.to_vec();
        bytes[2] |= 0x80;
        bytes[3] = 0x80;
        bytes[7] = records;
        for _ in 0..records {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            bytes.extend(address);
        }
        bytes
    };
    let good = answer([198, 51, 100, 1], 1);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    if contains("silent") {
        Vec::new()
    } else if contains("refused") {
        vec![changed(&|b| b[3] = 0x85)]
    } else if contains("forged") {
        let forged = answer([6, 6, 6, 6], 1);
        let other_id = { let mut f = forged.clone(); f[0] ^= 1; f };
        let other_name = { let mut f = forged.clone(); f[13] ^= 1; f };
        let no_answer = { let mut f = forged; f[2] &= 0x7f; f };
        vec![other_id, other_name, no_answer, vec![1, 2, 3], good]
    } else if contains("large") && !tcp {
        vec![answer([9, 9, 9, 9], 60)]
    } else {
        vec![if tcp { answer([198, 51, 100, 9], 60) } else { good }]
    }
}

fn query(id: u16, name: &str) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    Ok(message)
}

fn write_framed(stream: &mut TcpStream, message: &[u8]) {
    let mut framed = u16::try_from(message.len()).unwrap().to_be_bytes().to_vec();
    framed.extend(message);
    stream.write_all(&framed).unwrap();
}

fn client(net: &PreparedNet) -> UdpSocket {
    in_net(&net.netns, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((net.gateway, 53)).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket
    })
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// Off the runtime's only thread, which the forwarder needs.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

const FOUND: &[u8] = &[198, 51, 100, 1];
const SERVFAIL: u8 = 2;

#[test]
fn names_are_answered_through_the_hosts_resolvers() {
    on_a_host(|_outside| async move {
        let (first, second) = (FakeResolver::start(), FakeResolver::start());
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let network = Network::open(NetworkConfig {
            resolvers: Some(vec![closed, first.address, second.address]),
            ..config("names")
        })
        .await
        .unwrap();
        let net = network.prepare().await.unwrap();
        let counts = [first.udp_queries.clone(), second.udp_queries.clone()];
        let asked = move || counts.each_ref().map(|c| c.load(Ordering::SeqCst));
        aside(move || {
            let socket = client(&net);
            // The resolver that is down is passed over, the answer comes with the client's id and spelling.
            socket.send(&query(0x1234, "WwW.Example.org")).unwrap();
            let answer = receive(&socket);
            assert_eq!(answer[..2], [0x12, 0x34]);
            assert_eq!(&answer[12..16], b"\x03WwW");
            assert!(answer.ends_with(FOUND));
            assert_eq!(asked(), [1, 0]);
            // What is no answer to the question is passed over.
            socket.send(&query(2, "forged.example.org")).unwrap();
            let answer = receive(&socket);
            assert!(answer[..2] == [0, 2] && answer.ends_with(FOUND), "{answer:x?}");
            // All refuse: the refusal is the answer.
            socket.send(&query(3, "refused.example.org")).unwrap();
            let answer = receive(&socket);
            assert_eq!((&answer[..2], answer[3] & 15), (&[0, 3][..], 5));
            assert!(asked()[1] > 0, "the second resolver was not asked");
            // Too long for UDP: cut, and whole over TCP.
            socket.send(&query(4, "large.example.org")).unwrap();
            let answer = receive(&socket);
            assert!(answer[2] & 2 != 0 && answer.len() < 512);
            let mut stream = in_net(&net.netns, || TcpStream::connect((net.gateway, 53)).unwrap());
            stream.set_read_timeout(Some(LONG)).unwrap();
            for id in [5, 6] {
                write_framed(&mut stream, &query(id, "large.example.org"));
                let answer = read_framed(&mut stream).unwrap();
                assert_eq!((answer[1], answer.len()), (id as u8, 35 + 60 * 16));
            }
            // What is malformed gets no answer, and does no harm.
            for malformed in [&b""[..], b"x", &[0xff; 300], &query(7, "a.example")[..20]] {
                socket.send(malformed).unwrap();
            }
            socket.send(&query(8, "www.example.org")).unwrap();
            assert_eq!(receive(&socket)[..2], [0, 8]);
            write_framed(&mut stream, &[0xff; 40]);
            assert!(read_framed(&mut stream).is_err(), "a malformed query ends the connection");
        })
        .await;
        assert!(first.tcp_queries.load(Ordering::SeqCst) >= 2);
        network.close(false).await;
    });
}

#[test]
fn one_sandbox_cannot_use_up_the_forwarder() {
    on_a_host(|_outside| async move {
        let resolver = FakeResolver::start();
        let network = Network::open(NetworkConfig {
            resolvers: Some(vec![resolver.address]),
            ..config("flood")
        })
        .await
        .unwrap();
        let (greedy, modest) = (network.prepare().await.unwrap(), network.prepare().await.unwrap());
        aside(move || {
            let flood = client(&greedy);
            // 128 may be under way; more are refused at once, not after the resolver's time.
            for id in 0..200 {
                flood.send(&query(id, "silent.example.org")).unwrap();
            }
            let refused: Vec<_> = (0..72).map(|_| receive(&flood)).collect();
            assert!(refused.iter().all(|r| r[3] & 15 == SERVFAIL));
            let other = client(&modest);
            other.send(&query(1, "www.example.org")).unwrap();
            assert!(receive(&other).ends_with(FOUND));
            // 8 connections; what is more is closed.
            let connect = || in_net(&greedy.netns, || TcpStream::connect((greedy.gateway, 53)).unwrap());
            let held: Vec<_> = (0..8).map(|_| connect()).collect();
            let mut more = connect();
            more.set_read_timeout(Some(LONG)).unwrap();
            assert!(matches!(more.read(&mut [0]), Ok(0) | Err(_)));
            drop(held);
        })
        .await;
        // Those under way get their failure in the end; the port is free for the next server.
        network.close(false).await;
        drop(network);
        Network::open(config("flood")).await.unwrap();
    });
}

#[test]
fn every_namespace_is_the_threads_own() {
    let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let (net, inside) = netns::create(|_| std::fs::read_link("/proc/thread-self/ns/net")).unwrap();
    assert_ne!(before, inside);
    assert_eq!(in_net(&net, || std::fs::read_link("/proc/thread-self/ns/net").unwrap()), inside);
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
    let failed = netns::create(|_| -> io::Result<()> { Err(ErrorKind::OutOfMemory.into()) });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::OutOfMemory);
    let panicked = netns::create(|_| -> io::Result<()> { panic!("on purpose") });
    assert!(panicked.unwrap_err().to_string().contains("panicked"));
}
