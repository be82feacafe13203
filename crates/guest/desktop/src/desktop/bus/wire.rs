//! D-Bus values as bytes: the types that are needed here; all others can be skipped.

use thiserror::Error;

/// Maximum depth of nested variants and structures; the protocol allows 64 in all.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a message of the bus is malformed")]
pub(in crate::desktop) struct Malformed;

/// Writes values in little-endian order.
#[derive(Debug, Clone, Default)]
pub(in crate::desktop) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn pad(&mut self, alignment: usize) {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
    }

    pub(super) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(in crate::desktop) fn u32(&mut self, value: u32) {
        self.pad(4);
        self.0.extend(value.to_le_bytes());
    }

    pub(in crate::desktop) fn i32(&mut self, value: i32) {
        self.u32(value.cast_unsigned());
    }

    /// Writes a string or an object path.
    pub(in crate::desktop) fn text(&mut self, value: &str) {
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend(value.as_bytes());
        self.0.push(0);
    }

    pub(super) fn signature(&mut self, value: &str) {
        self.0.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
        self.0.extend(value.as_bytes());
        self.0.push(0);
    }
}

/// Reads values in order, and never past the end.
#[derive(Debug, Clone)]
pub(in crate::desktop) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether the byte order is big-endian.
    big: bool,
}

impl<'a> Reader<'a> {
    /// The first byte must be at a multiple of 8 in the message.
    pub(super) fn new(bytes: &'a [u8], big: bool) -> Self {
        Self { bytes, at: 0, big }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(count).ok_or(Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(taken)
    }

    pub(super) fn pad(&mut self, alignment: usize) -> Result<(), Malformed> {
        self.take(self.at.next_multiple_of(alignment) - self.at).map(drop)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.pad(N)?;
        let mut bytes: [u8; N] = self.take(N)?.try_into().map_err(|_| Malformed)?;
        if self.big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(in crate::desktop) fn u32(&mut self) -> Result<u32, Malformed> {
        self.number().map(u32::from_le_bytes)
    }

    pub(in crate::desktop) fn i32(&mut self) -> Result<i32, Malformed> {
        self.number().map(i32::from_le_bytes)
    }

    pub(in crate::desktop) fn f64(&mut self) -> Result<f64, Malformed> {
        self.number().map(f64::from_le_bytes)
    }

    fn zero_behind(&mut self, length: usize) -> Result<&'a str, Malformed> {
        let bytes = self.take(length)?;
        if self.byte()? != 0 {
            return Err(Malformed);
        }
        std::str::from_utf8(bytes).map_err(|_| Malformed)
    }

    /// Reads a string or an object path.
    pub(in crate::desktop) fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = self.u32()? as usize;
        self.zero_behind(length)
    }

    pub(super) fn signature(&mut self) -> Result<&'a str, Malformed> {
        let length = self.byte()?.into();
        self.zero_behind(length)
    }

    /// Reads the length of an array. Its items start at a multiple of `alignment`.
    fn array(&mut self, alignment: usize) -> Result<usize, Malformed> {
        let length = self.u32()? as usize;
        self.pad(alignment)?;
        let end = self.at.checked_add(length).ok_or(Malformed)?;
        if end > self.bytes.len() { Err(Malformed) } else { Ok(end) }
    }

    /// Reads all items of an array.
    pub(in crate::desktop) fn list<T>(
        &mut self,
        alignment: usize,
        read: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let end = self.array(alignment)?;
        let mut values = Vec::new();
        while self.at < end {
            let before = self.at;
            values.push(read(self)?);
            if self.at == before || self.at > end {
                return Err(Malformed);
            }
        }
        Ok(values)
    }

    /// Skips one value of the type in a signature.
    pub(super) fn skip(&mut self, signature: &str) -> Result<(), Malformed> {
        match self.skip_one(signature.as_bytes(), 0)? {
            [] => Ok(()),
            _ => Err(Malformed),
        }
    }

    /// Skips a value of the first type; returns the rest of the signature.
    fn skip_one<'s>(&mut self, signature: &'s [u8], depth: usize) -> Result<&'s [u8], Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        let (kind, rest) = signature.split_first().ok_or(Malformed)?;
        match kind {
            b'y' => drop(self.byte()?),
            b'n' | b'q' => drop(self.number::<2>()?),
            b'b' | b'i' | b'u' | b'h' => drop(self.number::<4>()?),
            b'x' | b't' | b'd' => drop(self.number::<8>()?),
            b's' | b'o' => drop(self.text()?),
            b'g' => drop(self.signature()?),
            b'v' => {
                let inner = self.signature()?;
                if !self.skip_one(inner.as_bytes(), depth + 1)?.is_empty() {
                    return Err(Malformed);
                }
            }
            b'a' => {
                let (length, alignment) = complete(rest, depth + 1)?;
                self.at = self.array(alignment)?;
                return Ok(&rest[length..]);
            }
            b'(' | b'{' => {
                self.pad(8)?;
                let mut rest = rest;
                loop {
                    match rest.split_first() {
                        Some((b')' | b'}', after)) => return Ok(after),
                        _ => rest = self.skip_one(rest, depth + 1)?,
                    }
                }
            }
            _ => return Err(Malformed),
        }
        Ok(rest)
    }
}

