"""Images in the shapes of those that tasks come in, pulled from Debian's docker-registry, run on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import shapes
from arenite_server import Server
from commands import run
from engine_servers import Engine
from registries import Registry, docker_config, registry
from sandboxes import LiveSandbox

Box = Callable[..., LiveSandbox]
PORT = 8000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Registry]:
    (folder / "plain").mkdir()
    with registry(folder / "plain") as running:
        yield running


@pytest.fixture(scope="module")
def closed(folder: Path) -> Iterator[Registry]:
    """A registry with users."""
    (folder / "closed").mkdir()
    with registry(folder / "closed", signs_in=True) as running:
        yield running


def push(server: Server, image: str, to: str, *more: str) -> None:
    pushed = run(server, "image", "push", image, to, *more)
    assert pushed.returncode == 0, pushed.stderr


@pytest.fixture(scope="module")
def pushed(server: Server, folder: Path, plain: Registry, closed: Registry) -> Iterator[Callable[[str, str], str]]:
    """Puts a shape into a registry, once. Returns its reference."""
    there: set[str] = set()

    def put(shape: str, where: str) -> str:
        to = closed if where == "closed" else plain
        reference = f"{to.host}/shapes/{shape}:1"
        if reference in there:
            return reference
        name = f"engines-{shape}"
        if shape == "slim":
            (folder / "Dockerfile").write_text(shapes.SLIM)
            made = run(server, "image", "build", name, str(folder), "-f", str(folder / "Dockerfile"))
        else:
            make, _ = shapes.ARCHIVES[shape]
            made = run(server, "image", "load", str(make(folder, name)))
        assert made.returncode == 0, made.stderr
        more = ("--docker-config", str(docker_config(folder, closed.host))) if to is closed else ()
        push(server, name, reference, *more)
        there.add(reference)
        return reference

    yield put
    # operation/test_dockerfiles.py removes the layers.
    for shape in ("slim", *shapes.ARCHIVES):
        run(server, "image", "rm", "--force", f"engines-{shape}")


def pulled(engine: Engine, folder: Path, reference: str) -> None:
    config = docker_config(folder, reference.split("/")[0])
    done = run(engine.server, "image", "pull", reference, "--docker-config", str(config))
    assert (done.returncode, done.stdout) == (0, f"{reference}\n"), done.stderr


def serves(made: LiveSandbox) -> str:
    deadline = time.monotonic() + 60
    while (answer := made.http.get(f"/proxy/{PORT}/")).status_code != 200:
        assert time.monotonic() < deadline and answer.status_code in (404, 502), answer.text
        time.sleep(0.1)
    return answer.text


#: The largest shape is pulled once for each engine.
PULLS = [*((shape, where) for shape in shapes.ARCHIVES for where in ("plain", "closed")), ("slim", "closed")]


@pytest.mark.parametrize(("shape", "where"), PULLS)
def test_a_pulled_image_runs(
    engine: Engine, box: Box, folder: Path, pushed: Callable[[str, str], str], shape: str, where: str
) -> None:
    reference = pushed(shape, where)
    pulled(engine, folder, reference)
    try:
        if shape == "slim":
            made = box(f"{shape}-{where}", image=reference, args=["python3", "-m", "http.server", str(PORT)])
            assert made.output("python3 -c 'print(6 * 7)'; id -un; command -v bash sudo") == "42\nroot\n/usr/bin/bash"
            assert "Directory listing" in serves(made)
        else:
            # Of distroless and scratch, the entry point; the others name a shell there.
            own = {"image_command": True} if shape in ("distroless", "scratch") else {}
            args = [] if own else [shapes.ARCHIVES[shape][1], str(PORT)]
            made = box(f"{shape}-{where}", image=reference, **({"args": args} if args else own))
            assert serves(made) == "hello\n"
        files = {"file": "/tmp/written", "content": "text"}
        assert made.http.post("/v1/file/write", json=files).raise_for_status().json()["success"]
        read = made.http.post("/v1/file/read", json={"file": "/tmp/written"}).raise_for_status().json()
        assert read["data"]["content"] == "text"
        said = made.http.post("/v1/bash/exec", json={"command": "echo $((6 * 7))"})
        if shape in ("distroless", "scratch"):
            assert (said.status_code, said.json()["code"]) == (424, "missing_program"), said.text
        else:
            assert said.json()["data"]["stdout"] == "42\n", said.text
        tier = httpx.get(f"{engine.server.url}/api/v2/sandboxes/{made.name}").raise_for_status().json()["tier"]
        assert tier == ("gvisor" if engine.is_gvisor else "namespace"), tier
    finally:
        for live in engine.made:
            live.delete()
        engine.made.clear()
        removed = run(engine.server, "image", "rm", "--force", reference)
        assert removed.returncode == 0, removed.stderr
        run(engine.server, "image", "prune")
    if (shape, where) == PULLS[-1]:
        engine.can("images in the shapes of python-slim, alpine, distroless, and scratch")


def test_without_a_user_a_closed_registry_gives_nothing(engine: Engine, folder: Path, pushed: Callable[[str, str], str]) -> None:
    reference = pushed("scratch", "closed")
    refused = run(engine.server, "image", "pull", reference, "--docker-config", str(folder / "none.json"))
    assert refused.returncode == 1 and "docker login" in refused.stderr, refused.stderr
