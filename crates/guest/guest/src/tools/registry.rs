//! All tools by name, and their aliases.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::tool::Tool;
use super::{bash, browser, code, documents, editor, files, readme, screen};

/// A server of AIO's hub that the sandbox itself implements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Sandbox,
    Browser,
    Markitdown,
    /// From AIO's README, like the next: listed among the servers only if hidden ones are.
    File,
    Shell,
}

impl Group {
    pub(crate) const ALL: [Self; 3] = [Self::Browser, Self::Markitdown, Self::Sandbox];
    pub(crate) const HIDDEN: [Self; 2] = [Self::File, Self::Shell];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Browser => "browser",
            Self::Markitdown => "markitdown",
            Self::File => "file",
            Self::Shell => "shell",
        }
    }

    /// Finds a group by its current or earlier name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "sandbox" | "code" => Self::Sandbox,
            "browser" => Self::Browser,
            "markitdown" => Self::Markitdown,
            "file" => Self::File,
            "shell" | "terminal" => Self::Shell,
            _ => return None,
        })
    }

    /// Whether a listed tool belongs to the group.
    pub(crate) fn has(self, tool: &str) -> bool {
        match self {
            Self::Sandbox => tool.starts_with("sandbox_"),
            Self::Browser => tool.starts_with("browser_"),
            Self::Markitdown => tool == "convert_to_markdown" || tool == "sandbox_convert_to_markdown",
            Self::File | Self::Shell => false,
        }
    }

    /// The tools that only this server lists: its names for them, and the tools' own names.
    fn documented(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Sandbox | Self::Browser => &[],
            Self::Markitdown => &[
                ("convert", "sandbox_convert_to_markdown"),
                ("extract_text", "sandbox_convert_to_markdown"),
                ("extract_images", "extract_images"),
            ],
            Self::File => &[
                ("read", "file_read"),
                ("write", "file_write"),
                ("list", "file_list"),
                ("search", "file_search"),
                ("replace", "file_replace"),
            ],
            Self::Shell => &[("exec", "sandbox_execute_bash"), ("create_session", "terminal_session"), ("kill", "terminal_kill")],
        }
    }
}

/// Aliases of tools: the names of AIO's hub before 1.0 (`sandbox_browser_*`), of its newer daemon, and of its documents.
const ALIASES: &[(&str, &str)] = &[
    ("sandbox_browser_navigate", "browser_navigate"),
    ("sandbox_browser_get_text", "browser_get_text"),
    ("sandbox_browser_read_links", "browser_read_links"),
    ("sandbox_browser_get_markdown", "browser_get_markdown"),
    ("sandbox_browser_evaluate", "browser_evaluate"),
    ("sandbox_browser_form_input_fill", "browser_form_input_fill"),
    ("sandbox_browser_press_key", "browser_press_key"),
    ("sandbox_browser_element_click", "browser_click"),
    ("sandbox_browser_element_hover", "browser_hover"),
    ("sandbox_browser_element_select", "browser_select"),
    ("sandbox_browser_get_clickable_elements", "browser_get_clickable_elements"),
    ("sandbox_browser_new_tab", "browser_new_tab"),
    ("sandbox_browser_tab_list", "browser_tab_list"),
    ("sandbox_browser_switch_tab", "browser_switch_tab"),
    ("sandbox_browser_close_tab", "browser_close_tab"),
    ("sandbox_browser_go_back", "browser_go_back"),
    ("sandbox_browser_go_forward", "browser_go_forward"),
    ("sandbox_browser_scroll", "browser_scroll"),
    ("sandbox_browser_get_download_list", "browser_get_download_list"),
    ("sandbox_browser_get_info", "sandbox_get_browser_info"),
    ("browser_get_info", "sandbox_get_browser_info"),
    ("browser_gui_screenshot", "sandbox_browser_screenshot"),
    ("browser_gui_execute_action", "sandbox_browser_execute_action"),
    ("terminal_execute", "sandbox_execute_bash"),
    ("str_replace_editor", "sandbox_str_replace_editor"),
    ("browser_extract", "browser_get_markdown"),
    ("markitdown_convert", "sandbox_convert_to_markdown"),
    ("markitdown_extract", "sandbox_convert_to_markdown"),
    ("convert_to_markdown", "sandbox_convert_to_markdown"),
];

pub(crate) struct Registry {
    /// All callable tools.
    tools: BTreeMap<&'static str, Tool>,
    /// Names in the order in which they are listed.
    listed: Vec<&'static str>,
}

