//! The transformer itself: from token ids to a vector for each token.
//!
//! Texts of different lengths are stacked in one matrix, without padding. Only attention uses more than a single token, and it
//! is computed for each text separately.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, s};

use super::super::Reasoned;
use super::super::tensors::Tensors;
use super::config::{Config, Family};
use super::math::{Activation, LayerNorm, Linear, softmax, square};

pub(super) struct Network {
    words: Array2<f32>,
    /// Position embeddings, plus the embedding of the first token type.
    places: Array2<f32>,
    norm: LayerNorm,
    layers: Vec<Layer>,
    heads: usize,
    activation: Activation,
    /// The relative position bias of MPNet, by the distance between two tokens: a row for each head.
    distances: Option<Distances>,
}

struct Layer {
    /// Queries, keys and values in one matrix.
    attention: Linear,
    attended: Linear,
    attention_norm: LayerNorm,
    wide: Linear,
    narrow: Linear,
    norm: LayerNorm,
}

struct Distances {
    limit: usize,
    /// From the furthest before a token to the furthest after it.
    rows: Vec<Vec<f32>>,
}

impl Network {
    pub(super) fn read(config: &Config, tensors: &mut Tensors) -> Reasoned<Self> {
        let names = Names::for_family(config.family);
        let width = config.width;
        let prefix = tensors
            .names()
            .find_map(|name| name.strip_suffix("embeddings.word_embeddings.weight").filter(|prefix| !prefix.contains("decoder")))
            .ok_or("model.safetensors holds no embeddings.word_embeddings.weight: it is no encoder of this kind")?
            .to_owned();
        let mut read = Reader { tensors, prefix, epsilon: config.epsilon };
        let words = read.matrix("embeddings.word_embeddings.weight", config.vocabulary, width)?;
        let all = read.matrix("embeddings.position_embeddings.weight", config.positions, width)?;
        let mut places = all.slice(s![config.first_position.., ..]).to_owned();
        if config.token_types > 0 {
            let types = read.matrix("embeddings.token_type_embeddings.weight", config.token_types, width)?;
            places += &types.row(0);
        }
        let norm = read.norm("embeddings.LayerNorm", width)?;
        let mut layers = Vec::new();
        for at in 0..config.layers {
            let name = |part: &str| format!("{}.{at}.{part}", names.layer);
            let parts = [names.query, names.key, names.value].map(name);
            layers.push(Layer {
                attention: read.side_by_side(&parts, width)?,
                attended: read.linear(&name(names.attended), width, width)?,
                attention_norm: read.norm(&name(names.attention_norm), width)?,
                wide: read.linear(&name(names.wide), width, config.inner)?,
                narrow: read.linear(&name(names.narrow), config.inner, width)?,
                norm: read.norm(&name(names.norm), width)?,
            });
        }
        let distances = match config.distance_buckets {
            Some(buckets) => {
                let learned = read.matrix("encoder.relative_attention_bias.weight", buckets, config.heads)?;
                Some(Distances::new(&learned, places.nrows()))
            }
            None => None,
        };
        Ok(Self { words, places, norm, layers, heads: config.heads, activation: config.activation, distances })
    }

    /// Maximum number of tokens of a text.
    pub(super) fn longest(&self) -> usize {
        self.places.nrows()
    }

    /// The vectors of all tokens of the texts, one text after the other.
    pub(super) fn run(&self, texts: &[&[u32]]) -> Reasoned<Array2<f32>> {
        let mut state = self.embedded(texts)?;
        let mut memory = Vec::new();
        for layer in &self.layers {
            let projected = layer.attention.apply(&state);
            let mut seen = Array2::zeros(state.dim());
            let mut begin = 0;
            for text in texts {
                self.attend(&projected, begin, text.len(), &mut seen, &mut memory);
                begin += text.len();
            }
            state += &layer.attended.apply(&seen);
            layer.attention_norm.apply(numbers(&mut state));
            let mut wide = layer.wide.apply(&state);
            self.activation.apply(numbers(&mut wide));
            state += &layer.narrow.apply(&wide);
            layer.norm.apply(numbers(&mut state));
        }
        Ok(state)
    }

    fn embedded(&self, texts: &[&[u32]]) -> Reasoned<Array2<f32>> {
        let count = texts.iter().map(|text| text.len()).sum();
        let mut state = Array2::zeros((count, self.words.ncols()));
        let places = texts.iter().flat_map(|text| text.iter().enumerate());
        for (mut row, (place, token)) in state.rows_mut().into_iter().zip(places) {
            let token = *token as usize;
            if token >= self.words.nrows() || place >= self.places.nrows() {
                return Err(format!("the token {token} at {place} is beyond the model's: the tokenizer is not this model's"));
            }
            row += &self.words.row(token);
            row += &self.places.row(place);
        }
        self.norm.apply(numbers(&mut state));
        Ok(state)
    }

    /// Computes attention over the tokens of one text.
    fn attend(&self, projected: &Array2<f32>, begin: usize, length: usize, seen: &mut Array2<f32>, memory: &mut Vec<f32>) {
        let width = self.words.ncols();
        let head_width = width / self.heads;
        let scale = 1.0 / (head_width as f32).sqrt();
        let rows = begin..begin + length;
        for head in 0..self.heads {
            let part = |offset: usize| {
                let first = offset * width + head * head_width;
                projected.slice(s![rows.clone(), first..first + head_width])
            };
            let mut scores = square(memory, length);
            general_mat_mul(scale, &part(0), &part(1).t(), 0.0, &mut scores);
            if let Some(distances) = &self.distances {
                distances.add(head, &mut scores);
            }
            if let Some(scores) = scores.as_slice_mut() {
                softmax(scores, length);
            }
            let mut out = seen.slice_mut(s![rows.clone(), head * head_width..(head + 1) * head_width]);
            general_mat_mul(1.0, &scores, &part(2), 0.0, &mut out);
        }
    }
}

