//! `browser:*`: the sandbox's browser, under the names of AgentFlow's current and earlier documents.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Answered, Params, alias, failed, handle, number_if, quoted, require, spec, text, text_if};
use crate::answer::{Failure, Returned, code as codes};
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::SynthesisError;
use crate::sandboxes::{SandboxHandle, SandboxRequest};
use crate::session::Session;

const NAME: &str = "browser";
/// Timeout in milliseconds for a page or an element to appear.
const TIMEOUT: f64 = 30_000.0;
/// Folder for screenshots, for clients that want them as files.
const PICTURES: &str = "/tmp/screenshots";

/// Works in the sandbox's browser.
pub struct Browser {
    config: Map<String, Value>,
}

impl Browser {
    pub fn new(config: Map<String, Value>) -> Self {
        Self { config }
    }
}

fn timeout(call: &ToolCall<'_>) -> Result<f64, Failure> {
    let own = call.session.and_then(|session| session.facts.config.get("timeout")).and_then(Value::as_f64);
    Ok(number_if(&call.params, "timeout")?.or(own).unwrap_or(TIMEOUT) / 1e3)
}

/// The page's state after an action.
async fn page(handle: &SandboxHandle, mut data: Value) -> Answered {
    let asked = json!({ "expression": "({url: location.href, title: document.title})" });
    if let Ok(now) = handle.post("/v1/browser/page/evaluate", &asked).await {
        let now = if now["result"].is_object() { now["result"].clone() } else { now };
        for field in ["url", "title"] {
            if data.get(field).is_none_or(Value::is_null) {
                data[field] = now[field].clone();
            }
        }
    }
    Ok(Returned::Data(data))
}

async fn screenshot(call: &ToolCall<'_>, handle: &SandboxHandle) -> Answered {
    let whole = call.params.get("full_page") == Some(&Value::Bool(true));
    let path = format!("/v1/browser/page/screenshot?full_page={whole}");
    let answer = handle.sandboxes.call(&handle.caller, &handle.name, &path, None).await.map_err(failed)?;
    if answer.status != 200 || !answer.json.is_null() || answer.bytes.is_empty() {
        return Err(failed(answer.data().err().map_or_else(|| "no picture came".to_owned(), String::from)));
    }
    let image = STANDARD.encode(&answer.bytes);
    // The size is in the picture's header, which for PNG is always at the same offset.
    let side = |at: usize| answer.bytes.get(at..at + 4).map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
    let file = text_if(&call.params, "path")?
        .map_or_else(|| format!("{PICTURES}/{}.png", crate::execute::unique("screenshot")), str::to_owned);
    let folder = file.rsplit_once('/').map_or(".", |(folder, _)| folder);
    let made = json!({ "command": format!("mkdir -p -- {}", quoted(folder)), "hard_timeout": 10 });
    handle.post("/v1/bash/exec", &made).await.map_err(failed)?;
    let kept = json!({ "file": file, "content": image, "encoding": "base64" });
    handle.post("/v1/file/write", &kept).await.map_err(failed)?;
    Ok(Returned::Data(json!({
        "image_path": file,
        "size": [side(16), side(20)],
        "format": "png",
        "image": image,
    })))
}

async fn type_text(call: &ToolCall<'_>, handle: &SandboxHandle, over: bool) -> Answered {
    let params = &call.params;
    let (selector, typed) =
        (text(params, "selector")?, text(params, if params.contains_key("text") { "text" } else { "value" })?);
    if over {
        handle.post("/v1/browser/page/fill", &json!({ "selector": selector, "text": typed })).await.map_err(failed)?;
    } else {
        handle.post("/v1/browser/page/click", &json!({ "selector": selector })).await.map_err(failed)?;
        let keys = json!({ "text": typed, "delay": number_if(params, "delay")?.unwrap_or_default() });
        handle.post("/v1/browser/page/type", &keys).await.map_err(failed)?;
    }
    page(handle, json!({ "selector": selector, "typed": typed, "length": typed.chars().count() })).await
}

