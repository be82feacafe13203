#!/usr/bin/env python3
"""A fake MCP server, which stands for those of AgentFlow's configuration: it is started under the name of a program.

It says what it was started with, and fails in the ways that were recorded.
"""

import json
import os
import sys
import time

PROGRAM = os.path.basename(sys.argv[0])
LINE = " ".join([PROGRAM, *sys.argv[1:]])
TOOLS = {
    "terminal": ["run_command", "show_security_rules"],
    "snowflake": ["list_tables"],
    "filesystem": [
        "list_directory", "read_text_file", "list_allowed_directories", "move_file", "get_file_info", "read_media_file", "edit_file",
        "write_file", "directory_tree", "search_files", "read_multiple_files",
    ],
}
SERVER = "terminal" if "cli-mcp-server" in LINE else "snowflake" if "snowflake" in LINE else "filesystem"


def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(name, given):
    if name == "list_directory":
        return {"result": text("\n".join(sorted(os.listdir(given.get("path") or "."))))}
    if name == "get_file_info":
        return {"error": {"code": -32602, "message": "bad arguments", "data": {"got": sorted(given)}}}
    if name == "read_media_file":
        picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        return {"result": {"content": [picture], "structuredContent": {"a": 1}}}
    if name == "move_file":
        return {"result": {"isError": True, **text("Error: no such file")}}
    if name == "directory_tree":
        sys.exit(3)
    if name == "search_files":
        return {"result": text("z" * int(given.get("n", 70000)))}
    if name == "read_multiple_files":
        time.sleep(2)
        return {"result": text("late")}
    if name == "edit_file":
        return {}
    kept = {k: v for k, v in os.environ.items() if k.startswith("PG") or k in ("ALLOWED_DIR", "COMMAND_TIMEOUT")}
    told = {"server": PROGRAM, "tool": name, "arguments": given, "cwd": os.getcwd(), "argv": [PROGRAM, *sys.argv[1:]], "env": kept}
    return {"result": text(json.dumps(told, sort_keys=True))}


print("banner line, not json", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        info = {"name": SERVER, "version": "0"}
        answer = {"result": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif asked["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS[SERVER]]}}
    elif asked["method"] == "tools/call":
        say({"method": "notifications/message", "params": {"level": "info", "data": "noise"}})
        answer = call(asked["params"]["name"], asked["params"].get("arguments", {}))
    else:
        answer = {"error": {"code": -32601, "message": "no"}}
    say({"id": asked["id"], **answer})
