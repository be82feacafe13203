use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::*;
use crate::connection::Shared;
use crate::dial::Dialer;
use crate::dns::{Lookup, Resolvers};
use crate::events::Events;
use crate::metered::Meter;
use crate::owner::{Owners, SocketTransport};
use crate::policy::CompiledPolicy;
use crate::sandbox::Sandboxes;
use crate::secrets::WholeBodies;
use crate::tls::Roots;

/// A connection of a sandbox that may reach nothing.
fn connect() -> DuplexStream {
    let sandboxes = Arc::new(Sandboxes::default());
    let address = "10.209.0.7".parse().unwrap();
    sandboxes.set(address, "box", CompiledPolicy::compile(&arenite_model::NetworkPolicy::default()).unwrap(), None, false);
    let lookup = Arc::new(Lookup::new(Resolvers::new(Some(Vec::new())), Arc::default()));
    let open = Arc::new(sandboxes.find(address).unwrap().open().unwrap());
    let destinations = Arc::new(|stream: &TcpStream| stream.local_addr());
    let (dialer, events) = (Dialer::new(lookup), Events::channel().0);
    let (owners, _) = Owners::channel(events.clone());
    let (roots, whole_bodies) = (Roots::new(Vec::new()), WholeBodies::default());
    let shared = Arc::new(Shared { sandboxes, dialer, events, owners, destinations, roots, whole_bodies });
    let destination = "192.0.2.1:80".parse().unwrap();
    let client = "10.209.0.7:40000".parse().unwrap();
    let owner = shared.owners.ask(&open.sandbox, SocketTransport::Tcp, client, Some(destination));
    let connection = Connection { shared, open, destination, meter: Meter::new(), owner };
    let (client, stream) = tokio::io::duplex(1 << 16);
    tokio::spawn(HttpConnection::new(connection).serve(stream, Vec::new()));
    client
}

async fn read_answer(client: &mut DuplexStream) -> String {
    let mut answer = vec![0; 4096];
    let length = client.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_after_a_while() {
    let mut client = connect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(70)).await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.unwrap();
        assert!(read_answer(&mut client).await.starts_with("HTTP/1.1 403"));
    }
    let start = Instant::now();
    assert_eq!(read_answer(&mut client).await, "", "an orderly end");
    assert_eq!(start.elapsed().as_secs(), 75);
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_ends_a_connection() {
    let mut client = connect();
    let start = Instant::now();
    let written = async {
        for byte in b"GET / HTTP/1.1\r\nHost: a.example\r\n".iter().cycle() {
            tokio::time::sleep(Duration::from_secs(10)).await;
            if client.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    };
    written.await;
    assert!((90..120).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}
