//! Invalid documents. Limits that the crate can't enforce itself are left to the calling process; see its own tests.

use std::io::{Cursor, Write};

use arenite_documents::{DocumentError, Format, MAX_UNPACKED_BYTES, Selection, markdown, view};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::samples::{package, pdf, row, word, workbook};

fn read(bytes: &[u8]) -> Result<String, DocumentError> {
    let format = Format::detect(bytes, None, None)?;
    view(bytes, format, &Selection::default())?;
    Ok(markdown(bytes, format, None)?.text)
}

#[test]
fn documents_cut_anywhere_are_errors_and_not_panics() {
    let rows = row(1, &["a", "b"]);
    for (name, whole) in
        [("docx", word("<w:p><w:r><w:t>x</w:t></w:r></w:p>")), ("xlsx", workbook(&[("S", &rows)])), ("pdf", pdf(&["text"]))]
    {
        for length in (0..whole.len()).step_by(37) {
            let bytes = &whole[..length];
            let Ok(format) = Format::detect(bytes, Some(&format!("x.{name}")), None) else { continue };
            // A PDF reader may still find pages in a part of one.
            let _ = markdown(bytes, format, None);
        }
    }
}

#[test]
fn archives_that_unpack_without_end_are_refused() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("[Content_Types].xml", SimpleFileOptions::default()).unwrap();
    zip.start_file("word/document.xml", SimpleFileOptions::default()).unwrap();
    let spaces = vec![b' '; 1 << 20];
    (0..=(MAX_UNPACKED_BYTES >> 20)).for_each(|_| zip.write_all(&spaces).unwrap());
    let bytes = zip.finish().unwrap().into_inner();
    assert!(bytes.len() < 2 << 20);
    assert!(matches!(read(&bytes), Err(DocumentError::TooLarge { .. })));
    let many: Vec<(String, &str)> = (0..10_001).map(|n| (format!("word/{n}"), "")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, c)| (n.as_str(), *c)).collect();
    assert!(matches!(read(&package(&many)), Err(DocumentError::TooLarge { .. })));
}

#[test]
fn nesting_and_entities_are_bounded() {
    let deep = word(&format!("{}{}", "<w:sdt><w:sdtContent>".repeat(5_000), "</w:sdtContent></w:sdt>".repeat(5_000)));
    assert!(matches!(read(&deep), Err(DocumentError::TooLarge { .. })));
    let laughs = package(&[
        ("[Content_Types].xml", "<Types/>"),
        (
            "word/document.xml",
            r#"<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>
            <document><body><p><r><t>x&b;&c;y</t></r></p></body></document>"#,
        ),
    ]);
    assert_eq!(read(&laughs).unwrap(), "xy\n");
}

#[test]
fn a_sheet_of_two_distant_cells_is_small() {
    let rows = format!(r#"{}<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>end</t></is></c></row>"#, row(1, &["begin"]));
    let bytes = workbook(&[("S", &rows)]);
    let text = read(&bytes).unwrap();
    assert_eq!(text, "## S\n\n| begin |  |\n| --- | --- |\n|  | end |\n");
}

#[test]
fn much_text_is_cut_and_said_to_be() {
    let long: String = (1..=60_000).map(|n| row(n, &["0123456789012345678901234567890123456789"])).collect();
    let bytes = workbook(&[("S", &long)]);
    let content = markdown(&bytes, Format::Workbook, None).unwrap();
    assert!(content.truncated && content.text.len() <= arenite_documents::MAX_MARKDOWN_BYTES + 1);
    let content = view(&bytes, Format::Workbook, &Selection::default()).unwrap();
    assert!(content.truncated && content.text.contains("of 60000, 1 columns"), "{}", &content.text[..100]);
}

#[test]
fn what_is_no_document_is_named() {
    for (name, bytes) in [
        ("a.pdf", &b"hello"[..]),
        ("a.docx", b"PK\x03\x04rest"),
        ("a.xlsx", b"\x00\x01"),
        ("a.ipynb", b"[]"),
        ("a.png", b"\x89PNG\r\n\x1a\n"),
    ] {
        let error = Format::detect(bytes, Some(name), None).and_then(|f| markdown(bytes, f, None)).unwrap_err();
        assert!(matches!(error, DocumentError::Malformed { .. }), "{name}: {error}");
        assert!(error.hint().is_some());
    }
}
