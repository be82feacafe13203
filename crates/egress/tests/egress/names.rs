use std::net::{Ipv4Addr, SocketAddr};

use arenite_egress::{Protocol, Reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use crate::fake_resolver::{A, CNAME, FakeRecord, encode, question};
use crate::harness::{CLOSED, LIMIT, Proxy, SANDBOX, SERVER};

const AAAA: u16 = 28;
const MX: u16 = 15;
const TXT: u16 = 16;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;
const NAME_ERROR: u8 = 3;

/// An answer of the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) rcode: u8,
    /// Type, lifetime, and data.
    pub(crate) records: Vec<(u16, u32, Vec<u8>)>,
    bytes: Vec<u8>,
}

impl Answer {
    fn addresses(&self) -> Vec<Ipv4Addr> {
        let addresses = self.records.iter().filter(|(kind, ..)| *kind == A);
        addresses.map(|(_, _, data)| Ipv4Addr::from(<[u8; 4]>::try_from(&data[..]).unwrap())).collect()
    }
}

fn query(name: &str, kind: u16) -> Vec<u8> {
    [&[0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &encode(name), &kind.to_be_bytes(), &[0, 1]].concat()
}

/// Reads an answer in which all owners are pointers to the question.
fn parse(bytes: Vec<u8>) -> Answer {
    let (_, mut at) = question(&bytes);
    let mut records = Vec::new();
    for _ in 0..bytes[7] {
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let length = usize::from(number(at + 10));
        let ttl = u32::from(number(at + 6)) << 16 | u32::from(number(at + 8));
        records.push((number(at + 2), ttl, bytes[at + 12..at + 12 + length].to_vec()));
        at += 12 + length;
    }
    assert_eq!(at, bytes.len(), "nothing follows the records");
    Answer { rcode: bytes[3] & 15, records, bytes }
}

pub(crate) async fn ask(proxy: &Proxy, from: Ipv4Addr, name: &str, kind: u16) -> Answer {
    let socket = UdpSocket::bind((from, 0)).await.unwrap();
    socket.connect(proxy.dns).await.unwrap();
    socket.send(&query(name, kind)).await.unwrap();
    let mut buffer = vec![0; 4096];
    let length = timeout(LIMIT, socket.recv(&mut buffer)).await.expect("no answer in time").unwrap();
    buffer.truncate(length);
    parse(buffer)
}

async fn ask_tcp(proxy: &Proxy, name: &str, kind: u16) -> Answer {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((SANDBOX, 0).into()).unwrap();
    let mut stream = socket.connect(proxy.dns).await.unwrap();
    let query = query(name, kind);
    stream.write_u16(u16::try_from(query.len()).unwrap()).await.unwrap();
    stream.write_all(&query).await.unwrap();
    let mut answer = vec![0; usize::from(timeout(LIMIT, stream.read_u16()).await.unwrap().unwrap())];
    stream.read_exact(&mut answer).await.unwrap();
    parse(answer)
}

fn address(owner: Option<&'static str>, ttl: u32, address: Ipv4Addr) -> FakeRecord {
    FakeRecord { owner, kind: A, ttl, data: address.octets().to_vec() }
}

#[tokio::test]
async fn allowed_names_have_their_addresses() {
    let mut proxy = Proxy::with_policy(r#"{"allow": ["a.test", "*.b.test:22/tcp"]}"#).await;
    proxy.resolver.records(
        "a.test",
        A,
        vec![
            FakeRecord { owner: None, kind: CNAME, ttl: 40, data: encode("cdn.elsewhere") },
            address(Some("cdn.elsewhere"), 86_400, SERVER),
        ],
    );
    let answer = ask(&proxy, SANDBOX, "A.Test", A).await;
    assert_eq!((answer.rcode, answer.addresses(), answer.records[0].1), (0, vec![SERVER], 40));
    assert_eq!(answer.bytes[..2], [0xab, 0xcd]);
    assert_eq!(answer.bytes[12..19], *b"\x01A\x04Test", "the client's spelling");
    assert_eq!(ask_tcp(&proxy, "a.test", A).await.addresses(), [SERVER]);
    let event = proxy.event(|event| event.protocol == Protocol::Dns).await;
    assert_eq!((event.name.as_deref(), event.allowed, event.rule.as_deref()), (Some("a.test"), true, Some("a.test")));
    proxy.resolver.records("x.b.test", A, vec![address(None, 1, SERVER), address(None, 9_999, SERVER)]);
    assert_eq!(ask(&proxy, SANDBOX, "x.b.test", A).await.records[0].1, 5);
    proxy.resolver.records("y.b.test", A, vec![address(None, 9_999, SERVER)]);
    assert_eq!(ask(&proxy, SANDBOX, "y.b.test", A).await.records[0].1, 300);
    assert_eq!(ask(&proxy, SANDBOX, "missing.b.test", A).await.rcode, NAME_ERROR);
}

#[tokio::test]
async fn other_names_do_not_exist_and_are_not_asked_for() {
    let mut proxy = Proxy::with_policy(r#"{"allow": ["a.test"], "deny": ["bad.test"]}"#).await;
    for name in ["b.test", "x.a.test", "bad.test", "secret-data.evil.test", "1.0.1.127.in-addr.arpa"] {
        proxy.resolver.name(name, &[SERVER]);
        for kind in [A, AAAA, TXT, HTTPS, MX] {
            let answer = ask(&proxy, SANDBOX, name, kind).await;
            assert_eq!((answer.rcode, answer.records.len()), (NAME_ERROR, 0), "{name} {kind}");
        }
        assert_eq!(ask_tcp(&proxy, name, A).await.rcode, NAME_ERROR);
    }
    assert!(proxy.resolver.asked().is_empty(), "{:?}", proxy.resolver.asked());
    let event = proxy.refusal().await;
    assert_eq!((event.protocol, event.name.as_deref(), event.reason), (Protocol::Dns, Some("b.test"), Reason::NoRule));
}

#[tokio::test]
async fn both_kinds_of_addresses_are_one_event() {
    let mut proxy = Proxy::with_policy("{}").await;
    for (name, kinds) in [("a.test", [A, AAAA]), ("b.test", [AAAA, A])] {
        for kind in kinds {
            ask(&proxy, SANDBOX, name, kind).await;
        }
    }
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    ask(&proxy, SANDBOX, "end.test", A).await;
    assert_eq!(proxy.refusal().await.name.as_deref(), Some("a.test"));
    assert_eq!(proxy.refusal().await.name.as_deref(), Some("b.test"));
    assert_eq!(proxy.refusal().await.name.as_deref(), Some("end.test"));
}

#[tokio::test]
async fn closed_addresses_are_removed() {
    let mut proxy = Proxy::with_policy(r#"{"allow": ["*"]}"#).await;
    let closed = [CLOSED, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(192, 168, 1, 1)];
    proxy.resolver.name("mixed.test", &[&closed[..], &[SERVER]].concat());
    proxy.resolver.name("closed.test", &closed);
    assert_eq!(ask(&proxy, SANDBOX, "mixed.test", A).await.addresses(), [SERVER]);
    let answer = ask(&proxy, SANDBOX, "closed.test", A).await;
    assert_eq!((answer.rcode, answer.records.len()), (0, 0));
    assert_eq!(proxy.refusal().await.reason, Reason::ClosedAddress);
}

#[tokio::test]
async fn aliases_may_not_lead_to_denied_names() {
    let mut proxy = Proxy::with_policy(r#"{"allow": ["a.test"], "deny": ["*.evil.test"]}"#).await;
    proxy.resolver.records(
        "a.test",
        A,
        vec![
            FakeRecord { owner: None, kind: CNAME, ttl: 60, data: encode("b.test") },
            FakeRecord { owner: Some("b.test"), kind: CNAME, ttl: 60, data: encode("x.evil.test") },
            address(Some("x.evil.test"), 60, SERVER),
        ],
    );
    assert_eq!(ask(&proxy, SANDBOX, "a.test", A).await.rcode, NAME_ERROR);
    let event = proxy.refusal().await;
    assert_eq!((event.reason, event.rule.as_deref()), (Reason::Denied, Some("*.evil.test")));
}

#[tokio::test]
async fn other_records_of_allowed_names_pass_without_addresses() {
    let proxy = Proxy::with_policy(r#"{"allow": ["a.test"]}"#).await;
    let record = |kind, data: &[u8]| vec![FakeRecord { owner: None, kind, ttl: 86_400, data: data.to_vec() }];
    proxy.resolver.name("a.test", &[SERVER]);
    for kind in [AAAA, SVCB, HTTPS, 255] {
        proxy.resolver.records("a.test", kind, record(kind, &[0; 16]));
        let answer = ask(&proxy, SANDBOX, "a.test", kind).await;
        assert_eq!((answer.rcode, answer.records.len()), (0, 0), "{kind}");
    }
    proxy.resolver.records("a.test", TXT, record(TXT, b"\x05hello"));
    assert_eq!(ask(&proxy, SANDBOX, "a.test", TXT).await.records, [(TXT, 300, b"\x05hello".to_vec())]);
    proxy.resolver.records("a.test", MX, vec![address(None, 60, CLOSED)]);
    assert_eq!(ask(&proxy, SANDBOX, "a.test", MX).await.rcode, 2, "an address where none belongs");
}

#[tokio::test]
async fn long_answers_come_by_tcp() {
    let proxy = Proxy::with_policy(r#"{"allow": ["a.test"]}"#).await;
    let addresses: Vec<Ipv4Addr> = (1..=60).map(|n| Ipv4Addr::new(127, 1, 3, n)).collect();
    proxy.resolver.name("a.test", &addresses);
    proxy.resolver.truncate();
    let answer = ask(&proxy, SANDBOX, "a.test", A).await;
    assert!(answer.bytes[2] & 2 != 0 && answer.records.is_empty(), "the client is asked to use TCP");
    assert_eq!(ask_tcp(&proxy, "a.test", A).await.addresses(), addresses[..32]);
}

#[tokio::test]
async fn only_sandboxes_are_answered() {
    let proxy = Proxy::with_policy(r#"{"allow": ["a.test"]}"#).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let socket = UdpSocket::bind("127.0.0.9:0").await.unwrap();
    socket.send_to(&query("a.test", A), proxy.dns).await.unwrap();
    ask(&proxy, SANDBOX, "a.test", A).await;
    let mut buffer = [0; 512];
    assert!(socket.try_recv(&mut buffer).is_err());
    let address: SocketAddr = proxy.dns;
    let stranger = TcpSocket::new_v4().unwrap();
    stranger.bind("127.0.0.9:0".parse().unwrap()).unwrap();
    let mut stream = stranger.connect(address).await.unwrap();
    assert_eq!(stream.read(&mut buffer).await.unwrap_or(0), 0);
}
