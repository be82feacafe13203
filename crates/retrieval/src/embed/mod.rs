//! Makes vectors of texts.
//!
//! What an index holds and what is asked of it have to be embedded alike, so an index remembers an [`EmbedderSpec`], and [`open`] makes
//! the same embedder of it again. All of them answer with vectors of length 1, whose inner product is the cosine.

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

/// What a text is for. Some models want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Query,
    Passage,
}

/// Makes vectors of texts. It blocks: call it away from the threads that serve.
pub trait Embedder: Send + Sync {
    /// As reports show it: the kind, the model, and whether there is one.
    fn name(&self) -> &str;

    /// Numbers in each vector.
    fn dimension(&self) -> usize;

    /// Whether what means the same is near, however it is spelled.
    fn is_semantic(&self) -> bool {
        true
    }

    /// A vector for each text, in their order, each of length 1. A text in which the embedder finds nothing, such as an empty one, may
    /// get zeros: it is then like no other.
    fn embed(&self, texts: &[&str], role: Role) -> Result<Vec<Vec<f32>>>;
}

/// How vectors are made: what an index remembers. It holds no secret.
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
        /// Up to `/v1`, or the whole address that ends in `/embeddings`.
        url: String,
        model: String,
        /// The name of the environment variable with the key; never the key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        api_key_env: Option<String>,
        /// Asked of the service when it is not said here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dimension: Option<usize>,
        /// Texts in one request.
        #[serde(default = "http::default_batch")]
        batch: usize,
        /// For one request, in seconds.
        #[serde(default = "http::default_timeout")]
        timeout_s: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefixes: Option<Prefixes>,
    },
    /// A sentence encoder in a folder, as Hugging Face's hub has them.
    Encoder {
        path: PathBuf,
        /// Instead of those that the model's own files or its name ask for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefixes: Option<Prefixes>,
    },
    /// A vector for each token, as model2vec has them, in a folder.
    Static { path: PathBuf },
}

impl Default for EmbedderSpec {
    fn default() -> Self {
        Self::Hashing { dimension: hashing::default_dimension() }
    }
}

impl EmbedderSpec {
    /// A service, with what is usual for the rest.
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

/// The embedder that a spec describes. Reads the model, or asks the service for the dimension.
pub fn open(spec: &EmbedderSpec) -> Result<Arc<dyn Embedder>> {
    Ok(match spec {
        EmbedderSpec::Hashing { dimension } => Arc::new(hashing::Hashing::new(*dimension)?),
        EmbedderSpec::Http { .. } => Arc::new(http::Http::open(spec)?),
        EmbedderSpec::Encoder { path, prefixes } => Arc::new(encoder::Encoder::open(path, prefixes.clone())?),
        EmbedderSpec::Static { path } => Arc::new(static_vectors::StaticVectors::open(path)?),
    })
}

/// What a part of an embedder answers: its failure is the reason alone, and the embedder adds its name.
type Reasoned<T> = std::result::Result<T, String>;

fn named(name: &str) -> impl Fn(String) -> Error + '_ {
    move |reason| Error::Embedder { name: name.to_owned(), reason }
}

/// Brings a vector to length 1. Zeros stay as they are.
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

/// A file in JSON of a model's folder, or null where there is none.
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
        // The squares of these are beyond what an f32 holds.
        let mut large = [3e30, 4e30];
        normalise(&mut large).unwrap();
        assert!((large[0] - 0.6).abs() < 1e-6 && (large[1] - 0.8).abs() < 1e-6);
        let mut zeros = [0.0; 2];
        normalise(&mut zeros).unwrap();
        assert_eq!(zeros, [0.0; 2]);
        assert!(normalise(&mut [f32::NAN, 1.0]).is_err() && normalise(&mut [f32::INFINITY, 1.0]).is_err());
    }
}
