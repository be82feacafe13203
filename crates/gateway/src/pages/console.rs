//! `/`: the console for the whole installation. It uses the control API as any other client does.

use super::Page;
use crate::exchange::{Answered, Exchange};

pub(super) static PAGE: Page = Page::new(
    include_str!("../../../../web/console.html"),
    &[include_str!(concat!(env!("OUT_DIR"), "/console.css"))],
    &[include_str!(concat!(env!("OUT_DIR"), "/console.js"))],
)
.may("img-src data: blob:");

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    // Only then is there something to sign out of.
    let keys = if exchange.gateway.needs_credentials() { "required" } else { "none" };
    Ok(PAGE.with(&[("{KEYS}", keys)]))
}
