"""VMs: sandboxes of an image that brings one. The image's VM was booted when it was built, so each begins in seconds."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary, ensure_vm
from vms import Vm, empty_qcow2

# A VM without a processor of its own, on a host that runs other tests too.
PATIENCE = 600
IMAGE = "vm"
BLANK = "vm-blank"
GIB = 1 << 30


@pytest.fixture(scope="session")
def vms(server: Server) -> Iterator[Callable[..., Vm]]:
    """Makes sandboxes with a VM; all are gone at the end."""
    ensure_vm(server.data_dir, IMAGE)
    made: list[Vm] = []

    def make(image: str = IMAGE, **spec: Any) -> Vm:
        name = f"t-vm-{uuid.uuid4().hex[:8]}"
        body = {"name": name, "image": image, "resources": {"memory_bytes": 2 * GIB}, **spec}
        answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120)
        assert answer.status_code in (200, 201), answer.text
        made.append(Vm(server.url, name, PATIENCE))
        return made[-1]

    yield make
    for vm in made:
        vm.delete()


@pytest.fixture(scope="session")
def vm(vms: Callable[..., Vm]) -> Vm:
    return vms()


@pytest.fixture(scope="session")
def blank(server: Server, vms: Callable[..., Vm], tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose VM has nothing on its disk."""
    disk = tmp_path_factory.mktemp("disk") / "blank.qcow2"
    disk.write_bytes(empty_qcow2(64 << 20))
    settings = ["--cold", "--memory", "128m", "--boot-seconds", "20", "--data-dir", str(server.data_dir)]
    subprocess.run([str(binary()), "vm", "import", BLANK, str(disk), *settings], check=True, capture_output=True, text=True)
    return BLANK
