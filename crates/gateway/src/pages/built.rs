//! `/static/web/…`: the built scripts and styles of the pages.
//!
//! A file's name has its hash, so browsers keep it forever, and a new version is a new file. The build compresses each once. They
//! are public: they are the same for all and hold no data.

use std::sync::OnceLock;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response};
use sha2::{Digest, Sha256};

use crate::exchange::{Answered, Exchange};
use crate::refusal::Refusal;

const ROOT: &str = "/static/web/";
/// Bytes of the hash in a name. The whole hash is in the page.
const IN_NAME: usize = 8;

macro_rules! built {
    ($page:literal, $ending:literal, $kind:literal) => {
        Built {
            page: $page,
            ending: $ending,
            kind: $kind,
            text: include_str!(concat!(env!("OUT_DIR"), "/", $page, ".", $ending)),
            gzip: include_bytes!(concat!(env!("OUT_DIR"), "/", $page, ".", $ending, ".gz")),
            brotli: include_bytes!(concat!(env!("OUT_DIR"), "/", $page, ".", $ending, ".br")),
            hash: OnceLock::new(),
        }
    };
}

pub(super) static CONSOLE_SCRIPT: Built = built!("console", "js", "text/javascript; charset=utf-8");
pub(super) static CONSOLE_STYLE: Built = built!("console", "css", "text/css; charset=utf-8");
pub(super) static DASHBOARD_SCRIPT: Built = built!("dashboard", "js", "text/javascript; charset=utf-8");
pub(super) static DASHBOARD_STYLE: Built = built!("dashboard", "css", "text/css; charset=utf-8");
pub(super) static VIEWER_SCRIPT: Built = built!("viewer", "js", "text/javascript; charset=utf-8");
pub(super) static VIEWER_STYLE: Built = built!("viewer", "css", "text/css; charset=utf-8");

pub(super) static DOCS_SCRIPT: Built = built!("docs", "js", "text/javascript; charset=utf-8");
pub(super) static DOCS_STYLE: Built = built!("docs", "css", "text/css; charset=utf-8");

/// The files that are served.
static FILES: [&Built; 8] = [
    &CONSOLE_SCRIPT,
    &CONSOLE_STYLE,
    &DASHBOARD_SCRIPT,
    &DASHBOARD_STYLE,
    &VIEWER_SCRIPT,
    &VIEWER_STYLE,
    &DOCS_SCRIPT,
    &DOCS_STYLE,
];

/// A script or a style of a page.
pub(super) struct Built {
    page: &'static str,
    ending: &'static str,
    kind: &'static str,
    pub(super) text: &'static str,
    /// Empty if the pages were not built.
    gzip: &'static [u8],
    brotli: &'static [u8],
    hash: OnceLock<[u8; 32]>,
}

impl Built {
    fn hash(&self) -> &[u8; 32] {
        self.hash.get_or_init(|| Sha256::digest(self.text.as_bytes()).into())
    }

    /// Its path from the server's root, without the first slash.
    pub(super) fn path(&self) -> String {
        format!("{}{}", &ROOT[1..], self.name())
    }

    /// The form in which pages and policies name it.
    pub(super) fn integrity(&self) -> String {
        format!("sha256-{}", STANDARD.encode(self.hash()))
    }

    fn name(&self) -> String {
        let hash: String = self.hash()[..IN_NAME].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hash}.{}", self.page, self.ending)
    }

    /// The smallest form that the client accepts, and its name.
    fn encoded(&self, headers: &HeaderMap) -> (&'static [u8], Option<&'static str>) {
        if !self.brotli.is_empty() && accepts(headers, "br") {
            (self.brotli, Some("br"))
        } else if !self.gzip.is_empty() && accepts(headers, "gzip") {
            (self.gzip, Some("gzip"))
        } else {
            (self.text.as_bytes(), None)
        }
    }
}

/// Whether `Accept-Encoding` names an encoding, and does not exclude it with `q=0`.
fn accepts(headers: &HeaderMap, encoding: &str) -> bool {
    let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|one| {
        let mut parts = one.split(';').map(str::trim);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case(encoding))
            && !parts.any(|part| part.strip_prefix("q=").is_some_and(|quality| quality.parse() == Ok(0.0)))
    })
}

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let name = exchange.path.decoded.split_once(ROOT).map_or("", |(_, name)| name);
    let Some(file) = FILES.iter().find(|file| file.name() == name) else {
        return Err(Refusal::not_found("there is no such file; load the page again"));
    };
    let (bytes, encoding) = file.encoded(&exchange.parts.headers);
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    for (header, value) in [
        (CONTENT_TYPE, file.kind),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (VARY, "accept-encoding"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(header, HeaderValue::from_static(value));
    }
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_smallest_form_that_it_accepts() {
        let file = Built {
            page: "p",
            ending: "js",
            kind: "text/javascript",
            text: "text",
            gzip: b"gzip",
            brotli: b"br",
            hash: OnceLock::new(),
        };
        for (accepted, wanted) in [
            (None, None),
            (Some("identity"), None),
            (Some("gzip"), Some("gzip")),
            (Some("gzip, deflate, br;q=0.5"), Some("br")),
            (Some("br;q=0, GZIP"), Some("gzip")),
            (Some("brotli, x-gzip"), None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accepted) = accepted {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            }
            assert_eq!(file.encoded(&headers).1, wanted, "{accepted:?}");
        }
        assert_eq!(Built { gzip: b"", brotli: b"", ..file }.encoded(&HeaderMap::new()).0, b"text");
    }

    #[test]
    fn each_page_is_at_most_150_kilobytes() {
        for page in FILES.chunks(2) {
            let sum: usize = page.iter().map(|file| file.gzip.len()).sum();
            assert!(sum <= 150_000, "{}: {sum}", page[0].path());
        }
    }
}
