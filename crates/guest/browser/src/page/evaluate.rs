//! Callers' JavaScript, which runs in the page's world.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::automation::{HELD, described, exception};
use super::element::eventually;
use super::{AUTO_WAIT, PageError, Work};
use arenite_guest_cdp::CdpError;

/// Timeout, after which the script is interrupted.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum bytes of an expression.
const MAX_EXPRESSION: usize = 1 << 20;

/// Returns the value of an answer, or its exception as an error.
pub(super) fn unwrap(mut answer: Value) -> Result<Value, PageError> {
    match answer.get("exceptionDetails") {
        Some(details) => Err(PageError::Threw(exception(details))),
        None => Ok(answer["result"].take()),
    }
}

impl Work {
    /// Runs an expression, statements, or a function's body with `return`; `await` works in all of them. Calls the result if it
    /// is a function.
    pub async fn evaluate(&self, expression: &str) -> Result<Value, PageError> {
        if expression.len() > MAX_EXPRESSION {
            return Err(PageError::Bad(format!("an expression can have {MAX_EXPRESSION} bytes")));
        }
        let result = self.understood(expression).await?;
        match result["objectId"].as_str() {
            // A function is meant to be called, as in Playwright.
            Some(function) if result["type"] == "function" && is_function(expression) => {
                let call = json!({
                    "objectId": function, "functionDeclaration": "function () { return this(); }", "awaitPromise": true,
                    "userGesture": true, "generatePreview": true, "objectGroup": HELD,
                });
                self.value(self.asked_by_caller("Runtime.callFunctionOn", call).await?).await
            }
            _ => self.value(result).await,
        }
    }

    /// Runs the text in the first form that parses: text that does not parse has not run.
    async fn understood(&self, expression: &str) -> Result<Value, PageError> {
        let enclosed = format!("({}\n)", expression.trim().trim_end_matches(';'));
        // `return` is allowed in functions only.
        let body = format!("(async () => {{\n{expression}\n}})()");
        let mut ways = [(expression, true), (enclosed.as_str(), true), (body.as_str(), false)];
        if code(expression).starts_with('{') {
            // Without parentheses, an object would parse as a block.
            ways.swap(0, 1);
        }
        let mut plain = None;
        for (text, repl) in ways {
            match self.run(text, repl).await {
                Err(PageError::Threw(why)) if is_not_parsed(&why) => {
                    if text == expression {
                        plain = Some(why);
                    }
                }
                result => return result,
            }
        }
        Err(PageError::Threw(plain.unwrap_or_default()))
    }

    async fn run(&self, expression: &str, repl: bool) -> Result<Value, PageError> {
        let params = json!({
            "expression": expression, "awaitPromise": true, "replMode": repl, "userGesture": true, "generatePreview": true,
            "objectGroup": HELD,
        });
        let params = &params;
        eventually(Instant::now() + AUTO_WAIT, || async {
            Ok(match self.asked_by_caller("Runtime.evaluate", params.clone()).await {
                // Between two documents there is no context, so nothing has run.
                Err(error @ PageError::Cdp(CdpError::Refused { .. })) if error.to_string().contains("Cannot find") => Err(error),
                // What has started is not repeated.
                result => Ok(result),
            })
        })
        .await?
    }

    /// Converts a result to JSON. Values without a JSON form, such as windows or elements, are described.
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

/// Whether nothing has run. A syntax error that running code throws, such as one from `JSON.parse`, has a position.
fn is_not_parsed(why: &str) -> bool {
    why.starts_with("SyntaxError") && !why.contains("\n    at ")
}

/// Strips leading comments.
fn code(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        let rest = match (text.strip_prefix("//"), text.strip_prefix("/*")) {
            (Some(line), _) => line.split_once('\n'),
            (_, Some(comment)) => comment.split_once("*/"),
            _ => return text,
        };
        text = rest.map_or("", |(_, rest)| rest);
    }
}

fn is_function(expression: &str) -> bool {
    let text = code(expression);
    text.starts_with("function") || text.starts_with("async") || (text.starts_with('(') && text.contains("=>")) || {
        let name = text.split("=>").next().unwrap_or_default().trim();
        text.contains("=>") && !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_how_they_begin() {
        for function in
            ["() => 1", "async () => 1", "x => x", "function f() {}", "// what it is\n/* and why */ () => 1", "(a, b) => a"]
        {
            assert!(is_function(function), "{function}");
        }
        for other in ["window.alert", "document.title", "// () => 1", "'x => y'", "/* function */ 5", ""] {
            assert!(!is_function(other), "{other}");
        }
    }
}
