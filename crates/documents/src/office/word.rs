//! Text documents: headings, paragraphs, lists, tables, links, notes.

use std::collections::HashMap;

use serde_json::Value;

use super::numbering::Numbering;
use super::package::{Package, Relationship, by_id};
use super::runs::{Runs, Style};
use super::xml::{self, Element};
use crate::output::{self, Output};
use crate::{DocumentError, Metadata};

/// Maximum number of styles that are based on each other.
const MAX_STYLE_CHAIN: usize = 16;

/// The properties that a style gives a paragraph.
#[derive(Debug, Clone, Default)]
struct ParagraphStyle {
    based_on: Option<String>,
    /// From 1.
    heading: Option<usize>,
    list: Option<(String, usize)>,
}

struct Reader {
    links: HashMap<String, Relationship>,
    styles: HashMap<String, ParagraphStyle>,
    numbering: Numbering,
    notes: HashMap<String, String>,
    /// Referenced notes, in order.
    used_notes: Vec<String>,
    paragraphs: usize,
    tables: usize,
}

/// The document as Markdown, and its metadata.
pub(crate) fn read(bytes: &[u8], limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let mut package = Package::open(bytes)?;
    let main = package.main_part("word/document.xml")?;
    let folder = main.rsplit_once('/').map_or("", |(folder, _)| folder);
    let part = |name: &str| format!("{folder}/{name}");
    let styles = match package.part(&part("styles.xml"))? {
        Some(text) => styles(&text)?,
        None => HashMap::new(),
    };
    let numbering = match package.part(&part("numbering.xml"))? {
        Some(text) => Numbering::read(&xml::parse(&text)?),
        None => Numbering::default(),
    };
    let links = by_id(package.relationships(&main)?);
    let mut reader = Reader { links, styles, numbering, notes: HashMap::new(), used_notes: Vec::new(), paragraphs: 0, tables: 0 };
    if let Some(text) = package.part(&part("footnotes.xml"))? {
        xml::for_each_child(&text, &["footnotes"], |note| {
            if let (Some(id), None) = (note.attribute("id"), note.attribute("type")) {
                let text = reader.plain(&note);
                reader.notes.insert(id.to_owned(), text);
            }
            Ok(true)
        })?;
    }
    let mut out = Output::new(limit);
    let document = package.required(&main)?;
    xml::for_each_child(&document, &["document", "body"], |element| {
        reader.block(&element, &mut out);
        Ok(!out.is_full())
    })?;
    for id in std::mem::take(&mut reader.used_notes) {
        let note = reader.notes.get(&id).map(String::as_str).unwrap_or_default();
        out.block(&format!("[^{id}]: {}", note.trim()));
    }
    let mut metadata = package.properties()?;
    metadata.insert("paragraphs".to_owned(), Value::from(reader.paragraphs));
    metadata.insert("tables".to_owned(), Value::from(reader.tables));
    Ok((out, metadata))
}

fn styles(text: &str) -> Result<HashMap<String, ParagraphStyle>, DocumentError> {
    let mut styles = HashMap::new();
    xml::for_each_child(text, &["styles"], |style| {
        let Some(id) = style.attribute("styleId").filter(|_| &*style.name == "style") else { return Ok(true) };
        let name = style.value("name").unwrap_or_default().to_lowercase();
        let outline = style.at(&["pPr"]).and_then(|p| p.value("outlineLvl")).and_then(|l| l.parse::<usize>().ok());
        let heading = match name.as_str() {
            "title" => Some(1),
            name => name.strip_prefix("heading ").and_then(|n| n.parse().ok()).or(outline.filter(|l| *l < 9).map(|l| l + 1)),
        };
        let list = style.at(&["pPr", "numPr"]).and_then(list_of);
        let based_on = style.value("basedOn").map(str::to_owned);
        styles.insert(id.to_owned(), ParagraphStyle { based_on, heading, list });
        Ok(true)
    })?;
    Ok(styles)
}

/// The list and level that `<numPr>` names. List 0 means: no list.
fn list_of(properties: &Element) -> Option<(String, usize)> {
    let list = properties.value("numId").filter(|id| *id != "0")?;
    let level = properties.value("ilvl").and_then(|l| l.parse().ok()).unwrap_or(0);
    Some((list.to_owned(), level))
}

impl Reader {
    /// A property from a style, or from one of those that it is based on.
    fn styled<T>(&self, id: Option<&str>, get: impl Fn(&ParagraphStyle) -> Option<T>) -> Option<T> {
        let mut style = self.styles.get(id?)?;
        for _ in 0..MAX_STYLE_CHAIN {
            if let Some(found) = get(style) {
                return Some(found);
            }
            style = self.styles.get(style.based_on.as_deref()?)?;
        }
        None
    }

    fn block(&mut self, element: &Element, out: &mut Output) {
        match &*element.name {
            "p" => self.paragraph(element, out),
            "tbl" => self.table(element, out),
            // Wrappers: structured tags, tracked insertions, custom XML.
            "sdt" => {
                for child in element.child("sdtContent").into_iter().flat_map(|c| &c.children) {
                    self.block(child, out);
                }
            }
            "ins" | "customXml" | "smartTag" | "moveTo" => {
                for child in &element.children {
                    self.block(child, out);
                }
            }
            _ => {}
        }
    }

