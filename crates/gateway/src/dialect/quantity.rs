//! Kubernetes quantities, such as `100m`, `1.5`, `128Mi` or `1e9`.

use thiserror::Error;

/// Longest text: far above any useful number.
const MAX_TEXT: usize = 32;
const MAX_EXPONENT: u32 = 30;

#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum QuantityError {
    #[error("{0:?} is not a quantity: write a number with an optional suffix, such as 500m, 1.5, 512Mi or 1G")]
    Malformed(String),
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// CPU time as thousandths of one core, rounded up.
pub(super) fn millis(text: &str) -> Result<u64, QuantityError> {
    parse(text, 1000)
}

/// Whole bytes, rounded up.
pub(super) fn bytes(text: &str) -> Result<u64, QuantityError> {
    parse(text, 1)
}

/// The number of parts, of which `parts` are one unit. Rounded up, as Kubernetes rounds.
fn parse(text: &str, parts: u128) -> Result<u64, QuantityError> {
    let malformed = || QuantityError::Malformed(text.chars().take(MAX_TEXT).collect());
    if text.len() > MAX_TEXT {
        return Err(malformed());
    }
    let number = text.strip_prefix('+').unwrap_or(text);
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (number, suffix) = number.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(malformed());
    }
    let (factor, exponent) = suffix_of(suffix).ok_or_else(malformed)?;
    let exponent = exponent - i32::try_from(fraction.len()).map_err(|_| malformed())?;
    let value =
        format!("{whole}{fraction}").parse::<u128>().ok().and_then(|n| n.checked_mul(factor)?.checked_mul(parts)).and_then(|n| {
            let power = 10u128.checked_pow(exponent.unsigned_abs());
            match (exponent >= 0, power) {
                (true, Some(power)) => n.checked_mul(power),
                (true, None) if n == 0 => Some(0),
                (true, None) => None,
                (false, Some(power)) => Some(n.div_ceil(power)),
                (false, None) => Some(u128::from(n > 0)),
            }
        });
    value.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| QuantityError::TooLarge(text.to_owned()))
}

/// Parses a suffix to a factor and a power of ten.
fn suffix_of(suffix: &str) -> Option<(u128, i32)> {
    let decimal = |power| Some((1, power));
    let binary = |power: u32| Some((1 << power, 0));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (exponent.unsigned_abs() <= MAX_EXPONENT).then_some((1, exponent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let cpus = [
            ("100m", 100),
            ("1", 1000),
            ("1.5", 1500),
            (".5", 500),
            ("2.", 2000),
            ("+1", 1000),
            ("0", 0),
            ("1k", 1_000_000),
            ("1500000u", 1500),
            ("1n", 1),
            ("0.0001", 1),
            ("1e3", 1_000_000),
            ("1E-1", 100),
            ("1e-30", 1),
        ];
        for (text, expected) in cpus {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        let memory = [
            ("128Mi", 128 << 20),
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("512M", 512_000_000),
            ("1e9", 1_000_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("1Ki", 1024),
            ("129", 129),
            ("100m", 1),
            ("1.0000001Ki", 1025),
        ];
        for (text, expected) in memory {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        let bad = [
            "",
            " 1",
            "1 ",
            "-1",
            "1.2.3",
            ".",
            "1mi",
            "1KB",
            "1ki",
            "Mi",
            "1e",
            "1e31",
            "1e1.5",
            "0x10",
            "lots",
            "12 parsecs",
            "1_000",
            "٣",
            "NaN",
            "inf",
            &"1".repeat(33),
        ];
        for text in bad {
            assert!(matches!(bytes(text), Err(QuantityError::Malformed(_))), "{text:?}");
        }
        for text in ["17Ei", "99999999999999999999", "1e30", "999999999999999999999Ei"] {
            assert_eq!(bytes(text), Err(QuantityError::TooLarge(text.to_owned())));
        }
    }
}
