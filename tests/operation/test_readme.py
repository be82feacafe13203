"""The examples of the README, as they are written there, against the real server on the addresses that they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from arenite_server import REPOSITORY, Server, binary
from default_address import default_address

PORT = 8080
#: Lines that are not run here, and why.
ELSEWHERE = {
    "cargo xtask up": "soak/test_commands.py runs it",
    "cargo xtask test": "this test is a part of it",
    "sudo apt install": "operation/test_packages.py installs the package in a root directory",
    "claude mcp add": "a client of another project, which is not installed here; the line after it calls the same address",
}
IMAGEFILE = "FROM base"
TASK = '{"id": "sum", "steps": [{"action": "bash:run", "params": {"command": "expr 6 \'*\' 7"}}], "expect": "42"}\n'


@dataclass
class Section:
    title: str
    blocks: list[tuple[str, str]] = field(default_factory=list)


def sections() -> list[Section]:
    """The code blocks of the README below the heading that they are under, with their language."""
    found = [Section("")]
    language: str | None = None
    lines: list[str] = []
    for line in (REPOSITORY / "README.md").read_text().splitlines():
        if language is None and (heading := re.match(r"#+ (.*)", line)):
            found.append(Section(heading[1]))
        elif line.startswith("```"):
            if language is None:
                language, lines = line[3:], []
            else:
                found[-1].blocks.append((language, "\n".join(lines) + "\n"))
                language = None
        elif language is not None:
            lines.append(line)
    return [section for section in found if section.blocks]


class Reader:
    """A person who follows the README: a directory with the files that it names, and the programs that it calls."""

    def __init__(self, server: Server, folder: Path, inside: list[str]):
        self.server = server
        self.folder = folder
        self.inside = inside
        self.ran: list[str] = []
        programs = folder / "bin"
        programs.mkdir()
        (programs / "arenite").symlink_to(binary())
        # The tests run as root, and a minimal Debian has no sudo.
        (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (programs / "sudo").chmod(0o755)
        for name in ("project", "tools"):
            (folder / name).mkdir()
            (folder / name / "hello.txt").write_text("hello\n")
        (folder / "tasks.jsonl").write_text(TASK)
        shutil.copy(REPOSITORY / "examples/agents/scripted.py", folder / "agent.py")
        shutil.copytree(REPOSITORY / "clients", folder / "clients", ignore=shutil.ignore_patterns("build", "*.egg-info"))
        # Packages must not be installed into the environment of the tests.
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ARENITE_")} | {
            "PATH": f"{programs}:{folder / 'venv/bin'}:{os.environ['PATH']}",
            "ARENITE_DATA_DIR": str(server.data_dir),
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def run(self, *command: str, outside: bool = False) -> str:
        words = command if outside else (*self.inside, *command)
        environment = self.environment | ({"ARENITE_SERVER": self.server.url} if outside else {})
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def shell(self, block: str, outside: bool) -> str:
        """Runs what is run here of a block, command by command."""
        printed = []
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not any(line.startswith(start) for start in ELSEWHERE):
                self.ran.append(line)
                # pip needs the network of the host.
                alone = outside or line.startswith("pip ")
                printed.append(self.run("bash", "-euo", "pipefail", "-c", line, outside=alone))
        return "".join(printed)


@pytest.fixture
def reader(server: Server, tmp_path: Path) -> Iterator[Reader]:
    def delete(*names: str) -> None:
        for name in names:
            httpx.delete(f"{server.url}/api/v2/sandboxes/{name}", timeout=60)

    # The README's server has `aio` as its default image.
    delete("default", "demo", "work")
    made = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": "default", "image": "aio"}, timeout=120)
    assert made.status_code == 201, made.text
    with default_address(server.port, PORT, 18890) as inside:
        yield Reader(server, tmp_path, inside)
    delete("default", "demo", "work")
    subprocess.run([str(binary()), "image", "rm", "tools", "--force", "--data-dir", str(server.data_dir)], capture_output=True)


@pytest.mark.timeout(900)
def test_every_example_of_the_readme_runs(reader: Reader) -> None:
    expected = {
        "Python, with AIO Sandbox's client": ["0\n", "hello from /tmp\n", "out\n err\n 3\n", "1\t", "Hello"],
        "Agent-Sandbox's API": ['"demo"', '"stdout":"demo\\n"'],
        "AgentFlow's client, for many workers": ["42\n"],
        "MCP": ["Linux"],
        "Command line": ["42\n", "bash"],
        "Recording": ["demo"],
    }
    seen = set()
    for section in sections():
        printed = ""
        scripts = "".join(text for language, text in section.blocks if language == "python")
        for language, text in section.blocks:
            if language == "sh":
                # Image builds need the network of the host.
                printed += reader.shell(text, outside=section.title == "Images")
            elif language == "dockerfile":
                assert IMAGEFILE in text
                (reader.folder / "Imagefile").write_text(text)
            elif scripts:
                printed += reader.run("python3", "-c", scripts)
                scripts = ""
            assert language in ("sh", "python", "dockerfile"), f"a block of {language!r} is not tried"
        for text in expected.get(section.title, []):
            assert text in printed, f"{section.title}: {text!r} is not in\n{printed}"
        seen.add(section.title)
    assert expected.keys() <= seen
    assert len(reader.ran) >= 20, reader.ran
