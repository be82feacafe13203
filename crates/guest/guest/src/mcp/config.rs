//! The configured MCP servers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use arenite_model::protocol::GuestConfig;
use axum::http::Uri;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;

use super::service::McpError;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::seconds;
use arenite_guest_runtime::workers::Kind;

/// The image's configuration file. `MCP_SERVERS_FILE` in the sandbox's environment names another.
pub const FILE: &str = "/opt/gem/mcp-servers.json";
/// The most bytes of that file.
const MAX_BYTES: u64 = 1 << 20;
/// The most servers.
pub(super) const MAX_SERVERS: usize = 64;
/// Timeout of a server's start and handshake, in seconds: less than the 60 s after which AIO's clients give up.
const CONNECT_TIMEOUT: f64 = 50.0;
const CALL_TIMEOUT: f64 = 300.0;
const LONGEST_CALL: Duration = Duration::from_secs(3600);

/// One server, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    pub transport: Transport,
    /// The prefix that a hub puts before the names of its tools.
    pub prefix: Option<String>,
    /// Left out of lists, but callable.
    pub hidden: bool,
    /// Timeout of its start and the handshake.
    pub connect_timeout: Duration,
    /// Timeout of one call, or of listing its tools.
    pub call_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A program that communicates over its standard input and output.
    Stdio { command: String, args: Vec<String>, env: Vec<(String, String)>, cwd: Option<String> },
    /// Streamable HTTP.
    Http { url: String, headers: Vec<(String, String)> },
}

/// An entry of the file. Accepts other clients' spellings and ignores unknown fields.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Entry {
    url: Option<String>,
    headers: BTreeMap<String, String>,
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    prefix: Option<String>,
    hidden: bool,
    disabled: bool,
    #[serde(alias = "connectTimeout")]
    connect_timeout: f64,
    #[serde(alias = "call_timeout")]
    timeout: f64,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            url: None,
            headers: BTreeMap::new(),
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            prefix: None,
            hidden: false,
            disabled: false,
            connect_timeout: CONNECT_TIMEOUT,
            timeout: CALL_TIMEOUT,
        }
    }
}

/// All servers by name. A wrong entry is reported when its server is used.
pub(super) type Servers = BTreeMap<String, Result<ServerConfig, String>>;

/// Reads the configuration: the file, then `EXTRA_MCP_SERVERS` over it, filtered by `MCP_FILTER_SERVERS`.
pub(super) async fn servers(runtime: &Runtime) -> Result<Servers, McpError> {
    let config = runtime.config();
    let variable = |name: &str| config.env.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
    let named = variable("MCP_SERVERS_FILE");
    let path = named.unwrap_or(FILE).to_owned();
    let read = {
        let path = path.clone();
        runtime.workers.run(Kind::Brief, &runtime.user, move |_| read(&path)).await
    };
    let wrong = |place: &str, why: String| McpError::Configuration { place: place.to_owned(), why };
    let mut servers = Servers::new();
    match read {
        Ok(text) => add(&mut servers, &text).map_err(|why| wrong(&path, why))?,
        Err(Failure::Os { errno: Errno::NOENT | Errno::NOTDIR, .. }) if named.is_none() => {}
        Err(failure) => return Err(wrong(&path, failure.to_string())),
    }
    if let Some(extra) = variable("EXTRA_MCP_SERVERS") {
        add(&mut servers, extra.as_bytes()).map_err(|why| wrong("EXTRA_MCP_SERVERS", why))?;
    }
    servers.retain(|name, _| is_wanted(&config, name));
    if servers.len() > MAX_SERVERS {
        return Err(wrong(&path, format!("{} servers are configured; the most is {MAX_SERVERS}", servers.len())));
    }
    Ok(servers)
}

/// Whether `MCP_FILTER_SERVERS` includes a server. If it names none, all are included.
pub(super) fn is_wanted(config: &GuestConfig, name: &str) -> bool {
    let filter = config.env.get("MCP_FILTER_SERVERS").map(|text| text.trim()).filter(|text| !text.is_empty());
    filter.is_none_or(|filter| filter.split(',').any(|wanted| wanted.trim() == name))
}

