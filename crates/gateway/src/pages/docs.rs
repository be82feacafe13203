//! `/v1/docs`: the OpenAPI document as a page for people.

use std::sync::Arc;

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};

use super::Page;
use crate::gateway::{Context, Gateway};
use crate::refusal::Refusal;
use crate::request::require;

pub(super) static PAGE: Page = Page::new(include_str!("docs.html"), &[include_str!("docs.css")], &[include_str!("docs.js")]);

pub(crate) async fn serve(
    _gateway: &Arc<Gateway>,
    _context: &Context,
    _path: &str,
    parts: &Parts,
    _body: Body,
) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    Ok(page())
}

/// Shows the document `openapi.json` beside it.
pub(crate) fn page() -> Response<Body> {
    PAGE.response()
}
