//! Presentations: each slide's title, text, tables and notes.

use serde_json::Value;

use super::package::{Package, by_id};
use super::xml::{self, Element};
use crate::output::{self, Output};
use crate::view::{Range, Span};
use crate::{DocumentError, Metadata};

/// Maximum number of slides that are counted.
const MAX_SLIDES: usize = 10_000;

/// The slides of a range as Markdown, and the metadata of all.
pub(crate) fn read(bytes: &[u8], range: Option<Range>, limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let mut package = Package::open(bytes)?;
    let main = package.main_part("ppt/presentation.xml")?;
    let links = by_id(package.relationships(&main)?);
    let presentation = xml::parse(&package.required(&main)?)?;
    let listed = presentation.child("sldIdLst").into_iter().flat_map(|list| list.named("sldId"));
    let parts: Vec<String> =
        listed.filter_map(|slide| Some(links.get(slide.attribute("r:id")?)?.target.clone())).take(MAX_SLIDES).collect();
    let total = parts.len();
    let span = Span::new(range, total, "slide_range", "slides")?;
    let mut out = Output::new(limit);
    for number in span.numbers() {
        let part = &parts[number - 1];
        let slide = xml::parse(&package.required(part)?)?;
        let hidden = if slide.attribute("show") == Some("0") { " (hidden)" } else { "" };
        out.block(&format!("## Slide {number}{hidden}\n"));
        if let Some(tree) = slide.at(&["cSld", "spTree"]) {
            shapes(tree, &mut out);
        }
        let notes = package.relationships(part)?.into_iter().find(|r| r.kind == "notesSlide");
        if let Some(text) = notes.map(|r| package.part(&r.target)).transpose()?.flatten() {
            let notes = xml::parse(&text)?;
            let body = notes.at(&["cSld", "spTree"]).into_iter().flat_map(|tree| tree.named("sp"));
            let text: Vec<String> =
                body.filter(|s| placeholder(s) == Some("body")).flat_map(paragraphs).map(|p| p.text).collect();
            if !text.is_empty() {
                out.block(&format!("Notes: {}", text.join("\n")));
            }
        }
        if out.is_full() {
            break;
        }
    }
    let mut metadata = package.properties()?;
    metadata.insert("total_slides".to_owned(), Value::from(total));
    Ok((out, metadata))
}

/// The role of a shape in the slide's layout; none for a shape without one.
fn placeholder(shape: &Element) -> Option<&str> {
    let holder = shape.at(&["nvSpPr", "nvPr", "ph"])?;
    Some(holder.attribute("type").unwrap_or("body"))
}

fn shapes(tree: &Element, out: &mut Output) {
    for shape in &tree.children {
        match &*shape.name {
            "sp" => text_shape(shape, out),
            "grpSp" => shapes(shape, out),
            "pic" => {
                let about = shape.at(&["nvPicPr", "cNvPr"]);
                let name = about.and_then(|a| a.attribute("descr").filter(|d| !d.is_empty()).or(a.attribute("name")));
                out.block(&format!("![{}]()", name.unwrap_or("image").replace(['[', ']', '\n'], " ")));
            }
            "graphicFrame" => {
                if let Some(table) = shape.find("tbl") {
                    slide_table(table, out);
                } else if let Some(name) = shape.at(&["nvGraphicFramePr", "cNvPr"]).and_then(|a| a.attribute("name")) {
                    out.block(&format!("[{}]", name.replace(['[', ']', '\n'], " ")));
                }
            }
            "AlternateContent" => {
                if let Some(choice) = shape.child("Choice") {
                    shapes(choice, out);
                }
            }
            _ => {}
        }
    }
}

struct Paragraph {
    text: String,
    level: usize,
    /// Whether the paragraph itself sets a bullet, or disables it.
    bullet: Option<bool>,
}

fn paragraphs(shape: &Element) -> Vec<Paragraph> {
    let body = shape.child("txBody").into_iter().flat_map(|body| body.named("p"));
    let read = body.map(|paragraph| {
        let mut text = String::new();
        for run in &paragraph.children {
            match &*run.name {
                "r" | "fld" => text.push_str(run.child("t").map_or("", |t| &t.text)),
                "br" => text.push('\n'),
                _ => {}
            }
        }
        let properties = paragraph.child("pPr");
        let level = properties.and_then(|p| p.attribute("lvl")).and_then(|l| l.parse().ok()).unwrap_or(0);
        let bullet = properties.and_then(|p| {
            let marked = ["buChar", "buAutoNum", "buBlip"].iter().any(|name| p.child(name).is_some());
            if marked { Some(true) } else { p.child("buNone").map(|_| false) }
        });
        Paragraph { text: text.trim().to_owned(), level, bullet }
    });
    read.filter(|p| !p.text.is_empty()).collect()
}

fn text_shape(shape: &Element, out: &mut Output) {
    let holder = placeholder(shape);
    let paragraphs = paragraphs(shape);
    if paragraphs.is_empty() || matches!(holder, Some("sldNum" | "dt" | "ftr" | "hdr")) {
        return;
    }
    if matches!(holder, Some("title" | "ctrTitle")) {
        let title: Vec<&str> = paragraphs.iter().flat_map(|p| p.text.split_whitespace()).collect();
        out.block(&format!("# {}", title.join(" ")));
        return;
    }
    // Layouts give the paragraphs of a body bullets, unless there is only one.
    let listed = holder.is_some_and(|h| h == "body" || h == "obj") && paragraphs.len() > 1;
    out.part();
    for paragraph in paragraphs {
        if paragraph.bullet.unwrap_or(listed) {
            let indent = "    ".repeat(paragraph.level.min(8));
            out.push(&format!("{indent}- {}\n", paragraph.text.replace('\n', &format!("\n{indent}  "))));
        } else {
            out.push(&paragraph.text);
            out.push("\n\n");
        }
    }
}

fn slide_table(table: &Element, out: &mut Output) {
    let text = |cell: &Element| paragraphs(cell).into_iter().map(|p| p.text).collect::<Vec<_>>().join("\n");
    let rows: Vec<Vec<String>> = table.named("tr").map(|row| row.named("tc").map(text).collect()).collect();
    output::table(out, &rows);
}
