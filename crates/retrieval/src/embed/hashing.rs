//! Vectors without a model.
//!
//! Words, pairs of words and pieces of words are hashed to positions of the vector. Texts with common words or parts of words
//! get similar vectors, and no others do: it knows no meanings. "car" is as far from "automobile" as from "banana". It is for
//! trials, for tests, and for installations without a model.
//!
//! The same text has the same vector on every machine and in every version: indexes on disk depend on it, and a test ensures
//! it. Only letters that a later Unicode version adds may change.

use super::{Embedder, Reasoned, Role, named, normalise};
use crate::Result;

/// Supported numbers of dimensions.
const DIMENSIONS: std::ops::RangeInclusive<usize> = 8..=65_536;
/// Characters in the pieces of a word.
const PIECES: std::ops::RangeInclusive<usize> = 3..=5;
/// Characters of a word that pieces are taken from; longer "words" are data.
const LONGEST_WORD: usize = 64;
/// Weights of features relative to a word. A word has many pieces, which must not dominate it.
const PAIR: f32 = 0.5;
const PIECE: f32 = 0.3;

pub(super) fn default_dimension() -> usize {
    384
}

pub(super) struct Hashing {
    name: String,
    dimension: usize,
}

impl Hashing {
    pub(super) fn new(dimension: usize) -> Result<Self> {
        let name = format!("hashing-{dimension} (no model)");
        if !DIMENSIONS.contains(&dimension) {
            let reason = format!("the dimension has to be between {} and {}", DIMENSIONS.start(), DIMENSIONS.end());
            return Err(named(&name)(reason));
        }
        Ok(Self { name, dimension })
    }

    fn vector(&self, text: &str) -> Reasoned<Vec<f32>> {
        let mut vector = vec![0.0; self.dimension];
        for (hash, weight) in features(text) {
            let at = ((hash >> 1) % self.dimension as u64) as usize;
            vector[at] += if hash & 1 == 1 { weight } else { -weight };
        }
        normalise(&mut vector)?;
        Ok(vector)
    }
}

impl Embedder for Hashing {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn is_semantic(&self) -> bool {
        false
    }

    fn embed(&self, texts: &[&str], _role: Role) -> Result<Vec<Vec<f32>>> {
        texts.iter().map(|text| self.vector(text)).collect::<Reasoned<_>>().map_err(named(&self.name))
    }
}

/// The hashes of a text's features, each once, with its weight. Sorted by hash, so that sums are always the same.
fn features(text: &str) -> Vec<(u64, f32)> {
    let words = words(text);
    let mut found: Vec<(u64, f32)> = Vec::new();
    for (at, word) in words.iter().enumerate() {
        found.push((hash(b'w', word.as_bytes()), 1.0));
        if let Some(next) = words.get(at + 1) {
            found.push((hash(b'p', format!("{word} {next}").as_bytes()), PAIR));
        }
        // A word's ends are part of its pieces: "<car" is the start of a word.
        let marked: Vec<char> = ['<'].into_iter().chain(word.chars().take(LONGEST_WORD)).chain(['>']).collect();
        for piece in PIECES.flat_map(|length| marked.windows(length)) {
            found.push((hash(b'c', piece.iter().collect::<String>().as_bytes()), PIECE));
        }
    }
    found.sort_by_key(|(hash, _)| *hash);
    // A feature that occurs four times counts twice. Of all functions that grow slower than the count, only the root is exact
    // on every machine.
    found.chunk_by(|one, other| one.0 == other.0).map(|same| (same[0].0, same[0].1 * (same.len() as f32).sqrt())).collect()
}

/// Words in lower case. Each sign of a script without spaces is a word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for sign in text.chars().flat_map(char::to_lowercase) {
        let alone =
            matches!(u32::from(sign), 0x3040..=0x30ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x3ffff);
        if !word.is_empty() && (alone || !sign.is_alphanumeric()) {
            words.push(std::mem::take(&mut word));
        }
        if alone {
            words.push(sign.to_string());
        } else if sign.is_alphanumeric() {
            word.push(sign);
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// FNV-1a with 64 bits, then MurmurHash3's mixing: FNV alone leaves the lower bits of short texts alike.
fn hash(kind: u8, bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in [kind].iter().chain(bytes) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embed(texts: &[&str]) -> Vec<Vec<f32>> {
        Hashing::new(default_dimension()).unwrap().embed(texts, Role::Passage).unwrap()
    }

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// Indexes on disk were built with these: they never change.
    #[test]
    fn the_numbers_are_the_same_for_ever() {
        assert_eq!(hash(b'w', b"retrieval"), 0x4559_c4f6_df9d_c4e3);
        let vectors = embed(&["The quick brown fox the fox", "检索增强生成 2026!"]);
        let first = |vector: &[f32]| -> Vec<(usize, i32)> {
            let set = vector.iter().enumerate().filter(|(_, one)| **one != 0.0);
            set.take(6).map(|(at, one)| (at, (one * 1e5).round() as i32)).collect()
        };
        let fox = [(0, -12_571), (31, 12_571), (39, -8_889), (51, -14_815), (53, 8_889), (55, -14_815)];
        assert_eq!(first(&vectors[0]), fox);
        let cjk = [(5, 9_559), (26, -31_863), (57, 31_863), (64, -31_863), (95, 9_559), (97, 15_931)];
        assert_eq!(first(&vectors[1]), cjk);
    }

    #[test]
    fn texts_with_words_in_common_are_alike() {
        let vectors = embed(&[
            "the treaty of Westphalia was signed in 1648",
            "WESTPHALIA: when was the treaty signed?",
            "bananas ripen faster in a paper bag",
            "",
            " \n\t\u{200b}",
        ]);
        assert!(cosine(&vectors[0], &vectors[1]) > 0.5);
        assert!(cosine(&vectors[0], &vectors[2]).abs() < 0.2);
        assert!((cosine(&vectors[2], &vectors[2]) - 1.0).abs() < 1e-6);
        assert!(vectors[3].iter().chain(&vectors[4]).all(|one| *one == 0.0));
    }

    #[test]
    fn words_are_split_where_no_space_is() {
        assert_eq!(words("GPT-4o 检索 ΣΑΣ naïve"), ["gpt", "4o", "检", "索", "σασ", "naïve"]);
    }

    #[test]
    fn a_dimension_has_bounds() {
        assert!(Hashing::new(7).is_err() && Hashing::new(1 << 40).is_err());
        assert_eq!(Hashing::new(384).unwrap().name(), "hashing-384 (no model)");
    }
}
