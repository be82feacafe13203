//! Measures a search of vectors in a raw file of f32, and prints one line of JSON. `cargo xtask bench` compares it with faiss.
//!
//! `dense_bench kind=flat|hnsw|faiss index=FILE vectors=FILE queries=FILE dimension=N [k=10] [precision=f32|f16|i8] [metric=ip|l2]
//! [degree=16] [construction=200] [ef=64] [probes=N] [clients=16] [seconds=2] [answers=FILE]`
//!
//! A missing index is built first, next to the file of its vectors, which has the same name with `.vectors` appended.

use std::{
    collections::HashMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arenite_retrieval::batch::{Batcher, Knobs};
use arenite_retrieval::vectors::{Faiss, Flat, FlatWriter, Hnsw, HnswOptions, Metric, Precision, VectorIndex};
use tokio::runtime::Runtime;

type Anything<T> = Result<T, Box<dyn Error>>;

struct Options(HashMap<String, String>);

impl Options {
    fn number(&self, name: &str, otherwise: usize) -> Anything<usize> {
        self.0.get(name).map_or(Ok(otherwise), |value| Ok(value.parse()?))
    }

    fn text(&self, name: &str) -> Anything<&str> {
        self.0.get(name).map(String::as_str).ok_or_else(|| format!("say {name}=…").into())
    }
}

fn main() -> Anything<()> {
    let pairs = std::env::args().skip(1).filter_map(|one| one.split_once('=').map(|(name, value)| (name.into(), value.into())));
    let options = Options(pairs.collect());
    let dimension = options.number("dimension", 384)?;
    let index = Path::new(options.text("index")?);
    let queries = rows(Path::new(options.text("queries")?), dimension)?;
    let begin = Instant::now();
    let mut built = None;
    let mut bytes = 0;
    match options.text("kind")? {
        "faiss" => {
            let faiss = Faiss::open(index)?;
            let faiss = if options.0.contains_key("probes") { faiss.with_probes(options.number("probes", 1)?) } else { faiss };
            measure(&options, faiss, &queries, built, fs::metadata(index)?.len())
        }
        kind => {
            let vectors = PathBuf::from(format!("{}.vectors", index.display()));
            if !vectors.exists() {
                write(&options, &vectors, dimension)?;
                built = Some(begin.elapsed());
            }
            bytes += fs::metadata(&vectors)?.len();
            let flat = Flat::open(&vectors)?;
            if kind == "flat" {
                return measure(&options, flat, &queries, built, bytes);
            }
            let flat = Arc::new(flat);
            if !index.exists() {
                let how =
                    HnswOptions { degree: options.number("degree", 16)?, ef_construction: options.number("construction", 200)? };
                let begin = Instant::now();
                Hnsw::build(&flat, how, index, &|_, _| ())?;
                built = Some(begin.elapsed());
            }
            bytes += fs::metadata(index)?.len();
            let hnsw = Hnsw::open(index, flat)?.with_ef_search(options.number("ef", 64)?);
            measure(&options, hnsw, &queries, built, bytes)
        }
    }
}

/// A single query runs on its own thread; how concurrent ones are answered depends on the index.
fn measure(
    options: &Options,
    index: impl VectorIndex + 'static,
    queries: &[Vec<f32>],
    built: Option<Duration>,
    bytes: u64,
) -> Anything<()> {
    let k = options.number("k", 10)?;
    let index = Arc::new(index);
    let ask = |query: &[f32]| -> Vec<u32> {
        index.search(query, k, None).expect("a query is fit").iter().map(|hit| hit.ordinal).collect()
    };
    let lasts = Duration::from_secs_f64(options.0.get("seconds").map_or(Ok(2.0), |seconds| seconds.parse())?);
    if let Some(answers) = options.0.get("answers") {
        let found = queries.iter().flat_map(|query| {
            let mut found = ask(query);
            found.resize(k, u32::MAX);
            found
        });
        fs::write(answers, found.flat_map(u32::to_le_bytes).collect::<Vec<u8>>())?;
    }
    for query in queries.iter().take(20) {
        ask(query);
    }

    let mut taken = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < lasts {
        let began = Instant::now();
        ask(&queries[taken.len() % queries.len()]);
        taken.push(began.elapsed());
    }
    taken.sort();

    let clients = options.number("clients", 16)?;
    let done = AtomicUsize::new(0);
    let next = || done.fetch_add(1, Ordering::Relaxed) % queries.len();
    let begin = Instant::now();
    if options.text("kind")? == "flat" {
        // A pass through all vectors is shared, as in a server.
        let (all, shared) = (queries.to_vec(), index.clone());
        let batcher = Batcher::new(Knobs::default(), move |asked: &[usize]| {
            let asked: Vec<&[f32]> = asked.iter().map(|at| all[*at].as_slice()).collect();
            shared.search_many(&asked, k, None).expect("queries are fit").into_iter().map(Ok).collect()
        });
        let runtime = Runtime::new()?;
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while begin.elapsed() < lasts {
                        runtime.block_on(batcher.search(next())).expect("a search answers");
                    }
                });
            }
        });
    } else {
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while begin.elapsed() < lasts {
                        ask(&queries[next()]);
                    }
                });
            }
        });
    }
    let per_second = done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    let milliseconds = |at: usize| taken[at].as_secs_f64() * 1e3;
    println!(
        "{}",
        serde_json::json!({
            "build_seconds": built.map(|built| built.as_secs_f64()),
            "bytes": bytes,
            "p50_ms": milliseconds(taken.len() / 2),
            "p99_ms": milliseconds(taken.len() * 99 / 100),
            "clients": clients,
            "queries_per_second": per_second,
        })
    );
    Ok(())
}

fn write(options: &Options, to: &Path, dimension: usize) -> Anything<()> {
    let precision = match options.text("precision").unwrap_or("f32") {
        "f16" => Precision::F16,
        "i8" => Precision::I8,
        _ => Precision::F32,
    };
    let metric = if options.text("metric").is_ok_and(|metric| metric == "l2") { Metric::L2 } else { Metric::InnerProduct };
    let mut writer = FlatWriter::create(to, dimension, precision, metric)?;
    for row in rows(Path::new(options.text("vectors")?), dimension)? {
        writer.push(&row)?;
    }
    writer.finish()?;
    Ok(())
}

fn rows(path: &Path, dimension: usize) -> Anything<Vec<Vec<f32>>> {
    let bytes = fs::read(path)?;
    let number = |four: &[u8; 4]| f32::from_le_bytes(*four);
    Ok(bytes.chunks_exact(dimension * 4).map(|row| row.as_chunks::<4>().0.iter().map(number).collect()).collect())
}
