//! What a sandbox's answer may say on a host that it shares with the routes that control sandboxes.
//!
//! Browsers act on dozens of headers, and learn new ones: cookies, workers, caches, redirects, reports and hints are kept for
//! the whole origin. So what passes is listed here, whatever the route, and all else is left out.

use http::HeaderMap;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use super::content_type;

/// On such a host, a sandbox's pages get a separate origin, which no other document has.
pub(crate) const SANDBOXED: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-downloads");

/// What an answer says of its body and of itself alone.
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

/// Keeps an answer out of the origin that it is served on, whatever type it claims to be. Its own policy is left out: it might
/// have reports sent.
pub(super) fn confine(headers: &mut HeaderMap) {
    if let Some(kind) = content_type::canonical(headers) {
        headers.insert(CONTENT_TYPE, kind);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, SANDBOXED);
}
