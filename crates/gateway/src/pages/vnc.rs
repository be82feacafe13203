//! `/vnc/index.html`: the desktop for people, over `/websockify`. The page comes from the server; the sandbox only sends what the
//! page draws.

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};

use super::Page;
use crate::refusal::Refusal;
use crate::request::require;

pub(super) static PAGE: Page = Page::styled_by_script(
    include_str!("vnc.html"),
    &[include_str!("vnc.css")],
    &[include_str!("../../assets/novnc@1.7.0/novnc.js"), include_str!("vnc.js")],
)
.framed();

pub(crate) fn serve(parts: &Parts) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    Ok(PAGE.response())
}
