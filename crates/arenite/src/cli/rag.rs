//! What can be said of corpora.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DataDir, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum RagCommand {
    /// Index passages, or change an index
    Index(Box<RagIndexArgs>),
    /// Search a corpus
    Search(Box<RagSearchArgs>),
    /// Measure how well a corpus answers, against judgements
    Eval(RagEvalArgs),
    /// List corpora
    Ls(RagLsArgs),
    /// Remove corpora
    Rm(RagRmArgs),
    /// Make vectors of texts, as an index would
    Embed(RagEmbedArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SearchMode {
    /// By words
    Bm25,
    /// By meaning
    Dense,
    /// Both, ranks fused
    Hybrid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VectorPrecision {
    F32,
    F16,
    I8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
CORPUS is a name, kept in the server's data directory and served by it at once, or a path with a '/'.

A SOURCE is
  file.jsonl       a JSON object in each line, with contents or text, and perhaps title, id, metadata
  file.parquet     the same, in columns
  a folder         its documents: text, Markdown, HTML, PDF, Word, slides, tables, notebooks; cut
                   into passages of --words words. Each is read in a process of its own.
  -                JSON lines from stdin

A passage with an id that is there takes its place. The index is changed as a whole: who searches
it finds the old one until the new one is there, and a change that is cut off leaves the old one.

Vectors are made by --embedder:
  hashing[:N]      no model: N (384) dimensions of hashed words and letters; finds what is spelled alike
  PATH             a sentence encoder (safetensors) or static vectors (model2vec), in their folder
  URL#MODEL        an OpenAI-compatible service; its key in ARENITE_EMBEDDINGS_KEY
  none             none: search by words alone

Examples:
  arenite rag index handbook ./docs
  arenite rag index wiki wiki.jsonl --embedder models/e5-base-v2 --precision f16
  arenite rag index wiki more.jsonl                     adds, with the settings it was made with
  arenite rag index wiki --delete-ids gone.txt
  arenite rag index ./corpora/wiki wiki.parquet --embedder none --language german")]
pub(crate) struct RagIndexArgs {
    /// The corpus
    #[arg(value_name = "CORPUS")]
    pub(crate) corpus: String,
    /// What is indexed
    #[arg(value_name = "SOURCE")]
    pub(crate) sources: Vec<PathBuf>,
    /// How vectors are made; decided when the corpus is made [default: hashing]
    #[arg(long, value_name = "HOW")]
    pub(crate) embedder: Option<String>,
    /// The language of the texts; decided when the corpus is made [default: english]
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// What a number of a vector is kept as; decided when the corpus is made [default: f32]
    #[arg(long, value_enum)]
    pub(crate) precision: Option<VectorPrecision>,
    /// Passages from which on a graph (HNSW) is built over the vectors [default: 100000; never over those of hashed words]
    #[arg(long, value_name = "N")]
    pub(crate) graph_from: Option<u32>,
    /// No search by words
    #[arg(long)]
    pub(crate) no_words: bool,
    /// Remove the passages whose ids are in this file, one in each line
    #[arg(long, value_name = "FILE")]
    pub(crate) delete_ids: Option<PathBuf>,
    /// Stop at the first record that is no passage, and change nothing
    #[arg(long)]
    pub(crate) strict: bool,
    /// Words of a passage that is cut from a document
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) words: u32,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite rag search handbook 'how do I reset a password'
  arenite rag search wiki 'capital of Peru' --mode bm25 --top-k 3 --json
  arenite rag search wiki 'elections' --filter '{\"lang\": \"en\", \"year\": {\"gte\": 1990}}'")]
pub(crate) struct RagSearchArgs {
    /// The corpus: a name, or a path with a '/'
    #[arg(value_name = "CORPUS")]
    pub(crate) corpus: String,
    /// What to look for
    #[arg(value_name = "QUERY")]
    pub(crate) query: String,
    /// How many passages
    #[arg(long, short = 'k', value_name = "N", default_value_t = 5)]
    pub(crate) top_k: usize,
    /// How [default: the best that the corpus has]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<SearchMode>,
    /// What the passages' metadata has to be, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
QUERIES has a JSON object in each line, with id and text. QRELS has judgements as TREC
(`query 0 passage grade`) or BEIR (`query passage grade`) write them.

Example:
  arenite rag eval wiki --queries queries.jsonl --qrels qrels.tsv --mode bm25 --mode hybrid")]
pub(crate) struct RagEvalArgs {
    /// The corpus: a name, or a path with a '/'
    #[arg(value_name = "CORPUS")]
    pub(crate) corpus: String,
    /// The questions
    #[arg(long, value_name = "FILE")]
    pub(crate) queries: PathBuf,
    /// Which passages are relevant to them
    #[arg(long, value_name = "FILE")]
    pub(crate) qrels: PathBuf,
    /// How; may be given more than once [default: all that the corpus has]
    #[arg(long, value_enum)]
    pub(crate) mode: Vec<SearchMode>,
    /// Write what was found, as TREC's runs: one file for each mode, RUN.bm25 and so on
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct RagLsArgs {
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct RagRmArgs {
    /// The corpora
    #[arg(required = true, value_name = "CORPUS")]
    pub(crate) corpora: Vec<String>,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads texts from stdin, one in each line or as JSON strings, and prints a JSON array for each.

Example:
  echo 'a text' | arenite rag embed --embedder models/all-MiniLM-L6-v2")]
pub(crate) struct RagEmbedArgs {
    /// As for `rag index`
    #[arg(long, value_name = "HOW", default_value = "hashing")]
    pub(crate) embedder: String,
    /// The texts are questions, not passages: some models tell them apart
    #[arg(long)]
    pub(crate) queries: bool,
}
