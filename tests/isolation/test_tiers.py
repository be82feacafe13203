"""Tiers: the one that a sandbox reports is the one that a probe inside finds, and none is replaced by a weaker one."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import leaks
import pytest
from arenite_server import Server
from engine_servers import path_of_runsc
from sandboxes import LiveSandbox
from small import SmallServer, small_server, tiny_image, within
from tenant import TenantsServer

MIB = 1 << 20


def tier_inside(box: LiveSandbox) -> str:
    """What the kernel inside says that it is. gVisor has another version than this host."""
    version = box.output("cat /proc/version").strip()
    is_hosts = version == Path("/proc/version").read_text().strip()
    # gVisor's own log of its start, which no Linux has.
    is_gvisor = "gvisor" in box.output("sudo dmesg 2>/dev/null | head -n 5 || true").lower()
    assert is_hosts != is_gvisor, (version, is_hosts, is_gvisor)
    return "gvisor" if is_gvisor else "namespace"


@pytest.fixture(scope="module")
def runsc() -> str:
    return path_of_runsc()


@pytest.fixture(scope="module")
def box(server: Server, runsc: str) -> Iterator[LiveSandbox]:
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": "tiered", "tier": "gvisor"}, timeout=120)
    assert answer.status_code == 201, answer.text
    live = LiveSandbox(server.url, "tiered")
    yield live
    live.delete()


class TestGvisor:
    def test_the_reported_tier_is_that_of_a_probe(self, box: LiveSandbox, sandbox: Callable[..., LiveSandbox]) -> None:
        for live in (box, sandbox()):
            details = live.details()
            assert details["tier"] == details["spec"]["tier"] == tier_inside(live)
            listed = httpx.get(f"{live.base_url}/api/v2/sandboxes").json()["sandboxes"]
            assert [one["tier"] for one in listed if one["name"] == live.name] == [details["tier"]]
        assert any("gVisor" in part for part in box.details()["isolation"])

    def test_the_sandbox_says_it_itself(self, box: LiveSandbox) -> None:
        assert box.http.get("/v1/sandbox").json()["detail"]["tier"] == "gvisor"

    def test_shell_and_files(self, box: LiveSandbox) -> None:
        assert box.output("id -un; sudo id -u; hostname") == "gem\n0\ntiered"
        assert box.bash("exit 7").exit_code == 7
        path = "/home/gem/hello.txt"
        assert box.http.post("/v1/file/write", json={"file": path, "content": "grüße\n"}).json()["success"]
        assert box.output(f"cat {path}") == "grüße"
        assert box.http.post("/v1/file/read", json={"file": path}).json()["data"]["content"] == "grüße\n"
        box.output("seq 200000 | gzip > ~/n.gz; zcat ~/n.gz | tail -n 1 | grep -x 200000")
        ran = box.http.post("/v1/shell/exec", json={"command": "tty; echo in a terminal"}).json()
        assert "in a terminal" in ran["data"]["output"], ran

    def test_processes_end_with_their_command(self, box: LiveSandbox) -> None:
        begun = time.monotonic()
        ran = box.http.post("/v1/bash/exec", json={"command": "sleep 300 & sleep 300", "hard_timeout": 1}, timeout=30).json()
        assert time.monotonic() - begun < 15, ran
        assert box.output("pgrep -c sleep || true") == "0"

    def test_code(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(image="code", tier="gvisor", patience=180)
        for language, code in (("python", "import os; print(sum(range(10)), os.cpu_count() > 0)"), ("javascript", "console.log(45)")):
            ran = live.http.post("/v1/code/execute", json={"language": language, "code": code}, timeout=180).json()
            assert ran["success"] and "45" in str(ran["data"]), ran

    def test_a_browser(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(image="browser", tier="gvisor", patience=180)
        page = "data:text/html,<h1>seen</h1>"
        opened = live.http.post("/v1/browser/page/navigate", json={"url": page}, timeout=120).json()
        assert opened["success"], opened
        assert live.http.get("/v1/browser/page/text", timeout=60).json()["data"] == "seen"

    def test_a_preview(self, box: LiveSandbox) -> None:
        box.output("mkdir -p ~/site && echo seen > ~/site/index.html")
        box.bash("cd ~/site && exec python3 -m http.server 3000 --bind 127.0.0.1", async_mode=True)
        url = f"{box.url}/proxy/3000/"
        within(30, "the preview answers", lambda: httpx.get(url, timeout=20).text.strip() == "seen")

    def test_a_pause_stops_everything(self, box: LiveSandbox) -> None:
        box.bash("while :; do date +%s%N > ~/now; sleep 0.01; done", async_mode=True)
        within(20, "it counts", lambda: box.bash("cat ~/now").stdout)
        with httpx.Client(base_url=box.base_url, timeout=60) as api:
            api.post(f"/api/v2/sandboxes/{box.name}/pause", json={}).raise_for_status()
            assert box.details()["state"] == "paused"
            used = [api.get(f"/api/v2/sandboxes/{box.name}/usage").json()["cpu_nanoseconds"] for _ in range(2) if time.sleep(0.3) is None]
            assert used[0] == used[1]
            api.post(f"/api/v2/sandboxes/{box.name}/resume", json={}).raise_for_status()
        before = box.output("cat ~/now")
        within(20, "it counts again", lambda: box.output("cat ~/now") not in ("", before))

    def test_memory_and_processes_are_limited(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(tier="gvisor", resources={"memory_bytes": 512 * MIB})
        live.http.post("/v1/bash/exec", json={"command": "python3 -c \"b = bytearray(1 << 30)\"", "hard_timeout": 60}, timeout=90)

        def died() -> bool:
            details = live.details()
            return details["state"] == "failed" and details["died"]["reason"] == "oom"

        # All of its memory is that of one process of the host, so the sandbox ends as a whole.
        within(60, "the sandbox ended for its memory", died)
        httpx.post(f"{live.base_url}/api/v2/sandboxes/{live.name}/start", json={}, timeout=120).raise_for_status()
        assert live.details()["tier"] == tier_inside(live) == "gvisor"

    def test_files_outlive_a_restart(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox(tier="gvisor")
        live.output("echo kept > ~/kept; echo too > /tmp/kept; sync")
        assert live.output("stat -f -c %T /tmp") == live.output("stat -f -c %T /home/gem"), "not in memory"
        # Under gVisor, the sandbox's root can end it.
        live.http.post("/v1/bash/exec", json={"command": "sudo kill -9 1", "hard_timeout": 5}, timeout=30)
        within(30, "it has failed", lambda: live.details()["state"] == "failed")
        httpx.post(f"{live.base_url}/api/v2/sandboxes/{live.name}/start", json={}, timeout=120).raise_for_status()
        assert live.output("cat ~/kept /tmp/kept") == "kept\ntoo"

    def test_the_network_has_the_same_rules(self, box: LiveSandbox, server: Server) -> None:
        closed = f"timeout 5 bash -c 'exec 3<>/dev/tcp/{{}}'"
        for address in ("169.254.169.254/80", f"127.0.0.1/{server.port}", "10.0.0.1/53"):
            assert box.bash(closed.format(address)).exit_code != 0, address
        gateway = box.output("awk '/nameserver/{print $2}' /etc/resolv.conf")
        assert box.bash(closed.format(f"{gateway}/{server.port}")).exit_code != 0

    def test_nothing_is_left(self, server: Server, runsc: str) -> None:
        before = leaks.steady(server)
        for number in range(3):
            name = f"gone-{number}"
            answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "tier": "gvisor"}, timeout=120)
            assert answer.status_code == 201, answer.text
            live = LiveSandbox(server.url, name)
            live.bash("sleep 1000", async_mode=True)
            live.delete().raise_for_status()
        leaks.settle(before, server)


@pytest.fixture(scope="module")
def tenants() -> Iterator[TenantsServer]:
    # Sockets in a data directory want a short path.
    folder = Path(tempfile.mkdtemp(prefix="arenite-tiers-"))
    sizes = ("--prepared-slots", "0", "--storage-size", "512MiB", "--disk-reserve", "1MiB")
    server = Server(folder / "data", args=(*sizes, "--default-image", "tiny", "--tenants"))
    server.start()
    tiny_image(server.data_dir / "pool")
    tenants = TenantsServer(server)
    yield tenants
    for name in ("acme", "other"):
        tenants.operator.json("DELETE", f"/api/v2/tenants/{name}?force=true")
    server.stop()
    shutil.rmtree(folder)


class TestMinimum:
    def test_a_tier_that_is_not_there_is_refused_with_what_to_do(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        # Sockets in a data directory want a short path.
        tmp = tmp_path_factory.mktemp("none")
        with small_server(tmp) as server:
            server.stop()
            programs = tmp / "programs"
            programs.mkdir()
            for name in ("nft", "mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "ip"):
                found = next((f"{d}/{name}" for d in ("/usr/sbin", "/sbin", "/usr/bin", "/bin") if os.access(f"{d}/{name}", os.X_OK)), None)
                if found:
                    (programs / name).symlink_to(found)
            server.environment = {"PATH": str(programs)}
            server.start()
            with server.api() as api:
                refused = api.post("/api/v2/sandboxes", json={"name": "a", "tier": "gvisor"})
                assert refused.status_code == 501, refused.text
                problem = refused.json()
                assert "the tier gvisor is not available: runsc is not in PATH" in str(problem), problem
                assert "install gVisor's runsc" in str(problem), problem
                refused = api.post("/api/v2/sandboxes", json={"name": "a", "tier": "machine"})
                assert "the image has no VM" in refused.text
                assert api.post("/api/v2/sandboxes", json={"name": "a", "tier": "virtual"}).status_code in (400, 422)
                assert api.get("/api/v2/sandboxes").json()["sandboxes"] == []
                made = api.post("/api/v2/sandboxes", json={"name": "a", "tier": "namespace"})
                assert made.status_code == 201 and made.json()["tier"] == "namespace", made.text

    def test_a_tenants_minimum_is_enforced(self, tenants: TenantsServer) -> None:
        acme = tenants.tenant("acme")
        set_to = tenants.command(tenants.operator.key, "tenant", "set", "acme", "--min-tier", "gvisor", "--json")
        assert '"min_tier": "gvisor"' in set_to.stdout, set_to
        for weaker in ("namespace", "machine"):
            refused = acme.http.post("/api/v2/sandboxes", json={"name": "a", "tier": weaker})
            assert refused.status_code == 403 and refused.json()["code"] == "forbidden", refused.text
            assert f"the tier {weaker} is less than the minimum for this sandbox, gvisor" in refused.text
        # Without a tier, it gets the minimum and nothing less.
        unnamed = acme.http.post("/api/v2/sandboxes", json={"name": "a"})
        assert unnamed.status_code != 201 or unnamed.json()["tier"] == "gvisor", unnamed.text
        other = tenants.tenant("other")
        made = other.json("POST", "/api/v2/sandboxes", json={"name": "a"})
        assert made["tier"] == "namespace"
        assert acme.http.patch("/api/v2/tenants/acme", json={"min_tier": None}).status_code == 403
        tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"min_tier": None})
        made = acme.json("POST", "/api/v2/sandboxes", json={"name": "b"})
        assert made["tier"] == "namespace"
        shown = tenants.command(acme.key, "ls").stdout
        assert "namespace" in shown and "TIER" in shown, shown


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory, runsc: str) -> Iterator[SmallServer]:
    with small_server(tmp_path_factory.mktemp("adopted"), args=("--runsc", runsc, "--tier", "gvisor")) as server:
        yield server


class TestAdoption:
    def test_a_sandbox_lives_on_without_its_server(self, small: SmallServer) -> None:
        live = small.create("lives")
        assert live.details()["tier"] == "gvisor", "the server's default"
        live.output("echo kept > /root/kept")
        live.bash("echo $$ > /root/pid; exec sleep 1000", async_mode=True)
        within(20, "it runs", lambda: live.bash("cat /root/pid").stdout)
        small.kill()
        small.start()
        assert small.states() == {"lives": "running"}
        assert live.details()["tier"] == "gvisor"
        assert live.output("cat /root/kept; kill -0 $(cat /root/pid) && echo alive") == "kept\nalive"

    def test_a_killed_sentry_is_a_failed_sandbox_that_starts_again(self, small: SmallServer) -> None:
        live = small.create("killed")
        live.output("echo kept > /root/kept")
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = f"/{live.id}/" in (process / "cgroup").read_text() and b"boot" in (process / "cmdline").read_bytes()
            except OSError:
                continue
            if is_ours:
                os.kill(int(process.name), 9)
        within(30, "it has failed", lambda: small.states() == {"killed": "failed"})
        httpx.post(f"{small.url}/api/v2/sandboxes/killed/start", json={}, timeout=120).raise_for_status()
        assert live.output("cat /root/kept") == "kept"
