//! Corpora: keyword search next to bm25s and vector search next to Faiss, in the process; and the same queries through the API.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::BenchArgs;
use super::http::Connection;
use super::report::{Report, Row, quantile};
use crate::binary::{self, Profile};
use crate::command::{self, program, repository};
use crate::failure::{Attempt, Failure, Outcome};
use crate::python;

const PASSAGES: usize = 200_000;
const CLIENTS: usize = 16;
/// Rounds for each side of a comparison, which alternate.
const ROUNDS: &str = "3";
const CORPUS: &str = "bench";

/// A program's JSON answer: all of its output, or the last line that has some.
pub(super) fn told(mut command: std::process::Command) -> Result<Value, Failure> {
    let output = command.stderr(Stdio::inherit()).output().attempt(|| "could not start a measurement".into())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(&text)
        .or_else(|_| serde_json::from_str(line))
        .map_err(|_| Failure::new(format!("a measurement ended with {} and no numbers", output.status)))
}

pub(super) fn number(value: &Value, path: &str) -> Result<f64, Failure> {
    value.pointer(path).and_then(Value::as_f64).ok_or_else(|| Failure::new(format!("a measurement tells no {path}")))
}

fn milliseconds(value: f64) -> [Duration; 1] {
    [Duration::from_secs_f64(value / 1e3)]
}

/// In the process, each next to other libraries.
pub(super) fn beside_peers(work: &Path, report: &mut Report) -> Outcome {
    let python = interpreter(work)?;
    words(&python, &tests(), &corpus(work, &python)?, work, report)?;
    vectors(&python, &tests(), work, report)
}

fn tests() -> PathBuf {
    repository().join("tests")
}

/// The passages and queries of all comparisons, created if they don't exist.
fn corpus(work: &Path, python: &Path) -> Result<PathBuf, Failure> {
    let corpus = work.join("corpus");
    if !corpus.join("qrels.txt").is_file() {
        let mut write = program(python);
        write.current_dir(tests()).args(["-m", "retrieval.corpus"]).arg(&corpus).args(["--passages", &PASSAGES.to_string()]);
        command::run(&mut write)?;
    }
    Ok(corpus)
}

/// An interpreter with numba, bm25s's fastest way, and Faiss.
fn interpreter(work: &Path) -> Result<PathBuf, Failure> {
    let python = python::environment()?;
    let dir = work.join("retrieval");
    let own = dir.join("bin/python");
    if !command::succeeds(program(&own).args(["-c", "import numba, bm25s, faiss"])) {
        command::run(program(python).args(["-m", "venv", "--clear"]).arg(&dir))?;
        let mut install = program(&own);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        command::run(install.args(["bm25s==0.3.16", "faiss-cpu==1.15.1", "numba==0.68.1", "numpy==2.4.6"]))?;
    }
    Ok(own)
}

fn words(python: &Path, tests: &Path, corpus: &Path, work: &Path, report: &mut Report) -> Outcome {
    let index = work.join("lexical");
    let _ = std::fs::remove_dir_all(&index);
    let mut ours = program(binary::example("lexical_bench", Profile::Dist)?);
    let ours = told({
        ours.arg(corpus).arg(&index);
        ours
    })?;
    let mut theirs = program(python);
    theirs.current_dir(tests).args(["-m", "retrieval.peers"]).arg(corpus);
    let theirs = told(theirs)?;
    let row = |name: &str, field: &str| -> Result<Row, Failure> {
        let (ours, theirs) = (milliseconds(number(&ours, field)?), milliseconds(number(&theirs, field)?));
        Ok(Row::faster(name, &ours, &theirs, 1.0).against("bm25s with numba"))
    };
    report.push(row("retrieval: BM25, a lone query, p50", "/p50_ms")?);
    let (mine, other) = (number(&ours, "/qps16")?, number(&theirs, "/qps16")?);
    report.push(Row::throughput("retrieval: BM25, 16 at once", mine, other, "/s", 1.0).against("bm25s with numba"));
    report.push(plain("retrieval: BM25, index of 200,000", &ours, &theirs, "/build_s", 1.0, "s")?);
    report.push(plain("retrieval: BM25, size of the index", &ours, &theirs, "/bytes", 1e6, "MB")?);
    Ok(())
}

/// A row without a budget.
fn plain(name: &str, ours: &Value, theirs: &Value, field: &str, unit: f64, called: &str) -> Result<Row, Failure> {
    Ok(Row::plain(name, number(ours, field)? / unit, called).beside(number(theirs, field)? / unit).against("bm25s with numba"))
}

