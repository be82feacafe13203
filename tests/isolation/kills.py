"""Random kills of everything below the guest, under load."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass

import httpx
import leaks
from agent_sandbox.core.api_error import ApiError
from arenite_server import REPOSITORY, Server
from isolation.load import Load, Tally
from sandboxes import LiveSandbox

SIGNALS = [signal.SIGKILL] * 8 + [signal.SIGTERM] * 2 + [signal.SIGSEGV] * 2 + [signal.SIGSTOP] * 3
MCP = {"server": {"command": "python3", "args": ["-u", "/tmp/server.py"]}}
IDS = 65536
MIB = 1 << 20


@dataclass(frozen=True)
class Process:
    pid: int
    #: In the sandbox.
    inner: int
    uid: int
    name: str
    state: str


def process(pid: int) -> Process | None:
    says = dict(line.split(":\t", 1) for line in leaks.read(f"/proc/{pid}/status").splitlines() if ":\t" in line)
    if "NSpid" not in says:
        return None
    return Process(pid, int(says["NSpid"].split()[-1]), int(says["Uid"].split()[0]), says["Name"], says["State"][0])


class Target:
    """A sandbox, seen from the host too."""

    def __init__(self, server: Server, number: int):
        name = f"kills-{number}-{uuid.uuid4().hex[:6]}"
        spec = {"name": name, "image": "code", "env": {"EXTRA_MCP_SERVERS": json.dumps(MCP)}}
        httpx.post(f"{server.url}/api/v2/sandboxes", json=spec, timeout=120).raise_for_status()
        self.live = LiveSandbox(server.url, name, 60)
        source = REPOSITORY / "crates/guest/guest/tests/mcp/server.py"
        assert self.live.client.file.write_file(file="/tmp/server.py", content=source.read_text()).success
        self.first_id = int(self.live.output("cat /proc/self/uid_map").split()[1])

    def has(self, process: Process | None) -> bool:
        return process is not None and self.first_id <= process.uid < self.first_id + IDS

    def processes(self) -> list[Process]:
        """The guest is the one whose number inside is 1."""
        found = [process(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()]
        return [one for one in found if self.has(one)]

    def guest(self) -> int:
        return next(one.pid for one in self.processes() if one.inner == 1)


class Killer(threading.Thread):
    """Sends random signals to random processes until it is told to stop."""

    def __init__(self, targets: list[Target], chance: random.Random):
        super().__init__()
        self.targets = targets
        self.chance = chance
        self.over = threading.Event()
        self.sent: Counter[str] = Counter()
        self.stopped: list[threading.Timer] = []
        self.hanging: list[Exception] = []

    def run(self) -> None:
        while not self.over.wait(self.chance.uniform(0.05, 0.3)):
            target = self.chance.choice(self.targets)
            if self.chance.random() < 0.15:
                self.from_inside(target)
            else:
                self.from_outside(target)
        for timer in self.stopped:
            timer.join()

    def from_outside(self, target: Target) -> None:
        victims = [one for one in target.processes() if one.inner != 1]
        if not victims:
            return
        victim, which = self.chance.choice(victims), self.chance.choice(SIGNALS)
        try:
            handle = os.pidfd_open(victim.pid)
        except ProcessLookupError:
            return
        try:
            # The number may have become another's before it was opened, and not after.
            if target.has(now := process(victim.pid)) and now.inner != 1:
                signal.pidfd_send_signal(handle, which)
                self.sent[f"{which.name} {victim.name}"] += 1
                if which == signal.SIGSTOP:
                    self.stopped.append(threading.Timer(self.chance.uniform(0, 0.5), go_on, [os.dup(handle)]))
                    self.stopped[-1].start()
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def from_inside(self, target: Target) -> None:
        """As the sandbox's root: one process, or all but the guest at once, the command that says so among them."""
        one = "sudo kill -9 $(ps -eo pid= | grep -vw 1 | shuf -n 1)"
        command = one if self.chance.random() < 0.8 else "sudo kill -9 -1"
        try:
            target.live.client.bash.exec(command=command, timeout=10)
            self.sent["from inside"] += 1
        except ApiError:
            # The call may be hit as any other; what such calls answer is looked at elsewhere.
            pass
        except httpx.HTTPError as error:
            self.hanging.append(error)


def go_on(handle: int) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGCONT)
    except ProcessLookupError:
        pass
    os.close(handle)


@dataclass
class Holdings:
    """What a sandbox holds once everything was given back."""

    processes: Counter[str]
    descriptors: Counter[str]
    threads: int
    memory: int
    files: list[str]
    sessions: list[str]


def clear(target: Target) -> None:
    client = target.live.client
    client.jupyter.delete_sessions()
    for session in client.nodejs.list_sessions().data.sessions:
        client.nodejs.delete_session(session)
    client.shell.cleanup_all_sessions()
    client.skills.clear_skills()
    target.live.output("rm -rf ~/*")
    for session in client.bash.sessions().data:
        client.bash.close_session(session.session_id)


