//! `rag:*`: passages of a corpus. All workers share the configured one; each session has its own for what it indexes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_retrieval::batch::Knobs;
use arenite_retrieval::embed::{self, EmbedderSpec};
use arenite_retrieval::import::Imported;
use arenite_retrieval::library::{Library, Served};
use arenite_retrieval::rerank::Reranker;
use arenite_retrieval::{Corpus, DenseSettings, Error, Filter, Found, Index, Mode, Passage, Query, Settings, fusion};
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::{Answered, Params, count_if, require, spec, text, wrong};
use crate::answer::{Failure, Returned, code as codes};
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::{SynthesisError, invalid};
use crate::sandboxes::SandboxHandle;
use crate::session::Session;

const NAME: &str = "rag";
/// AgentFlow's server version, which `stats` returns.
const VERSION: &str = "3.0.0";
/// The default corpus, if it exists.
const USUAL: &str = "default";
/// Default number of passages of an answer.
const TOP_K: usize = 5;
/// Between two passages of a context.
const SEPARATOR: &str = "\n---\n";
/// AgentFlow's context without results: clients search for this text.
const NOTHING: &str = "[查询结果] 未找到相关文档";
/// The most queries of one call, and documents.
const MAX_MANY: usize = 1000;
/// The most passages that a session may add itself.
const MAX_OWN: usize = 100_000;

/// AgentFlow's keys, and Arenite's: `corpus`, `mode`, `reranker`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Config {
    /// The encoder: a folder, or a name in the local cache of models.
    model_name: Option<String>,
    /// A Faiss file, or the directory of an Arenite index.
    index_path: Option<PathBuf>,
    corpus_path: Option<PathBuf>,
    device: Option<String>,
    default_top_k: Option<usize>,
    batcher_trigger_batch_size: Option<usize>,
    batcher_max_batch_size: Option<usize>,
    /// In seconds.
    batcher_max_wait_time: Option<f64>,
    /// The name of a corpus that `arenite rag index` created in the server's data directory.
    corpus: Option<String>,
    mode: Option<Mode>,
    reranker: Option<Reranker>,
    /// The embedder for sessions' own documents if there is no corpus.
    embedder: Option<EmbedderSpec>,
}

/// Searches a corpus.
pub struct Rag {
    raw: Map<String, Value>,
    config: Result<Config, SynthesisError>,
    /// The server's corpora are in `retrieval`, those of sessions in `synthesis/rag`.
    data_dir: PathBuf,
    shared: OnceCell<Arc<Served>>,
    own: Mutex<HashMap<String, Arc<Own>>>,
}

/// Passages of one session.
struct Own {
    dir: PathBuf,
    /// Changes go one after the other.
    turn: Mutex<()>,
    served: Mutex<Option<Arc<Served>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work that reads files or computes for long, off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::Invalid(format!("it was given up: {error}"))))
}

fn failure(error: &Error) -> Failure {
    let code = if matches!(error, Error::Invalid(_)) { codes::INVALID_INPUT } else { codes::EXECUTION_ERROR };
    Failure::new(code, error.to_string())
}

impl Config {
    fn knobs(&self) -> Knobs {
        let usual = Knobs::default();
        Knobs {
            trigger_batch_size: self.batcher_trigger_batch_size.unwrap_or(usual.trigger_batch_size).max(1),
            max_batch_size: self.batcher_max_batch_size.unwrap_or(usual.max_batch_size).max(1),
            max_wait_time: self.batcher_max_wait_time.map_or(usual.max_wait_time, |seconds| {
                Duration::from_secs_f64(if seconds.is_finite() { seconds.clamp(0.0, 60.0) } else { 0.05 })
            }),
        }
    }

