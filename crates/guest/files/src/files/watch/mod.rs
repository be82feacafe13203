//! Watches files for changes.
//!
//! ```text
//!  kernel (inotify) ──► tree: which directory it was ──► changes: a window's events on a path become one
//!                         ▲                                            │
//!                         └── new directories are searched             ▼
//!                                                  feed: numbered, bounded, read by poll and by streams
//! ```
//!
//! A watcher is one task of the runtime. Operations that need the user's rights (open, stat, watch) run on a thread of
//! [`arenite_guest_runtime::workers`]. Each watcher has its own inotify instance, so that a flood in one does not make others
//! lose events.

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