/// Returns the length of a signature's first type, and the alignment of its values.
fn complete(signature: &[u8], depth: usize) -> Result<(usize, usize), Malformed> {
    if depth > MAX_DEPTH {
        return Err(Malformed);
    }
    match signature.first().ok_or(Malformed)? {
        b'y' | b'g' | b'v' => Ok((1, 1)),
        b'n' | b'q' => Ok((1, 2)),
        b'b' | b'i' | b'u' | b'h' | b's' | b'o' => Ok((1, 4)),
        b'x' | b't' | b'd' => Ok((1, 8)),
        b'a' => Ok((1 + complete(&signature[1..], depth + 1)?.0, 4)),
        b'(' | b'{' => {
            let mut at = 1;
            loop {
                match signature.get(at).ok_or(Malformed)? {
                    b')' | b'}' => return Ok((at + 1, 8)),
                    _ => at += complete(&signature[at..], depth + 1)?.0,
                }
            }
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_the_same() {
        let mut writer = Writer::default();
        writer.byte(7);
        writer.i32(-5);
        writer.text("Grüße");
        writer.signature("a(so)");
        writer.u32(u32::MAX);
        let mut reader = Reader::new(&writer.0, false);
        assert_eq!(reader.byte(), Ok(7));
        assert_eq!(reader.i32(), Ok(-5));
        assert_eq!(reader.text(), Ok("Grüße"));
        assert_eq!(reader.signature(), Ok("a(so)"));
        assert_eq!(reader.u32(), Ok(u32::MAX));
        assert!(reader.is_at_end());
        assert_eq!(reader.byte(), Err(Malformed));
    }

    #[test]
    fn both_orders_of_bytes_are_read() {
        let mut reader = Reader::new(&[0, 0, 0, 2, b'h', b'i', 0, 0, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0], true);
        assert_eq!((reader.text(), reader.f64()), (Ok("hi"), Ok(1.5)));
    }

    #[test]
    fn texts_end_where_they_say() {
        for bytes in [
            &[1, 0, 0][..],
            &[5, 0, 0, 0, b'a', 0],
            &[1, 0, 0, 0, b'a'],
            &[1, 0, 0, 0, b'a', b'b'],
            &[1, 0, 0, 0, 0xff, 0],
            &[0xff, 0xff, 0xff, 0xff, b'a', 0],
        ] {
            assert_eq!(Reader::new(bytes, false).text(), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn arrays_end_where_they_say() {
        let mut numbers = Writer::default();
        numbers.u32(8);
        numbers.u32(1);
        numbers.u32(2);
        assert_eq!(Reader::new(&numbers.0, false).list(4, Reader::u32), Ok(vec![1, 2]));
        // Longer than the message, not a multiple of the item size, and items without a size.
        for (length, wrong) in [(9, "long"), (6, "odd"), (u32::MAX, "huge")] {
            numbers.0[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(Reader::new(&numbers.0, false).list(4, Reader::u32), Err(Malformed), "{wrong}");
        }
        numbers.0[..4].copy_from_slice(&8u32.to_le_bytes());
        assert_eq!(Reader::new(&numbers.0, false).list(4, |_| Ok(())), Err(Malformed));
    }

    #[test]
    fn any_value_is_skipped() {
        let mut writer = Writer::default();
        // a{sv} with one entry, then a marker.
        writer.u32(0);
        writer.pad(8);
        let from = writer.0.len();
        writer.text("key");
        writer.signature("(ib)");
        writer.pad(8);
        writer.i32(3);
        writer.u32(1);
        let length = (writer.0.len() - from) as u32;
        writer.0[..4].copy_from_slice(&length.to_le_bytes());
        writer.u32(77);
        let mut reader = Reader::new(&writer.0, false);
        assert_eq!(reader.skip("a{sv}"), Ok(()));
        assert_eq!(reader.u32(), Ok(77));
        let entries = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes, false);
            reader.pad(8)?;
            reader.skip("(sv)")
        };
        assert_eq!(entries(&writer.0[8..]), Ok(()));
    }

    #[test]
    fn signatures_that_are_none_end_the_reading() {
        let nested = "(".repeat(200);
        let arrays = "a".repeat(200);
        let bytes = [0u8; 512];
        for signature in ["", "a", "(", "(i", ")", "z", "ii", "a(", "a()b", &nested, &arrays] {
            assert_eq!(Reader::new(&bytes, false).skip(signature), Err(Malformed), "{signature}");
        }
        // Nested variants: each states that its value is another variant.
        let variants = [1, b'v', 0].repeat(300);
        assert_eq!(Reader::new(&variants, false).skip("v"), Err(Malformed));
    }
}
