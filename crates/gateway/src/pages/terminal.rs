//! `/terminal`: a shell session's terminal for people, over `/v1/shell/ws`. The page comes from the server; the sandbox only
//! sends what the terminal draws.

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};

use super::Page;
use super::assets::{FIT, XTERM, XTERM_STYLE};
use crate::refusal::Refusal;
use crate::request::require;

pub(super) static PAGE: Page = Page::styled_by_script(
    include_str!("terminal.html"),
    &[XTERM_STYLE, include_str!("terminal.css")],
    &[XTERM, FIT, include_str!("terminal.js")],
)
.framed();

pub(crate) fn serve(parts: &Parts) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    Ok(PAGE.response())
}
