//! `web:*`: searches with Serper's API, and reads pages with Jina's reader. Both addresses are configurable.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Map, Value, json};

use super::api::{self, Fault, texts};
use super::ask::{Model, ask, setting};
use super::{Answered, needs, spec};
use crate::backend::{Backend, ToolCall, ToolSpec};

/// Its key in the configuration; its answers name this as their resource.
const KEY: &str = "websearch";
const SERPER: &str = "https://google.serper.dev";
const LENS: &str = "https://google.serper.dev/lens";
const JINA: &str = "https://r.jina.ai";
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(30);
const TRIES: u32 = 3;
/// Default number of concurrent requests of one call.
const AT_ONCE: u64 = 5;
/// Default limit on the characters of a page that are returned or summarised.
const CONTENT: u64 = 50_000;

/// Searches and reads the web.
pub struct Web {
    config: Map<String, Value>,
}

impl Web {
    /// `config`: `serper_api_key`, `jina_api_key`, `serper_url`, `jina_url`, `max_workers`, `content_limit`, and for summaries
    /// `enable_llm_summary`, `summary_model`, `openai_api_key`, `openai_api_url`.
    pub fn new(config: Map<String, Value>) -> Self {
        Self { config }
    }

    /// A setting from the configuration, otherwise from the environment.
    fn setting(&self, name: &str, variable: &str) -> Option<String> {
        setting(&self.config, name, &[variable])
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.config.get(name).and_then(Value::as_u64).unwrap_or(default).max(1)
    }

    fn serper_key(&self) -> Result<String, Fault> {
        self.setting("serper_api_key", "SERPER_API_KEY").ok_or_else(|| Fault::new("SERPER_API_KEY not configured"))
    }

    async fn serper(&self, path: &str, body: Value) -> Result<Value, Fault> {
        let key = self.serper_key()?;
        let base = self.setting("serper_url", "SERPER_URL").unwrap_or_else(|| SERPER.to_owned());
        let url =
            if path == "lens" && base == SERPER { LENS.to_owned() } else { format!("{}/{path}", base.trim_end_matches('/')) };
        let text = tried(url, vec![("x-api-key".to_owned(), key)], Some(body)).await?;
        serde_json::from_str(&text)
            .map_err(|error| Fault::new(format!("the search answered with something that is no JSON: {error}")))
    }

    async fn search(&self, query: String, path: &str) -> Result<String, Fault> {
        // Han characters: a search in Chinese should return results in Chinese.
        let chinese = query.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c));
        let (country, language) = if chinese { ("cn", "zh-cn") } else { ("us", "en") };
        let found = self.serper(path, json!({ "q": query, "gl": country, "hl": language })).await?;
        let list = found[if path == "images" { "images" } else { "organic" }].as_array().cloned().unwrap_or_default();
        Ok(results(&format!("results for {query:?}"), &list))
    }

    async fn visit(&self, url: String, goal: &str) -> Result<String, Fault> {
        let key =
            self.setting("jina_api_key", "JINA_API_KEY").ok_or_else(|| Fault::new("JINA_API_KEY required for jina method"))?;
        let base = self.setting("jina_url", "JINA_URL").unwrap_or_else(|| JINA.to_owned());
        let address = format!("{}/{url}", base.trim_end_matches('/'));
        let text = tried(address, vec![("authorization".to_owned(), format!("Bearer {key}"))], None).await?;
        let content: String = text.chars().take(self.number("content_limit", CONTENT) as usize).collect();
        if self.config.get("enable_llm_summary") == Some(&Value::Bool(true)) {
            return self.summary(&content, goal).await;
        }
        Ok(content)
    }

    async fn visited(&self, url: String, goal: &str) -> (String, Result<String, Fault>) {
        let text = self.visit(url.clone(), goal).await;
        (url, text)
    }

    async fn summary(&self, content: &str, goal: &str) -> Result<String, Fault> {
        let key = self.setting("openai_api_key", "OPENAI_API_KEY").ok_or_else(|| Fault::new("OPENAI_API_KEY not configured"))?;
        let base = self.setting("openai_api_url", "OPENAI_API_URL").ok_or_else(|| Fault::new("OPENAI_API_URL not configured"))?;
        let model = self.setting("summary_model", "SUMMARY_MODEL").ok_or_else(|| Fault::new("summary_model not configured"))?;
        let wanted =
            format!("Extract from the page below what serves this goal, with its facts and figures.\nGoal: {goal}\n\n{content}");
        let model = Model::new(model, key, base);
        let said = model.complete(json!([{ "role": "user", "content": wanted }]), json!({})).await;
        said.map_err(|error| Fault::new(format!("LLM summarization failed: {error}")))
    }

    async fn result(&self, call: &ToolCall<'_>) -> Result<Value, Fault> {
        let params = &call.params;
        let at_once = self.number("max_workers", AT_ONCE) as usize;
        match call.tool {
            "web:visit" => {
                needs("VisitTool.execute", params, &["urls", "goal"]).map_err(Fault::internal)?;
                let (urls, goal) = (texts(params, "urls")?, params["goal"].as_str().unwrap_or_default());
                let visits: Vec<_> = urls.into_iter().map(|url| self.visited(url, goal).boxed()).collect();
                let visited: Vec<_> = futures_util::stream::iter(visits).buffered(at_once).collect().await;
                let (mut parts, mut warnings, mut last) = (Vec::new(), Vec::new(), None);
                for (url, done) in visited {
                    match done {
                        Ok(text) => parts.push(format!("## {url}\n\n{text}")),
                        Err(fault) => {
                            warnings.push(format!("{url} could not be read"));
                            last = Some(fault);
                        }
                    }
                }
                match (parts.is_empty(), last) {
                    (true, Some(fault)) => Err(fault),
                    _ => Ok(
                        json!({ "result": parts.join("\n\n"), "warning": (!warnings.is_empty()).then(|| warnings.join("; ")) }),
                    ),
                }
            }
            "web:reverse_image_search" => {
                needs("ReverseImageSearchTool.execute", params, &["image_url"]).map_err(Fault::internal)?;
                let found = self.serper("lens", json!({ "url": params["image_url"] })).await?;
                Ok(json!({ "result": results("images like it", found["organic"].as_array().map_or(&[], Vec::as_slice)) }))
            }
            tool => {
                let (function, path) =
                    if tool == "web:search" { ("SearchTool.execute", "search") } else { ("ImageSearchTool.execute", "images") };
                needs(function, params, &["query"]).map_err(Fault::internal)?;
                let queries = texts(params, "query")?;
                let searches: Vec<_> = queries.into_iter().map(|query| self.search(query, path).boxed()).collect();
                let found: Vec<Result<String, Fault>> = futures_util::stream::iter(searches).buffered(at_once).collect().await;
                Ok(json!({ "result": found.into_iter().collect::<Result<Vec<_>, _>>()?.join("\n\n") }))
            }
        }
    }
}

