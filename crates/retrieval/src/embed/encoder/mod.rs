//! A local sentence encoder: a transformer of BERT's family in a folder in the layout of Hugging Face's hub.
//!
//! The folder contains `config.json`, `tokenizer.json` and `model.safetensors`. Optional files of sentence-transformers
//! (`modules.json`, a folder for pooling, `sentence_bert_config.json`) are used too.

mod config;
mod math;
mod network;
mod parallel;

use std::path::Path;

use ndarray::{ArrayView1, ArrayView2, Axis, s};

use self::config::{Config, Pooling, Usage};
use self::network::Network;
use super::prefixes::name_of_folder;
use super::tensors::Tensors;
use super::tokens::Tokens;
use super::{Embedder, Prefixes, Reasoned, Role, named, normalise, optional};
use crate::Result;

/// Texts with tokens in memory at a time.
const WINDOW: usize = 1024;
/// Tokens that go through the network together. Enough rows to amortise fetching the weights, and few enough that values
/// between two layers stay in the cache. A single text may have more.
const TOGETHER: usize = 512;

pub(super) struct Encoder {
    name: String,
    tokens: Tokens,
    network: Network,
    usage: Usage,
    prefixes: Prefixes,
    dimension: usize,
}

impl Encoder {
    pub(super) fn open(path: &Path, prefixes: Option<Prefixes>) -> Result<Self> {
        let name = format!("encoder {}", name_of_folder(path));
        Self::read(path, prefixes, &name).map_err(named(&name))
    }

    fn read(path: &Path, prefixes: Option<Prefixes>, name: &str) -> Reasoned<Self> {
        if !path.is_dir() {
            return Err(format!("there is no folder {}", path.display()));
        }
        let config = optional(path, "config.json")?;
        if config.is_null() {
            return Err(format!("{} holds no model: there is no config.json", path.display()));
        }
        let usage = Usage::from_folder(path)?;
        let prefixes = match prefixes {
            Some(prefixes) => prefixes,
            None => own_prefixes(path, &config)?,
        };
        if !usage.with_prefix && !prefixes.are_empty() {
            return Err("the model wants what stands before a text left out of the mean, which can't be done here".to_owned());
        }
        let weights = path.join("model.safetensors");
        if !weights.is_file() {
            return Err("there is no model.safetensors in the folder; save the model in that format, in one file".to_owned());
        }
        let config = Config::parse(&config)?;
        let network = Network::read(&config, &mut Tensors::open(&weights)?)?;
        let limit = usage.limit.unwrap_or(usize::MAX).min(network.longest());
        let tokens = Tokens::open(path, true, limit)?;
        Ok(Self { name: name.to_owned(), tokens, network, usage, prefixes, dimension: config.width })
    }

    /// Trims the text first: surrounding spaces have no meaning, and some tokenizers create tokens for them.
    fn tokens(&self, text: &str, role: Role) -> Reasoned<Vec<u32>> {
        let text = self.prefixes.before(text, role);
        let text = text.trim();
        let tokens = if self.usage.lower_case { self.tokens.encode(&text.to_lowercase()) } else { self.tokens.encode(text) }?;
        if tokens.is_empty() {
            Err("the tokenizer adds no tokens of its own, so an empty text has none".to_owned())
        } else {
            Ok(tokens)
        }
    }

    fn window(&self, texts: &[&str], role: Role) -> Reasoned<Vec<Vec<f32>>> {
        let tokens = parallel::each(texts.len(), |at| self.tokens(texts[at], role))?;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        // The longest first, so that no thread is left with one at the end.
        order.sort_by_key(|at| std::cmp::Reverse(tokens[*at].len()));
        let packs = packs(&order, |at| tokens[at].len());
        let answers = parallel::each(packs.len(), |at| {
            let texts: Vec<&[u32]> = packs[at].iter().map(|text| tokens[*text].as_slice()).collect();
            let states = self.network.run(&texts)?;
            let mut begin = 0;
            let pooled = texts.iter().map(|text| {
                let rows = begin..begin + text.len();
                begin = rows.end;
                let mut vector = pool(self.usage.pooling, states.slice(s![rows, ..]));
                normalise(&mut vector).map(|()| vector)
            });
            pooled.collect::<Reasoned<Vec<_>>>()
        })?;
        let mut vectors = vec![Vec::new(); texts.len()];
        for (at, vector) in packs.iter().flat_map(|pack| pack.iter()).zip(answers.into_iter().flatten()) {
            vectors[*at] = vector;
        }
        Ok(vectors)
    }
}

impl Embedder for Encoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn embed(&self, texts: &[&str], role: Role) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for window in texts.chunks(WINDOW) {
            vectors.extend(self.window(window, role).map_err(named(&self.name))?);
        }
        Ok(vectors)
    }
}

/// The prefixes from the model's files; otherwise those of its name.
fn own_prefixes(path: &Path, config: &serde_json::Value) -> Reasoned<Prefixes> {
    if let Some(prompts) = Prefixes::of_prompts(&optional(path, "config_sentence_transformers.json")?) {
        return Ok(prompts);
    }
    let by_folder = Prefixes::of_name(&name_of_folder(path));
    let origin = config["_name_or_path"].as_str().unwrap_or_default();
    Ok(if by_folder.are_empty() { Prefixes::of_name(origin) } else { by_folder })
}

/// Splits the order into runs of about as many tokens as go through the network together.
fn packs(order: &[usize], length: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut packs: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for at in order {
        match packs.last_mut() {
            Some(pack) if length(*at) <= room => pack.push(*at),
            _ => {
                packs.push(vec![*at]);
                room = TOGETHER.max(length(*at));
            }
        }
        room -= length(*at);
    }
    packs
}

fn pool(pooling: Pooling, states: ArrayView2<'_, f32>) -> Vec<f32> {
    match pooling {
        Pooling::Mean => states.sum_axis(Axis(0)).mapv(|one| one / states.nrows() as f32).to_vec(),
        Pooling::First => states.row(0).to_vec(),
        Pooling::Max => {
            let most = |column: ArrayView1<'_, f32>| column.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            states.columns().into_iter().map(most).collect()
        }
    }
}

#[cfg(test)]
mod tests;