    fn paragraph(&mut self, element: &Element, out: &mut Output) {
        let mut runs = Runs::default();
        let mut boxes = Vec::new();
        self.inline(element, &Style::default(), &mut runs, &mut boxes);
        let properties = element.child("pPr");
        let style = properties.and_then(|p| p.value("pStyle"));
        let text = runs.markdown();
        if !text.trim().is_empty() {
            self.paragraphs += 1;
            let own_list = properties.and_then(|p| p.child("numPr"));
            let list = match own_list {
                Some(own) => list_of(own),
                None => self.styled(style, |s| s.list.clone()),
            };
            let heading = self.styled(style, |s| s.heading);
            match (heading, list) {
                (Some(level), _) => {
                    let text = runs.plain();
                    out.block(&format!(
                        "{} {}",
                        "#".repeat(level.clamp(1, 6)),
                        text.split_whitespace().collect::<Vec<_>>().join(" ")
                    ));
                }
                (None, Some((list, level))) => {
                    let mark = self.numbering.mark(&list, level);
                    let rest = " ".repeat(mark.len());
                    out.part();
                    out.push(&mark);
                    out.push(&text.trim().replace('\n', &format!("\n{rest}")));
                    out.push("\n");
                }
                (None, None) => out.block(text.trim_end()),
            }
        }
        for text_box in boxes {
            for child in &text_box.children {
                self.block(child, out);
            }
        }
    }

    /// Adds the runs of a paragraph; its text boxes are collected for later.
    fn inline<'e>(&mut self, element: &'e Element, style: &Style, runs: &mut Runs, boxes: &mut Vec<&'e Element>) {
        for child in &element.children {
            match &*child.name {
                "r" => {
                    let style = match child.child("rPr") {
                        Some(p) => Style {
                            bold: p.is_on("b"),
                            italic: p.is_on("i"),
                            strike: p.is_on("strike") || p.is_on("dstrike"),
                            link: style.link.clone(),
                        },
                        None => Style { link: style.link.clone(), ..Style::default() },
                    };
                    if !child.child("rPr").is_some_and(|p| p.is_on("vanish")) {
                        self.inline(child, &style, runs, boxes);
                    }
                }
                "t" => runs.push(style, &child.text),
                "tab" => runs.push(style, "\t"),
                "br" | "cr" => runs.push(style, "\n"),
                "noBreakHyphen" => runs.push(style, "-"),
                "sym" => runs.push(style, "\u{fffd}"),
                "hyperlink" => {
                    let target = child.attribute("r:id").and_then(|id| self.links.get(id)).map(|r| r.target.clone());
                    let style = Style { link: target, ..style.clone() };
                    self.inline(child, &style, runs, boxes);
                }
                "footnoteReference" => {
                    if let Some(id) = child.attribute("id") {
                        runs.push(style, &format!("[^{id}]"));
                        if !self.used_notes.iter().any(|n| n == id) && self.notes.contains_key(id) {
                            self.used_notes.push(id.to_owned());
                        }
                    }
                }
                "drawing" | "pict" | "object" => {
                    let name =
                        child.find("docPr").and_then(|p| p.attribute("descr").filter(|d| !d.is_empty()).or(p.attribute("name")));
                    if child.find("blip").is_some() || child.find("imagedata").is_some() {
                        runs.push(style, &format!("![{}]()", name.unwrap_or("image").replace(['[', ']', '\n'], " ")));
                    }
                    boxes.extend(child.find("txbxContent"));
                }
                // The first of several alternatives is for current readers.
                "AlternateContent" => {
                    if let Some(choice) = child.child("Choice") {
                        self.inline(choice, style, runs, boxes);
                    }
                }
                // Deleted text, and properties of the paragraph.
                "del" | "moveFrom" | "pPr" | "rPr" | "delText" | "instrText" => {}
                _ => self.inline(child, style, runs, boxes),
            }
        }
    }

    /// All text below an element, on one line.
    fn plain(&mut self, element: &Element) -> String {
        let mut runs = Runs::default();
        let mut boxes = Vec::new();
        for (at, paragraph) in element.children.iter().enumerate() {
            if at > 0 {
                runs.push(&Style::default(), "\n");
            }
            match &*paragraph.name {
                "tbl" => {
                    let text = self.plain_table(paragraph);
                    runs.push(&Style::default(), &text);
                }
                "tcPr" => {}
                _ => self.inline(paragraph, &Style::default(), &mut runs, &mut boxes),
            }
        }
        runs.markdown().trim().to_owned()
    }

    fn plain_table(&mut self, table: &Element) -> String {
        let rows = table.named("tr").map(|row| {
            let cells: Vec<String> = row.named("tc").map(|cell| self.plain(cell)).collect();
            cells.join(" | ")
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    fn table(&mut self, table: &Element, out: &mut Output) {
        self.tables += 1;
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in table.named("tr") {
            let mut cells = Vec::new();
            for cell in row.named("tc") {
                cells.push(self.plain(cell));
                let span = cell.child("tcPr").and_then(|p| p.value("gridSpan")).and_then(|s| s.parse::<usize>().ok());
                cells.extend(std::iter::repeat_n(String::new(), span.unwrap_or(1).clamp(1, 64) - 1));
            }
            rows.push(cells);
        }
        output::table(out, &rows);
    }
}
