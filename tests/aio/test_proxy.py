"""The forward proxy inside sandboxes, by AIO's own client: commands go where the rules lead."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox

# Answers every request with its first line and Host.
ECHO = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Echo(BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{self.requestline} {self.headers['Host']} {self.headers['Proxy-Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", 3000), Echo).serve_forever()
"""


@pytest.fixture
def proxied(sandbox: Callable[..., LiveSandbox]) -> Client:
    client = sandbox().client
    client.file.write_file(file="/tmp/echo.py", content=ECHO)
    client.bash.exec(command="python3 /tmp/echo.py", async_mode=True)
    client.bash.exec(command="until curl -s localhost:3000 >/dev/null; do sleep 0.05; done", timeout=30)
    return client


def run(client: Client, command: str) -> str:
    result = client.bash.exec(command=command).data
    assert result.exit_code == 0, result
    return result.stdout or ""


def refused(status: int, call: Callable[[], object]) -> str:
    with pytest.raises(ApiError) as failure:
        call()
    assert failure.value.status_code == status, failure.value
    return str(failure.value.body["message"])


def test_mappings(proxied: Client) -> None:
    proxy = proxied.proxy
    assert proxy.list_mappings().data == []
    made = proxy.add_mapping(source="api.myapp.com/v1/*", target=":3000/inner/").data
    assert (made.source_host, made.source_path, made.target) == ("api.myapp.com", "/v1/", ":3000/inner/")
    assert run(proxied, "curl -sS 'http://api.myapp.com/v1/x?y'") == "GET /inner/x?y HTTP/1.1 api.myapp.com None"
    proxy.add_mapping(source="https://secure.myapp.com", target="3000")
    told = run(proxied, "printf 'GET /z HTTP/1.0\\r\\n\\r\\n' | curl -sS -p -x $https_proxy telnet://secure.myapp.com:443")
    assert "GET /z HTTP/1.0" in told
    assert len(proxy.list_mappings().data) == 2
    for source in ("api.myapp.com/v1/*", "https://secure.myapp.com"):
        assert proxy.remove_mapping(source).success
    assert "there is no mapping" in refused(404, lambda: proxy.remove_mapping("api.myapp.com/v1/*"))
    assert run(proxied, "echo $http_proxy") == "\n"
    refused(400, lambda: proxy.add_mapping(source="a b", target="3000"))
    refused(400, lambda: proxy.add_mapping(source="a", target="nowhere"))


def test_an_upstream_and_what_passes_it_by(proxied: Client) -> None:
    proxy = proxied.proxy
    assert proxy.get_upstream().data is None
    # What listens there answers proxies' requests too.
    info = proxy.set_upstream(server="me:sekrit@127.0.0.1:3000").data
    assert (info.addr, info.username, info.password) == ("127.0.0.1:3000", "me", None)
    assert proxy.get_upstream().data == info
    seen = run(proxied, "curl -sS http://far.example/x")
    assert seen == "GET http://far.example/x HTTP/1.1 far.example Basic bWU6c2Vrcml0"
    assert "sekrit" not in run(proxied, "env")
    assert proxy.diagnose(url="http://far.example/").data.route == "upstream 127.0.0.1:3000"

    assert proxy.add_exclude(pattern="*.example").success
    assert proxy.list_excludes().data == ["*.example"]
    assert "excluded by *.example" in proxy.diagnose(url="http://far.example/").data.route
    assert proxy.remove_exclude(pattern="*.example").success
    refused(404, lambda: proxy.remove_exclude(pattern="*.example"))
    refused(400, lambda: proxy.add_exclude(pattern="a b"))

    told = proxy.set_upstream(server="127.0.0.1:3000", auth_cmd="echo $(id -un):secret2").data
    assert (told.username, told.password) == ("gem", None)
    assert "secret3" not in refused(400, lambda: proxy.set_upstream(server="127.0.0.1:3000", auth_cmd="echo secret3; exit 1"))
    assert "sekrit" not in refused(400, lambda: proxy.set_upstream(server="me:sekrit@"))
    assert proxy.remove_upstream().success
    assert proxy.get_upstream().data is None


def test_steps_keep_no_credentials(server, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    body = {"server": "me:outside7@127.0.0.1:3000", "auth_cmd": None}
    assert live.http.put("/v1/proxy/upstream", json=body).json()["success"]
    live.client.file.write_file(file="/tmp/call.json", content='{"server": "me:inside8@127.0.0.1:3000"}')
    call = "curl -sS -X PUT -H 'Content-Type: application/json' -d @/tmp/call.json http://localhost:8080/v1/proxy/upstream"
    assert '"success":true' in live.output(call)
    deadline = time.monotonic() + 30
    while True:
        steps = httpx.get(f"{server.url}/api/v1/trajectories/{live.id}").json()["steps"]
        told = [json.dumps(step) for step in steps if step["action"].endswith("/v1/proxy/upstream")]
        # Those from inside come a moment later.
        if len(told) == 2:
            break
        assert time.monotonic() < deadline, steps
        time.sleep(0.2)
    for step in told:
        assert "redacted@127.0.0.1:3000" in step and "outside7" not in step and "inside8" not in step, step


def test_diagnosis_and_health(proxied: Client) -> None:
    proxy = proxied.proxy
    proxy.add_mapping(source="*.staging.app.com", target="127.0.0.1:3000")
    found = proxy.diagnose(url="http://a.staging.app.com/x").data
    assert found.matched_mapping.source == "*.staging.app.com"
    assert (found.resolved_target, found.target_reachable) == ("127.0.0.1:3000/x", True)
    proxy.add_mapping(source="dead.app.com", target="1")
    assert proxy.diagnose(url="http://dead.app.com/").data.target_reachable is False
    assert "URL" in refused(400, lambda: proxy.diagnose(url="ftp://x"))
    url = str(proxied._client_wrapper.get_base_url())
    health = httpx.get(f"{url}/v1/proxy/health").json()["data"]
    assert (health["healthy"], health["gost_alive"], health["inconsistencies"]) == (True, True, [])


def test_the_environment_configures_it(sandbox: Callable[..., LiveSandbox]) -> None:
    env = {"PROXY_SERVER": "me:sekrit@127.0.0.1:9", "PROXY_EXCLUDE": ".internal", "PROXY_MAP": "app.test=:3000"}
    client = sandbox(env=env).client
    assert client.proxy.get_upstream().data.addr == "127.0.0.1:9"
    assert client.proxy.list_excludes().data == [".internal"]
    assert client.proxy.list_mappings().data[0].source == "app.test"
    seen = run(client, "env; cat /proc/self/environ")
    assert "sekrit" not in seen and "http_proxy=http://127.0.0.1:8118" in seen
