"""One worker by hand, and the configurations that tests of workers use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

PLUGINS = Path(__file__).resolve().parent / "agentflow/plugins"
DEMO = {
    "demo": {"backend_class": "demo_backends.DemoBackend", "path": [str(PLUGINS)]},
    "badinit": {"backend_class": "demo_backends.BadInitBackend", "path": [str(PLUGINS)]},
    "slow": {"backend_class": "demo_backends.SlowBackend", "path": [str(PLUGINS)]},
}
OURS = "sandbox.server.backends.resources"
OF_SANDBOXES = {
    "bash": {"backend_class": f"{OURS}.bash.BashBackend"},
    "code": {"backend_class": f"{OURS}.code.CodeBackend"},
    "browser": {"backend_class": f"{OURS}.browser.BrowserBackend"},
}


class Worker:
    """One worker, by hand: what goes over the wire is what the test says."""

    def __init__(self, url: str, name: str):
        self.http = httpx.Client(base_url=url, timeout=120)
        self.name = name

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/api/v1/{path}", json={"worker_id": self.name, **body})

    def create(self, resource: str, **body: Any) -> dict[str, Any]:
        answer = self.post("session/create", resource_type=resource, **body).json()
        assert answer["code"] == 0, answer
        return answer["data"]

    def call(self, action: str, /, **params: Any) -> dict[str, Any]:
        """The whole envelope."""
        return self.post("execute", action=action, params=params).json()

    def ok(self, action: str, /, **params: Any) -> Any:
        answer = self.call(action, **params)
        assert answer["code"] == 0, answer
        return answer["data"]

    def steps(self, **query: Any) -> list[dict[str, Any]]:
        listed = self.http.get("/api/v1/trajectories").json()["trajectories"]
        wanted = [one for one in listed if one.get("worker") == self.name and one.get("task") == query.get("task")]
        assert len(wanted) == 1, wanted
        return self.http.get(f"/api/v1/trajectories/{wanted[0]['trajectory']}/steps?limit=1000").json()["steps"]

    def leave(self) -> None:
        self.post("worker/disconnect")
        self.http.close()


