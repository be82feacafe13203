"""Images as files: from one host's data directory to another's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
from arenite_server import Server
from commands import run


def test_a_saved_image_is_loaded_on_another_server(server: Server, own_server: Callable[..., Server], tmp_path: Path) -> None:
    file = tmp_path / "images.tar"
    saved = run(server, "image", "save", "base", "-o", str(file))
    assert saved.returncode == 0, saved.stderr
    other = own_server(args=("--default-image", "base"))
    other.start()
    loaded = run(other, "image", "load", str(file))
    assert (loaded.returncode, loaded.stdout) == (0, "base\n"), loaded.stderr
    with httpx.Client(base_url=other.url, timeout=120) as api:
        api.post("/api/v2/sandboxes", json={"name": "loaded"}).raise_for_status()
        command = "id -un; python3 -c 'print(6 * 7)'; sudo id -un; stat -c '%U %a' /usr/bin/sudo ~"
        answer = api.post("/sandbox/loaded/v1/bash/exec", json={"command": command}).raise_for_status().json()
        assert answer["data"]["stdout"] == "gem\n42\nroot\nroot 4755\ngem 755\n", answer
        api.delete("/api/v2/sandboxes/loaded").raise_for_status()


def test_a_damaged_file_leaves_no_image(server: Server, own_server: Callable[..., Server], tmp_path: Path) -> None:
    file = tmp_path / "images.tar"
    assert run(server, "image", "save", "base", "-o", str(file)).returncode == 0
    size = file.stat().st_size
    other = own_server()
    other.start()
    for damage in ("cut", "changed"):
        with file.open("r+b") as damaged:
            if damage == "cut":
                damaged.truncate(size // 2)
            else:
                damaged.seek(size // 4)
                damaged.write(b"\0" * 4096)
        loaded = run(other, "image", "load", str(file))
        assert loaded.returncode == 1 and str(file) in loaded.stderr, (damage, loaded.stderr)
        assert run(other, "image", "ls").stdout.count("base") == 0
