"""Whether VMs run with the host's KVM: what a boot has shown decides, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arenite_server import Server, binary

DEVICE = "ls -l /dev/kvm 2>&1 || true"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def probe(data_dir: Path, *words: str) -> dict[str, Any]:
    command = [str(binary()), "vm", "probe", *words, "--json", "--data-dir", str(data_dir)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


@pytest.fixture
def verdict(server: Server) -> Iterator[Path]:
    """The file that keeps it, as it was in the end."""
    file = server.data_dir / "kvm.json"
    before = file.read_bytes() if file.exists() else None
    yield file
    if before is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(before)


def test_a_boot_decides(server: Server, verdict: Path, vms: Callable[..., Any]) -> None:
    vms()
    found = probe(server.data_dir)
    vm = vms()
    assert vm.data("GET", "/v1/vm")["accel"] == ("kvm" if found["works"] else "tcg"), found
    assert ("No such file" in vm.output(DEVICE)) is not found["works"]
    assert vm.inside("echo up") == "up\n", "it boots, whatever was found"
    images = subprocess.run(
        [str(binary()), "image", "ls", "--json", "--data-dir", str(server.data_dir)], check=True, capture_output=True
    )
    assert "vm-kvm" not in [image["name"] for image in json.loads(images.stdout)["images"]], "a probe leaves nothing"


def test_only_vms_have_the_device_and_only_after_a_yes(
    server: Server, verdict: Path, vms: Callable[..., Any], sandbox: Callable[..., Any]
) -> None:
    off = probe(server.data_dir, "--off")
    assert (off["works"], off["reason"]) == (False, "it was turned off")
    assert "No such file" in vms().output(DEVICE)
    # A yes that no boot has given: on hosts whose KVM does not boot a VM, there is no other way to one.
    verdict.write_text(json.dumps({**json.loads(verdict.read_text()), "works": True}))
    vm = vms()
    assert "10, 232" in vm.output(DEVICE)
    assert vm.data("GET", "/v1/vm")["accel"] == ("kvm" if os.path.exists("/dev/kvm") else "tcg")
    plain = sandbox()
    answer = plain.http.post("/v1/bash/exec", json={"command": DEVICE}).json()
    assert "No such file" in answer["data"]["stdout"]
    vm = vms(env={"ARENITE_VM_ACCEL": "tcg"})
    assert vm.data("GET", "/v1/vm")["accel"] == "tcg"
    assert vm.inside("echo up") == "up\n"
    # Of another host, it is none.
    verdict.write_text(json.dumps({**json.loads(verdict.read_text()), "host": "another"}))
    assert "No such file" in vms().output(DEVICE)
