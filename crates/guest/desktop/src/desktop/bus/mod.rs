//! D-Bus, as far as the desktop needs it: a bus for its programs, and a client that queries them.
//!
//! ```text
//!  daemon: dbus-daemon's process, which starts services on request
//!  connection: our client's, for as long as a call takes ─► message ─► wire
//! ```
//!
//! The client is a separate implementation, because it needs only calls and their answers. Answers of programs are not trusted:
//! lengths, depths, and sizes have bounds, and what exceeds them is refused.

mod connection;
mod daemon;
mod message;
mod wire;

pub use connection::BusError;
pub(super) use connection::{Connection, of_bus};
pub(super) use daemon::{Daemon, VARIABLE, address, connect, file_of};
pub(super) use message::{BusCall, BusReply};
pub(super) use wire::{Malformed, Writer};
