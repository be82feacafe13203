"""A load of mixed calls by the real SDK, each of which knows what a right answer is, and what an honest failure."""

from __future__ import annotations

import io
import json
import random
import re
import time
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox

#: What a shell reports of a command that a hangup or one of the killer's signals ended.
KILLED = {129, 137, 139, 143}
#: And of a job that was stopped, which a shell with job control puts into the background.
STOPPED = 147
#: Words of a message that tells of an end which nobody asked for.
TELLS = re.compile(r"\b(killed|signal \d+|ended|lost)\b")
#: No answer may take longer, in seconds: the longest wait of its own that a call makes, and the machine's slowness.
BOUND = 60
SKILL = "---\nname: {0}\ndescription: What {0} is for\n---\n\n# {0}\n"


class Wrong(Exception):
    """An answer that is neither right nor an honest failure."""


@dataclass
class Tally:
    """What became of the calls: `right`, `failed` and `wrong` by kind, and what the wrong ones were."""

    right: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0

    def report(self) -> str:
        kinds = sorted(self.right.keys() | self.failed.keys())
        return "\n".join(f"{kind:24} {self.right[kind]:6} right {self.failed[kind]:6} failed" for kind in kinds)


def need(condition: object, *evidence: object) -> None:
    if not condition:
        raise Wrong(*evidence)


def told(text: str | None, *evidence: object) -> bool:
    """False, as a failure that is told; anything else is wrong."""
    need(TELLS.search(text or ""), text, *evidence)
    return False


