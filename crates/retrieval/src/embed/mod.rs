//! Embeds texts as vectors.
//!
//! Passages and queries have to be embedded alike, so an index stores an [`EmbedderSpec`], and [`open`] creates the same
//! embedder from it. All embedders return vectors of length 1, so their inner product is the cosine.

mod encoder;
mod hashing;
mod http;
mod locate;
mod prefixes;
mod static_vectors;
mod tensors;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use locate::from_model_name;
pub use prefixes::Prefixes;

use crate::{Error, Result};

/// The role of a text, which some models distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Query,
    Passage,
}

/// Embeds texts. It blocks: don't call it on threads that serve.
pub trait Embedder: Send + Sync {
    /// The name for reports: the kind, and the model if there is one.
    fn name(&self) -> &str;

    /// Number of dimensions.
    fn dimension(&self) -> usize;

    /// Whether texts with the same meaning are near, with any spelling.
    fn is_semantic(&self) -> bool {
        true
    }

    /// Returns a vector of length 1 for each text, in their order. A text without content for the embedder, such as an empty
    /// one, may get zeros: it is then similar to no other.
    fn embed(&self, texts: &[&str], role: Role) -> Result<Vec<Vec<f32>>>;
}

/// An embedder's settings, stored in an index. Without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EmbedderSpec {
    /// Hashed words and pieces of words. No model: see [`hashing`].
    Hashing {
        #[serde(default = "hashing::default_dimension")]
        dimension: usize,
    },
    /// A service with OpenAI's `/v1/embeddings`.
    Http {
        /// The address up to `/v1`, or the complete one that ends in `/embeddings`.
        url: String,
        model: String,
        /// The name of the environment variable with the key; never the key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        api_key_env: Option<String>,
        /// Requested from the service if not set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dimension: Option<usize>,
        /// Maximum number of texts in one request.
        #[serde(default = "http::default_batch")]
        batch: usize,
        /// Timeout of one request, in seconds.
        #[serde(default = "http::default_timeout")]
        timeout_s: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefixes: Option<Prefixes>,
    },
    /// A sentence encoder in a folder in the layout of Hugging Face's hub.
    Encoder {
        path: PathBuf,
        /// Replaces the prefixes that the model's files or its name require.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefixes: Option<Prefixes>,
    },
    /// A vector for each token, in a folder in the layout of model2vec.
    Static { path: PathBuf },
}

impl Default for EmbedderSpec {
    fn default() -> Self {
        Self::Hashing { dimension: hashing::default_dimension() }
    }
}

impl EmbedderSpec {
    /// A service, with defaults for the rest.
    pub fn http(url: &str, model: &str, api_key_env: Option<String>) -> Self {
        Self::Http {
            url: url.to_owned(),
            model: model.to_owned(),
            api_key_env,
            dimension: None,
            batch: http::default_batch(),
            timeout_s: http::default_timeout(),
            prefixes: None,
        }
    }
}

impl std::fmt::Display for EmbedderSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hashing { dimension } => write!(f, "hashing:{dimension}"),
            Self::Http { url, model, .. } => write!(f, "{url}#{model}"),
            Self::Encoder { path, .. } | Self::Static { path } => write!(f, "{}", path.display()),
        }
    }
}

/// Opens the embedder of a spec. Reads the model, or requests the dimension from the service.
pub fn open(spec: &EmbedderSpec) -> Result<Arc<dyn Embedder>> {
    Ok(match spec {
        EmbedderSpec::Hashing { dimension } => Arc::new(hashing::Hashing::new(*dimension)?),
        EmbedderSpec::Http { .. } => Arc::new(http::Http::open(spec)?),
        EmbedderSpec::Encoder { path, prefixes } => Arc::new(encoder::Encoder::open(path, prefixes.clone())?),
        EmbedderSpec::Static { path } => Arc::new(static_vectors::StaticVectors::open(path)?),
    })
}

/// Result of a part of an embedder: the error is only the reason, and the embedder adds its name.
type Reasoned<T> = std::result::Result<T, String>;

fn named(name: &str) -> impl Fn(String) -> Error + '_ {
    move |reason| Error::Embedder { name: name.to_owned(), reason }
}

/// Scales a vector to length 1. Zeros stay unchanged.
fn normalise(vector: &mut [f32]) -> Reasoned<()> {
    let length = vector.iter().map(|one| f64::from(*one).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err("a vector came out with numbers that are not finite; the model's weights may be damaged".to_owned());
    }
    if length > 0.0 {
        vector.iter_mut().for_each(|one| *one = (f64::from(*one) / length) as f32);
    }
    Ok(())
}

/// A JSON file of a model's folder, or null if it doesn't exist.
fn optional(folder: &Path, name: &str) -> Reasoned<serde_json::Value> {
    match std::fs::read(folder.join(name)) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| format!("{name} can't be read: {error}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(error) => Err(format!("could not read {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_remembered_as_it_was() {
        let specs = [
            EmbedderSpec::Hashing { dimension: 64 },
            EmbedderSpec::Http {
                url: "http://127.0.0.1:1/v1".to_owned(),
                model: "m".to_owned(),
                api_key_env: Some("KEY".to_owned()),
                dimension: Some(3),
                batch: 7,
                timeout_s: 9,
                prefixes: Some(Prefixes { query: "q: ".to_owned(), passage: String::new() }),
            },
            EmbedderSpec::Encoder { path: "a".into(), prefixes: None },
            EmbedderSpec::Static { path: "b".into() },
        ];
        for spec in specs {
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<EmbedderSpec>(&text).unwrap(), spec, "{text}");
        }
        let short: EmbedderSpec = serde_json::from_str(r#"{"kind": "hashing"}"#).unwrap();
        assert_eq!(short, EmbedderSpec::Hashing { dimension: 384 });
        assert!(serde_json::from_str::<EmbedderSpec>(r#"{"kind": "http", "url": "u", "model": "m", "api_key": "s"}"#).is_err());
    }

    #[test]
    fn vectors_get_length_one() {
        let mut vector = [3.0, 4.0];
        normalise(&mut vector).unwrap();
        assert_eq!(vector, [0.6, 0.8]);
        // The squares of these exceed the range of an f32.
        let mut large = [3e30, 4e30];
        normalise(&mut large).unwrap();
        assert!((large[0] - 0.6).abs() < 1e-6 && (large[1] - 0.8).abs() < 1e-6);
        let mut zeros = [0.0; 2];
        normalise(&mut zeros).unwrap();
        assert_eq!(zeros, [0.0; 2]);
        assert!(normalise(&mut [f32::NAN, 1.0]).is_err() && normalise(&mut [f32::INFINITY, 1.0]).is_err());
    }
}
