//! RSA keys of OpenSSH as the cryptographic library reads them (PKCS #1).

use zeroize::Zeroizing;

/// The numbers of a private key, as OpenSSH stores them: big-endian and without zeros before them.
pub(crate) struct RsaNumbers<'a> {
    pub(crate) modulus: &'a [u8],
    pub(crate) public_exponent: &'a [u8],
    pub(crate) private_exponent: &'a [u8],
    /// The inverse of the second prime.
    pub(crate) coefficient: &'a [u8],
    pub(crate) primes: [&'a [u8]; 2],
}

impl RsaNumbers<'_> {
    /// An `RSAPrivateKey` in DER. It has two more numbers than OpenSSH's format, which are calculated.
    pub(crate) fn der(&self) -> Zeroizing<Vec<u8>> {
        let [p, q] = self.primes;
        let (p_exponent, q_exponent) = (self.exponent_for(p), self.exponent_for(q));
        let numbers = [
            &[0][..],
            self.modulus,
            self.public_exponent,
            self.private_exponent,
            p,
            q,
            &p_exponent,
            &q_exponent,
            self.coefficient,
        ];
        let mut content = Zeroizing::new(Vec::with_capacity(8 << 10));
        for number in numbers {
            put_integer(&mut content, number);
        }
        let mut der = Zeroizing::new(Vec::with_capacity(8 << 10));
        der.push(0x30);
        put_length(&mut der, content.len());
        der.extend(content.iter());
        der
    }

    /// The private exponent modulo a prime less one. A prime is odd, so its last bit is the one.
    fn exponent_for(&self, prime: &[u8]) -> Zeroizing<Vec<u8>> {
        let mut less_one = Zeroizing::new(prime.to_vec());
        if let Some(last) = less_one.last_mut() {
            *last &= 0xfe;
        }
        remainder(self.private_exponent, &less_one)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    if length < 0x80 {
        out.push(length as u8);
        return;
    }
    let bytes = length.to_be_bytes();
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    out.push(0x80 | (bytes.len() - start) as u8);
    out.extend(&bytes[start..]);
}

fn put_integer(out: &mut Vec<u8>, number: &[u8]) {
    let start = number.iter().position(|byte| *byte != 0).unwrap_or(number.len().saturating_sub(1));
    let number = &number[start..];
    let sign = usize::from(number.first().is_none_or(|byte| *byte >= 0x80));
    out.push(0x02);
    put_length(out, sign + number.len());
    out.extend(std::iter::repeat_n(0, sign));
    out.extend(number);
}

/// A remainder of big-endian numbers. How long it takes depends on their lengths alone, because both are secret.
fn remainder(value: &[u8], modulus: &[u8]) -> Zeroizing<Vec<u8>> {
    let modulus = limbs(modulus);
    // One more, for the bit that a shift moves out.
    let mut rest = Zeroizing::new(vec![0u64; modulus.len() + 1]);
    let mut less = Zeroizing::new(vec![0u64; modulus.len() + 1]);
    for position in (0..value.len() * 8).rev() {
        let byte = value[value.len() - 1 - position / 8];
        let mut carry = u64::from(byte >> (position % 8) & 1);
        for limb in rest.iter_mut() {
            let out = *limb >> 63;
            *limb = *limb << 1 | carry;
            carry = out;
        }
        let mut borrow = 0u64;
        for (index, limb) in rest.iter().enumerate() {
            let (first, one) = limb.overflowing_sub(modulus.get(index).copied().unwrap_or(0));
            let (second, two) = first.overflowing_sub(borrow);
            less[index] = second;
            borrow = u64::from(one | two);
        }
        // All ones if it was not less than the modulus.
        let mask = borrow.wrapping_sub(1);
        for (limb, less) in rest.iter_mut().zip(less.iter()) {
            *limb = less & mask | *limb & !mask;
        }
    }
    Zeroizing::new(rest.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect())
}

/// The least significant one first.
fn limbs(bytes: &[u8]) -> Zeroizing<Vec<u64>> {
    let limb = |chunk: &[u8]| chunk.iter().fold(0, |limb, byte| limb << 8 | u64::from(*byte));
    Zeroizing::new(bytes.rchunks(8).map(limb).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_are_those_of_numbers() {
        for (value, modulus) in
            [(0u128, 2u128), (7, 3), (u128::MAX, 10), (u128::MAX, u128::MAX - 1), (1 << 100, 1 << 64), (5, 1 << 90)]
        {
            let rest = remainder(&value.to_be_bytes(), &modulus.to_be_bytes());
            let rest = rest.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
            assert_eq!(rest, value % modulus, "{value} % {modulus}");
        }
    }

    #[test]
    fn integers_are_positive_and_short() {
        for (number, encoded) in
            [(&[0u8][..], &[2u8, 1, 0][..]), (&[0, 0, 5], &[2, 1, 5]), (&[0x80], &[2, 2, 0, 0x80]), (&[1, 0], &[2, 2, 1, 0])]
        {
            let mut out = Vec::new();
            put_integer(&mut out, number);
            assert_eq!(out, encoded);
        }
        let mut out = Vec::new();
        put_length(&mut out, 0x1234);
        assert_eq!(out, [0x82, 0x12, 0x34]);
    }
}
