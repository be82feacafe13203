//! `/api/v2/docs/errors`: the page that the types of problems refer to.

use super::Page;
use crate::exchange::{Answered, Exchange};
use crate::problem;

pub(super) static PAGE: Page =
    Page::new(include_str!("errors.html"), &[include_str!("message.css"), include_str!("errors.css")], &[]);

pub(crate) async fn serve(_: &mut Exchange) -> Answered {
    Ok(PAGE.with(&[("{ROWS}", &problem::rows())]))
}