class Load:
    """One client of one sandbox, with sessions of its own. Each call answers whether it was right; False: an honest failure."""

    def __init__(self, live: LiveSandbox, chance: random.Random, tally: Tally):
        self.chance = chance
        self.tally = tally
        http = httpx.Client(timeout=BOUND, event_hooks={"response": [self.seen]})
        self.client = Client(base_url=live.url, httpx_client=http)
        self.id = uuid.uuid4().hex[:8]
        self.folder = f"/home/gem/{self.id}"
        self.client.file.write_file(file=f"{self.folder}/known.txt", content="needle\n")
        #: What each stateful session holds; None: nothing that can be relied on.
        self.held: dict[str, int | None] = {}
        self.shell = self.client.shell.create_session().data.session_id
        self.calls: list[Callable[[], bool]] = [
            self.bash, self.bash_session, self.bash_input, self.shell_command, self.shell_state, self.shell_later, self.shell_new,
            self.jupyter, self.python_once, self.python_state, self.nodejs, self.javascript_once, self.javascript_state,
            self.files, self.search, self.transfer, self.watch, self.markdown, self.skills, self.mcp, self.hooks, self.context,
        ]  # fmt: skip

    def seen(self, answer: httpx.Response) -> None:
        """The SDK would repeat such a call, and nobody would know."""
        if answer.status_code >= 500:
            self.tally.wrong.append(f"{answer.request.url.path}: {answer.status_code} {answer.read()[:500]!r}")

    def make(self, call: Callable[[], bool]) -> None:
        kind = call.__name__
        begun = time.monotonic()
        try:
            right = call()
        except ApiError as error:
            # 424: something of the sandbox that the call needed is gone. Nothing else fits a call that is right in itself.
            message = error.body.get("message") if isinstance(error.body, dict) else None
            right = False
            if error.status_code != 424 or not TELLS.search(message or ""):
                self.tally.wrong.append(f"{kind}: {error.status_code} {error.body}")
        except Exception as error:  # noqa: BLE001 - whatever a client sees is to be told, and the load goes on
            right = False
            self.tally.wrong.append(f"{kind}: {type(error).__name__} {error}"[:2000])
        took = time.monotonic() - begun
        self.tally.slowest = max(self.tally.slowest, took)
        if took > BOUND:
            self.tally.wrong.append(f"{kind}: took {took:.1f} s")
        (self.tally.right if right else self.tally.failed)[kind] += 1

    def some(self) -> None:
        self.make(self.chance.choice(self.calls))

    def number(self) -> int:
        return self.chance.randrange(10**6)

    # Commands.

    def bash(self) -> bool:
        n = self.number()
        data = self.client.bash.exec(command=f"echo {n}; sleep 0.05 || exit; echo $(({n} + 1))").data
        need(data.status == "completed", data)
        if data.exit_code == 0:
            need(data.stdout == f"{n}\n{n + 1}\n", data)
        else:
            need(data.exit_code in KILLED, data)
        return data.exit_code == 0

    def bash_session(self) -> bool:
        n = self.number()
        return self.in_session(f"for i in 1 2 3; do echo $(({n} + i)); sleep 0.05 || exit; done", None, f"{n + 1}\n{n + 2}\n{n + 3}\n")

    def bash_input(self) -> bool:
        n = str(self.number())
        return self.in_session("read -r line && echo got $line", f"{n}\n", f"got {n}\n")

    def in_session(self, command: str, typed: str | None, output: str) -> bool:
        session = self.client.bash.create_session().data.session_id
        try:
            ids = {"session_id": session}
            ids["command_id"] = self.client.bash.exec(command=command, session_id=session, async_mode=True).data.command_id
            if typed:
                try:
                    self.client.bash.write(**ids, input=typed, request_options={"max_retries": 0})
                except ApiError as error:
                    need(error.status_code == 409 and "has ended" in error.body["message"], error)
            read, status = "", "running"
            while status == "running":
                answer = self.client.bash.output(**ids, offset=len(read), wait=True, wait_timeout=5).data
                read, status = read + answer.stdout, answer.command.status
            need(status == "completed", answer)
            if answer.command.exit_code == 0:
                need(read == output, answer, read)
            else:
                need(answer.command.exit_code in KILLED, answer)
            return answer.command.exit_code == 0
        finally:
            self.client.bash.close_session(session)

    def shell_command(self) -> bool:
        n = self.number()
        answer = self.client.shell.exec_command(id=self.shell, command=f"sleep 0.05 && echo $(({n} + 1))")
        self.forgets(answer)
        return self.of_shell(answer, str(n + 1))

    def shell_later(self) -> bool:
        n = self.number()
        command = f"sleep 0.1 && echo $(({n} + 1))"
        answer = self.client.shell.exec_command(id=self.shell, command=command, async_mode=True)
        need(answer.data.status == "running", answer)
        self.forgets(answer)
        waited = self.client.shell.wait_for_process(id=self.shell, max_wait_seconds=30).data
        need(waited.status != "running", waited)
        seen = self.client.shell.view(id=self.shell).data
        need(seen.command == command, seen)
        if (seen.status, seen.exit_code) == ("completed", 0):
            need(seen.output == str(n + 1), seen)
            return True
        need(seen.status == "terminated" or seen.exit_code in {*KILLED, STOPPED}, seen)
        return False

    def shell_new(self) -> bool:
        n = self.number()
        answer = self.client.shell.exec_command(command=f"echo $(({n} + 1))")
        try:
            return self.of_shell(answer, str(n + 1))
        finally:
            self.client.shell.cleanup_session(answer.data.session_id)

    def forgets(self, answer: Any) -> bool:
        """Whether the answer tells that a new shell took the place of the one before."""
        renewed = "new shell" in (answer.hint or "")
        if renewed:
            self.held["shell"] = None
        return renewed

    def of_shell(self, answer: Any, output: str) -> bool:
        data = answer.data
        if (data.status, data.exit_code) == ("completed", 0):
            need(data.output == output, answer)
            return True
        if data.status == "completed":
            # Bash itself says so of a program that it waited for.
            need(data.exit_code in {*KILLED, STOPPED}, answer)
            return False
        need(data.status == "terminated", answer)
        return told(answer.hint, answer)

    def shell_state(self) -> bool:
        """A variable that was set is there, or it was told that a new shell took the old one's place."""
        n = self.number()
        answer = self.client.shell.exec_command(id=self.shell, command=f"echo ${{kept-none}}; kept={n}")
        renewed = self.forgets(answer)
        before = self.held.get("shell")
        if (answer.data.status, answer.data.exit_code) != ("completed", 0):
            self.held["shell"] = None
            return self.of_shell(answer, "")
        self.held["shell"] = n
        if renewed:
            need(answer.data.output == "none", answer)
            return False
        need(before is None or answer.data.output == str(before), answer, before)
        return True

    # Code.

    def stateful(self, kind: str, answer: Any, before: int | None, now: int) -> bool:
        """Of code that gives back what a session held, -1 without, and makes it hold `now`."""
        outputs = [output if isinstance(output, dict) else output.model_dump() for output in answer.data.outputs]
        if answer.data.status != "ok":
            self.held[kind] = None
            need(answer.data.status == "error" and outputs, answer)
            need(outputs[-1]["ename"] in ("KernelEnded", "SessionEnded"), answer)
            told(outputs[-1]["evalue"], answer)
            return told(answer.message, answer)
        self.held[kind] = now
        need([output["output_type"] for output in outputs] == ["execute_result"], answer)
        got = int(outputs[0]["data"]["text/plain"])
        if "was restarted" in (answer.hint or ""):
            need(got == -1, answer)
            return False
        need(got == before if before is not None else True, answer, before)
        return True

    def python(self, n: int) -> str:
        return f"held = globals().get('kept', -1); kept = {n}; held"

    def javascript(self, n: int) -> str:
        return f"var held = globalThis.kept ?? -1; globalThis.kept = {n}; held"

    def jupyter(self) -> bool:
        n, before = self.number(), self.held.get("jupyter")
        answer = self.client.jupyter.execute_code(code=self.python(n), session_id=f"j-{self.id}", timeout=20)
        return self.stateful("jupyter", answer, before, n)

    def python_state(self) -> bool:
        n, before = self.number(), self.held.get("python")
        answer = self.client.code.execute_code(
            language="python", code=self.python(n), stateful=True, session_id=f"p-{self.id}", timeout=20
        )
        return self.stateful("python", answer, before, n)

    def nodejs(self) -> bool:
        n, before = self.number(), self.held.get("nodejs")
        answer = self.client.nodejs.execute_code(code=self.javascript(n), session_id=f"n-{self.id}", timeout=20)
        return self.stateful("nodejs", answer, before, n)

    def javascript_state(self) -> bool:
        n, before = self.number(), self.held.get("javascript")
        answer = self.client.code.execute_code(
            language="javascript", code=self.javascript(n), stateful=True, session_id=f"c-{self.id}", timeout=20
        )
        return self.stateful("javascript", answer, before, n)

    def python_once(self) -> bool:
        return self.once("python", "print({n})")

    def javascript_once(self) -> bool:
        return self.once("javascript", "console.log({n})")

    def once(self, language: str, code: str) -> bool:
        n = self.number()
        answer = self.client.code.execute_code(language=language, code=code.format(n=n), timeout=20)
        if answer.data.status == "ok":
            need((answer.data.stdout, answer.data.exit_code) == (f"{n}\n", 0), answer)
            return True
        need(answer.data.status == "error" and answer.data.exit_code != 0, answer)
        return told(answer.message, answer)

    # What no process of the sandbox has a part in: it must not fail.

    def files(self) -> bool:
        n, path = self.number(), f"{self.folder}/written"
        need(self.client.file.write_file(file=path, content=str(n)).success)
        need(self.client.file.str_replace_editor(command="insert", path=path, insert_line=0, new_str="a").success)
        read = self.client.file.read_file(file=path)
        need(read.data.content.replace("\n", "") == f"a{n}", read)
        return True

    def search(self) -> bool:
        found = self.client.file.grep_files(path=self.folder, pattern="needle")
        need([match.file for match in found.data.matches] == [f"{self.folder}/known.txt"], found)
        listed = self.client.file.glob_files(path=self.folder, pattern="known.*")
        need(len(listed.data.files) == 1, listed)
        return True

    def transfer(self) -> bool:
        path, content = f"{self.folder}/sent", self.chance.randbytes(100_000)
        sent = self.client.file.upload_file(file=("sent", io.BytesIO(content)), path=path)
        need(sent.success and sent.data.file_size == len(content), sent)
        need(b"".join(self.client.file.download_file(path=path)) == content, "another content")
        return True

    def watch(self) -> bool:
        watcher = self.client.file.watch_create(path=self.folder, debounce=50)["watcher_id"]
        try:
            self.client.file.write_file(file=f"{self.folder}/seen", content=str(self.number()))
            page = self.client.file.watch_poll(watcher, since=0, timeout=10)
            need(page["events"], page)
            return True
        finally:
            self.client.file.watch_stop(watcher)

    def hooks(self) -> bool:
        self.client.sandbox.register_hook(name=self.id, command="true")
        need(self.id in [hook.name for hook in self.client.sandbox.list_hooks().data])
        self.client.sandbox.remove_hook(self.id)
        return True

    def context(self) -> bool:
        need(self.client.sandbox.get_context().home_dir == "/home/gem")
        return True

    # What confined processes and servers do.

    def markdown(self) -> bool:
        n = self.number()
        answer = self.client.util.convert_to_markdown(uri=f"data:text/html,<h1>{n}</h1>")
        if answer.success:
            need(str(n) in answer.data, answer)
            return True
        return told(answer.message, answer)

    def skills(self) -> bool:
        name, out = f"s-{self.id}", io.BytesIO()
        with zipfile.ZipFile(out, "w") as packed:
            packed.writestr("SKILL.md", SKILL.format(name))
        answer = self.client.skills.register_skills(file=("s.zip", out.getvalue(), "application/zip"), path=f"{self.folder}/skills")
        need([skill.name for skill in answer.data.registered] == [name], answer)
        need(f"# {name}" in self.client.skills.get_content(name).data.content)
        return True

    def mcp(self) -> bool:
        n = self.number()
        answer = self.client.mcp.execute_mcp_tool("server", "echo", request={"n": n})
        need(json.loads(answer.data.content[0].text) == {"n": n}, answer)
        return True