fn read(path: &str) -> Result<Vec<u8>, Failure> {
    let fail = |e: Errno| Failure::os(e, path);
    // So that a pipe can't block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(path, flags, Mode::empty()).map_err(fail)?;
    if FileType::from_raw_mode(fstat(&file).map_err(fail)?.st_mode) != FileType::RegularFile {
        return Err(Failure::invalid("it is not a regular file"));
    }
    let mut text = Vec::new();
    let read = File::from(file).take(MAX_BYTES + 1).read_to_end(&mut text);
    read.map_err(|e| fail(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Failure::invalid(format!("it is larger than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// Adds the servers of a JSON text: a map by name, or one under `mcpServers`.
fn add(servers: &mut Servers, text: &[u8]) -> Result<(), String> {
    let mut map: serde_json::Map<String, Value> =
        serde_json::from_slice(text).map_err(|e| format!("it is not a JSON object: {e}"))?;
    if let Some(inner) = map.remove("mcpServers") {
        map = serde_json::from_value(inner).map_err(|_| "`mcpServers` is not an object".to_owned())?;
    }
    for (name, entry) in map {
        match server(entry) {
            Ok(None) => drop(servers.remove(&name)),
            Ok(Some(server)) => drop(servers.insert(name, Ok(server))),
            Err(why) => drop(servers.insert(name, Err(why))),
        }
    }
    Ok(())
}

/// Parses an entry. `None` for a disabled server.
fn server(entry: Value) -> Result<Option<ServerConfig>, String> {
    let entry: Entry = serde_json::from_value(entry).map_err(|e| e.to_string())?;
    if entry.disabled {
        return Ok(None);
    }
    let transport = match (entry.command, entry.url) {
        (Some(command), None) if !command.is_empty() => {
            Transport::Stdio { command, args: entry.args, env: entry.env.into_iter().collect(), cwd: entry.cwd }
        }
        (None, Some(url)) => {
            let parsed: Uri = url.parse().map_err(|e| format!("{url:?} is no URL: {e}"))?;
            if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none_or(str::is_empty) {
                return Err(format!("{url:?} is no http:// or https:// URL"));
            }
            Transport::Http { url, headers: entry.headers.into_iter().collect() }
        }
        _ => return Err("it needs either `command` or `url`".to_owned()),
    };
    Ok(Some(ServerConfig {
        transport,
        prefix: entry.prefix,
        hidden: entry.hidden,
        connect_timeout: seconds(entry.connect_timeout).min(LONGEST_CALL),
        call_timeout: seconds(entry.timeout).min(LONGEST_CALL),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Servers {
        let mut servers = Servers::new();
        add(&mut servers, text.as_bytes()).unwrap();
        servers
    }

    #[test]
    fn both_layouts_are_read_and_wrong_entries_keep_their_reason() {
        let inner = r#"{"a": {"command": "x", "args": ["1"], "env": {"K": "v"}, "timeout": 3, "type": "stdio"},
            "b": {"url": "http://127.0.0.1:8100/mcp", "prefix": "p", "hidden": true, "connectTimeout": 2.5},
            "c": {}, "d": {"url": "ftp://x"}, "e": {"command": "x", "url": "http://x"}, "f": {"args": 3},
            "off": {"command": "x", "disabled": true}}"#;
        let flat = parsed(inner);
        assert_eq!(flat, parsed(&format!(r#"{{"mcpServers": {inner}}}"#)));
        assert_eq!(flat.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c", "d", "e", "f"]);
        let a = flat["a"].as_ref().unwrap();
        assert_eq!((a.hidden, a.call_timeout), (false, Duration::from_secs(3)));
        let b = flat["b"].as_ref().unwrap();
        assert_eq!((b.hidden, b.prefix.as_deref()), (true, Some("p")));
        assert_eq!(b.connect_timeout, Duration::from_millis(2500));
        for name in ["c", "d", "e", "f"] {
            assert!(flat[name].is_err(), "{name}");
        }
    }

    #[test]
    fn what_comes_later_wins_and_may_switch_off() {
        let mut servers = parsed(r#"{"a": {"command": "x"}, "b": {"command": "x"}}"#);
        add(&mut servers, br#"{"a": {"command": "y"}, "b": {"disabled": true}}"#).unwrap();
        assert_eq!(servers.len(), 1);
        assert!(matches!(&servers["a"].as_ref().unwrap().transport, Transport::Stdio { command, .. } if command == "y"));
        assert!(add(&mut servers, b"[]").is_err());
        assert!(add(&mut servers, b"{").is_err());
    }
}
