//! `/trajectories` and `/trajectory/{id}`: a page that shows recorded steps. It reads the control API as any client does.
//!
//! Recorded content is hostile. So the page is on the server's own host, where no sandbox code runs, and its script renders the
//! content as text and pictures, never as markup.

use axum::body::Body;
use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode};

use super::Page;
use super::built::{VIEWER_SCRIPT, VIEWER_STYLE};
use crate::exchange::{Answered, Exchange};

pub(super) static PAGE: Page =
    Page::built(include_str!("../../../../web/viewer.html"), &VIEWER_STYLE, &VIEWER_SCRIPT).may("img-src data: blob:");

/// The page of all trajectories or of one. Its script reads the trajectory from the address; its requests show if that does not
/// exist.
pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    // Its files are at the server's root, which may be below a proxy's path.
    let base = if exchange.path.decoded.ends_with("/trajectories") { "" } else { "../" };
    let keys = if exchange.gateway.needs_credentials() { "required" } else { "none" };
    Ok(PAGE.with(&[("{BASE}", base), ("{KEYS}", keys)]))
}

/// `/trajectory` and `/trajectory/`: redirects to the page of all.
pub(crate) async fn lead_to_list(exchange: &mut Exchange) -> Answered {
    let to = if exchange.path.decoded.ends_with('/') { "../trajectories" } else { "trajectories" };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(to));
    Ok(response)
}
