//! The egress proxy: the process through which sandboxes with a network policy reach the network.
//!
//! ```text
//!  sandbox                        host: this process                                       network
//!  DNS query ──nft redirect──► dns::policed ── allowed name? ──────────────────────────► resolver
//!                                  │ addresses in closed ranges are taken out
//!                                  ▼ (sandbox, name) ↔ addresses
//!  TCP ────────nft redirect──► serve: which sandbox, to which address?
//!                                  ├─ a rule with this address ────────► splice ────────► that address
//!                                  ├─ TLS: name in the ClientHello ────► splice ────────► an address that our resolver
//!                                  ├─ TLS, a secret is for the name ───► tls, http ─TLS─►   gave for the name
//!                                  ├─ Postgres, a secret is for it ────► postgres ─TLS─►
//!                                  ├─ HTTP: Host, for each request ────► http ──────────►
//!                                  ├─ other, a `tcp` rule with a name ─► splice ────────►
//!                                  └─ else: reset                    (all but closed ranges)
//!  UDP ────────nft tproxy────► udp: a rule with this address, or a name of it ─► flow ─► that address
//!  server ◄──── control: policies in, events out ────► table of sandboxes
//!         ◄──── owner: which process has this socket?
//! ```
//!
//! Owns policies, their decisions, and the connections that they allow. Knows sandboxes by their addresses. It ends TLS only for
//! hosts of secrets. It never starts sandboxes or changes firewall rules, and it never connects to an address only because a
//! client chose it, unless a rule has that address.
//!
//! - **It fails closed.** An address without a policy reaches nothing. While the process is away, the redirect leads to a closed
//!   port. It ends when its server ends, because then nobody could change a policy any more.
//! - **Closed ranges.** This process runs on the host, where no rule for sandboxes applies to it. So each address is compared
//!   with [`ClosedRanges`] before a connection is made, whatever rule allows it. Only the operator opens ranges.
//! - **One order.** A policy is replaced under the lock under which decisions are made. A connection that was decided by an
//!   earlier policy is decided again before its first byte is passed on.
//! - **Secrets** never enter a sandbox: it has placeholders, and the values are put into requests here. Only for the hosts of its
//!   secrets, TLS is ended; no other connection can have values inserted.

#![forbid(unsafe_code)]

mod accept;
mod client;
mod closed;
mod connection;
mod control;
mod dial;
pub mod dns;
mod error;
mod events;
mod hello;
mod http;
mod metered;
mod name;
mod names;
mod original;
mod owner;
mod policy;
mod postgres;
mod refusals;
mod sandbox;
mod secrets;
mod serve;
mod sniff;
mod splice;
mod tls;
mod udp;

pub use closed::ClosedRanges;
pub use control::{BoundSecret, FromServer, SetPolicy, ToServer};
pub use error::EgressError;
pub use events::{EgressEvent, EventKind, Protocol};
pub use hello::{ClientHello, HelloReader, HelloStep};
pub use name::{NameError, normalize_name};
pub use original::{Conntrack, OriginalDestination};
pub use owner::{OwnerQuestion, SocketTransport};
pub use policy::{CompiledPolicy, Decision, Observed, Reason, Seen, Target, suggest};
pub use rustls::pki_types::CertificateDer;
pub use serve::{EgressConfig, UdpConfig, serve};
pub use tls::{AuthorityKeys, certificates_in};
pub use udp::{Datagram, UdpSockets, Undelivered};
