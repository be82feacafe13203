//! The pages for people who have not signed in.

use axum::body::Body;
use http::Response;

use super::Page;

pub(super) static FORM: Page =
    Page::new(include_str!("sign_in.html"), &[include_str!("message.css")], &[include_str!("sign_in.js")]);
pub(super) static ELSEWHERE: Page = Page::new(include_str!("elsewhere.html"), &[include_str!("message.css")], &[]);

/// Asks for a key.
pub(crate) fn form() -> Response<Body> {
    FORM.response()
}

/// On hosts of sandboxes: says where to go.
pub(crate) fn elsewhere() -> Response<Body> {
    ELSEWHERE.response()
}
