//! What programs of the desktop say that they show, for eyes that read rather than look: AT-SPI's trees.
//!
//! Each program of the accessibility bus is asked itself, and the registry is not: it may have been killed, and then knows
//! none of those that were there before. Pages of the browser are not in these trees; they are read over the DevTools protocol.

mod tree;
mod walk;

pub use tree::{AccessibilityTree, AccessibleNode, NodeValue, ScreenBox};
pub(crate) use tree::{known_state, place as place_of};
pub(super) use walk::{Wanted, read};

/// Levels of a tree, the programs being the first.
pub(super) const MAX_DEPTH: u32 = 64;
/// Nodes of one answer.
pub(super) const MAX_NODES: u32 = 5000;
