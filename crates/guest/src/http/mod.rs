//! AIO Sandbox's way of speaking HTTP: the envelope, its error bodies, and how request bodies are read.

mod body;
mod envelope;

pub use body::{Body, QueryArgs, missing};
pub use envelope::{ApiError, Envelope, Reply, ok, ok_message};
