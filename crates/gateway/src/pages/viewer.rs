//! `/trajectories` and `/trajectory/{id}`: a page that shows recorded steps. It reads the control API as any client does.
//!
//! Recorded content is hostile. So the page is on the server's own host, where no sandbox code runs, and its script renders the
//! content as text and pictures, never as markup.

use axum::body::Body;
use http::header::LOCATION;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};

use super::Page;
use crate::refusal::Refusal;
use crate::request::require;

pub(super) static PAGE: Page = Page::new(
    include_str!("../../../../web/viewer.html"),
    &[include_str!(concat!(env!("OUT_DIR"), "/viewer.css"))],
    &[include_str!(concat!(env!("OUT_DIR"), "/viewer.js"))],
)
.may("img-src data: blob:");

/// Whether a path is one of the two.
pub(crate) fn is_at(path: &str) -> bool {
    let of_one = path.strip_prefix("/trajectory/").is_some_and(|id| !id.is_empty() && !id.contains('/'));
    of_one || path == "/trajectories" || path == "/trajectory" || path == "/trajectory/"
}

/// The page of all trajectories or of one. Its script reads the trajectory from the address; its requests show if that does not
/// exist.
pub(crate) fn serve(path: &str, parts: &Parts) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    let to = match path {
        "/trajectory" => "trajectories",
        "/trajectory/" => "../trajectories",
        _ => return Ok(PAGE.response()),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(to));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::is_at;

    #[test]
    fn it_has_a_path_for_all_and_one_for_each() {
        for (path, wanted) in [
            ("/trajectories", true),
            ("/trajectory/sb-1", true),
            ("/trajectory", true),
            ("/trajectory/", true),
            ("/trajectory/a/b", false),
            ("/trajectories/x", false),
            ("/trajectoryx", false),
        ] {
            assert_eq!(is_at(path), wanted, "{path}");
        }
    }
}
