use std::time::Duration;

/// The recorder's bounds; what happens at each is said with it.
#[derive(Debug, Clone)]
pub struct Limits {
    /// A body up to this many bytes that is JSON or text stands in the record itself; a larger one, or binary, becomes a
    /// blob. At most 64 KiB.
    pub inline_bytes: usize,
    /// A body up to this many bytes is kept as a blob; of a larger one only hash and length (`truncated`).
    pub body_bytes: u64,
    /// All blobs together, in bytes, those being written included. Beyond it bodies are only hashed, marked `store_full`
    /// and counted.
    pub blobs_bytes: u64,
    /// All logs together, in bytes. Beyond it `begin` refuses, so no call is made without its record.
    pub logs_bytes: u64,
    /// Disk space kept for outcomes of accepted calls, in bytes. Calls are refused as long as it can't be had.
    pub reserve_bytes: u64,
    /// Log files held open at once; the least recently used are closed first.
    pub open_files: usize,
    /// Calls under way at once in one trajectory; beyond it `begin` refuses.
    pub open_steps: usize,
    /// Those who follow one trajectory at once; beyond it a further one is refused.
    pub followers: usize,
    /// Time from a write to its `fdatasync`, at most.
    pub sync_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inline_bytes: 16 << 10,
            body_bytes: 8 << 20,
            blobs_bytes: 20 << 30,
            logs_bytes: 20 << 30,
            reserve_bytes: 16 << 20,
            open_files: 512,
            open_steps: 4096,
            followers: 32,
            sync_every: Duration::from_secs(1),
        }
    }
}

/// The most bytes of an action that are kept; the rest is cut and marked with an ellipsis.
pub(crate) const MAX_ACTION: usize = 4 << 10;
/// The most bytes of an error text, an origin, a sandbox's name or a request id that are kept.
pub(crate) const MAX_TEXT: usize = 2 << 10;
/// The most steps that one read answers.
pub(crate) const MAX_PAGE: usize = 1000;
