//! D-Bus messages: encoding calls, and parsing answers.

use bytes::{Buf, BytesMut};

use super::wire::{Malformed, Reader, Writer};

/// Maximum bytes of an answer's body; longer ones are skipped.
pub(super) const MAX_BODY: usize = 256 << 10;
/// Maximum bytes of an answer's header fields.
const MAX_FIELDS: usize = 64 << 10;
/// The protocol's maximum bytes of a whole message.
const MAX_MESSAGE: usize = 128 << 20;
/// Bytes of the fixed part of a header, which ends with the length of the fields.
const FIXED: usize = 16;
/// The flag that keeps the bus from starting the destination.
const NO_AUTO_START: u8 = 2;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;

/// A call of a method.
#[derive(Debug, Clone)]
pub(in crate::desktop) struct BusCall {
    pub(in crate::desktop) destination: String,
    pub(in crate::desktop) path: String,
    pub(in crate::desktop) interface: &'static str,
    pub(in crate::desktop) member: &'static str,
    /// The types of the arguments in `body`.
    pub(in crate::desktop) signature: &'static str,
    pub(in crate::desktop) body: Writer,
    /// Whether the bus starts the destination if necessary.
    pub(in crate::desktop) starts: bool,
}

impl BusCall {
    pub(super) fn encode(&self, serial: u32) -> Vec<u8> {
        let mut message = Writer::default();
        for byte in [b'l', CALL, if self.starts { 0 } else { NO_AUTO_START }, 1] {
            message.byte(byte);
        }
        message.u32(u32::try_from(self.body.0.len()).unwrap_or(u32::MAX));
        message.u32(serial);
        // The length of the fields, which is filled in later.
        message.u32(0);
        let texts = [(1, "o", &*self.path), (2, "s", self.interface), (3, "s", self.member), (6, "s", &*self.destination)];
        for (code, kind, value) in texts {
            message.pad(8);
            message.byte(code);
            message.signature(kind);
            message.text(value);
        }
        if !self.signature.is_empty() {
            message.pad(8);
            message.byte(8);
            message.signature("g");
            message.signature(self.signature);
        }
        let fields = u32::try_from(message.0.len() - FIXED).unwrap_or(u32::MAX);
        message.0[FIXED - 4..FIXED].copy_from_slice(&fields.to_le_bytes());
        message.pad(8);
        message.0.extend(&self.body.0);
        message.0
    }
}

/// A received message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::desktop) struct BusReply {
    /// The serial number of the call that it answers; 0: none.
    pub(super) to: u32,
    /// The name of the error, if it is one.
    pub(super) error: Option<String>,
    signature: String,
    big: bool,
    /// `None`: it was too long.
    body: Option<Vec<u8>>,
}

impl BusReply {
    /// Returns its values, if they have the expected types.
    pub(in crate::desktop) fn values(&self, signature: &str) -> Result<Reader<'_>, Malformed> {
        match &self.body {
            Some(body) if self.error.is_none() && self.signature == signature => Ok(Reader::new(body, self.big)),
            _ => Err(Malformed),
        }
    }

    /// Returns a property's value, if it has this type.
    pub(in crate::desktop) fn property(&self, signature: &str) -> Result<Reader<'_>, Malformed> {
        let mut reader = self.values("v")?;
        if reader.signature()? == signature { Ok(reader) } else { Err(Malformed) }
    }

    /// The message of an error.
    pub(super) fn reason(&self) -> String {
        let name = self.error.clone().unwrap_or_default();
        let body = self.body.as_deref().filter(|_| self.signature.starts_with('s')).unwrap_or_default();
        match Reader::new(body, self.big).text() {
            Ok(text) => text.chars().take(300).collect(),
            Err(Malformed) => name,
        }
    }

    /// Approximate bytes of memory.
    pub(super) fn weight(&self) -> usize {
        self.body.as_ref().map_or(0, Vec::len)
    }

    /// Drops the values, as if they had been too long.
    pub(super) fn without_values(self) -> Self {
        Self { body: None, ..self }
    }
}

/// Received bytes that are not whole messages yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) bytes: BytesMut,
    /// Bytes still to come of a message that is too long.
    passed_over: usize,
}

impl Inbox {
    /// Returns the next whole message. Messages that answer nothing answer call 0.
    pub(super) fn next(&mut self) -> Result<Option<BusReply>, Malformed> {
        let now = self.passed_over.min(self.bytes.len());
        self.bytes.advance(now);
        self.passed_over -= now;
        if self.passed_over > 0 || self.bytes.len() < FIXED {
            return Ok(None);
        }
        let big = match self.bytes[0] {
            b'l' => false,
            b'B' => true,
            _ => return Err(Malformed),
        };
        let mut fixed = Reader::new(&self.bytes[4..FIXED], big);
        let (body, _serial, fields) = (fixed.u32()? as usize, fixed.u32()?, fixed.u32()? as usize);
        let head = FIXED + fields.next_multiple_of(8);
        if fields > MAX_FIELDS || body > MAX_MESSAGE {
            return Err(Malformed);
        }
        let is_long = body > MAX_BODY;
        if self.bytes.len() < head + if is_long { 0 } else { body } {
            return Ok(None);
        }
        let mut answer = read_fields(&self.bytes[..FIXED + fields], big)?;
        self.bytes.advance(head);
        if is_long {
            self.passed_over = body;
        } else {
            answer.body = Some(self.bytes.split_to(body).to_vec());
        }
        Ok(Some(answer))
    }
}

