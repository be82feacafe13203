//! AIO's `code` service: one call for all languages, over [`crate::jupyter`] and [`crate::nodejs`].
//!
//! In both languages, the value of the last expression is a result, and printed output comes first.

mod routes;
mod service;
mod types;

pub use routes::{CodeApi, router};
pub use service::{CodeService, execute};
pub use types::*;
