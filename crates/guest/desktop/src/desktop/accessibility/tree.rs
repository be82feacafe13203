//! Trees in answers.

use serde::Serialize;
use utoipa::ToSchema;

use crate::desktop::picture::Region;

/// The names of states, by AT-SPI's numbers.
#[rustfmt::skip]
const STATES: [&str; 44] = [
    "invalid", "active", "armed", "busy", "checked", "collapsed", "defunct", "editable", "enabled", "expandable", "expanded",
    "focusable", "focused", "has tooltip", "horizontal", "iconified", "modal", "multi line", "multiselectable", "opaque",
    "pressed", "resizable", "selectable", "selected", "sensitive", "showing", "single line", "stale", "transient", "vertical",
    "visible", "manages descendants", "indeterminate", "required", "truncated", "animated", "invalid entry",
    "supports autocompletion", "selectable text", "is default", "visited", "checkable", "has popup", "read only",
];
const SHOWING: &str = "showing";
/// Programs report coordinates beyond this if they don't know a position.
const FARTHEST: i32 = 1 << 15;

/// A box on the screen, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct ScreenBox {
    pub x: i32,
    pub y: i32,
    pub width: u32,
    pub height: u32,
}

impl From<Region> for ScreenBox {
    fn from(Region { x, y, width, height }: Region) -> Self {
        Self { x, y, width, height }
    }
}

/// A number for elements with a range, a text for those with text.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum NodeValue {
    Number(f64),
    Text(String),
}

/// An element of a program's user interface, with its children.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct AccessibleNode {
    /// AT-SPI's name of the role, such as `push button`.
    pub role: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The text or number that it contains, if that is not its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<NodeValue>,
    /// AT-SPI's names of its states, such as `focused`, `checked`, `sensitive`.
    pub states: Vec<&'static str>,
    /// Its box on the screen, if it is shown.
    #[serde(rename = "box", skip_serializing_if = "Option::is_none")]
    pub place: Option<ScreenBox>,
    /// For a program: its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[schema(no_recursion)]
    pub children: Vec<AccessibleNode>,
}

/// The accessibility tree.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct AccessibilityTree {
    /// The desktop, with its programs as children, or the requested window.
    pub tree: AccessibleNode,
    /// The number of nodes.
    pub nodes: usize,
    /// Whether nodes are missing, because of the limits or the time.
    pub truncated: bool,
    /// Processes of programs that did not answer in time.
    pub silent: Vec<u32>,
}

/// The names of states, which are bits in 32-bit words.
pub(super) fn states(words: &[u32]) -> Vec<&'static str> {
    let is_set = |bit: usize| words.get(bit / 32).is_some_and(|word| word & (1 << (bit % 32)) != 0);
    STATES.iter().enumerate().filter(|(bit, _)| is_set(*bit)).map(|(_, name)| *name).collect()
}

/// A state by its name, if AT-SPI has it.
pub fn known_state(name: &str) -> Option<&'static str> {
    STATES.into_iter().find(|known| *known == name)
}

/// Where a node with these states is on the screen, if it is shown.
pub fn place(states: &[&'static str], [x, y, width, height]: [i32; 4]) -> Option<ScreenBox> {
    let is_place = |at: i32| (-FARTHEST..=FARTHEST).contains(&at);
    let is_length = |length: i32| (1..=FARTHEST).contains(&length);
    let is_there = states.contains(&SHOWING) && is_place(x) && is_place(y) && is_length(width) && is_length(height);
    is_there.then(|| ScreenBox { x, y, width: width.unsigned_abs(), height: height.unsigned_abs() })
}

/// A node and the number of its parent, which comes before it.
pub(super) type Slot = (AccessibleNode, Option<usize>);

/// Moves nodes into their parents; returns the roots, in order.
pub(super) fn assemble(mut slots: Vec<Slot>) -> Vec<AccessibleNode> {
    let mut roots = Vec::new();
    // Processed from the end, a node is complete when it is taken, with its children in reverse order.
    while let Some((mut node, parent)) = slots.pop() {
        node.children.reverse();
        match parent.and_then(|parent| slots.get_mut(parent)) {
            Some((parent, _)) => parent.children.push(node),
            None => roots.push(node),
        }
    }
    roots.reverse();
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_bits() {
        assert_eq!(states(&[1 << 25 | 1 << 12, 1 << 9]), ["focused", "showing", "checkable"]);
        assert_eq!(states(&[]), [""; 0]);
        assert_eq!(states(&[0, 0, u32::MAX, 7]), [""; 0]);
        assert_eq!(states(&[u32::MAX; 2]).len(), STATES.len());
    }

    #[test]
    fn only_what_shows_has_a_place() {
        let shown = ScreenBox { x: -3, y: 4, width: 10, height: 20 };
        assert_eq!(place(&["showing"], [-3, 4, 10, 20]), Some(shown));
        assert_eq!(place(&["visible"], [-3, 4, 10, 20]), None);
        for extents in [[i32::MIN, i32::MIN, 1, 1], [0, 0, 0, 5], [0, 0, -1, -1], [0, 0, i32::MAX, 1]] {
            assert_eq!(place(&["showing"], extents), None, "{extents:?}");
        }
    }

    #[test]
    fn nodes_find_their_parents() {
        let node = |name: &str| AccessibleNode { name: name.to_owned(), ..AccessibleNode::default() };
        let slots =
            vec![(node("a"), None), (node("b"), None), (node("a1"), Some(0)), (node("a2"), Some(0)), (node("a1x"), Some(2))];
        let trees = assemble(slots);
        let names = |nodes: &[AccessibleNode]| nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&trees), ["a", "b"]);
        assert_eq!(names(&trees[0].children), ["a1", "a2"]);
        assert_eq!(names(&trees[0].children[0].children), ["a1x"]);
    }
}