fn read_fields(head: &[u8], big: bool) -> Result<BusReply, Malformed> {
    let mut answer = BusReply { big, ..BusReply::default() };
    // They are aligned to the whole message; the fixed part is two times 8 bytes.
    let mut reader = Reader::new(&head[FIXED..], big);
    let mut error = None;
    while !reader.is_at_end() {
        reader.pad(8)?;
        let code = reader.byte()?;
        let signature = reader.signature()?;
        match (code, signature) {
            (4, "s") => error = Some(reader.text()?.to_owned()),
            (5, "u") => answer.to = reader.u32()?,
            (8, "g") => answer.signature = reader.signature()?.to_owned(),
            _ => reader.skip(signature)?,
        }
    }
    match head[1] {
        RETURN => {}
        ERROR => answer.error = Some(error.unwrap_or_default()),
        // Signals, and calls to us. We serve nothing.
        _ => answer.to = 0,
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> BusCall {
        let mut body = Writer::default();
        body.text("org.example.Thing");
        body.i32(-1);
        BusCall {
            destination: ":1.7".to_owned(),
            path: "/a/b".to_owned(),
            interface: "org.example.Thing",
            member: "Do",
            signature: "si",
            body,
            starts: false,
        }
    }

    /// Encodes a call, and turns it into an answer to call 9 by one more field.
    fn answer(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut message = Writer::default();
        for byte in [b'l', kind, 0, 1] {
            message.byte(byte);
        }
        message.u32(body.len() as u32);
        message.u32(3);
        message.u32(0);
        for (code, value) in [(7, ":1.2"), (4, "org.example.Error")] {
            message.pad(8);
            message.byte(code);
            message.signature("s");
            message.text(value);
        }
        message.pad(8);
        message.byte(5);
        message.signature("u");
        message.u32(9);
        message.pad(8);
        // Unknown fields must be skipped.
        message.byte(99);
        message.signature("(yv)");
        message.pad(8);
        message.byte(1);
        message.signature("s");
        message.text("x");
        message.pad(8);
        message.byte(8);
        message.signature("g");
        message.signature("s");
        let fields = (message.0.len() - FIXED) as u32;
        message.0[12..16].copy_from_slice(&fields.to_le_bytes());
        message.pad(8);
        message.0.extend(body);
        message.0
    }

    fn text(value: &str) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.text(value);
        writer.0
    }

    fn all(bytes: &[u8]) -> Result<Vec<BusReply>, Malformed> {
        let mut inbox = Inbox::default();
        inbox.bytes.extend_from_slice(bytes);
        std::iter::from_fn(|| inbox.next().transpose()).collect()
    }

    #[test]
    fn calls_are_whole_messages_that_answer_nothing() {
        let bytes = call().encode(5);
        let read = all(&bytes).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].to, read[0].signature.as_str()), (0, "si"));
        let mut values = read[0].values("si").unwrap();
        assert_eq!((values.text(), values.i32()), (Ok("org.example.Thing"), Ok(-1)));
        assert!(read[0].values("s").is_err());
    }

    #[test]
    fn answers_come_in_any_pieces() {
        let bytes = [answer(RETURN, &text("hello")), answer(ERROR, &text("no such thing")), answer(4, &text("signal"))].concat();
        let mut inbox = Inbox::default();
        let mut read = Vec::new();
        for byte in bytes {
            inbox.bytes.extend_from_slice(&[byte]);
            read.extend(inbox.next().unwrap());
        }
        assert_eq!(read.iter().map(|answer| answer.to).collect::<Vec<_>>(), [9, 9, 0]);
        assert_eq!(read[0].values("s").unwrap().text(), Ok("hello"));
        assert_eq!(read[1].error.as_deref(), Some("org.example.Error"));
        assert_eq!(read[1].reason(), "no such thing");
        assert!(read[1].values("s").is_err(), "an error has no values");
    }

    #[test]
    fn long_answers_are_passed_over() {
        let mut bytes = answer(RETURN, &text(&"x".repeat(MAX_BODY)));
        bytes.extend(answer(RETURN, &text("after")));
        let mut inbox = Inbox::default();
        let mut read = Vec::new();
        for piece in bytes.chunks(1000) {
            inbox.bytes.extend_from_slice(piece);
            while let Some(answer) = inbox.next().unwrap() {
                read.push(answer);
            }
            assert!(inbox.bytes.len() < 2000, "nothing of it piles up");
        }
        assert_eq!(read.len(), 2);
        assert!(read[0].values("s").is_err());
        assert_eq!(read[1].values("s").unwrap().text(), Ok("after"));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let whole = answer(RETURN, &text("hello"));
        let changed = |at: usize, value: u32| {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            all(&bytes)
        };
        assert_eq!(changed(4, u32::MAX), Err(Malformed), "a body beyond what the protocol allows");
        assert_eq!(changed(12, u32::MAX), Err(Malformed), "fields without end");
        assert_eq!(changed(12, 20), Err(Malformed), "fields that end within one");
        let mut order = whole.clone();
        order[0] = b'x';
        assert_eq!(all(&order), Err(Malformed));
    }

    #[test]
    fn no_byte_that_is_changed_or_missing_does_harm() {
        let whole = [call().encode(1), answer(RETURN, &text("hello")), answer(ERROR, &text("no"))].concat();
        for end in 0..whole.len() {
            // Cut off at any byte, the parser waits for the rest.
            drop(all(&whole[..end]).unwrap());
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                for answer in all(&bytes).into_iter().flatten() {
                    // The content is read or refused, without a panic.
                    let _ = answer.values("s").map(|mut reader| reader.text().map(str::len));
                    let _ = answer.property("s").map(|mut reader| reader.text().map(str::len));
                    let _ = answer.reason();
                }
            }
        }
    }
}
