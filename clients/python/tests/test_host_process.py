"""The host as a process: it survives its tools, and answers every request once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from host_process import Failed, PluginProcess

Start = Callable[..., PluginProcess]


def test_an_exception_is_an_answer(demo: PluginProcess) -> None:
    with pytest.raises(Failed, match="^boom$") as failed:
        demo.call("demo:boom")
    assert (failed.value.code, failed.value.type, failed.value.kind) == (-32000, "RuntimeError", "exception")
    # Where it happened is for the log, not for the caller.
    demo.until(lambda: b'raise RuntimeError("boom")' in demo.log)


@pytest.mark.parametrize(
    ("tool", "type"),
    [("odd:exit", "SystemExit"), ("odd:interrupt", "KeyboardInterrupt"), ("odd:stop", "RuntimeError")],
)
def test_what_would_end_a_program_does_not_end_the_host(odd: PluginProcess, tool: str, type: str) -> None:
    with pytest.raises(Failed) as failed:
        odd.call(tool)
    assert failed.value.type == type
    assert odd.call("odd:plain", {"text": "alive"})["data"] == "alive"


def test_a_task_that_a_tool_left_behind_does_not_end_the_host(odd: PluginProcess) -> None:
    assert odd.call("odd:exit_later")["data"] == "left"
    assert odd.call("odd:plain", {"text": "alive"})["data"] == "alive"
    assert odd.end() == 0


@pytest.mark.parametrize("tool", ["odd:hang", "odd:hang_sync"])
def test_a_hanging_call_can_be_cancelled(odd: PluginProcess, tool: str) -> None:
    id = odd.begin(tool)
    assert odd.call("odd:plain", {"text": "meanwhile"})["data"] == "meanwhile"
    start = time.monotonic()
    odd.notify("cancel", {"id": id})
    with pytest.raises(Failed) as failed:
        odd.result(id)
    assert failed.value.kind == "cancelled"
    assert time.monotonic() - start < 1
    assert odd.end() == 0, "a thread that hangs must not keep the process alive"


def test_a_call_that_refuses_to_be_cancelled_is_answered(odd: PluginProcess) -> None:
    id = odd.begin("odd:stubborn")
    odd.notify("cancel", {"id": id})
    with pytest.raises(Failed) as failed:
        odd.result(id)
    assert failed.value.kind == "cancelled"
    assert odd.end(timeout=30) == 0


def test_a_call_that_is_cancelled_before_it_begins_is_answered(odd: PluginProcess) -> None:
    # Both lines arrive at once, so that the call's first step has not run.
    call = {"jsonrpc": "2.0", "id": "early", "method": "call", "params": {"tool": "odd:hang"}}
    cancel = {"jsonrpc": "2.0", "method": "cancel", "params": {"id": "early"}}
    start = time.monotonic()
    odd.write(json.dumps(call).encode() + b"\n" + json.dumps(cancel).encode() + b"\n")
    assert odd.answer("early")["error"]["data"]["kind"] == "cancelled"
    assert time.monotonic() - start < 1, "it was not given up only because it took too long"


def test_cancelling_what_is_not_there_does_nothing(odd: PluginProcess) -> None:
    for id in (999, "x", None, [1], {"a": 1}):
        odd.notify("cancel", {"id": id})
    assert odd.call("odd:plain", {"text": "alive"})["data"] == "alive"


def test_sync_tools_run_at_the_same_time(odd: PluginProcess) -> None:
    start = time.monotonic()
    ids = [odd.begin("odd:nap", {"s": 0.5}) for _ in range(20)]
    quick = odd.call("odd:plain", {"text": "quick"})
    assert quick["data"] == "quick"
    assert time.monotonic() - start < 0.4, "a tool in a thread held up the loop"
    assert [odd.result(id)["result"]["data"] for id in ids] == [0.5] * 20
    assert time.monotonic() - start < 3


def test_answers_come_in_the_order_in_which_they_are_ready(demo: PluginProcess) -> None:
    slow = demo.begin("demo:sleep", {"s": 0.3})
    fast = demo.begin("demo:sleep", {"s": 0})
    start = time.monotonic()
    demo.result(fast)
    assert time.monotonic() - start < 0.25
    demo.result(slow)


def test_two_initialize_at_the_same_time(start: Start) -> None:
    slow = start("backend", "demo_backends.SlowBackend")
    slow.describe()
    begin = time.monotonic()
    sessions = [{"session_id": f"s{number}"} for number in range(4)]
    ids = [slow.send("initialize", {"worker_id": "w", "config": {}, "session": session}) for session in sessions]
    assert [slow.result(id) for id in ids] == [{}] * 4
    assert time.monotonic() - begin < 4


def test_a_flood_of_prints_harms_nothing(odd: PluginProcess) -> None:
    assert odd.call("odd:chatter", {"lines": 20_000})["data"] == "", "stdin is empty for tools"
    assert odd.call("odd:plain", {"text": "alive"})["data"] == "alive"
    assert odd.end() == 0
    assert odd.unreadable == []
    for text in (b"by the old name", b"by its number", b"by a child", b"19999"):
        assert text in odd.log


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ("nan", "not JSON compliant"),
        ("inf", "not JSON compliant"),
        ("object", "Live is not JSON serializable"),
        ("bytes", "bytes is not JSON serializable"),
        ("set", "set is not JSON serializable"),
        ("ring", "Circular|contains itself"),
        ("deep", "deep"),
        ("surrogate", "surrogate"),
        ("huge", "number|digits"),
        ("too large", "bytes"),
    ],
)
def test_what_is_not_json_is_refused(odd: PluginProcess, which: str, text: str) -> None:
    with pytest.raises(Failed, match=text) as failed:
        odd.call("odd:value", {"which": which})
    assert failed.value.kind == "not_json"
    assert odd.unreadable == []


def test_values_that_are_json(odd: PluginProcess) -> None:
    assert odd.call("odd:value", {"which": "none"}) is None
    assert odd.call("odd:value", {"which": "number"}) == 2.5
    assert odd.call("odd:value", {"which": "int"}) == 2**64 - 1
    assert odd.call("odd:value", {"which": "keys"}) == {"1": "a", "null": "b"}
    assert odd.call("odd:value", {"which": "objects"})[499] == {"n": [499]}


def test_large_results_and_params(odd: PluginProcess) -> None:
    ids = [odd.begin("odd:value", {"which": "large"}) for _ in range(4)]
    for id in ids:
        assert odd.result(id)["result"]["text"] == "ü" * (1024 * 1024)
    text = "y" * (1024 * 1024)
    assert odd.call("odd:plain", {"text": text})["data"] == text


def test_lines_that_cannot_be_read_are_answered(odd: PluginProcess) -> None:
    lines = {
        b"{nope\n": -32700,
        b"\xff\xfe\n": -32700,
        b"[" * 100_000 + b"\n": -32700,
        b"[]\n": -32600,
        b"7\n": -32600,
        b'{"jsonrpc":"2.0","method":"describe","id":null}\n': -32600,
        b'{"jsonrpc":"2.0","method":5}\n': -32600,
        b'{"jsonrpc":"2.0","method":"call","params":[1]}\n': -32600,
        b'{"text":"' + b"x" * (17 * 1024 * 1024) + b'"}\n': -32700,
    }
    for line, code in lines.items():
        odd.write(line)
        answer = odd.answer(None)
        assert answer["error"]["code"] == code, line[:60]
    odd.write(b"\n  \n")
    assert odd.call("odd:plain", {"text": "alive"})["data"] == "alive"


def test_an_id_that_is_in_use_is_refused(odd: PluginProcess) -> None:
    hang = odd.begin("odd:hang")
    odd.write(json.dumps({"jsonrpc": "2.0", "id": hang, "method": "warmup"}).encode() + b"\n")
    assert "worked on already" in odd.answer(hang)["error"]["message"]


def test_too_many_requests_are_refused_and_the_host_goes_on(odd: PluginProcess) -> None:
    ids = [odd.begin("odd:hang") for _ in range(1030)]
    with pytest.raises(Failed, match="more than 1024"):
        odd.result(ids[-1])
    for id in ids[:1024]:
        odd.notify("cancel", {"id": id})
    for id in ids[:1024]:
        assert odd.answer(id)["error"]["data"]["kind"] == "cancelled"
    assert odd.call("odd:plain", {"text": "alive"})["data"] == "alive"


def test_progress_and_log(odd: PluginProcess) -> None:
    id = odd.begin("odd:progress", {"steps": 3})
    assert odd.result(id)["result"]["data"] == 3
    told = [n["params"] for n in odd.notifications if n["method"] == "progress"]
    assert told == [{"id": id, "message": f"step {step}"} for step in range(3)]
    logged = [n["params"] for n in odd.notifications if n["method"] == "log"]
    assert {"level": "warning", "message": "odd: a word for the log"} in logged


def test_the_end_of_stdin_ends_it_and_cancels_what_runs(odd: PluginProcess) -> None:
    id = odd.begin("odd:hang")
    odd.begin("odd:hang_sync")
    start = time.monotonic()
    assert odd.end() == 0
    assert time.monotonic() - start < 5
    assert odd.answer(id)["error"]["data"]["kind"] == "cancelled"
    assert b"SHUTDOWN REACHED" in odd.log, "a backend gets to release what it holds"


def test_without_arguments_it_says_how_it_is_called(start: Start) -> None:
    process = start()
    assert process.process.wait(10) == 2
    process.until(lambda: b"backend" in process.log)
