//! `rag index|search|eval|ls|rm|embed`: runs in this process, on files, whether or not a server runs.

mod documents;
mod eval;
mod index;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arenite_retrieval::embed::{self, EmbedderSpec, Role};
use arenite_retrieval::library::Library;
use arenite_retrieval::{Corpus, Error, Filter, Index, Mode, Query};
use serde_json::{Map, Value, json};

use crate::cli::{RagCommand, RagEmbedArgs, RagLsArgs, RagRmArgs, RagSearchArgs, SearchMode};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, NOT_FOUND, Outcome};
use crate::names;
use crate::output::{self, Entries, Form, View};

/// The variable with the key of an embeddings service.
const KEY: &str = "ARENITE_EMBEDDINGS_KEY";
/// Maximum number of characters of a passage that are shown.
const SHOWN: usize = 400;
/// Number of texts that are embedded together.
const BATCH: usize = 64;

pub(crate) fn run(command: RagCommand) -> Outcome {
    match command {
        RagCommand::Index(args) => index::index(&args),
        RagCommand::Search(args) => search(&args),
        RagCommand::Eval(args) => eval::eval(&args),
        RagCommand::Ls(args) => ls(&args),
        RagCommand::Rm(args) => rm(&args),
        RagCommand::Embed(args) => embed(&args),
    }
}

fn refused(error: Error) -> Failure {
    let hint = match &error {
        Error::Invalid(reason) if reason.starts_with("there is no index") => {
            Some("make it: arenite rag index CORPUS SOURCE; arenite rag ls lists what there is".to_owned())
        }
        Error::Corrupt { .. } => Some("rebuild the corpus: arenite rag rm, then arenite rag index".to_owned()),
        _ => None,
    };
    Failure::new(error.to_string()).maybe_hint(hint)
}

/// The directory of a corpus that is given by name or path.
fn directory(corpus: &str, data_dir: &Path) -> Result<PathBuf, Failure> {
    if corpus.contains('/') {
        return Ok(corpus.into());
    }
    Library::of_data(data_dir).dir(corpus).map_err(refused)
}

fn open(corpus: &str, data_dir: &Path) -> Result<Corpus, Failure> {
    let index = Index::open(&directory(corpus, data_dir)?).map_err(|error| {
        let is_missing = matches!(&error, Error::Invalid(reason) if reason.starts_with("there is no index"));
        if is_missing { not_found(corpus, data_dir, refused(error)) } else { refused(error) }
    })?;
    Corpus::of_index(index).map_err(refused)
}

/// Adds the name that was meant.
fn not_found(corpus: &str, data_dir: &Path, failure: Failure) -> Failure {
    let names = Library::of_data(data_dir).names();
    match names::hint(corpus, &names, "arenite rag ls", failure.hint_text()) {
        Some(hint) => failure.hint(hint).exit_code(NOT_FOUND),
        None => failure,
    }
}

fn mode(mode: SearchMode) -> Mode {
    match mode {
        SearchMode::Bm25 => Mode::Bm25,
        SearchMode::Dense => Mode::Dense,
        SearchMode::Hybrid => Mode::Hybrid,
    }
}

/// None: no vectors.
fn embedder(how: &str) -> Result<Option<EmbedderSpec>, Failure> {
    if how == "none" {
        return Ok(None);
    }
    let (kind, rest) = how.split_once(':').unwrap_or((how, ""));
    if kind == "hashing" {
        if rest.is_empty() {
            return Ok(Some(EmbedderSpec::default()));
        }
        let dimension = rest.parse().map_err(|_| Failure::new(format!("{rest:?} is no number of dimensions")).exit_code(2))?;
        return Ok(Some(EmbedderSpec::Hashing { dimension }));
    }
    if kind == "http" || kind == "https" {
        let (url, model) = how.split_once('#').unwrap_or((how, ""));
        return Ok(Some(EmbedderSpec::http(url, model, std::env::var_os(KEY).map(|_| KEY.to_owned()))));
    }
    embed::from_model_name(how).map(Some).map_err(refused)
}

