"""Takes the pictures of the documents: the dashboard of a sandbox at work, its trajectory, and the console. Run by `cargo xtask pictures`."""

from __future__ import annotations

import argparse
import shutil
import uuid
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

SIZE = {"width": 1280, "height": 800}
PAGE = """<!doctype html><title>Quarterly report</title><style>body{font:18px/1.6 system-ui;margin:3rem;max-width:42rem}
td,th{padding:.2rem 1.2rem .2rem 0;text-align:left}</style><h1>Quarterly report</h1><p>Written by an agent in its own computer.</p>
<table><tr><th>Region<th>Orders<th>Change<tr><td>North<td>1,204<td>+8 %<tr><td>South<td>932<td>+3 %<tr><td>West<td>1,518<td>+11 %</table>"""


def work(server: str, name: str) -> None:
    """Makes the calls that the pictures show. One of them fails, as in real work."""
    with httpx.Client(base_url=f"{server}/sandbox/{name}", timeout=120) as client:

        def post(path: str, **body: object) -> None:
            client.post(path, json=body).raise_for_status()

        post("/v1/file/write", file="/home/gem/report/index.html", content=PAGE)
        post("/v1/bash/exec", command="cd ~/report && wc -w index.html && date -u +%F")
        post("/v1/bash/exec", command="ls ~/drafts")
        post("/v1/bash/exec", command="cd ~/report && exec python3 -m http.server 4000", async_mode=True)
        post("/v1/code/execute", language="python", code="sum([1204, 932, 1518])")
        post("/v1/bash/exec", command="curl -s --retry 20 --retry-connrefused --retry-delay 1 localhost:4000 | head -c 60")
        post("/v1/browser/page/navigate", url="http://localhost:4000/")
        client.get("/v1/browser/screenshot").raise_for_status()


def furnish(client: httpx.Client) -> list[str]:
    """Creates the sandboxes that the picture of the console shows, with some load. Returns their names."""
    busy = "while true; do timeout 0.4 sha256sum /dev/zero; sleep 0.6; done"
    log = "n=0; while true; do n=$((n+1)); echo \"step $n: loss 0.$((9000 / (n + 10)))\"; sleep 0.5; done"
    specs = [
        {"name": "crawler", "args": ["sh", "-c", busy], "labels": {"team": "search"}, "timeout_seconds": 7200},
        {"name": "trainer", "args": ["sh", "-c", f"({busy}) & {log}"], "labels": {"team": "search", "run": "42"}, "env": {"SEED": "7"}},
        {"name": "review", "idle_timeout_seconds": 1800, "idle_policy": "pause"},
    ]
    for spec in specs:
        client.post("/api/v2/sandboxes", json={"image": "base", "resources": {"memory_bytes": 1 << 30}, **spec}).raise_for_status()
    client.post("/api/v2/sandboxes/review/pause").raise_for_status()
    return [spec["name"] for spec in specs]


def take_console(page: Page, server: str, out: Path) -> None:
    with httpx.Client(base_url=server, timeout=120) as client:
        names = furnish(client)
        try:
            page.goto(f"{server}/#/sandboxes/trainer")
            # The charts show the last three minutes.
            page.wait_for_timeout(180_000)
            page.screenshot(path=out / "console.png")
        finally:
            for name in names:
                client.delete(f"/api/v2/sandboxes/{name}")


def take(page: Page, server: str, name: str, run: str, out: Path) -> None:
    page.goto(f"{server}/sandbox/{name}/index.html")
    page.click("#tab-browser")
    page.wait_for_timeout(5000)
    page.screenshot(path=out / "dashboard.png")
    page.goto(f"{server}/trajectory/{run}")
    page.get_by_role("button", name="Previous failure").click()
    page.wait_for_timeout(1500)
    page.screenshot(path=out / "trajectory.png")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--server", default="http://127.0.0.1:8080")
    arguments.add_argument("--out", type=Path, required=True)
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    name = f"report-{uuid.uuid4().hex[:4]}"
    made = httpx.post(f"{given.server}/api/v2/sandboxes", json={"name": name, "image": "aio"}, timeout=120).raise_for_status().json()
    try:
        work(given.server, name)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            take(browser.new_page(viewport=SIZE, color_scheme="light"), given.server, name, made["id"], given.out)
            take_console(browser.new_page(viewport=SIZE, color_scheme="light"), given.server, given.out)
            browser.close()
    finally:
        httpx.delete(f"{given.server}/api/v2/sandboxes/{name}", timeout=60)


if __name__ == "__main__":
    main()