/// A list of results as Markdown.
fn results(title: &str, list: &[Value]) -> String {
    let mut text = format!("# {} {title}\n", list.len());
    for (at, one) in list.iter().enumerate() {
        let field = |name: &str| one[name].as_str().filter(|text| !text.is_empty());
        let link = field("link").or_else(|| field("imageUrl")).unwrap_or_default();
        text.push_str(&format!("\n{}. [{}]({link})\n", at + 1, field("title").unwrap_or(link)));
        for name in ["date", "source", "snippet", "imageUrl"] {
            if let Some(said) = field(name).filter(|said| *said != link) {
                text.push_str(&format!("   {said}\n"));
            }
        }
    }
    text
}

/// One request, repeated when the service is busy.
async fn tried(url: String, headers: Vec<(String, String)>, body: Option<Value>) -> Result<String, Fault> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let failed = match ask(url.clone(), headers.clone(), body.clone(), TIMEOUT).await {
            Ok((200..=299, text)) => return Ok(text),
            Ok((status @ (401 | 403), _)) => return Err(Fault::new(format!("the service refuses the key (status {status})"))),
            Ok((status, _)) => format!("the service answered with status {status}"),
            Err(error) => error.to_string(),
        };
        if attempt >= TRIES {
            return Err(Fault::new(failed));
        }
        tokio::time::sleep(Duration::from_millis(300 << attempt)).await;
    }
}

#[async_trait]
impl Backend for Web {
    fn name(&self) -> &str {
        "web"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let many = |description: &str| json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "description": description});
        let string = |description: &str| json!({"type": "string", "description": description});
        vec![
            spec(
                "web:search",
                KEY,
                "Search the web (Serper API)",
                json!({"query": many("What to search for; one or several.")}),
                &["query"],
            ),
            spec(
                "web:visit",
                KEY,
                "Visit web pages and extract content (Jina API)",
                json!({"urls": many("The pages; one or several."), "goal": string("What is looked for.")}),
                &["urls", "goal"],
            ),
            spec(
                "web:image_search",
                KEY,
                "Search images by text query (Serper Images API)",
                json!({"query": many("What to search for.")}),
                &["query"],
            ),
            spec(
                "web:reverse_image_search",
                KEY,
                "Reverse image search by image URL (Serper Lens API)",
                json!({"image_url": string("The image's address.")}),
                &["image_url"],
            ),
        ]
    }

    fn is_resource(&self) -> bool {
        false
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let result = self.result(&call).await;
        api::answer(&call.params, call.worker, result)
    }
}
