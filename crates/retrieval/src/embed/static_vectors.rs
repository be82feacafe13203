//! Static vectors of tokens, as model2vec derives them from a sentence encoder: a text's vector is the mean of its tokens'.
//!
//! The folder contains `tokenizer.json`, `config.json` and `model.safetensors` with `embeddings`. Newer versions add `weights`,
//! each token's weight in the mean, and `mapping`, the row of a token if tokens share rows.

use std::path::Path;

use super::prefixes::name_of_folder;
use super::tensors::Tensors;
use super::tokens::Tokens;
use super::{Embedder, Reasoned, Role, named, normalise, optional};
use crate::Result;

/// Number of a text's tokens that count, unless `config.json` sets it; also the maximum.
const MAX_TOKENS: u64 = 512;
const MOST_TOKENS: u64 = 1 << 16;

pub(super) struct StaticVectors {
    name: String,
    tokens: Tokens,
    unknown: Option<u32>,
    dimension: usize,
    rows: Vec<f32>,
    weights: Option<Vec<f32>>,
    mapping: Option<Vec<i64>>,
}

impl StaticVectors {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = format!("static {}", name_of_folder(path));
        Self::read(path, &name).map_err(named(&name))
    }

    fn read(path: &Path, name: &str) -> Reasoned<Self> {
        if !path.is_dir() {
            return Err(format!("there is no folder {}", path.display()));
        }
        let mut tensors = Tensors::open(&path.join("model.safetensors"))?;
        let [count, dimension] = match tensors.shape("embeddings") {
            Some(&[count, dimension]) if count > 0 && dimension > 0 => [count, dimension],
            Some(shape) => return Err(format!("the tensor embeddings has the shape {shape:?}, and has to be a matrix")),
            None => return Err("the tensor embeddings is missing in model.safetensors: it is no model of model2vec".to_owned()),
        };
        let rows = tensors.floats("embeddings", &[count, dimension])?;
        let limit = optional(path, "config.json")?["max_length"].as_u64().unwrap_or(MAX_TOKENS).min(MOST_TOKENS);
        let tokens = Tokens::open(path, false, limit as usize)?;
        let unknown = tokens.unknown();
        let of_tokens = |name: &str| match tensors.shape(name) {
            Some(&[length]) => Ok(Some(length)),
            Some(shape) => Err(format!("the tensor {name} has the shape {shape:?}, and has to be a vector")),
            None => Ok(None),
        };
        let (weighed, mapped) = (of_tokens("weights")?, of_tokens("mapping")?);
        let weights = weighed.map(|length| tensors.floats("weights", &[length])).transpose()?;
        let mapping = mapped.map(|length| tensors.integers("mapping", &[length])).transpose()?;
        Ok(Self { name: name.to_owned(), tokens, unknown, dimension, rows, weights, mapping })
    }

    /// `config.json` may disable normalisation. Vectors are always normalised here, since the inner product has to be the
    /// cosine.
    fn vector(&self, text: &str) -> Reasoned<Vec<f32>> {
        let mut sum = vec![0.0; self.dimension];
        for token in self.tokens.encode(text)?.into_iter().filter(|token| Some(*token) != self.unknown) {
            let row =
                self.row(token).ok_or_else(|| format!("the token {token} has no vector: the tokenizer is not this model's"))?;
            let weight = match &self.weights {
                Some(weights) => *weights.get(token as usize).ok_or_else(|| format!("the token {token} has no weight"))?,
                None => 1.0,
            };
            sum.iter_mut().zip(row).for_each(|(sum, one)| *sum += weight * one);
        }
        normalise(&mut sum)?;
        Ok(sum)
    }

    fn row(&self, token: u32) -> Option<&[f32]> {
        let row = match &self.mapping {
            Some(mapping) => usize::try_from(*mapping.get(token as usize)?).ok()?,
            None => token as usize,
        };
        let begin = row.checked_mul(self.dimension)?;
        self.rows.get(begin..begin.checked_add(self.dimension)?)
    }
}

