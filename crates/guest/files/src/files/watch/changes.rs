//! Pending changes: the events of a path within one window become one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::feed::FileEventType;

/// The most waiting paths. At the bound, all are reported at once.
const MAX_WAITING: usize = 10_000;
/// How long the first half of a move waits for the second.
const MOVE_PATIENCE: Duration = Duration::from_millis(50);

/// One change to report. Paths are relative to the watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) kind: FileEventType,
    pub(super) path: PathBuf,
    pub(super) old_path: Option<PathBuf>,
    pub(super) is_dir: bool,
}

#[derive(Debug)]
struct Waiting {
    kind: FileEventType,
    old_path: Option<PathBuf>,
    is_dir: bool,
    due: Instant,
    order: u64,
}

#[derive(Debug)]
struct Departed {
    path: PathBuf,
    is_dir: bool,
    until: Instant,
}

#[derive(Debug)]
pub(super) struct Changes {
    window: Duration,
    waiting: HashMap<PathBuf, Waiting>,
    departed: HashMap<u32, Departed>,
    order: u64,
}

impl Changes {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, waiting: HashMap::new(), departed: HashMap::new(), order: 0 }
    }

    fn insert(&mut self, path: PathBuf, kind: FileEventType, old_path: Option<PathBuf>, is_dir: bool, due: Instant) {
        self.order += 1;
        let order = self.order;
        self.waiting.insert(path, Waiting { kind, old_path, is_dir, due, order });
    }

    /// Records an event on a path.
    pub(super) fn note(&mut self, kind: FileEventType, path: &Path, is_dir: bool, now: Instant) {
        use FileEventType::{Chmod, Create, Remove, Rename, Write};
        let Some(waiting) = self.waiting.get_mut(path) else {
            return self.insert(path.to_owned(), kind, None, is_dir, now + self.window);
        };
        match (waiting.kind, kind) {
            // It was created and removed.
            (Create, Remove) => drop(self.waiting.remove(path)),
            // A renamed file that is removed is removed from its old path.
            (Rename, Remove) => {
                if let Some(Waiting { old_path: Some(old), .. }) = self.waiting.remove(path) {
                    self.note(Remove, &old, is_dir, now);
                }
            }
            // Replaced: for a reader the content changed. All content of a directory is new.
            (Remove, Create) => (waiting.kind, waiting.is_dir) = (if is_dir { Create } else { Write }, is_dir),
            (Write | Chmod, Remove) => waiting.kind = Remove,
            (Chmod, Write) => waiting.kind = Write,
            // A file that was replaced by a rename over it.
            (Write | Chmod, Create) => waiting.kind = Write,
            (Remove, _) | (_, Rename) => (waiting.kind, waiting.is_dir) = (kind, is_dir),
            (Create | Rename | Write, _) | (Chmod, Chmod) => {}
        }
    }

    /// Records the first half of a move.
    pub(super) fn depart(&mut self, cookie: u32, path: PathBuf, is_dir: bool, now: Instant) {
        self.departed.insert(cookie, Departed { path, is_dir, until: now + MOVE_PATIENCE });
    }

    /// Records the second half. Returns the old path, if it is inside the watched tree.
    pub(super) fn arrive(&mut self, cookie: u32, path: &Path, is_dir: bool, now: Instant) -> Option<PathBuf> {
        let Some(Departed { path: from, .. }) = self.departed.remove(&cookie) else {
            self.note(FileEventType::Create, path, is_dir, now);
            return None;
        };
        if is_dir {
            self.carry(&from, path);
        }
        let before = self.waiting.remove(&from);
        let due = before.as_ref().map_or(now + self.window, |b| b.due);
        match before {
            // Created under another name and then moved into place, as careful writers do.
            Some(Waiting { kind: FileEventType::Create, .. }) => self.note(FileEventType::Create, path, is_dir, now),
            Some(Waiting { kind: FileEventType::Rename, old_path: Some(origin), .. }) if origin != path => {
                self.insert(path.to_owned(), FileEventType::Rename, Some(origin), is_dir, due);
            }
            // Moved away and back.
            Some(Waiting { kind: FileEventType::Rename, .. }) => self.note(FileEventType::Write, path, is_dir, now),
            _ => self.insert(path.to_owned(), FileEventType::Rename, Some(from.clone()), is_dir, due),
        }
        Some(from)
    }

    /// Moves the pending changes of a moved directory to its new path.
    fn carry(&mut self, from: &Path, to: &Path) {
        let inside: Vec<PathBuf> = self.waiting.keys().filter(|p| p.starts_with(from) && *p != from).cloned().collect();
        for path in inside {
            if let (Some(waiting), Ok(rest)) = (self.waiting.remove(&path), path.strip_prefix(from)) {
                self.waiting.insert(to.join(rest), waiting);
            }
        }
    }

    /// Moves without a second half: these paths left the tree.
    pub(super) fn left(&mut self, now: Instant) -> Vec<(PathBuf, bool)> {
        let gone: Vec<u32> = self.departed.iter().filter(|(_, d)| d.until <= now).map(|(cookie, _)| *cookie).collect();
        let gone: Vec<Departed> = gone.iter().filter_map(|cookie| self.departed.remove(cookie)).collect();
        for departed in &gone {
            self.note(FileEventType::Remove, &departed.path, departed.is_dir, now);
        }
        gone.into_iter().map(|d| (d.path, d.is_dir)).collect()
    }

    /// When the next change is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.values().map(|w| w.due).chain(self.departed.values().map(|d| d.until)).min()
    }

    /// The changes that are due, in the order in which they started.
    pub(super) fn due(&mut self, now: Instant, all: bool) -> Vec<Change> {
        let all = all || self.waiting.len() > MAX_WAITING;
        let mut due: Vec<(u64, Change)> = self
            .waiting
            .extract_if(|_, waiting| all || waiting.due <= now)
            .map(|(path, w)| (w.order, Change { kind: w.kind, path, old_path: w.old_path, is_dir: w.is_dir }))
            .collect();
        due.sort_unstable_by_key(|(order, _)| *order);
        due.into_iter().map(|(_, change)| change).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::FileEventType::{Chmod, Create, Remove, Rename, Write};
    use super::*;

    /// The changes reported for events on `a` and `b`.
    fn told(steps: impl FnOnce(&mut Changes, Instant)) -> Vec<(FileEventType, String, Option<String>)> {
        let mut changes = Changes::new(Duration::from_millis(100));
        let now = Instant::now();
        steps(&mut changes, now);
        changes.left(now + MOVE_PATIENCE);
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let due = changes.due(now + Duration::from_secs(1), false);
        assert_eq!(changes.next(), None);
        due.into_iter().map(|c| (c.kind, text(c.path), c.old_path.map(text))).collect()
    }

    #[test]
    fn a_window_tells_what_a_reader_would_see() {
        let (a, b) = (Path::new("a"), Path::new("b"));
        let notes = |kinds: &[FileEventType]| {
            let events = told(|c, now| kinds.iter().for_each(|kind| c.note(*kind, a, false, now)));
            events.into_iter().map(|(kind, ..)| kind).collect::<Vec<_>>()
        };
        assert_eq!(notes(&[Create, Write, Write, Chmod]), [Create]);
        assert_eq!(notes(&[Create, Write, Remove]), []);
        assert_eq!(notes(&[Write, Chmod]), [Write]);
        assert_eq!(notes(&[Chmod, Write]), [Write]);
        assert_eq!(notes(&[Chmod, Remove]), [Remove]);
        assert_eq!(notes(&[Remove, Create, Write]), [Write]);
        let moved = |steps: &dyn Fn(&mut Changes, Instant)| told(|c, now| steps(c, now));
        let go = |c: &mut Changes, from: &Path, to: &Path, now| {
            c.depart(7, from.to_owned(), false, now);
            c.arrive(7, to, false, now);
        };
        assert_eq!(moved(&|c, now| go(c, a, b, now)), [(Rename, "b".to_owned(), Some("a".to_owned()))]);
        // A careful writer's temporary file is not reported.
        let careful = moved(&|c, now| {
            c.note(Create, a, false, now);
            c.note(Write, a, false, now);
            go(c, a, b, now);
        });
        assert_eq!(careful, [(Create, "b".to_owned(), None)]);
        let away_and_back = moved(&|c, now| {
            go(c, a, b, now);
            go(c, b, a, now);
        });
        assert_eq!(away_and_back, [(Write, "a".to_owned(), None)]);
        let then_removed = moved(&|c, now| {
            go(c, a, b, now);
            c.note(Remove, b, false, now);
        });
        assert_eq!(then_removed, [(Remove, "a".to_owned(), None)]);
        let out = moved(&|c, now| c.depart(8, a.to_owned(), false, now));
        assert_eq!(out, [(Remove, "a".to_owned(), None)]);
        let into = moved(&|c, now| assert_eq!(c.arrive(9, a, false, now), None));
        assert_eq!(into, [(Create, "a".to_owned(), None)]);
    }

    #[test]
    fn what_waits_in_a_directory_moves_with_it() {
        let events = told(|c, now| {
            c.note(Write, Path::new("d/f"), false, now);
            c.depart(1, PathBuf::from("d"), true, now);
            c.arrive(1, Path::new("e"), true, now);
        });
        assert_eq!(events, [(Write, "e/f".to_owned(), None), (Rename, "e".to_owned(), Some("d".to_owned()))]);
    }

    #[test]
    fn the_window_begins_with_the_first_event_and_does_not_move() {
        let mut changes = Changes::new(Duration::from_millis(100));
        let now = Instant::now();
        changes.note(Write, Path::new("a"), false, now);
        changes.note(Write, Path::new("a"), false, now + Duration::from_millis(90));
        assert_eq!(changes.next(), Some(now + Duration::from_millis(100)));
        assert!(changes.due(now + Duration::from_millis(99), false).is_empty());
        assert_eq!(changes.due(now + Duration::from_millis(100), false).len(), 1);
    }
}
