//! Keyword search: BM25 over tantivy's inverted index, in a separate directory.
//!
//! Only postings, lengths and ordinals are stored. Passages are in the order of their ordinals, within a segment and across
//! segments, and every merge keeps that order. So ties are exact without extra work, and a set of ordinals is quick to find.
//!
//! A directory can be copied by hard links and the copy written to: files are created and removed, and never changed in place.

mod analysis;
mod search;
mod writer;

use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tantivy::directory::MmapDirectory;
use tantivy::directory::error::OpenDirectoryError;
use tantivy::index::SegmentComponent;
use tantivy::schema::{Field, IndexRecordOption, NumericOptions, Schema, TextFieldIndexing, TextOptions};
use tantivy::store::Compressor;
use tantivy::tokenizer::{TextAnalyzer, TokenStream as _};
use tantivy::{Index, IndexSettings, TantivyError};

pub use analysis::{Language, TOKEN_BYTES};
pub use search::{QUERY_TERMS, QUERY_TOKENS};
pub use writer::{LexicalWriter, Step, TEXT_BYTES};

use crate::{Error, Hit, Ordinals, Result};
use search::View;

/// Saturation of repeated words. Fixed by tantivy.
pub const K1: f32 = 1.2;
/// Weight of a passage's length. Fixed by tantivy.
pub const B: f32 = 0.75;

const SETTINGS: &str = "lexical.json";
const FORMAT: u32 = 1;
const ANALYZER: &str = "passages";
const TEXT: &str = "text";
const ORDINAL: &str = "ordinal";

/// The files of each segment, empty or not. Some are only read when segments are merged.
const PARTS: [SegmentComponent; 6] = [
    SegmentComponent::Postings,
    SegmentComponent::Positions,
    SegmentComponent::FastFields,
    SegmentComponent::FieldNorms,
    SegmentComponent::Terms,
    SegmentComponent::Store,
];

/// Settings of an index, fixed when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LexicalSettings {
    pub language: Language,
    /// Whether accents are removed, so that `creme` finds `crème`.
    pub fold: bool,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    settings: LexicalSettings,
}

/// A searchable index. Clones share it.
#[derive(Clone)]
pub struct Lexical {
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    settings: LexicalSettings,
    index: Index,
    fields: Fields,
    analyzer: TextAnalyzer,
    /// The last commit, replaced as a whole.
    view: RwLock<Arc<View>>,
}

#[derive(Debug, Clone, Copy)]
struct Fields {
    text: Field,
    ordinal: Field,
}