/// The tools of every sandbox.
pub(crate) fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let listed = [
            bash::tools(),
            code::execution_tools(),
            files::tools(),
            editor::tools(),
            code::context_tools(),
            screen::tools(),
            code::package_tools(),
            documents::tools(),
            browser::tools(),
        ];
        let hidden = [documents::hidden_tools(), browser::hidden_tools()];
        let mut registry = Registry { tools: BTreeMap::new(), listed: Vec::new() };
        for tool in listed.into_iter().flatten() {
            registry.listed.push(tool.name);
            registry.tools.insert(tool.name, tool);
        }
        registry.tools.extend(hidden.into_iter().flatten().map(|tool| (tool.name, tool)));
        let readmes = readme::hidden_tools(&registry.tools);
        registry.tools.extend(readmes.into_iter().map(|tool| (tool.name, tool)));
        registry
    })
}

impl Registry {
    /// The tools that the hub lists.
    pub(crate) fn list(&self) -> impl Iterator<Item = &Tool> {
        self.listed.iter().filter_map(|name| self.tools.get(name))
    }

    /// The tools that a server lists.
    pub(crate) fn tools_in(&self, group: Group) -> impl Iterator<Item = rmcp::model::Tool> {
        let shared = self.list().filter(move |tool| group.has(tool.name)).map(|tool| tool.description.clone());
        let own = group.documented().iter().filter_map(|(name, of)| {
            let mut description = self.tools.get(of)?.description.clone();
            description.name = (*name).into();
            Some(description)
        });
        shared.chain(own)
    }

    /// Finds a tool by its name or an alias. A server's own tools are also found without the server's prefix.
    pub(crate) fn find(&self, name: &str, group: Option<Group>) -> Option<&Tool> {
        let own = |name: &str| self.tools.get(ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| own));
        let documented = group.and_then(|group| group.documented().iter().find(|(known, _)| *known == name));
        if let Some((_, of)) = documented {
            return self.tools.get(of);
        }
        let prefixes = group.map(Group::name).into_iter().chain(group.map(|_| "sandbox"));
        own(name).or_else(|| prefixes.into_iter().find_map(|prefix| own(&format!("{prefix}_{name}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_tools_are_found_and_not_listed() {
        let names: Vec<_> = registry().list().map(|tool| tool.name).collect();
        assert!(names.contains(&"sandbox_execute_code") && !names.contains(&"sandbox_load_skill"), "{names:?}");
        assert!(registry().find("sandbox_load_skill", None).is_some());
        let by_server = registry().find("execute_code", Some(Group::Sandbox));
        assert_eq!(by_server.map(|tool| tool.name), Some("sandbox_execute_code"));
        assert!(registry().find("execute_code", None).is_none());
    }

    #[test]
    fn the_readmes_servers_list_and_call_its_tools() {
        let names = |group| registry().tools_in(group).map(|tool| tool.name.into_owned()).collect::<Vec<_>>();
        assert_eq!(names(Group::File), ["read", "write", "list", "search", "replace"]);
        assert_eq!(names(Group::Shell), ["exec", "create_session", "kill"]);
        assert!(names(Group::Markitdown).contains(&"extract_text".to_owned()));
        let found = |name, group| registry().find(name, group).map(|tool| tool.name);
        assert_eq!(found("read", Some(Group::File)), Some("file_read"));
        assert_eq!(found("exec", Some(Group::Shell)), Some("sandbox_execute_bash"));
        assert_eq!(found("execute_bash", Some(Group::Shell)), Some("sandbox_execute_bash"));
        for name in [
            "browser_navigate",
            "browser_click",
            "browser_type",
            "browser_screenshot",
            "browser_extract",
            "file_read",
            "file_write",
            "file_list",
            "file_search",
            "file_replace",
            "terminal_execute",
            "terminal_session",
            "terminal_kill",
            "markitdown_convert",
            "markitdown_extract",
        ] {
            assert!(found(name, None).is_some(), "{name}");
        }
        for name in ["navigate", "screenshot", "click", "type", "scroll"] {
            assert!(found(name, Some(Group::Browser)).is_some(), "{name}");
        }
    }

    #[test]
    fn every_argument_is_described() {
        for tool in registry().tools.values() {
            assert!(tool.description.description.as_ref().is_some_and(|text| !text.is_empty()), "{}", tool.name);
            let properties = tool.description.input_schema["properties"].as_object().unwrap();
            for (name, schema) in properties {
                assert!(schema["description"].is_string(), "{} {name}: {schema}", tool.name);
            }
        }
    }
}
