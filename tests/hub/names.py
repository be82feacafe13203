"""The names of three generations of AIO's hub, and a call of each tool that works."""

from __future__ import annotations

from typing import Any

PAGE = "/tmp/hub/page.html"

#: Generation A, which is listed, in the order in which it can be called: tool and arguments.
CALLS: dict[str, dict[str, Any]] = {
    "sandbox_execute_bash": {"cmd": "echo hi"},
    "sandbox_execute_code": {"code": "6 * 7", "language": "python"},
    "sandbox_file_operations": {"action": "list", "path": "/tmp"},
    "sandbox_str_replace_editor": {"command": "view", "path": PAGE},
    "sandbox_get_context": {},
    "sandbox_get_packages": {"language": "python"},
    "sandbox_convert_to_markdown": {"uri": f"file://{PAGE}"},
    "browser_navigate": {"url": f"file://{PAGE}"},
    "sandbox_get_browser_info": {},
    "sandbox_browser_screenshot": {},
    "sandbox_browser_execute_action": {"action": {"action_type": "MOVE_TO", "x": 5, "y": 5}},
    "browser_get_markdown": {},
    "browser_get_text": {},
    "browser_read_links": {},
    "browser_get_clickable_elements": {},
    "browser_form_input_fill": {"selector": "#name", "value": "x"},
    "browser_select": {"selector": "#kind", "value": "b"},
    "browser_hover": {"selector": "#go"},
    "browser_click": {"selector": "#go"},
    "browser_press_key": {"key": "Tab"},
    "browser_scroll": {"amount": 10},
    "browser_evaluate": {"script": "document.title"},
    "browser_screenshot": {"name": "it"},
    "browser_vision_screen_capture": {},
    "browser_vision_screen_click": {"x": 3, "y": 3},
    "browser_get_download_list": {},
    "browser_new_tab": {"url": f"file://{PAGE}"},
    "browser_tab_list": {},
    "browser_go_back": {},
    "browser_go_forward": {},
    "browser_switch_tab": {"index": 0},
    "browser_close_tab": {},
    "browser_close": {},
}
A = set(CALLS)
#: Generation B, of 2025.
B = {
    *(f"sandbox_{name}" for name in ["get_context", "get_packages", "execute_code", "execute_bash"]),
    *(f"sandbox_{name}" for name in ["file_operations", "str_replace_editor", "convert_to_markdown"]),
    *(f"sandbox_browser_{name}" for name in ["navigate", "get_text", "read_links", "get_markdown", "evaluate"]),
    *(f"sandbox_browser_{name}" for name in ["form_input_fill", "press_key", "element_click", "element_hover"]),
    *(f"sandbox_browser_{name}" for name in ["element_select", "get_clickable_elements", "new_tab", "tab_list"]),
    *(f"sandbox_browser_{name}" for name in ["switch_tab", "close_tab", "go_back", "go_forward", "scroll"]),
    *(f"sandbox_browser_{name}" for name in ["get_download_list", "get_info"]),
}
#: Generation C, of AIO's newer daemon.
C = {
    *(f"sandbox_{name}" for name in ["execute_bash", "execute_code", "file_operations", "str_replace_editor"]),
    *(f"sandbox_{name}" for name in ["get_context", "get_packages", "load_skill"]),
    *(f"browser_{name}" for name in ["get_info", "gui_screenshot", "gui_execute_action"]),
}
#: The server's own tools, beside those of the sandbox `default`.
LIFECYCLE = {"createSandbox", "getSandbox", "deleteSandbox", "listSandbox", "sandboxExecutor"} | {
    *("checkpointSandbox", "listCheckpoints", "rollbackSandbox", "resetSandbox", "diffSandbox", "forkSandbox"),
    *("createSnapshot", "listSnapshots", "deleteSnapshot", "listSnapshotFiles", "readSnapshotFile", "exportSnapshot", "importSnapshot"),
    *("listVolumeFiles", "readVolumeFile"),
}

HTML = """<!doctype html><title>Hub</title><h1>Hub</h1><p>A page with <a href="#there">a link</a>.</p>
<input id=name placeholder=Name><select id=kind><option>a<option>b</select><button id=go>Go</button>"""
