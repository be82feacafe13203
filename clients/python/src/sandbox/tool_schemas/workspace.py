"""The shell, and programs and files in a workspace."""

from __future__ import annotations

from .entry import entry, needs, takes

BASH = [
    entry(
        "bash-run",
        "Run a command in the session's shell. Directory and variables last from one call to the next",
        needs("command", "string", "The command line"),
        takes("timeout", "integer", "Seconds that it may take. Default: 30"),
    ),
]

_FILE = needs("file_path", "string", "Path of the file in the workspace")

CODE = [
    entry(
        "code-execute",
        "Run a program and answer what it wrote",
        needs("code", "string", "The program's text"),
        takes("language", "string", "python, javascript or bash. Default: python"),
        takes("timeout", "integer", "Seconds that it may take. Default: 60"),
    ),
    entry(
        "code-read",
        "Read a file, with line numbers",
        _FILE,
        takes("offset", "integer", "Line to begin with"),
        takes("limit", "integer", "Lines to read. Default: 2000"),
    ),
    entry(
        "code-glob",
        "Find files by the pattern of their names",
        needs("pattern", "string", "Pattern such as **/*.py"),
        takes("path", "string", "Directory to look in. Default: the workspace"),
    ),
    entry(
        "code-grep",
        "Find lines in files",
        needs("pattern", "string", "Regular expression"),
        takes("path", "string", "File or directory to look in. Default: the workspace"),
        takes("glob", "string", "Only files whose names match this pattern"),
    ),
    entry("code-bash", "Run a command in the workspace", needs("command", "string", "The command line")),
    entry(
        "code-edit",
        "Replace text in a file",
        _FILE,
        needs("old_string", "string", "Text to replace; it must be there once, unless all are replaced"),
        needs("new_string", "string", "Text to put in its place"),
        takes("replace_all", "boolean", "Replace it everywhere. Default: false"),
    ),
    entry(
        "code-write",
        "Write a file, over the one that is there",
        _FILE,
        needs("content", "string", "The whole content"),
    ),
]
