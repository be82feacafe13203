//! `/api/v2/usage`: what a tenant's sandboxes and volumes used, as JSON or CSV.

use arenite_control::usage::{UsageGroup, UsageQuery, UsageRow};
use axum::body::Body;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;

use crate::api::types::UsageReport;
use crate::exchange::{Answered, Exchange};
use crate::refusal::{Refusal, json_response};
use crate::tenants::{tenant_of_report, time_in_query};

/// The most rows of an answer.
const MAX_ROWS: usize = 10_000;
const CSV: &str = "text/csv";

pub(crate) async fn report(exchange: &mut Exchange) -> Answered {
    let group: UsageGroup = match exchange.query("group") {
        None => UsageGroup::default(),
        Some(given) => serde_json::from_value(Value::String(given))
            .map_err(|_| Refusal::bad_request("group is tenant, sandbox, hour or template"))?,
    };
    let is_csv = match exchange.query("format").as_deref() {
        None => exchange.parts.headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(CSV.as_bytes())),
        Some("json") => false,
        Some("csv") => true,
        Some(_) => return Err(Refusal::bad_request("format is json or csv")),
    };
    let query = UsageQuery {
        tenant: tenant_of_report(exchange)?,
        since: time_in_query(exchange, "since")?,
        until: time_in_query(exchange, "until")?,
        group,
        limit: MAX_ROWS + 1,
    };
    let mut rows = exchange.gateway.control.usage_rows(query).await?;
    let truncated = rows.len() > MAX_ROWS;
    rows.truncate(MAX_ROWS);
    if is_csv {
        if truncated {
            return Err(Refusal::bad_request(format!("there are more than {MAX_ROWS} rows"))
                .hint("name a shorter range with since and until, or another group"));
        }
        let mut answer = Response::new(Body::from(csv(&rows)));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
        return Ok(answer);
    }
    Ok(json_response(StatusCode::OK, &UsageReport { group, rows, truncated }))
}

/// Rows in the format of RFC 4180.
fn csv(rows: &[UsageRow]) -> String {
    let mut text = "tenant,hour,sandbox,name,template,core_seconds,memory_gib_seconds,disk_gib_hours,egress_bytes,ingress_bytes,tool_calls,volume,model_calls,model_input_tokens,model_output_tokens,model_cost_usd\r\n".to_owned();
    for row in rows {
        let or_empty = |value: Option<String>| value.unwrap_or_default();
        let used = &row.used;
        let fields = [
            row.tenant.to_string(),
            or_empty(row.hour.map(|hour| hour.to_string())),
            or_empty(row.sandbox.as_ref().map(ToString::to_string)),
            or_empty(row.name.clone()),
            or_empty(row.template.as_deref().map(quoted)),
            used.core_seconds.to_string(),
            used.memory_gib_seconds.to_string(),
            used.disk_gib_hours.to_string(),
            used.egress_bytes.to_string(),
            used.ingress_bytes.to_string(),
            used.tool_calls.to_string(),
            or_empty(row.volume.as_ref().map(ToString::to_string)),
            used.model_calls.to_string(),
            used.model_input_tokens.to_string(),
            used.model_output_tokens.to_string(),
            used.model_cost_usd.to_string(),
        ];
        text += &fields.join(",");
        text += "\r\n";
    }
    text
}

/// Templates have any name.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arenite_engine::Usage;
    use serde_json::json;

    use super::*;
    use crate::harness::Harness;

    #[tokio::test]
    async fn usage_is_reported_as_json_and_as_csv() {
        let server = Harness::with(|control, _| control.meter_every = Duration::from_millis(20)).await;
        let made = server.call("POST", "/api/v2/sandboxes", json!({ "name": "a" })).await.json;
        let id = made["id"].as_str().unwrap().parse().unwrap();
        server.engine.set_usage(&id, Usage { cpu_nanoseconds: 1_500_000_000, ..Usage::default() });
        let report = async |query: &str| server.call("GET", &format!("/api/v2/usage{query}"), Value::Null).await;
        let mut found = report("").await.json;
        for _ in 0..200 {
            if found["rows"][0]["core_seconds"] == json!(1.5) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            found = report("").await.json;
        }
        let row = json!({ "tenant": "default", "core_seconds": 1.5, "egress_bytes": 0, "ingress_bytes": 0, "tool_calls": 0 });
        for (key, value) in row.as_object().unwrap() {
            assert_eq!(found["rows"][0][key], *value, "{found}");
        }
        assert_eq!((&found["group"], &found["truncated"]), (&json!("tenant"), &json!(false)));
        let sandboxes = report("?group=sandbox&tenant=default").await.json;
        assert_eq!((&sandboxes["rows"][0]["name"], &sandboxes["rows"][0]["template"]), (&json!("a"), &json!("default")));
        let csv = report("?group=template&format=csv").await;
        assert_eq!(csv.headers[CONTENT_TYPE], "text/csv; charset=utf-8");
        let lines: Vec<&str> = csv.text.split("\r\n").collect();
        assert!(lines.len() == 3 && lines[1].starts_with("default,,,,\"default\",1.5,"), "{}", csv.text);
        let none = report("?since=2099-01-01T00:00:00Z").await.json;
        assert_eq!(none["rows"], json!([]));
        for bad in ["?group=x", "?since=yesterday", "?until=1", "?format=xml", "?tenant=No"] {
            assert_eq!(report(bad).await.status, 400, "{bad}");
        }
    }

    #[test]
    fn a_field_of_csv_is_quoted() {
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
