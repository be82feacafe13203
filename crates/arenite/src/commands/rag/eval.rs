//! `rag eval`: evaluates the results and the speed of a corpus.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use arenite_retrieval::eval::{Evaluation, Scores, judgements, questions};
use arenite_retrieval::{Mode, Query};
use indicatif::ProgressBar;
use serde_json::json;

use super::{mode, open, refused};
use crate::cli::RagEvalArgs;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

/// Number of passages that are evaluated per query.
const DEPTH: usize = 100;

struct Row {
    mode: Mode,
    scores: Scores,
    median: Duration,
}

pub(super) fn eval(args: &RagEvalArgs) -> Outcome {
    let corpus = open(&args.corpus, &args.data_dir.data_dir)?;
    let questions = questions(&args.queries).map_err(refused)?;
    let judgements = judgements(&args.qrels).map_err(refused)?;
    if !questions.iter().any(|question| judgements.contains_key(&question.id)) {
        return Err(Failure::new("none of the questions has a judgement").hint("the ids of both files have to be the same"));
    }
    let modes: Vec<Mode> = if args.mode.is_empty() {
        let has = |one: &Mode| match one {
            Mode::Bm25 => corpus.has_words(),
            Mode::Dense => corpus.embedder().is_some(),
            Mode::Hybrid => corpus.has_words() && corpus.embedder().is_some(),
        };
        Mode::ALL.into_iter().filter(has).collect()
    } else {
        args.mode.iter().map(|one| mode(*one)).collect()
    };
    let none = HashMap::new();
    let bar = ProgressBar::new((questions.len() * modes.len()) as u64);
    let mut rows = Vec::new();
    for mode in modes {
        let mut run = match &args.run {
            None => None,
            Some(path) => {
                let path = path.with_added_extension(mode.name());
                let file = File::create(&path).attempt(|| format!("could not create {}", path.display()))?;
                Some(BufWriter::new(file))
            }
        };
        let (mut evaluation, mut times) = (Evaluation::default(), Vec::new());
        for question in &questions {
            let query = Query { text: question.text.clone(), top_k: DEPTH, mode: Some(mode), filter: None };
            let begun = Instant::now();
            let found = corpus.search(query).map_err(refused)?;
            times.push(begun.elapsed());
            for (rank, one) in (1..).zip(&found) {
                if let Some(run) = &mut run {
                    writeln!(run, "{} Q0 {} {rank} {} arenite-{}", question.id, one.passage.id, one.score, mode.name())
                        .attempt(|| "could not write the run".to_owned())?;
                }
            }
            let ranked: Vec<String> = found.into_iter().map(|one| one.passage.id).collect();
            evaluation.add(&ranked, judgements.get(&question.id).unwrap_or(&none));
            bar.inc(1);
        }
        if let Some(mut run) = run {
            run.flush().attempt(|| "could not write the run".to_owned())?;
        }
        times.sort_unstable();
        rows.push(Row { mode, scores: evaluation.scores(), median: times.get(times.len() / 2).copied().unwrap_or_default() });
    }
    bar.finish_and_clear();
    if args.format.json {
        let rows =
            rows.iter().map(|row| json!({ "mode": row.mode, "scores": row.scores, "median_ms": row.median.as_secs_f64() * 1e3 }));
        output::json(&json!({ "passages": corpus.len(), "modes": rows.collect::<Vec<_>>() }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = output::table(&["mode", "nDCG@10", "recall@100", "MRR@10", "queries", "median ms"]);
    for row in &rows {
        table.add_row(vec![
            row.mode.name().to_owned(),
            format!("{:.4}", row.scores.ndcg_at_10),
            format!("{:.4}", row.scores.recall_at_100),
            format!("{:.4}", row.scores.mrr_at_10),
            row.scores.queries.to_string(),
            format!("{:.2}", row.median.as_secs_f64() * 1e3),
        ]);
    }
    output::rows(&table);
    Ok(ExitCode::SUCCESS)
}
