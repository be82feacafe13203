//! The guest as a sandbox starts it, with its listener and configuration on inherited descriptors, but without the
//! address inside: several can run side by side. For tests.

use arenite_guest::server::{Start, run};

fn main() -> std::io::Result<()> {
    let mut start = Start::from_environment()?;
    start.inside = None;
    run(start)
}
