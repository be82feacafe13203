//! TLS that the proxy ends: the side of the client, by the sandbox's authority, and the side of the server, by the host's roots.

mod authority;
mod ended;
mod roots;

pub use self::authority::AuthorityKeys;
pub(crate) use self::authority::{Application, Authority};
pub(crate) use self::ended::{EndedTls, HANDSHAKE};
pub(crate) use self::roots::Roots;
pub use self::roots::certificates_in;
