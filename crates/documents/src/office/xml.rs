//! Parses XML into small trees, with limits on their depth and size. Entities that a document declares are not resolved.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::{DocumentError, MAX_XML_DEPTH, MAX_XML_ELEMENTS};

/// An element. Names have no prefixes, which documents may choose freely.
#[derive(Debug, Default)]
pub(super) struct Element {
    pub(super) name: Box<str>,
    attributes: Vec<(Box<str>, Box<str>)>,
    pub(super) children: Vec<Element>,
    /// The text directly in the element.
    pub(super) text: String,
}

impl Element {
    fn parse(start: &BytesStart<'_>) -> Result<Self, DocumentError> {
        let mut attributes = Vec::new();
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(malformed)?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(malformed)?;
            // Only relationships need their prefix: `r:id` beside `id`.
            let name = match attribute.key.0 {
                "r:id" | "r:embed" => attribute.key.0,
                _ => attribute.key.local_name().into_inner(),
            };
            attributes.push((name.into(), value.as_ref().into()));
        }
        Ok(Self { name: start.local_name().into_inner().into(), attributes, ..Self::default() })
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(n, _)| &**n == name).map(|(_, value)| &**value)
    }

    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|c| &*c.name == name)
    }

    /// The element at a path of names.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    pub(super) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |c| &*c.name == name)
    }

    /// The first element with a name below this one. The tree's depth limits the search.
    pub(super) fn find(&self, name: &str) -> Option<&Self> {
        self.children.iter().find_map(|c| if &*c.name == name { Some(c) } else { c.find(name) })
    }

    /// Whether a switch such as `<b/>` or `<b val="0"/>` is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.child(name).is_some_and(|c| !matches!(c.attribute("val"), Some("0" | "false" | "off" | "none")))
    }

    /// The value of `<name val="…"/>`.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.child(name)?.attribute("val")
    }
}

pub(super) fn malformed(error: impl std::fmt::Display) -> DocumentError {
    DocumentError::malformed("Office document", format!("its XML is broken: {error}"))
}

/// Calls `each` with every child of the element at `path`, until it says stop. Only one child is in memory at a time.
pub(super) fn for_each_child(
    xml: &str,
    path: &[&str],
    mut each: impl FnMut(Element) -> Result<bool, DocumentError>,
) -> Result<(), DocumentError> {
    let mut reader = Reader::from_str(xml);
    // The depth in `path` of the reader's position, and the depth inside other elements.
    let (mut on_path, mut aside) = (0, 0_usize);
    let mut open: Vec<Element> = Vec::new();
    let mut elements = 0;
    loop {
        match reader.read_event().map_err(malformed)? {
            Event::Start(start) => {
                if open.is_empty() && on_path < path.len() {
                    if aside == 0 && start.local_name().into_inner() == path[on_path] {
                        on_path += 1;
                    } else {
                        aside += 1;
                    }
                    continue;
                }
                elements += 1;
                if open.len() >= MAX_XML_DEPTH {
                    return Err(DocumentError::too_large(format!("elements nested more than {MAX_XML_DEPTH} deep")));
                }
                if elements > MAX_XML_ELEMENTS {
                    return Err(DocumentError::too_large(format!("one part of more than {MAX_XML_ELEMENTS} elements")));
                }
                open.push(Element::parse(&start)?);
            }
            Event::Empty(start) if !open.is_empty() || on_path == path.len() => {
                elements += 1;
                if elements > MAX_XML_ELEMENTS {
                    return Err(DocumentError::too_large(format!("one part of more than {MAX_XML_ELEMENTS} elements")));
                }
                let element = Element::parse(&start)?;
                match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    None => {
                        elements = 0;
                        if !each(element)? {
                            return Ok(());
                        }
                    }
                }
            }
            Event::End(_) => match open.pop() {
                Some(element) => match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    None => {
                        elements = 0;
                        if !each(element)? {
                            return Ok(());
                        }
                    }
                },
                None if aside > 0 => aside -= 1,
                None => on_path = on_path.saturating_sub(1),
            },
            Event::Text(text) => {
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&text.xml10_content());
                }
            }
            Event::CData(text) => {
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&text.xml10_content());
                }
            }
            Event::GeneralRef(reference) => {
                if let Some(element) = open.last_mut() {
                    match reference.resolve_char_ref().map_err(malformed)? {
                        Some(c) => element.text.push(c),
                        None => element.text.push_str(predefined(&reference.into_inner())),
                    }
                }
            }
            Event::Eof => return Ok(()),
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

fn predefined(entity: &str) -> &'static str {
    match entity {
        "lt" => "<",
        "gt" => ">",
        "amp" => "&",
        "quot" => "\"",
        "apos" => "'",
        _ => "",
    }
}

/// Parses the complete root element.
pub(super) fn parse(xml: &str) -> Result<Element, DocumentError> {
    let mut root = None;
    for_each_child(xml, &[], |element| {
        root = Some(element);
        Ok(false)
    })?;
    root.ok_or_else(|| malformed("there is no element"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_hold_what_matters() {
        let root =
            parse(r#"<?xml version="1.0"?><w:a x="1 &amp; 2" r:id="r1" id="i"><b>t &lt; &#233;</b><c/><b val="0"/></w:a>"#)
                .unwrap();
        assert_eq!((&*root.name, root.attribute("x"), root.attribute("r:id")), ("a", Some("1 & 2"), Some("r1")));
        assert_eq!(root.attribute("id"), Some("i"));
        assert_eq!(root.child("b").unwrap().text, "t < é");
        assert_eq!(root.named("b").count(), 2);
        assert!(root.is_on("c") && root.at(&["c"]).is_some() && root.find("d").is_none());
    }

    #[test]
    fn children_come_one_by_one() {
        let mut names = Vec::new();
        let xml = "<doc><body><skip/></body2></doc>";
        assert!(for_each_child(xml, &["doc", "body"], |_| Ok(true)).is_err());
        let xml = "<doc><head><body><x/></body></head><body><p><x/></p><t/></body><late/></doc>";
        for_each_child(xml, &["doc", "body"], |e| {
            names.push(e.name.to_string());
            Ok(true)
        })
        .unwrap();
        assert_eq!(names, ["p", "t"]);
    }

    #[test]
    fn hostile_xml_is_refused() {
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        assert!(matches!(parse(&deep), Err(DocumentError::TooLarge { .. })));
        let bomb = r#"<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;">]><a>&y;</a>"#;
        assert_eq!(parse(bomb).unwrap().text, "");
        for xml in ["", "<a", "<a></b>", "<a>&#xFFFFFFFF;</a>"] {
            assert!(parse(xml).is_err(), "{xml}");
        }
    }
}
