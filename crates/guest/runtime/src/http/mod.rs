//! AIO Sandbox's HTTP conventions: the envelope, its error bodies, and how request bodies are read.

mod address;
mod body;
mod bounds;
pub mod client;
mod envelope;
mod lax;

pub use address::Address;
pub use body::{Body, Form, QueryArgs, missing};
pub use bounds::{optional_within, within};
pub use envelope::{ApiError, Envelope, Reply, ok, ok_message, whole};
pub use lax::Lax;
pub use lax::lenient;
