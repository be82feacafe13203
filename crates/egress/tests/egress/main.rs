//! The proxy as a whole: real connections, real servers, and a resolver of the tests. On loopback and without root, except for
//! the redirect.

mod change;
mod connections;
mod fake_resolver;
mod harness;
mod hello;
mod names;
mod redirect;
mod requests;
