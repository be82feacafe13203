//! The forms in which a value is recognised.

use std::collections::BTreeSet;

use data_encoding::{BASE32_NOPAD, BASE64_NOPAD, BASE64URL_NOPAD, Encoding, HEXLOWER, HEXUPPER};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// What clients leave as it is in a part of a URL, all or some of it.
pub(super) const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const COMPONENT: &AsciiSet = &UNRESERVED.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*');
const FORM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');

/// As it is, in hexadecimal, base64, URLs, forms, and JSON.
pub(super) fn in_text(value: &str) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([value.as_bytes().to_vec()]);
    let mut add = |form: String| forms.insert(form.into_bytes());
    for encoding in [HEXLOWER, HEXUPPER] {
        add(encoding.encode(value.as_bytes()));
    }
    for encoding in [BASE64_NOPAD, BASE64URL_NOPAD] {
        aligned(value, &encoding, 6).for_each(|form| _ = add(form));
    }
    for set in [UNRESERVED, COMPONENT, NON_ALPHANUMERIC, FORM] {
        let encoded = percent_encode(value.as_bytes(), set).to_string();
        add(encoded.replace("%20", "+"));
        add(with_lower_hex(&encoded));
        add(with_lower_hex(&encoded).replace("%20", "+"));
        add(encoded);
    }
    let json = json_text(value);
    add(json.replace('/', "\\/"));
    let ascii = in_ascii(&json);
    add(ascii.replace('/', "\\/"));
    add(ascii);
    add(json);
    forms
}

/// As they can be in a name, in lower case and without dots: base64 and base32 of all alignments, and hexadecimal.
pub(super) fn in_name(value: &str) -> BTreeSet<Vec<u8>> {
    let encodings = [(BASE64_NOPAD, 6), (BASE64URL_NOPAD, 6), (BASE32_NOPAD, 5)];
    let encoded = encodings.iter().flat_map(|(encoding, bits)| aligned(value, encoding, *bits));
    let plain = [HEXLOWER.encode(value.as_bytes()), value.replace('.', "")];
    encoded.chain(plain).filter(|form| !form.is_empty()).map(|form| form.to_ascii_lowercase().into_bytes()).collect()
}

/// The value inside of a JSON string.
pub(super) fn json_text(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The characters that are the same whatever is around the value, for each position at which it can start.
fn aligned(value: &str, encoding: &Encoding, bits: usize) -> impl Iterator<Item = String> {
    // Then the alignment is the first one again.
    let positions = if bits == 6 { 3 } else { 5 };
    (0..positions).map(move |before: usize| {
        let encoded = encoding.encode(&[&vec![0; before][..], value.as_bytes()].concat());
        let (first, last) = ((before * 8).div_ceil(bits), (before + value.len()) * 8 / bits);
        encoded[first..last].to_owned()
    })
}

fn with_lower_hex(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        text.push('%');
        text.push_str(&hex.to_ascii_lowercase());
        text.push_str(rest);
    }
    text
}

/// JSON as serializers write it that leave no other characters than ASCII.
fn in_ascii(json: &str) -> String {
    let mut text = String::new();
    for c in json.chars() {
        if c.is_ascii() {
            text.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use data_encoding::{BASE64, BASE64URL};

    use super::*;

    const VALUE: &str = "p/w: ä\"~*x.Yz+1";

    fn has(forms: &BTreeSet<Vec<u8>>, text: &str) -> bool {
        forms.iter().any(|form| text.as_bytes().windows(form.len()).any(|window| window == form))
    }

    #[test]
    fn a_value_is_recognised_in_each_form() {
        let forms = in_text(VALUE);
        for text in [
            VALUE,
            "702f773a20c3a4227e2a782e597a2b31",
            "702F773A20C3A4227E2A782E597A2B31",
            "p%2Fw%3A%20%C3%A4%22~%2Ax.Yz%2B1",
            "p%2fw%3a%20%c3%a4%22~*x.Yz%2b1",
            "p%2Fw%3A+%C3%A4%22%7E*x.Yz%2B1",
            "p/w: ä\\\"~*x.Yz+1",
            "p\\/w: \\u00e4\\\"~*x.Yz+1",
        ] {
            assert!(has(&forms, text), "{text}");
        }
        for before in ["", "u", "us", "user:", "user: "] {
            for after in ["", "1", "12", "123"] {
                let text = format!("{before}{VALUE}{after}");
                for encoding in [BASE64, BASE64URL] {
                    assert!(has(&forms, &encoding.encode(text.as_bytes())), "{text}");
                }
                let name = BASE32_NOPAD.encode(text.as_bytes()).to_lowercase();
                assert!(has(&in_name(VALUE), &name), "{name}");
            }
        }
        assert!(!has(&forms, "p/w: a\"~*x.Yz+1") && !has(&in_name(VALUE), "example.com"));
    }
}
