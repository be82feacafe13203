"""code: both languages by one call; and sandboxes that are made ahead."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from sandboxes import LiveSandbox


def run(live: LiveSandbox, language: str, code: str, **arguments: Any) -> Any:
    answer = live.client.code.execute_code(language=language, code=code, **arguments)
    assert answer.success is True, answer
    return answer.data


class TestExecute:
    @pytest.mark.parametrize(("language", "printing"), [("python", "print('hi')"), ("javascript", "console.log('hi')")])
    def test_the_last_expression_is_a_result(self, coder: LiveSandbox, language: str, printing: str) -> None:
        data = run(coder, language, f"{printing}\n6 * 7")
        assert (data.language, data.status, data.exit_code, data.stdout) == (language, "ok", 0, "hi\n")
        assert [output["output_type"] for output in data.outputs] == ["stream", "execute_result"]
        assert data.outputs[-1]["data"]["text/plain"] == "42"
        assert data.session_id is None and data.traceback is None

    @pytest.mark.parametrize(("language", "setting"), [("python", "x = 1"), ("javascript", "const x = 1")])
    def test_state(self, coder: LiveSandbox, language: str, setting: str) -> None:
        session = run(coder, language, setting, stateful=True).session_id
        assert run(coder, language, "x", stateful=True, session_id=session).outputs[0]["text"] == "1"
        lost = run(coder, language, setting), run(coder, language, "x")
        assert (lost[1].status, lost[1].exit_code) == ("error", 1) and lost[1].traceback

    @pytest.mark.parametrize(("language", "loop"), [("python", "while True: pass"), ("javascript", "while (true) {}")])
    def test_time(self, coder: LiveSandbox, language: str, loop: str) -> None:
        data = run(coder, language, loop, timeout=1)
        assert (data.status, data.exit_code) == ("timeout", 124)

    def test_exit_codes_of_python(self, coder: LiveSandbox) -> None:
        assert run(coder, "python", "import sys; sys.exit(3)").exit_code == 3
        left = run(coder, "python", "print('a'); import sys; sys.exit()")
        assert (left.exit_code, left.status, left.stdout) == (0, "ok", "a\n")

    def test_what_is_written_is_there_when_the_kernel_has_ended(self, coder: LiveSandbox) -> None:
        path = f"/tmp/written-{time.time_ns()}"
        run(coder, "python", f"f = open({path!r}, 'w'); f.write('all of it')")
        deadline = time.monotonic() + 10
        while coder.output(f"cat {path}") != "all of it":
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def test_other_languages_are_refused(self, coder: LiveSandbox) -> None:
        answer = coder.http.post("/v1/code/execute", json={"language": "ruby", "code": ""})
        assert answer.status_code == 422

    def test_info(self, coder: LiveSandbox) -> None:
        python, javascript = coder.client.code.get_info().data.languages
        assert (python.language, javascript.language) == ("python", "javascript")
        assert python.runtime_version.startswith("3.") and javascript.runtime_version.startswith("v24.")
        assert (python.default_timeout, python.max_timeout) == (30, 300)


@pytest.fixture(scope="module")
def pooled(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server with a pool, restarted for it, and back."""
    templates: Path = tmp_path_factory.mktemp("templates")
    (templates / "pooled.toml").write_text('image = "hooked"\npool = 1\nresources = { memory_bytes = 1610612736 }\n')
    (templates / "Imagefile").write_text('FROM code\nENV RUN_HOOK_INIT="hostname >>/tmp/hooked"\n')
    build = [str(binary()), "image", "build", "hooked", "--data-dir", str(server.data_dir)]
    subprocess.run([*build, "--file", str(templates / "Imagefile")], check=True, timeout=60)
    server.restart(("--pool", "code=2", "--templates-dir", str(templates)))
    yield server
    server.restart()


def waiting(server: Server) -> int:
    page = httpx.get(f"{server.url}/metrics", timeout=10).text
    return int(float(re.search(r"^arenite_sandbox_pool (\S+)$", page, re.MULTILINE).group(1)))


