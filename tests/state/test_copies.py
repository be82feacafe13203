"""Copies of states that a server makes before a sandbox returns to one, or a fork begins with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import waiting
from operation.conftest import own_server  # noqa: F401
from sandboxes import LiveSandbox
from small import SmallServer, tiny_image


class Returning:
    """A sandbox, and the copies of its server."""

    def __init__(self, server: SmallServer, name: str) -> None:
        self.server, self.name = server, name
        self.box = server.create(name)
        id = self.call("GET", f"sandboxes/{name}")["id"]
        self.copy = server.data_dir / f"pool/snapshots/next-{id}"

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = httpx.request(method, f"{self.server.url}/api/v2/{path}", timeout=120, **({"json": body} if body else {}))
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def checkpoint(self) -> int:
        return int(self.call("POST", f"sandboxes/{self.name}/checkpoints", note="x")["number"])

    def roll_back(self, to: object) -> None:
        self.call("POST", f"sandboxes/{self.name}/rollback", to=to)

    def write(self, text: str) -> None:
        self.box.output(f"echo {text} >>/root/file")

    def read(self) -> str:
        return " ".join(self.box.output("cat /root/file").split())

    def copies(self) -> list[str]:
        return sorted(path.name for path in (self.server.data_dir / "pool/snapshots").glob("next-*"))

    def state(self) -> Path:
        """The disk of its only checkpoint."""
        state = self.call("GET", f"sandboxes/{self.name}/history")["checkpoints"][0]["id"]
        return self.server.data_dir / f"pool/snapshots/{state}"

    def has(self, content: str) -> None:
        """Waits for the copy, and until what a rollback replaced is removed."""

        def is_there() -> bool:
            file = self.copy / "upper/root/file"
            return self.copies() == [self.copy.name] and file.exists() and " ".join(file.read_text().split()) == content

        waiting.until(is_there, f"a copy of {content}")


@pytest.fixture
def server(own_server: Callable[..., SmallServer]) -> SmallServer:  # noqa: F811
    made = own_server(kind=SmallServer)
    made.start()
    tiny_image(made.data_dir / "pool")
    return made


@pytest.fixture
def one(server: SmallServer) -> Iterator[Returning]:
    made = Returning(server, "one")
    made.write("a")
    made.checkpoint()
    yield made
    server.http_delete("one")


def test_a_sandbox_that_returned_has_a_copy_of_its_last_state(one: Returning) -> None:
    assert one.copies() == [], "it may never return"
    for turn in range(5):
        one.write(f"lost{turn}")
        one.roll_back(1)
        assert one.read() == "a"
        one.write("written-into-what-was-a-copy")
        one.has("a")
    one.write("b")
    one.checkpoint()
    one.has("a written-into-what-was-a-copy b")
    for to, content in ((2, "a written-into-what-was-a-copy b"), (1, "a"), (2, "a written-into-what-was-a-copy b"), (1, "a")):
        # At once, while the copy is made.
        one.roll_back(to)
        assert one.read() == content
    one.has("a")
    one.roll_back("beginning")
    assert one.box.bash("cat /root/file").exit_code != 0


def test_copies_end_with_the_state_the_sandbox_and_the_server(one: Returning) -> None:
    one.roll_back(1)
    one.has("a")
    state = one.state().name
    one.write("b")
    one.checkpoint()
    one.has("a b")
    one.call("DELETE", f"sandboxes/one/checkpoints/{state}")
    one.has("a b")
    one.call("DELETE", "sandboxes/one/checkpoints/2")
    assert one.copies() == [], "a state that is removed has none"
    assert one.checkpoint() == 3, "the number of a checkpoint is not used again"
    one.roll_back(3)
    one.has("a b")

    # A start makes none before the next rollback.
    one.server.restart()
    assert one.copies() == []
    one.box = LiveSandbox(one.server.url, one.name)
    one.roll_back(3)
    assert one.read() == "a b"
    one.has("a b")
    assert one.server.http_delete("one").status_code == 200
    assert one.copies() == []


def test_a_copy_that_is_gone_is_made_again(one: Returning) -> None:
    one.roll_back(1)
    one.has("a")
    one.write("b")
    shutil.rmtree(one.copy)
    one.roll_back(1)
    assert one.read() == "a"
    one.has("a")


def test_a_fork_leaves_no_copy(one: Returning) -> None:
    def fork(status: int = 201, **body: Any) -> list[str]:
        answer = httpx.post(f"{one.server.url}/api/v2/sandboxes/one/fork", json=body, timeout=120)
        assert answer.status_code == status, answer.text
        return [fork["name"] for fork in answer.json().get("sandboxes", [])]

    names = fork(count=3)
    for name in names:
        child = LiveSandbox(one.server.url, name)
        assert child.output("cat /root/file; echo b >>/root/file; cat /root/file").split() == ["a", "a", "b"]
    assert one.read() == "a"
    # No sandbox takes its copy.
    one.server.create("taken-0")
    fork(409, name="taken")
    one.server.http_delete("taken-0")
    waiting.until(lambda: one.copies() == [], "no copies")
    for name in names:
        one.server.http_delete(name)
    waiting.until(lambda: [*(one.server.data_dir / "pool/snapshots").iterdir()] == [one.state()], "the checkpoint alone")
