//! DNS for sandboxes: the resolver of this process, and the parts that the server's forwarder shares with it.
//!
//! ```text
//!  server: UDP and TCP, bounds ──► Answers ──┬─ the engine's forwarder: any name, unchanged
//!                                            └─ policed: allowed names, and addresses that may be reached
//!                                  Resolvers: the host's, asked under a new port and id
//! ```

mod load;
mod lookup;
mod message;
mod policed;
mod records;
mod resolvers;
mod server;
mod upstream;

pub(crate) use self::load::{Bound, Load, Slot};
pub(crate) use self::lookup::{Lookup, LookupError, Resolved};
pub use self::message::{Query, Rcode};
pub(crate) use self::policed::PolicedAnswers;
pub use self::resolvers::Resolvers;
pub use self::server::{Answers, DnsServer};
pub use self::upstream::Transport;
