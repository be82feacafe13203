//! Arguments of `arenite rag`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DataDir, Format, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum RagCommand {
    /// Index passages, or update an index
    Index(Box<RagIndexArgs>),
    /// Search a corpus
    Search(Box<RagSearchArgs>),
    /// Evaluate search results against relevance judgements
    Eval(RagEvalArgs),
    /// List corpora
    Ls(RagLsArgs),
    /// Remove corpora
    Rm(RagRmArgs),
    /// Embed texts, as an index would
    Embed(RagEmbedArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SearchMode {
    /// Keyword search
    Bm25,
    /// Vector search
    Dense,
    /// Both, with rank fusion
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
CORPUS is a name, stored in the server's data directory and served at once, or a path with a '/'.

A SOURCE is
  file.jsonl       a JSON object per line, with contents or text, and optionally title, id, metadata
  file.parquet     the same, in columns
  a folder         its documents: text, Markdown, HTML, PDF, Word, slides, tables, notebooks; cut
                   into passages of --words words. Each is read in a separate process.
  -                JSON lines from stdin

A passage replaces one with the same id. Updates are atomic: searches use the old index until the new
one is complete, and an interrupted update leaves the old one.

--embedder selects how vectors are computed:
  hashing[:N]      no model: N (384) dimensions of hashed words and letters; finds similar spellings
  PATH             folder of a sentence encoder (safetensors) or of static vectors (model2vec)
  URL#MODEL        an OpenAI-compatible service; its key in ARENITE_EMBEDDINGS_KEY
  none             no vectors: keyword search only

Examples:
  arenite rag index handbook ./docs
  arenite rag index wiki wiki.jsonl --embedder models/e5-base-v2 --precision f16
  arenite rag index wiki more.jsonl                     add, with the corpus's settings
  arenite rag index wiki --delete-ids gone.txt
  arenite rag index ./corpora/wiki wiki.parquet --embedder none --language german")]
pub(crate) struct RagIndexArgs {
    /// The corpus
    #[arg(value_name = "CORPUS")]
    pub(crate) corpus: String,
    /// Files or folders to index
    #[arg(value_name = "SOURCE")]
    pub(crate) sources: Vec<PathBuf>,
    /// How to compute vectors; fixed when the corpus is created [default: hashing]
    #[arg(long, value_name = "HOW")]
    pub(crate) embedder: Option<String>,
    /// Language of the texts; fixed when the corpus is created [default: english]
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Number format of vectors; fixed when the corpus is created [default: f32]
    #[arg(long, value_enum)]
    pub(crate) precision: Option<VectorPrecision>,
    /// Number of passages from which a vector graph (HNSW) is built [default: 100000; never for hashed words]
    #[arg(long, value_name = "N")]
    pub(crate) graph_from: Option<u32>,
    /// Disable keyword search
    #[arg(long)]
    pub(crate) no_words: bool,
    /// Remove the passages with the ids in this file, one per line
    #[arg(long, value_name = "FILE")]
    pub(crate) delete_ids: Option<PathBuf>,
    /// Stop at the first invalid record, and change nothing
    #[arg(long)]
    pub(crate) strict: bool,
    /// Words per passage, for documents
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
    /// The query
    #[arg(value_name = "QUERY")]
    pub(crate) query: String,
    /// Number of passages
    #[arg(long, short = 'k', value_name = "N", default_value_t = 5)]
    pub(crate) top_k: usize,
    /// Search mode [default: the best that the corpus supports]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<SearchMode>,
    /// Filter on the passages' metadata, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
QUERIES has a JSON object per line, with id and text. QRELS has judgements in the format of TREC
(`query 0 passage grade`) or BEIR (`query passage grade`).

Example:
  arenite rag eval wiki --queries queries.jsonl --qrels qrels.tsv --mode bm25 --mode hybrid")]
pub(crate) struct RagEvalArgs {
    /// The corpus: a name, or a path with a '/'
    #[arg(value_name = "CORPUS")]
    pub(crate) corpus: String,
    /// File of queries
    #[arg(long, value_name = "FILE")]
    pub(crate) queries: PathBuf,
    /// File of relevance judgements
    #[arg(long, value_name = "FILE")]
    pub(crate) qrels: PathBuf,
    /// Search mode, repeatable [default: all that the corpus supports]
    #[arg(long, value_enum)]
    pub(crate) mode: Vec<SearchMode>,
    /// Write the results as TREC runs, one file per mode: RUN.bm25 and so on
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
    pub(crate) output: Output,
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
Reads texts from stdin, one per line or as JSON strings, and prints a JSON array for each.

Example:
  echo 'a text' | arenite rag embed --embedder models/all-MiniLM-L6-v2")]
pub(crate) struct RagEmbedArgs {
    /// How to compute vectors, as for `rag index`
    #[arg(long, value_name = "HOW", default_value = "hashing")]
    pub(crate) embedder: String,
    /// Embed the texts as queries, not passages; some models distinguish them
    #[arg(long)]
    pub(crate) queries: bool,
}
