//! `/v1/docs`: the OpenAPI document as a page for people.

use super::Page;
use crate::exchange::{Answered, Exchange};

pub(super) static PAGE: Page = Page::new(include_str!("docs.html"), &[include_str!("docs.css")], &[include_str!("docs.js")]);

/// Shows the document `openapi.json` beside it.
pub(crate) async fn serve(_: &mut Exchange) -> Answered {
    Ok(PAGE.response())
}
