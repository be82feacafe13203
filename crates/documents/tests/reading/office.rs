use arenite_documents::{Content, DocumentError, Format, Range, Selection, markdown, view};
use serde_json::json;

use crate::samples::{row, slides, word, workbook};

fn all(bytes: &[u8]) -> String {
    markdown(bytes, Format::detect(bytes, None, None).unwrap(), None).unwrap().text
}

fn part(bytes: &[u8], selection: &Selection) -> Result<Content, DocumentError> {
    view(bytes, Format::detect(bytes, None, None).unwrap(), selection)
}

#[test]
fn text_documents_keep_their_structure() {
    let bytes = word(
        r#"<w:p><w:pPr><w:pStyle w:val="Own"/></w:pPr><w:r><w:t>The</w:t></w:r><w:r><w:t xml:space="preserve"> head</w:t></w:r></w:p>
        <w:p><w:r><w:t xml:space="preserve">plain </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>bold</w:t></w:r><w:r><w:rPr><w:b w:val="0"/><w:i/></w:rPr><w:t xml:space="preserve"> italic</w:t></w:r>
            <w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins><w:r><w:t>, new</w:t></w:r></w:ins>
            <w:hyperlink r:id="r9"><w:r><w:t>link</w:t></w:r></w:hyperlink><w:r><w:footnoteReference w:id="2"/></w:r></w:p>
        <w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>first</w:t></w:r></w:p>
        <w:p><w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>inner</w:t></w:r></w:p>
        <w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>second</w:t></w:r></w:p>
        <w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="2"/></w:tcPr><w:p><w:r><w:t>a|b</w:t></w:r></w:p></w:tc></w:tr>
            <w:tr><w:tc><w:p><w:r><w:t>1</w:t></w:r></w:p><w:p><w:r><w:t>2</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>3</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"#,
    );
    let text = all(&bytes);
    for expected in [
        "## The head\n\n",
        "plain **bold** *italic*, new[link](https://a.example/x?y=%281%29)[^2]\n\n",
        "1. first\n",
        "    - inner\n",
        "2. second\n",
        "| a\\|b |  |\n| --- | --- |\n| 1<br>2 | 3 |\n",
        "[^2]: the note\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    assert!(!text.contains("gone"), "{text}");
    let metadata = part(&bytes, &Selection::default()).unwrap().metadata;
    assert_eq!(
        (&metadata["title"], &metadata["author"], &metadata["tables"]),
        (&json!("A title"), &json!("An author"), &json!(1))
    );
}

const SLIDE: &str = r#"<p:sp><p:nvSpPr><p:nvPr><p:ph type="title"/></p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>Head</a:t></a:r></a:p></p:txBody></p:sp>
    <p:sp><p:nvSpPr><p:nvPr><p:ph idx="1"/></p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>one</a:t></a:r></a:p><a:p><a:pPr lvl="1"/><a:r><a:t>two</a:t></a:r></a:p></p:txBody></p:sp>
    <p:sp><p:nvSpPr><p:nvPr><p:ph type="sldNum"/></p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>77</a:t></a:r></a:p></p:txBody></p:sp>
    <p:grpSp><p:sp><p:nvSpPr><p:nvPr/></p:nvSpPr><p:txBody><a:p><a:r><a:t>free</a:t></a:r><a:br/><a:r><a:t>text</a:t></a:r></a:p></p:txBody></p:sp></p:grpSp>
    <p:graphicFrame><a:graphic><a:graphicData><a:tbl><a:tr><a:tc><a:txBody><a:p><a:r><a:t>x</a:t></a:r></a:p></a:txBody></a:tc></a:tr></a:tbl></a:graphicData></a:graphic></p:graphicFrame>"#;
const PLAIN: &str = r#"<p:sp><p:nvSpPr><p:nvPr/></p:nvSpPr><p:txBody><a:p><a:r><a:t>second</a:t></a:r></a:p></p:txBody></p:sp>"#;

#[test]
fn slides_come_in_the_order_of_the_show() {
    let bytes = slides(&[SLIDE, PLAIN, PLAIN]);
    let text = all(&bytes);
    for expected in [
        "## Slide 1\n\n# Head\n\n- one\n    - two\n",
        "free\ntext\n",
        "| x |\n| --- |\n",
        "Notes: note 1\n\n## Slide 2\n\nsecond",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    assert!(!text.contains("77"), "{text}");
    let slides = |first, last| Selection { slides: Some(Range { first, last }), ..Selection::default() };
    let content = part(&bytes, &slides(2, -1)).unwrap();
    assert!(content.text.starts_with("## Slide 2") && content.text.contains("## Slide 3"), "{}", content.text);
    assert_eq!((&content.metadata["total_slides"], &content.metadata["type"]), (&json!(3), &json!("presentation")));
    assert!(matches!(part(&bytes, &slides(4, 4)), Err(DocumentError::Selection { .. })));
}

#[test]
fn sheets_have_letters_and_numbers() {
    let rows: String = (1..=30).map(|n| row(n, &[&format!("a{n}"), "b"])).collect();
    let typed = r#"<row r="3"><c r="B3"><v>0.30000000000000004</v></c><c r="D3" s="1"><v>45943</v></c><c r="E3" t="b"><v>1</v></c></row>"#;
    let bytes = workbook(&[("First", &rows), ("Second &amp; last", typed)]);
    assert_eq!(Format::detect(&bytes, None, None).unwrap(), Format::Workbook);
    let text = all(&bytes);
    assert!(text.contains("## First\n\n| a1 | b |\n| --- | --- |\n| a2 | b |\n"), "{text}");
    assert!(text.contains("## Second & last\n\n| 0.3 | 2025-10-13 | true |\n"), "{text}");
    let rows = |sheet: Option<&str>, first, last| Selection {
        sheet: sheet.map(str::to_owned),
        rows: Some(Range { first, last }),
        ..Selection::default()
    };
    let content = part(&bytes, &rows(Some("first"), 29, -1)).unwrap();
    assert_eq!(
        content.text,
        "## Sheet: First (rows 29 to 30 of 30, 2 columns)\n\n|  | A | B |\n| --- | --- | --- |\n| 29 | a29 | b |\n| 30 | a30 | b |\n"
    );
    assert_eq!(content.metadata["sheet_names"], json!(["First", "Second & last"]));
    let both = part(&bytes, &rows(None, 2, 3)).unwrap().text;
    assert!(both.contains("| 2 | a2 | b |") && both.contains("|  | B | D | E |") && !both.contains("a4"), "{both}");
    for wrong in [rows(Some("First"), 31, 31), rows(Some("Third"), 1, 2)] {
        let error = part(&bytes, &wrong).unwrap_err();
        assert!(matches!(&error, DocumentError::Selection { message } if message.contains("there are")), "{error}");
    }
}
