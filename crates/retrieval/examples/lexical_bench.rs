//! Measures the lexical index on a corpus that `tests/retrieval/corpus.py` wrote, and prints one line of JSON. `cargo xtask
//! bench` compares it with bm25s.
//!
//! `lexical_bench CORPUS INDEX`: creates the index in a directory that must not exist, then runs the corpus's queries, one
//! after another and by 16 threads.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use arenite_retrieval::lexical::{Language, Lexical, LexicalSettings};
use serde_json::{Value, json};

type Anything<T> = Result<T, Box<dyn Error>>;

const TOP_K: usize = 10;
const CLIENTS: usize = 16;
/// Number of times that the clients run all queries.
const ROUNDS: usize = 5;

fn records(path: &Path) -> Anything<Vec<Value>> {
    BufReader::new(File::open(path)?).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn main() -> Anything<()> {
    let mut words = std::env::args().skip(1).map(PathBuf::from);
    let (Some(corpus), Some(dir)) = (words.next(), words.next()) else { return Err("say CORPUS and INDEX".into()) };
    let text = |record: &Value, name: &str| record[name].as_str().unwrap_or_default().to_owned();
    let passages = records(&corpus.join("passages.jsonl"))?;
    let passages: Vec<String> = passages.iter().map(|one| format!("{}\n{}", text(one, "title"), text(one, "text"))).collect();
    let queries: Vec<String> = records(&corpus.join("queries.jsonl"))?.iter().map(|one| text(one, "text")).collect();

    let begun = Instant::now();
    let lexical = Lexical::create(&dir, LexicalSettings { language: Language::Simple, fold: false })?;
    let mut writer = lexical.writer()?;
    for (ordinal, passage) in (0..).zip(&passages) {
        writer.add(ordinal, passage)?;
    }
    writer.commit(&mut |_| ())?;
    let built = begun.elapsed();
    let sizes = std::fs::read_dir(&dir)?.map(|entry| Ok(entry?.metadata()?.len()));
    let bytes: u64 = sizes.sum::<std::io::Result<u64>>()?;

    let ask = |query: &str| lexical.search(query, TOP_K, None).expect("a query is fit");
    queries.iter().for_each(|query| drop(ask(query)));
    let mut times: Vec<f64> = queries
        .iter()
        .map(|query| {
            let begun = Instant::now();
            ask(query);
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let (next, all) = (AtomicUsize::new(0), queries.len() * ROUNDS);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(query) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < all) {
                    ask(&queries[query % queries.len()]);
                }
            });
        }
    });
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let told = json!({
        "build_s": built.as_secs_f64(), "bytes": bytes, "p50_ms": at(50), "p99_ms": at(99),
        "qps16": all as f64 / begun.elapsed().as_secs_f64(),
    });
    println!("{told}");
    Ok(())
}
