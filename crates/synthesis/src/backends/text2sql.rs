//! `text2sql:*`: read-only queries on SQLite databases, with a timeout, off the async threads.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value, json};

use super::api::{self, Fault};
use super::folders::SearchDirs;
use super::{Answered, needs, spec};
use crate::answer::{code as codes, truncated};
use crate::backend::{Backend, ToolCall, ToolSpec};

const NAME: &str = "text2sql";
/// Default number of rows of an answer.
const ROWS: u64 = 100;
/// Default timeout of a query, in seconds.
const TIMEOUT: f64 = 30.0;
/// Longest value in an answer, in characters.
const CELL: usize = 20_000;
/// Instructions of SQLite's virtual machine between two checks of the clock.
const STEPS: i32 = 10_000;

/// Databases by their ids.
pub struct Text2Sql {
    /// In the order of the configuration.
    databases: Vec<Database>,
    /// Directories in which relative paths are searched.
    search_dirs: SearchDirs,
    rows: u64,
    timeout: f64,
}

struct Database {
    id: String,
    /// The path in the configuration. Empty: a variable in it is not set.
    path: String,
}

impl Text2Sql {
    /// `config`: `databases` (or `db_paths`) as a mapping of ids to paths, `max_rows`, `timeout` in seconds. `order`: the ids in
    /// the order of the file.
    pub fn new(config: &Map<String, Value>, order: &[String], search_dirs: SearchDirs) -> Self {
        let configured = ["databases", "db_paths"].iter().find_map(|name| config.get(*name).and_then(Value::as_object));
        let database = |(id, path): (&String, &Value)| {
            let path = path.as_str().or_else(|| path["path"].as_str()).unwrap_or_default();
            Database { id: id.clone(), path: path.to_owned() }
        };
        let mut databases: Vec<Database> = configured.into_iter().flatten().map(database).collect();
        databases.sort_by_key(|database| order.iter().position(|id| *id == database.id));
        for database in databases.iter().filter(|database| database.path.is_empty()) {
            tracing::warn!(database = database.id, "a database of text2sql has no path");
        }
        Self {
            databases,
            search_dirs,
            rows: config.get("max_rows").and_then(Value::as_u64).unwrap_or(ROWS),
            timeout: config.get("timeout").and_then(Value::as_f64).unwrap_or(TIMEOUT),
        }
    }

    fn configured(&self) -> Result<(), Fault> {
        if self.databases.is_empty() { Err(Fault::new("databases config missing for text2sql tools")) } else { Ok(()) }
    }

    fn database(&self, params: &Map<String, Value>) -> Result<PathBuf, Fault> {
        self.configured()?;
        let id = params.get("db_id").and_then(Value::as_str).ok_or_else(|| Fault::new("db_id has to be a string"))?;
        let known = self.databases.iter().find(|database| database.id == id && !database.path.is_empty());
        // AgentFlow's messages for a missing id and for one without a path.
        let known = known.ok_or_else(|| Fault::new(format!("Database not found: {id}")))?;
        let path = self.search_dirs.existing(Path::new(&known.path)).filter(|path| path.is_file());
        path.ok_or_else(|| Fault::new(format!("Database file not found: {}", known.path)))
    }

    async fn result(&self, call: &ToolCall<'_>) -> Result<Value, Fault> {
        let params = &call.params;
        match call.tool {
            "text2sql:list_databases" => {
                self.configured()?;
                let ids: Vec<&str> = self.databases.iter().map(|database| database.id.as_str()).collect();
                Ok(json!({ "result": { "databases": ids } }))
            }
            "text2sql:get_schema" => {
                needs("Text2SqlGetSchemaTool.execute", params, &["db_id"]).map_err(Fault::internal)?;
                let (path, id) = (self.database(params)?, params["db_id"].clone());
                let tables = match params.get("table_names") {
                    None | Some(Value::Null) => None,
                    Some(_) => Some(api::texts(params, "table_names")?).filter(|tables| !tables.is_empty()),
                };
                let schema = beside(self.timeout, move |until| schema(&path, tables.as_deref(), until)).await?;
                Ok(json!({ "result": { "db_id": id, "schema": schema } }))
            }
            _ => {
                needs("Text2SqlExecuteTool.execute", params, &["db_id", "query"]).map_err(Fault::internal)?;
                let path = self.database(params)?;
                let query = params["query"].as_str().ok_or_else(|| Fault::new("query has to be a string"))?.to_owned();
                let rows = self.rows as usize;
                Ok(json!({ "result": beside(self.timeout, move |until| run(&path, &query, rows, until)).await? }))
            }
        }
    }
}

