//! Names for sandboxes, against a resolver that can misbehave.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use arenite_engine::namespace::network::{Network, NetworkConfig, PreparedNet};

use crate::host::*;

/// A resolver on the host's loopback with behaviour chosen by the queried name.
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
        let other_id = {
            let mut f = forged.clone();
            f[0] ^= 1;
            f
        };
        let other_name = {
            let mut f = forged.clone();
            f[13] ^= 1;
            f
        };
        let no_answer = {
            let mut f = forged;
            f[2] &= 0x7f;
            f
        };
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

/// Not on the runtime's only thread, which the forwarder needs.
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
        let network =
            Network::open(NetworkConfig { resolvers: Some(vec![closed, first.address, second.address]), ..config("names") })
                .await
                .unwrap();
        let net = network.prepare().await.unwrap();
        let counts = [first.udp_queries.clone(), second.udp_queries.clone()];
        let asked = move || counts.each_ref().map(|c| c.load(Ordering::SeqCst));
        aside(move || {
            let socket = client(&net);
            // The resolver that is down is skipped; the answer has the client's id and spelling.
            socket.send(&query(0x1234, "WwW.Example.org")).unwrap();
            let answer = receive(&socket);
            assert_eq!(answer[..2], [0x12, 0x34]);
            assert_eq!(&answer[12..16], b"\x03WwW");
            assert!(answer.ends_with(FOUND));
            assert_eq!(asked(), [1, 0]);
            // Answers to other questions are ignored.
            socket.send(&query(2, "forged.example.org")).unwrap();
            let answer = receive(&socket);
            assert!(answer[..2] == [0, 2] && answer.ends_with(FOUND), "{answer:x?}");
            // All refuse: the refusal is the answer.
            socket.send(&query(3, "refused.example.org")).unwrap();
            let answer = receive(&socket);
            assert_eq!((&answer[..2], answer[3] & 15), (&[0, 3][..], 5));
            assert!(asked()[1] > 0, "the second resolver was not asked");
            // Too long for UDP: truncated, and complete over TCP.
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
            // Malformed messages get no answer, and do no harm.
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
        let network = Network::open(NetworkConfig { resolvers: Some(vec![resolver.address]), ..config("flood") }).await.unwrap();
        let (greedy, modest) = (network.prepare().await.unwrap(), network.prepare().await.unwrap());
        aside(move || {
            let flood = client(&greedy);
            // 128 may be in progress; more are refused at once, not after the resolver's time.
            for id in 0..200 {
                flood.send(&query(id, "silent.example.org")).unwrap();
            }
            let refused: Vec<_> = (0..72).map(|_| receive(&flood)).collect();
            assert!(refused.iter().all(|r| r[3] & 15 == SERVFAIL));
            let other = client(&modest);
            other.send(&query(1, "www.example.org")).unwrap();
            assert!(receive(&other).ends_with(FOUND));
            // 8 connections; further ones are closed.
            let connect = || in_net(&greedy.netns, || TcpStream::connect((greedy.gateway, 53)).unwrap());
            let held: Vec<_> = (0..8).map(|_| connect()).collect();
            let mut more = connect();
            more.set_read_timeout(Some(LONG)).unwrap();
            assert!(matches!(more.read(&mut [0]), Ok(0) | Err(_)));
            drop(held);
        })
        .await;
        // Those in progress fail in the end; the port is free for the next server.
        network.close(false).await;
        drop(network);
        Network::open(config("flood")).await.unwrap();
    });
}
