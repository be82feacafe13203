"""What comes before and after a task of `vm:*`: AgentFlow's own configuration, steps of setup, evaluators."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arenite_server import Server
from workers import OURS, Worker

Configure = Callable[[dict[str, Any]], Server]
Workers = Callable[..., Worker]
VM = f"{OURS}.vm.VMBackend"


def test_agentflows_own_configuration_starts_unchanged(configured: Configure, worker: Workers, tmp_path: Path) -> None:
    """The text of AgentFlow's GUI_config.json, with its paths filled in; the port is the test's. There is no Docker here."""
    films = tmp_path / "sandbox_recordings"
    server = configured(
        {
            "server": {"session_ttl": 600},
            "resources": {
                "vm": {
                    "enabled": True,
                    "description": "VM backend - desktop automation",
                    "backend_class": VM,
                    "config": {
                        "provider": "docker",
                        "region": "",
                        "os_type": "Ubuntu",
                        "screen_size": [1920, 1080],
                        "headless": True,
                        "connection_type": "local",
                        "pool_size": 1,
                        "setup": [],
                        "pool_reset": True,
                        "snapshot_name": "",
                        "use_proxy": False,
                        "_comment_required": "Provide local resource paths and passwords via environment variables",
                        "client_password": "${VM_CLIENT_PASSWORD:-password}",
                        "vm_path": str(tmp_path / "Ubuntu.qcow2"),
                        "recording": True,
                        "recording_path": str(films),
                    },
                }
            },
            "warmup": {"enabled": True, "resources": ["vm"]},
        }
    )
    assert "VMs of the provider docker are desktops of sandboxes instead" in server.log_tail(100_000)
    w = worker()
    session = w.create("vm")["session_id"]
    assert w.ok("vm:screenshot")["size"] == [1920, 1080]
    assert w.ok("vm:click", x=960, y=540)["clicked"] == [960, 540]
    w.post("session/destroy", resource_type="vm")
    assert (films / f"{session}.mp4").stat().st_size > 1000


def test_steps_make_a_machine_ready_and_evaluators_judge_it(configured: Configure, worker: Workers, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "plan.txt").write_text("buy milk\n")
    (tmp_path / "secret.txt").write_text("key\n")
    steps = [
        {"type": "upload_file", "parameters": {"files": [{"local_path": "plan.txt", "path": "/tmp/plan.txt"}]}},
        {"type": "execute", "parameters": {"command": ["sh", "-c", "cp /tmp/plan.txt /tmp/copy.txt"]}},
        {"type": "launch", "parameters": {"command": ["l3afpad", "/tmp/plan.txt"]}},
        {"type": "sleep", "parameters": {"seconds": 1}},
    ]
    own = {"setup": steps, "setup_files": str(files)}
    configured({"resources": {"vm": {"backend_class": VM, "config": own}}})
    w = worker()
    w.create("vm")
    w.ok("vm:type", text="first ")
    w.ok("vm:hotkey", keys=["ctrl", "s"])
    w.ok("vm:wait", seconds=1)

    def score(**evaluator: Any) -> float:
        told = w.ok("vm:evaluate", evaluator=evaluator)
        assert told["evaluator"] == evaluator and told["details"], told
        return told["score"]

    def line(*command: str) -> dict[str, Any]:
        return {"type": "vm_command_line", "command": list(command)}

    same = {"type": "rule", "rules": {"expected": "first buy milk\n"}}
    assert score(func="exact_match", result=line("cat", "/tmp/plan.txt"), expected=same) == 1
    assert score(func="exact_match", result=line("cat", "/tmp/copy.txt"), expected=same) == 0
    included = {"type": "rule", "rules": {"include": ["milk"], "exclude": ["first"]}}
    file = {"type": "vm_file", "path": "/tmp/copy.txt", "dest": "copy.txt"}
    other = {"type": "vm_file", "path": "/tmp/plan.txt", "dest": "plan.txt"}
    assert score(func="check_include_exclude", result=line("cat", "/tmp/copy.txt"), expected=included) == 1
    assert score(func="compare_text_file", result=file, expected=other) == 0
    either = {"conj": "or", "result": [line("cat", "/tmp/copy.txt"), line("cat", "/tmp/plan.txt")], "expected": [included, same]}
    assert score(func=["check_include_exclude", "exact_match"], **either) == 1

    for wrong, said in (
        ({"func": "os.system"}, "os.system"),
        ({"func": "exact_match", "result": {"type": "get_rich"}, "expected": same}, "get_rich"),
        ({"func": "exact_match", "conj": "xor", "result": line("true"), "expected": same}, "xor"),
        ({"func": []}, "func"),
    ):
        refused = w.call("vm:evaluate", evaluator=wrong)
        assert refused["code"] == 4000 and said in refused["message"], refused
    assert score(func="infeasible") == 0
    w.ok("vm:fail")
    assert score(func="infeasible") == 1
    assert score(func="exact_match", result=line("cat", "/tmp/plan.txt"), expected=same) == 0, "the agent gave up"

    # A session's own steps get no file of the server, by any path.
    for path in ("plan.txt", str(files / "plan.txt"), "../secret.txt", str(tmp_path / "secret.txt")):
        step = {"type": "upload_file", "parameters": {"files": [{"local_path": path, "path": "/tmp/x"}]}}
        refused = worker("other").post("session/create", resource_type="vm", session_config={"setup": [step]}).json()
        assert refused["code"] == 4007 and "upload_file" in json.dumps(refused), refused
    broken = {"type": "execute", "parameters": {"command": ["no-such-program"]}}
    refused = worker("broken").post("session/create", resource_type="vm", session_config={"setup": [broken]}).json()
    assert refused["code"] == 4007 and "step 1 of the setup (execute) failed" in json.dumps(refused), refused