/// Runs off the async threads. Interrupts SQLite when the timeout is over or the call is dropped.
async fn beside(timeout: f64, work: impl FnOnce(Until) -> Result<Value, Fault> + Send + 'static) -> Result<Value, Fault> {
    let stop = tokio_util::sync::CancellationToken::new();
    let _dropped = stop.clone().drop_guard();
    let until = Until { at: Instant::now() + Duration::from_secs_f64(timeout.clamp(0.001, 86_400.0)), stop, timeout };
    tokio::task::spawn_blocking(move || work(until)).await?
}

/// The deadline of a query.
struct Until {
    at: Instant,
    stop: tokio_util::sync::CancellationToken,
    timeout: f64,
}

fn open(path: &Path, until: &Until) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|error| said(&error, until))?;
    let (at, stop) = (until.at, until.stop.clone());
    let set = connection.progress_handler(STEPS, Some(move || Instant::now() >= at || stop.is_cancelled()));
    set.map_err(|error| Fault::internal(error.to_string()))?;
    Ok(connection)
}

fn said(error: &rusqlite::Error, until: &Until) -> Fault {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::OperationInterrupted) => {
            Fault::new(format!("the query took longer than {} s and was stopped", until.timeout))
        }
        _ => Fault::internal(match error {
            // Without the query text after it, which the client knows.
            rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
            rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
            rusqlite::Error::MultipleStatement => "You can only execute one statement at a time.".to_owned(),
            other => other.to_string(),
        }),
    }
}

fn schema(path: &Path, tables: Option<&[String]>, until: Until) -> Result<Value, Fault> {
    let connection = open(path, &until)?;
    let read = || -> Result<Map<String, Value>, rusqlite::Error> {
        let mut select = connection
            .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid")?;
        let names: Vec<String> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let mut schema = Map::new();
        for table in names.into_iter().filter(|name| tables.is_none_or(|wanted| wanted.contains(name))) {
            let mut select = connection.prepare("SELECT name, type, pk FROM pragma_table_info(?1)")?;
            let column = |row: &rusqlite::Row<'_>| {
                Ok(json!({ "name": row.get::<_, String>(0)?, "type": row.get::<_, String>(1)?, "pk": row.get::<_, i64>(2)? > 0 }))
            };
            let columns: Vec<Value> = select.query_map([&table], column)?.collect::<Result<_, _>>()?;
            let mut select = connection.prepare("SELECT \"from\", \"table\", \"to\" FROM pragma_foreign_key_list(?1)")?;
            let key = |row: &rusqlite::Row<'_>| {
                let to: Option<String> = row.get(2)?;
                Ok(json!({ "from_col": row.get::<_, String>(0)?, "to_table": row.get::<_, String>(1)?, "to_col": to }))
            };
            let keys: Vec<Value> = select.query_map([&table], key)?.collect::<Result<_, _>>()?;
            schema.insert(table, json!({ "columns": columns, "foreign_keys": keys }));
        }
        Ok(schema)
    };
    read().map(Value::Object).map_err(|error| said(&error, &until))
}

