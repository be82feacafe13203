//! Values in the forms that pydantic accepts, for every number and boolean in a body or a query of the OpenAPI document.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::time::Duration;

use arenite_guest::api;
use serde_json::{Map, Value, json};
use standalone::Guest;

/// Resolves a schema's references; for one that also allows null, the rest.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return resolve(document, document.pointer(reference.trim_start_matches('#')).unwrap());
    }
    let either = schema["oneOf"].as_array().into_iter().flatten().find(|one| one["type"] != "null");
    either.map_or(schema, |one| resolve(document, one))
}

fn kind(schema: &Value) -> &str {
    let types = schema["type"].as_array().map(|all| all.iter().find(|one| **one != "null").unwrap());
    types.unwrap_or(&schema["type"]).as_str().unwrap_or_default()
}

/// A string that stands for a value of the schema; `None` if it is not a number or a boolean.
fn as_text(schema: &Value) -> Option<String> {
    match kind(schema) {
        "boolean" => Some("false".to_owned()),
        "integer" | "number" => {
            let least = schema["minimum"].as_f64().or(schema["exclusiveMinimum"].as_f64().map(|n| n + 1.0)).unwrap_or(1.0);
            Some(format!("{}", least.max(1.0) as i64))
        }
        _ => None,
    }
}

/// A harmless value of the schema.
fn sample(document: &Value, schema: &Value) -> Value {
    let schema = resolve(document, schema);
    match kind(schema) {
        "string" => schema["enum"][0].as_str().map_or_else(|| "absent".into(), Value::from),
        "array" => json!([sample(document, &schema["items"])]),
        "integer" | "number" => json!(1),
        "boolean" => json!(false),
        _ => json!({}),
    }
}

#[tokio::test]
async fn every_scalar_may_be_a_text() {
    let guest = Guest::start().await;
    let document = serde_json::to_value(api::description()).unwrap();
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (verb, operation) in item.as_object().unwrap() {
            let target = path.replace(['{', '}'], "");
            for parameter in operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "query") {
                let Some(text) = as_text(resolve(&document, &parameter["schema"])) else { continue };
                let name = parameter["name"].as_str().unwrap();
                refused_for(&guest, verb, &format!("{target}?{name}={text}"), String::new(), name).await;
                tried += 1;
            }
            let schema = resolve(&document, &operation["requestBody"]["content"]["application/json"]["schema"]);
            let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let property = resolve(&document, property);
                // A property of several types takes a string literally.
                let Some(text) = as_text(property).filter(|_| property.get("oneOf").is_none()) else { continue };
                let mut body: Map<String, Value> =
                    required.iter().map(|name| ((*name).to_owned(), sample(&document, &schema["properties"][*name]))).collect();
                body.insert(name.clone(), text.into());
                refused_for(&guest, verb, &target, Value::Object(body).to_string(), name).await;
                tried += 1;
            }
        }
    }
    assert!(tried > 60, "{tried}");
    // The actions on the screen, which are distinguished by a field.
    for action in [
        json!({"action_type": "MOVE_TO", "x": "1", "y": "2.5"}),
        json!({"action_type": "CLICK", "x": "1", "y": "2", "num_clicks": "2"}),
        json!({"action_type": "SCROLL", "dx": "0", "dy": "-3"}),
        json!({"action_type": "TYPING", "text": "x", "use_clipboard": "false"}),
    ] {
        refused_for(&guest, "post", "/v1/browser/actions", action.to_string(), "action").await;
    }
}

/// A call that may fail, but not because of the type of this field's value.
async fn refused_for(guest: &Guest, verb: &str, target: &str, body: String, field: &str) {
    let request = axum::http::Request::builder()
        .method(verb.to_uppercase().as_str())
        .uri(target)
        .header("host", "guest")
        .header("content-type", "application/json")
        .body(axum::body::Body::from(body.clone()))
        .unwrap();
    // A call that is not refused immediately is being run.
    let Ok(answer) = tokio::time::timeout(Duration::from_millis(500), guest.send(request)).await else { return };
    if answer.status() != 422 {
        return;
    }
    let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    let told: Value = serde_json::from_slice(&bytes).unwrap();
    let kind = told["detail"][0]["type"].as_str().unwrap();
    let at = told["detail"][0]["loc"].to_string();
    assert!(kind != "type_error" || !at.contains(field) && field != "action", "{verb} {target} {body}: {told}");
}
