//! Pages for people, and the document that describes the API. Everything is embedded in the program: nothing is loaded from
//! elsewhere.

pub(crate) mod assets;
pub(crate) mod built;
pub(crate) mod console;
pub(crate) mod dashboard;
pub(crate) mod docs;
pub(crate) mod errors;
pub(crate) mod manual;
pub(crate) mod openapi;
pub(crate) mod preview;
pub(crate) mod sign_in;
pub(crate) mod terminal;
pub(crate) mod viewer;
pub(crate) mod vnc;

use std::sync::OnceLock;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Response};
use sha2::{Digest, Sha256};

use self::built::Built;

/// Runs in built pages before the first paint.
const BOOT: &str = include_str!("../../../../web/src/boot.js");

/// A page, mostly in one file. Its policy names its scripts and its style by their hashes, so that nothing else can run in it,
/// whatever data it shows.
struct Page {
    html: &'static str,
    css: &'static [&'static str],
    script: &'static [&'static str],
    /// Files that it loads from this server: its style and its main script.
    built: Option<(&'static Built, &'static Built)>,
    /// Its script sets styles itself.
    styled_by_script: bool,
    /// Pages of the same origin may frame it, as the dashboard does.
    framed: bool,
    /// Directives of its policy for pictures and frames.
    may: &'static str,
    made: OnceLock<(String, HeaderValue)>,
}

