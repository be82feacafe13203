"""What the record says beyond the calls themselves: who caused a step, how it went, what a command did, and whether it is still
as it was written."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from playwright.sync_api import Page, expect
from sandboxes import LiveSandbox
from trajectory.people import looked_at, worked_by_both

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def arenite(server: Server) -> Run:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")} | {"ARENITE_SERVER": server.url}

    def run(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        piped: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run([str(binary()), *words], capture_output=True, text=True, timeout=300, env=environment, check=False, **piped)

    return run


@pytest.fixture
def person(page: Page) -> Iterator[Page]:
    page.set_default_timeout(45_000)
    expect.set_options(timeout=45_000)
    yield page


def steps(api: httpx.Client, live: LiveSandbox, **query: str) -> list[dict[str, Any]]:
    page = api.get(f"/api/v1/trajectories/{live.id}", params={"limit": "1000", **query}).raise_for_status().json()
    assert page["next_after"] is None
    return page["steps"]


class TestResults:
    def test_a_failure_is_told_though_the_call_went_well(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox], arenite: Run) -> None:
        live = sandbox()
        live.output("echo fine")
        live.bash("exit 3")
        live.http.post("/v1/file/read", json={"file": "/no/such"})
        live.bash("head -c 200000 /dev/zero | tr '\\0' x; exit 4")
        found = steps(api, live)[1:]
        assert [step["result"] for step in found[:2]] == ["succeeded", {"failed": {"exit_code": 3}}]
        assert "error" in found[2]["result"]["failed"]
        # Of an answer that stands outside the record, too.
        assert "blob" in found[3]["observation"] and found[3]["result"] == {"failed": {"exit_code": 4}}
        assert [step["outcome"] for step in (found[0], found[1], found[3])] == ["ok"] * 3
        assert [step["step"] for step in steps(api, live, result="failed")] == [3, 4, 5]
        assert [step["step"] for step in steps(api, live, result="succeeded", origin="agent")] == [2]
        assert api.get(f"/api/v1/trajectories/{live.id}", params={"result": "maybe"}).status_code == 400
        shown = arenite("trajectory", "show", live.name, "--result", "failed").stdout
        assert "exit code 3" in shown and "exit code 4" in shown and "echo fine" not in shown
        exported = json.loads(arenite("trajectory", "export", live.name, "--format", "atif").stdout)
        assert [step["extra"]["result"] for step in exported["steps"]][:2] == ["succeeded", {"failed": {"exit_code": 3}}]
        rollout = json.loads(arenite("trajectory", "export", live.name, "--format", "agentflow-rollout").stdout)
        assert [call["success"] for call in rollout["trajectory"]["tool_calls"]] == [True, False, False, False]


class TestCommands:
    def test_a_command_is_one_step_and_runs_again(
        self, api: httpx.Client, sandbox: Callable[..., LiveSandbox], arenite: Run, tmp_path: Path
    ) -> None:
        live = sandbox()
        (tmp_path / "a.txt").write_text("what is in it\n")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder/b.txt").write_text("and more\n")
        assert arenite("exec", live.name, "--", "sh", "-c", "sleep 0.6; echo slow; exit 5").returncode == 5
        assert arenite("exec", live.name, "--", "cat", stdin="from stdin\n").stdout == "from stdin\n"
        assert arenite("cp", str(tmp_path / "a.txt"), f"{live.name}:/home/gem/a.txt").returncode == 0
        assert arenite("cp", str(tmp_path / "folder"), f"{live.name}:/home/gem/folder").returncode == 0
        assert arenite("cp", f"{live.name}:/home/gem/folder", str(tmp_path / "back")).returncode == 0
        assert (tmp_path / "back/b.txt").read_text() == "and more\n"
        assert arenite("exec", live.name, "--", "cat", "/home/gem/a.txt").stdout == "what is in it\n"
        found = steps(api, live)
        assert [step["action"] for step in found[1:]] == ["exec", "exec", "cp", "cp", "cp", "exec"]
        assert {step["origin"] for step in found[1:]} == {"agent"} and found[0]["origin"] == "system"
        slow, cat, copied = found[1], found[2], found[3]
        assert slow["result"] == {"failed": {"exit_code": 5}} and "slow" in json.dumps(slow["observation"])
        assert set(slow["arguments"]["json"]) == {"command"}
        assert "from stdin" in json.dumps(cat["calls"]) and cat["result"] == "succeeded"
        assert copied["arguments"]["json"]["target"] == f"{live.name}:/home/gem/a.txt"
        assert any(call["action"] == "POST /v1/file/upload" for call in copied["calls"])
        again = arenite("trajectory", "replay", live.name, "--json")
        told = json.loads(again.stdout)
        assert (again.returncode, told["divergence"], told["replayed"], told["skipped"]) == (0, None, 6, []), again

    def test_a_command_line_that_goes_ends_its_step(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox], server: Server) -> None:
        live = sandbox()
        environment = os.environ | {"ARENITE_SERVER": server.url}
        running = subprocess.Popen([str(binary()), "exec", live.name, "--", "sleep", "60"], env=environment, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not any(step["action"] == "exec" for step in steps(api, live)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.kill()
        running.wait()
        while steps(api, live)[1]["outcome"] is None:
            assert time.monotonic() < deadline + 60
            time.sleep(0.5)
        assert steps(api, live)[1]["outcome"] == "aborted"


class TestPeople:
    def test_looking_is_no_step(self, server: Server, api: httpx.Client, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        live.output("echo the only one")
        looked_at(person, server, live, ["terminal", "files", "ports", "logs", "processes"])
        person.wait_for_timeout(1500)
        assert [step["action"].split("?")[0] for step in steps(api, live)] == ["POST /api/v1/sandbox", "POST /v1/bash/exec"]
        # What is typed is a person's.
        person.goto(f"{server.url}/sandbox/{live.name}/terminal")
        expect(person.locator("#state")).to_have_text("connected")
        person.keyboard.type("echo by-hand\n")
        deadline = time.monotonic() + 45
        while not (own := steps(api, live, origin="person")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert own[0]["action"].startswith("GET /v1/shell/ws")
        exported = api.get(f"/api/v1/trajectories/{live.id}/export").text
        assert [json.loads(line)["action"] for line in exported.splitlines()] == ["POST /v1/bash/exec"]

    def test_watching_a_desktop_is_no_step(self, server: Server, api: httpx.Client, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox(image="browser")
        person.goto(f"{server.url}/sandbox/{live.name}/index.html")
        with person.expect_websocket(lambda socket: "websockify" in socket.url):
            person.click("#tab-browser")
        # The viewer exchanges what both sides support, the clipboard among it.
        person.wait_for_timeout(3000)
        assert [step["action"] for step in steps(api, live)] == ["POST /api/v1/sandbox"]

    @pytest.mark.timeout(400)
    def test_beside_a_person_an_agents_calls_are_exported_and_run_again(
        self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page, arenite: Run
    ) -> None:
        worked_by_both(server, person, arenite, seconds=6)


class TestVerify:
    def test_a_changed_bit_is_found_and_not_served(
        self, server: Server, api: httpx.Client, sandbox: Callable[..., LiveSandbox], arenite: Run, person: Page
    ) -> None:
        live = sandbox()
        for n in range(4):
            live.output(f"echo number-{n}")
        live.output("head -c 100000 /dev/zero | tr '\\0' x")
        trajectory = live.id
        live.delete()
        fine = arenite("trajectory", "verify", trajectory)
        assert (fine.returncode, "all as written" in fine.stdout) == (0, True), fine
        (log,) = Path(server.data_dir).rglob(f"{trajectory}.jsonl")
        lines = log.read_bytes().split(b"\n")
        at = next(n for n, line in enumerate(lines) if b"number-2" in line and b'"kind":"outcome"' in line)
        lines[at] = lines[at].replace(b"number-2", b"number-6")
        log.write_bytes(b"\n".join(lines))
        found = json.loads(arenite("trajectory", "verify", trajectory, "--json").stdout)["trajectories"][0]
        assert any(problem.get("line") == at + 1 for problem in found["problems"]), found
        page = api.get(f"/api/v1/trajectories/{trajectory}").json()["steps"]
        assert [step["outcome"] for step in page] == ["ok", "ok", "ok", "damaged", "ok", "ok", "ok"]
        assert "number-6" not in json.dumps(page)
        person.goto(f"{server.url}/trajectory/{trajectory}")
        damaged = person.locator('.virtual-row[data-id="step-4"]')
        expect(damaged).to_have_attribute("data-outcome", "failed")
        expect(damaged).to_contain_text("damaged")
        kept = page[5]["observation"]["blob"]["blake3"]
        (blob,) = [path for path in Path(server.data_dir).rglob(kept[2:]) if path.parent.name == kept[:2]]
        content = bytearray(blob.read_bytes())
        content[50_000] ^= 1
        blob.write_bytes(content)
        answer = api.get(f"/api/v1/trajectories/{trajectory}/blobs/{kept}")
        assert answer.status_code == 500 and "damaged" in answer.text
        assert api.get(f"/api/v1/trajectories/{trajectory}/steps/6/observation").status_code == 500
        told = arenite("trajectory", "verify", trajectory)
        assert told.returncode == 1 and "step 6" in told.stdout and f"line {at + 1}" in told.stdout, told
