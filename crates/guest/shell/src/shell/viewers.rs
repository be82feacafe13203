//! The viewers of a session's terminal, and the scrollback that they get at first.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::Sender;

use arenite_guest_runtime::process::incomplete_end;

/// The most viewers of one session. Further ones are refused.
pub(super) const MAX_VIEWERS: usize = 16;
/// The most pieces that a viewer may lag behind, each at most one read (8 KiB). Then it is dropped.
pub(super) const BEHIND: usize = 128;
/// Bytes of recent output that a new viewer gets.
const SCROLLBACK: usize = 32 << 10;
/// The most pieces of the scrollback.
const PIECES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Viewers {
    senders: Vec<Sender<Arc<str>>>,
    past: VecDeque<Arc<str>>,
    past_bytes: usize,
    /// The bytes of an incomplete character.
    partial: Vec<u8>,
}

impl Viewers {
    /// Adds a viewer. Returns false if there are too many, or it can't take the scrollback.
    pub(super) fn attach(&mut self, viewer: Sender<Arc<str>>) -> bool {
        if self.count() >= MAX_VIEWERS {
            return false;
        }
        let past: String = self.past.iter().map(|piece| &**piece).collect();
        if !past.is_empty() && viewer.try_send(past.into()).is_err() {
            return false;
        }
        self.senders.push(viewer);
        true
    }

    /// The number of connected viewers.
    pub(super) fn count(&mut self) -> usize {
        self.senders.retain(|viewer| !viewer.is_closed());
        self.senders.len()
    }

    /// Sends output to all viewers. A viewer that lags too far behind is dropped, not waited for.
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
