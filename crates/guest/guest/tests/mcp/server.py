"""An MCP server of the standard library alone, over stdio or (with a port file as argument) streamable HTTP."""

import json
import os
import subprocess
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
TOOLS = ["echo", "fail", "image", "structured", "sleep", "die", "big", "environment", "orphan"]
CANCELLED = threading.Event()


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(name, arguments):
    if name == "echo":
        return text(json.dumps(arguments, sort_keys=True))
    if name == "fail":
        return {**text("it went wrong"), "isError": True}
    if name == "image":
        return {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}
    if name == "structured":
        return {**text("{}"), "structuredContent": {"n": [1, 2.5]}, "_meta": {"example.org/x": True}}
    if name == "sleep":
        time.sleep(arguments["seconds"])
        return text("slept")
    if name == "die":
        print("I am dying", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "orphan":
        # Holds the output open.
        child = subprocess.Popen(["sleep", "4217"])
        return text(str(child.pid))
    if name == "big":
        return text("x" * arguments["bytes"])
    if name == "environment":
        names = ["HOME", "GREETING", "USER"]
        return text(json.dumps({"pid": os.getpid(), "uid": os.getuid(), "cwd": os.getcwd(), **{n: os.environ.get(n) for n in names}}))
    raise LookupError(f"Unknown tool: {name}")


def answer(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "notifications/cancelled":
        CANCELLED.set()
        print("a call was cancelled", file=sys.stderr, flush=True)
    if "id" not in message:
        return None
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        if method == "initialize":
            server = {"name": "test", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        elif method == "tools/list":
            at = int(params.get("cursor") or 0)
            result = {"tools": [{"name": n, "description": f"Does {n}", "inputSchema": SCHEMA} for n in TOOLS[at : at + 4]]}
            if at + 4 < len(TOOLS):
                result["nextCursor"] = str(at + 4)
        elif method == "tools/call":
            result = call(params["name"], params.get("arguments") or {})
        else:
            return {**reply, "error": {"code": -32601, "message": f"Method not found: {method}"}}
    except LookupError as error:
        return {**reply, "error": {"code": -32602, "message": str(error).strip("'")}}
    return {**reply, "result": result}


def stdio():
    lock = threading.Lock()

    def serve(line):
        reply = answer(json.loads(line))
        if reply is not None:
            with lock:
                sys.stdout.write(json.dumps(reply) + "\n")
                sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=serve, args=(line,), daemon=True).start()


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, kind="application/json", body=b"", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send(405)

    def do_DELETE(self):
        self.send(200)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("X-Key") != "sekrit":
            return self.send(401, body=b"no key")
        reply = answer(message)
        if reply is None:
            return self.send(202)
        body = json.dumps(reply).encode()
        if message["method"] == "initialize":
            return self.send(200, body=body, Mcp_Session_Id="s1")
        if self.headers.get("Mcp-Session-Id") != "s1":
            return self.send(400, body=b"no session")
        # Events, with an empty one first, as real servers send them.
        self.send(200, "text/event-stream", b"id: 0\r\ndata:\r\n\r\nevent: message\r\ndata: " + body + b"\r\n\r\n")


if len(sys.argv) > 1:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    if len(sys.argv) > 2:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[2])
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(server.server_port))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    server.serve_forever()
else:
    stdio()
