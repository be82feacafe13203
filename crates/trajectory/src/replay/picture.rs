use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A picture's kind, and its size in pixels if that kind states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Picture {
    kind: &'static str,
    size: Option<(u32, u32)>,
}

impl std::fmt::Display for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.size {
            Some((width, height)) => write!(f, "{} of {width}×{height}", self.kind),
            None => f.write_str(self.kind),
        }
    }
}

impl Picture {
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let kind = crate::export::picture(bytes)?;
        let size = match kind {
            "image/png" => png(bytes),
            "image/jpeg" => jpeg(bytes),
            "image/gif" => {
                bytes.get(6..10).map(|b| (u16::from_le_bytes([b[0], b[1]]).into(), u16::from_le_bytes([b[2], b[3]]).into()))
            }
            _ => None,
        };
        Some(Self { kind, size })
    }

    /// Parses Base64, alone or in a `data:` URL.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let encoded = match text.strip_prefix("data:image/") {
            Some(rest) => rest.split_once(";base64,")?.1,
            None => text,
        };
        // The first bytes show whether the rest is worth decoding.
        crate::export::picture(&STANDARD.decode(encoded.get(..16)?).ok()?)?;
        let clean: Vec<u8> = encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        Self::of_bytes(&STANDARD.decode(clean).ok()?)
    }
}

fn png(bytes: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    (bytes.get(12..16)? == b"IHDR").then_some(())?;
    Some((number(16)?, number(20)?))
}

/// The size is in the frame's header, after segments of known length.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let two = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes);
    let mut at = 2;
    while bytes.get(at) == Some(&0xff) {
        match *bytes.get(at + 1)? {
            0xff => at += 1,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => return Some((two(at + 7)?.into(), two(at + 5)?.into())),
            _ => at += 2 + usize::from(two(at + 2)?),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_sizes_are_read_and_torn_ones_are_not_fatal() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        png.extend([0, 0, 5, 0, 0, 0, 2, 0xd0]);
        assert_eq!(Picture::of_bytes(&png).unwrap().to_string(), "image/png of 1280×720");
        let text = format!("data:image/png;base64,{}", STANDARD.encode(&png));
        assert_eq!(Picture::of_text(&text), Picture::of_bytes(&png));
        let jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08\x02\xd0\x05\0";
        assert_eq!(Picture::of_bytes(jpeg).unwrap().to_string(), "image/jpeg of 1280×720");
        for torn in [&png[..18], &jpeg[..9], &jpeg[..3], b"GIF8"] {
            assert_eq!(Picture::of_bytes(torn).unwrap().size, None);
        }
        assert_eq!(Picture::of_text("a text that is no picture at all"), None);
        assert_eq!(Picture::of_text("ä"), None);
    }
}
