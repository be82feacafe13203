use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How a file stores a vector's numbers. Queries are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    F32,
    /// Half the space; for vectors of length one the score is off by less than 0.001.
    F16,
    /// A quarter of the space: integers from -127 to 127, and a factor for each row.
    I8,
}

impl Precision {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::I8 => 1,
        }
    }

    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::I8 => 2,
        }
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Self::F32, Self::F16, Self::I8].into_iter().find(|one| one.code() == code)
    }

    /// Appends the vector's bytes, and returns the row's scale.
    pub(crate) fn encode(self, vector: &[f32], to: &mut Vec<u8>) -> Result<f32> {
        if let Some(at) = vector.iter().position(|number| !number.is_finite()) {
            return Err(Error::Invalid(format!("the vector's number {at} is {}, which can't be compared", vector[at])));
        }
        match self {
            Self::F32 => to.extend(vector.iter().flat_map(|number| number.to_le_bytes())),
            Self::F16 => {
                if let Some(number) = vector.iter().find(|number| number.abs() >= 65520.0) {
                    return Err(Error::Invalid(format!("{number} is too large for f16; store the vectors as f32")));
                }
                to.extend(vector.iter().flat_map(|number| half(*number).to_le_bytes()));
            }
            Self::I8 => {
                let scale = vector.iter().fold(0.0f32, |most, number| most.max(number.abs())) / 127.0;
                let whole = |number: &f32| if scale > 0.0 { (number / scale).round() as i8 } else { 0 };
                to.extend(vector.iter().map(|number| whole(number).clamp(-127, 127).cast_unsigned()));
                return Ok(scale);
            }
        }
        Ok(1.0)
    }

    /// Appends the decoded numbers.
    pub(crate) fn decode(self, bytes: &[u8], scale: f32, to: &mut Vec<f32>) {
        match self {
            Self::F32 => to.extend(bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four))),
            Self::F16 => to.extend(bytes.as_chunks::<2>().0.iter().map(|two| whole(u16::from_le_bytes(*two)))),
            Self::I8 => to.extend(bytes.iter().map(|byte| f32::from(byte.cast_signed()) * scale)),
        }
    }
}

/// The nearest half-precision number, ties to even. Too large numbers become infinite.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let size = bits & 0x7fff_ffff;
    if size >= 0x4780_0000 {
        return sign | if size > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    }
    if size < 0x3880_0000 {
        // Below 2^-14 halves are multiples of 2^-24, and so is a sum with 0.5: the hardware rounds it.
        return sign | (f32::from_bits(size) + 0.5).to_bits() as u16;
    }
    let odd = size >> 13 & 1;
    sign | ((size - 0x3800_0000 + 0xfff + odd) >> 13) as u16
}

fn whole(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(half >> 10 & 0x1f), u32::from(half & 0x3ff));
    let size = match exponent {
        0 => (fraction as f32 / 16_777_216.0).to_bits(),
        31 => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_nearest_ones() {
        for bits in 0..=u16::MAX {
            let number = whole(bits);
            if number.is_nan() {
                assert!(whole(half(number)).is_nan());
                continue;
            }
            assert_eq!(half(number), bits, "{number}");
            let next = whole(bits.wrapping_add(1));
            if number.is_finite() && next.is_finite() && bits & 0x7fff != 0x7fff {
                let middle = (number + next) / 2.0;
                let wanted = if bits & 1 == 0 { bits } else { bits + 1 };
                assert_eq!(half(middle), wanted, "between {number} and {next}");
                assert_eq!(half(middle + (number - next) / 64.0), bits);
            }
        }
        assert_eq!((half(65504.0), half(65520.0), half(1e9)), (0x7bff, 0x7c00, 0x7c00));
    }

    #[test]
    fn what_can_not_be_compared_is_not_stored() {
        for (precision, number) in [(Precision::F32, f32::NAN), (Precision::I8, f32::INFINITY), (Precision::F16, 70_000.0)] {
            assert!(matches!(precision.encode(&[0.0, number], &mut Vec::new()), Err(Error::Invalid(_))));
        }
        let mut bytes = Vec::new();
        assert_eq!(Precision::I8.encode(&[0.0, 0.0], &mut bytes).unwrap(), 0.0);
        assert_eq!(bytes, [0, 0]);
    }
}
