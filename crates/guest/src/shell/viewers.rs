//! Those who look at a session's terminal, and what they see when they come.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::Sender;

use crate::process::incomplete_end;

/// Viewers of one session; the next is refused.
pub(super) const MAX_VIEWERS: usize = 16;
/// Pieces that a viewer may be behind, each at most what one read brings (8 KiB); then it is dropped.
pub(super) const BEHIND: usize = 128;
/// Bytes of the terminal's past that a new viewer gets.
const SCROLLBACK: usize = 32 << 10;
/// The most pieces of the scrollback.
const PIECES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Viewers {
    senders: Vec<Sender<Arc<str>>>,
    past: VecDeque<Arc<str>>,
    past_bytes: usize,
    /// A character that is not complete yet.
    partial: Vec<u8>,
}

impl Viewers {
    /// Adds one; false: there are too many.
    pub(super) fn attach(&mut self, viewer: Sender<Arc<str>>) -> bool {
        if self.senders.len() >= MAX_VIEWERS {
            return false;
        }
        let past: String = self.past.iter().map(|piece| &**piece).collect();
        if !past.is_empty() && viewer.try_send(past.into()).is_err() {
            return false;
        }
        self.senders.push(viewer);
        true
    }

    /// Those who are still there.
    pub(super) fn count(&mut self) -> usize {
        self.senders.retain(|viewer| !viewer.is_closed());
        self.senders.len()
    }

    /// Shows something to all; who is too far behind is dropped, not waited for.
    pub(super) fn show(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        let cut = self.partial.len() - incomplete_end(&self.partial);
        if cut == 0 {
            return;
        }
        let text: Arc<str> = String::from_utf8_lossy(&self.partial[..cut]).into();
        self.partial.drain(..cut);
        self.past_bytes += text.len();
        self.past.push_back(Arc::clone(&text));
        while (self.past_bytes > SCROLLBACK || self.past.len() > PIECES) && self.past.len() > 1 {
            let gone = self.past.pop_front();
            self.past_bytes -= gone.map_or(0, |piece| piece.len());
        }
        self.senders.retain(|viewer| viewer.try_send(Arc::clone(&text)).is_ok());
    }
}
