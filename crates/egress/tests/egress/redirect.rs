//! The kernel's redirect, in a network namespace. Needs root and nft.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use arenite_egress::Conntrack;
use arenite_isolation::netns;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::fake_resolver::{encode, question};
use crate::harness::{LIMIT, Proxy, SERVER, is_reset, read_exactly};
use crate::hello::client_hello;

/// The sandbox's address, from which connections to [`OUTSIDE`] come.
const SANDBOX: &str = "10.209.0.7";
const OUTSIDE: &str = "192.0.2.1:443";
const OUTSIDE_RESOLVER: &str = "192.0.2.53:53";

#[test]
fn redirected_connections_are_known_by_their_destination() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: it needs root");
    }
    let (namespace, ()) = netns::create(|_| {
        run("ip", &["link", "set", "lo", "up"])?;
        run("ip", &["address", "add", &format!("{SANDBOX}/32"), "dev", "lo"])?;
        run("ip", &["route", "add", "192.0.2.0/24", "dev", "lo", "src", SANDBOX])
    })
    .unwrap();
    netns::enter(namespace.as_fd(), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(check());
        io::Result::Ok(())
    })
    .unwrap();
}

async fn check() {
    let mut proxy = Proxy::start_with(Arc::new(Conntrack), Vec::new()).await;
    redirect(proxy.address.port(), proxy.dns.port()).unwrap();
    proxy.echo(SERVER, 443, "").await;
    proxy.resolver.name("a.test", &[SERVER]);
    let policy = r#"{"allow": ["a.test"]}"#;
    proxy.send(&format!(r#"{{"set": {{"address": "{SANDBOX}", "sandbox": "box", "policy": {policy}}}}}"#)).await;
    proxy.barrier().await;

    let query = [&[7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &encode("a.test"), &[0, 1, 0, 1]].concat();
    let socket = UdpSocket::bind((SANDBOX, 0)).await.unwrap();
    socket.connect(OUTSIDE_RESOLVER).await.unwrap();
    socket.send(&query).await.unwrap();
    let mut answer = [0; 512];
    let length = timeout(LIMIT, socket.recv(&mut answer)).await.unwrap().unwrap();
    assert_eq!(question(&answer[..length]).0, "a.test");
    assert!(answer[..length].ends_with(&SERVER.octets()));

    let outside: SocketAddr = OUTSIDE.parse().unwrap();
    for (name, is_allowed) in [("a.test", true), ("b.test", false)] {
        let hello = client_hello(name);
        let mut client = TcpStream::connect(outside).await.unwrap();
        client.write_all(&hello).await.unwrap();
        if is_allowed {
            assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
        } else {
            assert!(is_reset(&mut client).await);
            let refusal = proxy.refusal().await;
            assert_eq!((refusal.address, refusal.port, refusal.sandbox.as_str()), (Some(outside.ip()), 443, "box"));
        }
    }
    // To the proxy itself: no redirect, and no destination.
    let client = tokio::net::TcpSocket::new_v4().unwrap();
    client.bind((SANDBOX.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap();
    assert!(is_reset(&mut client.connect(proxy.address).await.unwrap()).await);
}

fn redirect(tcp: u16, dns: u16) -> io::Result<()> {
    let rules = format!(
        "table ip egress {{
           chain output {{
             type nat hook output priority -100
             ip daddr 192.0.2.0/24 tcp dport 53 redirect to :{dns}
             ip daddr 192.0.2.0/24 udp dport 53 redirect to :{dns}
             ip daddr 192.0.2.0/24 meta l4proto tcp redirect to :{tcp}
           }}
         }}
"
    );
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    nft.stdin.take().unwrap().write_all(rules.as_bytes())?;
    if nft.wait()?.success() { Ok(()) } else { Err(io::Error::other("nft failed")) }
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program} {arguments:?} failed"))) }
}