fn search(args: &RagSearchArgs) -> Outcome {
    let filter = match &args.filter {
        None => None,
        Some(text) => {
            let filter: Map<String, Value> = serde_json::from_str(text).attempt(|| "the filter is no JSON object".to_owned())?;
            Filter::parse(&filter).map_err(|reason| Failure::new(reason).exit_code(2))?
        }
    };
    let corpus = open(&args.corpus, &args.data_dir.data_dir)?;
    let query = Query { text: args.query.clone(), top_k: args.top_k, mode: args.mode.map(mode), filter };
    let found = corpus.search(query).map_err(refused)?;
    if args.format.json {
        output::json(&json!({ "query": args.query, "results": found }));
        return Ok(ExitCode::SUCCESS);
    }
    if found.is_empty() {
        eprintln!("nothing was found");
    }
    for one in &found {
        let title = if one.passage.title.is_empty() { &one.passage.id } else { &one.passage.title };
        output::line(format_args!("{:.4}  {}  ({})", one.score, output::harmless(title), output::harmless(&one.passage.id)));
        let mut text: String = output::harmless(&one.passage.text).chars().take(SHOWN).collect();
        if text.len() < one.passage.text.len() {
            text.push('…');
        }
        output::line(format_args!("        {text}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

fn ls(args: &RagLsArgs) -> Outcome {
    let library = Library::of_data(&args.data_dir.data_dir);
    let listed = library.names().into_iter().map(|name| {
        let stats = library.dir(&name).and_then(|dir| Index::open(&dir)).map(|index| index.stats());
        (name, stats)
    });
    let form = args.output.form();
    if form != Form::Table {
        let listed: Vec<Value> = listed
            .map(|(name, stats)| match stats {
                Ok(stats) => json!({ "name": name, "stats": stats }),
                Err(error) => json!({ "name": name, "error": error.to_string() }),
            })
            .collect();
        return form.show(json!({ "corpora": listed }), Entries::named("corpora"), |_| Ok(View::default()));
    }
    let mut rows = output::table(&["corpus", "passages", "size", "words", "vectors"]);
    for (name, stats) in listed {
        match stats {
            Ok(stats) => {
                let words = stats.settings.lexical.map(|lexical| json!(lexical.language));
                let words = words.as_ref().and_then(Value::as_str).unwrap_or("-").to_owned();
                let vectors = stats.settings.dense.as_ref().map_or("-".to_owned(), |dense| dense.embedder.to_string());
                rows.add_row(vec![name, stats.passages.to_string(), Size(stats.bytes).short(), words, vectors]);
            }
            Err(error) => {
                rows.add_row(vec![name, error.to_string()]);
            }
        }
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

fn rm(args: &RagRmArgs) -> Outcome {
    for corpus in &args.corpora {
        let dir = directory(corpus, &args.data_dir.data_dir)?;
        let (root, name) = (dir.parent().map(Path::to_owned), dir.file_name().map(|name| name.to_string_lossy().into_owned()));
        let (Some(root), Some(name)) = (root, name) else {
            return Err(Failure::new(format!("{corpus:?} is no corpus")));
        };
        if !Library::new(root).remove(&name).map_err(refused)? {
            return Err(not_found(corpus, &args.data_dir.data_dir, Failure::new(format!("there is no corpus {corpus:?}"))));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn embed(args: &RagEmbedArgs) -> Outcome {
    let spec = embedder(&args.embedder)?.ok_or_else(|| Failure::new("none makes no vectors").exit_code(2))?;
    let embedder = embed::open(&spec).map_err(refused)?;
    let role = if args.queries { Role::Query } else { Role::Passage };
    let mut lines = std::io::stdin().lock().lines();
    loop {
        let mut texts = Vec::new();
        for line in lines.by_ref().take(BATCH) {
            let line = line.attempt(|| "could not read stdin".to_owned())?;
            texts.push(serde_json::from_str::<String>(&line).unwrap_or(line));
        }
        if texts.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
        for vector in embedder.embed(&borrowed, role).map_err(refused)? {
            output::line(json!(vector));
        }
    }
}
