"""Tenants of a server, as their users see them."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from arenite_server import Server
from commands import run
from postgres import Postgres


class Tenant:
    """A tenant as one of its users sees it: a key, and the server's address."""

    def __init__(self, url: str, name: str, key: str):
        self.url, self.name, self.key = url, name, key
        self.headers = {"x-api-key": key}
        # Each request has its own connection: tests kill servers, which ends those that were kept.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=url, headers=self.headers, timeout=120, limits=limits)

    def json(self, method: str, path: str, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def new_key(self, role: str, **more: Any) -> dict[str, Any]:
        return self.json("POST", "/api/v2/keys", json={"name": f"{role} of a test", "role": role, **more})


class TenantsServer:
    def __init__(self, server: Server):
        self.server = server
        #: Its database, if it has one.
        self.postgres: Postgres | None = None
        found = re.findall(rb"^operator key: (arn_[0-9A-Za-z_]+)$", server.log_path.read_bytes(), re.MULTILINE)
        assert len(found) == 1, server.log_tail()
        self.operator = Tenant(server.url, "default", found[0].decode())

    @property
    def url(self) -> str:
        return self.server.url

    def tenant(self, name: str) -> Tenant:
        self.operator.json("POST", "/api/v2/tenants", json={"name": name})
        made = self.operator.json("POST", "/api/v2/keys", json={"tenant": name, "name": "first", "role": "admin"})
        return Tenant(self.url, name, made["key"])

    def command(self, key: str, *words: str) -> Any:
        """A command of the command line with this key."""
        return run(self.server, *words, "--api-key", key)


def first_process(tenants: TenantsServer, sandbox: dict[str, Any]) -> int:
    """The first process of a sandbox, which is its guest, by its pid on the host."""
    # Below its header.
    record = (tenants.server.data_dir / "run" / sandbox["id"] / "sandbox.json").read_text().splitlines()[-1]
    return int(json.loads(record)["pid"])
