//! Sandboxes' networks on the real kernel. Needs root, iproute2 and nftables.
//!
//! Each test has a separate host: a network namespace that acts as the host, with an "outside" behind it, so that the real
//! host's network is not changed and tests run in parallel.
//!
//! ```text
//!  sandbox ── ar…-N │ host: wan 198.51.100.2/24 ── eth0 198.51.100.1/24 │ outside, where also live
//!                   │ default via 198.51.100.1                          │ 10.77.0.1, 169.254.169.254, 192.168.5.5 …
//! ```

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too")]

mod host;
mod installations;
mod names;
mod policy;
