//! All tools of the sandbox on one server: its own, and those of configured servers with their prefix.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::model::{CallToolResult, JsonObject, ListToolsResult, Tool};
use tokio::time::timeout;

use super::config;
use super::service::McpError;
use crate::SharedGuest;
use crate::tools::{Caller, Group, registry};

/// The hub's name in the routes for servers.
pub(super) const HUB: &str = "hub";
/// How long a configured server may take before a list leaves it out.
const LIST_PATIENCE: Duration = Duration::from_secs(20);

/// The server that a call names.
pub(super) enum Asked<'a> {
    Hub,
    /// A group of the sandbox's own tools.
    Own(Group),
    Configured(&'a str),
}

impl<'a> Asked<'a> {
    /// Finds a server by name. A configured server takes precedence over a group of our own with the same name.
    pub(super) async fn find(guest: &SharedGuest, name: &'a str) -> Result<Self, McpError> {
        if name == HUB {
            return Ok(Self::Hub);
        }
        match Group::find(name) {
            Some(group) if !config::servers(&guest.runtime).await?.contains_key(name) => Ok(Self::Own(group)),
            _ => Ok(Self::Configured(name)),
        }
    }
}

/// The names of all servers in alphabetical order: our own and the configured ones. Includes hidden ones on request.
pub(super) async fn servers(guest: &SharedGuest, include_hidden: bool) -> Result<Vec<String>, McpError> {
    let mut names = guest.mcp.servers(include_hidden).await?;
    names.extend(shown_groups(guest).map(|group| group.name().to_owned()));
    if include_hidden {
        names.extend(Group::HIDDEN.map(|group| group.name().to_owned()));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Our own groups that the sandbox's environment does not disable.
fn shown_groups(guest: &SharedGuest) -> impl Iterator<Item = Group> {
    let config = guest.runtime.config();
    let no_browser = config.env.get("DISABLE_MCP_BROWSER").is_some_and(|text| matches!(text.trim(), "1" | "true"));
    let is_wanted = move |group: &Group| config::is_wanted(&config, group.name()) && !(no_browser && *group == Group::Browser);
    Group::ALL.into_iter().filter(is_wanted)
}

/// The tools of a server.
pub(super) async fn tools(guest: &SharedGuest, server: &str) -> Result<ListToolsResult, McpError> {
    match Asked::find(guest, server).await? {
        Asked::Configured(server) => guest.mcp.tools(server).await,
        Asked::Own(group) => Ok(ListToolsResult::with_all_items(registry().tools_in(group).collect())),
        Asked::Hub => {
            let shown: Vec<_> = shown_groups(guest).collect();
            let is_shown = |tool: &&crate::tools::Tool| shown.iter().any(|group| group.has(tool.name));
            let mut tools: Vec<Tool> = registry().list().filter(is_shown).map(|tool| tool.description.clone()).collect();
            let mut theirs = Vec::new();
            for (name, server) in config::servers(&guest.runtime).await? {
                if let Ok(server) = server
                    && !server.hidden
                {
                    theirs.push((prefix(&name, server.prefix.as_deref()), name));
                }
            }
            let mut names = HashSet::new();
            let lists = theirs.iter().map(|(_, name)| timeout(LIST_PATIENCE, guest.mcp.tools(name)));
            for ((prefix, name), list) in theirs.iter().zip(join_all(lists).await) {
                match list {
                    Ok(Ok(list)) => {
                        for mut tool in list.tools {
                            tool.name = format!("{prefix}{}", tool.name).into();
                            // Of two tools with the same name, the first is called.
                            if registry().find(&tool.name, None).is_none() && names.insert(tool.name.clone()) {
                                tools.push(tool);
                            }
                        }
                    }
                    // A broken server does not affect the others.
                    Ok(Err(error)) => tracing::warn!(server = name, %error, "an MCP server's tools can't be listed"),
                    Err(_) => tracing::warn!(server = name, "an MCP server's tools were not listed in time"),
                }
            }
            Ok(ListToolsResult::with_all_items(tools))
        }
    }
}

/// Calls a tool. A failure reported by the tool itself is a result with `is_error`.
pub(super) async fn call(caller: Caller, server: &str, tool: &str, arguments: JsonObject) -> Result<CallToolResult, McpError> {
    let guest = Arc::clone(&caller.guest);
    let group = match Asked::find(&guest, server).await? {
        Asked::Configured(server) => return guest.mcp.call(server, tool, arguments, caller.progress.sender()).await,
        Asked::Own(group) => Some(group),
        Asked::Hub => None,
    };
    if let Some(tool) = registry().find(tool, group) {
        return Ok(tool.call(caller, arguments).await);
    }
    if group.is_none() {
        let configured = config::servers(&guest.runtime).await?.into_iter();
        let prefixed =
            configured.map(|(name, server)| (prefix(&name, server.ok().and_then(|server| server.prefix).as_deref()), name));
        let mut fit: Vec<_> = prefixed.filter(|(prefix, _)| tool.len() > prefix.len() && tool.starts_with(prefix)).collect();
        fit.sort_by_key(|(prefix, _)| Reverse(prefix.len()));
        for (prefix, name) in fit {
            // Every name starts with an empty prefix, so a server without a prefix is asked whether it has the tool.
            if prefix.is_empty() {
                let listed = guest.mcp.tools(&name).await;
                if !listed.is_ok_and(|list| list.tools.iter().any(|listed| listed.name == tool)) {
                    continue;
                }
            }
            return guest.mcp.call(&name, &tool[prefix.len()..], arguments, caller.progress.sender()).await;
        }
    }
    Err(McpError::NoTool(tool.chars().take(200).collect()))
}

/// The prefix of a configured server's tools.
fn prefix(name: &str, configured: Option<&str>) -> String {
    match configured.unwrap_or(name) {
        "" => String::new(),
        prefix if prefix.ends_with('_') => prefix.to_owned(),
        prefix => format!("{prefix}_"),
    }
}
