//! The OpenAPI document of all services. `/v1/openapi.json` serves it, and the command `aio` is built from it.

use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use crate::hooks;
use crate::mcp;
use crate::observe;
use crate::sandbox;
use arenite_guest_browser as browser;
use arenite_guest_code::code;
use arenite_guest_code::jupyter;
use arenite_guest_code::nodejs;
use arenite_guest_desktop::desktop;
use arenite_guest_desktop::vm;
use arenite_guest_files::files;
use arenite_guest_files::skills;
use arenite_guest_files::util;
use arenite_guest_proxy as proxy;
use arenite_guest_shell::bash;
use arenite_guest_shell::shell;

/// All operations of the guest.
pub fn description() -> Document {
    let mut whole = shell::ShellApi::openapi();
    let parts = [
        bash::BashApi::openapi(),
        files::FilesApi::openapi(),
        files::WatchApi::openapi(),
        jupyter::JupyterApi::openapi(),
        nodejs::NodeApi::openapi(),
        code::CodeApi::openapi(),
        sandbox::SandboxApi::openapi(),
        hooks::HooksApi::openapi(),
        observe::ObserveApi::openapi(),
        skills::SkillsApi::openapi(),
        mcp::McpApi::openapi(),
        proxy::ProxyApi::openapi(),
        browser::BrowserApi::openapi(),
        browser::PageApi::openapi(),
        browser::TabsApi::openapi(),
        browser::CookiesApi::openapi(),
        browser::StateApi::openapi(),
        browser::NetworkApi::openapi(),
        desktop::DisplayApi::openapi(),
        vm::VmApi::openapi(),
        util::UtilApi::openapi(),
    ];
    for part in parts {
        whole.merge(part);
    }
    whole
}

/// The purpose of a tag's operations; empty for a tag that is not the guest's.
pub fn purpose(tag: &str) -> &'static str {
    match tag {
        "shell" => "Interactive shells that last",
        "bash" => "Commands as processes of their own, with separate streams",
        "file" => "Files: read, write, edit, find and transfer",
        "file-watch" => "Files as they change",
        "sandbox" => "The sandbox itself: what it is and what it has",
        "skills" => "Skills: instructions for agents, with what belongs to them",
        "util" => "Conversion of documents and pages to Markdown",
        "jupyter" => "Code in Jupyter kernels, with results as notebooks have them",
        "nodejs" => "JavaScript in Node.js",
        "code" => "Code, whatever its language",
        "mcp" => "MCP servers in the sandbox, and their tools",
        "browser" => "The browser on the sandbox's screen",
        "display" => "The sandbox's screen",
        "vm" => "The VM of an image that has one: its status, and reset to its first state",
        "proxy" => "The forward proxy: which requests go where",
        _ => "",
    }
}
