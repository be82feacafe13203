//! A watcher's events, numbered, for readers that come at any time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa::ToSchema;

/// The most events kept for readers, and the most bytes of their paths. The oldest are dropped first.
const MAX_EVENTS: usize = 10_000;
const MAX_BYTES: usize = 2 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileEventType {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
}

/// One change.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileEvent {
    /// Counts from 1, with gaps where events were lost.
    pub seq: u64,
    #[serde(rename = "type")]
    pub kind: FileEventType,
    pub path: String,
    /// Relative to the watched path.
    pub relative_path: String,
    /// Where it was, for `rename`.
    pub old_path: Option<String>,
    pub is_dir: bool,
    /// When it was seen, in seconds since 1970.
    pub timestamp: f64,
    /// Of the current file; null if it does not exist.
    pub mtime: Option<f64>,
    pub size: Option<u64>,
    pub inode: Option<u64>,
}

/// The events that a reader gets.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Page {
    pub(super) events: Vec<FileEvent>,
    /// The number of the last event in this page.
    pub(super) cursor: u64,
    /// Events after the reader's cursor were lost: check the files again.
    pub(super) overflow: bool,
    /// The watched path is gone, or the watcher was stopped: no more events follow.
    pub(super) closed: bool,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<FileEvent>,
    bytes: usize,
    /// The last assigned number, of an event or of a loss.
    last: u64,
    /// The number of the last loss.
    lost: u64,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct Feed {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

fn weight(event: &FileEvent) -> usize {
    event.path.len() + event.relative_path.len() + event.old_path.as_ref().map_or(0, String::len)
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events and assigns their numbers.
    pub(super) fn push(&self, events: Vec<FileEvent>) {
        let mut state = self.lock();
        for mut event in events {
            state.last += 1;
            event.seq = state.last;
            state.bytes += weight(&event);
            state.events.push_back(event);
            while state.events.len() > MAX_EVENTS || state.bytes > MAX_BYTES {
                let Some(oldest) = state.events.pop_front() else { break };
                state.bytes -= weight(&oldest);
                state.lost = oldest.seq;
            }
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Records that events were lost.
    pub(super) fn lose(&self) {
        let mut state = self.lock();
        state.last += 1;
        state.lost = state.last;
        drop(state);
        self.changed.send_replace(());
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.send_replace(());
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn cursor(&self) -> u64 {
        self.lock().last
    }

    /// The events after `cursor`.
    pub(super) fn after(&self, cursor: u64, limit: usize) -> Page {
        let state = self.lock();
        // A cursor from elsewhere: this reader has none of these events.
        let (cursor, foreign) = if cursor > state.last { (0, true) } else { (cursor, false) };
        let overflow = foreign || cursor < state.lost;
        let from = state.events.partition_point(|event| event.seq <= cursor);
        let events: Vec<FileEvent> = state.events.range(from..).take(limit).cloned().collect();
        let whole = from + events.len() == state.events.len();
        let cursor = if whole { state.last } else { events.last().map_or(cursor, |event| event.seq) };
        Page { events, cursor, overflow, closed: state.closed }
    }

    /// The same. Waits until there are events.
    pub(super) async fn wait(&self, cursor: u64, limit: usize, until: Option<Instant>) -> Page {
        let mut changed = self.changed.subscribe();
        loop {
            let page = self.after(cursor, limit);
            if !page.events.is_empty() || page.overflow || page.closed {
                return page;
            }
            let change = changed.changed();
            let more = match until {
                Some(until) => tokio::time::timeout_at(until, change).await.is_ok(),
                None => change.await.is_ok(),
            };
            if !more {
                return page;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(path: &str) -> FileEvent {
        FileEvent {
            seq: 0,
            kind: FileEventType::Create,
            path: path.to_owned(),
            relative_path: String::new(),
            old_path: None,
            is_dir: false,
            timestamp: 0.0,
            mtime: None,
            size: None,
            inode: None,
        }
    }

    fn numbers(page: &Page) -> Vec<u64> {
        page.events.iter().map(|e| e.seq).collect()
    }

    #[test]
    fn readers_go_on_where_they_were_and_hear_of_losses_once() {
        let feed = Feed::default();
        feed.push(vec![event("a"), event("b"), event("c")]);
        let first = feed.after(0, 2);
        assert_eq!((numbers(&first), first.cursor, first.overflow), (vec![1, 2], 2, false));
        let second = feed.after(first.cursor, 2);
        assert_eq!((numbers(&second), second.cursor), (vec![3], 3));
        feed.lose();
        feed.push(vec![event("d")]);
        let third = feed.after(second.cursor, 10);
        assert_eq!((numbers(&third), third.cursor, third.overflow), (vec![5], 5, true));
        let fourth = feed.after(third.cursor, 10);
        assert_eq!((numbers(&fourth), fourth.cursor, fourth.overflow), (vec![], 5, false));
        assert!(feed.after(99, 10).overflow);
        feed.push((0..MAX_EVENTS).map(|_| event("x")).collect());
        let late = feed.after(5, 3);
        assert_eq!((numbers(&late), late.overflow), (vec![6, 7, 8], false));
        assert!(feed.after(0, 3).overflow);
    }

    #[test]
    fn memory_is_bounded_by_bytes_too() {
        let feed = Feed::default();
        let long = "x".repeat(4000);
        feed.push((0..2000).map(|_| event(&long)).collect());
        assert!(feed.lock().bytes <= MAX_BYTES && feed.after(0, 1).overflow);
    }
}
