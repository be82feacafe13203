//! Server-sent events, split as their bytes pass.

/// Largest event that is read, in bytes. A larger one passes unread.
pub(super) const MAX_EVENT: usize = 1 << 20;

/// Splits a stream into events.
#[derive(Default)]
pub(super) struct Events {
    /// The bytes of the current event.
    partial: Vec<u8>,
    /// The current line has content.
    has_content: bool,
    /// The current event is over its limit.
    is_oversized: bool,
}

/// A part of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A whole event with its end.
    Event(Vec<u8>),
    /// Bytes of an event that is not read.
    Oversized(Vec<u8>),
}

impl Events {
    /// The events that these bytes complete, in order.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_line_end = part.ends_with(b"\n");
            self.has_content |= part.iter().any(|byte| !matches!(byte, b'\r' | b'\n'));
            self.partial.extend_from_slice(part);
            let is_event_end = is_line_end && !self.has_content;
            if is_line_end {
                self.has_content = false;
            }
            if self.is_oversized || self.partial.len() > MAX_EVENT {
                self.is_oversized = !is_event_end;
                pieces.push(Piece::Oversized(std::mem::take(&mut self.partial)));
            } else if is_event_end {
                pieces.push(Piece::Event(std::mem::take(&mut self.partial)));
            }
        }
        pieces
    }

    /// What is left at the end of the stream.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }
}

/// The data of an event.
pub(super) fn data(event: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    for line in event.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(value) = line.strip_prefix(b"data:") else { continue };
        if !data.is_empty() {
            data.push(b'\n');
        }
        data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_split_wherever_the_bytes_are() {
        let text = b": hi\n\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\ndata:x\n\ndata: rest";
        for size in 1..text.len() {
            let mut events = Events::default();
            let pieces: Vec<Piece> = text.chunks(size).flat_map(|bytes| events.feed(bytes)).collect();
            let read: Vec<Vec<u8>> = pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Event(event) => data(event),
                    Piece::Oversized(_) => panic!("{piece:?}"),
                })
                .collect();
            assert_eq!(read, [b"".to_vec(), b"1\n2".to_vec(), b"x".to_vec()], "{size}");
            assert_eq!(events.rest(), b"data: rest");
        }
    }

    #[test]
    fn a_line_of_ten_megabytes_passes_and_is_not_held() {
        let mut events = Events::default();
        let mut passed = 0;
        for _ in 0..160 {
            for piece in events.feed(&[b'x'; 64 << 10]) {
                let Piece::Oversized(bytes) = piece else { panic!("it was read") };
                passed += bytes.len();
            }
            assert!(events.partial.len() <= MAX_EVENT);
        }
        assert!(passed >= 9 << 20);
        assert!(matches!(&events.feed(b"\n\ndata: 1\n\n")[..], [.., Piece::Event(event)] if event == b"data: 1\n\n"));
    }
}
