"""The example of a backend in another language, built and spoken to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_process import REPOSITORY, Failed, PluginProcess

EXAMPLE = REPOSITORY / "examples/backend-rust"


@pytest.fixture(scope="module")
def program() -> str:
    """In CARGO_TARGET_DIR, else in a temporary directory that the next run finds again."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.fail("there is no cargo here to build the example with")
    target = os.environ.get("CARGO_TARGET_DIR") or str(Path(tempfile.gettempdir()) / "arenite-backend-rust")
    done = subprocess.run(
        [cargo, "build", "--quiet", "--locked", "--message-format=json"],
        cwd=EXAMPLE,
        env={**os.environ, "CARGO_TARGET_DIR": target},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return next(message["executable"] for message in messages if message.get("executable"))


@pytest.fixture
def counter(program: str) -> Iterator[PluginProcess]:
    process = PluginProcess([program])
    yield process
    process.kill()


def test_describe(counter: PluginProcess) -> None:
    told = counter.describe({"start": 10})
    assert (told["protocol"], told["name"], told["kind"]) == (1, "counter", "backend")
    assert told["default_config"] == {"start": 10}
    assert [tool["name"] for tool in told["tools"]] == ["counter:add", "counter:read"]
    for tool in told["tools"]:
        assert tool.keys() == {"name", "resource_type", "config_key", "description", "schema", "hidden"}


def test_sessions_count_for_themselves(counter: PluginProcess) -> None:
    counter.describe({"start": 10})
    assert counter.ask("warmup") == {}
    counter.initialize("a_1", {"start": 10})
    counter.initialize("b_1", {"start": 0})
    assert counter.call("counter:add", {"by": 5}, "a_1") == {"code": 0, "message": "success", "data": {"count": 15}}
    assert counter.call("counter:add", {}, "b_1")["data"] == {"count": 1}
    assert counter.call("counter:read", {}, "a_1")["data"] == {"count": 15}
    counter.cleanup("a_1")
    assert counter.call("counter:read", {}, "a_1")["data"] == {"count": 10}
    assert counter.ask("shutdown") == {}
    assert counter.end() == 0


def test_errors(counter: PluginProcess) -> None:
    counter.describe()
    for params, text in (({"by": "x"}, "by is a whole number"), ({"zzz": 1}, "unexpected parameter 'zzz'")):
        with pytest.raises(Failed, match=text) as failed:
            counter.call("counter:add", params)
        assert failed.value.kind == "arguments"
    counter.call("counter:add", {"by": 2**63 - 1})
    with pytest.raises(Failed, match="can't hold") as failed:
        counter.call("counter:add", {"by": 1})
    assert failed.value.kind == "exception"
    with pytest.raises(Failed) as failed:
        counter.call("counter:none")
    assert failed.value.kind == "unknown_tool"
    with pytest.raises(Failed) as failed:
        counter.ask("dance")
    assert failed.value.code == -32601
    counter.write(b"{nope\n")
    assert counter.answer(None)["error"]["code"] == -32700
    counter.notify("cancel", {"id": 1})
    assert counter.call("counter:read", {})["code"] == 0
