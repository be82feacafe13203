//! HTML pages.

use htmd::element_handler::{HandlerResult, Handlers};
use htmd::options::{BrStyle, BulletListMarker, Options};
use htmd::{Element, HtmlToMarkdown};
use serde_json::Value;

use crate::output::Output;
use crate::{DocumentError, MAX_PROPERTY_CHARS, Metadata, text};

/// Number of bytes from the start in which pages declare their charset, as HTML specifies.
const PRESCAN_BYTES: usize = 1 << 10;
/// Elements without visible text.
const SKIPPED: [&str; 9] = ["head", "script", "style", "noscript", "template", "svg", "iframe", "object", "canvas"];

/// Decodes a page by the given charset, else by the one that it declares.
pub(crate) fn decode(bytes: &[u8], charset: Option<&str>) -> Result<String, DocumentError> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCAN_BYTES)]).to_ascii_lowercase();
    let own = head.split_once("charset=").map(|(_, rest)| {
        rest.trim_start_matches(['"', '\'', ' ']).split(['"', '\'', ' ', ';', '>', '/']).next().unwrap_or_default().to_owned()
    });
    text::decode(bytes, charset.or(own.as_deref()))
}

/// A page as Markdown.
pub(crate) fn read(html: &str, limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let options = Options {
        br_style: BrStyle::Backslash,
        bullet_list_marker: BulletListMarker::Dash,
        ul_bullet_spacing: 1,
        ol_number_spacing: 1,
        ..Options::default()
    };
    let converter =
        HtmlToMarkdown::builder().options(options).skip_tags(SKIPPED.to_vec()).add_handler(vec!["img"], picture).build();
    let markdown = converter.convert(html).map_err(|e| DocumentError::malformed("HTML page", e))?;
    let mut out = Output::new(limit);
    out.push(&markdown);
    let mut metadata = Metadata::new();
    if let Some(title) = title(html) {
        metadata.insert("title".to_owned(), Value::String(title));
    }
    Ok((out, metadata))
}

/// Pictures by their address. An embedded one is only named: its bytes are no text.
fn picture(_: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let attribute = |name: &str| element.attrs.iter().find(|a| &*a.name.local == name).map(|a| a.value.to_string());
    let alt = attribute("alt").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace(['[', ']'], "");
    let source = attribute("src").filter(|s| !s.trim_start().starts_with("data:")).unwrap_or_default();
    if alt.is_empty() && source.is_empty() {
        return Some("".into());
    }
    let source = source.trim().replace(' ', "%20").replace('(', "%28").replace(')', "%29");
    Some(format!("![{alt}]({source})").into())
}

fn title(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find("</title")?;
    // Converted as text of a page, so that its entities are resolved; its own tags would not be tags.
    let text = htmd::convert(&html[start..end].replace('<', "&lt;")).ok()?;
    let title: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_PROPERTY_CHARS).collect();
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lose_what_nobody_reads() {
        let html = "<html><head><title> A &amp; B </title><style>x{}</style></head><body><h1>Head</h1><script>alert(1)</script>\
            <p>one <b>two</b> <a href='/x'>three</a></p><ul><li>a</li><li>b</li></ul><img alt='p' src='data:image/png;base64,AAAA'>\
            <img src='/i.png' alt='q'><table><tr><th>h</th></tr><tr><td>c</td></tr></table></body></html>";
        let (out, metadata) = read(html, 10_000).unwrap();
        let text = out.finish().0;
        for part in ["# Head", "one **two** [three](/x)", "- a\n- b", "![p]()", "![q](/i.png)", "| h |"] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("alert") && !text.contains("AAAA") && !text.contains("x{}"), "{text}");
        assert_eq!(metadata["title"], "A & B");
    }

    #[test]
    fn charsets_come_from_label_or_page() {
        assert_eq!(decode(b"<meta charset=\"iso-8859-2\"><p>\xb3", None).unwrap().chars().last(), Some('ł'));
        assert_eq!(decode(b"<meta charset=iso-8859-2><p>\xb3", Some("windows-1252")).unwrap().chars().last(), Some('³'));
    }
}
