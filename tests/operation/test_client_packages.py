"""Arenite's own clients, installed from their packages into empty environments, against the real server: the examples of their
READMEs, and what these don't show."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from arenite_server import REPOSITORY, Server
from default_address import default_address
from documents import blocks
from playwright.sync_api import Page

sys.path.insert(0, str(REPOSITORY / "clients/python/src"))

import arenite  # noqa: E402

PORT = 8080
TYPESCRIPT = REPOSITORY / "clients/typescript"

#: By heading, what the examples print.
PYTHON = {
    "The package `arenite`": ["Linux\n", "hello\n", "42\n"],
    "Commands": ["4\n 3 False\n", "stdout 1\n", "exit_code=0, status='completed'", "/var\n", "'ls /nothing' failed: exit code 2: ls:"],
    "Files": ["b'\\x00\\xff'\n", "['a.bin']\n", "create /home/gem/data/new\n"],
    "Code and browser": ["'42'", "\n42\n", "ws://127.0.0.1:8080/sandbox/", "/mcp http://127.0.0.1:8080/sandbox/", "/proxy/3000/\n"],
    "Life": [" running\n", "True\n"],
    "Several at once": ["['ready\\n', 'ready\\n', 'ready\\n'] []\n", "1 in trainer\n", "sandbox.created s"],
    "Recorded steps": ["{'failed': {'exit_code': 3}}\n", '"messages"', "[]\n"],
    "Async": ["one\n", "two\n"],
    "Errors and repetitions": ["not_found 404"],
    "Other routes": ["\n"],
}
JAVASCRIPT = {
    "A sandbox": ["Linux\n", "hello\n", "42\n", "\ns"],
    "Commands": ["4\n 3 completed\n", "stdout 1\n", "exitCode: 0", "/var\n", '"ls /nothing" failed: exit code 2: ls:'],
    "Files": ["0, 255", "[ 'a.bin' ]\n", "create /home/gem/data/new\n"],
    "Code and browser": ["42", "ws://127.0.0.1:8080/sandbox/", "/mcp http://127.0.0.1:8080/sandbox/", "/proxy/3000/\n"],
    "Several at once": ["ready\n 0\n", "true in trainer\n", "sandbox.created s"],
    "Recorded steps": ['{"failed":{"exit_code":3}}\n', '"messages"'],
    "Errors and repetitions": ["not_found 404\n"],
    "Other routes": ["total_count"],
}


def check(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def programs(document: str, language: str, headings: dict[str, list[str]]) -> dict[str, str]:
    """The blocks under each heading, as one program."""
    found: defaultdict[str, str] = defaultdict(str)
    for block in blocks(document):
        if block.language == language and block.heading in headings:
            found[block.heading] += block.text
    assert found.keys() == headings.keys()
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packages")
    check("cargo", "xtask", "clients", "--output", output, cwd=REPOSITORY)
    return output


@dataclass
class Home:
    """A folder in which the packages are installed, in a network with the server at its default address."""

    folder: Path
    inside: list[str]

    def run(self, *command: str | Path) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ARENITE_", "PYTHON"))}
        environment["NO_PROXY"] = "127.0.0.1,localhost"
        return check(*self.inside, *command, cwd=self.folder, env=environment)


@pytest.fixture
def home(server: Server, tmp_path: Path) -> Iterator[Home]:
    with default_address(server.port, PORT) as inside:
        yield Home(tmp_path, inside)


def test_the_wheel_in_a_fresh_environment(packages: Path, home: Home) -> None:
    [wheel] = packages.glob("*.whl")
    check(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=home.folder)
    check(sys.executable, "-m", "pip", "--python", "venv/bin/python", "install", "--quiet", wheel, cwd=home.folder)
    for heading, program in programs("clients/python/README.md", "python", PYTHON).items():
        printed = home.run("venv/bin/python", "-c", program)
        for text in PYTHON[heading]:
            assert text in printed, f"{heading}: {text!r} is not in\n{printed}"
    home.run("venv/bin/python", "-c", "import sandbox, arenite; assert sandbox.Sandbox is not arenite.Sandbox")


def test_the_npm_tarball_in_an_empty_folder(packages: Path, home: Home) -> None:
    [tarball] = packages.glob("*.tgz")
    (home.folder / "package.json").write_text('{"private": true, "type": "module"}')
    check("npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", tarball, cwd=home.folder)
    for number, (heading, program) in enumerate(programs("clients/typescript/README.md", "js", JAVASCRIPT).items()):
        (home.folder / f"example{number}.mjs").write_text(program)
        # The same as TypeScript, which has to agree with the package's types.
        (home.folder / f"example{number}.mts").write_text(program)
        printed = home.run("node", f"example{number}.mjs")
        for text in JAVASCRIPT[heading]:
            assert text in printed, f"{heading}: {text!r} is not in\n{printed}"
    compiler = ("node", TYPESCRIPT / "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--module", "nodenext")
    check(*compiler, "--target", "es2022", *home.folder.glob("*.mts"), cwd=home.folder)


#: In a page of the server's own origin, as a console would use it.
IN_BROWSER = """async () => {
  const { NotFound, Sandbox } = await import("/package/dist/index.js");
  const sandbox = await Sandbox.create({ image: "base" });
  const texts = [];
  for await (const { text } of await sandbox.spawn("echo a; echo b")) texts.push(text);
  await sandbox.files.upload(new Blob(["é"]), "/home/gem/file");
  const changes = await sandbox.files.watch("/home/gem");
  await sandbox.files.write("/home/gem/new", "x");
  for await (const { path } of changes) {
    texts.push(path, await sandbox.files.read("/home/gem/file"));
    break;
  }
  await sandbox.delete();
  await sandbox.refresh().catch((error) => texts.push(String(error instanceof NotFound)));
  return texts.join("");
}"""


def test_the_npm_package_in_a_browser(packages: Path, server: Server, page: Page, tmp_path: Path) -> None:
    [tarball] = packages.glob("*.tgz")
    with tarfile.open(tarball) as archive:
        archive.extractall(tmp_path, filter="data")
    page.route("**/package/**", lambda route: route.fulfill(path=f"{tmp_path}{urlsplit(route.request.url).path}"))
    page.goto(f"{server.url}/health")
    assert page.evaluate(IN_BROWSER) == "a\nb\n/home/gem/newétrue"


def test_what_the_examples_do_not_show(server: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        # The end of the sandbox ends its follower.
        pool = stack.enter_context(ThreadPoolExecutor(1))
        client = stack.enter_context(arenite.Client(server.url))
        sandbox = stack.enter_context(client.sandboxes.create(image="base", labels={"a": "b"}))
        followed = pool.submit(list, sandbox.steps(follow=True))
        assert sandbox.labels == {"a": "b"}

        process = sandbox.spawn("trap 'echo ended; exit' TERM; echo ready; while :; do :; done")
        assert next(iter(process)) == arenite.Output("stdout", "ready\n")
        process.kill()
        assert process.wait() == arenite.CommandResult(process.command, "ready\nended\n", "", None, "killed")
        with sandbox.spawn("sleep 1000") as process:
            pass
        assert sandbox.run("timeout 20 sh -c 'while pgrep -x sleep; do :; done'").exit_code == 0, "the end of the block kills it"
        assert sandbox.run("sleep 1000", timeout=0.1).timed_out
        large = sandbox.run("seq 300000; echo x >&2")
        assert (large.stdout, large.stderr) == ("".join(f"{n}\n" for n in range(1, 300_001)), "x\n")

        for missing in (sandbox.files.read, sandbox.files.list):
            with pytest.raises(arenite.NotFound, match="/nothing"):
                missing("/nothing")
        content = os.urandom(3 << 20)
        (tmp_path / "there").write_bytes(content)
        sandbox.files.upload(tmp_path / "there", "/home/gem/x/large")
        sandbox.files.download("/home/gem/x/large", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content == sandbox.files.read_bytes("/home/gem/x/large")
        sandbox.files.write("/home/gem/é ?#", "a\n")
        sandbox.files.write("/home/gem/é ?#", "é\n", append=True)
        assert sandbox.files.read("/home/gem/é ?#") == "a\né\n"

        with pytest.raises(arenite.SandboxFailed, match="nothing listens|no.*port"):
            client.request("POST", f"/sandbox/{sandbox.name}/proxy/3999/")
        sandbox.delete()
        actions = [step.action for step in followed.result(60) if step.outcome == "ok"]
        assert actions.count("exec") == 2, "a command with its output is one step"
        with pytest.raises(arenite.NotFound) as gone:
            sandbox.run("true")
        assert gone.value.request_id
        assert sandbox.trajectory.verify().problems == []


def test_many_calls_at_once(server: Server) -> None:
    async def main() -> list[str]:
        async with arenite.AsyncClient(server.url) as client, await client.sandboxes.create(image="base") as sandbox:
            results = await asyncio.gather(*(sandbox.run(f"sleep 0.2; echo {n}") for n in range(20)))
            return [result.stdout for result in results]

    # The thread of the tests may have the loop of a browser.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, main()).result() == [f"{n}\n" for n in range(20)]
