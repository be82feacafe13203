//! Builders of documents.

use std::io::{Cursor, Write};

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// An archive of named parts.
pub(crate) fn package(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in parts {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

const PROPERTIES: &str = r#"<cp:coreProperties xmlns:dc="d" xmlns:cp="c"><dc:title> A title </dc:title><dc:creator>An author</dc:creator></cp:coreProperties>"#;

fn relationships(list: &[(&str, &str, &str)]) -> String {
    let items: String = list
        .iter()
        .map(|(id, kind, target)| {
            let mode = if target.contains("://") { r#" TargetMode="External""# } else { "" };
            format!(r#"<Relationship Id="{id}" Type="http://x/relationships/{kind}" Target="{target}"{mode}/>"#)
        })
        .collect();
    format!(r#"<Relationships xmlns="r">{items}</Relationships>"#)
}

/// A text document with this body.
pub(crate) fn word(body: &str) -> Vec<u8> {
    let document = format!(r#"<w:document xmlns:w="w" xmlns:r="r"><w:body>{body}</w:body></w:document>"#);
    let styles = r#"<w:styles xmlns:w="w"><w:style w:styleId="H2"><w:name w:val="heading 2"/></w:style>
        <w:style w:styleId="Own"><w:name w:val="Own"/><w:basedOn w:val="H2"/></w:style></w:styles>"#;
    let numbering = r#"<w:numbering xmlns:w="w"><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/></w:lvl>
        <w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/></w:lvl></w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>"#;
    let notes = r#"<w:footnotes xmlns:w="w"><w:footnote w:type="separator" w:id="0"/><w:footnote w:id="2"><w:p><w:r><w:t>the note</w:t></w:r></w:p></w:footnote></w:footnotes>"#;
    package(&[
        ("[Content_Types].xml", "<Types/>"),
        ("_rels/.rels", &relationships(&[("r1", "officeDocument", "word/document.xml")])),
        ("word/_rels/document.xml.rels", &relationships(&[("r9", "hyperlink", "https://a.example/x?y=(1)")])),
        ("word/document.xml", &document),
        ("word/styles.xml", styles),
        ("word/numbering.xml", numbering),
        ("word/footnotes.xml", notes),
        ("docProps/core.xml", PROPERTIES),
    ])
}

/// A presentation; each text is the content of a slide's tree of shapes.
pub(crate) fn slides(trees: &[&str]) -> Vec<u8> {
    let ids: String = (1..=trees.len()).map(|n| format!(r#"<p:sldId id="{n}" r:id="s{n}"/>"#)).collect();
    let presentation = format!(r#"<p:presentation xmlns:p="p" xmlns:r="r"><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"#);
    let mut parts = vec![
        ("[Content_Types].xml".to_owned(), "<Types/>".to_owned()),
        ("_rels/.rels".to_owned(), relationships(&[("r1", "officeDocument", "/ppt/presentation.xml")])),
        ("ppt/presentation.xml".to_owned(), presentation),
        ("docProps/core.xml".to_owned(), PROPERTIES.to_owned()),
    ];
    let mut targets = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        // Parts are not named in the order of the slides.
        let (number, part) = (at + 1, trees.len() - at);
        targets.push((format!("s{number}"), format!("slides/slide{part}.xml")));
        let slide = format!(r#"<p:sld xmlns:p="p" xmlns:a="a"><p:cSld><p:spTree>{tree}</p:spTree></p:cSld></p:sld>"#);
        parts.push((format!("ppt/slides/slide{part}.xml"), slide));
        let notes = format!(
            r#"<p:notes><p:cSld><p:spTree><p:sp><p:nvSpPr><p:nvPr><p:ph type="body"/></p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>note {number}</a:t></a:r></a:p></p:txBody></p:sp></p:spTree></p:cSld></p:notes>"#
        );
        parts.push((format!("ppt/notesSlides/n{number}.xml"), notes));
        parts.push((
            format!("ppt/slides/_rels/slide{part}.xml.rels"),
            relationships(&[("n", "notesSlide", &format!("../notesSlides/n{number}.xml"))]),
        ));
    }
    let targets: Vec<(&str, &str, &str)> = targets.iter().map(|(id, target)| (id.as_str(), "slide", target.as_str())).collect();
    parts.push(("ppt/_rels/presentation.xml.rels".to_owned(), relationships(&targets)));
    package(&parts.iter().map(|(n, c)| (n.as_str(), c.as_str())).collect::<Vec<_>>())
}

/// A spreadsheet; each sheet is a name and its rows' XML.
pub(crate) fn workbook(sheets: &[(&str, &str)]) -> Vec<u8> {
    let listed: String = sheets
        .iter()
        .enumerate()
        .map(|(at, (name, _))| format!(r#"<sheet name="{name}" sheetId="{0}" r:id="w{0}"/>"#, at + 1))
        .collect();
    let workbook = format!(
        r#"<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>{listed}</sheets></workbook>"#
    );
    let mut targets = Vec::new();
    let mut parts = vec![
        ("[Content_Types].xml".to_owned(), "<Types/>".to_owned()),
        ("_rels/.rels".to_owned(), relationships(&[("r1", "officeDocument", "xl/workbook.xml")])),
        ("xl/workbook.xml".to_owned(), workbook),
        (
            "xl/styles.xml".to_owned(),
            r#"<styleSheet><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>"#.to_owned(),
        ),
        ("docProps/core.xml".to_owned(), PROPERTIES.to_owned()),
    ];
    for (at, (_, rows)) in sheets.iter().enumerate() {
        let number = at + 1;
        targets.push((format!("w{number}"), format!("worksheets/sheet{number}.xml")));
        parts.push((
            format!("xl/worksheets/sheet{number}.xml"),
            format!(r#"<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{rows}</sheetData></worksheet>"#),
        ));
    }
    let targets: Vec<(&str, &str, &str)> =
        targets.iter().map(|(id, target)| (id.as_str(), "worksheet", target.as_str())).collect();
    parts.push(("xl/_rels/workbook.xml.rels".to_owned(), relationships(&targets)));
    package(&parts.iter().map(|(n, c)| (n.as_str(), c.as_str())).collect::<Vec<_>>())
}

/// A row of texts.
pub(crate) fn row(number: usize, cells: &[&str]) -> String {
    let cells: String = cells
        .iter()
        .enumerate()
        .map(|(at, text)| {
            let column = char::from(b'A' + at as u8);
            format!(r#"<c r="{column}{number}" t="inlineStr"><is><t>{text}</t></is></c>"#)
        })
        .collect();
    format!(r#"<row r="{number}">{cells}</row>"#)
}

/// A PDF with one line of text on each page.
pub(crate) fn pdf(lines: &[&str]) -> Vec<u8> {
    let kids: Vec<String> = (0..lines.len()).map(|n| format!("{} 0 R", 10 + 2 * n)).collect();
    let mut objects = vec![
        (1, "<< /Type /Catalog /Pages 2 0 R >>".to_owned()),
        (2, format!("<< /Type /Pages /Kids [{}] /Count {} /MediaBox [0 0 300 300] >>", kids.join(" "), lines.len())),
        (3, "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned()),
        (4, "<< /Title (A title) /Author (An author) /CreationDate (D:20260131235959Z) >>".to_owned()),
    ];
    for (at, line) in lines.iter().enumerate() {
        let stream = format!("BT /F1 12 Tf 50 200 Td ({line}) Tj ET");
        objects.push((
            10 + 2 * at,
            format!("<< /Type /Page /Parent 2 0 R /Contents {} 0 R /Resources << /Font << /F1 3 0 R >> >> >>", 11 + 2 * at),
        ));
        objects.push((11 + 2 * at, format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len())));
    }
    let mut out = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (number, body) in &objects {
        offsets.push((*number, out.len()));
        out.extend(format!("{number} 0 obj\n{body}\nendobj\n").into_bytes());
    }
    let start = out.len();
    out.extend(b"xref\n0 1\n0000000000 65535 f \n");
    for (number, offset) in offsets {
        out.extend(format!("{number} 1\n{offset:010} 00000 n \n").into_bytes());
    }
    out.extend(format!("trailer << /Size 100 /Root 1 0 R /Info 4 0 R >>\nstartxref\n{start}\n%%EOF\n").into_bytes());
    out
}
