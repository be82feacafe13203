//! `/static/sandbox/…`: the terminal's files, under AIO's names. They are public and need no key.

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response};

use crate::exchange::{Answered, Exchange};
use crate::refusal::Refusal;

pub(super) const XTERM: &str = include_str!("../../assets/xterm@5.3.0/lib/xterm.js");
pub(super) const XTERM_STYLE: &str = include_str!("../../assets/xterm@5.3.0/css/xterm.css");
pub(super) const FIT: &str = include_str!("../../assets/xterm-addon-fit@0.8.0/lib/xterm-addon-fit.js");

const ROOT: &str = "/static/sandbox/";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: [(&str, &str, &str); 5] = [
    ("xterm@5.3.0/lib/xterm.js", SCRIPT, XTERM),
    ("xterm@5.3.0/css/xterm.css", "text/css; charset=utf-8", XTERM_STYLE),
    ("xterm@5.3.0/LICENSE", "text/plain; charset=utf-8", include_str!("../../assets/xterm@5.3.0/LICENSE")),
    ("xterm-addon-fit@0.8.0/lib/xterm-addon-fit.js", SCRIPT, FIT),
    ("xterm-addon-fit@0.8.0/LICENSE", "text/plain; charset=utf-8", include_str!("../../assets/xterm-addon-fit@0.8.0/LICENSE")),
];

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    // Below a sandbox's path, too.
    let name = exchange.path.decoded.split_once(ROOT).map_or("", |(_, name)| name);
    let Some((_, kind, text)) = FILES.iter().find(|(file, ..)| *file == name) else {
        return Err(Refusal::not_found("there is no such file"));
    };
    let mut response = Response::new(Body::from(*text));
    for (header, value) in
        [(CONTENT_TYPE, *kind), (CACHE_CONTROL, "public, max-age=31536000, immutable"), (X_CONTENT_TYPE_OPTIONS, "nosniff")]
    {
        response.headers_mut().insert(header, HeaderValue::from_static(value));
    }
    Ok(response)
}
