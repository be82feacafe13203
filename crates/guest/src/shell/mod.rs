//! AIO's `shell` service.

use axum::Router;

use crate::SharedGuest;

/// Its routes, under `/v1`.
pub fn router() -> Router<SharedGuest> {
    Router::new()
}
