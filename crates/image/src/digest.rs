//! Digests of steps and images.

use sha2::{Digest, Sha256};

/// Changes when the same step would have a different result, so that layers built by older rules are not reused.
const RULES: &str = "arenite-layer-1";

/// A digest over named fields. Each includes its length, so that no two lists of fields have the same input.
pub(crate) struct FieldDigest(Sha256);

impl FieldDigest {
    /// Starts the digest of a step on the layer `below`.
    pub(crate) fn step(below: Option<&str>, kind: &str) -> Self {
        Self(Sha256::new()).field("rules", RULES).field("below", below.unwrap_or_default()).field("kind", kind)
    }

    /// Starts a digest without a layer below.
    pub(crate) fn new(kind: &str) -> Self {
        Self(Sha256::new()).field("kind", kind)
    }

    pub(crate) fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.add(name, value);
        self
    }

    pub(crate) fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        for bytes in [name.as_bytes(), value] {
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
    }

    /// 64 lower-case hexadecimal digits.
    pub(crate) fn hex(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// Whether a text is one of our digests, and so a safe file name.
pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_into_each_other() {
        let a = FieldDigest::new("k").field("x", "abc").hex();
        let b = FieldDigest::new("k").field("x", "a").field("b", "c").hex();
        assert_ne!(a, b);
        assert!(is_digest(&a));
        assert!(!is_digest(&a.to_uppercase().replace('0', "A")));
        assert!(!is_digest("../../etc"));
    }
}
