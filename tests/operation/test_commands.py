"""Commands of operators: removals that ask first, and the time that a sandbox has left."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary
from commands import environment, run
from sandboxes import LiveSandbox


def answered(server: Server, answer: str, *words: str) -> tuple[int, str]:
    """Runs a command at a terminal, where a person answers its question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([str(binary()), *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(server))
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # The terminal's other side is closed: the command has ended.
    os.close(ours)
    return process.wait(60), shown.decode()


@pytest.fixture
def small_image(server: Server, tmp_path: Path) -> str:
    name = f"t-{os.getpid()}"
    file = tmp_path / "Imagefile"
    file.write_text("FROM base\nLABEL of=test\n")
    built = run(server, "image", "build", name, "-f", str(file))
    assert built.returncode == 0, built.stderr
    return name


def test_an_image_in_use_is_removed_only_by_who_says_so(
    server: Server, small_image: str, sandbox: Callable[..., LiveSandbox]
) -> None:
    live = sandbox(image=small_image)
    there = lambda: run(server, "image", "inspect", small_image).returncode == 0  # noqa: E731
    refused = run(server, "image", "rm", small_image)
    assert refused.returncode == 1 and there()
    assert (live.name in refused.stderr or live.details()["id"] in refused.stderr) and "--force" in refused.stderr, refused.stderr
    code, shown = answered(server, "n", "image", "rm", small_image)
    assert code == 1 and "[y/N]" in shown and there(), shown
    code, shown = answered(server, "y", "image", "rm", small_image)
    assert code == 0 and not there(), shown
    assert live.output("echo still here") == "still here"
    gone = run(server, "image", "rm", "--force", small_image)
    assert gone.returncode == 3 and "not built here" in gone.stderr, gone.stderr


def test_removing_all_sandboxes_asks_first(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    there = lambda: httpx.get(f"{server.url}/api/v2/sandboxes/{live.name}").status_code == 200  # noqa: E731
    refused = run(server, "rm", "--all")
    assert refused.returncode == 1 and live.name in refused.stderr and "--force" in refused.stderr, refused.stderr
    assert there()
    code, shown = answered(server, "", "rm", "--all")
    assert code == 1 and there(), shown
    assert run(server, "rm", "--all", "--force").returncode == 0
    assert not there()


def test_the_time_left_is_told(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    def deadline(live: LiveSandbox) -> tuple[str, str, float]:
        end = live.details()["deadline"]
        return end["reason"], end["action"], (datetime.fromisoformat(end["at"]) - datetime.now().astimezone()).total_seconds()

    by_default, paused, short = sandbox(), sandbox(idle_policy="scaledown"), sandbox(timeout=5)
    reason, action, left = deadline(by_default)
    assert (reason, action) == ("idle", "delete") and 500 < left <= 600, left
    assert deadline(paused)[:2] == ("idle", "pause")
    reason, action, left = deadline(short)
    assert (reason, action) == ("timeout", "delete") and left <= 300, left
    lines = {line.split()[0]: line for line in run(server, "ls").stdout.splitlines()}
    assert " if idle " in lines[by_default.name] and "pauses when idle" in lines[paused.name], lines
    assert " if idle " not in lines[short.name]


def test_environment_aio_without_its_image_is_an_error_with_its_remedy(own_server: Callable[..., Server]) -> None:
    bare = own_server()
    bare.start()
    answer = httpx.post(f"{bare.url}/api/v1/sandbox", json={"name": "x", "environment": "aio"}, timeout=30)
    assert answer.status_code == 404 and '"aio"' in answer.json()["error"], answer.text
    assert "cargo xtask image aio" in answer.json()["error"], answer.text
    answer = httpx.post(f"{bare.url}/api/v2/sandboxes", json={"name": "x", "template": "aio"}, timeout=30)
    assert answer.status_code == 404 and "cargo xtask image aio" in answer.json()["hint"], answer.text
