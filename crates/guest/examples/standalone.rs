//! The guest on its own, on a TCP address, without a sandbox around it: for working on its services.
//!
//! `cargo run -p arenite-guest --example standalone -- 127.0.0.1:18081`

use arenite_guest::server::{Start, run};

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:18081".to_owned());
    let inside = Some(address.parse().map_err(std::io::Error::other)?);
    run(Start { config: Default::default(), host_listener: None, spawner: None, inside })
}
