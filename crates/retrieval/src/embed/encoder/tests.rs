//! Compares with the results of transformers for tiny models with made-up weights. `tests/retrieval/make_encoder_goldens.py`
//! writes the file.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::tensors::write;
use super::*;

fn models() -> Vec<Value> {
    serde_json::from_str(include_str!("tiny.json")).unwrap()
}

/// MurmurHash3's last step on 32 bits.
fn mixed(mut number: u32) -> u32 {
    number = (number ^ (number >> 16)).wrapping_mul(0x85eb_ca6b);
    number = (number ^ (number >> 13)).wrapping_mul(0xc2b2_ae35);
    number ^ (number >> 16)
}

fn weights(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().map(u32::from).sum::<u32>() << 16;
    let centre = if name.to_lowercase().contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
    let number = |at: u32| (f64::from(mixed(seed + at)) / 2f64.powi(32) - 0.5 + centre) as f32;
    (0..count as u32).map(number).collect()
}

/// Writes a model's folder, with its numbers in `dtype` and its tensors' names after `prefix`.
fn lay(folder: &Path, model: &Value, dtype: &str, prefix: &str) {
    fs::write(folder.join("config.json"), model["config"].to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), model["tokenizer"].to_string()).unwrap();
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    fs::write(folder.join("1_Pooling/config.json"), json!({"pooling_mode": model["pooling"]}).to_string()).unwrap();
    let tensors = model["tensors"].as_object().unwrap();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, shape)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let numbers = weights(name, shape.iter().product());
            let bytes = numbers.iter().flat_map(|one| match dtype {
                "F32" => one.to_le_bytes().to_vec(),
                _ => one.to_le_bytes()[2..].to_vec(),
            });
            (format!("{prefix}{name}"), shape, bytes.collect::<Vec<u8>>())
        })
        .collect();
    let tensors: Vec<_> =
        tensors.iter().map(|(name, shape, bytes)| (name.as_str(), dtype, shape.clone(), bytes.clone())).collect();
    write(&folder.join("model.safetensors"), &tensors);
}

fn texts(model: &Value) -> Vec<&str> {
    model["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// The largest deviation of any number from its expected value.
fn furthest(encoder: &Encoder, model: &Value) -> f32 {
    let vectors = encoder.embed(&texts(model), Role::Passage).unwrap();
    let wanted: Vec<Vec<f32>> = serde_json::from_value(model["vectors"].clone()).unwrap();
    assert_eq!(vectors.len(), wanted.len());
    vectors.iter().zip(&wanted).flat_map(|(one, wanted)| one.iter().zip(wanted)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn each_family_comes_out_as_its_reference() {
    for model in models() {
        let dir = tempfile::tempdir().unwrap();
        for (prefix, dtype, most) in [("", "F32", 1e-5), ("bert.", "F32", 1e-5), ("", "BF16", 0.05)] {
            lay(dir.path(), &model, dtype, prefix);
            let encoder = Encoder::open(dir.path(), None).unwrap();
            assert_eq!(encoder.dimension(), 16);
            let found = furthest(&encoder, &model);
            assert!(found < most, "{} {} {dtype}: {found}", model["config"]["model_type"], model["pooling"]);
        }
    }
}

#[test]
fn a_text_is_the_same_whatever_it_stands_beside() {
    let dir = tempfile::tempdir().unwrap();
    let model = &models()[3];
    lay(dir.path(), model, "F32", "");
    let encoder = Encoder::open(dir.path(), None).unwrap();
    let texts = texts(model);
    let alone = encoder.embed(&texts, Role::Query).unwrap();
    let many: Vec<&str> = (0..3 * WINDOW).map(|at| texts[at * at % texts.len()]).collect();
    for (at, vector) in encoder.embed(&many, Role::Query).unwrap().iter().enumerate() {
        let wanted = &alone[at * at % texts.len()];
        assert!(vector.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-5), "{at}");
    }
}

#[test]
fn what_stands_before_a_text_and_the_limit_count() {
    let dir = tempfile::tempdir().unwrap();
    let model = &models()[0];
    lay(dir.path(), model, "F32", "");
    let embed = |prefixes: Option<Prefixes>, text: &str, role| {
        Encoder::open(dir.path(), prefixes).unwrap().embed(&[text], role).unwrap().remove(0)
    };
    let prefixes = Some(Prefixes { query: "w1 ".to_owned(), passage: "w2 ".to_owned() });
    assert_eq!(embed(prefixes.clone(), "w3", Role::Query), embed(None, "w1 w3", Role::Query));
    assert_eq!(embed(prefixes, "w3", Role::Passage), embed(None, "w2 w3", Role::Passage));
    fs::write(dir.path().join("config_sentence_transformers.json"), r#"{"prompts": {"query": "w7 "}}"#).unwrap();
    assert_eq!(embed(None, "w3", Role::Query), embed(Some(Prefixes::default()), "w7 w3", Role::Query));
    // Ten tokens are eight words, plus the two that the tokenizer adds.
    fs::write(dir.path().join("sentence_bert_config.json"), r#"{"max_seq_length": 10}"#).unwrap();
    assert_eq!(embed(None, &"w1 ".repeat(100_000), Role::Passage), embed(None, &"w1 ".repeat(8), Role::Passage));
}

#[test]
fn what_is_damaged_or_missing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let sound = &models()[0];
    let failure = || match Encoder::open(dir.path(), None).and_then(|encoder| encoder.embed(&["w1"], Role::Query)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert!(failure().contains("no config.json"));
    lay(dir.path(), sound, "F32", "");
    assert_eq!(failure(), "");
    let weights = dir.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for end in (0..bytes.len()).step_by(997) {
        fs::write(&weights, &bytes[..end]).unwrap();
        assert!(failure().starts_with("the embedder encoder "), "{end}");
    }
    fs::remove_file(&weights).unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    assert!(failure().contains("no model.safetensors"));
    for (key, value, told) in [
        ("vocab_size", json!(25), "shape [24, 16], and [25, 16]"),
        ("intermediate_size", json!(64), "intermediate.dense"),
        ("num_hidden_layers", json!(3), "encoder.layer.2.attention.self.query.weight is missing"),
        ("max_position_embeddings", json!(1u32 << 23), "position_embeddings"),
    ] {
        let mut model = sound.clone();
        model["config"][key] = value;
        lay(dir.path(), &model, "F32", "");
        assert!(failure().contains(told), "{}", failure());
    }
    let mut model = sound.clone();
    model["tokenizer"]["model"]["vocab"]["w1"] = json!(24);
    lay(dir.path(), &model, "F32", "");
    assert!(failure().contains("the tokenizer is not this model's"), "{}", failure());
    let mut model = sound.clone();
    model["tokenizer"]["post_processor"] = Value::Null;
    lay(dir.path(), &model, "F32", "");
    let error = Encoder::open(dir.path(), None).unwrap().embed(&["w1", ""], Role::Query).unwrap_err().to_string();
    assert!(error.contains("an empty text has none"), "{error}");
    fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(failure().contains("config.json can't be read"));
}
