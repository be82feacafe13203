//! The agent's accessibility tree in the form of the sandbox's own. It is XML with a namespace for each kind of property.

use quick_xml::XmlVersion;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::desktop::{AccessibilityTree, AccessibleNode, NodeValue, known_state, place_of};

/// Maximum characters of a node's name or text.
const MAX_TEXT: usize = 4000;

struct Open {
    node: AccessibleNode,
    /// The node is outside the requested limits, and so are its descendants.
    is_left_out: bool,
}

/// Parses the tree up to `depth` levels below the root, and `most` nodes in all.
pub(super) fn read(xml: &str, depth: u32, most: u32) -> Result<AccessibilityTree, String> {
    let mut reader = Reader::from_str(xml);
    let mut open: Vec<Open> = Vec::new();
    let (mut nodes, mut truncated, mut whole) = (0_usize, false, None);
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let is_empty = matches!(event, Event::Empty(_));
        match event {
            Event::Start(tag) | Event::Empty(tag) => {
                let is_left_out = open.last().is_some_and(|above| above.is_left_out)
                    || open.len() > depth as usize
                    || nodes >= most as usize
                    || whole.is_some();
                truncated |= is_left_out;
                nodes += usize::from(!is_left_out);
                let node = if is_left_out { AccessibleNode::default() } else { node(&tag)? };
                open.push(Open { node, is_left_out });
                if is_empty {
                    close(&mut open, &mut whole);
                }
            }
            Event::Text(text) => {
                if let Some(Open { node, is_left_out: false }) = open.last_mut() {
                    add_text(node, &text.xml10_content());
                }
            }
            Event::GeneralRef(reference) => {
                if let Some(Open { node, is_left_out: false }) = open.last_mut() {
                    let character = reference.resolve_char_ref().map_err(|error| error.to_string())?;
                    let named = || resolve_xml_entity(&reference).map(str::to_owned);
                    add_text(node, &character.map(String::from).or_else(named).unwrap_or_default());
                }
            }
            Event::End(_) => close(&mut open, &mut whole),
            Event::Eof => break,
            _ => {}
        }
    }
    let tree = whole.ok_or("there is no element")?;
    Ok(AccessibilityTree { tree, nodes, truncated, silent: Vec::new() })
}

fn add_text(node: &mut AccessibleNode, more: &str) {
    let mut text = match node.value.take() {
        Some(NodeValue::Text(text)) => text,
        // A numeric value takes precedence over text.
        Some(number) => {
            node.value = Some(number);
            return;
        }
        None => String::new(),
    };
    text.extend(more.chars().take(MAX_TEXT.saturating_sub(text.chars().count())));
    node.value = Some(NodeValue::Text(text));
}

fn close(open: &mut Vec<Open>, whole: &mut Option<AccessibleNode>) {
    let Some(Open { mut node, is_left_out }) = open.pop() else { return };
    if let Some(NodeValue::Text(text)) = &node.value
        && (text.trim().is_empty() || *text == node.name)
    {
        node.value = None;
    }
    match open.last_mut() {
        _ if is_left_out => {}
        Some(above) => above.node.children.push(node),
        None => *whole = Some(node),
    }
}

fn node(tag: &BytesStart<'_>) -> Result<AccessibleNode, String> {
    let role = tag.local_name().as_ref().replace('-', " ");
    let mut node = AccessibleNode { role, ..AccessibleNode::default() };
    let (mut at, mut size) = (None, None);
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let key = attribute.key.0;
        match key.split_once(':') {
            None if key == "name" => node.name = text(&attribute)?.chars().take(MAX_TEXT).collect(),
            Some(("st", state)) if text(&attribute)? == "true" => {
                node.states.extend(known_state(&state.replace(['-', '_'], " ")))
            }
            Some(("cp", "screencoord")) => at = pair(&text(&attribute)?),
            Some(("cp", "size")) => size = pair(&text(&attribute)?),
            Some(("val", "value")) => node.value = text(&attribute)?.parse().ok().map(NodeValue::Number),
            _ => {}
        }
    }
    if let (Some((x, y)), Some((width, height))) = (at, size) {
        node.place = place_of(&node.states, [x, y, width, height]);
    }
    Ok(node)
}

fn text(attribute: &Attribute<'_>) -> Result<String, String> {
    let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| error.to_string())?;
    Ok(value.into_owned())
}

/// Parses `(12, 34)`.
fn pair(text: &str) -> Option<(i32, i32)> {
    let (x, y) = text.trim().strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some((x.trim().parse().ok()?, y.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = r#"<?xml version="1.0"?><desktop-frame xmlns:st="https://x/state" xmlns:cp="https://x/component" xmlns:val="https://x/value" name="main">
        <application name="pad"><frame name="a &amp; b" st:showing="true" st:visible="true" cp:screencoord="(10, -5)" cp:size="(600, 400)">
        <push-button name="OK" st:focused="true" st:showing="true" st:nonsense="true" st:editable="false" cp:screencoord="(20, 30)" cp:size="(40, 20)"/>
        <slider name="s" val:value="0.5">x</slider><text name="">one &lt;two&gt; &#x4e16;</text></frame></application></desktop-frame>"#;

    #[test]
    fn elements_are_nodes_with_states_and_places() {
        let read = read(TREE, 64, 1000).unwrap();
        assert_eq!((read.nodes, read.truncated, read.tree.role.as_str()), (6, false, "desktop frame"));
        let frame = &read.tree.children[0].children[0];
        assert_eq!((frame.name.as_str(), frame.place.unwrap().x, frame.place.unwrap().y), ("a & b", 10, -5));
        let [button, slider, text] = &frame.children[..] else { panic!("{frame:?}") };
        assert_eq!((button.role.as_str(), button.states.as_slice()), ("push button", &["focused", "showing"][..]));
        assert_eq!(button.place.unwrap().width, 40);
        assert_eq!(slider.value, Some(NodeValue::Number(0.5)));
        assert_eq!(text.value, Some(NodeValue::Text("one <two> 世".to_owned())));
    }

    #[test]
    fn what_is_beyond_the_bounds_is_left_out_and_said() {
        let few = read(TREE, 64, 4).unwrap();
        assert_eq!((few.nodes, few.truncated), (4, true));
        let flat = read(TREE, 1, 1000).unwrap();
        assert_eq!((flat.nodes, flat.truncated, flat.tree.children[0].children.len()), (2, true, 0));
    }

    #[test]
    fn what_is_no_tree_is_an_error() {
        for bad in ["", "text", "<a", "<a b=></a>", "</a>", "<a name=\"&nope;\"/>"] {
            assert!(read(bad, 64, 1000).is_err(), "{bad:?}");
        }
        let deep = "<a>".repeat(100_000);
        assert!(read(&deep, 64, 1000).is_err());
    }
}
