//! Watching files change.
//!
//! ```text
//!  kernel (inotify) ──► tree: which directory it was ──► changes: a window's events on a path become one
//!                         ▲                                            │
//!                         └── new directories are looked through       ▼
//!                                                  feed: numbered, bounded, read by poll and by streams
//! ```
//!
//! A watcher is one task of the runtime. What needs the user's rights (opening, looking, watching) it has done on a thread
//! of [`super::worker`]. Of inotify a watcher has its own instance, so that a flood in one makes no other one lose
//! events.

mod changes;
mod feed;
mod routes;
mod selection;
mod service;
mod tree;
mod wait;
mod watcher;

pub use feed::{FileEvent, FileEventType};
pub use routes::WatchApi;
pub(super) use routes::router;
pub(super) use service::Watches;
