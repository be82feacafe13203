//! Reranks hits with a service that reads query and passage together.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::search::Found;
use crate::service::agent;
use crate::{Error, Result};

/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A service with `POST /rerank` in the format of Cohere, Jina and vLLM: the request is `{model, query, documents}`, the answer
/// `{results: [{index, relevance_score}]}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reranker {
    /// Its complete address, including `/rerank`.
    pub url: String,
    #[serde(default)]
    pub model: String,
    /// The environment variable with its key.
    #[serde(default)]
    pub api_key_env: Option<String>,
}

impl Reranker {
    /// Returns the hits in the service's order.
    ///
    /// # Errors
    /// [`Error::Embedder`] if it can't be reached, or returns an invalid ranking.
    pub fn rerank(&self, query: &str, found: Vec<Found>, top_k: usize) -> Result<Vec<Found>> {
        if found.is_empty() {
            return Ok(found);
        }
        let failed = |reason: String| Error::Embedder { name: format!("reranker {}", self.url), reason };
        let documents: Vec<String> = found.iter().map(|one| one.passage.searched()).collect();
        let asked = json!({ "model": self.model, "query": query, "documents": documents, "top_n": top_k.min(found.len()) });
        let agent = agent(TIMEOUT).http_status_as_error(true).build().new_agent();
        let mut request = agent.post(&self.url).header("content-type", "application/json");
        if let Some(key) = self.api_key_env.as_ref().and_then(|name| std::env::var(name).ok()) {
            request = request.header("authorization", &format!("Bearer {key}"));
        }
        let mut answer = request.send(asked.to_string().as_bytes()).map_err(|error| failed(error.to_string()))?;
        let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
        let body = body.map_err(|error| failed(error.to_string()))?;
        let answer: Value = serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
        order(&answer, found, top_k).map_err(failed)
    }
}

fn order(answer: &Value, found: Vec<Found>, top_k: usize) -> std::result::Result<Vec<Found>, String> {
    let results = answer["results"].as_array().ok_or("its answer has no results")?;
    let mut found: Vec<Option<Found>> = found.into_iter().map(Some).collect();
    let mut ordered = Vec::new();
    for result in results {
        let place = result["index"].as_u64().and_then(|index| usize::try_from(index).ok());
        let score = result["relevance_score"].as_f64().filter(|score| score.is_finite());
        let (Some(place), Some(score)) = (place, score) else {
            return Err("a result has no index or no relevance_score".to_owned());
        };
        let one = found.get_mut(place).and_then(Option::take);
        let mut one = one.ok_or("a result names a document that it was not given, or names one twice")?;
        one.score = score as f32;
        ordered.push(one);
    }
    ordered.sort_by(|a, b| b.score.total_cmp(&a.score));
    ordered.truncate(top_k);
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Passage;

    #[test]
    fn its_order_is_taken_and_its_nonsense_is_not() {
        let found = || {
            let one = |id: &str| Found { passage: Passage { id: id.to_owned(), ..Passage::default() }, score: 0.0 };
            vec![one("a"), one("b"), one("c")]
        };
        let answer = json!({"results": [{"index": 1, "relevance_score": 0.1}, {"index": 2, "relevance_score": 0.9}]});
        let ordered = order(&answer, found(), 5).unwrap();
        assert_eq!(ordered.iter().map(|one| one.passage.id.as_str()).collect::<Vec<_>>(), ["c", "b"]);
        for nonsense in [
            json!({}),
            json!({"results": [{"index": 3, "relevance_score": 1}]}),
            json!({"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}]}),
            json!({"results": [{"index": 0}]}),
        ] {
            assert!(order(&nonsense, found(), 5).is_err(), "{nonsense}");
        }
    }
}
