//! The accessibility trees (AT-SPI) of the desktop's programs, for clients that read text instead of screenshots.
//!
//! Each program on the accessibility bus is asked directly, not through the registry: a registry that was killed and restarted
//! does not know the programs from before. Pages of the browser are not in these trees; they are read over the DevTools protocol.

mod tree;
mod walk;

pub use tree::{AccessibilityTree, AccessibleNode, NodeValue, ScreenBox};
pub use tree::{known_state, place as place_of};
pub(super) use walk::{Wanted, read};

/// Maximum levels of a tree; programs are the first.
pub(super) const MAX_DEPTH: u32 = 64;
/// Maximum nodes of one answer.
pub(super) const MAX_NODES: u32 = 5000;
