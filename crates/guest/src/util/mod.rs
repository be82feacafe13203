//! AIO's `util` service: what a web page, document or image says, as Markdown.
//!
//! Owns nothing. Documents are read, and pages fetched, in confined processes: see [`crate::confined`].

mod routes;
mod service;

pub use routes::{UtilApi, router};
pub(crate) use service::convert;
