"""Debian's Firefox on our pages: one browser for the tests of a file, driven by tests/clients/firefox.mjs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
from arenite_server import REPOSITORY
from consoles import AXE, LEVELS, VIOLATIONS


class Firefox:
    """Each call waits until it has happened, or fails with what the page shows."""

    def __init__(self) -> None:
        program = os.environ.get("ARENITE_FIREFOX") or shutil.which("firefox-esr")
        if not program:
            pytest.fail("no Firefox found; install it (apt-get install firefox-esr) or set ARENITE_FIREFOX")
        self.process = subprocess.Popen(
            ["node", "firefox.mjs", program], cwd=REPOSITORY / "tests/clients", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, command: str, **what: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"command": command, **what}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"Firefox ended during {command} {what}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def open(self, url: str) -> None:
        self.call("open", url=url)

    def click(self, name: str, role: str = "button", within: str = "") -> None:
        self.call("click", role=role, name=name, within=within)

    def fill(self, name: str, text: str, role: str = "textbox", within: str = "") -> None:
        self.call("fill", role=role, name=name, text=text, within=within)

    def press(self, key: str) -> None:
        self.call("press", key=key)

    def type(self, text: str) -> None:
        self.call("type", text=text)

    def sees(self, text: str, within: str = "body") -> None:
        self.call("shown", text=text, within=within)

    def does_not_see(self, text: str, within: str = "body") -> None:
        self.call("shown", text=text, within=within, gone=True)

    def violations(self) -> list[Any]:
        """What axe finds on the page, and whether it is wider than the window."""
        self.call("evaluate", script=AXE.read_text())
        return self.call("evaluate", script=f"({VIOLATIONS})({json.dumps([LEVELS, ''])})")

    def mistakes(self) -> list[str]:
        """Errors of the page since the last call."""
        return self.call("mistakes")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
