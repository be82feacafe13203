//! AIO's `util` service: converts web pages, documents and images to Markdown.
//!
//! Owns nothing. Confined processes read documents and fetch pages: see [`crate::confined`].

mod routes;
mod service;

pub use routes::{UtilApi, router};
pub use service::{Converter, convert};
