//! A resolver that knows the names of a test.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) const A: u16 = 1;
pub(crate) const CNAME: u16 = 5;

/// Type, lifetime, data, and the owner if it is not the name of the question.
#[derive(Debug, Clone)]
pub(crate) struct FakeRecord {
    pub(crate) owner: Option<&'static str>,
    pub(crate) kind: u16,
    pub(crate) ttl: u32,
    pub(crate) data: Vec<u8>,
}

#[derive(Debug, Default)]
struct Zone {
    records: HashMap<(String, u16), Vec<FakeRecord>>,
    asked: Vec<(String, u16)>,
    /// Answers over UDP are cut off.
    is_truncating: bool,
}

pub(crate) struct FakeResolver {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    is_held: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl FakeResolver {
    pub(crate) async fn start() -> Self {
        let zone: Arc<Mutex<Zone>> = Arc::default();
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let known = zone.clone();
        let is_held = watch::Sender::new(false);
        let mut held = is_held.subscribe();
        tasks.spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
                let mut answer = known.lock().unwrap().answer(&buffer[..length]);
                held.wait_for(|held| !held).await.unwrap();
                if known.lock().unwrap().is_truncating {
                    answer[2] |= 2;
                    answer[7] = 0;
                    answer.truncate(length);
                }
                udp.send_to(&answer, from).await.unwrap();
            }
        });
        let known = zone.clone();
        tasks.spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let length = stream.read_u16().await.unwrap();
                let mut query = vec![0; usize::from(length)];
                stream.read_exact(&mut query).await.unwrap();
                let answer = known.lock().unwrap().answer(&query);
                stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        Self { address, zone, is_held, _tasks: tasks }
    }

    /// Sets the addresses of a name, with a lifetime of a minute.
    pub(crate) fn name(&self, name: &str, addresses: &[Ipv4Addr]) {
        let record = |address: &Ipv4Addr| FakeRecord { owner: None, kind: A, ttl: 60, data: address.octets().to_vec() };
        self.records(name, A, addresses.iter().map(record).collect());
    }

    pub(crate) fn records(&self, name: &str, kind: u16, records: Vec<FakeRecord>) {
        self.zone.lock().unwrap().records.insert((name.to_owned(), kind), records);
    }

    pub(crate) fn truncate(&self) {
        self.zone.lock().unwrap().is_truncating = true;
    }

    /// Whether answers wait.
    pub(crate) fn hold(&self, held: bool) {
        self.is_held.send_replace(held);
    }

    /// What it was asked for so far.
    pub(crate) fn asked(&self) -> Vec<(String, u16)> {
        self.zone.lock().unwrap().asked.clone()
    }
}

impl Zone {
    fn answer(&mut self, query: &[u8]) -> Vec<u8> {
        let (name, end) = question(query);
        let kind = u16::from_be_bytes([query[end - 4], query[end - 3]]);
        self.asked.push((name.clone(), kind));
        let mut answer = query[..end].to_vec();
        answer[2] |= 0x80;
        answer[6..12].fill(0);
        let is_known = self.records.keys().any(|(known, _)| *known == name);
        answer[3] = if is_known { 0x80 } else { 0x83 };
        let records = self.records.get(&(name, kind)).map_or(&[][..], Vec::as_slice);
        answer[7] = u8::try_from(records.len()).unwrap();
        for record in records {
            match record.owner {
                Some(owner) => answer.extend(encode(owner)),
                None => answer.extend([0xc0, 12]),
            }
            answer.extend(record.kind.to_be_bytes());
            answer.extend([0, 1]);
            answer.extend(record.ttl.to_be_bytes());
            answer.extend(u16::try_from(record.data.len()).unwrap().to_be_bytes());
            answer.extend(&record.data);
        }
        answer
    }
}

/// The name of the question and its end.
pub(crate) fn question(message: &[u8]) -> (String, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while message[at] != 0 {
        let end = at + 1 + usize::from(message[at]);
        labels.push(String::from_utf8_lossy(&message[at + 1..end]).to_lowercase());
        at = end;
    }
    (labels.join("."), at + 5)
}

pub(crate) fn encode(name: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        name.split('.').flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat()).collect();
    bytes.push(0);
    bytes
}
