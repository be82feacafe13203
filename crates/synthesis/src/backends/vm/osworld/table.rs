//! Converts a VM's accessibility tree to the table of visible and usable elements that models get.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::error::{SynthesisError, machine};

/// Largest XML, in bytes; it comes from an untrusted VM.
const MAX_BYTES: usize = 16 << 20;
const MAX_DEPTH: usize = 256;
const MAX_ELEMENTS: usize = 50_000;
/// Largest table, in bytes; the rest is counted.
const MAX_TABLE: usize = 100_000;
/// Longest cell, in characters.
const MAX_CELL: usize = 2000;

const HEAD: &str = "tag\tname\ttext\tclass\tdescription\tposition (top-left x&y)\tsize (w&h)";

/// Roles that are listed, by suffix and by full name.
const ENDINGS: [&str; 12] = [
    "item",
    "button",
    "heading",
    "label",
    "scrollbar",
    "searchbox",
    "textbox",
    "link",
    "tabelement",
    "textfield",
    "textarea",
    "menu",
];
const ROLES: [&str; 19] = [
    "alert",
    "canvas",
    "check-box",
    "combo-box",
    "entry",
    "icon",
    "image",
    "paragraph",
    "scroll-bar",
    "section",
    "slider",
    "static",
    "table-cell",
    "terminal",
    "text",
    "netuiribbontab",
    "start",
    "uiimage",
    "uiribbonbutton",
];

/// An element that is still open.
#[derive(Debug, Default, Clone)]
pub(in crate::backends::vm) struct Node {
    pub(in crate::backends::vm) tag: String,
    pub(in crate::backends::vm) name: String,
    pub(in crate::backends::vm) text: String,
    class: String,
    description: String,
    value: String,
    at: Option<(i64, i64)>,
    size: Option<(i64, i64)>,
    showing: bool,
    visible: bool,
    usable: bool,
    /// Its position in the order of start tags.
    order: usize,
}

/// Builds the table.
///
/// # Errors
/// Why the XML is refused.
pub(super) fn table(xml: &str) -> Result<String, SynthesisError> {
    let mut rows = Vec::new();
    walk(xml, |node, _| {
        if node.is_listed() {
            rows.push((node.order, node.row()));
        }
    })?;
    rows.sort_unstable_by_key(|(order, _)| *order);
    let mut out = HEAD.to_owned();
    for (at, (_, row)) in rows.iter().enumerate() {
        if out.len() + row.len() > MAX_TABLE {
            out.push_str(&format!("\n... {} more rows", rows.len() - at));
            break;
        }
        out.push('\n');
        out.push_str(row);
    }
    Ok(out)
}

/// Calls `each` with every completed element and its ancestors.
///
/// # Errors
/// Why the XML is refused.
pub(in crate::backends::vm) fn walk(xml: &str, mut each: impl FnMut(&Node, &[Node])) -> Result<(), SynthesisError> {
    if xml.len() > MAX_BYTES {
        return Err(machine(format!("the accessibility tree is over {} MiB", MAX_BYTES >> 20)));
    }
    let broken = |error: &dyn std::fmt::Display| machine(format!("the accessibility tree's XML is broken: {error}"));
    let mut reader = Reader::from_str(xml);
    let (mut open, mut elements): (Vec<Node>, usize) = (Vec::new(), 0);
    loop {
        let event = reader.read_event().map_err(|error| broken(&error))?;
        if let Event::Start(start) | Event::Empty(start) = &event {
            elements += 1;
            if elements > MAX_ELEMENTS {
                return Err(machine(format!("the accessibility tree has more than {MAX_ELEMENTS} elements")));
            }
            if open.len() >= MAX_DEPTH {
                return Err(machine(format!("the accessibility tree is nested more than {MAX_DEPTH} deep")));
            }
            open.push(Node::parse(start, elements).map_err(|error| broken(&error))?);
        }
        match event {
            Event::Empty(_) | Event::End(_) => {
                let Some(node) = open.pop() else { return Err(broken(&"an end without its start")) };
                each(&node, &open);
            }
            Event::Text(text) => said(&mut open, &text.xml10_content()),
            Event::CData(text) => said(&mut open, &text.xml10_content()),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(|error| broken(&error))? {
                Some(c) => said(&mut open, c.encode_utf8(&mut [0; 4])),
                None => {
                    let name = reference.into_inner();
                    let known = quick_xml::escape::resolve_predefined_entity(&name);
                    said(&mut open, known.ok_or_else(|| broken(&format!("&{name}; is no entity of XML")))?);
                }
            },
            Event::DocType(_) => return Err(broken(&"it declares a document type")),
            Event::Eof if open.is_empty() && elements > 0 => return Ok(()),
            Event::Eof => return Err(broken(&"it ends early")),
            Event::Start(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
        }
    }
}

/// Text belongs to its element.
fn said(open: &mut [Node], text: &str) {
    if let Some(node) = open.last_mut() {
        node.text.push_str(text);
    }
}

impl Node {
    fn parse(start: &BytesStart<'_>, order: usize) -> Result<Self, SynthesisError> {
        let mut node = Self { tag: start.local_name().into_inner().to_owned(), order, ..Self::default() };
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(machine)?;
            // Documents with declarations were refused before, so only XML's own entities can occur.
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(machine)?;
            let is = value == "true";
            match (attribute.key.prefix().map(|prefix| prefix.into_inner()), attribute.key.local_name().into_inner()) {
                (None, "name") => node.name = value.into_owned(),
                (Some("attr" | "class"), "class") => node.class = value.into_owned(),
                (Some("attr"), "description") => node.description = value.into_owned(),
                (Some("val"), "value") => node.value = value.into_owned(),
                (Some("cp"), "screencoord") => node.at = pair(&value),
                (Some("cp"), "size") => node.size = pair(&value),
                (Some("st"), "showing") => node.showing = is,
                (Some("st"), "visible") => node.visible = is,
                (Some("st"), "enabled" | "editable" | "expandable" | "checkable") => node.usable |= is,
                _ => {}
            }
        }
        Ok(node)
    }

    /// Whether a user of the screen could refer to it.
    fn is_listed(&self) -> bool {
        let tag = self.tag.as_str();
        let of_interest = tag.starts_with("document") || ENDINGS.iter().any(|end| tag.ends_with(end)) || ROLES.contains(&tag);
        let is_on_screen = self.at.is_some_and(|(x, y)| x >= 0 && y >= 0) && self.size.is_some_and(|(w, h)| w > 0 && h > 0);
        let says = [&self.name, &self.text, &self.value].into_iter().any(|said| !said.trim().is_empty());
        of_interest && self.showing && self.visible && self.usable && is_on_screen && says
    }

    fn row(&self) -> String {
        let text = if self.text.trim().is_empty() { &self.value } else { &self.text };
        let shown = |at: Option<(i64, i64)>| at.map(|(a, b)| format!("({a}, {b})")).unwrap_or_default();
        let cells = [
            cell(&self.tag),
            cell(&self.name),
            cell(text),
            cell(&self.class),
            cell(&self.description),
            shown(self.at),
            shown(self.size),
        ];
        cells.join("\t")
    }
}

