//! The history of edits, for undo.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// The most edits kept, over all files. The oldest are dropped first.
pub(super) const MAX_EDITS: usize = 256;
/// The most bytes of old content kept, over all files. The oldest are dropped first.
pub(super) const MAX_BYTES: usize = 32 << 20;

/// The state before an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    Content(String),
}

impl Before {
    fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Content(text) => text.len(),
        }
    }
}

/// Edits, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    edits: VecDeque<(PathBuf, Before)>,
    bytes: usize,
}

impl History {
    pub(super) fn push(&mut self, path: PathBuf, before: Before) {
        self.bytes += before.bytes();
        self.edits.push_back((path, before));
        while self.edits.len() > MAX_EDITS || self.bytes > MAX_BYTES {
            if let Some((_, before)) = self.edits.pop_front() {
                self.bytes -= before.bytes();
            }
        }
    }

    /// Removes the last edit of a file and returns the content that it replaced.
    pub(super) fn pop(&mut self, path: &Path) -> Option<Before> {
        let last = self.edits.iter().rposition(|(of, _)| of == path)?;
        let (_, before) = self.edits.remove(last)?;
        self.bytes -= before.bytes();
        if self.edits.is_empty() {
            self.edits.shrink_to_fit();
        }
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_edit_of_each_file_comes_first_and_the_oldest_are_lost() {
        let mut history = History::default();
        let (a, b) = (Path::new("/a"), Path::new("/b"));
        history.push(a.into(), Before::Nothing);
        history.push(b.into(), Before::Content("b1".into()));
        history.push(a.into(), Before::Content("a1".into()));
        assert_eq!(history.pop(a), Some(Before::Content("a1".into())));
        assert_eq!(history.pop(a), Some(Before::Nothing));
        assert_eq!(history.pop(a), None);
        for n in 0..=MAX_EDITS {
            history.push(a.into(), Before::Content(n.to_string()));
        }
        assert_eq!(history.pop(b), None);
        history.push(a.into(), Before::Content("x".repeat(MAX_BYTES)));
        assert_eq!((history.edits.len(), history.bytes), (1, MAX_BYTES));
        assert!(history.pop(a).is_some());
        assert_eq!((history.pop(a), history.bytes), (None, 0));
    }
}
