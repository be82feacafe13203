//! The page that a person sees when a program is not available.

use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode};

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: light-dark(#faf7f2, #1b1815); --panel: light-dark(#ffffff, #24201c);
  --line: light-dark(#e4dccf, #3a342d); --text: light-dark(#2b2520, #ece5db); --quiet: light-dark(#74685a, #a89b8a);
  font: 16px/1.5 system-ui, \"Segoe UI\", \"Noto Sans\", sans-serif; }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--ground); color: var(--text); }
main { width: min(36rem, 100vw - 2rem); background: var(--panel); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.5rem; margin: 1rem; }
h1 { font-size: 1.3rem; margin: 0 0 .8rem; }
p { margin: .6rem 0 0; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
pre { font: .85rem/1.45 ui-monospace, \"SF Mono\", \"DejaVu Sans Mono\", Menlo, monospace; background: var(--ground);
  border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; margin: .8rem 0 0; max-height: 50vh;
  overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; }";
/// Loads nothing and runs no scripts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";

/// Whether the client is a browser that navigates to a page.
pub(super) fn is_wanted(parts: &Parts) -> bool {
    let mut accepted = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    parts.method == Method::GET && accepted.any(|value| value.contains("text/html"))
}

/// The content of a page, as plain text.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) status: StatusCode,
    pub(super) title: &'a str,
    pub(super) text: &'a str,
    pub(super) hint: Option<&'a str>,
    /// Shown unchanged: output of a program, or commands for a terminal.
    pub(super) lines: &'a str,
}

impl Message<'_> {
    pub(super) fn page(&self) -> Response<Body> {
        let title = escaped(self.title);
        let lines = if self.lines.is_empty() { String::new() } else { format!("<pre>{}</pre>\n", escaped(self.lines)) };
        let hint = self.hint.map_or_else(String::new, |hint| format!("<p class=\"quiet\">{}</p>\n", escaped(hint)));
        let text = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n<main>\n<h1>{title}</h1>\n<p>{}</p>\n{lines}{hint}\
             </main>\n</html>\n",
            escaped(self.text)
        );
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = self.status;
        for (name, value) in [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-store"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

/// Escapes text for HTML. Removes terminal colours and control characters except line ends and tabs.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{1b}' if letters.next_if_eq(&'[').is_some() => {
                // Parameters, and the letter that ends them.
                while letters.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                letters.next();
            }
            '\n' | '\t' => out.push(letter),
            letter if letter.is_control() => {}
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn text_is_no_markup_and_has_no_colours() {
        for (given, wanted) in [
            ("<b>\"&amp;\"</b>", "&lt;b&gt;&quot;&amp;amp;&quot;&lt;/b&gt;"),
            ("\u{1b}[1;31mred\u{1b}[0m\r\nnext\tcolumn\u{7}", "red\nnext\tcolumn"),
            ("\u{1b}", ""),
            ("\u{1b}[31", ""),
            ("\u{1b}]0;title", "]0;title"),
        ] {
            assert_eq!(escaped(given), wanted, "{given:?}");
        }
    }
}
