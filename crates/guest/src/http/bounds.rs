//! Numbers that a schema bounds.

use serde::{Deserialize, Deserializer};

/// For `deserialize_with`: an integer, or null, from `LEAST` to `MOST`; anything else is answered with 422.
pub fn between<'de, const LEAST: i64, const MOST: i64, D: Deserializer<'de>>(input: D) -> Result<Option<i64>, D::Error> {
    let number: Option<i64> = Option::deserialize(input)?;
    match number {
        Some(n) if n < LEAST => Err(serde::de::Error::custom(format!("Input should be greater than or equal to {LEAST}"))),
        Some(n) if n > MOST => Err(serde::de::Error::custom(format!("Input should be less than or equal to {MOST}"))),
        number => Ok(number),
    }
}
