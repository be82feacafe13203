//! Reading the content of pages.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::super::automation::World;
use super::element::eventually;
use super::error::is_gone;
use super::{PageError, Work};
use arenite_guest_files::confined::{Input, Job, JobOutput};

/// Maximum characters of a page's text or HTML in one answer.
const MAX_TEXT: usize = 20 << 20;
/// Maximum characters of HTML that are converted to Markdown.
const MAX_CONTENT: usize = 8 << 20;
/// Maximum elements, and places of a text, in one answer.
const MAX_FOUND: usize = 2000;
const MAX_PLACES: usize = 200;

/// A page's main content.
#[derive(Debug, Serialize, ToSchema)]
pub struct Markdown {
    pub markdown: String,
    title: String,
    url: String,
    /// Whether some of the content was cut.
    pub truncated: bool,
}

impl Work {
    /// The page's HTML: its root element, or the content of that.
    pub(super) async fn html(&self, outer: bool) -> Result<String, PageError> {
        let side = if outer { "outerHTML" } else { "innerHTML" };
        self.text_of(&format!("document.documentElement?.{side} ?? ''")).await
    }

    /// The page's visible text.
    pub async fn text(&self) -> Result<String, PageError> {
        self.text_of("arenite.text()").await
    }

    async fn text_of(&self, expression: &str) -> Result<String, PageError> {
        let value = self.tab.ours(&format!("(text => text.length > {MAX_TEXT} ? null : text)({expression})")).await?;
        let too_long = || PageError::Failed(format!("the page has more than {MAX_TEXT} characters: evaluate can cut a part out"));
        value.as_str().map(str::to_owned).ok_or_else(too_long)
    }

    pub async fn markdown(&self) -> Result<Markdown, PageError> {
        let html: String = self.read("main", json!([MAX_CONTENT])).await?;
        let location = self.location();
        // Pages are hostile: the process that reads them may die.
        let job = Job::Markdown { name: "page.html".to_owned() };
        let unread = |why: String| PageError::Failed(format!("the page's content can't be made Markdown: {why}"));
        let page = Input::Text(format!("<!doctype html><meta charset=utf-8><body>{html}"));
        match self.confined.run(&job, page).await.map_err(|error| unread(error.to_string()))? {
            JobOutput::Content(content) => {
                Ok(Markdown { markdown: content.text, title: location.title, url: location.url, truncated: content.truncated })
            }
            JobOutput::Skills(_) => Err(unread("the reader answered something else".to_owned())),
        }
    }

    /// The usable elements of the page and its frames, each with a stable index.
    pub async fn elements(&self) -> Result<Vec<Value>, PageError> {
        let mut all = Vec::new();
        for (world, found) in self.everywhere("elements", json!([])).await? {
            for mut element in found {
                let number = element["number"].as_u64().unwrap_or_default();
                let known = (world.clone(), number);
                let index = {
                    let numbered = &mut self.tab.state().numbered;
                    numbered.iter().position(|other| *other == known).unwrap_or_else(|| {
                        numbered.push(known);
                        numbered.len() - 1
                    })
                };
                element.remove("number");
                element.insert("index".to_owned(), json!(index));
                all.push(Value::Object(element));
            }
        }
        all.truncate(MAX_FOUND);
        Ok(all)
    }

    /// The links of the page and its frames: `text` and `href`, and the frame's address for links in frames.
    pub async fn links(&self) -> Result<Vec<Value>, PageError> {
        let found = self.everywhere("links", json!([])).await?;
        Ok(found.into_iter().flat_map(|(_, links)| links).map(Value::Object).take(MAX_FOUND).collect())
    }

    /// Returns the places where a text is shown.
    pub(super) async fn find_text(&self, keyword: &str) -> Result<Vec<Value>, PageError> {
        if keyword.trim().is_empty() {
            return Err(PageError::Bad("the text to look for is empty".to_owned()));
        }
        let found = self.everywhere("findText", json!([keyword, MAX_PLACES])).await?;
        Ok(found.into_iter().flat_map(|(_, places)| places).map(Value::Object).take(MAX_PLACES).collect())
    }

    /// Collects lists from all frames, again if the page navigates meanwhile. Boxes are in the page's viewport, and items in a
    /// frame name it.
    async fn everywhere(&self, name: &str, arguments: Value) -> Result<Vec<(World, Vec<Map<String, Value>>)>, PageError> {
        let arguments = &arguments;
        eventually(Instant::now() + super::AUTO_WAIT, || async { self.lists(name, arguments).await.map(Ok) }).await
    }

    async fn lists(&self, name: &str, arguments: &Value) -> Result<Vec<(World, Vec<Map<String, Value>>)>, PageError> {
        self.document().await?;
        let frames: Vec<_> = self.tab.state().frames.clone();
        let mut lists = Vec::new();
        for frame in frames {
            let Some(world) = frame.world else { continue };
            let found: Result<Vec<Map<String, Value>>, _> = self.tab.library(&world, name, arguments.clone()).await;
            let mut found = match found {
                Ok(found) => found,
                // Frames come and go.
                Err(error) if is_gone(&error) && frame.parent.is_some() => continue,
                Err(error) => return Err(error),
            };
            if frame.parent.is_some() && !found.is_empty() {
                let Some((x, y)) = self.offset(&frame.id).await? else { continue };
                for element in &mut found {
                    element.insert("frame".to_owned(), json!(frame.url));
                    if let Some(Value::Object(of)) = element.get_mut("box") {
                        for (side, by) in [("x", x), ("y", y)] {
                            let at = of.get(side).and_then(Value::as_f64).unwrap_or_default();
                            of.insert(side.to_owned(), json!(at + by));
                        }
                    }
                }
            }
            lists.push((world, found));
        }
        Ok(lists)
    }

    /// The position of a frame's content in the page's viewport; `None` if it is not shown.
    async fn offset(&self, frame: &str) -> Result<Option<(f64, f64)>, PageError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Owner {
            backend_node_id: i64,
        }
        #[derive(serde::Deserialize)]
        struct BoxModel {
            model: Model,
        }
        #[derive(serde::Deserialize)]
        struct Model {
            content: [f64; 8],
        }
        let owner: Result<Owner, _> = self.tab.call("DOM.getFrameOwner", json!({"frameId": frame})).await;
        let Ok(Owner { backend_node_id }) = owner else { return Ok(None) };
        let model: Result<BoxModel, _> = self.tab.call("DOM.getBoxModel", json!({"backendNodeId": backend_node_id})).await;
        Ok(model.ok().map(|shown| (shown.model.content[0], shown.model.content[1])))
    }
}

impl super::super::automation::Tab {
    /// Evaluates an expression of ours in our world of the page's document; again if the document changes.
    pub(super) async fn ours(&self, expression: &str) -> Result<Value, PageError> {
        eventually(Instant::now() + super::AUTO_WAIT, || async {
            let late = || PageError::TooSlow { what: "the page has no document yet", seconds: super::AUTO_WAIT.as_secs_f64() };
            let world = |state: &mut super::super::automation::TabState| state.main().and_then(|main| main.world.clone());
            let world = self.until(Instant::now() + super::AUTO_WAIT, world).await?.ok_or_else(late)?;
            self.expression(&world, expression).await.map(Ok)
        })
        .await
    }
}
