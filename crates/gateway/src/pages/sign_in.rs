//! The pages for people who have not signed in.

use axum::body::Body;
use http::Response;

use super::Page;

pub(super) static FORM: Page =
    Page::new(include_str!("sign_in.html"), &[include_str!("message.css")], &[include_str!("sign_in.js")]);
pub(super) static ELSEWHERE: Page = Page::new(include_str!("elsewhere.html"), &[include_str!("message.css")], &[]);

/// The page that asks for a key.
pub(crate) fn form() -> Response<Body> {
    FORM.response()
}

/// On sandbox hosts: the page that says where to sign in.
pub(crate) fn elsewhere() -> Response<Body> {
    ELSEWHERE.response()
}
