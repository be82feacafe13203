//! Configuration in the files beside a model's weights.

use std::path::Path;

use serde_json::Value;

use super::super::{Reasoned, optional};
use super::math::Activation;

/// Maximum of numbers in a model's configuration (layers, tokens), so that nothing overflows.
const MOST: u64 = 1 << 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Bert,
    /// BERT with positions that are counted on from the padding's: RoBERTa, XLM-R, CamemBERT.
    Roberta,
    Mpnet,
    Distilbert,
}

pub(super) struct Config {
    pub(super) family: Family,
    pub(super) width: usize,
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) vocabulary: usize,
    pub(super) positions: usize,
    pub(super) first_position: usize,
    pub(super) token_types: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) distance_buckets: Option<usize>,
}

impl Config {
    pub(super) fn parse(config: &Value) -> Reasoned<Self> {
        let family = match config["model_type"].as_str().unwrap_or("unnamed") {
            "bert" => Family::Bert,
            "roberta" | "xlm-roberta" | "camembert" => Family::Roberta,
            "mpnet" => Family::Mpnet,
            "distilbert" => Family::Distilbert,
            other => {
                return Err(format!(
                    "models of the kind {other} can't be run; bert, roberta, xlm-roberta, camembert, mpnet and distilbert can. A \
                     service with /v1/embeddings may run it"
                ));
            }
        };
        let distilbert = family == Family::Distilbert;
        let number = |name: &str| match config[name].as_u64() {
            Some(number) if (1..=MOST).contains(&number) => Ok(number as usize),
            _ => Err(format!("config.json has no usable {name}")),
        };
        let either = |usual: &str, distil: &str| number(if distilbert { distil } else { usual });
        let act = config[if distilbert { "activation" } else { "hidden_act" }].as_str().unwrap_or("gelu");
        let activation = Activation::named(act).ok_or_else(|| format!("the activation {act} is not known"))?;
        if let Some(kind) = config["position_embedding_type"].as_str().filter(|kind| *kind != "absolute") {
            return Err(format!("embeddings of positions of the kind {kind} can't be computed; only absolute ones can"));
        }
        let counted_on = matches!(family, Family::Roberta | Family::Mpnet);
        let padding = config["pad_token_id"].as_u64().unwrap_or(1).min(MOST) as usize;
        let config = Self {
            family,
            width: either("hidden_size", "dim")?,
            inner: either("intermediate_size", "hidden_dim")?,
            layers: either("num_hidden_layers", "n_layers")?,
            heads: either("num_attention_heads", "n_heads")?,
            vocabulary: number("vocab_size")?,
            positions: number("max_position_embeddings")?,
            first_position: if counted_on { padding + 1 } else { 0 },
            token_types: match family {
                Family::Bert | Family::Roberta => number("type_vocab_size")?,
                Family::Mpnet | Family::Distilbert => 0,
            },
            epsilon: config["layer_norm_eps"].as_f64().unwrap_or(1e-12) as f32,
            activation,
            distance_buckets: match family {
                Family::Mpnet => Some(config["relative_attention_num_buckets"].as_u64().unwrap_or(32).clamp(4, MOST) as usize),
                _ => None,
            },
        };
        if !config.width.is_multiple_of(config.heads) || config.first_position >= config.positions {
            return Err("config.json contradicts itself: its heads or positions don't fit its sizes".to_owned());
        }
        Ok(config)
    }
}

/// How the vectors of a text's tokens are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    Mean,
    /// The first token's.
    First,
    Max,
}

/// Settings of a folder beyond the network's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) pooling: Pooling,
    /// False if a prefix does not count in the mean.
    pub(super) with_prefix: bool,
    /// Maximum number of tokens of a text.
    pub(super) limit: Option<usize>,
    pub(super) lower_case: bool,
}

impl Usage {
    pub(super) fn from_folder(folder: &Path) -> Reasoned<Self> {
        let mut usage = Self { pooling: Pooling::Mean, with_prefix: true, limit: None, lower_case: false };
        let sentence = optional(folder, "sentence_bert_config.json")?;
        usage.limit = sentence["max_seq_length"].as_u64().map(|limit| limit.min(MOST) as usize);
        usage.lower_case = sentence["do_lower_case"] == true;
        if usage.limit.is_none() {
            // An unknown limit is stored as a huge number.
            let tokenizer = optional(folder, "tokenizer_config.json")?;
            usage.limit = tokenizer["model_max_length"].as_u64().filter(|limit| *limit < MOST).map(|limit| limit as usize);
        }
        let modules = optional(folder, "modules.json")?;
        let mut pooling = "1_Pooling".to_owned();
        for module in modules.as_array().into_iter().flatten() {
            let kind = module["type"].as_str().unwrap_or_default().rsplit('.').next().unwrap_or_default();
            match kind {
                "Transformer" | "Normalize" => {}
                "Pooling" => pooling = module["path"].as_str().unwrap_or_default().to_owned(),
                other => {
                    return Err(format!(
                        "modules.json names a {other}, which can't be computed here; Transformer, Pooling and Normalize can"
                    ));
                }
            }
        }
        if Path::new(&pooling).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err("modules.json leads out of the model's folder".to_owned());
        }
        let config = optional(folder, &format!("{pooling}/config.json"))?;
        usage.with_prefix = config["include_prompt"] != false;
        if let Some(pooling) = pooled(&config)? {
            usage.pooling = pooling;
        }
        Ok(usage)
    }
}