impl Lexical {
    /// Creates an empty index in a directory that is empty or doesn't exist.
    pub fn create(dir: &Path, settings: LexicalSettings) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
        if fs::read_dir(dir).map_err(Error::io("read", dir))?.next().is_some() {
            return Err(Error::Invalid(format!("{} is not empty; an index wants a directory of its own", dir.display())));
        }
        guarded(dir, || {
            let settings = IndexSettings { docstore_compression: Compressor::None, ..IndexSettings::default() };
            Index::create(MmapDirectory::open(dir)?, schema().0, settings)
        })?;
        let kept = serde_json::to_vec(&Kept { format: FORMAT, settings }).map_err(|error| Error::Invalid(error.to_string()))?;
        let path = dir.join(SETTINGS);
        let mut file = fs::File::create_new(&path).map_err(Error::io("make", &path))?;
        file.write_all(&kept).and_then(|()| file.sync_all()).map_err(Error::io("write", &path))?;
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("write", dir))?;
        Self::open_trusted(dir)
    }

    /// Opens an index, and reads all of it once to verify the checksums: tantivy trusts what it reads, and may not terminate on
    /// a damaged file.
    pub fn open(dir: &Path) -> Result<Self> {
        let lexical = Self::open_trusted(dir)?;
        lexical.verify()?;
        Ok(lexical)
    }

    /// Opens an index without reading all of it: for files that this process wrote, copied or verified itself.
    pub fn open_trusted(dir: &Path) -> Result<Self> {
        let settings = read_settings(dir)?;
        let analyzer = analysis::analyzer(settings.language, settings.fold);
        let (schema, fields) = schema();
        let (index, view) = guarded(dir, || {
            let index = Index::open(MmapDirectory::open(dir)?)?;
            if index.schema() != schema {
                return Err(TantivyError::SchemaError("the fields are not those of an index of passages".into()));
            }
            index.tokenizers().register(ANALYZER, analyzer.clone());
            let view = View::open(&index)?;
            Ok((index, view))
        })?;
        let shared = Shared { dir: dir.to_owned(), settings, index, fields, analyzer, view: RwLock::new(Arc::new(view)) };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn verify(&self) -> Result<()> {
        let Shared { dir, index, .. } = &*self.shared;
        guarded(dir, || {
            for segment in index.searchable_segment_metas()? {
                let deleted = segment.has_deletes().then_some(SegmentComponent::Delete);
                for part in PARTS.into_iter().chain(deleted) {
                    let file = segment.relative_path(part);
                    if !index.directory().validate_checksum(&file)? {
                        return Err(TantivyError::InternalError(format!("the sum of {} is another", file.display())));
                    }
                }
            }
            Ok(())
        })
    }

    pub fn settings(&self) -> LexicalSettings {
        self.shared.settings
    }

    /// The number of searchable passages.
    pub fn len(&self) -> usize {
        self.view().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The analyzer's tokens of a text.
    pub fn tokens(&self, text: &str) -> Vec<String> {
        let mut analyzer = self.shared.analyzer.clone();
        let mut stream = analyzer.token_stream(text);
        let mut tokens = Vec::new();
        stream.process(&mut |token| tokens.push(token.text.clone()));
        tokens
    }

    /// The passages with any of the query's words, best first, and by ordinal at the same score.
    ///
    /// The query is a bag of words without syntax. A repeated word counts each time. Only the first [`QUERY_TERMS`] different
    /// words count, among the first [`QUERY_TOKENS`]. With `allowed`, only those passages are searched.
    pub fn search(&self, query: &str, top_k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Hit>> {
        let Shared { dir, analyzer, fields, .. } = &*self.shared;
        let view = self.view();
        guarded(dir, || {
            let terms = search::terms(&mut analyzer.clone(), fields.text, query);
            view.search(&terms, top_k, allowed)
        })
    }

    /// Opens the only writer. This index, and its clones, use a commit as soon as it is done.
    pub fn writer(&self) -> Result<LexicalWriter> {
        LexicalWriter::new(Arc::clone(&self.shared))
    }

    fn view(&self) -> Arc<View> {
        self.shared.view()
    }
}

impl Shared {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn show(&self, view: View) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }
}

/// Makes `to` a separate index with the content of `from`, at the cost of directory entries. `from` must not be written
/// meanwhile.
///
/// Lock files are not copied: locks belong to the file, not to its name, and a copy would share them.
pub fn copy_links(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(Error::io("make", to))?;
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let entry = entry.map_err(Error::io("read", from))?;
        let name = entry.file_name();
        let kind = entry.file_type().map_err(Error::io("read", from))?;
        if kind.is_file() && Path::new(&name).extension().is_none_or(|extension| extension != "lock") {
            fs::hard_link(entry.path(), to.join(&name)).map_err(Error::io("link", &entry.path()))?;
        }
    }
    fs::File::open(to).and_then(|dir| dir.sync_all()).map_err(Error::io("write", to))
}

fn schema() -> (Schema, Fields) {
    let indexing = TextFieldIndexing::default().set_tokenizer(ANALYZER).set_index_option(IndexRecordOption::WithFreqs);
    let mut builder = Schema::builder();
    let text = builder.add_text_field(TEXT, TextOptions::default().set_indexing_options(indexing));
    let ordinal = builder.add_u64_field(ORDINAL, NumericOptions::default().set_fast());
    (builder.build(), Fields { text, ordinal })
}

fn read_settings(dir: &Path) -> Result<LexicalSettings> {
    let path = dir.join(SETTINGS);
    let kept = match fs::read(&path) {
        Ok(kept) => kept,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::corrupt(dir, format!("it is no index of words: {SETTINGS} is missing")));
        }
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let kept: Kept = serde_json::from_slice(&kept).map_err(|error| Error::corrupt(&path, error.to_string()))?;
    if kept.format != FORMAT {
        return Err(Error::corrupt(
            dir,
            format!("it is of format {}, and this program reads {FORMAT}; rebuild the index", kept.format),
        ));
    }
    Ok(kept.settings)
}

/// Calls tantivy. It asserts much of what it reads, so a damaged or replaced file can make it panic. A panic leaves nothing
/// behind, since searches share no state except what they read.
fn guarded<T>(dir: &Path, call: impl FnOnce() -> tantivy::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| explained(dir, error)),
        Err(_) => Err(Error::corrupt(dir, "its parts do not fit together; rebuild the index")),
    }
}

fn explained(dir: &Path, error: TantivyError) -> Error {
    use std::io::ErrorKind;
    match error {
        TantivyError::IoError(source) if !matches!(source.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
            Error::Io { action: "use the index in", path: dir.to_owned(), source: std::io::Error::new(source.kind(), source) }
        }
        TantivyError::OpenDirectoryError(OpenDirectoryError::IoError { io_error, .. }) => {
            Error::Io { action: "use the index in", path: dir.to_owned(), source: std::io::Error::new(io_error.kind(), io_error) }
        }
        TantivyError::LockFailure(..) => {
            Error::Invalid(format!("the index in {} is being written to; wait until that is done", dir.display()))
        }
        other => Error::corrupt(dir, other.to_string()),
    }
}

#[cfg(test)]
mod tests;