impl Embedder for StaticVectors {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn embed(&self, texts: &[&str], _role: Role) -> Result<Vec<Vec<f32>>> {
        texts.iter().map(|text| self.vector(text)).collect::<Reasoned<_>>().map_err(named(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::tensors::write;
    use super::*;

    fn floats(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|one| one.to_le_bytes()).collect()
    }

    fn tokenizer(folder: &Path) {
        let tokenizer = json!({
            "version": "1.0", "truncation": {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
            "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[UNK]"},
            "added_tokens": [], "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "cat": 1, "dog": 2, "fish": 3}, "unk_token": "[UNK]"},
        });
        fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    }

    const ROWS: [f32; 8] = [9.0, 9.0, 1.0, 0.0, 0.0, 1.0, 3.0, 4.0];

    #[test]
    fn a_text_is_the_mean_of_its_tokens() {
        let dir = tempfile::tempdir().unwrap();
        tokenizer(dir.path());
        write(&dir.path().join("model.safetensors"), &[("embeddings", "F32", vec![4, 2], floats(&ROWS))]);
        let model = StaticVectors::open(dir.path()).unwrap();
        assert_eq!(model.dimension(), 2);
        fs::write(dir.path().join("config.json"), r#"{"max_length": 8, "normalize": false}"#).unwrap();
        let limited =
            StaticVectors::open(dir.path()).unwrap().embed(&["cat cat cat cat cat cat cat cat dog"], Role::Query).unwrap();
        assert_eq!(limited, [[1.0, 0.0]]);
        let half = 0.5f32.sqrt();
        // The limit of one token in the file, its padding, and unknown words don't count.
        let vectors = model.embed(&["Cat DOG xyz", "fish", "xyz", "", "cat cat dog"], Role::Query).unwrap();
        let wanted = [[half, half], [0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [2.0 / 5f32.sqrt(), 1.0 / 5f32.sqrt()]];
        for (vector, wanted) in vectors.iter().zip(wanted) {
            assert!(vector.iter().zip(wanted).all(|(one, wanted)| (one - wanted).abs() < 1e-6), "{vector:?} {wanted:?}");
        }
    }

    #[test]
    fn weights_and_a_mapping_count() {
        let dir = tempfile::tempdir().unwrap();
        tokenizer(dir.path());
        let mapping = [0i64, 1, 2, 1].iter().flat_map(|one| one.to_le_bytes()).collect();
        let tensors = [
            ("embeddings", "I8", vec![3, 2], vec![9, 9, 1, 0, 0, 1]),
            ("weights", "F32", vec![4], floats(&[1.0, 0.75, 1.0, 3.25])),
            ("mapping", "I64", vec![4], mapping),
        ];
        write(&dir.path().join("model.safetensors"), &tensors);
        let model = StaticVectors::open(dir.path()).unwrap();
        // Cat and fish share a row: 0.75 + 3.25 of it, and 3 of the dog's.
        let vectors = model.embed(&["cat dog dog dog fish"], Role::Passage).unwrap();
        assert!((vectors[0][0] - 0.8).abs() < 1e-6 && (vectors[0][1] - 0.6).abs() < 1e-6, "{vectors:?}");
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = || StaticVectors::open(dir.path()).map(|_| ()).unwrap_err().to_string();
        let model = dir.path().join("model.safetensors");
        assert!(open().contains("model.safetensors"));
        write(&model, &[("other", "F32", vec![4, 2], floats(&ROWS))]);
        assert!(open().contains("model2vec"));
        write(&model, &[("embeddings", "F32", vec![8], floats(&ROWS))]);
        assert!(open().contains("has to be a matrix"));
        write(&model, &[("embeddings", "F32", vec![4, 2], floats(&ROWS))]);
        assert!(open().contains("tokenizer.json"));
        fs::write(dir.path().join("tokenizer.json"), "{\"version\": 3}").unwrap();
        assert!(open().contains("tokenizer.json can't be used"));
        tokenizer(dir.path());
        write(&model, &[("embeddings", "F32", vec![2, 4], floats(&ROWS))]);
        let error = StaticVectors::open(dir.path()).unwrap().embed(&["dog"], Role::Query).unwrap_err().to_string();
        assert!(error.contains("the token 2 has no vector"), "{error}");
        let nan = floats(&[f32::NAN; 8]);
        write(&model, &[("embeddings", "F32", vec![4, 2], nan)]);
        assert!(StaticVectors::open(dir.path()).unwrap().embed(&["dog"], Role::Query).is_err());
        assert!(StaticVectors::open(Path::new("/none")).map(|_| ()).unwrap_err().to_string().contains("no folder"));
    }
}
