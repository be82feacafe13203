use std::time::Duration;

/// The recorder's limits, and what happens at each.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest JSON or text body in the record itself, in bytes; a larger or binary body becomes a blob. At most 64 KiB.
    pub inline_bytes: usize,
    /// Largest body kept as a blob, in bytes; of a larger one, only hash and length are kept (`truncated`).
    pub body_bytes: u64,
    /// All blobs together, in bytes, including those being written. Beyond this, bodies are only hashed, marked `store_full` and
    /// counted.
    pub blobs_bytes: u64,
    /// All logs together, in bytes. Beyond this, `begin` refuses, so no call is made without its record.
    pub logs_bytes: u64,
    /// Disk space reserved for outcomes of accepted calls, in bytes. Calls are refused while it can't be allocated.
    pub reserve_bytes: u64,
    /// Log files held open at once; the least recently used are closed first.
    pub open_files: usize,
    /// Open steps in one trajectory; beyond this, `begin` refuses.
    pub open_steps: usize,
    /// Followers of one trajectory; beyond this, further ones are refused.
    pub followers: usize,
    /// Longest time from a write to its `fdatasync`.
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

/// Largest action that is kept, in bytes; the rest is cut and marked with an ellipsis.
pub(crate) const MAX_ACTION: usize = 4 << 10;
/// Largest error text, origin, sandbox name or request id that is kept, in bytes.
pub(crate) const MAX_TEXT: usize = 2 << 10;
/// The most steps that one read returns.
pub(crate) const MAX_PAGE: usize = 1000;