/// A cell on one line, in quotes if it contains a separator.
fn cell(text: &str) -> String {
    let kept: String = text.trim().chars().take(MAX_CELL).collect();
    if !kept.contains(['"', '\t', '\n', '\r']) {
        return kept;
    }
    let one_line = kept.replace('"', "\"\"").replace(['\n', '\r'], "\\n").replace('\t', " ");
    format!("\"{one_line}\"")
}

/// `(10, 20)`.
fn pair(text: &str) -> Option<(i64, i64)> {
    let (a, b) = text.trim().strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some((a.trim().parse().ok()?, b.trim().parse().ok()?))
}

#[cfg(test)]
pub(in crate::backends::vm) mod tests {
    use super::*;

    pub(in crate::backends::vm) const XML: &str = r#"<desktop-frame name="main" xmlns:st="urn:st" xmlns:cp="urn:cp" xmlns:attr="urn:attr">
  <application name="Google Chrome"><frame name="New Tab" st:showing="true" st:visible="true">
    <push-button name="Save &amp; go" st:showing="true" st:visible="true" st:enabled="true" attr:class="b" cp:screencoord="(10, 20)" cp:size="(30, 40)"/>
    <entry name="Address and search bar" st:showing="true" st:visible="true" st:editable="true" cp:screencoord="(1, 2)" cp:size="(3, 4)">example.org/a&lt;b</entry>
    <push-button name="hidden" st:showing="false" st:visible="true" st:enabled="true" cp:screencoord="(10, 20)" cp:size="(30, 40)"/>
    <push-button name="away" st:showing="true" st:visible="true" st:enabled="true" cp:screencoord="(-5, 20)" cp:size="(30, 40)"/>
    <panel name="a box" st:showing="true" st:visible="true" st:enabled="true" cp:screencoord="(0, 0)" cp:size="(30, 40)"/>
  </frame></application></desktop-frame>"#;

    #[test]
    fn what_can_be_seen_and_used_is_a_row() {
        let expected = format!(
            "{HEAD}\npush-button\tSave & go\t\tb\t\t(10, 20)\t(30, 40)\nentry\tAddress and search bar\texample.org/a<b\t\t\t(1, 2)\t(3, 4)"
        );
        assert_eq!(table(XML).unwrap(), expected);
    }

    #[test]
    fn hostile_trees_are_refused() {
        let bomb = r#"<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;">]><a name="&y;">&y;</a>"#;
        assert!(table(bomb).unwrap_err().to_string().contains("document type"));
        assert!(table("<a>&nope;</a>").unwrap_err().to_string().contains("no entity"));
        assert!(table(&"<a>".repeat(300)).unwrap_err().to_string().contains("deep"));
        assert!(table(&format!("<a>{}</a>", "<b/>".repeat(60_000))).unwrap_err().to_string().contains("elements"));
        for broken in ["", "<a", "</a>", "<a></b>", "text", "<a name=\"&#0;\"/>"] {
            assert!(table(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_table_has_an_end() {
        let row = r#"<text name="n" st:showing="true" st:visible="true" st:enabled="true" cp:screencoord="(0, 0)" cp:size="(1, 1)">TEXT</text>"#;
        let xml = format!("<d>{}</d>", row.replace("TEXT", &"t\t\"".repeat(900)).repeat(200));
        let table = table(&xml).unwrap();
        assert!(table.len() <= MAX_TABLE + 100, "{}", table.len());
        assert!(table.ends_with("more rows"), "{}", &table[table.len() - 40..]);
        assert!(table.lines().all(|line| line.matches('\t').count() == 6 || line.starts_with("...")));
    }
}
