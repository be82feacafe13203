//! The page that a person sees instead of a preview, or of another page, that can't be shown.

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response};

use crate::refusal::Refusal;

const STYLE: &str = include_str!("message.css");

/// A page for browsers; the refusal for all others.
pub(crate) fn failed(port: u16, is_navigation: bool, refusal: Refusal) -> Result<Response<Body>, Refusal> {
    if !is_navigation {
        return Err(refusal);
    }
    page(&format!("Port {port}"), &refusal, "<p>Load this page again when it runs.</p>\n")
}

/// A page with the text of a refusal.
pub(crate) fn message(title: &str, refusal: &Refusal) -> Result<Response<Body>, Refusal> {
    page(title, refusal, "")
}

/// `last`: markup.
fn page(title: &str, refusal: &Refusal, last: &str) -> Result<Response<Body>, Refusal> {
    let hint = refusal.hint.as_deref().map_or_else(String::new, |hint| format!("<p class=\"quiet\">{}</p>", escaped(hint)));
    let title = escaped(title);
    let text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n<main>\n<h1>{title}</h1>\n<p>{}</p>\n{hint}\n\
         {last}</main>\n</html>\n",
        escaped(&refusal.message)
    );
    let mut answer = Response::new(Body::from(text));
    *answer.status_mut() = refusal.status;
    let policy = format!("default-src 'none'; img-src data:; style-src 'sha256-{}'; frame-ancestors 'none'", super::hash(STYLE));
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Base64 and constants: always a valid header value.
    let policy = HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    Ok(refusal.finish(answer))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
