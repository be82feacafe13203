//! `/`: the console for the whole installation. It uses the control API as any other client does.

use std::sync::Arc;

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};

use super::Page;
use crate::gateway::{Context, Gateway};
use crate::refusal::Refusal;
use crate::request::require;

pub(super) static PAGE: Page = Page::new(
    include_str!("../../../../web/console.html"),
    &[include_str!(concat!(env!("OUT_DIR"), "/console.css"))],
    &[include_str!(concat!(env!("OUT_DIR"), "/console.js"))],
)
.may("img-src data: blob:");

pub(crate) async fn serve(
    _gateway: &Arc<Gateway>,
    _context: &Context,
    _path: &str,
    parts: &Parts,
    _body: Body,
) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    Ok(PAGE.response())
}
