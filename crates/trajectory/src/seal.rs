//! Checksums that show that a line of a log is unaltered and still follows the same line.
//!
//! The last two fields of a line are `prev`, the sum of the line before, and `sum`, the first 64 bits of the BLAKE3 of
//! everything before it in this line. Lines of version 1 have neither.

/// The sum of a line, in hexadecimal.
pub(crate) type Sum = [u8; 16];

/// The sum before the first line, or after a line without one.
pub(crate) const NO_SUM: Sum = *b"0000000000000000";

const SUM: &[u8] = b",\"sum\":\"";
const PREV: &[u8] = b",\"prev\":\"";
const END: &[u8] = b"\"}";

/// State of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Sealed {
        sum: Sum,
        prev: Sum,
    },
    /// Of version 1, where only the JSON syntax is checked.
    Unsealed,
    /// Cut off by a power cut or a full disk: it was never acknowledged.
    Torn,
    Damaged,
}

fn sum(bytes: &[u8]) -> Sum {
    let mut sum = NO_SUM;
    let hash = blake3::hash(bytes).to_hex();
    sum.copy_from_slice(&hash.as_bytes()[..NO_SUM.len()]);
    sum
}

/// Closes a line: `line` is a JSON object with at least one field, without a line break. Returns its sum.
pub(crate) fn seal(line: &mut Vec<u8>, prev: &Sum) -> Sum {
    line.pop();
    for (name, value) in [(PREV, Some(prev)), (SUM, None)] {
        let value = value.copied().unwrap_or_else(|| sum(line));
        line.extend_from_slice(name);
        line.extend_from_slice(&value);
        line.push(b'"');
    }
    line.push(b'}');
    last_sum(line).unwrap_or(NO_SUM)
}

fn last_sum(line: &[u8]) -> Option<Sum> {
    let rest = line.strip_suffix(END)?;
    let at = rest.len().checked_sub(NO_SUM.len())?;
    rest[..at].ends_with(SUM).then(|| rest[at..].try_into().ok()).flatten()
}

/// Checks a line, without its line break.
pub(crate) fn check(line: &[u8]) -> Line {
    let Some(said) = last_sum(line) else {
        return match line {
            line if !line.ends_with(b"}") => Line::Torn,
            // A line with this start has no sum because its version had none.
            line if line.starts_with(b"{\"v\":1,") && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok() => {
                Line::Unsealed
            }
            _ => Line::Damaged,
        };
    };
    let before = &line[..line.len() - END.len() - NO_SUM.len() - SUM.len()];
    let prev = before.strip_suffix(b"\"").and_then(|rest| {
        let at = rest.len().checked_sub(NO_SUM.len())?;
        rest[..at].ends_with(PREV).then(|| rest[at..].try_into().ok()).flatten()
    });
    match prev {
        Some(prev) if sum(before) == said => Line::Sealed { sum: said, prev },
        _ => Line::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_of_a_line_is_noticed() {
        let mut line = br#"{"v":2,"kind":"end","last":1}"#.to_vec();
        let first = seal(&mut line, &NO_SUM);
        assert_eq!(check(&line), Line::Sealed { sum: first, prev: NO_SUM });
        let mut next = br#"{"v":2,"kind":"end","last":2}"#.to_vec();
        seal(&mut next, &first);
        assert!(matches!(check(&next), Line::Sealed { prev, .. } if prev == first));
        assert!(serde_json::from_slice::<serde_json::Value>(&next).is_ok());
        for at in 0..line.len() * 8 {
            let mut changed = line.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert!(matches!(check(&changed), Line::Damaged | Line::Torn), "{}", String::from_utf8_lossy(&changed));
        }
        assert_eq!(check(&line[..line.len() - 5]), Line::Torn);
        assert_eq!(check(br#"{"v":1,"kind":"end","last":1}"#), Line::Unsealed);
        assert_eq!(check(br#"{"v":2,"kind":"end","last":1}"#), Line::Damaged);
    }
}
