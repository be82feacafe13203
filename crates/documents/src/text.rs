//! Decodes bytes to text.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use crate::DocumentError;

/// Decodes bytes by their byte order mark, as UTF-8, by the given charset, else as Windows-1252, which has a character for
/// every byte.
pub(crate) fn decode(bytes: &[u8], charset: Option<&str>) -> Result<String, DocumentError> {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return Ok(encoding.decode_without_bom_handling(&bytes[mark..]).0.into_owned());
    }
    let labelled = charset.and_then(|label| Encoding::for_label(label.as_bytes())).filter(|e| *e != UTF_8);
    if let Some(encoding) = labelled {
        return Ok(encoding.decode_without_bom_handling(bytes).0.into_owned());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(text.to_owned());
    }
    if bytes.contains(&0) {
        return Err(DocumentError::Unsupported { what: "binary content of an unknown format".to_owned() });
    }
    Ok(WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_by_mark_label_and_guess() {
        assert_eq!(decode(b"\xef\xbb\xbfa", None).unwrap(), "a");
        assert_eq!(decode(b"\xff\xfea\x00\xe9\x00", None).unwrap(), "aé");
        assert_eq!(decode("é".as_bytes(), None).unwrap(), "é");
        assert_eq!(decode(b"\xe9", None).unwrap(), "é");
        assert_eq!(decode(b"\xb3", Some("iso-8859-2")).unwrap(), "ł");
        assert_eq!(decode("é".as_bytes(), Some("no-such")).unwrap(), "é");
        assert!(matches!(decode(b"\x00\xff", None), Err(DocumentError::Unsupported { .. })));
    }
}
