//! Numbers with bounds, refused with FastAPI's errors: for `#[serde(deserialize_with)]`.

use serde::de::{Deserializer, Error};

use super::lenient;

/// A number from `MIN` to `MAX`, or null.
pub fn optional_within<'de, D, const MIN: i64, const MAX: i64>(deserializer: D) -> Result<Option<i64>, D::Error>
where
    D: Deserializer<'de>,
{
    lenient::<_, Option<i64>>(deserializer)?.map(check::<D::Error, MIN, MAX>).transpose()
}

/// A number from `MIN` to `MAX`.
pub fn within<'de, D, const MIN: i64, const MAX: i64>(deserializer: D) -> Result<i64, D::Error>
where
    D: Deserializer<'de>,
{
    check::<D::Error, MIN, MAX>(lenient(deserializer)?)
}

fn check<E: Error, const MIN: i64, const MAX: i64>(number: i64) -> Result<i64, E> {
    if number < MIN {
        Err(E::custom(format!("Input should be greater than or equal to {MIN}")))
    } else if number > MAX {
        Err(E::custom(format!("Input should be less than or equal to {MAX}")))
    } else {
        Ok(number)
    }
}
