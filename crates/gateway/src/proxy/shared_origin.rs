//! Filters a sandbox's answers on a host that it shares with the routes that control sandboxes.
//!
//! Browsers act on dozens of headers, and new ones appear: cookies, workers, caches, redirects, reports and hints apply to the
//! whole origin. So this is an allowlist for all routes, and all other headers are removed.

use http::HeaderMap;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use super::content_type;

/// On such a host, a sandbox's pages get a separate origin, which no other document has.
pub(crate) const SANDBOXED: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-downloads");

/// Headers about an answer's body, and about the answer alone.
const PASSED: [&str; 28] = [
    "accept-ranges",
    "age",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    // Checked by `redirect`.
    "location",
    "mcp-session-id",
    "pragma",
    "retry-after",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
    "vary",
    "x-accel-buffering",
    "x-frame-options",
    "x-image-height",
    "x-image-width",
    "x-screen-height",
    "x-screen-width",
];

/// Whether a header passes.
pub(super) fn passes(name: &HeaderName) -> bool {
    PASSED.contains(&name.as_str())
}

/// Keeps an answer out of the origin that serves it, whatever type it claims. Removes its own policy, which could request
/// reports.
pub(super) fn confine(headers: &mut HeaderMap) {
    if let Some(kind) = content_type::canonical(headers) {
        headers.insert(CONTENT_TYPE, kind);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, SANDBOXED);
}
