"""Model routes: calls of models by the real clients, as steps of a sandbox, a worker, or nothing; budgets; bad upstreams. Restarts the server."""

from __future__ import annotations

import csv
import io
import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import atif
import httpx
import openai
import pytest
from arenite_server import REPOSITORY, Server, binary
from commands import run
from fake_models import FakeHandler, FakeModels, call, say
from playwright.sync_api import Page, expect
from sandboxes import LiveSandbox
from waiting import until

TOOL = {"name": "run_bash", "description": "Runs a command", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
SYSTEM, QUESTION = "You use tools.", "How many files are in /data?"


@pytest.fixture(scope="module")
def allowing(server: Server) -> Iterator[Server]:
    """The run's server, which may reach upstreams on this host."""
    server.restart(("--model-allow", "127.0.0.0/8"))
    yield server
    server.restart()


@pytest.fixture
def upstream() -> Iterator[FakeModels]:
    fake = FakeModels()
    yield fake
    fake.close()


@pytest.fixture
def route(allowing: Server, upstream: FakeModels) -> Iterator[Callable[..., str]]:
    made: list[str] = []
    with allowing.api() as api:

        def make(**spec: Any) -> str:
            made.append(f"m-{uuid.uuid4().hex[:8]}")
            answer = api.put(f"/api/v2/models/{made[-1]}", json={"upstream": upstream.url, **spec})
            assert answer.status_code == 200, answer.text
            return made[-1]

        yield make
        if allowing.process is not None:
            for name in made:
                api.delete(f"/api/v2/models/{name}")


def steps(server: Server, trajectory: str) -> list[dict[str, Any]]:
    found = httpx.get(f"{server.url}/api/v1/trajectories/{trajectory}", timeout=30).raise_for_status().json()["steps"]
    return [step for step in found if step["dialect"] == "model"]


def ended(server: Server, trajectory: str, count: int) -> list[dict[str, Any]]:
    """Its calls of models, once there are so many with an end."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = steps(server, trajectory)
        if len(found) >= count and all(step["outcome"] for step in found):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def export(server: Server, trajectory: str, form: str) -> str:
    return httpx.get(f"{server.url}/api/v1/trajectories/{trajectory}/export", params={"format": form}, timeout=60).raise_for_status().text


def whole(client: openai.OpenAI, asked: Any) -> tuple[str | None, list[dict[str, Any]]]:
    said = client.chat.completions.create(**asked).choices[0].message
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.function.name, "arguments": one.function.arguments}}
        for one in said.tool_calls or []
    ]
    return said.content, calls


def streamed(client: openai.OpenAI, asked: Any) -> tuple[str | None, list[dict[str, Any]]]:
    text, calls = "", {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for one in delta.tool_calls or []:
            call = calls.setdefault(one.index, {"id": one.id, "type": "function", "function": {"name": one.function.name, "arguments": ""}})
            call["function"]["arguments"] += one.function.arguments or ""
    return text or None, [*calls.values()]


def openai_agent(base: str, live: LiveSandbox, stream: bool, **more: Any) -> str:
    """Asks, runs the tools that the model calls in the sandbox, and ends with its answer."""
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    while True:
        asked: Any = {"model": "fake-1", "messages": messages, "tools": [{"type": "function", "function": TOOL}], **more}
        text, calls = (streamed if stream else whole)(client, asked)
        if not calls:
            return text or ""
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        for one in calls:
            output = live.output(json.loads(one["function"]["arguments"])["command"])
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": output})


def anthropic_agent(base: str, live: LiveSandbox, stream: bool) -> str:
    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        asked: Any = {"model": "fake-1", "max_tokens": 100, "system": SYSTEM, "messages": messages, "tools": [tool]}
        if stream:
            with client.messages.stream(**asked) as events:
                said = events.get_final_message()
        else:
            said = client.messages.create(**asked)
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in said.content if block.type == "text")
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in said.content]})
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": live.output(one.input["command"])} for one in calls]
        messages.append({"role": "user", "content": results})


SCRIPT = [
    {**call("call_a", "run_bash", command="echo 3"), "reasoning": "I count."},
    {**call("call_b", "run_bash", command="echo three"), "content": "And in words:"},
    say("There are three."),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_exports_hold_turns_of_model_and_tools_in_order(
    allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox], dialect: str, stream: bool
) -> None:
    live = sandbox()
    upstream.script = [*SCRIPT]
    name = route(dialect=dialect, prices=[{"models": "fake-*", "input": 1.0, "output": 2.0, "cached": 0.5}])
    base = f"{allowing.url}/models/{name}/sandbox/{live.name}"
    if dialect == "openai":
        assert openai_agent(f"{base}/v1", live, stream, temperature=0.5) == "There are three."
    else:
        assert anthropic_agent(base, live, stream) == "There are three."

    # A step ends when the server has sent the end of the stream, which a client does not wait for.
    until(lambda: len(steps(allowing, live.id)) == 3)
    found = steps(allowing, live.id)
    assert [(step["outcome"], step["origin"], step["model"]["stream"]) for step in found] == [("ok", "agent", stream)] * 3
    for step in found:
        told = step["model"]
        assert (told["route"], told["model"], told["estimated"]) == (name, "fake-1", False)
        assert (told["prompt_tokens"], told["completion_tokens"], told["cached_tokens"]) == (20, 7, 4)
        assert told["cost_usd"] == pytest.approx((16 * 1.0 + 4 * 0.5 + 7 * 2.0) / 1e6)
        assert told["first_token_ms"] > 0
        assert step["arguments"]["json"]["model"] == "fake-1"

    read = atif.Trajectory.model_validate_json(export(allowing, live.id, "atif"))
    assert [step.source for step in read.steps] == ["system", "user", "agent", "agent", "agent"]
    assert [step.message for step in read.steps] == [SYSTEM, QUESTION, "", "And in words:", "There are three."]
    assert read.steps[2].reasoning_content == "I count." and read.steps[2].model_name == "fake-1"
    calls = [one for step in read.steps for one in step.tool_calls or []]
    assert [(one.function_name, one.arguments) for one in calls] == [("run_bash", {"command": "echo 3"}), ("run_bash", {"command": "echo three"})]
    results = [result for step in read.steps if step.observation for result in step.observation.results]
    assert [(result.source_call_id, result.content) for result in results] == [("call_a", "3"), ("call_b", "three")]
    assert all(result.extra["tool"] == "bash_exec" and result.extra["outcome"] == "ok" for result in results)
    assert (read.final_metrics.total_prompt_tokens, read.final_metrics.total_completion_tokens) == (60, 21)

    (line,) = [json.loads(line) for line in export(allowing, live.id, "openai-messages").splitlines()]
    roles = [message["role"] for message in line["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message["content"] for message in line["messages"] if message["role"] == "tool"] == ["3", "three"]
    assert line["tools"] == [{"type": "function", "function": TOOL}]
    (line,) = [json.loads(line) for line in export(allowing, live.id, "sharegpt").splitlines()]
    turns = [turn["from"] for turn in line["conversations"]]
    assert turns == ["system", "human", "function_call", "observation", "gpt", "function_call", "observation", "gpt"]
    (line,) = [json.loads(line) for line in export(allowing, live.id, "agentflow-rollout").splitlines()]
    told = line["trajectory"]
    assert (told["question"], told["final_answer"], told["total_turns"]) == (QUESTION, "There are three.", 3)
    assert [one["tool_name"] for one in told["tool_calls"]] == ["bash_exec"] * 2


def test_responses_completions_and_embeddings(allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox]) -> None:
    live, name = sandbox(), route()
    client = openai.OpenAI(base_url=f"{allowing.url}/models/{name}/sandbox/{live.name}/v1", api_key="none", max_retries=0)
    upstream.script = [call("call_a", "run_bash", command="echo 3"), say("Three."), say("more"), say("more")]
    first = client.responses.create(model="fake-1", instructions=SYSTEM, input=QUESTION)
    output = live.output("echo 3")
    result = {"type": "function_call_output", "call_id": "call_a", "output": output}
    events = [*client.responses.create(model="fake-1", previous_response_id=first.id, input=[result], stream=True)]
    assert events[-1].response.output_text == "Three."
    assert client.completions.create(model="fake-1", prompt="Say").choices[0].text == "more"
    assert "".join(one.choices[0].text for one in client.completions.create(model="fake-1", prompt="Say", stream=True)) == "more"
    assert client.embeddings.create(model="fake-1", input="x", encoding_format="float").data[0].embedding == [0.5, 0.25]
    assert [model.id for model in client.models.list()] == ["fake-1"]
    found = steps(allowing, live.id)
    actions = ["responses", "responses", "completions", "completions", "embeddings"]
    assert [step["action"] for step in found] == [f"POST /v1/{action}" for action in actions]
    assert [step["model"]["prompt_tokens"] for step in found[:3]] == [20] * 3
    read = atif.Trajectory.model_validate_json(export(allowing, live.id, "atif"))
    assert [step.source for step in read.steps][:4] == ["system", "user", "agent", "agent"]
    assert read.steps[2].observation.results[0].content == "3"
    lines = [json.loads(line)["messages"] for line in export(allowing, live.id, "openai-messages").splitlines()]
    assert [message["role"] for message in lines[0]] == ["system", "user", "assistant", "tool", "assistant"]


def test_token_ids_and_log_probabilities_are_in_atif(allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox]) -> None:
    live, name = sandbox(), route()
    upstream.script = [say("Hello")]
    body = {"model": "fake-1", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "return_token_ids": True}
    httpx.post(f"{allowing.url}/models/{name}/sandbox/{live.name}/v1/chat/completions", json=body).raise_for_status()
    metrics = atif.Trajectory.model_validate_json(export(allowing, live.id, "atif")).steps[-1].metrics
    assert (metrics.prompt_token_ids, metrics.completion_token_ids, metrics.logprobs) == ([1, 2, 3], [7], [-0.25])


def test_counts_are_asked_for_and_hidden_from_a_client_that_did_not(allowing: Server, upstream: FakeModels, route: Callable[..., str]) -> None:
    base = f"{allowing.url}/models/{route()}/v1/chat/completions"
    body: dict[str, Any] = {"model": "fake-1", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    for more, chunks in [({}, 0), ({"stream_options": {"include_usage": True}}, 1)]:
        upstream.script = [say("Hello there")]
        lines = httpx.post(base, json=body | more).text.splitlines()
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert sum(not one["choices"] for one in data) == chunks
        assert lines[-2] == "data: [DONE]"
        assert upstream.asked[-1]["stream_options"] == {"include_usage": True}


def test_a_stream_passes_unbuffered(allowing: Server, upstream: FakeModels, route: Callable[..., str]) -> None:
    """The next event is sent once the client has the one before."""
    got = [threading.Event() for _ in range(3)]

    def slow(handler: FakeHandler) -> None:
        handler.stream()
        for number in range(3):
            handler.event({"id": "c", "choices": [{"index": 0, "delta": {"content": str(number)}}]})
            assert got[number].wait(20)
        handler.event("[DONE]")
        handler.end()

    upstream.script = [slow]
    body = {"model": "fake-1", "messages": [], "stream": True}
    with httpx.stream("POST", f"{allowing.url}/models/{route()}/v1/chat/completions", json=body, timeout=30) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                got[int(json.loads(line[6:])["choices"][0]["delta"]["content"])].set()


def test_a_budget_stops_the_agent_with_a_clear_error(
    allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox]
) -> None:
    live, other = sandbox(), sandbox()
    upstream.script = [*SCRIPT, say("Other.")]
    name = route(budget_each={"tokens": 30})
    base = f"{allowing.url}/models/{name}/sandbox/{live.name}/v1"
    with pytest.raises(openai.PermissionDeniedError) as stopped:
        openai_agent(base, live, False)
    assert (stopped.value.status_code, stopped.value.code) == (403, "quota_exceeded")
    assert f"the budget of the sandbox {live.name} on the model route {name} is used up: 54 of 30 tokens" in stopped.value.message
    assert len(upstream.asked) == 2
    last = steps(allowing, live.id)[-1]
    assert (last["outcome"], last["status"], last["class"]) == ("error", 403, "agent")
    read = atif.Trajectory.model_validate_json(export(allowing, live.id, "atif"))
    assert "is used up" in read.steps[-1].extra["error"]
    (line,) = [json.loads(line) for line in export(allowing, live.id, "openai-messages").splitlines()]
    assert [message["role"] for message in line["messages"]][-2:] == ["assistant", "tool"]
    # Another sandbox has its own.
    base = f"{allowing.url}/models/{name}/sandbox/{other.name}/v1"
    assert openai.OpenAI(base_url=base, api_key="x").chat.completions.create(model="fake-1", messages=[]).choices[0].message.content == "There are three."


def test_the_budget_of_a_route_survives_restarts(allowing: Server, upstream: FakeModels, route: Callable[..., str]) -> None:
    name = route(budget={"cost_usd": 1.0}, prices=[{"models": "fake-1", "input": 10_000.0, "output": 100_000.0}], dialect="anthropic")
    upstream.script = [say("One."), say("Two.")]
    client = anthropic.Anthropic(base_url=f"{allowing.url}/models/{name}", api_key="x", max_retries=0)
    ask = lambda model: client.messages.create(model=model, max_tokens=10, messages=[{"role": "user", "content": "?"}])
    ask("fake-1")
    with pytest.raises(anthropic.PermissionDeniedError, match="no price for the model"):
        ask("other")
    allowing.kill()
    allowing.start(("--model-allow", "127.0.0.0/8"))
    ask("fake-1")
    with pytest.raises(anthropic.PermissionDeniedError, match=r"the budget of the model route .* of \$1 are used"):
        ask("fake-1")
    with allowing.api() as api:
        told = api.get(f"/api/v2/models/{name}").json()["usage"]
    assert (told["calls"], told["prompt_tokens"], told["completion_tokens"]) == (2, 40, 14)


def test_a_rate_and_the_allowed_models(allowing: Server, upstream: FakeModels, route: Callable[..., str]) -> None:
    name = route(models=["fake-*"], requests_per_minute=2)
    upstream.script = [say("One."), say("Two.")]
    client = openai.OpenAI(base_url=f"{allowing.url}/models/{name}/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.PermissionDeniedError, match="does not allow the model"):
        client.chat.completions.create(model="other", messages=[])
    for _ in range(2):
        client.chat.completions.create(model="fake-1", messages=[])
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="fake-1", messages=[])
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.NotFoundError, match="there is no model route nothing"):
        openai.OpenAI(base_url=f"{allowing.url}/models/nothing/v1", api_key="x").chat.completions.create(model="fake-1", messages=[])


def test_bad_requests_are_refused_before_the_upstream(allowing: Server, upstream: FakeModels, route: Callable[..., str]) -> None:
    base = f"{allowing.url}/models/{route()}"
    bodies = [b"", b"[]", b"not json", b"{}", b'{"model":"a","model":"b"}', b'{"model":1}', b'{"model":"a"']
    for body in bodies:
        answer = httpx.post(f"{base}/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body
        told = answer.json()
        assert (told["type"], told["error"]["type"], told["error"]["code"]) == ("error", "invalid_request_error", "invalid_request")
    large = b'{"model":"fake-1","messages":["' + b"x" * (33 << 20) + b'"]}'
    answer = httpx.post(f"{base}/v1/chat/completions", content=large)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
    for path in ["/v1/files", "/v1/messages", "/v1", "", "/sandbox/absent/v1/chat/completions"]:
        assert httpx.post(base + path, json={"model": "a"}).status_code == 404, path
    assert httpx.get(f"{base}/v1/chat/completions").status_code == 405
    assert not upstream.asked


def test_bad_upstreams(allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox]) -> None:
    live, name = sandbox(), route(timeout_seconds=1)
    url = f"{allowing.url}/models/{name}/sandbox/{live.name}/v1/chat/completions"
    ask = lambda **more: httpx.post(url, json={"model": "fake-1", "messages": [], **more}, timeout=30)

    upstream.script = [
        lambda handler: handler.answer(429, {"error": {"message": "slow down", "type": "x"}}, retry_after="7"),
        lambda handler: handler.answer(500, "<h1>broken</h1><script>1</script>", content_type="text/html"),
        lambda handler: time.sleep(3),
        lambda handler: handler.answer(200, "<h1>fine?</h1>", content_type="text/html"),
    ]
    busy = ask()
    assert (busy.status_code, busy.headers["retry-after"], busy.json()["error"]["message"]) == (429, "7", "slow down")
    broken = ask()
    assert (broken.status_code, broken.text) == (500, "<h1>broken</h1><script>1</script>")
    assert broken.headers["content-security-policy"].startswith("sandbox") and broken.headers["x-content-type-options"] == "nosniff"
    hung = ask()
    assert (hung.status_code, hung.json()["error"]["code"]) == (504, "upstream_timeout")
    assert ask().text == "<h1>fine?</h1>"

    def long_line(handler: FakeHandler) -> None:
        handler.stream()
        handler.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * (10 << 20)}}]})
        handler.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "end"}, "finish_reason": "stop"}]})
        handler.event("[DONE]")
        handler.end()

    def broken_off(handler: FakeHandler) -> None:
        handler.stream()
        handler.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "so far"}}]})
        handler.connection.shutdown(socket.SHUT_RDWR)

    upstream.script = [long_line, broken_off]
    assert len(ask(stream=True).text) > 10 << 20
    with pytest.raises(httpx.RemoteProtocolError):
        ask(stream=True)
    upstream.script = [upstream.until_left]
    with httpx.stream("POST", url, json={"model": "fake-1", "messages": [], "stream": True}) as answer:
        next(answer.iter_lines())
    assert upstream.gone.wait(20), "the upstream's connection outlives its client"

    def not_ended(handler: FakeHandler) -> None:
        handler.stream()
        handler.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "all"}, "finish_reason": "stop"}]})
        handler.event("[DONE]")
        handler.rfile.read(1)

    upstream.script = [not_ended]
    with httpx.stream("POST", url, json={"model": "fake-1", "messages": [], "stream": True}) as answer:
        assert "data: [DONE]" in answer.iter_lines()

    found = ended(allowing, live.id, 8)
    assert [step["outcome"] for step in found] == ["error", "error", "failed", "ok", "ok", "failed", "aborted", "ok"]
    assert found[7]["observation"]["json"]["choices"][0]["message"]["content"] == "all"
    assert [step["class"] for step in found[:3]] == ["infrastructure"] * 3
    assert found[0]["result"]["failed"]["error"] == "slow down"
    assert found[4]["observation"]["json"]["arenite_incomplete"] is True
    assert found[5]["observation"]["json"]["choices"][0]["message"]["content"] == "so far"
    assert found[6]["observation"]["json"]["choices"][0]["message"]["content"].startswith("0 ")
    assert found[6]["model"]["estimated"] and found[6]["model"]["completion_tokens"] > 0
    server_gone = route()
    upstream.close()
    gone = httpx.post(f"{allowing.url}/models/{server_gone}/v1/chat/completions", json={"model": "a"}, timeout=30)
    assert (gone.status_code, gone.json()["error"]["code"]) == (502, "upstream_failed")


def test_private_upstreams_need_the_operator(server: Server, allowing: Server) -> None:
    with allowing.api() as api:
        for bad in ["", "ftp://x/v1", "https://user@host/v1", "https://host/v1?key=1", "http://host/v1#x"]:
            assert api.put("/api/v2/models/bad", json={"upstream": bad}).status_code == 400, bad
        # Another range than the one that the operator opened.
        api.put("/api/v2/models/private", json={"upstream": "http://10.255.255.1/v1"}).raise_for_status()
        refused = api.post("/models/private/v1/chat/completions", json={"model": "a"})
        assert refused.status_code == 502 and "model_allow does not name it" in refused.json()["error"]["message"]
        api.delete("/api/v2/models/private").raise_for_status()


def test_an_agent_inside_calls_models_and_only_for_its_own_sandbox(
    allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox]
) -> None:
    other, name = sandbox(), f"t-{uuid.uuid4().hex[:10]}"
    budget = {"sandboxes": 0, "cpu_millis": 0, "memory_bytes": 0}
    made = httpx.post(f"{allowing.url}/api/v2/sandboxes", json={"name": name, "image": "code", "network": "none", "child_budget": budget}, timeout=120)
    assert made.status_code == 201, made.text
    live = LiveSandbox(allowing.url, name)
    try:
        upstream.script = [say("Hello inside."), say("Hello again.")]
        model = route()
        ask = (
            f"import json, os, urllib.request as r; s = os.environ['ARENITE_SERVER']; k = os.environ['ARENITE_API_KEY']\n"
            f"for path in ('v1', 'sandbox/{other.name}/v1'):\n"
            f"    q = r.Request(f'{{s}}/models/{model}/{{path}}/chat/completions', json.dumps({{'model': 'fake-1', 'messages': []}}).encode(),\n"
            f"        {{'Authorization': f'Bearer {{k}}', 'Content-Type': 'application/json'}})\n"
            f"    print(json.load(r.urlopen(q))['choices'][0]['message']['content'])"
        )
        live.http.post("/v1/file/write", json={"file": "/tmp/ask.py", "content": ask}).raise_for_status()
        assert live.output("python3 /tmp/ask.py") == "Hello inside.\nHello again."
        assert len(steps(allowing, live.id)) == 2 and not steps(allowing, other.id)
        create = "python3 -c \"import os, urllib.request as r; q = r.Request(os.environ['ARENITE_SERVER'] + '/api/v2/sandboxes', b'{}', {'x-api-key': os.environ['ARENITE_API_KEY'], 'Content-Type': 'application/json'}); r.urlopen(q)\""
        assert "403" in live.bash(create).stderr
    finally:
        live.delete()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_the_upstream_gets_the_secret_and_nobody_else(
    allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox], dialect: str
) -> None:
    live, key, own = sandbox(), f"up-{uuid.uuid4().hex}", f"arn_own{uuid.uuid4().hex}"
    with allowing.api() as api:
        api.put("/api/v2/secrets/model-key", json={"value": key}).raise_for_status()
        name = route(dialect=dialect, secret="model-key")
        upstream.script = [say("Hi"), say("Hi")]
        path = "messages" if dialect == "anthropic" else "chat/completions"
        url = f"/models/{name}/sandbox/{live.name}/v1/{path}"
        headers = {"authorization": f"Bearer {own}", "x-api-key": own, "cookie": f"arenite_session={own}"}
        answers = [api.post(url, json={"model": "a", "messages": [], "stream": stream}, headers=headers) for stream in (False, True)]
        for _, sent in upstream.heads:
            assert sent.get("x-api-key" if dialect == "anthropic" else "authorization", "").endswith(key)
            assert own not in json.dumps(sent)
        texts = [answer.text + json.dumps(dict(answer.headers)) for answer in answers]
        texts += [api.get(f"/api/v2/models/{name}").text, export(allowing, live.id, "jsonl"), allowing.log_path.read_text()]
        for text in texts:
            assert key not in text and own not in text
        api.delete("/api/v2/secrets/model-key").raise_for_status()
        gone = api.post(url, json={"model": "a", "messages": []})
        assert (gone.status_code, gone.json()["error"]["message"]) == (404, "there is no secret model-key")


def test_the_page_shows_what_was_said(
    allowing: Server, upstream: FakeModels, route: Callable[..., str], sandbox: Callable[..., LiveSandbox], page: Page
) -> None:
    live, hostile = sandbox(), "<img src=x onerror=alert(1)>"
    upstream.script = [{**call("call_a", "run_bash", command=hostile), "reasoning": hostile}]
    messages = [{"role": role, "content": f"{role} {hostile}"} for role in ("system", "user", "user")]
    url = f"{allowing.url}/models/{route()}/sandbox/{live.name}/v1/chat/completions"
    httpx.post(url, json={"model": "fake-1", "messages": messages}).raise_for_status()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(f"{allowing.url}/trajectory/{live.id}#step-2")
    step = page.get_by_role("group", name="Step", exact=True)
    shown = lambda role: step.locator(f'.message[data-role="{role}"] pre')
    expect(shown("reasoning")).to_have_text(hostile, timeout=45_000)
    expect(shown("call")).to_have_text(f"run_bash({json.dumps({'command': hostile})})")
    expect(shown("user")).to_have_text([f"user {hostile}"] * 2)
    expect(step.locator(".messages summary")).to_have_text("1 earlier message")
    expect(step.locator(".step-facts")).to_contain_text("20 tokens in, 7 out")
    assert page.locator("main img").count() == 0


def test_a_rollout_runs_unchanged_but_for_the_base_url(allowing: Server, upstream: FakeModels, route: Callable[..., str], tmp_path: Path) -> None:
    upstream.script = [call("call_a", "bash-run", command="echo 42"), say("42")]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "sum", "question": "What is 6 * 7?", "answer": "42"}) + "\n")
    base = f"$ARENITE_SERVER/models/{route()}/worker/$ARENITE_WORKER_ID/task/$ARENITE_TASK_ID/v1"
    agent = f"OPENAI_BASE_URL={base} OPENAI_MODEL=fake-1 {sys.executable} {REPOSITORY / 'examples/agents/openai_compatible.py'}"
    command = [binary(), "rollout", "run", tasks, "--agent", agent, "--out", tmp_path / "out", "--workers", "1", "--server", allowing.url]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, env={"PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1"})
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert row["success"], row
    with allowing.api() as api:
        (found,) = api.get("/api/v1/trajectories", params={"worker": row["worker_id"]}).json()["trajectories"]
    assert (found["task"], found["steps"]) == ("sum", 3)
    read = atif.Trajectory.model_validate_json(export(allowing, found["trajectory"], "atif"))
    assert [step.source for step in read.steps] == ["system", "user", "agent", "agent"]
    (result,) = read.steps[2].observation.results
    assert "42" in result.content and result.extra["tool"] == "bash:run"
    (line,) = [json.loads(line) for line in export(allowing, found["trajectory"], "agentflow-rollout").splitlines()]
    assert (line["trajectory"]["question"], line["trajectory"]["final_answer"]) == ("What is 6 * 7?", "42")


def test_usage_has_calls_of_models(allowing: Server, route: Callable[..., str], upstream: FakeModels, sandbox: Callable[..., LiveSandbox]) -> None:
    """For the sandbox that they belong to, and the rest for the tenant; as JSON, as CSV, and on the command line."""

    def rows(group: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{allowing.url}/api/v2/usage?group={group}", timeout=30).raise_for_status().json()["rows"]
        return found

    def amounts(row: dict[str, Any]) -> tuple[int, int, int, float]:
        return row["model_calls"], row["model_input_tokens"], row["model_output_tokens"], row["model_cost_usd"]

    live = sandbox(labels={})
    name = route(prices=[{"models": "*", "input": 1_000_000, "output": 2_000_000}])

    def ask(path: str) -> tuple[int, int]:
        upstream.script = [say("Hello.")]
        client = openai.OpenAI(base_url=f"{allowing.url}/models/{name}/{path}", api_key="none", max_retries=0)
        said = client.chat.completions.create(model="fake-1", messages=[{"role": "user", "content": "Hi"}])
        assert said.usage is not None
        return said.usage.prompt_tokens, said.usage.completion_tokens

    def of_sandbox() -> tuple[int, int, int, float] | None:
        return next((amounts(row) for row in rows("sandbox") if row.get("sandbox") == live.id), None)

    tokens = ask(f"sandbox/{live.name}/v1")
    cost = tokens[0] + 2 * tokens[1]
    until(lambda: of_sandbox() == (1, *tokens, cost))
    # The calls of the tests before this one are counted by now, too.
    before = amounts(rows("tenant")[0])
    assert ask("v1") == tokens
    until(lambda: amounts(rows("tenant")[0]) == (before[0] + 1, before[1] + tokens[0], before[2] + tokens[1], before[3] + cost))
    text = httpx.get(f"{allowing.url}/api/v2/usage?group=sandbox&format=csv", timeout=30).raise_for_status().text
    [line] = [line for line in csv.DictReader(io.StringIO(text)) if line["sandbox"] == live.id]
    assert (line["model_calls"], line["model_input_tokens"], float(line["model_cost_usd"])) == ("1", str(tokens[0]), cost)
    assert f"${cost:.4f}" in run(allowing, "usage", "--group", "sandbox").stdout
