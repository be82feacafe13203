"""A server that records the requests of programs, and answers with examples from the OpenAPI documents."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import page_calls

DOCUMENTS = {"/api/v2/openapi.json": "server-openapi", "/v1/openapi.json": "openapi", "/openapi.json": "agentflow-openapi"}
DIALECTS = ("arenite", "aio", "agent-sandbox", "agentflow")
#: Programs that run in one process name themselves to the server, so that each request is known to be of one.
NEXT = "/next-program/"
PYTHON = """
import json, sys, urllib.request
base, programs = sys.argv[1], json.load(sys.stdin)
for number, program in enumerate(programs):
    urllib.request.urlopen(f"{base}%s{number}").close()
    try:
        exec(compile(program, f"program {number}", "exec"), {"__name__": "program"})
    except Exception as error:
        # Examples are not always what a client expects of an answer. Only the request counts.
        print(number, repr(error)[:200], file=sys.stderr)
""" % NEXT
NODE = """
const [base, count] = process.argv.slice(2);
for (let number = 0; number < Number(count); number++) {
  await (await fetch(`${base}%s${number}`)).text();
  await import(`./program-${number}.mjs`).catch(error => console.error(number, String(error).slice(0, 200)));
}
""" % NEXT


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: str
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Operation:
    """An operation, with what the page fills in at first."""

    dialect: str
    method: str
    path: str
    raw: dict[str, Any]
    document: dict[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        return str(self.raw["operationId"])

    @property
    def title(self) -> str:
        return re.sub(r";.*$", "", self.raw["summary"], flags=re.DOTALL).removesuffix(".").replace("`", "")

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        prefix = "/sandbox/demo" if self.dialect == "aio" else ""
        return re.compile(re.escape(prefix) + "[^/]+".join(re.escape(part) for part in re.split(r"\{\w+\}", self.path)))

    def is_made_by(self, call: Call) -> bool:
        """Whether a request has the method, the path, the required parameters, and the required fields of the body."""
        if call.method != self.method or not self.pattern.fullmatch(call.path):
            return False
        required = {one["name"] for one in self.raw.get("parameters", []) if one["in"] == "query" and one.get("required")}
        if not required <= parse_qs(call.query, keep_blank_values=True).keys():
            return False
        contents = self.raw.get("requestBody", {}).get("content", {})
        if "application/json" not in contents:
            return not contents or (call.content_type.partition(";")[0] in contents and call.body != b"")
        # Clients leave out a body without fields.
        wanted = self.wanted_fields(contents["application/json"])
        return not wanted or (call.content_type.startswith("application/json") and wanted <= json.loads(call.body).keys())

    def wanted_fields(self, media: dict[str, Any]) -> set[str]:
        return set(media["example"] if "example" in media else resolved(self.document, media["schema"]).get("required", []))


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def operations() -> list[Operation]:
    found = []
    for dialect, name in (("arenite", "server-openapi"), ("aio", "openapi"), ("agent-sandbox", "server-openapi"), ("agentflow", "agentflow-openapi")):
        document = json.loads((page_calls.GOLDEN / f"{name}.json").read_text())
        for path, item in document["paths"].items():
            for method, raw in item.items():
                is_agent_sandbox = raw["tags"] == ["agent-sandbox"]
                if name != "server-openapi" or is_agent_sandbox == (dialect == "agent-sandbox"):
                    found.append(Operation(dialect, method.upper(), path, raw, document))
    return found


def example(document: dict[str, Any], schema: dict[str, Any], depth: int = 0) -> Any:
    """A value of a schema: with its required fields."""
    schema = resolved(document, schema)
    if depth > 12:
        return None
    for key in ("default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    if "allOf" in schema:
        parts = [example(document, part, depth + 1) for part in schema["allOf"]]
        return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return example(document, next((one for one in schema[key] if one.get("type") == "null"), schema[key][0]), depth + 1)
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else next(iter(kinds))
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: example(document, properties[name], depth + 1) for name in schema.get("required", []) if name in properties}
    text = "2026-01-01T00:00:00Z" if schema.get("format") == "date-time" else "text"
    return {"array": [], "string": text, "integer": schema.get("minimum", 1), "number": 1.0, "boolean": True}.get(kind)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def serve(self) -> None:
        address = urlsplit(self.path)
        body = self.chunked() if self.headers.get("transfer-encoding") else self.rfile.read(int(self.headers.get("content-length", 0)))
        path = unquote(address.path) if "%" in address.path and "%2F" not in address.path else address.path
        if path.startswith(NEXT):
            self.server.current = int(path.removeprefix(NEXT))
            self.answer("text/plain", b"")
            return
        call = Call(self.command, path, address.query, self.headers.get("content-type", ""), body)
        self.server.calls.setdefault(self.server.current, []).append(call)
        for operation in self.server.operations:
            if operation.method == call.method and operation.pattern.fullmatch(path):
                status, answer = next((status, answer) for status, answer in operation.raw["responses"].items() if status.startswith("2"))
                kind, media = next(iter(answer.get("content", {}).items()), ("", {}))
                if kind == "application/json":
                    value = example(operation.document, media.get("schema", {}))
                    if isinstance(value, dict) and "code" in value and operation.dialect == "agentflow":
                        value["code"] = 0
                    self.answer(kind, json.dumps(value).encode(), int(status))
                else:
                    self.answer(kind or "text/plain", b"bytes" if kind else b"", int(status))
                return
        self.answer("application/json", b"{}", 404)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815

    def chunked(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Recorder(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.operations = sorted(operations(), key=lambda one: "[^/]+" in one.pattern.pattern.removeprefix("/sandbox/demo"))
        self.calls: dict[int, list[Call]] = {}
        self.current = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Recorder:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()
        self.server_close()

    def run(self, language: str, programs: list[str], folder: Path, client: Path) -> list[list[Call]]:
        """Runs programs one after the other. Returns the requests of each."""
        self.calls.clear()
        shared: dict[str, Any] = {"cwd": folder, "timeout": 600, "text": True, "capture_output": True}
        if language == "curl":
            for self.current, program in enumerate(programs):
                subprocess.run(["bash", "-c", program], **shared)
        elif language == "Python":
            runner = folder / "runner.py"
            runner.write_text(PYTHON)
            done = subprocess.run([sys.executable, str(runner), self.url], **shared, input=json.dumps(programs), env={"PYTHONPATH": str(client), "PATH": "/usr/bin:/bin"})
            assert done.returncode == 0, done.stderr[-3000:]
        else:
            for number, program in enumerate(programs):
                (folder / f"program-{number}.mjs").write_text(program)
            (folder / "runner.mjs").write_text(NODE)
            done = subprocess.run(["node", "runner.mjs", self.url, str(len(programs))], **shared)
            assert done.returncode == 0, done.stderr[-3000:]
        return [self.calls.get(number, []) for number in range(len(programs))]