impl Page {
    const fn new(html: &'static str, css: &'static [&'static str], script: &'static [&'static str]) -> Self {
        Self {
            html,
            css,
            script,
            built: None,
            styled_by_script: false,
            framed: false,
            may: "img-src data:",
            made: OnceLock::new(),
        }
    }

    /// A page that loads its style and its script as files, which browsers keep.
    const fn built(html: &'static str, style: &'static Built, script: &'static Built) -> Self {
        let mut page = Self::new(html, &[], &[BOOT]);
        page.built = Some((style, script));
        page
    }

    const fn styled_by_script(html: &'static str, css: &'static [&'static str], script: &'static [&'static str]) -> Self {
        let mut page = Self::new(html, css, script);
        page.styled_by_script = true;
        page
    }

    const fn framed(mut self) -> Self {
        self.framed = true;
        self
    }

    const fn may(mut self, directives: &'static str) -> Self {
        self.may = directives;
        self
    }

    fn response(&'static self) -> Response<Body> {
        self.with(&[])
    }

    /// The page with constants inserted in its markup: names and addresses that need no escaping.
    fn with(&'static self, words: &[(&str, &str)]) -> Response<Body> {
        let (text, policy) = self.made.get_or_init(|| self.make());
        let body = match words {
            [] => Body::from(text.as_str()),
            words => Body::from(words.iter().fold(text.clone(), |text, (mark, word)| text.replace(mark, word))),
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        let fixed: [(HeaderName, &'static str); 5] = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-cache"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, if self.framed { "SAMEORIGIN" } else { "DENY" }),
            (REFERRER_POLICY, "no-referrer"),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
        response
    }

    fn make(&self) -> (String, HeaderValue) {
        let (css, script) = (self.css.join("\n"), self.script.join("\n"));
        let mut text = self.html.replace("/*STYLE*/", &css).replace("/*SCRIPT*/", &script);
        let mut style = if self.styled_by_script { "'unsafe-inline'".to_owned() } else { format!("'sha256-{}'", hash(&css)) };
        let mut scripts = format!("'sha256-{}'", hash(&script));
        if let Some((built_style, built_script)) = self.built {
            for (mark, word) in [
                ("{STYLE}", built_style.path()),
                ("{STYLE_HASH}", built_style.integrity()),
                ("{SCRIPT}", built_script.path()),
                ("{SCRIPT_HASH}", built_script.integrity()),
            ] {
                text = text.replace(mark, &word);
            }
            // A script file has to have the hash. Policies have no such thing for styles, which run nothing.
            scripts.push_str(&format!(" '{}'", built_script.integrity()));
            "'self'".clone_into(&mut style);
        }
        let policy = format!(
            "default-src 'none'; script-src {scripts}; style-src {style}; connect-src 'self'; {}; \
             base-uri 'none'; form-action 'none'; frame-ancestors {}; require-trusted-types-for 'script'",
            self.may,
            if self.framed { "'self'" } else { "'none'" },
        );
        // Base64 and constants: always a valid header value.
        let policy = HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
        (text, policy)
    }
}

/// The form in which policies name a script or a style.
fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_allows_its_own_script_and_style_and_nothing_else() {
        for page in [&errors::PAGE, &sign_in::FORM, &sign_in::ELSEWHERE] {
            let response = page.response();
            let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
            let text = &page.made.get().unwrap().0;
            for (open, close, directive) in [("<script", "</script>", "script-src"), ("<style", "</style>", "style-src")] {
                let parts: Vec<&str> = text.split(open).collect();
                assert_eq!(parts.len(), 2, "one {open}");
                let inside = parts[1].split_once('>').unwrap().1.split_once(close).unwrap().0;
                let hash = STANDARD.encode(Sha256::digest(inside.as_bytes()));
                assert!(policy.contains(&format!("{directive} 'sha256-{hash}'")), "{open}");
            }
            // What the policy would block, or what would let data become markup.
            for bad in [
                " style=\"",
                " onclick",
                " onload",
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "https://",
                "src=",
            ] {
                assert!(!text.contains(bad), "{bad}");
            }
        }
    }

    #[test]
    fn a_built_page_loads_its_own_files_and_nothing_else() {
        for (page, style, script) in [
            (&console::PAGE, &built::CONSOLE_STYLE, &built::CONSOLE_SCRIPT),
            (&dashboard::PAGE, &built::DASHBOARD_STYLE, &built::DASHBOARD_SCRIPT),
            (&viewer::PAGE, &built::VIEWER_STYLE, &built::VIEWER_SCRIPT),
            (&docs::PAGE, &built::DOCS_STYLE, &built::DOCS_SCRIPT),
        ] {
            let response = page.response();
            let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
            let scripts = format!("script-src 'sha256-{}' '{}';", hash(BOOT), script.integrity());
            assert!(policy.contains(&scripts) && policy.contains("style-src 'self';"), "{policy}");
            let text = &page.made.get().unwrap().0;
            assert!(text.contains(&format!("<script>{BOOT}</script>")));
            for file in [style, script] {
                assert!(text.contains(&format!("{}\" integrity=\"{}\"", file.path(), file.integrity())), "{text}");
            }
            assert_eq!((text.matches("<script").count(), text.matches("<link rel=\"stylesheet\"").count()), (2, 1));
            for bad in [" style=\"", " onclick", " onload", "https://", "src=\"/"] {
                assert!(!text.contains(bad), "{bad}");
            }
        }
    }

    #[test]
    fn words_are_inserted_in_markup_alone() {
        // Otherwise the script would not match the hash in the policy.
        let marks = [
            (&dashboard::PAGE, "{NAME}"),
            (&dashboard::PAGE, "{PLACE}"),
            (&dashboard::PAGE, "{CONSOLE}"),
            (&console::PAGE, "{KEYS}"),
            (&viewer::PAGE, "{KEYS}"),
            (&viewer::PAGE, "{BASE}"),
            (&docs::PAGE, "{KEYS}"),
            (&docs::PAGE, "{BASE}"),
            (&docs::PAGE, "{DIALECT}"),
            (&docs::PAGE, "{DOCUMENT}"),
            (&docs::PAGE, "{SANDBOX}"),
            (&docs::PAGE, "{PLACE}"),
            (&docs::PAGE, "{CONSOLE}"),
        ];
        for (page, mark) in marks {
            assert!(page.html.contains(mark));
            for part in page.script.iter().chain(page.css) {
                assert!(!part.contains(mark), "{mark}");
            }
        }
    }

    #[test]
    fn the_desktop_runs_its_own_script_alone() {
        let response = vnc::PAGE.response();
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        let text = &vnc::PAGE.made.get().unwrap().0;
        let parts: Vec<&str> = text.split("<script type=\"module\">").collect();
        assert_eq!(parts.len(), 2);
        let inside = parts[1].split_once("</script>").unwrap().0;
        assert!(policy.contains(&format!("script-src 'sha256-{}';", hash(inside))), "{policy}");
        assert!(text.trim_end().ends_with("</script>\n</html>"));
        for bad in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!include_str!("vnc.js").contains(bad), "{bad}");
        }
    }

    #[test]
    fn the_terminal_runs_its_own_script_alone() {
        let response = terminal::PAGE.response();
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        let text = &terminal::PAGE.made.get().unwrap().0;
        let parts: Vec<&str> = text.split("<script>").collect();
        assert_eq!(parts.len(), 2);
        let inside = parts[1].split_once("</script>").unwrap().0;
        assert!(policy.contains(&format!("script-src 'sha256-{}';", hash(inside))), "{policy}");
        assert!(text.trim_end().ends_with("</script>\n</html>"));
        for bad in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "document.title = frame", "eval("] {
            assert!(!include_str!("terminal.js").contains(bad), "{bad}");
        }
    }
}
