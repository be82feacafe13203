use arenite_documents::{DocumentError, Format, Range, Selection, markdown, view};
use serde_json::json;

use crate::samples::pdf;

#[test]
fn pages_are_read_one_by_one() {
    let bytes = pdf(&["the first page", "the second page", "the third page"]);
    assert_eq!(Format::detect(&bytes, None, None).unwrap(), Format::Pdf);
    let text = markdown(&bytes, Format::Pdf, None).unwrap().text;
    assert_eq!(text, "the first page\n\nthe second page\n\nthe third page\n");
    let pages = |first, last| Selection { pages: Some(Range { first, last }), ..Selection::default() };
    let content = view(&bytes, Format::Pdf, &pages(2, 3)).unwrap();
    assert_eq!(content.text, "## Page 2\n\nthe second page\n\n## Page 3\n\nthe third page\n");
    let metadata = content.metadata;
    assert_eq!(
        (&metadata["total_pages"], &metadata["title"], &metadata["author"]),
        (&json!(3), &json!("A title"), &json!("An author"))
    );
    assert_eq!(metadata["created"], json!("2026-01-31T23:59:59Z"));
    for (first, last) in [(0, 1), (4, 5), (2, 1)] {
        assert!(matches!(view(&bytes, Format::Pdf, &pages(first, last)), Err(DocumentError::Selection { .. })));
    }
}

#[test]
fn a_page_that_breaks_its_reader_costs_only_itself() {
    let whole = String::from_utf8(pdf(&["the first page", "the second page"])).unwrap();
    // The page's box has an invalid number.
    let broken = whole.replacen("/Type /Page /Parent 2 0 R /Contents 13", "/Type /Page /MediaBox [0] /Contents 13", 1);
    std::panic::set_hook(Box::new(|_| ()));
    let text = markdown(broken.as_bytes(), Format::Pdf, None).unwrap().text;
    assert!(text.contains("the first page") && text.contains("[page 2 is not readable]"), "{text}");
}
