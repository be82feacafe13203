//! `rag index`: creates a corpus, and adds or removes passages.

use std::io::{BufRead, IsTerminal, stdin};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use arenite_retrieval::corpus::{Chunking, Fault, JsonLines, Parquet, Record};
use arenite_retrieval::embed::{self, EmbedderSpec};
use arenite_retrieval::lexical::{Language, LexicalSettings};
use arenite_retrieval::vectors::Precision;
use arenite_retrieval::{DenseSettings, Index, Phase, Settings, Update};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::json;

use super::{directory, documents, embedder, refused};
use crate::cli::{RagIndexArgs, VectorPrecision};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

/// Maximum number of faults that are reported one by one.
const TOLD: u64 = 10;

pub(super) fn index(args: &RagIndexArgs) -> Outcome {
    if args.sources.is_empty() && args.delete_ids.is_none() {
        return Err(Failure::new("nothing to index is named").hint("arenite rag index --help has examples").exit_code(2));
    }
    let dir = directory(&args.corpus, &args.data_dir.data_dir)?;
    let begun = Instant::now();
    let mut update = Index::update(&dir, settings(args, &dir)?).map_err(refused)?;
    let bar = bar();
    let shown = bar.clone();
    update.watch(move |phase| show(&shown, phase));
    let mut skipped = 0;
    for source in &args.sources {
        take_in(&mut update, source, args, &bar, &mut skipped)?;
    }
    let mut absent = 0u64;
    if let Some(file) = &args.delete_ids {
        let ids = std::fs::read_to_string(file).attempt(|| format!("could not read {}", file.display()))?;
        for id in ids.lines().filter(|id| !id.is_empty()) {
            absent += u64::from(!update.remove(id).map_err(refused)?);
        }
    }
    let report = update.commit().map_err(refused)?;
    bar.finish_and_clear();
    let passages = Index::open(&dir).map_err(refused)?.len();
    if args.format.json {
        output::json(&json!({
            "corpus": args.corpus, "passages": passages, "added": report.added, "replaced": report.replaced,
            "removed": report.removed, "absent": absent, "skipped": skipped, "bytes": report.bytes,
            "seconds": begun.elapsed().as_secs_f64(),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "{}: {passages} passages, {}; {} added ({} in place of others), {} removed, in {:.1} s",
        args.corpus,
        Size(report.bytes).short(),
        report.added,
        report.replaced,
        report.removed,
        begun.elapsed().as_secs_f64()
    );
    if absent > 0 {
        eprintln!("{absent} of the ids to remove were not there");
    }
    if skipped > 0 {
        eprintln!("{skipped} records were no passages and were left out; --strict refuses them");
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings of a new corpus. None: it exists, and keeps its settings.
fn settings(args: &RagIndexArgs, dir: &Path) -> Result<Option<Settings>, Failure> {
    let there = Index::open(dir).ok();
    let decides = args.embedder.is_some()
        || args.language.is_some()
        || args.precision.is_some()
        || args.graph_from.is_some()
        || args.no_words;
    if !decides && (there.is_some() || dir.join("current").exists()) {
        return Ok(None);
    }
    let language = match &args.language {
        None => Language::default(),
        Some(name) => {
            Language::deserialize(json!(name)).map_err(|error| Failure::new(format!("the language: {error}")).exit_code(2))?
        }
    };
    let embedder = embedder(args.embedder.as_deref().unwrap_or("hashing"))?;
    if args.no_words && embedder.is_none() {
        return Err(Failure::new("without words and without vectors nothing can be found").exit_code(2));
    }
    let dense = embedder.map(|embedder| dense(args, embedder)).transpose()?;
    Ok(Some(Settings { lexical: (!args.no_words).then(|| LexicalSettings { language, ..LexicalSettings::default() }), dense }))
}

fn dense(args: &RagIndexArgs, embedder: EmbedderSpec) -> Result<DenseSettings, Failure> {
    let dimension = embed::open(&embedder).map_err(refused)?.dimension();
    let mut dense = DenseSettings::new(embedder, dimension);
    if let Some(precision) = args.precision {
        dense.precision = match precision {
            VectorPrecision::F32 => Precision::F32,
            VectorPrecision::F16 => Precision::F16,
            VectorPrecision::I8 => Precision::I8,
        };
    }
    dense.graph_from = args.graph_from.unwrap_or(dense.graph_from);
    Ok(dense)
}

fn take_in(update: &mut Update, source: &Path, args: &RagIndexArgs, bar: &ProgressBar, skipped: &mut u64) -> Result<(), Failure> {
    let chunking = Chunking { words: args.words as usize, overlap: args.words as usize / 5 };
    let extension = source.extension().map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default();
    let records: Box<dyn Iterator<Item = Record>> = match extension.as_str() {
        _ if source == Path::new("-") => {
            if stdin().is_terminal() {
                eprintln!("reading JSON lines from the terminal; Ctrl+D ends them");
            }
            let input: Box<dyn BufRead> = Box::new(stdin().lock());
            Box::new(JsonLines::new("stdin", input))
        }
        _ if source.is_dir() => Box::new(documents::passages(source, chunking).map_err(refused)?),
        "parquet" => Box::new(Parquet::open(source).map_err(refused)?),
        "jsonl" | "ndjson" | "json" => Box::new(JsonLines::open(source).map_err(refused)?),
        _ if !source.exists() => return Err(Failure::new(format!("there is no {}", source.display()))),
        _ => {
            return Err(Failure::new(format!("{} is neither JSON lines, nor Parquet, nor a folder", source.display()))
                .hint("name the folder that documents are in, or end the file's name in .jsonl or .parquet"));
        }
    };
    for record in records {
        match record.map_err(refused)? {
            Ok(passage) => update.add(&passage).map_err(refused)?,
            Err(fault) if args.strict => {
                return Err(Failure::new(output::harmless(&fault.to_string()))
                    .hint("nothing was changed; without --strict it is left out"));
            }
            Err(fault) => {
                *skipped += 1;
                tell(bar, &fault, *skipped);
            }
        }
    }
    Ok(())
}

fn tell(bar: &ProgressBar, fault: &Fault, number: u64) {
    let said = match number {
        ..=TOLD => format!("left out: {}", output::harmless(&fault.to_string())),
        _ if number == TOLD + 1 => "left out: more, which are counted alone from here on".to_owned(),
        _ => return,
    };
    bar.suspend(|| eprintln!("{said}"));
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, phase: Phase) {
    bar.set_message(match phase {
        Phase::Adding(count) => format!("{count} passages, {:.0}/s", count as f64 / bar.elapsed().as_secs_f64().max(0.001)),
        Phase::Merging => "finishing the index of words".to_owned(),
        Phase::Linking { done, of } => format!("linking vectors: {done} of {of}"),
        Phase::Compacting => "rewriting all passages but the deleted ones".to_owned(),
    });
    bar.tick();
}