def holdings(target: Target) -> Holdings:
    guest, client = target.guest(), target.live.client
    temporary = target.live.output("sudo find /run /tmp /home/gem -mindepth 1 -not -path '/run/arenite/*' | sed -E 's/[0-9a-f]{16}/ID/g' | sort")
    sessions = [*client.jupyter.list_sessions().data.sessions, *client.nodejs.list_sessions().data.sessions]
    sessions += [*client.shell.list_sessions().data.sessions, *(w["watcher_id"] for w in client.file.watch_list()["watchers"])]
    for session in client.bash.sessions().data:
        client.bash.close_session(session.session_id)
    sessions += [session.session_id for session in client.bash.sessions().data]
    links = [re.sub(r"[0-9a-f:\[\]]+$", "", leaks.link(f"/proc/{guest}/fd/{fd}")) for fd in os.listdir(f"/proc/{guest}/fd")]
    status = leaks.read(f"/proc/{guest}/status")
    number = lambda name: int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE).group(1))  # noqa: E731
    return Holdings(
        # The process that starts commands has another name after a restart.
        processes=Counter("zombie" if one.state == "Z" else one.name.replace("exe", "arenite") for one in target.processes()),
        # A connection that the gateway keeps for the next call is no leak.
        descriptors=Counter(link for link in links if link != "socket"),
        threads=number("Threads"),
        memory=number("VmRSS") * 1024,
        files=temporary.splitlines(),
        sessions=sessions,
    )


def above(now: Holdings, before: Holdings) -> list[str]:
    found = []
    # The one spare kernel, and the server of MCP, may have been killed, and come again with the next call.
    if more := now.processes - before.processes:
        found.append(f"processes: {dict(more)} beyond {dict(before.processes)}")
    if sum((more := now.descriptors - before.descriptors).values()) > 4:
        found.append(f"descriptors: {dict(more)} beyond {dict(before.descriptors)}")
    if now.threads > before.threads + 16:
        found.append(f"threads: {now.threads}, before {before.threads}")
    if now.memory > before.memory + 32 * MIB:
        found.append(f"memory: {now.memory / MIB:.1f} MiB, before {before.memory / MIB:.1f}")
    if len(now.files) > len(before.files):
        found.append(f"files: {sorted((Counter(now.files) - Counter(before.files)).elements())}")
    if now.sessions:
        found.append(f"sessions: {now.sessions}")
    return found


def settled(target: Target, before: Holdings | None, seconds: float = 30) -> Holdings:
    """What it holds, once that is no more than before; without a before, once two looks in a row agree."""
    deadline = time.monotonic() + seconds
    last = None
    while True:
        now = holdings(target)
        left = above(now, before or last) if before or last else ["nothing to compare with"]
        if not left:
            return now
        assert time.monotonic() < deadline, f"left over in {target.live.name} after {seconds} s:\n" + "\n".join(left)
        last = now
        time.sleep(0.5)


def every_call(target: Target, seed: int, tally: Tally) -> None:
    """Each kind of call once, and not one may fail."""
    load = Load(target.live, random.Random(seed), tally)
    for call in load.calls:
        load.make(call)
    clear(target)


def all_right(tally: Tally) -> None:
    failures = [f"{kind} failed without a kill" for kind in tally.failed]
    assert not tally.wrong + failures, "\n".join(tally.wrong + failures)


def killed_under_load(server: Server, seconds: float, sandboxes: int = 3, clients: int = 2, seed: int | None = None) -> None:
    seed = random.randrange(10**6) if seed is None else seed
    print(f"seed {seed}")
    chance = random.Random(seed)
    on_the_host = leaks.steady(server)
    targets = [Target(server, i) for i in range(sandboxes)]
    try:
        quiet = Tally()
        for target in targets:
            every_call(target, seed, quiet)
            every_call(target, seed + 1, quiet)
        all_right(quiet)
        before = [settled(target, None) for target in targets]

        tally = Tally()
        loads = [Load(target.live, random.Random(chance.random()), tally) for _ in range(clients) for target in targets]
        killer = Killer(targets, chance)
        deadline = time.monotonic() + seconds

        def work(load: Load) -> None:
            while time.monotonic() < deadline:
                load.some()

        workers = [threading.Thread(target=work, args=(load,)) for load in loads]
        for thread in [*workers, killer]:
            thread.start()
        for worker in workers:
            worker.join(seconds + 120)
        hanging = [worker.name for worker in workers if worker.is_alive()]
        killer.over.set()
        killer.join()
        print(tally.report(), f"slowest call: {tally.slowest:.1f} s", dict(killer.sent), sep="\n")
        assert not hanging and not killer.hanging, f"calls hang: {killer.hanging}"
        assert not tally.wrong, f"{len(tally.wrong)} wrong answers:\n" + "\n".join(tally.wrong[:40])
        assert killer.sent.total() > seconds, "hardly anything was killed: this tests nothing"

        healed = Tally()
        for target in targets:
            every_call(target, seed + 2, healed)
        all_right(healed)
        after = [settled(target, then) for target, then in zip(targets, before, strict=True)]
        for then, now in zip(before, after, strict=True):
            print(f"memory of a guest: {then.memory / MIB:.1f} MiB before, {now.memory / MIB:.1f} after")
    finally:
        for target in targets:
            target.live.delete()
    leaks.settle(on_the_host, server)
