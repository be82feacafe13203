//! `/`: the console for the whole installation. It uses the control API as any other client does.

use super::Page;
use super::built::{CONSOLE_SCRIPT, CONSOLE_STYLE};
use crate::exchange::{Answered, Exchange};

pub(super) static PAGE: Page =
    Page::built(include_str!("../../../../web/console.html"), &CONSOLE_STYLE, &CONSOLE_SCRIPT).may("img-src data: blob:");

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    // Only then is there something to sign out of.
    let keys = if exchange.gateway.needs_credentials() { "required" } else { "none" };
    Ok(PAGE.with(&[("{KEYS}", keys)]))
}
