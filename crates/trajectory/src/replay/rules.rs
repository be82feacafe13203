//! The table of how answers of each tool are compared.

use crate::export::tool;

/// How a tool's answers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treat {
    /// Field by field. Pictures only by their kind and size, here as everywhere.
    Compare,
    /// Only success: the status and, of an envelope, its code.
    Status,
    /// Not run again, for this reason.
    Skip(&'static str),
}

/// The allowed difference of two numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Near {
    /// At most this much.
    Within(f64),
    /// At most this share of the recorded number.
    Share(f64),
}

impl Near {
    pub(super) fn holds(self, recorded: f64, now: f64) -> bool {
        let apart = (recorded - now).abs();
        match self {
            Self::Within(most) => apart <= most,
            Self::Share(most) => apart <= most * recorded.abs(),
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Rule {
    /// A tool's name as in exports, such as `bash:run` or `bash_exec`; one `*` matches anything.
    pub tool: &'static str,
    pub treat: Treat,
    /// Fields that are ignored besides [`VOLATILE`], at any depth.
    pub masked: &'static [&'static str],
    /// Numbers that may differ slightly, by their field.
    pub near: &'static [(&'static str, Near)],
}

/// Fields with values that differ from run to run and are irrelevant to what was done. Only their existence, and that they are
/// not null, is compared.
pub const VOLATILE: &[&str] = &[
    // times and durations
    "at",
    "created_at",
    "updated_at",
    "started_at",
    "ended_at",
    "last_used_at",
    "last_activity",
    "expires_at",
    "timestamp",
    "time",
    "mtime",
    "atime",
    "ctime",
    "modified_time",
    "modified",
    "execution_time_ms",
    "duration_ms",
    "duration",
    "elapsed",
    "elapsed_ms",
    "took_ms",
    "age_seconds",
    "uptime",
    "uptime_seconds",
    // ids that the server generates
    "trace_id",
    "request_id",
    "session_id",
    "session_name",
    "session",
    "command_id",
    "watcher_id",
    "report_id",
    "msg_id",
    "message_id",
    "worker_id",
    "ps1",
    // what the kernel and the host assign
    "pid",
    "ppid",
    "pids",
    "port",
    "ports",
    "hostname",
    "host",
    "ip",
    "sandbox",
    "sandbox_id",
    "sandbox_name",
    "memory_used_mb",
    "memory_bytes",
    "rss_bytes",
    "cpu_nanoseconds",
    "cpu_percent",
    "disk_bytes",
    "traceback",
];

