"""Sandboxes with browsers side by side: each does the work of an agent, while Chromium, its renderers and the X server are killed."""

from __future__ import annotations

import math
import os
import random
import select
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import leaks
from agent_sandbox import browser
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from isolation.kills import IDS, MIB, Process, process
from sandboxes import LiveSandbox
from sites import Sites

PNG = b"\x89PNG\r\n\x1a\n"
#: Who is killed, by a part of its command line.
VICTIMS = {"the browser": "--user-data-dir", "a renderer": "--type=renderer", "the X server": "Xvnc", "the window manager": "openbox"}
#: No job may take longer: ten browsers share two cores, in seconds.
BOUND = 180


@dataclass
class Desk:
    """A sandbox with a browser, and what became of the jobs in it."""

    sites: Sites
    first_id: int
    chance: random.Random
    #: From before a kill until its victim was gone.
    kills: list[list[Any]] = field(default_factory=list)
    right: Counter[str] = field(default_factory=Counter)
    #: Jobs that a kill fell into: they may fail, and mustn't hang.
    hit: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0

    def do(self, job: Callable[[Desk], None]) -> None:
        begun = time.monotonic()
        try:
            job(self)
            self.right[job.__name__] += 1
        except (ApiError, AssertionError) as error:
            fell_into = [who for since, until, who in list(self.kills) if until >= begun]
            status = error.status_code if isinstance(error, ApiError) else 424
            if fell_into and status in (404, 409, 424):
                self.hit[f"{job.__name__}: {fell_into[-1]}"] += 1
            else:
                before = [f"{who} {begun - until:.3f} s before" for _, until, who in self.kills[-3:]]
                self.wrong.append(f"{self.sites.live.name}: {job.__name__}: {error}; kills: {before}")
        except httpx.HTTPError as error:
            self.wrong.append(f"{self.sites.live.name}: {job.__name__} hangs or is cut off: {error!r}")
        took = time.monotonic() - begun
        self.slowest = max(self.slowest, took)
        if took > BOUND:
            self.wrong.append(f"{self.sites.live.name}: {job.__name__} took {took:.0f} s")


def fills_a_form(desk: Desk) -> None:
    word = uuid.uuid4().hex
    desk.sites.open("/form.html")
    desk.sites.page.fill(selector="#name", text=word)
    desk.sites.page.click(selector="#agree")
    desk.sites.page.click(selector="#send")
    assert word in desk.sites.value("document.querySelector('#sent').textContent")


def goes_shopping(desk: Desk) -> None:
    desk.sites.cookies.clear_cookies()
    assert desk.sites.open("/shop/")["title"] == "Login"
    desk.sites.page.fill(selector="input[name=user]", text="gem")
    desk.sites.page.fill(selector="input[name=word]", text="stone & 10% more")
    desk.sites.page.press_key(key="Enter")
    desk.sites.page.wait(type="url", url="**/shop/")
    desk.sites.page.click(index=desk.sites.element("Add amber")["index"])
    desk.sites.page.wait(type="function", expression="document.querySelector('#count').textContent === '1'")


def reads(desk: Desk) -> None:
    desk.sites.open("/article.html")
    assert "stone" in desk.sites.page.get_text().data
    assert desk.sites.page.get_markdown().data
    assert desk.sites.page.get_elements().data is not None


def looks(desk: Desk) -> None:
    desk.sites.open("/animation.html")
    for picture in (desk.sites.live.client.browser.screenshot(), desk.sites.page.screenshot()):
        assert b"".join(picture).startswith(PNG)


def opens_tabs(desk: Desk) -> None:
    desk.sites.tabs.create(url=desk.sites.url + "/form.html")
    desk.sites.tabs.create()
    while len(desk.sites.tabs.list().data) > 1:
        desk.sites.tabs.close(0)


def types_on_the_desktop(desk: Desk) -> None:
    desk.sites.open("/form.html")
    desk.sites.page.click(selector="#story")
    desk.sites.live.client.browser.execute_action(request=browser.Action_Typing(text="typed by hand"))
    desk.sites.until("document.querySelector('#story').value === 'typed by hand'")


def listens(desk: Desk) -> None:
    desk.sites.route("**/status/200*", "made up", status=200)
    try:
        desk.sites.open("/status/200?" + uuid.uuid4().hex)
        assert desk.sites.page.get_text().data.strip() == "made up"
    finally:
        desk.sites.live.http.request("DELETE", "/v1/browser/network/route", json={"url_pattern": "**/status/200*"})


