"""The methods for programs that are not async, and batches."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import io
import sys
import threading
from typing import Any

import pytest
from fake_server import FakeRecordedServer, success
from test_client_wire import everything

from sandbox import Sandbox, batches


def counting(fake: FakeRecordedServer) -> None:
    numbers = iter(range(1, 1_000_000))
    fake.on("/api/v1/execute", lambda _: success({"n": next(numbers)}))


def threads() -> int:
    return sum(thread.name.startswith("sandbox-") for thread in threading.enumerate())


def test_a_hundred_in_a_row(fake: FakeRecordedServer) -> None:
    counting(fake)
    with Sandbox(fake.url) as sandbox:
        assert [sandbox.execute_sync("demo:incr")["data"]["n"] for _ in range(100)] == list(range(1, 101))
    connections = {seen.connection for seen in fake.seen if seen.url == "/api/v1/execute"}
    assert len(connections) == 1, "the connection stays open from call to call"


def test_inside_a_running_loop(fake: FakeRecordedServer) -> None:
    counting(fake)

    async def program() -> list[int]:
        sandbox = Sandbox(fake.url)
        numbers = []
        for _ in range(10):
            numbers.append(sandbox.execute_sync("demo:incr")["data"]["n"])
            numbers.append((await sandbox.execute("demo:incr"))["data"]["n"])
        await sandbox.close()
        sandbox.close_sync()
        return numbers

    assert asyncio.run(program()) == list(range(1, 21))


def test_from_many_threads(fake: FakeRecordedServer) -> None:
    counting(fake)
    with Sandbox(fake.url) as sandbox, concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: sandbox.execute_sync("demo:incr")["data"]["n"], range(200)))
    assert sorted(answers) == list(range(1, 201))


def test_every_method_has_its_twin(fake: FakeRecordedServer) -> None:
    fake.replay()
    sandbox = Sandbox(fake.url, worker_id="cw1")
    sandbox.start_sync(["demo"])
    assert sandbox.create_session_sync("demo", {"greeting": "g", "custom_name": "x y"})["status"] == "success"
    assert sandbox.create_session_sync("demo")["status"] == "success"
    assert sandbox.create_session_sync(["bash", "badinit"])["status"] == "partial"
    assert sandbox.execute_sync("demo:incr", {"by": 3})["data"] == {"n": 3}
    assert sandbox.execute_sync("demo:incr", by=4)["data"] == {"n": 7}
    with pytest.raises(Exception, match="Tool not found"):
        sandbox.execute_sync("nope")
    assert len(sandbox.list_sessions_sync()) == 3
    sandbox.refresh_sessions_sync("demo")
    sandbox.refresh_sessions_sync()
    assert sandbox.reinitialize_sync("demo", {"a": 1})["new_session_id"] == "demo_cw1_002_c01e822e"
    assert len(sandbox.get_tools_sync()) == 18
    sandbox.get_status_sync()
    sandbox.warmup_sync(["demo"])
    sandbox.get_warmup_status_sync()
    assert fake.wrong == []
    fake._script.clear()
    sandbox.close_sync()
    assert not sandbox.is_connected


def test_async_and_sync_send_the_same(fake: FakeRecordedServer) -> None:
    fake.replay()
    asyncio.run(everything(Sandbox(fake.url, worker_id="cw1")))
    assert fake.wrong == []


def test_a_closed_sandbox_leaves_no_thread_and_can_be_used_again(fake: FakeRecordedServer) -> None:
    counting(fake)
    before = threads()
    sandbox = Sandbox(fake.url)
    sandbox.execute_sync("demo:incr")
    assert threads() == before + 1
    sandbox.close_sync()
    sandbox.execute_sync("demo:incr")
    sandbox.close_sync()
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("sandbox-")]:
        thread.join(5)
    assert threads() == 0


def test_a_sandbox_that_is_dropped_leaves_no_thread(fake: FakeRecordedServer) -> None:
    counting(fake)
    sandbox = Sandbox(fake.url)
    sandbox.execute_sync("demo:incr")
    del sandbox
    gc.collect()
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("sandbox-")]:
        thread.join(5)
    assert threads() == 0


class Batches:
    """Counts, and fails on request, as the real server would."""

    def __init__(self, fake: FakeRecordedServer) -> None:
        self.sizes: list[int] = []
        fake.on("/api/v1/execute/batch", self.answer)

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.sizes.append(len(body["actions"]))
        results = []
        for action in body["actions"]:
            code = 4002 if action["action"] == "nope" else 0
            results.append({"code": code, "message": "", "data": action.get("params"), "meta": {}})
            if code and body["stop_on_error"] and not body["parallel"]:
                break
        good = sum(result["code"] == 0 for result in results)
        total = len(body["actions"])
        code, status = (0, 200) if good == total else (5009, 500) if good == 0 else (5010, 207)
        data = {"results": results, "total": total, "executed": len(results), "success_count": good}
        return status, {"code": code, "message": "from the server", "data": data, "meta": {"tool": "batch:execute"}}


def actions(count: int) -> list[dict[str, Any]]:
    return [{"action": "demo:incr", "params": {"by": number}} for number in range(count)]


def test_a_batch_is_one_request(fake: FakeRecordedServer) -> None:
    seen = Batches(fake)
    with Sandbox(fake.url) as sandbox:
        answer = sandbox.batch_sync(actions(20))
        assert (answer["code"], answer["message"]) == (0, "from the server")
        assert sandbox.batch_sync([])["data"]["total"] == 0
    assert seen.sizes == [20, 0]


def test_a_long_batch_is_several_requests_and_one_answer(fake: FakeRecordedServer) -> None:
    seen = Batches(fake)
    with Sandbox(fake.url) as sandbox:
        answer = sandbox.batch_sync(actions(1203))
    assert seen.sizes == [500, 500, 203]
    assert answer["code"] == 0
    data = answer["data"]
    assert (data["total"], data["executed"], data["success_count"]) == (1203, 1203, 1203)
    assert [result["data"]["by"] for result in data["results"]] == list(range(1203))
    assert answer["meta"]["tool"] == "batch:execute"


def test_a_serial_batch_ends_at_the_first_failure(fake: FakeRecordedServer) -> None:
    seen = Batches(fake)
    todo = [*actions(12), {"action": "nope"}, *actions(20)]
    with Sandbox(fake.url) as sandbox:
        answer = sandbox.batch_sync(todo, chunk_size=10)
        assert (answer["code"], answer["message"]) == (5010, "1 out of 13 actions failed")
        assert (answer["data"]["total"], answer["data"]["executed"]) == (33, 13)
        assert seen.sizes == [10, 10]
        on = sandbox.batch_sync(todo, stop_on_error=False, chunk_size=10)
        assert (on["data"]["executed"], on["data"]["success_count"]) == (33, 32)
        failed = sandbox.batch_sync([{"action": "nope"}] * 4, stop_on_error=False, chunk_size=3)
        assert (failed["code"], failed["data"]["executed"]) == (5009, 4)
        parallel = sandbox.batch_sync(todo, parallel=True, chunk_size=10)
        assert parallel["data"]["executed"] == 33


def test_a_refused_batch_raises(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/execute/batch", lambda _: (422, {"detail": []}))
    with Sandbox(fake.url) as sandbox, pytest.raises(Exception, match="Request failed"):
        sandbox.batch_sync(actions(2))


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_progress(fake: FakeRecordedServer, monkeypatch: pytest.MonkeyPatch, with_tqdm: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    if with_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    seen = Batches(fake)
    with Sandbox(fake.url) as sandbox:
        sandbox.batch_sync(actions(200), progress=True)
    assert seen.sizes == [4] * 50
    assert "200/200" in terminal.getvalue()
    assert "4/200" in terminal.getvalue() or with_tqdm


def test_without_a_terminal_and_tqdm_there_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert batches.make_bar(5) is None