const fn compared(tool: &'static str, masked: &'static [&'static str]) -> Rule {
    Rule { tool, treat: Treat::Compare, masked, near: &[] }
}

const fn status(tool: &'static str) -> Rule {
    Rule { tool, treat: Treat::Status, masked: &[], near: &[] }
}

const fn skip(tool: &'static str, why: &'static str) -> Rule {
    Rule { tool, treat: Treat::Skip(why), masked: &[], near: &[] }
}

const LIFE: &str = "it is about the sandbox itself; a replay makes one of its own";
const STREAM: &str = "it is a stream";
const INTERNET: &str = "it goes to the internet";
const ANYBODY: &str = "its answer depends on who else uses the server";

/// The first matching row applies; the last matches everything.
pub const RULES: &[Rule] = &[
    // AgentFlow's tools
    skip("web:*", INTERNET),
    skip("lifecycle:*", ANYBODY),
    skip("session:list", ANYBODY),
    skip("session:status", ANYBODY),
    skip("session:heartbeat", ANYBODY),
    skip("session:disconnect", LIFE),
    skip("batch:*", "its items are steps of their own"),
    status("session:*"),
    status("init:*"),
    compared("vm:*", &["accessibility_tree"]),
    compared("rag:stats", &["batcher"]),
    compared("code:execute", &[]),
    // lifecycle of the sandbox
    skip("api_v*", LIFE),
    skip("delete_api_v*", LIFE),
    skip("get_api_v*", LIFE),
    skip("createSandbox", LIFE),
    skip("deleteSandbox", LIFE),
    // WebSockets and streams
    skip("get_shell_ws", "it is a WebSocket"),
    skip("get_websockify*", "it is a WebSocket"),
    skip("get_cdp*", "it is a WebSocket"),
    skip("get_code-server*", "it is a WebSocket"),
    skip("get_jupyter_api*", "it is a WebSocket"),
    skip("*_events", STREAM),
    skip("get_sandbox_observe_live", STREAM),
    // answers that depend on the time
    status("file_watch_*"),
    status("*_record"),
    status("*_sessions_stats"),
    status("get_*_sessions"),
    status("get_proxy_*"),
    status("get_sandbox_observe_*"),
    status("get_browser_network_requests"),
    status("browser_network_export_har"),
    status("get_shell_terminal-url"),
    compared("get_browser_info", &["cdp_url", "vnc_url", "ws_url", "url"]),
    compared("get_display_windows", &["id"]),
    compared("get_browser_tabs", &["id", "target_id"]),
    compared("get_sandbox", &["detail"]),
    // a directory's own size depends on its file system; an extension is part of the name beside it, which may be generated
    Rule { tool: "file_list", treat: Treat::Compare, masked: &["extension"], near: &[("size", Near::Within(8192.0))] },
    Rule { tool: "file_find", treat: Treat::Compare, masked: &["extension"], near: &[("size", Near::Within(8192.0))] },
    compared("file_glob", &["extension"]),
    // what they read depends on when they read
    status("bash_output"),
    status("shell_view"),
    // offsets follow from output, and masked words in it may be longer or shorter
    compared("bash_*", &["offset", "stderr_offset"]),
    compared("shell_*", &["console"]),
    compared("browser_page_screenshot", &[]),
    Rule { tool: "get_browser_page_html", treat: Treat::Compare, masked: &[], near: &[("length", Near::Share(0.05))] },
    compared("*", &[]),
];

/// The rule of an action.
pub fn rule(action: &str) -> &'static Rule {
    let name = tool(action);
    // The table's last row matches everything.
    RULES.iter().find(|rule| fits(rule.tool, &name)).unwrap_or(&RULES[RULES.len() - 1])
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail),
    }
}

impl Rule {
    pub(super) fn masks(&self, field: &str) -> bool {
        VOLATILE.contains(&field) || self.masked.contains(&field)
    }

    pub(super) fn near(&self, field: &str) -> Option<Near> {
        self.near.iter().find(|(name, _)| *name == field).map(|(_, near)| *near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_has_the_rule_that_is_meant() {
        for (action, wanted) in [
            ("bash:run", "*"),
            ("web:search", "web:*"),
            ("session:create", "session:*"),
            ("session:list", "session:list"),
            ("vm:click", "vm:*"),
            ("POST /v1/bash/exec", "bash_*"),
            ("GET /v1/bash/sessions", "get_*_sessions"),
            ("POST /api/v2/sandboxes", "api_v*"),
            ("DELETE /api/v1/sandbox/demo", "delete_api_v*"),
            ("GET /v1/file/watch/w1/events?x=1", "*_events"),
            ("POST /v1/file/watch", "*"),
            ("POST /v1/file/watch/w1/poll", "file_watch_*"),
            ("POST /v1/mcp/hub/tools/sandbox_execute_bash", "*"),
            ("POST /v1/display/record", "*_record"),
        ] {
            assert_eq!(rule(action).tool, wanted, "{action}");
        }
        assert_eq!(RULES.last().map(|rule| rule.tool), Some("*"));
    }

    #[test]
    fn numbers_are_near_by_an_amount_or_a_share() {
        assert!(Near::Within(2.0).holds(10.0, 12.0) && !Near::Within(2.0).holds(10.0, 12.1));
        assert!(Near::Share(0.1).holds(100.0, 91.0) && !Near::Share(0.1).holds(100.0, 89.0));
    }
}
