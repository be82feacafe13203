"""An MCP server of the standard library alone, over stdio, with the tools that the protocol's conformance suite calls."""

import json
import sys
import threading
import time

RED = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
NOTHING = {"type": "object", "properties": {}}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


def text(words):
    return {"type": "text", "text": words}


def resource(uri, kind, words):
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": words}}


PICTURE = {"type": "image", "data": RED, "mimeType": "image/png"}
ANSWERS = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [PICTURE],
    "test_audio_content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}],
    "test_embedded_resource": [resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        PICTURE,
        resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
    "test_error_handling": [text("This tool intentionally returns an error for testing")],
    "test_tool_with_progress": [text("done")],
    "json_schema_2020_12_tool": [text("fine")],
}
LOCK = threading.Lock()


def say(message):
    with LOCK:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(params):
    name = params["name"]
    token = (params.get("_meta") or {}).get("progressToken")
    if name == "test_tool_with_progress":
        for done in (0, 50, 100):
            if token is not None:
                told = {"progressToken": token, "progress": done, "total": 100}
                say({"method": "notifications/progress", "params": told})
            time.sleep(0.05)
    return {"content": ANSWERS[name], "isError": name == "test_error_handling"}


def serve(message):
    method, params, reply = message.get("method"), message.get("params") or {}, {"id": message.get("id")}
    if method == "initialize":
        server = {"name": "everything", "version": "1"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    elif method == "tools/list":
        schema = lambda name: SCHEMA if name.startswith("json_schema") else NOTHING
        result = {"tools": [{"name": name, "description": name, "inputSchema": schema(name)} for name in ANSWERS]}
    elif method == "tools/call" and params.get("name") in ANSWERS:
        result = call(params)
    elif "id" in message:
        return say({**reply, "error": {"code": -32602, "message": "not here"}})
    else:
        return None
    return say({**reply, "result": result})


for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),)).start()
