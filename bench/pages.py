"""The console with many sandboxes and the page of a long run, in Chromium: until they can be used, while they scroll, and their memory.

Arguments: the server's address and the number of sandboxes and steps. The steps are recorded by real calls. A host can't
run that many sandboxes, so the answer of the list is one real sandbox many times. Prints one JSON object with milliseconds and bytes.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx
from playwright.sync_api import Browser, Page, Route, sync_playwright

ROUNDS = 5
#: Seconds for a page.
PATIENCE = 60
NAME = "pages"
#: For the comparison.
FEW = 10
CLIENTS = 4
#: Each is some rows.
WHEELS = 60
TRACED = ["devtools.timeline", "toplevel", "disabled-by-default-devtools.timeline"]
#: Notes when the page first shows what is waited for and has painted it.
READY = """
window.readyAt = undefined;
const look = () => {
  let found = false;
  try { found = Boolean(%s); } catch { /* It is not there yet. */ }
  if (found) requestAnimationFrame(() => setTimeout(() => { window.readyAt = performance.now(); }));
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


class Sandboxes:
    """The answers of the lists of sandboxes and of their use."""

    def __init__(self, one: dict[str, Any], count: int) -> None:
        self.all = [{**one, "id": f"s{n:011d}", "name": f"agent-{n}"} for n in range(count)]
        usage = {"memory_bytes": 40 << 20, "cpu_nanoseconds": 10**9, "pids": 4, "disk_bytes": 1 << 20, "limits": {"memory_bytes": 1 << 30, "cpu_millis": 1000, "pids": 512, "disk_bytes": 1 << 30}}
        self.live = json.dumps({"sandboxes": [{"id": one["id"], "name": one["name"], "usage": usage} for one in self.all[:1000]], "left_out": max(0, count - 1000)})

    def answer(self, page: Page) -> None:
        page.route(lambda url: urlparse(url).path == "/api/v2/sandboxes" and "follow" not in url, self.listed)
        page.route("**/api/v2/usage/live", lambda route: route.fulfill(body=self.live, content_type="application/json"))

    def listed(self, route: Route) -> None:
        query = parse_qs(urlparse(route.request.url).query)
        begin, limit = int(query.get("cursor", ["0"])[0]), int(query.get("limit", ["1000"])[0])
        route.fulfill(body=self.page(begin, limit), content_type="application/json")

    @functools.cache
    def page(self, begin: int, limit: int) -> str:
        """Written once: a server would not be as slow as this script."""
        end = begin + limit
        return json.dumps({"sandboxes": self.all[begin:end], "next_cursor": str(end) if end < len(self.all) else None})


def opened(browser: Browser, url: str, ready: str, sandboxes: Sandboxes | None) -> tuple[Page, float]:
    page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
    page.set_default_timeout(PATIENCE * 1000)
    if sandboxes:
        sandboxes.answer(page)
    page.add_init_script(READY % ready)
    page.goto(url, wait_until="commit")
    # Its policy refuses what waits for a condition in the page.
    end = time.monotonic() + PATIENCE
    while (ready_at := page.evaluate("window.readyAt")) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{url} was not ready in {PATIENCE} s: {ready}")
        page.wait_for_timeout(20)
    return page, ready_at


def until_ready(browser: Browser, url: str, ready: str, sandboxes: Sandboxes | None = None) -> float:
    """The median of cold loads, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        page, took = opened(browser, url, ready, sandboxes)
        times.append(took)
        page.context.close()
    return statistics.median(times)


def longest_task(browser: Browser, page: Page, over: str) -> float:
    """The longest task of the page's main thread while it is scrolled down and to both ends, in milliseconds."""
    page.locator(over).first.hover()
    page.wait_for_timeout(1000)
    browser.start_tracing(page=page, categories=TRACED)
    for _ in range(WHEELS):
        page.mouse.wheel(0, 700)
        page.wait_for_timeout(30)
    for wheel in (10_000_000, -10_000_000):
        page.mouse.wheel(0, wheel)
        page.wait_for_timeout(300)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    mains = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"}
    tasks = [one for one in events if one["name"].endswith("RunTask") and (one["pid"], one["tid"]) in mains]
    frames = sum(one["name"] == "Commit" and (one["pid"], one["tid"]) in mains for one in events)
    assert frames >= WHEELS / 2, f"the trace has {frames} frames"
    return max(one.get("dur", 0) for one in tasks) / 1000


def memory(browser: Browser, page: Page) -> float:
    """Memory of the process that renders the page after a collection of garbage: its share of the host's, in bytes."""
    page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return max(share(one["id"]) for one in found if one["type"] == "renderer")


def share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def record(server: str, count: int) -> str:
    """Records steps; every hundredth fails. Returns the trajectory."""
    with httpx.Client(base_url=server, timeout=60, limits=httpx.Limits(max_connections=CLIENTS)) as client:
        def step(n: int) -> None:
            client.post(f"/sandbox/{NAME}/v1/bash/exec", json={"command": f"echo made target-{n}; exit {2 if n % 100 == 13 else 0}"}).raise_for_status()

        have = client.get(f"/api/v2/sandboxes/{NAME}").raise_for_status().json()["id"]
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(step, range(1, count + 1)))
        return str(have)


def main() -> None:
    server, count = sys.argv[1], int(sys.argv[2])
    one = httpx.post(f"{server}/api/v2/sandboxes", json={"name": NAME}, timeout=60).raise_for_status().json()
    try:
        run = record(server, count)
        chromium = os.environ.get("ARENITE_CHROMIUM") or shutil.which("chromium")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            print(json.dumps(measured(browser, server, one, run, count)))
            browser.close()
    finally:
        httpx.delete(f"{server}/api/v2/sandboxes/{NAME}", timeout=60)


def measured(browser: Browser, server: str, one: dict[str, Any], run: str, count: int) -> dict[str, float]:
    numbers: dict[str, float] = {}
    empty = browser.new_page()
    empty.goto("about:blank")
    numbers["blank_bytes"] = memory(browser, empty)
    empty.close()

    console, viewer = f"{server}/", f"{server}/trajectory/{run}"
    listed = "document.querySelector('[aria-label=\"Number of sandboxes\"]').textContent === '%s' && document.querySelector('tr.item')"
    numbers["few_sandboxes_ms"] = until_ready(browser, console, listed % FEW, Sandboxes(one, FEW))
    many = Sandboxes(one, count)
    numbers["sandboxes_ms"] = until_ready(browser, console, listed % f"{count:,}", many)
    page, _ = opened(browser, console, listed % f"{count:,}", many)
    numbers["sandboxes_scroll_ms"] = longest_task(browser, page, "tr.item")
    numbers["sandboxes_bytes"] = memory(browser, page)
    page.context.close()

    shown = "document.querySelector('.virtual-row')"
    numbers["steps_ms"] = until_ready(browser, viewer, shown)
    # There are rows for other things than steps, too.
    whole = f"parseInt(document.querySelector('.counts').textContent.replaceAll(',', '')) >= {count}"
    numbers["all_steps_ms"] = until_ready(browser, viewer, whole)
    page, _ = opened(browser, viewer, whole, None)
    numbers["steps_scroll_ms"] = longest_task(browser, page, ".virtual-row")
    numbers["steps_bytes"] = memory(browser, page)
    page.context.close()
    return numbers


main()
