//! `/openapi.json`, and the page that shows it at `/docs` and `/redoc`: the paths of AgentFlow's server, which uses FastAPI.

use serde_json::{Map, Value, json};

use super::ROOT;

/// A field of a body: its name, its type, and whether it is required.
type Field = (&'static str, &'static str, bool);

struct Route {
    method: &'static str,
    path: &'static str,
    group: &'static str,
    summary: &'static str,
    body: &'static [Field],
}

const fn post(path: &'static str, group: &'static str, summary: &'static str, body: &'static [Field]) -> Route {
    Route { method: "post", path, group, summary, body }
}

const fn get(path: &'static str, group: &'static str, summary: &'static str) -> Route {
    Route { method: "get", path, group, summary, body: &[] }
}

const WORKER: Field = ("worker_id", "string", true);
const TYPE: Field = ("resource_type", "string", true);

/// Below [`ROOT`]; health routes are at the root.
const ROUTES: [Route; 19] = [
    get("/health", "Health", "Whether the server answers"),
    get("/ready", "Health", "Whether it is ready, and how many tools, workers and sessions it has"),
    post(
        "/execute",
        "Execute",
        "Runs a tool",
        &[
            WORKER,
            ("action", "string", true),
            ("params", "object", false),
            ("timeout", "integer", false),
            ("trace_id", "string", false),
            ("task_id", "string", false),
        ],
    ),
    post(
        "/execute/batch",
        "Execute",
        "Runs several tools",
        &[WORKER, ("actions", "array", true), ("parallel", "boolean", false), ("stop_on_error", "boolean", false)],
    ),
    post(
        "/session/create",
        "Sessions",
        "Creates a worker's session",
        &[
            WORKER,
            TYPE,
            ("session_config", "object", false),
            ("custom_name", "string", false),
            ("ttl", "number", false),
            ("auto_extend", "boolean", false),
        ],
    ),
    post("/session/destroy", "Sessions", "Ends a session", &[WORKER, TYPE]),
    post("/session/list", "Sessions", "Lists a worker's sessions", &[WORKER]),
    post(
        "/session/refresh",
        "Sessions",
        "Restarts the life time of one session, or of all",
        &[WORKER, ("resource_type", "string", false)],
    ),
    post("/lifecycle/heartbeat", "Sessions", "Lists the active sessions of a worker", &[WORKER]),
    post("/lifecycle/status", "Sessions", "Reports the state of a worker's sessions", &[WORKER]),
    post("/worker/disconnect", "Sessions", "Ends all sessions of a worker", &[WORKER]),
    post("/init/resource", "Sessions", "Creates a session, or finds it", &[WORKER, TYPE, ("init_config", "object", false)]),
    post("/init/batch", "Sessions", "Creates several sessions", &[WORKER, ("resource_configs", "object", false)]),
    post(
        "/init/from-config",
        "Sessions",
        "Reads a configuration file of the server",
        &[WORKER, ("config_path", "string", true), ("override_params", "object", false)],
    ),
    get("/tools", "Tools", "Lists the tools with their parameters"),
    get("/tools/{tool_name}/schema", "Tools", "Describes one tool"),
    post("/warmup", "Server", "Prepares backends", &[("backends", "array", false)]),
    get("/warmup/status", "Server", "Lists which backends are prepared"),
    post(
        "/server/shutdown",
        "Server",
        "Stops the server",
        &[("force", "boolean", false), ("cleanup_sessions", "boolean", false)],
    ),
];

/// The document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in &ROUTES {
        let path = if route.group == "Health" { route.path.to_owned() } else { format!("{ROOT}{}", route.path) };
        paths.entry(path).or_insert_with(|| json!({}))[route.method] = operation(route);
    }
    let mut groups: Vec<Value> = Vec::new();
    for route in &ROUTES {
        if !groups.iter().any(|group| group["name"] == route.group) {
            groups.push(json!({ "name": route.group }));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sandbox HTTP Service",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "AgentFlow's interface: workers, their sessions and tools. Sandboxes themselves are at /v1/docs.",
        },
        "tags": groups,
        "paths": paths,
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "tags": [route.group],
        "summary": route.summary,
        "operationId": format!("{}_{}", route.method, route.path.trim_matches('/').replace(['/', '-', '{', '}'], "_")),
        "responses": { "200": { "description": "The answer", "content": { "application/json": { "schema": { "type": "object" } } } } },
    });
    if route.path.contains("{tool_name}") {
        operation["parameters"] =
            json!([{ "name": "tool_name", "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    if route.path == "/tools" {
        let query = |name: &str, schema: Value| json!({ "name": name, "in": "query", "required": false, "schema": schema });
        let formats = json!({ "type": "string", "enum": ["openai", "openai_responses", "anthropic", "mcp", "agentflow"] });
        operation["parameters"] =
            json!([query("include_hidden", json!({ "type": "boolean", "default": false })), query("format", formats)]);
    }
    if route.method == "post" {
        let schema = |field: &Field| match field.1 {
            "array" if field.0 == "actions" => json!({ "type": "array", "items": { "type": "object" } }),
            "array" => json!({ "type": "array", "items": { "type": "string" } }),
            kind => json!({ "type": kind }),
        };
        let properties: Map<String, Value> = route.body.iter().map(|field| (field.0.to_owned(), schema(field))).collect();
        let required: Vec<&str> = route.body.iter().filter(|field| field.2).map(|field| field.0).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        operation["requestBody"] =
            json!({ "required": !required.is_empty(), "content": { "application/json": { "schema": schema } } });
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let described: Vec<String> =
            ROUTES.iter().map(|route| format!("{ROOT}{}", route.path.replace("{tool_name}", "{name}"))).collect();
        for path in crate::routes::patterns("agentflow").filter(|path| path.starts_with(ROOT) && !path.ends_with("/**")) {
            assert!(described.iter().any(|known| known == path), "{path}");
        }
        let document = document();
        assert_eq!(document["paths"].as_object().map(Map::len), Some(ROUTES.len()));
        let execute = &document["paths"]["/api/v1/execute"]["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(execute["required"], json!(["worker_id", "action"]));
    }
}
