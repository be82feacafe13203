use std::net::{TcpListener, TcpStream, UdpSocket};

use arenite_egress::SocketTransport;

use super::*;

fn question(transport: SocketTransport, client: SocketAddr, server: Option<SocketAddr>) -> OwnerQuestion {
    OwnerQuestion { number: 1, sandbox: "box".to_owned(), transport, client, server }
}

/// This process, as a sandbox.
fn own(list: impl FnOnce() -> Vec<i32> + Send + 'static) -> SandboxProcesses {
    let pid = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    SandboxProcesses { first: pid.as_raw_nonzero().get(), pidfd: Arc::new(pidfd), list: Box::new(list) }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn finds(question: &OwnerQuestion) -> Option<i32> {
    let resolver = "127.0.0.1:53".parse().unwrap();
    search(question, resolver, own(|| vec![1, own_pid()]), &[]).unwrap().map(|(pid, _)| pid)
}

#[test]
fn sockets_lead_to_their_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let stream = TcpStream::connect(server).unwrap();
    let client = stream.local_addr().unwrap();
    assert_eq!(finds(&question(SocketTransport::Tcp, client, Some(server))), Some(own_pid()));
    let other = SocketAddr::new(server.ip(), 1);
    assert_eq!(finds(&question(SocketTransport::Tcp, client, Some(other))), None, "another connection");

    let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
    connected.connect("127.0.0.9:123").unwrap();
    let client = connected.local_addr().unwrap();
    assert_eq!(finds(&question(SocketTransport::Udp, client, Some("127.0.0.9:123".parse().unwrap()))), Some(own_pid()));
    assert_eq!(finds(&question(SocketTransport::Udp, client, None)), Some(own_pid()), "the server is not known");
    let any = UdpSocket::bind("0.0.0.0:0").unwrap();
    let client = SocketAddr::new("127.0.0.1".parse().unwrap(), any.local_addr().unwrap().port());
    assert_eq!(finds(&question(SocketTransport::Udp, client, Some("127.0.0.8:99".parse().unwrap()))), Some(own_pid()));
    drop(any);
    assert_eq!(finds(&question(SocketTransport::Udp, client, None)), None, "it was closed");
}

#[test]
fn a_process_is_described_as_it_is() {
    let process = describe(own_pid(), levels(own_pid()).unwrap()).unwrap();
    assert_eq!(process.pid, std::process::id());
    assert!(!process.name.is_empty() && process.name.len() <= 16, "{process:?}");
    assert!(
        process.command.starts_with(std::env::args().next().unwrap().get(..200).unwrap_or("")) || process.command.contains('/')
    );
}

#[test]
fn an_ended_sandbox_has_no_process() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    assert!(!has_ended(&pidfd));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has_ended(&pidfd));
    let ended = SandboxProcesses { pidfd: Arc::new(pidfd), ..own(Vec::new) };
    let asked = question(SocketTransport::Udp, "127.0.0.1:9".parse().unwrap(), None);
    assert!(search(&asked, "127.0.0.1:53".parse().unwrap(), ended, &[]).unwrap().is_none());
}

#[test]
fn time_for_searches_is_bounded() {
    let start = Instant::now();
    let after = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut budget = Budget::new(start);
    assert!(budget.has_time(start));
    budget.spend(SAVED);
    assert!(!budget.has_time(start));
    assert!(budget.has_time(after(100)), "it earned 5 ms");
    budget.spend(Duration::from_millis(20));
    assert!(!budget.has_time(after(100)));
    assert!(!budget.has_time(after(300)), "it still lacks 5 ms");
    assert!(budget.has_time(after(60_000)));
    assert!((budget.left - SAVED.as_secs_f64()).abs() < 1e-9);
}

#[tokio::test]
async fn a_slow_sandbox_gets_no_more_time_and_others_do() {
    let owners = Owners::new(Ipv4Addr::new(127, 0, 0, 1));
    owners.locate_by(Box::new(|sandbox| {
        let is_slow = sandbox == "slow";
        Some(own(move || {
            if is_slow {
                std::thread::sleep(SAVED * 2);
            }
            vec![own_pid()]
        }))
    }));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ask = |sandbox: &str| OwnerQuestion {
        sandbox: sandbox.to_owned(),
        ..question(SocketTransport::Udp, socket.local_addr().unwrap(), None)
    };
    owners.find(ask("slow")).await;
    assert!(owners.find(ask("slow")).await.is_none(), "its time is used up");
    assert_eq!(owners.find(ask("quick")).await.unwrap().pid, std::process::id());
    let asked = owners.sandboxes.lock().unwrap()["quick"].clone();
    assert_eq!(asked.recent(), [own_pid()]);
    let waiting: Vec<_> = (0..WAITING).map(|_| asked.enter().unwrap()).collect();
    assert!(owners.find(ask("quick")).await.is_none(), "too many wait");
    drop(waiting);
    assert!(owners.find(ask("quick")).await.is_some());
    owners.forget("quick");
    assert!(!owners.sandboxes.lock().unwrap().contains_key("quick"));
}
