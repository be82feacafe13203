//! The proxy as a whole: real connections, real servers, and a resolver of the tests. On loopback and without root, except for
//! the redirect.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too")]

mod change;
mod connections;
mod fake_resolver;
mod harness;
mod hello;
mod names;
mod owners;
mod redirect;
mod requests;
mod secrets;
mod tls;
mod udp;
