//! Command-line tools that agents look for, and which of them are installed.

use std::path::PathBuf;

use serde::Serialize;
use utoipa::ToSchema;

use arenite_guest_runtime::programs;

/// Tools to report to an agent if they are installed.
const TOOLS: [(&str, &[(&str, &str)]); 8] = [
    ("Version control", &[("git", "version control"), ("gh", "GitHub's command line"), ("svn", "version control")]),
    (
        "Network",
        &[
            ("curl", "transfers data by URL"),
            ("wget", "downloads files"),
            ("ssh", "remote shell"),
            ("rsync", "copies trees"),
            ("ping", "reaches hosts"),
            ("nc", "TCP and UDP by hand"),
            ("dig", "asks DNS"),
        ],
    ),
    (
        "Text and data",
        &[
            ("jq", "queries JSON"),
            ("rg", "searches trees by regular expression"),
            ("grep", "searches by regular expression"),
            ("sed", "edits streams"),
            ("awk", "processes columns"),
            ("sqlite3", "SQL in a file"),
            ("pandoc", "converts documents"),
        ],
    ),
    (
        "Archives",
        &[
            ("tar", "archives"),
            ("zip", "packs zip files"),
            ("unzip", "unpacks zip files"),
            ("xz", "compresses"),
            ("zstd", "compresses"),
        ],
    ),
    ("Editors", &[("vim", "text editor"), ("nano", "text editor"), ("vi", "text editor")]),
    (
        "Building",
        &[
            ("make", "runs build rules"),
            ("gcc", "compiles C"),
            ("g++", "compiles C++"),
            ("cmake", "generates builds"),
            ("cargo", "builds Rust"),
            ("go", "builds Go"),
        ],
    ),
    (
        "System",
        &[
            ("sudo", "acts as root"),
            ("ps", "lists processes"),
            ("top", "watches processes"),
            ("htop", "watches processes"),
            ("lsof", "lists open files"),
            ("strace", "traces system calls"),
        ],
    ),
    ("Media", &[("ffmpeg", "converts audio and video"), ("convert", "converts images"), ("yt-dlp", "downloads videos")]),
];

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AvailableTool {
    pub name: String,
    pub description: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolCategory {
    pub category: String,
    pub tools: Vec<AvailableTool>,
}

/// The tools that are on the search path.
pub(super) fn present(path: &[PathBuf]) -> Vec<ToolCategory> {
    let categories = TOOLS.iter().map(|(category, tools)| {
        let here = tools.iter().filter(|(name, _)| programs::locate(name, path).is_some());
        let tools =
            here.map(|(name, what)| AvailableTool { name: (*name).to_owned(), description: Some((*what).to_owned()) }).collect();
        ToolCategory { category: (*category).to_owned(), tools }
    });
    categories.filter(|category| !category.tools.is_empty()).collect()
}
