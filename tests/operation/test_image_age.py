"""Images that nothing used for a time: by command, and by the server's setting. The registry is Debian's docker-registry."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
from arenite_server import Server
from commands import run
from registries import layer, registry
from small import tiny_image, within

DAY = 86_400


def manifest(server: Server, name: str) -> Path:
    return server.data_dir / "pool/images" / (name.replace("/", "%") + ".json")


def used_days_ago(server: Server, names: Iterable[str], days: float) -> None:
    for name in names:
        os.utime(manifest(server, name), (time.time() - days * DAY,) * 2)


def days_since_use(server: Server, name: str) -> float:
    return (time.time() - manifest(server, name).stat().st_mtime) / DAY


def test_unused_images_are_removed(own_server: Callable[..., Server], tmp_path: Path) -> None:
    with registry(tmp_path) as there:
        words = ("used", "named", "templated", "default", "recent", "old", "older")
        names = {word: f"{there.host}/team/{word}:1" for word in words}
        for word in words:
            there.push(f"team/{word}", [layer({"shared": b"s" * 100_000}), layer({word: word.encode() * 20_000})])
        templates = tmp_path / "templates"
        templates.mkdir()
        (templates / "task.toml").write_text(f'image = "{names["templated"]}"\n')
        settings = ("--image-registry", there.host, "--templates-dir", str(templates), "--default-image", names["default"])
        server = own_server(args=settings)
        server.start()
        tiny_image(server.data_dir / "pool")
        with server.api() as http:
            for name in names.values():
                http.post("/api/v2/images/pull", json={"image": name}).raise_for_status()

            def here() -> set[str]:
                listed = {image["name"] for image in http.get("/api/v2/images").raise_for_status().json()["images"]}
                return {word for word in words if names[word] in listed} | listed & {"tiny"}

            used_days_ago(server, [*names.values(), "tiny"], 40)
            used_days_ago(server, [names["recent"]], 20)
            # A create uses its image, and pays nothing for that if another one has just done so.
            for name in ("used", "named"):
                http.post("/api/v2/sandboxes", json={"name": name, "image": names[name]}).raise_for_status()
                assert days_since_use(server, names[name]) < 1
            http.delete("/api/v2/sandboxes/named").raise_for_status()
            used_days_ago(server, [names["used"]], 50)
            http.get("/api/v2/images/" + names["old"]).raise_for_status()
            assert days_since_use(server, names["old"]) > 39, "to look at an image is no use of it"
            used_days_ago(server, [names["older"]], 45)

            tried = run(server, "image", "prune", "--unused-for", "30d", "--dry-run", "--json")
            assert tried.returncode == 0, tried.stderr
            plan = json.loads(tried.stdout)
            assert [image["name"] for image in plan["images"]] == [names["older"], names["old"]] and plan["dry_run"]
            assert len(plan["layers"]) == 2 and plan["freed_bytes"] > 100_000, plan
            assert here() == {*words, "tiny"}
            done = json.loads(run(server, "image", "prune", "--unused-for", "30d", "--json").stdout)
            assert [image["name"] for image in done["images"]] == [names["older"], names["old"]] and not done["dry_run"]
            assert done["layers"] == plan["layers"]
            assert here() == {"used", "named", "templated", "default", "recent", "tiny"}
            assert httpx.get(f"{server.url}/sandbox/used/v1/ping").status_code == 200
            # What a sandbox, a template or the configuration needs counts as used.
            assert max(days_since_use(server, names[word]) for word in ("used", "templated", "default")) < 1

            # The server does the same, and never to images that were made here.
            used_days_ago(server, [*(names[word] for word in words[:5]), "tiny"], 40)
            server.restart(("--image-keep-days", "30"))
            within(30, "the server removed what is unused", lambda: here() == {"used", "templated", "default", "tiny"})
            # An image is gone before its layers are, and those before it is reported.
            within(30, "the server reported it", lambda: "removed an unused image" in server.log_tail(20_000))

            used_days_ago(server, ["tiny"], 40)
            shown = run(server, "image", "prune", "--unused-for", "30d", "--all")
            assert shown.stdout == "tiny, last used 40d ago\n" and "freed" in shown.stderr, shown
            assert here() == {"used", "templated", "default"}
            server.delete_all_sandboxes()
    refused = run(server, "image", "prune", "--dry-run")
    assert refused.returncode == 2 and "--unused-for" in refused.stderr