fn vectors(python: &Path, tests: &Path, work: &Path, report: &mut Report) -> Outcome {
    let folder = work.join("vectors");
    // Graphs of another build would be measured as this one's.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).attempt(|| format!("could not make {}", folder.display()))?;
    let mut compare = program(python);
    compare.current_dir(tests).args(["retrieval/faiss_peer.py", "compare", "--rounds", ROUNDS, "--bench"]);
    compare.arg(binary::example("dense_bench", Profile::Dist)?).arg("--folder").arg(&folder);
    let compared = told(compare)?;
    for (part, called) in [("exact", "exact"), ("graph", "graph (HNSW)")] {
        let at = |side: &str, field: &str| number(&compared, &format!("/{part}/{side}/{field}"));
        let (ours, theirs) = (milliseconds(at("ours", "p50_ms")?), milliseconds(at("faiss", "p50_ms")?));
        report.push(Row::faster(&format!("retrieval: {called}, a lone query, p50"), &ours, &theirs, 1.0).against("faiss-cpu"));
        let (ours, theirs) = (at("ours", "queries_per_second")?, at("faiss", "queries_per_second")?);
        let name = format!("retrieval: {called}, 16 at once");
        report.push(Row::throughput(&name, ours, theirs, "/s", 1.0).against("faiss-cpu"));
        for (field, unit, called_unit) in [("build_seconds", 1.0, "s"), ("bytes", 1e6, "MB")] {
            let side = |at: usize| number(&compared, &format!("/{part}/{field}/{at}"));
            let name = format!("retrieval: {called}, {}", if field == "bytes" { "size" } else { "build" });
            report.push(Row::plain(&name, side(0)? / unit, called_unit).beside(side(1)? / unit).against("faiss-cpu"));
        }
    }
    Ok(())
}

/// Through the API: the latency for a caller, and the throughput.
pub(super) fn served(args: &BenchArgs, arenite: &Path, data_dir: &Path, work: &Path, report: &mut Report) -> Outcome {
    let corpus = corpus(work, &interpreter(work)?)?;
    // A corpus of an interrupted run would be extended.
    command::succeeds(program(arenite).args(["rag", "rm", CORPUS, "--data-dir"]).arg(data_dir));
    let mut index = program(arenite);
    index.args(["rag", "index", CORPUS]).arg(corpus.join("passages.jsonl")).args([
        "--language",
        "simple",
        "--json",
        "--data-dir",
    ]);
    let told = told({
        index.arg(data_dir);
        index
    })?;
    report.push(Row::plain("retrieval: rag index of 200,000, words and vectors", number(&told, "/seconds")?, "s"));
    report.push(Row::plain("retrieval: its size", number(&told, "/bytes")? / 1e6, "MB"));
    let queries = std::fs::read_to_string(corpus.join("queries.jsonl")).attempt(|| "could not read the queries".into())?;
    let queries: Vec<Value> = queries.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let path = format!("/api/v2/corpora/{CORPUS}/search");
    for mode in ["bm25", "dense", "hybrid"] {
        let ask = |api: &mut Connection, at: usize| {
            api.post(&path, &json!({ "query": queries[at % queries.len()]["text"], "top_k": 10, "mode": mode }))
        };
        let mut api = Connection::open(args.port)?;
        let mut times = Vec::new();
        for at in 0..queries.len().min(300) {
            let begun = Instant::now();
            ask(&mut api, at)?;
            times.push(begun.elapsed());
        }
        let lone = quantile(&times, 0.5).as_secs_f64() * 1e3;
        report.push(Row::plain(&format!("retrieval: {mode} by the API, a lone query, p50"), lone, "ms"));
        let (next, begun) = (AtomicUsize::new(0), Instant::now());
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut api = Connection::open(args.port)?;
                        while begun.elapsed() < Duration::from_secs(3) {
                            ask(&mut api, next.fetch_add(1, Ordering::Relaxed))?;
                        }
                        Ok(())
                    })
                })
                .collect();
            clients
                .into_iter()
                .try_for_each(|client| client.join().unwrap_or_else(|_| Err(Failure::new("a client of the API gave up"))))
        })?;
        let rate = next.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        report.push(Row::plain(&format!("retrieval: {mode} by the API, 16 at once"), rate, "/s"));
    }
    command::run(program(arenite).args(["rag", "rm", CORPUS, "--data-dir"]).arg(data_dir))
}
