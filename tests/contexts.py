"""The contexts of tests/dockerfiles: how they are prepared and built, here and by Docker, and a site that they download from."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from arenite_server import Server, binary
from commands import environment, run
from registries import layer

CASES = Path(__file__).parent / "dockerfiles"
NAMES = sorted(path.parent.name for path in CASES.glob("*/expect.json"))
#: What all of them start from: `base` with root as its user.
BASE = "task-base"


def built(server: Server, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary()), "image", "build", *words, "--verbose"],
        env={**environment(server), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def inspect(server: Server, name: str) -> dict:
    shown = run(server, "image", "inspect", name, "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


@dataclass
class Case:
    context: Path
    expected: dict
    #: Words of the command line, the same here and for Docker.
    args: list[str]
    #: Variables of its environment.
    variables: dict[str, str]


def prepared(name: str, folder: Path) -> Case:
    """A copy of a case, with modes that do not depend on the clone's."""
    context = folder / "context"
    shutil.copytree(CASES / name, context)
    (context / "expect.json").unlink()
    expected = json.loads((CASES / name / "expect.json").read_text())
    for path in context.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if expected.get("prepare") == "archives":
        archives(context)
    (folder / "secret").write_text("t0p-s3cret")
    args = [word.replace("SECRET", str(folder / "secret")) for word in expected.get("args", [])]
    if any("ADDRESS" in word for word in args):
        args = [word.replace("ADDRESS", site().url) for word in args]
    return Case(context, expected, args, {"T_DOCKERFILES_VARIABLE": "v4riable"})


@dataclass
class Site:
    """Files of the web, which a test may replace."""

    server: ThreadingHTTPServer
    files: dict[str, bytes] = field(default_factory=dict)
    #: Where a path redirects to.
    moved: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


def new_site() -> Site:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.requests.append(self.path)
            content = made.files.get(self.path)
            to = made.moved.get(self.path)
            self.send_response(302 if to else 404 if content is None else 200)
            if to:
                self.send_header("Location", to)
            if content is not None:
                # One that a build of Docker's caches by.
                self.send_header("ETag", f'"{hash(content)}"')
                self.send_header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    made = Site(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    made.files = {
        "/files/tool%20one.sh": b"#!/bin/sh\necho one\n",
        "/files/tool": b"tool\n",
        "/files/packed.tar.gz": gzip.compress(layer({"file": b"not unpacked"}), mtime=0),
    }
    made.moved = {"/moved?to=tool": "/files/tool"}
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    return made


@functools.cache
def site() -> Site:
    """The one of the cases."""
    return new_site()


def archives(context: Path) -> None:
    """A plain and a compressed archive, and a compressed file that is none."""
    content = b"content\n"
    for name, mode in (("data.tar.gz", "w:gz"), ("plain.tar", "w")):
        with tarfile.open(context / name, mode) as archive:
            directory = tarfile.TarInfo("d")
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            file = tarfile.TarInfo("d/file")
            file.size, file.mode, file.uid, file.gid = len(content), 0o640, 1000, 7
            link = tarfile.TarInfo("d/link")
            link.type, link.linkname = tarfile.SYMTYPE, "file"
            archive.addfile(directory)
            archive.addfile(file, io.BytesIO(content))
            archive.addfile(link)
    subprocess.run(["gzip", "-k", str(context / "text")], check=True)
    (context / "text.gz").rename(context / "note.gz")