    /// Opens the configured corpus.
    fn open(&self, data_dir: &Path) -> Result<Option<Served>, Error> {
        if let Some(device) = self.device.as_deref().filter(|device| *device != "cpu") {
            tracing::warn!(device, "vectors are made and searched by the processor: there is no support of other devices");
        }
        let served = |dir: &Path| Served::of_directory(dir, self.reranker.clone(), self.knobs()).map(Some);
        let library = Library::of_data(data_dir);
        let index = match (&self.corpus, &self.index_path) {
            (Some(name), _) => return served(&library.dir(name)?),
            (None, Some(index)) if index.is_dir() => return served(index),
            (None, Some(index)) => index,
            (None, None) if library.has(USUAL) => return served(&library.dir(USUAL)?),
            (None, None) => return Ok(None),
        };
        let corpus = self.corpus_path.as_ref();
        let corpus = corpus.ok_or_else(|| Error::Invalid("the configuration has an index_path and no corpus_path".to_owned()))?;
        let name = self.model_name.as_deref();
        let name = name.ok_or_else(|| Error::Invalid("the configuration has an index_path and no model_name".to_owned()))?;
        let embedder = embed::open(&embed::from_model_name(name)?)?;
        let corpus = Corpus::of_import(Imported::open(index, corpus)?, embedder)?.reranked_by(self.reranker.clone());
        Ok(Some(Served::fixed(corpus, self.knobs())))
    }
}

impl Rag {
    pub fn new(config: Map<String, Value>, data_dir: &Path) -> Self {
        let known: Map<String, Value> =
            config.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let parsed =
            Config::deserialize(Value::Object(known)).map_err(|error| invalid(format!("the configuration of rag: {error}")));
        Self { raw: config, config: parsed, data_dir: data_dir.to_owned(), shared: OnceCell::new(), own: Mutex::default() }
    }

    fn config(&self) -> Result<&Config, SynthesisError> {
        self.config.as_ref().map_err(Clone::clone)
    }

