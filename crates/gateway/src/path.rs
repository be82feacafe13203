//! Paths and queries, decoded once and in one place.

/// The decoded value of the last `key` in a query.
pub(crate) fn query_value(query: Option<&str>, key: &str) -> Option<String> {
    query?
        .split('&')
        .rev()
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(k, v)| (decode(k).as_deref() == Some(key)).then(|| decode(v)).flatten())
}

/// Percent-decodes a query's word, `+` being a space. None when it is not UTF-8 in the end.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::query_value;

    #[test]
    fn the_last_value_counts_and_is_decoded() {
        let query = Some("a=1&b=x%20y+z&a=2&c=%zz");
        assert_eq!(query_value(query, "a").as_deref(), Some("2"));
        assert_eq!(query_value(query, "b").as_deref(), Some("x y z"));
        assert_eq!(query_value(query, "c"), None);
        assert_eq!(query_value(None, "a"), None);
    }
}
