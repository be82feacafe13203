"""/api/v1/sandbox: Agent-Sandbox's bodies with real statuses, and each field's real effect."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from sandboxes import LiveSandbox
from waiting import until


class TestBodies:
    def test_create_get_list_delete(self, api: httpx.Client) -> None:
        created = api.post("/api/v1/sandbox", json={"name": "bodies"})
        assert created.status_code in (200, 201)
        assert created.json() == {"code": "0", "data": "Sandbox bodies created successfully"}
        got = api.get("/api/v1/sandbox/bodies")
        assert (got.status_code, got.json()["code"]) == (200, "0")
        data = got.json()["data"]
        assert data["name"] == "bodies"
        listed = api.get("/api/v1/sandbox").json()
        assert listed["code"] == "0"
        assert data["name"] in [sandbox["name"] for sandbox in listed["data"]]
        deleted = api.delete("/api/v1/sandbox/bodies")
        assert (deleted.status_code, deleted.json()) == (200, {"code": "0", "data": "Sandbox bodies deleted successfully"})
        assert api.get("/api/v1/sandbox/bodies").status_code == 404

    def test_defaults_in_the_answer(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        data = api.get(f"/api/v1/sandbox/{live.name}").json()["data"]
        assert (data["cpu"], data["memory"], data["cpu_limit"], data["memory_limit"]) == ("100m", "128Mi", "1000m", "1024Mi")
        assert (data["timeout"], data["idle_timeout"]) == (60, 10)
        assert data["idle_policy"] == "delete"

    def test_an_empty_body_makes_one_with_a_name(self, api: httpx.Client) -> None:
        names = []
        for content in (b"", b"{}"):
            answer = api.post("/api/v1/sandbox", content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 201), answer.text
            text = answer.json()["data"]
            assert text.startswith("Sandbox ") and text.endswith(" created successfully")
            names.append(text.split()[1])
        assert len(set(names)) == 2
        for name in names:
            assert api.delete(f"/api/v1/sandbox/{name}").status_code == 200

    def test_nothing_of_one_request_stays_for_the_next(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        sandbox(env={"LEFTOVER": "1"}, workdir="/usr", timeout=7)
        after = sandbox()
        assert after.output("echo [$LEFTOVER]; pwd") == "[]\n/home/gem"
        assert api.get(f"/api/v1/sandbox/{after.name}").json()["data"]["timeout"] == 60


ERRORS: list[tuple[str, dict[str, Any] | bytes, int]] = [
    ("malformed", b"{", 400),
    ("not an object", b"[]", 400),
    ("bad name", {"name": "Not A Name!"}, 400),
    ("path in the name", {"name": "../../etc"}, 400),
    ("unknown environment", {"environment": "no-such-environment"}, 404),
    ("unknown image", {"image": "no-such-image"}, 404),
    ("bad cpu", {"cpu_limit": "lots"}, 400),
    ("bad memory", {"memory_limit": "12 parsecs"}, 400),
    ("tiny memory", {"memory_limit": "1Ki"}, 400),
    ("bad port", {"ports": [70000]}, 400),
    ("bad variable", {"env": {"A B": "1"}}, 400),
    ("relative workdir", {"workdir": "here"}, 400),
    ("bad idle policy", {"idle_policy": "explode"}, 400),
    ("negative timeout", {"timeout": -5}, 400),
]


class TestErrors:
    @pytest.mark.parametrize(("body", "status"), [(b, s) for _, b, s in ERRORS], ids=[n for n, _, _ in ERRORS])
    def test_create(self, api: httpx.Client, body: dict[str, Any] | bytes, status: int) -> None:
        before = {s["name"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]}
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = api.post("/api/v1/sandbox", **content)
        allowed = {status, 422} if status == 400 else {status, 400}
        assert answer.status_code in allowed, answer.text
        error = answer.json()
        assert error["code"] != "0"
        assert error["error"]
        assert {s["name"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]} == before

    def test_a_name_that_is_taken(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        live.output("echo mine > ~/mine")
        answer = api.post("/api/v1/sandbox", json={"name": live.name})
        assert answer.status_code == 409
        assert f"sandbox {live.name} already exists" in answer.json()["error"]
        assert live.output("cat ~/mine") == "mine"

    def test_unknown_names(self, api: httpx.Client) -> None:
        for answer in (api.get("/api/v1/sandbox/nobody"), api.delete("/api/v1/sandbox/nobody")):
            assert answer.status_code == 404
            assert "nobody" in answer.json()["error"]
        assert api.get("/sandbox/nobody/v1/sandbox").status_code == 404

    def test_the_switch_for_always_200(self, server: Server) -> None:
        server.restart(("--agent-sandbox-always-200", "true"))
        try:
            with server.api() as api:
                answer = api.get("/api/v1/sandbox/nobody")
                assert (answer.status_code, answer.json()["code"]) == (200, "500")
                assert "sandbox nobody not found" in answer.json()["error"]
        finally:
            server.restart()


class TestFields:
    def test_env_workdir_and_host_name(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(env={"GREETING": "hé 'quoted' $x", "PATH_LIKE": "/a:/b"}, workdir="/usr/lib")
        assert live.output("pwd; echo $PATH_LIKE; hostname") == f"/usr/lib\n/a:/b\n{live.name}"
        assert live.output("printf %s \"$GREETING\"") == "hé 'quoted' $x"
        session = live.client.shell.exec_command(command="pwd; echo $PATH_LIKE").data
        assert session.output == "/usr/lib\n/a:/b"

    def test_a_workdir_that_is_not_there(self, api: httpx.Client) -> None:
        """Made, or refused; a sandbox whose commands start elsewhere than asked would be a lie."""
        answer = api.post("/api/v1/sandbox", json={"name": "workdirless", "workdir": "/srv/new/place"})
        if answer.status_code in (200, 201):
            live = LiveSandbox(str(api.base_url).rstrip("/"), "workdirless")
            assert live.output("pwd") == "/srv/new/place"
            live.delete()
        else:
            assert answer.status_code in (400, 422)
            assert "/srv/new/place" in answer.json()["error"]

    def test_image_and_environment(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        by_image, by_environment = sandbox(image="base"), sandbox(environment="plain")
        assert by_image.details()["spec"]["image"] == by_environment.details()["spec"]["image"] == "base"
        data = api.get(f"/api/v1/sandbox/{by_environment.name}").json()["data"]
        assert data["environment"] == "plain"
        assert api.get(f"/api/v1/sandbox/{by_image.name}").json()["data"]["environment"] == "custom"

    def test_args_run_as_the_main_command(self, server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(args=["sh", "-c", "echo main:$WORD; touch ~/ran; sleep 600"], env={"WORD": "w"})
        until(lambda: live.bash("test -e ~/ran").exit_code == 0)
        assert live.output("stat -c %U ~/ran; pgrep -c -x sleep") == "gem\n1"
        logs = httpx.get(f"{server.url}/api/v2/sandboxes/{live.name}/logs", timeout=30)
        assert "main:w" in logs.text

    def test_ports_are_told_and_not_opened_on_the_host(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(ports=[18199])
        assert api.get(f"/api/v1/sandbox/{live.name}").json()["data"]["ports"] == [18199]
        assert live.details()["spec"]["ports"] == [18199]
        with pytest.raises(httpx.TransportError):
            httpx.get("http://127.0.0.1:18199", timeout=2)

    def test_memory_limit(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(memory="128Mi", memory_limit="256Mi")
        assert live.details()["spec"]["resources"]["memory_bytes"] == 256 << 20
        small = live.bash("python3 -c 'x = b\"x\" * (60 << 20); print(len(x))'")
        assert small.exit_code == 0, small
        large = live.bash("python3 -c 'x = b\"x\" * (600 << 20); print(len(x))'")
        assert large.exit_code != 0
        assert live.output("echo alive") == "alive"

    def test_cpu_limit(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(cpu="100m", cpu_limit="200m")
        assert live.details()["spec"]["resources"]["cpu_millis"] == 200

        def used() -> float:
            return api.get(f"/api/v2/sandboxes/{live.name}/usage").json()["cpu_nanoseconds"] / 1e9

        before, started = used(), time.monotonic()
        live.bash("timeout 3 sh -c 'while :; do :; done' & timeout 3 sh -c 'while :; do :; done'; wait")
        share = (used() - before) / (time.monotonic() - started)
        assert share < 0.3, share

    def test_minutes(self, sandbox: Callable[..., LiveSandbox]) -> None:
        details = sandbox(timeout=3, idle_timeout=2, idle_policy="scaledown").details()
        spec = details["spec"]
        assert (spec["timeout_seconds"], spec["idle_timeout_seconds"], spec["idle_policy"]) == (180, 120, "pause")
        life = datetime.fromisoformat(details["expires_at"]) - datetime.fromisoformat(details["created_at"])
        assert 179 <= life.total_seconds() <= 181

    @pytest.mark.parametrize(("field", "value", "cap"), [("timeout", 2000, 1440 * 60), ("idle_timeout", 90, 60 * 60)])
    def test_caps(self, api: httpx.Client, field: str, value: int, cap: int) -> None:
        answer = api.post("/api/v1/sandbox", json={"name": "capped", field: value})
        if answer.status_code in (200, 201):
            spec = api.get("/api/v2/sandboxes/capped").json()["spec"]
            api.delete("/api/v1/sandbox/capped")
            assert spec[f"{field}_seconds"] == cap
        else:
            assert answer.status_code in (400, 422)
            assert field in answer.json()["error"]


#: What an unnamed sandbox has to start like any other: a main command, a hook and the proxy.
STARTED = {
    "args": ["sh", "-c", "echo main:$WORD; sleep 600"],
    "env": {"WORD": "w", "RUN_HOOK_POST_READY": "touch /tmp/hooked", "PROXY_MAP": "app.test=:3000"},
}


class TestUnnamed:
    """Its name is its id, as that of a pooled sandbox is, which starts nothing."""

    @staticmethod
    def check(server: Server, name: str) -> None:
        live = LiveSandbox(server.url, name)
        try:
            assert live.id == name
            logs = f"{server.url}/api/v2/sandboxes/{name}/logs"
            until(lambda: "main:w" in httpx.get(logs, timeout=30).text)
            until(lambda: live.bash("test -e /tmp/hooked").exit_code == 0)
            proxy = live.output("curl -s -o /dev/null -w '%{http_code}' -x http://127.0.0.1:8118 http://app.test/")
            assert proxy == "502", "the proxy answers, and nothing listens behind it"
        finally:
            live.delete()

    def test_made_by_the_api(self, server: Server, api: httpx.Client) -> None:
        made = api.post("/api/v2/sandboxes", json=STARTED).json()
        self.check(server, made["name"])

    def test_made_by_the_command_line(self, server: Server) -> None:
        env = [word for key, value in STARTED["env"].items() for word in ("--env", f"{key}={value}")]
        command = [str(binary()), "create", "--server", server.url, *env, "--json", "--", *STARTED["args"]]
        made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        self.check(server, json.loads(made.stdout)["name"])


class TestTime:
    def test_timeout_ends_it(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(labels={}, timeout_seconds=2)
        live.output("echo once")
        until(lambda: api.get(f"/api/v2/sandboxes/{live.name}").status_code == 404)

    def test_idle_deletes_it(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(labels={}, idle_timeout_seconds=1, idle_policy="delete")
        until(lambda: api.get(f"/api/v2/sandboxes/{live.name}").status_code == 404)

    def test_use_holds_it_off(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(labels={}, idle_timeout_seconds=3, idle_policy="delete")
        # One long call counts as use for all of its time.
        assert live.output("sleep 6; echo done") == "done"

    @pytest.mark.parametrize("work", ["command", "shell", "kernel"])
    def test_work_that_nobody_waits_for_is_use(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox], work: str) -> None:
        live = sandbox(labels={}, image="code" if work == "kernel" else "base", idle_timeout_seconds=1, idle_policy="delete")
        if work == "command":
            live.bash("sleep 5", async_mode=True)
        elif work == "shell":
            live.client.shell.exec_command(command="sleep 5", async_mode=True)
        else:
            with pytest.raises(httpx.TimeoutException):
                live.http.post("/v1/jupyter/execute", json={"code": "import time; time.sleep(8)"}, timeout=2)
        begun = time.monotonic()
        while time.monotonic() < begun + 3.5:
            answer = api.get(f"/api/v2/sandboxes/{live.name}")
            assert answer.status_code == 200, time.monotonic() - begun
            time.sleep(0.2)
        # It is over, and nobody calls.
        until(lambda: api.get(f"/api/v2/sandboxes/{live.name}").status_code == 404)

    def test_idle_pauses_it_and_a_call_wakes_it(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(labels={}, idle_timeout_seconds=1, idle_policy="pause")
        session = live.client.shell.exec_command(command="kept=1").data.session_id
        until(lambda: live.details()["state"] == "paused")
        assert live.client.shell.exec_command(command="echo $kept", id=session).data.output == "1"

    def test_paused_by_hand_nothing_runs(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(labels={})
        live.bash("while :; do date +%s%N > ~/tick; sleep 0.05; done", async_mode=True)
        until(lambda: live.bash("test -s ~/tick").exit_code == 0)
        assert api.post(f"/api/v2/sandboxes/{live.name}/pause").json()["state"] == "paused"
        used = api.get(f"/api/v2/sandboxes/{live.name}/usage").json()["cpu_nanoseconds"]
        time.sleep(1)
        assert api.get(f"/api/v2/sandboxes/{live.name}/usage").json()["cpu_nanoseconds"] == used
        assert live.details()["state"] == "paused"
        assert live.output("echo woken") == "woken"
        assert live.details()["state"] == "running"

    def test_default_is_never_reaped_for_idleness(self, api: httpx.Client) -> None:
        api.post("/v1/bash/exec", json={"command": "true"})
        assert api.get("/api/v2/sandboxes/default").json()["spec"]["idle_timeout_seconds"] is None


class TestFirstUse:
    def test_many_first_callers_make_one_default(self, api: httpx.Client, server: Server) -> None:
        from concurrent.futures import ThreadPoolExecutor

        api.delete("/api/v2/sandboxes/default")

        def call(i: int) -> str:
            return api.post("/v1/bash/exec", json={"command": "cat /proc/sys/kernel/random/boot_id /proc/1/stat | md5sum; hostname"}).json()["data"]["stdout"].splitlines()[-1]

        with ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(call, range(16)))) == 1
        names = [s["name"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]]
        assert names.count("default") == 1
