//! `/terminal`: a shell session's terminal for people, over `/v1/shell/ws`. The page comes from the server; the sandbox only
//! sends what the terminal draws.

use super::Page;
use super::assets::{FIT, XTERM, XTERM_STYLE};
use crate::exchange::{Answered, Exchange};

pub(super) static PAGE: Page = Page::styled_by_script(
    include_str!("terminal.html"),
    &[XTERM_STYLE, include_str!("terminal.css")],
    &[XTERM, FIT, include_str!("terminal.js")],
)
.framed();

pub(crate) async fn serve(_: &mut Exchange) -> Answered {
    Ok(PAGE.response())
}
