//! `/vnc/index.html`: the desktop for people, over `/websockify`. The page comes from the server; the sandbox only sends what the
//! page draws.

use super::Page;
use crate::exchange::{Answered, Exchange};

pub(super) static PAGE: Page = Page::styled_by_script(
    include_str!("vnc.html"),
    &[include_str!("vnc.css")],
    &[include_str!("../../assets/novnc@1.7.0/novnc.js"), include_str!("vnc.js")],
)
.framed();

pub(crate) async fn serve(_: &mut Exchange) -> Answered {
    Ok(PAGE.response())
}
