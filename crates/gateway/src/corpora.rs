//! `/api/v2/corpora`: searches corpora that `arenite rag index` created in the data directory. Every tenant can use them.
//!
//! ```text
//! GET  /api/v2/corpora                   {corpora: [name]}
//! GET  /api/v2/corpora/{name}            {name, passages, best_mode, stats, batches}
//! POST /api/v2/corpora/{name}/search     {query | queries, top_k?, mode?: "bm25"|"dense"|"hybrid", filter?}
//!                                        → {results: [Found]}, for queries {answers: [{results} | {error}]}
//! Found  {id, title, text, metadata, score}
//! ```
//!
//! All callers may read all corpora: they belong to the operator, as images do.

use std::sync::Arc;

use arenite_model::ErrorCode;
use arenite_retrieval::library::{Library, Served};
use arenite_retrieval::{Error, Filter, Found, Query};
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::PATH;
use crate::api::types::{CorpusInfo, CorpusList, SearchCorpus};
use crate::exchange::{Answered, Exchange};
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};

/// Default number of passages of an answer.
const TOP_K: usize = 5;
/// The most queries of one call.
const MAX_QUERIES: usize = 1000;

fn refused(error: &Error) -> Refusal {
    match error {
        Error::Invalid(_) | Error::Dimension { .. } => Refusal::bad_request(error.to_string()),
        Error::Embedder { .. } => Refusal::new(ErrorCode::Unsupported, error.to_string()),
        Error::Io { .. } | Error::Corrupt { .. } => {
            tracing::error!("a corpus could not be read: {error}");
            Refusal::new(ErrorCode::Internal, "the corpus could not be read; the server's log says why")
        }
    }
}

/// Opens files, so it runs off the async threads.
async fn open(library: Arc<Library>, name: &str) -> Result<Arc<Served>, Refusal> {
    let wanted = name.to_owned();
    let opened = tokio::task::spawn_blocking(move || library.get(&wanted)).await;
    let opened = opened.unwrap_or_else(|error| Err(Error::Invalid(error.to_string())));
    opened.map_err(|error| refused(&error))?.ok_or_else(|| {
        Refusal::not_found(format!("there is no corpus {name:?}")).hint(format!("GET {PATH}/corpora lists what there is"))
    })
}

fn library(exchange: &Exchange) -> Result<Arc<Library>, Refusal> {
    let library = exchange.gateway.config.corpora.clone();
    library.ok_or_else(|| Refusal::new(ErrorCode::Unsupported, "this server has no corpora"))
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let library = library(exchange)?;
    let names = tokio::task::spawn_blocking(move || library.names()).await.unwrap_or_default();
    let (corpora, next_cursor) = PageQuery::read(exchange)?.take(names, String::clone)?;
    Ok(json_response(StatusCode::OK, &CorpusList { corpora, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let name = exchange.param("name");
    let served = open(library(exchange)?, name).await?;
    let corpus = served.corpus();
    Ok(json_response(
        StatusCode::OK,
        &CorpusInfo {
            name: name.to_owned(),
            passages: corpus.len(),
            best_mode: json!(corpus.best_mode()),
            stats: corpus.index().map(|index| json!(index.stats())),
            batches: json!(served.batches()),
        },
    ))
}

pub(crate) async fn search(exchange: &mut Exchange) -> Answered {
    let library = library(exchange)?;
    let (search, _) = exchange.json::<SearchCorpus>().await?;
    let served = open(library, exchange.param("name")).await?;
    answer(&served, search).await
}

/// A problem, with the message under its earlier name.
fn failed(refusal: &Refusal) -> Value {
    let mut problem = json!(refusal.problem());
    problem["error"] = json!(refusal.message);
    problem
}

async fn answer(served: &Served, search: SearchCorpus) -> Answered {
    let filter = Filter::parse(&search.filter).map_err(Refusal::bad_request)?;
    let query = |text: String| Query { text, top_k: search.top_k.unwrap_or(TOP_K), mode: search.mode, filter: filter.clone() };
    let results = |found: Vec<Found>| json!({ "results": found });
    match (search.query, search.queries) {
        (Some(text), None) => {
            let found = served.search(query(text)).await.map_err(|error| refused(&error))?;
            Ok(json_response(StatusCode::OK, &results(found)))
        }
        (None, Some(texts)) if (1..=MAX_QUERIES).contains(&texts.len()) => {
            let answers = join_all(texts.into_iter().map(|text| served.search(query(text)))).await;
            let answers = answers.into_iter().map(|found| match found {
                Ok(found) => results(found),
                Err(error) => failed(&refused(&error)),
            });
            Ok(json_response(StatusCode::OK, &json!({ "answers": answers.collect::<Vec<_>>() })))
        }
        _ => Err(Refusal::bad_request(format!("give a query, or 1 to {MAX_QUERIES} queries"))),
    }
}
