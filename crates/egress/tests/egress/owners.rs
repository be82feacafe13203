//! Events name the process that the server found.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use arenite_egress::{EventKind, SocketTransport};
use tokio::io::AsyncWriteExt;

use crate::harness::{Proxy, SANDBOX, SERVER, is_reset, read_exactly};
use crate::names::ask;

const A: u16 = 1;

async fn answer(proxy: &mut Proxy, number: u64, process: &str) {
    proxy.send(&format!(r#"{{"owned": {{"number": {number}, "process": {process}}}}}"#)).await;
}

#[tokio::test]
async fn events_wait_for_their_process_and_connections_do_not() {
    let mut proxy = Proxy::with_policy(&format!(r#"{{"allow": ["{SERVER}:7000"]}}"#)).await;
    let server = proxy.echo(SERVER, 7000, "").await;
    let mut client = proxy.connect(server).await;
    client.write_all(b"hello").await.unwrap();
    assert_eq!(read_exactly(&mut client, 5).await, b"hello", "nobody has answered");
    let question = proxy.question().await;
    assert_eq!((question.sandbox.as_str(), question.transport), ("box", SocketTransport::Tcp));
    assert_eq!((question.client, question.server), (client.local_addr().unwrap(), Some(server)));
    answer(&mut proxy, question.number, r#"{"pid": 7, "name": "curl", "command": "curl -s"}"#).await;
    let decided = proxy.event(|event| event.kind == EventKind::Decision).await;
    let process = decided.process.unwrap();
    assert_eq!((process.pid, process.name.as_str(), process.command.as_str()), (7, "curl", "curl -s"));
    client.shutdown().await.unwrap();
    assert_eq!(proxy.end().await.process.unwrap().pid, 7);
}

#[tokio::test]
async fn without_an_answer_events_have_no_process() {
    let mut proxy = Proxy::with_policy(r#"{"allow": []}"#).await;
    let closed = SocketAddr::new(IpAddr::V4(SERVER), 7001);
    let start = Instant::now();
    let mut client = proxy.connect(closed).await;
    client.write_all(b"hello\n").await.unwrap();
    assert!(is_reset(&mut client).await);
    // One that nobody asked for, and one without a process, change nothing.
    answer(&mut proxy, 1_000_000, r#"{"pid": 7, "name": "curl", "command": ""}"#).await;
    let refusal = proxy.refusal().await;
    assert_eq!((refusal.process, refusal.port), (None, 7001));
    assert!(start.elapsed().as_secs() < 5);
}

#[tokio::test]
async fn a_refused_name_has_the_process_that_asked() {
    let mut proxy = Proxy::with_policy(r#"{"allow": []}"#).await;
    let answered = ask(&proxy, SANDBOX, "x.test", A).await;
    assert_eq!(answered.rcode, 3, "its answer does not wait for long");
    let question = proxy.question().await;
    assert_eq!((question.client.ip(), question.transport, question.server), (IpAddr::V4(SANDBOX), SocketTransport::Udp, None));
    answer(&mut proxy, question.number, r#"{"pid": 9, "name": "git", "command": "git fetch"}"#).await;
    let refusal = proxy.refusal().await;
    assert_eq!((refusal.name.as_deref(), refusal.process.unwrap().name.as_str()), (Some("x.test"), "git"));
}