impl Distances {
    fn new(learned: &Array2<f32>, limit: usize) -> Self {
        let buckets = learned.nrows();
        let ahead = (1..limit).rev().map(|distance| bucket(distance, false, buckets));
        let order: Vec<usize> = ahead.chain((0..limit).map(|distance| bucket(distance, true, buckets))).collect();
        let row = |head: usize| order.iter().map(|bucket| learned[[*bucket, head]]).collect();
        Self { limit, rows: (0..learned.ncols()).map(row).collect() }
    }

    fn add(&self, head: usize, scores: &mut ndarray::ArrayViewMut2<'_, f32>) {
        let length = scores.ncols();
        for (at, mut row) in scores.rows_mut().into_iter().enumerate() {
            let first = self.limit - 1 - at;
            let learned = &self.rows[head][first..first + length];
            row.iter_mut().zip(learned).for_each(|(score, one)| *score += one);
        }
    }
}

/// Small distances have a bucket each; larger ones share them, by the logarithm up to 128. Half of them are for later tokens.
fn bucket(distance: usize, after: bool, buckets: usize) -> usize {
    let half = buckets / 2;
    let exact = half / 2;
    let shift = if after && distance > 0 { half } else { 0 };
    if distance < exact {
        return shift + distance;
    }
    let part = (distance as f32 / exact as f32).ln() / (128.0 / exact as f32).ln() * (half - exact) as f32;
    shift + (exact + part as usize).min(half - 1)
}

fn numbers(matrix: &mut Array2<f32>) -> &mut [f32] {
    matrix.as_slice_mut().expect("a matrix that was made here lies in one piece")
}

/// The names of a layer's parts in a model family.
struct Names {
    layer: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    attended: &'static str,
    attention_norm: &'static str,
    wide: &'static str,
    narrow: &'static str,
    norm: &'static str,
}

impl Names {
    fn for_family(family: Family) -> Self {
        let bert = Self {
            layer: "encoder.layer",
            query: "attention.self.query",
            key: "attention.self.key",
            value: "attention.self.value",
            attended: "attention.output.dense",
            attention_norm: "attention.output.LayerNorm",
            wide: "intermediate.dense",
            narrow: "output.dense",
            norm: "output.LayerNorm",
        };
        match family {
            Family::Bert | Family::Roberta => bert,
            Family::Mpnet => Self {
                query: "attention.attn.q",
                key: "attention.attn.k",
                value: "attention.attn.v",
                attended: "attention.attn.o",
                attention_norm: "attention.LayerNorm",
                ..bert
            },
            Family::Distilbert => Self {
                layer: "transformer.layer",
                query: "attention.q_lin",
                key: "attention.k_lin",
                value: "attention.v_lin",
                attended: "attention.out_lin",
                attention_norm: "sa_layer_norm",
                wide: "ffn.lin1",
                narrow: "ffn.lin2",
                norm: "output_layer_norm",
            },
        }
    }
}

struct Reader<'a> {
    tensors: &'a mut Tensors,
    /// Models that were saved with a head prefix each tensor's name with the encoder's.
    prefix: String,
    epsilon: f32,
}

impl Reader<'_> {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Reasoned<Vec<f32>> {
        self.tensors.floats(&format!("{}{name}", self.prefix), shape)
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Reasoned<Array2<f32>> {
        let floats = self.floats(name, &[rows, columns])?;
        Array2::from_shape_vec((rows, columns), floats).map_err(|error| format!("the tensor {name} has another shape: {error}"))
    }

    fn norm(&mut self, name: &str, width: usize) -> Reasoned<LayerNorm> {
        // Old versions of PyTorch saved them under other names.
        let old = self.tensors.shape(&format!("{}{name}.gamma", self.prefix)).is_some();
        let (scale, shift) = if old { ("gamma", "beta") } else { ("weight", "bias") };
        Ok(LayerNorm {
            scale: self.floats(&format!("{name}.{scale}"), &[width])?,
            shift: self.floats(&format!("{name}.{shift}"), &[width])?,
            epsilon: self.epsilon,
        })
    }

    /// Transposed: a file has a row for each output, and products are faster the other way.
    fn linear(&mut self, name: &str, from: usize, to: usize) -> Reasoned<Linear> {
        self.stacked(&[name.to_owned()], from, to)
    }

    fn side_by_side(&mut self, names: &[String], width: usize) -> Reasoned<Linear> {
        self.stacked(names, width, width)
    }

    fn stacked(&mut self, names: &[String], from: usize, to: usize) -> Reasoned<Linear> {
        let mut weight = Array2::zeros((from, to * names.len()));
        let mut bias = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let part = self.matrix(&format!("{name}.weight"), to, from)?;
            weight.slice_mut(s![.., at * to..(at + 1) * to]).assign(&part.t());
            bias.extend(self.floats(&format!("{name}.bias"), &[to])?);
        }
        Ok(Linear { weight, bias })
    }
}
