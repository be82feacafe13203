//! The guest without a sandbox around it: for its tests, and for working on its services.
//!
//! Usage: `guest-standalone 127.0.0.1:18081` or `guest-standalone unix:/tmp/guest.sock`, optionally followed by the path of a
//! configuration in JSON. It logs to standard error if `RUST_LOG` is set.

use std::io;
use std::os::unix::net::UnixListener;

use arenite_guest::server::{Start, run};

fn main() -> io::Result<()> {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(io::stderr)
            .init();
    }
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|a| a == "spawner") {
        arenite_isolation::spawner::main();
    }
    // It starts itself to read untrusted input.
    if arguments.peek().is_some_and(|a| a == "guest") {
        return arenite_guest::main();
    }
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:18081".to_owned());
    let config = match arguments.next() {
        Some(path) => serde_json::from_slice(&std::fs::read(path)?)?,
        None => Default::default(),
    };
    let (host_listener, inside) = match address.strip_prefix("unix:") {
        Some(path) => (Some(UnixListener::bind(path)?.into()), None),
        None => (None, Some(address.parse().map_err(io::Error::other)?)),
    };
    run(Start {
        config,
        host_listener,
        host_connections: None,
        host_proof: None,
        pod: None,
        spawner: None,
        work_entrances: Vec::new(),
        inside,
        container: None,
        counters: Default::default(),
    })
}