def filled(server: Server, number: int = 3) -> None:
    deadline = time.monotonic() + 120
    while waiting(server) < number:
        assert time.monotonic() < deadline, server.log_tail()
        time.sleep(0.1)


def make(server: Server, name: str, **spec: Any) -> tuple[LiveSandbox, dict[str, Any]]:
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, **spec}, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    live = LiveSandbox(server.url, name, 120)
    return live, live.details()


class TestPool:
    def test_a_sandbox_made_ahead_becomes_what_is_asked_for(self, pooled: Server) -> None:
        filled(pooled)
        live, details = make(pooled, "claimed", image="code", env={"KEY": "a 'b' \"c\" ü"}, hostname="my-box", workdir="/tmp/work")
        assert any(stage["name"] == "adopt" for stage in details["stages"]), details["stages"]
        data = run(live, "python", "import os, socket\n(os.environ['KEY'], socket.gethostname(), os.getcwd())")
        assert data.outputs[0]["text"] == repr(("a 'b' \"c\" ü", "my-box", "/tmp/work")), data
        assert live.output("hostname; cat /etc/hostname; getent hosts my-box; echo $KEY; pwd").split("\n") == [
            "my-box", "my-box", "127.0.1.1       my-box", "a 'b' \"c\" ü", "/tmp/work",
        ]
        live.delete()

    def test_nothing_of_one_is_in_the_next(self, pooled: Server) -> None:
        filled(pooled)
        first, one = make(pooled, "first", image="code", env={"SECRET": "1"})
        run(first, "python", "import os; open('/tmp/trace', 'w').close(); x = 1", stateful=True)
        second, two = make(pooled, "second", image="code")
        assert one["id"] != two["id"]
        data = run(second, "python", "import os; ('SECRET' in os.environ, os.path.exists('/tmp/trace'), 'x' in globals())")
        assert data.outputs[0]["text"] == "(False, False, False)"
        for live in (first, second):
            live.delete()

    def test_what_python_reads_at_its_start_is_respected(self, pooled: Server) -> None:
        filled(pooled)
        live, _ = make(pooled, "early", image="code", env={"PYTHONPATH": "/tmp/early"})
        assert run(live, "python", "import sys; '/tmp/early' in sys.path").outputs[0]["text"] == "True"
        live.delete()

    def test_a_template_says_its_own(self, pooled: Server) -> None:
        filled(pooled)
        live, details = make(pooled, "of-template", template="pooled")
        assert any(stage["name"] == "adopt" for stage in details["stages"])
        assert details["spec"]["resources"]["memory_bytes"] == 1610612736
        # The image's hook ran when the sandbox had its name, and only then.
        assert live.output("cat /tmp/hooked").split() == ["of-template"]
        live.delete()

    def test_an_unnamed_one_starts_once_when_it_is_assigned(self, pooled: Server) -> None:
        """Neither the wait in the pool nor a name that equals the id keeps its main command from running once."""
        filled(pooled)
        answer = httpx.post(f"{pooled.url}/api/v2/sandboxes", json={"image": "code", "args": ["sh", "-c", "echo ran >>/tmp/ran"]}, timeout=120)
        live = LiveSandbox(pooled.url, answer.json()["name"])
        assert any(stage["name"] == "adopt" for stage in live.details()["stages"])
        assert live.output("until [ -e /tmp/ran ]; do sleep 0.02; done; sleep 0.2; cat /tmp/ran") == "ran"
        live.delete()

    def test_other_resources_are_made_on_their_own(self, pooled: Server) -> None:
        filled(pooled)
        live, details = make(pooled, "other", image="code", resources={"memory_bytes": 1 << 30})
        assert not any(stage["name"] == "adopt" for stage in details["stages"])
        live.delete()

    def test_a_killed_server_leaves_none_behind(self, pooled: Server) -> None:
        filled(pooled)
        pooled.kill()
        # Without a pool now.
        pooled.start()
        assert waiting(pooled) == 0
        assert "made ahead, prepared and never used" in pooled.log_tail()
