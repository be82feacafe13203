//! The proxy as a whole, on loopback and without root: real connections, real servers, and a resolver of the tests.

mod change;
mod connections;
mod fake_resolver;
mod harness;
mod hello;
mod names;
mod requests;
