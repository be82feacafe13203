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
use arenite_retrieval::{Error, Filter, Found, Index, Mode, Query};
use axum::body::Body;
use futures_util::future::join_all;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::{PATH, read_json};
use crate::gateway::Gateway;
use crate::refusal::{Refusal, json_response};
use crate::request::require;

/// Default number of passages of an answer.
const TOP_K: usize = 5;
/// The most queries of one call.
const MAX_QUERIES: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Search {
    query: Option<String>,
    queries: Option<Vec<String>>,
    top_k: Option<usize>,
    mode: Option<Mode>,
    filter: Map<String, Value>,
}

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

pub(crate) async fn serve(gateway: &Arc<Gateway>, rest: &[&str], parts: &Parts, body: Body) -> Result<Response<Body>, Refusal> {
    let library = gateway.config.corpora.clone();
    let library = library.ok_or_else(|| Refusal::new(ErrorCode::Unsupported, "this server has no corpora"))?;
    match rest {
        [] => {
            require(parts, &[Method::GET, Method::HEAD])?;
            let names = tokio::task::spawn_blocking(move || library.names()).await.unwrap_or_default();
            Ok(json_response(StatusCode::OK, &json!({ "corpora": names })))
        }
        [name] => {
            require(parts, &[Method::GET, Method::HEAD])?;
            let served = open(library, name).await?;
            let corpus = served.corpus();
            Ok(json_response(
                StatusCode::OK,
                &json!({
                    "name": name,
                    "passages": corpus.len(),
                    "best_mode": corpus.best_mode(),
                    "stats": corpus.index().map(Index::stats),
                    "batches": served.batches(),
                }),
            ))
        }
        [name, "search"] => {
            require(parts, &[Method::POST])?;
            let (search, _) = read_json::<Search>(body).await?;
            let served = open(library, name).await?;
            answer(&served, search).await
        }
        _ => Err(Refusal::not_found("there are corpora, corpora/{name} and corpora/{name}/search")),
    }
}

async fn answer(served: &Served, search: Search) -> Result<Response<Body>, Refusal> {
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
                Err(error) => json!({ "error": refused(&error).message }),
            });
            Ok(json_response(StatusCode::OK, &json!({ "answers": answers.collect::<Vec<_>>() })))
        }
        _ => Err(Refusal::bad_request(format!("give a query, or 1 to {MAX_QUERIES} queries"))),
    }
}