fn run(path: &Path, query: &str, most: usize, until: Until) -> Result<Value, Fault> {
    let begin = query.trim().to_ascii_uppercase();
    if !["SELECT", "WITH", "PRAGMA"].iter().any(|word| begin.starts_with(word)) {
        return Err(Fault::with(codes::INVALID_INPUT, "Only SELECT/PRAGMA queries are allowed"));
    }
    let connection = open(path, &until)?;
    // For a pragma with side effects, and for a WITH before one.
    let read = || -> Result<Value, rusqlite::Error> {
        let mut statement = connection.prepare(query)?;
        if !statement.readonly() {
            return Ok(Value::Null);
        }
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let (mut rows, mut truncated) = (Vec::new(), false);
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            if rows.len() == most {
                truncated = true;
                break;
            }
            let cells = (0..columns.len()).map(|at| row.get_ref(at).map(cell)).collect::<Result<Vec<Value>, _>>()?;
            rows.push(cells);
        }
        let row_count = rows.len();
        Ok(json!({ "columns": columns, "rows": rows, "row_count": row_count, "truncated": truncated }))
    };
    match read() {
        Ok(Value::Null) => Err(Fault::internal("attempt to write a readonly database".to_owned())),
        Ok(result) => Ok(result),
        Err(error) => Err(said(&error, &until)),
    }
}

/// A value as JSON. Numbers that JSON can't represent become text, and bytes become Base64.
fn cell(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number),
        ValueRef::Text(text) => truncated(&String::from_utf8_lossy(text), CELL).into(),
        ValueRef::Blob(bytes) => truncated(&STANDARD.encode(&bytes[..bytes.len().min(CELL)]), CELL).into(),
    }
}

#[async_trait]
impl Backend for Text2Sql {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let id = json!({"type": "string", "description": "The database, as list_databases names it."});
        let tables = json!({"type": "array", "items": {"type": "string"}, "description": "Of these tables alone."});
        let query = json!({"type": "string", "description": "One SELECT, WITH or PRAGMA."});
        vec![
            spec("text2sql:list_databases", NAME, "List available text2sql databases", json!({}), &[]),
            spec(
                "text2sql:get_schema",
                NAME,
                "Get schema for a text2sql database",
                json!({"db_id": id, "table_names": tables}),
                &["db_id"],
            ),
            spec(
                "text2sql:execute",
                NAME,
                "Execute a SQL query for text2sql",
                json!({"db_id": id, "query": query}),
                &["db_id", "query"],
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

#[cfg(test)]
mod tests {
    use super::*;

    fn until() -> Until {
        Until { at: Instant::now() + Duration::from_millis(300), stop: Default::default(), timeout: 0.3 }
    }

    #[test]
    fn databases_are_only_read_and_not_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let made = Connection::open(&path).unwrap();
        made.execute_batch("CREATE TABLE a (x INT, y TEXT); INSERT INTO a VALUES (1, 'b'), (2, x'00ff')").unwrap();
        let result = run(&path, "select x, y, 1e999 from a", 1, until()).unwrap_or_else(|fault| panic!("{}", message(fault)));
        assert_eq!(result, json!({"columns": ["x", "y", "1e999"], "rows": [[1, "b", "inf"]], "row_count": 1, "truncated": true}));
        for (query, wanted) in [
            ("drop table a", "Only SELECT"),
            ("pragma user_version = 3", "readonly"),
            ("with b as (select 1) delete from a", "readonly"),
            ("select * from b", "no such table"),
            ("with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t", "was stopped"),
            ("select 1; drop table a", "one statement"),
            ("SELECTED", "near \"SELECTED\": syntax error"),
        ] {
            let Err(fault) = run(&path, query, 10, until()) else { panic!("{query} was run") };
            let said = message(fault);
            assert!(said.contains(wanted), "{query}: {said}");
        }
        let schema = schema(&path, None, until()).unwrap_or_else(|fault| panic!("{}", message(fault)));
        assert_eq!(schema["a"]["columns"][0], json!({"name": "x", "type": "INT", "pk": false}));
        let count: i64 = made.query_row("select count(*) from a", [], |row| row.get(0)).unwrap();
        assert_eq!(count, 2);
    }

    fn message(fault: Fault) -> String {
        api::answer(&Map::new(), "w", Err(fault)).unwrap_err().message
    }
}
