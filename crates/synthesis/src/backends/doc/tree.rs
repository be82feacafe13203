//! Parses XML of AgentFlow's documents to small trees, and prints such trees as text.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::error::{SynthesisError, invalid};

const MAX_DEPTH: usize = 100;
const MAX_ELEMENTS: usize = 1_000_000;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<Element>,
    /// The text before its first child.
    pub(super) text: String,
}

impl Element {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn from_start(start: &BytesStart<'_>) -> Result<Self, SynthesisError> {
        let mut element = Self::new(start.name().0);
        for attribute in start.attributes() {
            let attribute = attribute.map_err(invalid)?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(invalid)?;
            element.attributes.push((attribute.key.0.to_owned(), value.into_owned()));
        }
        Ok(element)
    }

    pub(super) fn parse(xml: &str) -> Result<Self, SynthesisError> {
        let mut reader = Reader::from_str(xml);
        let (mut open, mut elements): (Vec<Self>, usize) = (Vec::new(), 0);
        loop {
            let event = reader.read_event().map_err(invalid)?;
            if let Event::Start(start) | Event::Empty(start) = &event {
                elements += 1;
                if elements > MAX_ELEMENTS || open.len() >= MAX_DEPTH {
                    return Err(invalid(format!(
                        "it has more than {MAX_ELEMENTS} elements, or is nested more than {MAX_DEPTH} deep"
                    )));
                }
                open.push(Self::from_start(start)?);
            }
            match event {
                Event::Empty(_) | Event::End(_) => {
                    let Some(done) = open.pop() else { return Err(invalid("an end without its start")) };
                    match open.last_mut() {
                        Some(parent) => parent.children.push(done),
                        None => return Ok(done),
                    }
                }
                Event::Text(text) => said(&mut open, &text.xml10_content()),
                Event::CData(text) => said(&mut open, &text.xml10_content()),
                Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(invalid)? {
                    Some(c) => said(&mut open, c.encode_utf8(&mut [0; 4])),
                    None => {
                        let name = reference.into_inner();
                        let known = quick_xml::escape::resolve_predefined_entity(&name);
                        said(&mut open, known.ok_or_else(|| invalid(format!("&{name}; is no entity of XML")))?);
                    }
                },
                Event::Eof if elements == 0 => return Err(invalid("it has no element")),
                Event::Eof => return Err(invalid("it ends early")),
                Event::Start(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            }
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The element and all its descendants, in document order.
    pub(super) fn all(&self) -> Vec<&Self> {
        let (mut all, mut open) = (Vec::new(), vec![self]);
        while let Some(element) = open.pop() {
            all.push(element);
            open.extend(element.children.iter().rev());
        }
        all
    }

    /// Indented by two spaces for each level.
    pub(super) fn pretty(&self) -> String {
        let mut text = String::new();
        self.write(0, &mut text);
        text.truncate(text.trim_end().len());
        text
    }

    fn write(&self, depth: usize, out: &mut String) {
        let indent = "  ".repeat(depth);
        out.push_str(&indent);
        out.push('<');
        out.push_str(&self.name);
        for (name, value) in &self.attributes {
            out.push_str(&format!(" {name}=\"{}\"", escaped(value)));
        }
        if self.children.is_empty() && self.text.is_empty() {
            out.push_str("/>\n");
            return;
        }
        out.push('>');
        if self.children.is_empty() {
            out.push_str(&escaped(&self.text));
        } else {
            out.push('\n');
            for child in &self.children {
                child.write(depth + 1, out);
            }
            out.push_str(&indent);
        }
        out.push_str(&format!("</{}>\n", self.name));
    }
}

/// Text belongs to its element until the element has a child.
fn said(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut().filter(|element| element.children.is_empty()) {
        element.text.push_str(text);
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;").replace('>', "&gt;")
}