    /// None: no corpus is configured, and sessions only have what they index.
    async fn shared(&self) -> Result<Option<Arc<Served>>, SynthesisError> {
        let opened = self.shared.get_or_try_init(|| async {
            let (config, data_dir) = (self.config().map_err(Some)?.clone(), self.data_dir.clone());
            let served = blocking(move || config.open(&data_dir))
                .await
                .map_err(|error| Some(SynthesisError::Corpus { reason: error.to_string() }))?;
            served.map(Arc::new).ok_or(None)
        });
        match opened.await {
            Ok(served) => Ok(Some(served.clone())),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    fn own(&self, session: &Session) -> Arc<Own> {
        let mut own = locked(&self.own);
        let made = own.entry(session.facts.id.clone()).or_insert_with(|| {
            let dir = self.data_dir.join("synthesis/rag").join(&session.facts.id);
            Arc::new(Own { dir, turn: Mutex::default(), served: Mutex::default() })
        });
        made.clone()
    }

    async fn ready(&self) -> Result<Option<Arc<Served>>, Failure> {
        self.shared().await.map_err(|error| Failure::new(codes::BACKEND_NOT_INITIALIZED, error))
    }

    /// The corpora that a session searches.
    async fn corpora(&self, call: &ToolCall<'_>) -> Result<Vec<Arc<Served>>, Failure> {
        let own = call.session.and_then(|session| locked(&self.own).get(&session.facts.id).cloned());
        let own = own.and_then(|own| locked(&own.served).clone());
        let corpora: Vec<Arc<Served>> = self.ready().await?.into_iter().chain(own).collect();
        if corpora.is_empty() {
            let hint = "give the configuration of `rag` a corpus, or index documents by rag:index";
            return Err(Failure::new(codes::BACKEND_NOT_INITIALIZED, format!("there is no corpus to search; {hint}")));
        }
        Ok(corpora)
    }

    fn query(&self, params: &Params, session: Option<&Arc<Session>>, text: &str) -> Result<Query, Failure> {
        let of = |name: &str| {
            let given = params.get(name).filter(|value| !value.is_null());
            given.or_else(|| session.and_then(|session| session.facts.config.get(name)))
        };
        let mode = match of("mode") {
            Some(mode) => Some(Mode::deserialize(mode).map_err(|_| wrong("mode", "bm25, dense or hybrid"))?),
            None => self.config.as_ref().ok().and_then(|config| config.mode),
        };
        let filter = match of("filter") {
            Some(Value::Object(filter)) => Filter::parse(filter).map_err(|error| Failure::new(codes::INVALID_INPUT, error))?,
            Some(_) => return Err(wrong("filter", "an object")),
            None => None,
        };
        let usual = self.config.as_ref().ok().and_then(|config| config.default_top_k).unwrap_or(TOP_K);
        let own = session.and_then(|session| session.facts.config.get("top_k")).and_then(Value::as_u64);
        let top_k = count_if(params, "top_k")?.or(own).map_or(usual, |top_k| usize::try_from(top_k).unwrap_or(usize::MAX));
        let query = Query { text: text.to_owned(), top_k, mode, filter };
        query.check().map_err(|error| failure(&error)).map(|()| query)
    }

    async fn search(&self, call: &ToolCall<'_>) -> Answered {
        require(call.tool, &call.params, &["query"])?;
        let query = self.query(&call.params, call.session, text(&call.params, "query")?)?;
        let found = ask(&self.corpora(call).await?, &query).await.map_err(|error| failure(&error))?;
        let mut data = json!({ "query": query.text, "context": context(&found) });
        if wants_results(call)? {
            data["results"] = results(&found);
        }
        Ok(Returned::Data(data))
    }

    async fn batch(&self, call: &ToolCall<'_>) -> Answered {
        require(call.tool, &call.params, &["queries"])?;
        let texts = call.params.get("queries").and_then(Value::as_array).ok_or_else(|| wrong("queries", "a list of strings"))?;
        if texts.is_empty() || texts.len() > MAX_MANY {
            return Err(wrong("queries", &format!("a list of 1 to {MAX_MANY} strings")));
        }
        let corpora = self.corpora(call).await?;
        let each = texts.iter().map(|text| {
            let corpora = &corpora;
            async move {
                let text = text.as_str().ok_or_else(|| wrong("a query", "a string"))?;
                let query = self.query(&call.params, call.session, text)?;
                ask(corpora, &query).await.map_err(|error| failure(&error))
            }
        });
        let answers = futures_util::future::join_all(each).await;
        let errors: Vec<Value> = (0..)
            .zip(&answers)
            .filter_map(|(index, answer): (usize, _)| {
                answer.as_ref().err().map(|failure| json!({ "index": index, "error": failure.message }))
            })
            .collect();
        let contexts: Vec<String> = answers
            .iter()
            .map(|answer| answer.as_ref().map_or_else(|f| format!("[Error] {}", f.message), |found| context(found)))
            .collect();
        let mut data = json!({ "count": contexts.len(), "contexts": contexts });
        if wants_results(call)? {
            data["results"] = answers.iter().map(|answer| answer.as_ref().map_or(Value::Null, |found| results(found))).collect();
        }
        if errors.is_empty() {
            return Ok(Returned::Data(data));
        }
        let all = errors.len() == answers.len();
        let (code, said) =
            if all { (codes::ALL_FAILED, "all queries failed") } else { (codes::PARTIAL_FAILURE, "some queries failed") };
        let first = errors.first().and_then(|error| error["error"].as_str()).unwrap_or_default().to_owned();
        data["errors"] = errors.into();
        Err(Failure { data, ..Failure::new(code, format!("{said}: {first}")) })
    }

    async fn stats(&self, call: &ToolCall<'_>) -> Answered {
        let shared = self.ready().await?;
        let config = self.config().map_err(|error| Failure::new(codes::BACKEND_NOT_INITIALIZED, error))?;
        let own = call.session.and_then(|session| locked(&self.own).get(&session.facts.id).cloned());
        let own = own.and_then(|own| locked(&own.served).clone()).map_or(0, |served| served.corpus().len());
        let corpus = shared.as_ref().map(|served| served.corpus());
        let embedder = corpus.as_ref().and_then(|corpus| corpus.embedder().cloned());
        Ok(Returned::Data(json!({
            "initialized": corpus.is_some(),
            "backend_version": VERSION,
            "index": {
                "index_path": config.index_path,
                "model_name": embedder.map(|embedder| embedder.name().to_owned()),
                "corpus_path": config.corpus_path,
                "corpus": config.corpus,
                "corpus_size": corpus.as_ref().map_or(0, |corpus| corpus.len()),
                "index_size": corpus.as_ref().map_or(0, |corpus| corpus.vectors()),
                "mode": corpus.as_ref().map(|corpus| config.mode.unwrap_or_else(|| corpus.best_mode())),
                "details": corpus.as_ref().and_then(|corpus| corpus.index().map(Index::stats)),
                "device_config": config.device,
                "encoder_device": "cpu",
                "index_device": "cpu",
            },
            "session_documents": own,
            "batcher": shared.map(|served| served.batches()),
        })))
    }

    async fn index(&self, call: &ToolCall<'_>) -> Answered {
        require(call.tool, &call.params, &["documents"])?;
        let session =
            call.session.ok_or_else(|| Failure::new(codes::RESOURCE_NOT_INITIALIZED, "there is no session to index for"))?;
        let documents = call.params.get("documents").and_then(Value::as_array).ok_or_else(|| wrong("documents", "a list"))?;
        if documents.is_empty() || documents.len() > MAX_MANY {
            return Err(wrong("documents", &format!("a list of 1 to {MAX_MANY} texts or objects with a text")));
        }
        let own = self.own(session);
        let shared = self.ready().await?.map(|served| served.corpus());
        let settings = self.own_settings(shared.as_deref());
        let mut passages = Vec::new();
        let there = locked(&own.served).as_ref().map_or(0, |served| served.corpus().len());
        if there + documents.len() > MAX_OWN {
            let said = format!("a session may have at most {MAX_OWN} documents of its own, and has {there}");
            return Err(Failure::new(codes::INVALID_INPUT, said));
        }
        for (number, document) in documents.iter().enumerate() {
            let record = if document.is_string() { json!({ "text": document }) } else { document.clone() };
            let passage = Passage::from_record(record, None);
            passages.push(passage.map_err(|reason| wrong(&format!("document {number}"), &format!("a passage: {reason}")))?);
        }
        let done = blocking(move || {
            let _turn = locked(&own.turn);
            let mut update = Index::update(&own.dir, Some(settings?))?;
            for passage in &passages {
                update.add(passage)?;
            }
            let report = update.commit()?;
            let served = Served::of_directory(&own.dir, None, Knobs::default())?;
            let total = served.corpus().len();
            *locked(&own.served) = Some(Arc::new(served));
            Ok(json!({ "indexed": report.added, "replaced": report.replaced, "total": total }))
        });
        done.await.map(Returned::Data).map_err(|error| failure(&error))
    }

    /// Settings for a session's own passages: the same as for the others.
    fn own_settings(&self, shared: Option<&Corpus>) -> Result<Settings, Error> {
        if let Some(settings) = shared.and_then(Corpus::index).map(Index::settings) {
            return Ok(settings.clone());
        }
        let config = self.config().map_err(|error| Error::Invalid(error.into()))?;
        let embedder = match (&config.embedder, &config.model_name) {
            (Some(embedder), _) => embedder.clone(),
            (None, Some(name)) => embed::from_model_name(name)?,
            (None, None) => EmbedderSpec::default(),
        };
        let dimension = embed::open(&embedder)?.dimension();
        Ok(Settings { lexical: Some(Default::default()), dense: Some(DenseSettings::new(embedder, dimension)) })
    }
}

/// Searches all corpora, and merges the results to one list.
async fn ask(corpora: &[Arc<Served>], query: &Query) -> Result<Vec<Found>, Error> {
    let mut lists = Vec::new();
    for corpus in corpora {
        lists.push(corpus.search(query.clone()).await?);
    }
    if lists.len() < 2 {
        return Ok(lists.pop().unwrap_or_default());
    }
    // Scores of two corpora can't be compared, but their ranks can.
    let mut all: Vec<Found> = lists
        .into_iter()
        .flat_map(|list| (1u16..).zip(list))
        .map(|(rank, found)| Found { score: 1.0 / (fusion::RANK_CONSTANT + f32::from(rank)), ..found })
        .collect();
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all.truncate(query.top_k);
    Ok(all)
}

fn context(found: &[Found]) -> String {
    if found.is_empty() {
        return NOTHING.to_owned();
    }
    found.iter().map(|one| one.passage.shown()).collect::<Vec<_>>().join(SEPARATOR)
}

/// Whether the call, or its session, asks for the passages as objects too. Without this, a prompt built from an answer would
/// contain each passage twice.
fn wants_results(call: &ToolCall<'_>) -> Result<bool, Failure> {
    let own = || call.session.and_then(|session| session.facts.config.get("results"));
    match call.params.get("results").filter(|value| !value.is_null()).or_else(own) {
        None => Ok(false),
        Some(Value::Bool(wanted)) => Ok(*wanted),
        Some(_) => Err(wrong("results", "true or false")),
    }
}

fn results(found: &[Found]) -> Value {
    let one = |found: &Found| {
        json!({
            "id": found.passage.id,
            "score": found.score,
            "title": found.passage.title,
            "content": found.passage.text,
            "metadata": found.passage.metadata,
        })
    };
    found.iter().map(one).collect()
}

#[async_trait]
impl Backend for Rag {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let top_k = json!({"type": "integer", "description": "How many passages to answer with.", "minimum": 1, "maximum": 1000});
        let mode =
            json!({"type": "string", "enum": ["bm25", "dense", "hybrid"], "description": "By words, by meaning, or both."});
        let filter = json!({"type": "object", "description": "What the passages' metadata has to be: {\"lang\": \"en\", \"year\": {\"gte\": 2000}}."});
        let results = json!({"type": "boolean", "default": false, "description": "Answer with the passages as objects too: id, score, title, content, metadata."});
        let documents = json!({
            "type": "array",
            "description": "Texts, or objects with text, title, id and metadata. One with an id that is there takes its place.",
            "items": {"type": ["string", "object"]},
        });
        vec![
            spec(
                "rag:search",
                NAME,
                "Search the corpus for passages that answer a question.",
                json!({"query": {"type": "string", "description": "The question, or words to look for."}, "top_k": top_k, "mode": mode, "filter": filter, "results": results}),
                &["query"],
            ),
            spec(
                "rag:batch_search",
                NAME,
                "Search the corpus for several questions at once.",
                json!({"queries": {"type": "array", "items": {"type": "string"}, "description": "The questions."}, "top_k": top_k, "mode": mode, "filter": filter, "results": results}),
                &["queries"],
            ),
            spec("rag:stats", NAME, "Tell what the corpus is, and how queries were batched.", json!({}), &[]),
            spec(
                "rag:index",
                NAME,
                "Add documents to what this session searches. No other session finds them.",
                json!({"documents": documents}),
                &["documents"],
            ),
        ]
    }

    fn default_config(&self) -> Map<String, Value> {
        self.raw.clone()
    }

    async fn warmup(&self) -> Result<(), SynthesisError> {
        self.shared().await.map(drop)
    }

    async fn initialize(&self, session: &Arc<Session>, _handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        self.shared().await?;
        if session.restored {
            // The session's index is still on disk.
            let own = self.own(session);
            let dir = own.dir.clone();
            if let Ok(served) = blocking(move || Served::of_directory(&dir, None, Knobs::default())).await {
                *locked(&own.served) = Some(Arc::new(served));
            }
        }
        Ok(())
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        match call.tool {
            "rag:search" => self.search(&call).await,
            "rag:batch_search" => self.batch(&call).await,
            "rag:stats" => self.stats(&call).await,
            "rag:index" => self.index(&call).await,
            other => Err(Failure::new(codes::INVALID_REQUEST_FORMAT, format!("there is no tool {other}"))),
        }
    }

    async fn cleanup(&self, session: &Arc<Session>, _handle: Option<&SandboxHandle>) {
        let own = self.own(session);
        locked(&self.own).remove(&session.facts.id);
        let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(&own.dir)).await;
    }
}
