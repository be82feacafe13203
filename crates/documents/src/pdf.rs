//! PDF: the text of its pages; text in pictures is not read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Dictionary, Document, Error, Object, PlainTextOutput, output_doc_page};
use serde_json::Value;

use crate::output::Output;
use crate::view::{Range, Span};
use crate::{DocumentError, MAX_PROPERTY_CHARS, Metadata};

/// Maximum number of pages that are counted.
const MAX_PAGES: usize = 100_000;

/// The text of a range of pages, each under a separate heading if requested.
pub(crate) fn read(
    bytes: &[u8],
    range: Option<Range>,
    headings: bool,
    limit: usize,
) -> Result<(Output, Metadata), DocumentError> {
    let malformed = |e| DocumentError::malformed("PDF", e);
    let mut document = Document::load_mem(bytes).map_err(|e| load_error(&e))?;
    if document.is_encrypted() {
        // Many are encrypted only to forbid printing: those open with the empty password.
        document.decrypt("").map_err(|_| DocumentError::Encrypted)?;
    }
    let total = document.page_iter().take(MAX_PAGES + 1).count();
    if total > MAX_PAGES {
        return Err(DocumentError::too_large(format!("a PDF of more than {MAX_PAGES} pages")));
    }
    if total == 0 {
        return Err(malformed("it has no pages".to_owned()));
    }
    let span = Span::new(range, total, "page_range", "pages")?;
    let mut out = Output::new(limit);
    let mut unreadable = 0;
    for number in span.numbers() {
        let mut text = String::new();
        // The reader panics on unexpected input. One bad page must not cost the others.
        let page = u32::try_from(number).unwrap_or(u32::MAX);
        let read = catch_unwind(AssertUnwindSafe(|| output_doc_page(&document, &mut PlainTextOutput::new(&mut text), page)));
        let failed = !matches!(read, Ok(Ok(())));
        unreadable += usize::from(failed);
        if headings {
            out.block(&format!("## Page {number}\n"));
        }
        out.block(&tidy(&text));
        if failed {
            out.block(&format!("[page {number} is not readable{}]", if text.trim().is_empty() { "" } else { " to its end" }));
        }
        if out.is_full() {
            break;
        }
    }
    if unreadable > 0 && unreadable == span.numbers().count() {
        return Err(malformed("none of its pages can be read".to_owned()));
    }
    let mut metadata = information(&document);
    metadata.insert("total_pages".to_owned(), Value::from(total));
    Ok((out, metadata))
}

fn load_error(error: &Error) -> DocumentError {
    match error {
        Error::Decryption(_) | Error::InvalidPassword => DocumentError::Encrypted,
        other => DocumentError::malformed("PDF", other),
    }
}

/// Trims line ends, and removes repeated empty lines.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.lines().map(str::trim_end) {
        empty = if line.is_empty() { empty + 1 } else { 0 };
        if empty < 2 {
            out.push_str(line);
            out.push('\n');
        }
    }
    out.trim().to_owned()
}

fn information(document: &Document) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("version".to_owned(), Value::String(document.version.chars().take(16).collect()));
    let entry = document.trailer.get(b"Info").ok();
    let info: Option<&Dictionary> = entry.and_then(|entry| match entry {
        Object::Reference(id) => document.get_dictionary(*id).ok(),
        Object::Dictionary(dictionary) => Some(dictionary),
        _ => None,
    });
    let Some(info) = info else { return metadata };
    for (key, name) in [
        (&b"Title"[..], "title"),
        (b"Author", "author"),
        (b"Subject", "subject"),
        (b"Keywords", "keywords"),
        (b"Creator", "creator"),
        (b"Producer", "producer"),
        (b"CreationDate", "created"),
        (b"ModDate", "modified"),
    ] {
        let value = info.get(key).ok().and_then(|value| match value {
            Object::Reference(id) => document.get_object(*id).ok(),
            value => Some(value),
        });
        let text = value.and_then(|value| value.as_str().ok()).map(string).unwrap_or_default();
        let text: String = text.trim().chars().filter(|c| !c.is_control()).take(MAX_PROPERTY_CHARS).collect();
        if !text.is_empty() {
            let text = if name == "created" || name == "modified" { date(&text).unwrap_or(text) } else { text };
            metadata.insert(name.to_owned(), Value::String(text));
        }
    }
    metadata
}

/// A PDF string: UTF-16 or UTF-8 with a byte order mark, else Latin letters.
fn string(bytes: &[u8]) -> String {
    match encoding_rs::Encoding::for_bom(bytes) {
        Some((encoding, mark)) => encoding.decode_without_bom_handling(&bytes[mark..]).0.into_owned(),
        None => encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned(),
    }
}

/// `D:20260131235959+01'00'` as `2026-01-31T23:59:59+01:00`.
fn date(text: &str) -> Option<String> {
    let digits = text.strip_prefix("D:").unwrap_or(text);
    let part = |from: usize, to: usize| digits.get(from..to).filter(|p| p.bytes().all(|b| b.is_ascii_digit()));
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let time = match (part(8, 10), part(10, 12), part(12, 14)) {
        (Some(hour), Some(minute), Some(second)) => format!("T{hour}:{minute}:{second}"),
        _ => String::new(),
    };
    let zone = digits.get(14..).unwrap_or_default();
    let zone = match zone.get(..1) {
        Some("Z") => "Z".to_owned(),
        Some(sign @ ("+" | "-")) => {
            let numbers: String = zone.chars().filter(char::is_ascii_digit).chain("0000".chars()).take(4).collect();
            format!("{sign}{}:{}", &numbers[..2], &numbers[2..])
        }
        _ => String::new(),
    };
    Some(format!("{year}-{month}-{day}{time}{}", if time.is_empty() { "" } else { &zone }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_rest_of_the_world() {
        for (text, expected) in [
            ("D:20260131235959+01'00'", Some("2026-01-31T23:59:59+01:00")),
            ("D:20260131235959Z", Some("2026-01-31T23:59:59Z")),
            ("20260131", Some("2026-01-31")),
            ("D:2026", None),
            ("D:é0260131", None),
            ("", None),
        ] {
            assert_eq!(date(text).as_deref(), expected, "{text}");
        }
        assert_eq!(string(b"\xfe\xff\x00a\x00\xe9"), "aé");
        assert_eq!(tidy("\n a  \n\n\n\nb\n"), "a\n\nb");
    }
}
