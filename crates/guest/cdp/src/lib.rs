//! A thin client of the Chrome DevTools Protocol: one WebSocket to the browser, flat sessions on it.
//!
//! ```text
//!  call ──► id noted, message queued ──► writer ──► Chromium
//!  answer ◄── by its id ◄────────────── reader ◄──┘
//!  Events ◄── broadcast, each listener filters by session ◄┘
//! ```
//!
//! Methods and fields are the protocol's own, as JSON; callers bring types for what they read. This module does not know pages or
//! tabs. If a call's future is dropped, the call and its answer are dropped too.

#![forbid(unsafe_code)]

mod client;
mod session;
mod socket;

pub use client::{CALL_TIME, CdpError, Client, Target};
pub use session::{Event, Events, Lost, Session};
pub use socket::{MAX_MESSAGE, Socket, open};
