"""Code examples of documents, and a reader who follows them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from arenite_server import REPOSITORY, Server, binary

SERVE = re.compile(r"(?:sudo )?((?:\w+=\S+ )*)arenite serve\b(.*)")
#: pip and image builds need the network of the host.
OUTSIDE = ("pip ", "sudo arenite image build ")


@dataclass(frozen=True)
class Block:
    """A code block, and the heading that it is under."""

    heading: str
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if its first line has it."""
        name = re.match(r"# (\w+\.py)\n", self.text)
        return name and name[1]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(document: str) -> list[Block]:
    """The code blocks of a Markdown file of the repository."""
    found = []
    heading = ""
    language: str | None = None
    lines: list[str] = []
    for line in (REPOSITORY / document).read_text().splitlines():
        if line.lstrip().startswith("```"):
            if language is None:
                language, lines = line.strip()[3:], []
            else:
                found.append(Block(heading, language, textwrap.dedent("\n".join(lines)) + "\n"))
                language = None
        elif language is not None:
            lines.append(line)
        elif title := re.match(r"#+ (.*)", line):
            heading = title[1]
    assert language is None, f"{document}: the last block has no end"
    return found


class Reader:
    """A person who follows a document: a directory with the files that it names, and the programs that it calls."""

    def __init__(self, server: Server, folder: Path, inside: list[str], installs: bool):
        self.server = server
        self.folder = folder
        self.inside = inside
        #: What a document has, and what the reader has instead.
        self.stand_ins = {"/srv/": f"{folder}/srv/"}
        self.restarted = False
        programs = folder / "bin"
        programs.mkdir()
        (programs / "arenite").symlink_to(binary())
        # The tests run as root, and a minimal Debian has no sudo.
        (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (programs / "sudo").chmod(0o755)
        (folder / "node_modules").symlink_to(REPOSITORY / "tests/clients/node_modules")
        python = Path(sys.executable).parent
        packages = {"PYTHONPATH": str(REPOSITORY / "clients/python/src")}
        if installs:
            # Packages must not be installed into the environment of the tests.
            subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
            python, packages = folder / "venv/bin", {}
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ARENITE_")} | {
            "PATH": f"{programs}:{python}:{os.environ['PATH']}",
            "ARENITE_DATA_DIR": str(server.data_dir),
            "HF_HOME": str(folder / "cache"),
            "NO_PROXY": "127.0.0.1,localhost",
            **packages,
        }

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, *command: str, outside: bool = False) -> str:
        words = command if outside else (*self.inside, *command)
        environment = self.environment | ({"ARENITE_SERVER": self.server.url} if outside else {})
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def shell(self, line: str) -> str:
        """Runs a command. A command that starts a server restarts the server of the tests with its flags."""
        for written, here in self.stand_ins.items():
            line = line.replace(written, here)
        if serve := SERVE.match(line):
            self.serve(*shlex.split(serve[2], comments=True), **dict(word.split("=", 1) for word in serve[1].split()))
            return ""
        return self.run("bash", "-euo", "pipefail", "-c", line, outside=line.startswith(OUTSIDE))

    def serve(self, *flags: str, **environment: str) -> None:
        self.restarted = True
        self.server.cwd, self.server.environment = self.folder, environment
        self.server.restart(flags)

    def leave(self) -> None:
        """Restarts the server as it was."""
        self.server.cwd, self.server.environment = None, {}
        if self.restarted:
            if self.server.process is not None:
                self.server.stop()
            self.server.start()
