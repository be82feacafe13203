//! The encoding of SSH (RFC 4251, section 5).

/// Reads values from the start of bytes. None: they are malformed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// 0 or 1; other values are not what a well-behaved sender writes.
    pub(crate) fn boolean(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(usize::try_from(length).ok()?)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.string()?).ok()
    }

    /// A positive number in as few bytes as possible, without the zero that shows its sign.
    pub(crate) fn positive(&mut self) -> Option<&'a [u8]> {
        let bytes = self.string()?;
        match bytes {
            [0, rest @ ..] if rest.first().is_some_and(|byte| *byte >= 0x80) => Some(rest),
            [first, ..] if (1..0x80).contains(first) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing is left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

pub(crate) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("keys and signatures have some kilobytes");
    out.extend(length.to_be_bytes());
    out.extend(bytes);
}

/// A positive number of big-endian bytes, with any number of zeros before it.
pub(crate) fn put_positive(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let bytes = &bytes[start..];
    if bytes.first().is_some_and(|byte| *byte >= 0x80) {
        put_string(out, &[&[0], bytes].concat());
    } else {
        put_string(out, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_the_end_are_malformed() {
        for bytes in [&b""[..], b"\0\0\0", b"\0\0\0\x05abcd", b"\xff\xff\xff\xffabcd", b"\x7f\xff\xff\xff"] {
            assert!(Reader::new(bytes).string().is_none(), "{bytes:?}");
        }
        let mut reader = Reader::new(b"\0\0\0\x02ab\x01x");
        assert_eq!((reader.string(), reader.boolean()), (Some(&b"ab"[..]), Some(true)));
        assert!(reader.end().is_none() && reader.boolean().is_none());
    }

    #[test]
    fn positive_numbers_have_one_encoding() {
        for (number, encoded) in [(&[0u8, 0, 7][..], &[7u8][..]), (&[0x80], &[0, 0x80]), (&[0, 0x7f, 0], &[0x7f, 0])] {
            let mut out = Vec::new();
            put_positive(&mut out, number);
            assert_eq!(&out[4..], encoded);
            let start = number.iter().position(|byte| *byte != 0).unwrap();
            assert_eq!(Reader::new(&out).positive(), Some(&number[start..]));
        }
        // Negative, with a needless zero, or zero.
        for bad in [&[0x80u8][..], &[0, 1], &[0], &[]] {
            let mut out = Vec::new();
            put_string(&mut out, bad);
            assert_eq!(Reader::new(&out).positive(), None, "{bad:?}");
        }
    }
}
