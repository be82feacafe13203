"""A fake upstream of model routes: OpenAI's chat completions, completions, responses, and embeddings, and Anthropic's messages.

It says what it was given to say, whole or as a stream, and keeps what it was asked.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What a script may do with a request, instead of a message.
Act = Callable[["FakeHandler"], None]


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A message with a tool call."""
    return {"content": None, "calls": [{"id": id, "name": name, "arguments": arguments}]}


def say(text: str, reasoning: str | None = None) -> dict[str, Any]:
    return {"content": text, "calls": [], "reasoning": reasoning}


class FakeHandler(BaseHTTPRequestHandler):
    upstream: FakeModels
    asked: Any

    def do_GET(self) -> None:
        self.upstream.heads.append((self.path, dict(self.headers)))
        self.answer(200, {"object": "list", "data": [{"id": "fake-1", "object": "model"}]})

    def do_POST(self) -> None:
        self.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.upstream.heads.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.upstream.asked.append(self.asked)
        if self.path.endswith("/embeddings"):
            usage = {"prompt_tokens": 5, "total_tokens": 5}
            return self.answer(200, {"object": "list", "data": [{"index": 0, "embedding": [0.5, 0.25]}], "usage": usage})
        if self.path.endswith("/count_tokens"):
            return self.answer(200, {"input_tokens": 12})
        said = self.upstream.script.pop(0)
        if callable(said):
            return said(self)
        shapes = {"chat/completions": chat, "completions": completion, "responses": response, "messages": message}
        (whole, events) = shapes[self.path.split("/v1/")[1].split("?")[0]](said, self.asked)
        if not self.asked.get("stream"):
            return self.answer(200, whole)
        self.stream()
        for name, event in events:
            self.event(event, name)
        self.end()

    def answer(self, status: int, body: Any, **headers: str) -> None:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        headers = {"content_type": "application/json", "content_length": str(len(raw)), **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, event: Any, name: str | None = None) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        raw = (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()
        self.upstream.sent += 1

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        pass

    protocol_version = "HTTP/1.1"


class FakeModels:
    def __init__(self) -> None:
        self.script: list[dict[str, Any] | Act] = []
        self.asked: list[Any] = []
        #: Paths and headers, of all requests.
        self.heads: list[tuple[str, dict[str, str]]] = []
        #: Events of streams.
        self.sent = 0
        self.gone = threading.Event()
        handler = type("Handler", (FakeHandler,), {"upstream": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def until_left(self, handler: FakeHandler) -> None:
        """Sends events until the client has left."""
        handler.stream()
        try:
            for number in range(3000):
                handler.event({"id": "c", "choices": [{"index": 0, "delta": {"content": f"{number} "}}]})
                time.sleep(0.01)
        except OSError:
            self.gone.set()


USAGE = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27, "prompt_tokens_details": {"cached_tokens": 4}}
Shaped = tuple[dict[str, Any], list[tuple[str | None, Any]]]


def chat(said: dict[str, Any], asked: Any) -> Shaped:
    calls = [
        {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])}}
        for one in said["calls"]
    ]
    text, finish = said["content"], "tool_calls" if calls else "stop"
    logprobs = {"content": [{"token": "t", "logprob": -0.25, "bytes": None, "top_logprobs": []}]} if asked.get("logprobs") else None
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    if said.get("reasoning"):
        message["reasoning_content"] = said["reasoning"]
    ids = {"token_ids": [7]} if asked.get("return_token_ids") else {}
    head = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs, **ids}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    if ids:
        whole["prompt_token_ids"] = [1, 2, 3]

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> tuple[None, Any]:
        return None, {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}

    events = [chunk({"role": "assistant", "content": ""})]
    if said.get("reasoning"):
        events.append(chunk({"reasoning_content": said["reasoning"]}))
    for number, piece in enumerate((text or "").split(" ") if text else []):
        events.append(chunk({"content": piece if number == 0 else f" {piece}"}, logprobs=logprobs))
    for index, one in enumerate(calls):
        arguments = one["function"]["arguments"]
        half = len(arguments) // 2
        start = {"index": index, **one, "function": {"name": one["function"]["name"], "arguments": arguments[:half]}}
        events += [chunk({"tool_calls": [start]}), chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]})]
    events.append(chunk({}, finish))
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append((None, {**head, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}))
    return whole, [*events, (None, "[DONE]")]


def completion(said: dict[str, Any], asked: Any) -> Shaped:
    choice = {"index": 0, "text": said["content"], "finish_reason": "stop", "logprobs": None}
    whole = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": asked["model"], "choices": [choice], "usage": USAGE}
    return whole, [(None, {**whole, "usage": None}), (None, "[DONE]")]


def response(said: dict[str, Any], asked: Any) -> Shaped:
    output: list[dict[str, Any]] = []
    if said["content"]:
        part = {"type": "output_text", "text": said["content"], "annotations": []}
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    for one in said["calls"]:
        arguments = json.dumps(one["arguments"])
        output.append({"type": "function_call", "id": f"fc_{one['id']}", "call_id": one["id"], "name": one["name"], "arguments": arguments})
    usage = {"input_tokens": 20, "output_tokens": 7, "total_tokens": 27}
    usage |= {"input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": asked["model"], "output": output}
    whole |= {"usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    created = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str | None, Any]] = [("response.created", {"type": "response.created", "response": created})]
    for index, item in enumerate(output):
        events.append(("response.output_item.done", {"type": "response.output_item.done", "output_index": index, "item": item}))
    return whole, [*events, ("response.completed", {"type": "response.completed", "response": whole})]


def message(said: dict[str, Any], asked: Any) -> Shaped:
    blocks: list[dict[str, Any]] = []
    if said.get("reasoning"):
        blocks.append({"type": "thinking", "thinking": said["reasoning"], "signature": "s"})
    if said["content"]:
        blocks.append({"type": "text", "text": said["content"]})
    blocks += [{"type": "tool_use", "id": one["id"], "name": one["name"], "input": one["arguments"]} for one in said["calls"]]
    stop = "tool_use" if said["calls"] else "end_turn"
    usage = {"input_tokens": 16, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 7}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": blocks}
    whole |= {"stop_reason": stop, "stop_sequence": None, "usage": usage}
    start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[tuple[str | None, Any]] = [("message_start", {"type": "message_start", "message": start})]
    for index, block in enumerate(blocks):
        empty = {**block, **({"input": {}} if block["type"] == "tool_use" else {"text": ""} if block["type"] == "text" else {"thinking": ""})}
        kind = block["type"]
        delta = {
            "text": lambda block: {"type": "text_delta", "text": block["text"]},
            "thinking": lambda block: {"type": "thinking_delta", "thinking": block["thinking"]},
            "tool_use": lambda block: {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
        }[kind](block)
        events += [
            ("content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}),
            ("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}),
            ("content_block_stop", {"type": "content_block_stop", "index": index}),
        ]
    end = {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 7}}
    return whole, [*events, ("message_delta", end), ("message_stop", {"type": "message_stop"})]
