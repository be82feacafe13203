"""A sandbox as a test holds it: its name, the SDK's client on its path, and plain HTTP beside it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import httpx
from agent_sandbox import Sandbox as Client


class LiveSandbox:
    def __init__(self, base_url: str, name: str, timeout: float = 60):
        self.name = name
        self.base_url = base_url
        self.url = f"{base_url}/sandbox/{name}"
        self.http = httpx.Client(base_url=self.url, timeout=timeout)
        self.client = Client(base_url=self.url, timeout=timeout)

    def bash(self, command: str, **arguments: Any) -> Any:
        """`bash/exec` by the SDK; the result's data."""
        answer = self.client.bash.exec(command=command, **arguments)
        assert answer.success, answer
        return answer.data

    def output(self, command: str, **arguments: Any) -> str:
        """Standard output of a command that has to succeed."""
        result = self.bash(command, **arguments)
        assert (result.status, result.exit_code) == ("completed", 0), result
        return (result.stdout or "").rstrip("\n")

    def details(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.base_url}/api/v2/sandboxes/{self.name}", timeout=30)
        return answer.raise_for_status().json()

    @cached_property
    def id(self) -> str:
        return self.details()["id"]

    def delete(self) -> httpx.Response:
        self.http.close()
        return httpx.delete(f"{self.base_url}/api/v2/sandboxes/{self.name}", timeout=120)
