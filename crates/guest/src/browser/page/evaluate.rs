//! The caller's own JavaScript, in the page's world.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::automation::{HELD, described, exception};
use super::super::cdp::CdpError;
use super::{PageError, Work};

/// How long it may take. After it, it is stopped.
const PATIENCE: Duration = Duration::from_secs(30);
/// Characters of an expression.
const MAX_EXPRESSION: usize = 1 << 20;

/// The value of an answer, or what was thrown.
pub(super) fn unwrap(mut answer: Value) -> Result<Value, PageError> {
    match answer.get("exceptionDetails") {
        Some(details) => Err(PageError::Threw(exception(details))),
        None => Ok(answer["result"].take()),
    }
}

impl Work {
    /// Runs an expression, statements, or a function's body with `return`; `await` works in all of them.
    pub(super) async fn evaluate(&self, expression: &str) -> Result<Value, PageError> {
        if expression.len() > MAX_EXPRESSION {
            return Err(PageError::Bad(format!("an expression can have {MAX_EXPRESSION} bytes")));
        }
        let result = match self.run(expression, true).await {
            // `return` stands in functions alone.
            Err(PageError::Threw(why)) if why.starts_with("SyntaxError") => {
                match self.run(&format!("(async () => {{\n{expression}\n}})()"), false).await {
                    Err(PageError::Threw(other)) if other.starts_with("SyntaxError") => return Err(PageError::Threw(why)),
                    result => result?,
                }
            }
            result => result?,
        };
        // A function is meant to be called, as Playwright does it.
        match result["type"].as_str() {
            Some("function") if is_function(expression) => {
                let result = self.run(&format!("({expression})()"), false).await?;
                self.value(result).await
            }
            _ => self.value(result).await,
        }
    }

    async fn run(&self, expression: &str, repl: bool) -> Result<Value, PageError> {
        let params = json!({
            "expression": expression, "awaitPromise": true, "replMode": repl, "userGesture": true, "generatePreview": true,
            "objectGroup": HELD,
        });
        self.asked_by_caller("Runtime.evaluate", params).await
    }

    /// What a result is as JSON. What has none, such as a window or an element, is described.
    async fn value(&self, result: Value) -> Result<Value, PageError> {
        let Some(object) = result["objectId"].as_str() else {
            return Ok(match result.get("value") {
                Some(value) => value.clone(),
                None if result["type"] == "undefined" => Value::Null,
                None => described(&result).into(),
            });
        };
        if result["type"] == "symbol" {
            return Ok(described(&result).into());
        }
        let found = match result["subtype"].as_str() {
            Some("promise") => {
                let promise = json!({"promiseObjectId": object, "returnByValue": true});
                self.asked_by_caller("Runtime.awaitPromise", promise).await
            }
            Some("node" | "error") => return Ok(described(&result).into()),
            _ => {
                let this =
                    json!({"objectId": object, "functionDeclaration": "function () { return this; }", "returnByValue": true});
                self.asked_by_caller("Runtime.callFunctionOn", this).await
            }
        };
        match found {
            Ok(found) => Ok(found.get("value").cloned().unwrap_or_default()),
            Err(PageError::Cdp(CdpError::Refused { message, .. })) if message.contains("reference chain is too long") => {
                Ok(described(&result).into())
            }
            Err(error) => Err(error),
        }
    }

    async fn asked_by_caller(&self, method: &'static str, params: Value) -> Result<Value, PageError> {
        let answer: Result<Value, _> = self.tab.call_within(method, params, PATIENCE).await;
        if let Err(CdpError::TimedOut { .. }) = answer {
            self.tab.interrupt().await;
            return Err(PageError::TooSlow {
                what: "the expression has no value yet, and was stopped",
                seconds: PATIENCE.as_secs_f64(),
            });
        }
        unwrap(answer?)
    }
}

fn is_function(expression: &str) -> bool {
    let text = expression.trim_start();
    text.starts_with("function") || text.starts_with("async") || (text.starts_with('(') && text.contains("=>")) || {
        let name = text.split("=>").next().unwrap_or_default().trim();
        text.contains("=>") && !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
    }
}
