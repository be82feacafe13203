//! The outputs of all commands of a session as one stream, in order of arrival.
//!
//! It stores no bytes, only the position of each piece in its command's stream.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::command::{Command, Stream};

/// The most alternations between the commands of a session. Beyond it, the oldest can no longer be read.
const MAX_SEGMENTS: usize = 4096;

#[derive(Debug)]
struct Segment {
    start: u64,
    length: u64,
    command: Weak<Command>,
    /// The start of the piece in the command's own stream.
    at: u64,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    total: u64,
    segments: VecDeque<Segment>,
}

impl Log {
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Records that `length` bytes arrived, at `at` in the command's own stream.
    pub(super) fn note(&mut self, command: &Arc<Command>, at: u64, length: u64) {
        let start = self.total;
        self.total += length;
        if let Some(last) = self.segments.back_mut()
            && last.at + last.length == at
            && last.command.as_ptr() == Arc::as_ptr(command)
        {
            last.length += length;
            return;
        }
        if self.segments.len() == MAX_SEGMENTS {
            self.segments.pop_front();
        }
        self.segments.push_back(Segment { start, length, command: Arc::downgrade(command), at });
    }

    /// The pieces from `offset` on, oldest first: a number of lost bytes, or the position of the bytes.
    pub(super) fn pieces(&self, offset: u64) -> Vec<LogPiece> {
        let mut pieces = Vec::new();
        let first = self.segments.partition_point(|s| s.start + s.length <= offset);
        let known = self.segments.get(first).map_or(self.total, |s| s.start);
        if known > offset {
            pieces.push(LogPiece::Lost(known - offset));
        }
        for segment in self.segments.iter().skip(first) {
            let skipped = offset.saturating_sub(segment.start);
            let (at, length) = (segment.at + skipped, segment.length - skipped);
            pieces.push(match segment.command.upgrade() {
                Some(command) => LogPiece::Kept { command, range: at..at + length },
                None => LogPiece::Lost(length),
            });
        }
        pieces
    }
}

pub(super) enum LogPiece {
    Lost(u64),
    Kept { command: Arc<Command>, range: std::ops::Range<u64> },
}

impl LogPiece {
    /// Appends the piece's bytes to `to` and returns the number of lost bytes.
    pub(super) fn append_to(self, stream: Stream, to: &mut Vec<u8>) -> u64 {
        let piece = match self {
            Self::Lost(gap) => arenite_guest_runtime::process::Piece { gap, ..Default::default() },
            Self::Kept { command, range } => command.read_range(stream, range),
        };
        let gap = piece.gap;
        piece.append_to(to);
        gap
    }
}