async fn read(params: &Params, handle: &SandboxHandle, html: bool) -> Answered {
    let selector = text_if(params, "selector")?;
    let text = match selector {
        None => {
            let path = if html { "/v1/browser/page/html?outer=true" } else { "/v1/browser/page/text" };
            handle.get(path).await.map_err(failed)?
        }
        Some(selector) => {
            let quoted = Value::from(selector).to_string();
            let side = if html { "outerHTML" } else { "innerText" };
            let found = format!("(() => {{ const e = document.querySelector({quoted}); return e ? e.{side} : null }})()");
            let found = handle.post("/v1/browser/page/evaluate", &json!({ "expression": found })).await.map_err(failed)?;
            let found = found.get("result").cloned().unwrap_or(found);
            if found.is_null() {
                return Err(failed(format!("nothing in the page matches {selector:?}")));
            }
            found
        }
    };
    let field = if html { "html" } else { "text" };
    let mut data = json!({ "text": if html { Value::from("") } else { text.clone() } });
    data[field] = text;
    page(handle, data).await
}

#[async_trait]
impl Backend for Browser {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let string = |description: &str| json!({"type": "string", "description": description});
        let selector = string("A CSS selector.");
        let wait = json!({"type": "number", "description": "Milliseconds to wait at most.", "default": TIMEOUT});
        let number = |description: &str| json!({"type": "number", "description": description});
        let goto = spec("browser:goto", NAME, "Open a page.", json!({"url": string("Its address."), "timeout": wait}), &["url"]);
        let typed = spec(
            "browser:type",
            NAME,
            "Type text into a field, key by key.",
            json!({"selector": selector, "text": string("The text."), "delay": number("Milliseconds between two keys.")}),
            &["selector", "text"],
        );
        let text = spec(
            "browser:get_text",
            NAME,
            "Read what the page shows, or what an element of it does, as text.",
            json!({"selector": selector}),
            &[],
        );
        let content = spec("browser:get_content", NAME, "Read the page's HTML.", json!({"selector": selector}), &[]);
        vec![
            alias(&goto, "browser:navigate"),
            goto,
            spec(
                "browser:screenshot",
                NAME,
                "Take a picture of the page: in Base64, and as a file in the sandbox.",
                json!({"full_page": {"type": "boolean", "default": false, "description": "All of it, not only what is shown."}, "path": string("The file to write.")}),
                &[],
            ),
            spec(
                "browser:click",
                NAME,
                "Click an element, or a place.",
                json!({"selector": selector, "x": number("Pixels from the left."), "y": number("Pixels from the top.")}),
                &[],
            ),
            alias(&typed, "browser:type_text"),
            typed,
            spec(
                "browser:fill",
                NAME,
                "Set a field's text.",
                json!({"selector": selector, "text": string("The text.")}),
                &["selector"],
            ),
            spec("browser:press", NAME, "Press a key, such as Enter or Control+A.", json!({"key": string("The key.")}), &["key"]),
            spec(
                "browser:select_option",
                NAME,
                "Choose of a list.",
                json!({"selector": selector, "value": string("What to choose.")}),
                &["selector", "value"],
            ),
            alias(&text, "browser:extract"),
            text,
            content,
            spec("browser:elements", NAME, "List what can be used in the page: role, name, handle, index.", json!({}), &[]),
            spec("browser:evaluate", NAME, "Run JavaScript in the page.", json!({"script": string("The script.")}), &["script"]),
            spec(
                "browser:wait_for_selector",
                NAME,
                "Wait for an element.",
                json!({"selector": selector, "timeout": wait}),
                &["selector"],
            ),
            spec(
                "browser:scroll",
                NAME,
                "Scroll the page by so much.",
                json!({"x": number("Pixels to the right."), "y": number("Pixels down.")}),
                &[],
            ),
        ]
    }

    fn default_config(&self) -> Map<String, Value> {
        self.config.clone()
    }

    fn sandbox_request(&self, _config: &Map<String, Value>) -> Option<SandboxRequest> {
        Some(SandboxRequest::default())
    }

    async fn initialize(&self, session: &Arc<Session>, handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        let size = session.facts.config.get("viewport");
        let (Some(handle), Some(width), Some(height)) =
            (handle, size.and_then(|size| size["width"].as_u64()), size.and_then(|size| size["height"].as_u64()))
        else {
            return Ok(());
        };
        let wanted = json!({ "resolution": { "width": width, "height": height } });
        handle.post("/v1/browser/config", &wanted).await.map(drop)
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let params = &call.params;
        let handle = handle(call.handle)?;
        match call.tool {
            "browser:goto" | "browser:navigate" => {
                require(call.tool, params, &["url"])?;
                let asked = json!({ "url": text(params, "url")?, "timeout": timeout(&call)? });
                let went = handle.post("/v1/browser/page/navigate", &asked).await.map_err(failed)?;
                let mut data = if went.is_object() { went } else { json!({}) };
                if data.get("status").is_none_or(Value::is_null) {
                    data["status"] = 200.into();
                }
                // The tab's title may still be the address, so the page's own title is read.
                data["title"] = Value::Null;
                page(handle, data).await
            }
            "browser:screenshot" => screenshot(&call, handle).await,
            "browser:click" => {
                let mut asked = json!({});
                for field in ["selector", "x", "y", "index"] {
                    if let Some(given) = params.get(field).filter(|given| !given.is_null()) {
                        asked[field] = given.clone();
                    }
                }
                handle.post("/v1/browser/page/click", &asked).await.map_err(failed)?;
                page(handle, json!({ "clicked": asked })).await
            }
            "browser:type" | "browser:type_text" => {
                require(call.tool, params, &["selector", "text"])?;
                type_text(&call, handle, false).await
            }
            "browser:fill" => {
                require(call.tool, params, &["selector"])?;
                type_text(&call, handle, true).await
            }
            "browser:press" => {
                require(call.tool, params, &["key"])?;
                let key = text(params, "key")?;
                handle.post("/v1/browser/page/press_key", &json!({ "key": key })).await.map_err(failed)?;
                page(handle, json!({ "key": key })).await
            }
            "browser:select_option" => {
                require(call.tool, params, &["selector", "value"])?;
                let asked = json!({ "selector": text(params, "selector")?, "value": text(params, "value")? });
                handle.post("/v1/browser/page/select_option", &asked).await.map_err(failed)?;
                page(handle, asked).await
            }
            "browser:get_text" | "browser:extract" => read(params, handle, false).await,
            "browser:get_content" => read(params, handle, true).await,
            "browser:elements" => {
                let elements = handle.get("/v1/browser/page/elements").await.map_err(failed)?;
                page(handle, json!({ "elements": elements })).await
            }
            "browser:evaluate" => {
                require(call.tool, params, &["script"])?;
                let asked = json!({ "expression": text(params, "script")? });
                let result = handle.post("/v1/browser/page/evaluate", &asked).await.map_err(failed)?;
                Ok(Returned::Data(json!({ "result": result.get("result").cloned().unwrap_or(result) })))
            }
            "browser:wait_for_selector" => {
                require(call.tool, params, &["selector"])?;
                let selector = text(params, "selector")?;
                let asked = json!({ "type": "selector", "selector": selector, "timeout": timeout(&call)? });
                handle.post("/v1/browser/page/wait", &asked).await.map_err(failed)?;
                Ok(Returned::Data(json!({ "selector": selector, "found": true })))
            }
            "browser:scroll" => {
                let (x, y) = (number_if(params, "x")?.unwrap_or(0.0), number_if(params, "y")?.unwrap_or(0.0));
                let asked = json!({ "expression": format!("window.scrollBy({x}, {y})") });
                handle.post("/v1/browser/page/evaluate", &asked).await.map_err(failed)?;
                page(handle, json!({ "scrolled": [x, y] })).await
            }
            other => Err(Failure::new(codes::INVALID_REQUEST_FORMAT, format!("there is no tool {other}"))),
        }
    }
}
