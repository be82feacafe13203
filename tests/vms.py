"""A sandbox with a VM as a test holds it."""

from __future__ import annotations

from typing import Any

import httpx
from sandboxes import LiveSandbox


class Vm(LiveSandbox):
    """A sandbox with a vm, and the agent in it."""

    def data(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self.http.request(method, path, **arguments)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def act(self, kind: str, **arguments: Any) -> None:
        self.data("POST", "/v1/browser/actions", json={"action_type": kind, **arguments})

    def agent(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        answer = self.http.request(method, f"/proxy/5000{path}", **arguments)
        assert answer.status_code == 200, answer.text
        return answer

    def inside(self, command: str) -> str:
        """What a command in the VM writes."""
        ran = self.agent("POST", "/execute", json={"command": command, "shell": True}).json()
        assert ran["status"] == "success", ran
        return ran["output"]


def empty_qcow2(size: int) -> bytes:
    """A qcow2 of version 2 in which no cluster is written: header, reference counts of its four clusters, and an empty table."""
    cluster = 1 << 16
    entries = -(-size // (cluster * (cluster // 8)))
    head = b"QFI\xfb" + (2).to_bytes(4, "big") + bytes(8) + bytes(4) + (16).to_bytes(4, "big") + size.to_bytes(8, "big")
    head += bytes(4) + entries.to_bytes(4, "big") + (3 * cluster).to_bytes(8, "big")
    head += cluster.to_bytes(8, "big") + (1).to_bytes(4, "big") + bytes(4) + bytes(8)
    table = (2 * cluster).to_bytes(8, "big")
    counts = (1).to_bytes(2, "big") * 4
    return b"".join(part.ljust(cluster, b"\0") for part in (head, table, counts, b""))


def with_backing_file(disk: bytes, path: str) -> bytes:
    """The same, as a layer over a file."""
    name = path.encode()
    whole = bytearray(disk)
    whole[8:20] = (104).to_bytes(8, "big") + len(name).to_bytes(4, "big")
    whole[104 : 104 + len(name)] = name
    return bytes(whole)