fn pooled(config: &Value) -> Reasoned<Option<Pooling>> {
    let mut chosen: Vec<&str> = match &config["pooling_mode"] {
        Value::String(mode) => vec![mode],
        Value::Array(modes) => modes.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for (key, value) in config.as_object().into_iter().flatten() {
        if let (Some(mode), Value::Bool(true)) = (key.strip_prefix("pooling_mode_"), value) {
            chosen.push(mode.trim_end_matches("_tokens").trim_end_matches("_token"));
        }
    }
    match chosen.as_slice() {
        [] => Ok(None),
        // Divided by the root of the count instead of the count, the vector differs in length only.
        ["mean" | "mean_sqrt_len" | "mean_sqrt_len_tokens"] => Ok(Some(Pooling::Mean)),
        ["cls"] => Ok(Some(Pooling::First)),
        ["max"] => Ok(Some(Pooling::Max)),
        other => Err(format!("pooling by {} can't be computed here; mean, cls and max can, one of them", other.join(" and "))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn usage(files: &[(&str, Value)]) -> Reasoned<Usage> {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value.to_string()).unwrap();
        }
        Usage::from_folder(dir.path())
    }

    #[test]
    fn how_a_model_is_used_is_read_from_its_files() {
        let plain = Usage { pooling: Pooling::Mean, with_prefix: true, limit: None, lower_case: false };
        assert_eq!(usage(&[]).unwrap(), plain);
        let limit = json!({"max_seq_length": 256, "do_lower_case": true});
        let tokenizer = json!({"model_max_length": 512});
        let pooling = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false, "include_prompt": false});
        let modules = json!([
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "pool", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]);
        let all = [
            ("sentence_bert_config.json", limit),
            ("tokenizer_config.json", tokenizer.clone()),
            ("modules.json", modules),
            ("pool/config.json", pooling),
        ];
        let wanted = Usage { pooling: Pooling::First, with_prefix: false, limit: Some(256), lower_case: true };
        assert_eq!(usage(&all).unwrap(), wanted);
        assert_eq!(usage(&[("tokenizer_config.json", tokenizer)]).unwrap().limit, Some(512));
        assert_eq!(usage(&[("tokenizer_config.json", json!({"model_max_length": 1e30}))]).unwrap().limit, None);
    }

    #[test]
    fn what_can_not_be_computed_is_refused() {
        let module = |kind: &str, path: &str| json!([{"path": path, "type": format!("sentence_transformers.models.{kind}")}]);
        assert!(usage(&[("modules.json", module("Dense", "2_Dense"))]).unwrap_err().contains("a Dense"));
        assert!(usage(&[("modules.json", module("Pooling", "../other"))]).unwrap_err().contains("out of"));
        let two = json!({"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true});
        assert!(usage(&[("1_Pooling/config.json", two)]).unwrap_err().contains("cls and max"));
        let last = json!({"pooling_mode_lasttoken": true});
        assert!(usage(&[("1_Pooling/config.json", last)]).unwrap_err().contains("lasttoken"));
        let sound = json!({
            "model_type": "bert", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "vocab_size": 9, "max_position_embeddings": 16, "type_vocab_size": 2,
        });
        assert!(Config::parse(&sound).is_ok());
        for (key, value, told) in [
            ("model_type", json!("llama"), "the kind llama"),
            ("model_type", json!("roberta"), ""),
            ("hidden_size", json!(-1), "no usable hidden_size"),
            ("hidden_size", json!(1u64 << 60), "no usable hidden_size"),
            ("num_attention_heads", json!(3), "contradicts"),
            ("hidden_act", json!("silu"), "silu"),
            ("position_embedding_type", json!("relative_key"), "relative_key"),
        ] {
            let mut config = sound.clone();
            config[key] = value;
            let outcome = Config::parse(&config).map(|_| ());
            assert!(
                if told.is_empty() { outcome.is_ok() } else { outcome.clone().unwrap_err().contains(told) },
                "{key} {outcome:?}"
            );
        }
    }
}
