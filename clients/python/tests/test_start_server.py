"""Starting `arenite` when no server is there. The program is a fake; what it is given is real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_process import HERE, SOURCE

from sandbox import Sandbox, SandboxServerStartError
from sandbox.server import HTTPServiceServer
from sandbox.server.launch import configuration

FAKE = str(HERE / "fake_arenite.py")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ARENITE_BIN", FAKE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://localhost:{probe.getsockname()[1]}"


@pytest.fixture
def auto(url: str) -> Iterator[Sandbox]:
    sandbox = Sandbox(url, auto_start_server=True, server_check_interval=0.05)
    yield sandbox
    if sandbox._process is not None:
        sandbox._process.stop()


def test_it_is_started_and_outlives_the_sandbox(auto: Sandbox) -> None:
    auto.start_sync()
    port = auto.server_url.rsplit(":", 1)[1]
    assert f"listening on 127.0.0.1:{port}" in auto.get_server_log()
    assert "arguments []" in auto.get_server_log()
    assert auto.get_server_log(tail_lines=1) == "plugin path None"
    assert auto._process is not None
    pid = auto._process._process.pid
    assert os.getsid(pid) == pid, "Ctrl-C in this terminal is not for the server"
    auto.close_sync()
    with Sandbox(auto.server_url) as second:
        assert second.is_started
    assert second._process is None


def test_the_configuration_is_passed_on(url: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    Sandbox.create_config_template(str(path))
    sandbox = Sandbox(url, auto_start_server=True, server_config_path=str(path))
    assert "vm" in sandbox.get_server_config()["resources"]
    sandbox.save_server_config({"resources": {}}, str(path))
    with sandbox:
        assert f'arguments ["--agentflow-config", "{path}"]' in sandbox.get_server_log()
        sandbox.shutdown_server_sync()
    assert sandbox._process is not None
    sandbox._process.stop()
    assert path.is_file(), "the file is the caller's"


def test_a_server_that_ends_is_told_with_its_last_words(auto: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ARENITE_FAILS", "1")
    with pytest.raises(SandboxServerStartError, match="(?s)ended with status 1.*error: needs root"):
        auto.start_sync()


def test_a_server_that_does_not_answer_is_ended(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho I am here\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setenv("ARENITE_BIN", str(silent))
    sandbox = Sandbox(url, auto_start_server=True, server_startup_timeout=0.5, server_check_interval=0.1)
    with pytest.raises(SandboxServerStartError, match="(?s)did not answer within 0.5 s.*I am here"):
        sandbox.start_sync()
    assert sandbox._process is not None
    assert sandbox._process.status() is not None


def test_without_a_program_it_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENITE_BIN", "/no/such/program")
    with pytest.raises(SandboxServerStartError, match="ARENITE_BIN names /no/such/program"):
        Sandbox(url, auto_start_server=True).start_sync()
    monkeypatch.delenv("ARENITE_BIN")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxServerStartError, match="no program arenite on the PATH"):
        Sandbox(url, auto_start_server=True).start_sync()


def test_run_starts_it_with_what_is_registered(url: str) -> None:
    # Where this runs in the background of a shell, the signal that ends it is ignored from the start.
    program = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {[str(HERE), str(SOURCE)]!r}
from sandbox.server import HTTPServiceServer, BackendConfig
from sandbox.server.backends.tools import register_all_tools
from odd_backend import OddBackend
import api_tools
server = HTTPServiceServer("127.0.0.1", {url.rsplit(":", 1)[1]})
server.load_backend(OddBackend(BackendConfig(default_config={{"a": 1}})))
register_all_tools(server, {{"sums": {{"scale": 2}}}})
server.run()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    assert str(HERE) in lines[2]
    text = lines[3].removeprefix("configuration ")
    while text.count("{") != text.count("}"):
        text += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.wait(20)
    config = json.loads(text)
    assert config["resources"]["odd"]["backend_class"] == "odd_backend.OddBackend"
    assert config["resources"]["odd"]["config"] == {"a": 1}
    (plugins,) = config["plugins"]
    assert plugins["modules"] == ["api_tools"]
    assert str(HERE) in plugins["path"]
    assert config["apis"]["sums"] == {"scale": 2}
    with pytest.raises(Exception, match="no server answers"):
        Sandbox(url).start_sync()


def test_what_has_no_name_cannot_be_run() -> None:
    server = HTTPServiceServer()
    server.register_tool("a:b", lambda: None)
    with pytest.raises(RuntimeError, match="'a:b' belongs to no backend"):
        configuration(server)

    from sandbox.server import Backend

    class Local(Backend):
        name = "local"

    server = HTTPServiceServer()
    server.load_backend(Local())
    with pytest.raises(RuntimeError, match="define it at the module's top level"):
        configuration(server)