def computes(desk: Desk) -> None:
    assert desk.sites.live.output("echo $((6 * 7))") == "42"
    answer = desk.sites.live.client.code.execute_code(language="python", code="print(sum(range(10**6)))")
    assert answer.data.stdout == "499999500000\n", answer


JOBS = [fills_a_form, goes_shopping, reads, looks, opens_tabs, types_on_the_desktop, listens, computes]


def desk(server: Server, number: int, chance: random.Random) -> Desk:
    name = f"desk-{number}-{uuid.uuid4().hex[:6]}"
    httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "image": "browser"}, timeout=120).raise_for_status()
    sites = Sites(LiveSandbox(server.url, name, BOUND))
    sites.serve()
    return Desk(sites, int(sites.live.output("cat /proc/self/uid_map").split()[1]), random.Random(chance.random()))


def processes(desk: Desk, mark: str) -> list[Process]:
    """Those of the sandbox that have the mark in their command lines."""
    marked = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and mark in leaks.read(f"/proc/{pid}/cmdline")]
    found = [one for pid in marked if (one := process(pid))]
    return [one for one in found if desk.first_id <= one.uid < desk.first_id + IDS]


def guest_memory(desk: Desk) -> int:
    """Resident bytes of the sandbox's first process."""
    (first,) = [one.pid for one in processes(desk, "") if one.inner == 1]
    return int(leaks.read(f"/proc/{first}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kill_one(desk: Desk, chance: random.Random) -> None:
    who, mark = chance.choice(list(VICTIMS.items()))
    found = [one.pid for one in processes(desk, mark)]
    if who == "the browser":
        # Its helpers have its arguments too.
        found = [pid for pid in found if "--type=" not in leaks.read(f"/proc/{pid}/cmdline")]
    if not found:
        return
    try:
        handle = os.pidfd_open(chance.choice(found))
    except ProcessLookupError:
        return
    kill = [time.monotonic(), math.inf, who]
    desk.kills.append(kill)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        # On a busy machine a killed process takes its time to end.
        select.select([handle], [], [], BOUND)
    except ProcessLookupError:
        pass
    finally:
        kill[1] = time.monotonic()
        os.close(handle)


def browsers_side_by_side(server: Server, seconds: float, sandboxes: int, pause: float, seed: int | None = None) -> None:
    """`pause`: how many seconds pass between two kills, on average."""
    seed = random.randrange(10**6) if seed is None else seed
    print(f"seed {seed}")
    chance = random.Random(seed)
    on_the_host = leaks.steady(server)
    desks: list[Desk] = []
    over = threading.Event()

    def work(desk: Desk) -> None:
        while not over.is_set():
            desk.do(desk.chance.choice(JOBS))

    try:
        for number in range(sandboxes):
            desks.append(desk(server, number, chance))
        workers = [threading.Thread(target=work, args=(one,)) for one in desks]
        deadline = time.monotonic() + seconds
        for worker in workers:
            worker.start()
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(0, 2 * pause)))
            kill_one(chance.choice(desks), chance)
        over.set()
        for worker in workers:
            worker.join(BOUND)
        hanging = [worker.name for worker in workers if worker.is_alive()]
        killed = Counter(who for desk in desks for *_, who in desk.kills)
        right, hit = (sum((getattr(one, kind) for one in desks), Counter()) for kind in ("right", "hit"))
        print(f"right: {dict(right)}", f"hit: {dict(hit)}", f"killed: {dict(killed)}", sep="\n")
        print(f"slowest job: {max(desk.slowest for desk in desks):.1f} s")
        wrong = [line for one in desks for line in one.wrong]
        assert not hanging and not wrong, f"hanging: {hanging}; {len(wrong)} wrong:\n" + "\n".join(wrong[:40])
        assert killed.total() > seconds / pause / 4, "hardly anything was killed: this tests nothing"
        # Each job once more, undisturbed.
        for one in desks:
            one.kills.clear()
            for job in JOBS:
                one.do(job)
        assert not any(one.wrong for one in desks), [one.wrong for one in desks]
        memory = max(guest_memory(one) for one in desks)
        print(f"the largest guest: {memory / MIB:.0f} MiB")
        assert memory < 128 * MIB
    finally:
        over.set()
        for one in desks:
            one.sites.live.delete()
    leaks.settle(on_the_host, server)
