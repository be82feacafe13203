"""The command line as a whole: forms of output, hints for wrong names, exit codes, tables, completions, `open`, and `demo`.

What applies to every command is read from its help, so that a new command is tested as soon as it exists.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary
from commands import environment, run
from sandboxes import LiveSandbox
from small import tiny_image
from tenant import TenantsServer

Command = tuple[str, ...]

#: Arguments that a command needs besides names.
MORE: dict[Command, list[str]] = {
    ("top",): ["--once"],
    ("usage",): ["--group", "sandbox"],
}
#: The arguments with which a command that names something fails if that doesn't exist. `?` is the wrong name.
WRONG: dict[Command, list[str]] = {
    ("create",): ["--image", "?image"],
    ("inspect",): ["?sandbox"],
    ("exec",): ["?sandbox", "true"],
    ("open",): ["?sandbox"],
    ("demo",): ["--no-wait", "--image", "?image"],
    ("cp",): ["?sandbox:/etc/passwd", "-"],
    ("logs",): ["?sandbox"],
    ("set",): ["?sandbox", "--label", "a=b"],
    ("rm",): ["?sandbox"],
    ("pause",): ["?sandbox"],
    ("resume",): ["?sandbox"],
    ("start",): ["?sandbox"],
    ("checkpoint",): ["?sandbox"],
    ("history",): ["?sandbox"],
    ("rollback",): ["?sandbox", "1"],
    ("diff",): ["?sandbox"],
    ("fork",): ["?sandbox"],
    ("reset",): ["?sandbox"],
    ("snapshot", "create"): ["?sandbox", "other"],
    ("snapshot", "inspect"): ["?snapshot"],
    ("snapshot", "files"): ["?snapshot"],
    ("snapshot", "cp"): ["?snapshot:/etc/passwd", "-"],
    ("snapshot", "export"): ["?snapshot", "-o", "-"],
    ("snapshot", "rm"): ["?snapshot"],
    ("template", "inspect"): ["?template"],
    ("group", "renew"): ["?group"],
    ("group", "rm"): ["?group"],
    ("volume", "inspect"): ["?volume"],
    ("volume", "set"): ["?volume", "--label", "a=b"],
    ("volume", "cp"): ["?volume", "other"],
    ("volume", "rm"): ["?volume"],
    ("network", "show"): ["?sandbox"],
    ("network", "set"): ["?sandbox", "--mode", "none"],
    ("network", "suggest"): ["?sandbox"],
    ("secret", "rm"): ["?secret"],
    ("tenant", "set"): ["?tenant", "--disabled", "false"],
    ("tenant", "rm"): ["?tenant"],
    ("key", "create"): ["--tenant", "?tenant", "--role", "use", "a key"],
    ("key", "rotate"): ["?key"],
    ("key", "revoke"): ["?key"],
    ("webhook", "rm"): ["?webhook"],
    ("webhook", "test"): ["?webhook"],
    ("webhook", "deliveries"): ["?webhook"],
    ("webhook", "redeliver"): ["?webhook", "1"],
    ("model", "show"): ["?model"],
    ("model", "rm"): ["?model"],
    ("image", "rm"): ["?image"],
    ("image", "inspect"): ["?image"],
    ("image", "history"): ["?image"],
    ("image", "push"): ["?image", "localhost:1/x"],
    ("image", "save"): ["?image", "-o", "/dev/null"],
    ("trajectory", "show"): ["?sandbox"],
    ("trajectory", "export"): ["?sandbox"],
    ("trajectory", "replay"): ["?sandbox"],
    ("trajectory", "verify"): ["?sandbox"],
    ("trajectory", "annotate"): ["?sandbox", "--rating", "5"],
    ("trajectory", "annotations"): ["?sandbox"],
    ("trajectory", "unannotate"): ["?sandbox", "--all"],
    ("rag", "search"): ["?corpus", "words"],
    ("rag", "rm"): ["?corpus"],
}
#: Commands with an argument that needs no hint, and why.
NO_NAME: dict[Command, str] = {
    ("completions",): "a shell",
    ("group", "create"): "a new name",
    ("image", "build"): "a new name",
    ("image", "load"): "a file",
    ("image", "pull"): "a reference in a registry",
    ("model", "set"): "a new name, or that of a route which it replaces",
    ("node", "drain"): "this server is no node; test_node_drain.py has a cluster",
    ("node", "uncordon"): "the same",
    ("quarantine", "adopt"): "nothing is in quarantine; isolation/test_crash_records.py has a crash",
    ("quarantine", "rm"): "the same",
    ("rag", "eval"): "a file with questions; rag search reads its corpus in the same way",
    ("rag", "index"): "a new name",
    ("rollout", "run"): "a file",
    ("secret", "set"): "a new name, or that of a secret which it replaces",
    ("snapshot", "import"): "a file",
    ("store", "export"): "a file",
    ("store", "import"): "a file",
    ("tenant", "create"): "a new name",
    ("vm", "build"): "a new name",
    ("vm", "import"): "a file",
    ("vm", "probe"): "the image of a VM, which the command builds",
    ("volume", "create"): "a new name",
    ("webhook", "create"): "an address",
    ("explore",): "a file",
}


@functools.cache
def help_of(command: Command) -> str:
    shown = subprocess.run([str(binary()), *command, "--help"], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0, shown
    return shown.stdout


def commands(family: Command = ()) -> Iterator[Command]:
    """All commands that do something."""
    listed = re.search(r"^Commands:\n((?: .*\n)+)", help_of(family), re.MULTILINE)
    if not listed:
        yield family
        return
    for name in re.findall(r"^  ([a-z][a-z-]*)  ", listed[1], re.MULTILINE):
        if name != "help":
            yield from commands((*family, name))


@dataclass
class Served:
    """A server with tenants that has one of each thing."""

    tenants: TenantsServer
    names: dict[str, str]

    def run(self, *words: str, **more) -> subprocess.CompletedProcess[str]:
        return run(self.tenants.server, *words, **more)


@pytest.fixture(scope="module")
def served(module_server: Callable[..., Server]) -> Iterator[Served]:
    server = module_server(args=("--tenants", "--default-image", "tiny"))
    server.start()
    tiny_image(server.data_dir / "pool")
    tenants = TenantsServer(server)
    served = Served(tenants, {})
    try:
        make_one_of_each(served)
        yield served
    finally:
        for words in (("rm", "--all", "--force"), ("snapshot", "rm", "ready"), ("volume", "rm", "models")):
            served.run(*words, "--api-key", tenants.operator.key)


def make_one_of_each(served: Served) -> None:
    key = ("--api-key", served.tenants.operator.key)
    made = {
        "sandbox": ("create", "demo"),
        "snapshot": ("snapshot", "create", "demo", "ready"),
        "group": ("group", "create", "training"),
        "volume": ("volume", "create", "models"),
        "secret": ("secret", "set", "openai", "--host", "api.example.com"),
        "tenant": ("tenant", "create", "acme"),
        "model": ("model", "set", "main", "--upstream", "https://api.example.com/v1"),
    }
    for kind, words in made.items():
        done = served.run(*words, *key, input="a value of the secret", stdin=None)
        assert done.returncode == 0, done
        served.names[kind] = done.stdout.strip()
    hook = json.loads(served.run("webhook", "create", "https://example.com/", "--json", *key).stdout)
    keys = json.loads(served.run("key", "ls", "--json", *key).stdout)["keys"]
    corpus = served.tenants.server.data_dir.parent / "corpus.jsonl"
    corpus.write_text('{"id": "1", "text": "words"}\n')
    indexed = served.run("rag", "index", "animals", str(corpus), "--embedder", "none")
    assert indexed.returncode == 0, indexed
    served.names |= {"webhook": hook["id"], "key": keys[0]["id"], "image": "tiny", "template": "default", "corpus": "animals"}
    assert served.run("checkpoint", "demo", *key).returncode == 0


def is_local(command: Command) -> bool:
    return "--api-key" not in help_of(command)


def with_key(served: Served, command: Command, *words: str) -> subprocess.CompletedProcess[str]:
    key = [] if is_local(command) else ["--api-key", served.tenants.operator.key]
    return served.run(*command, *key, *words)


def with_output() -> list[Command]:
    return [command for command in commands() if "-o, --output <FORM>" in help_of(command)]


def positionals(command: Command) -> list[str]:
    usage = re.search(r"^Usage: (.*)$", help_of(command), re.MULTILINE)
    assert usage, command
    return re.findall(r"[<\[]([A-Z][A-Z_:/|=-]*)[>\]]", usage[1].replace("[OPTIONS]", ""))


def names_for(served: Served, command: Command) -> list[str]:
    """The arguments by which a list or inspect command finds what the server has."""
    family = {"webhook": "webhook", "model": "model", "volume": "volume", "snapshot": "snapshot", "template": "template"}
    kinds = {"SANDBOX": "sandbox", "SANDBOXES": "sandbox", "IMAGE": "image", "TRAJECTORY": "sandbox"}
    words = []
    for placeholder in re.findall(r"<([A-Z]+)>", re.search(r"^Usage: (.*)$", help_of(command), re.MULTILINE)[1]):
        words.append(served.names[kinds.get(placeholder) or family[command[0]]])
    return words


def test_lists_are_what_is_expected() -> None:
    found = {" ".join(command) for command in with_output()}
    lists = {" ".join(command) for command in commands() if command[-1] in ("ls", "list", "inspect", "history", "show")}
    assert lists <= found, lists - found
    assert {"top", "usage", "audit", "events", "diff", "doctor"} <= found, found


def test_every_list_has_every_form(served: Served) -> None:
    for command in with_output():
        words = [*names_for(served, command), *MORE.get(command, [])]
        shown = {form: with_key(served, command, *words, "-o", form) for form in ("table", "json", "name", "{{.}}", "template=x")}
        # The doctor may find something missing on this host.
        fine = (0, 1) if command == ("doctor",) else (0,)
        for form, done in shown.items():
            assert done.returncode in fine, (command, form, done)
        short = with_key(served, command, *words, "--json")
        first = json.loads(short.stdout.splitlines()[0]) if command == ("events",) else json.loads(short.stdout)
        assert type(first) is dict, (command, short)
        names = shown["name"].stdout.splitlines()
        assert all(name and " " not in name for name in names if command != ("doctor",)), (command, names)
        assert len(shown["{{.}}"].stdout.splitlines()) == len(names), (command, shown)
        both = with_key(served, command, *words, "--json", "-o", "name")
        assert both.returncode == 2, (command, both)
    assert with_key(served, ("ls",), "-o", "name").stdout == "demo\n"
    assert with_key(served, ("ls",), "-q").stdout == "demo\n"
    assert with_key(served, ("ps",), "-o", "{{.name}}\\t{{.spec.image}} {{.state}}").stdout == "demo\ttiny running\n"
    assert with_key(served, ("snapshot", "ls"), "-o", "name").stdout == "ready\n"
    assert with_key(served, ("inspect",), "demo", "demo", "-o", "name").stdout == "demo\ndemo\n"
    assert len(json.loads(with_key(served, ("inspect",), "demo", "demo").stdout)) == 2
    assert re.search(r"^\.spec\.image +tiny$", with_key(served, ("inspect",), "demo", "-o", "table").stdout, re.MULTILINE)


def test_wrong_forms_and_fields_are_named(served: Served) -> None:
    wrong = with_key(served, ("ls",), "-o", "jsno")
    assert wrong.returncode == 2 and "did you mean json?" in wrong.stderr, wrong
    wrong = with_key(served, ("ls",), "-o", "{{.nmae}}")
    assert wrong.returncode == 2 and 'no field "nmae"' in wrong.stderr and 'did you mean "name"?' in wrong.stderr, wrong
    wrong = with_key(served, ("inspect",), "demo", "-o", "{{.spec.imgae}}")
    assert wrong.returncode == 2 and 'in .spec' in wrong.stderr and '"image"' in wrong.stderr and "resources" in wrong.stderr, wrong


def misspelt(name: str) -> str:
    """Two characters in the wrong order, or one that differs, and the same kind of name."""
    for at in range(len(name) - 2, 0, -1):
        if name[at] != name[at + 1] and name[at : at + 2].isalnum():
            return name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    raise AssertionError(name)


def test_every_command_that_takes_a_name_suggests_one(served: Served) -> None:
    named = [command for command in commands() if positionals(command)]
    unknown = [command for command in named if command not in WRONG and command not in NO_NAME]
    assert not unknown, f"name these commands in WRONG or NO_NAME: {unknown}"
    for command, words in WRONG.items():
        kind = next(word[1:].split(":")[0] for word in words if word.startswith("?"))
        name = served.names[kind]
        wrong = [re.sub(r"^\?[a-z]+", misspelt(name), word) for word in words]
        key = [] if is_local(command) else ["--api-key", served.tenants.operator.key]
        done = served.run(*command, *key, *wrong)
        # A revision of a list may know another, nearer name.
        assert f'did you mean "{name}"? see what there is with: arenite ' in done.stderr, (command, wrong, done)
        expected = {("exec",): 125, ("trajectory", "replay"): 2}.get(command, 3)
        assert done.returncode == expected, (command, done)
        listing = re.search(r"see what there is with: arenite ([a-z ]+)", done.stderr)
        assert listing and tuple(listing[1].split()) in set(commands()), done


def test_names_in_the_options_of_a_create_are_suggested(served: Served) -> None:
    for option, kind, value in (
        ("--image", "image", "{}"),
        ("--snapshot", "snapshot", "{}"),
        ("--template", "template", "{}"),
        ("--group", "group", "{}"),
        ("--volume", "volume", "{}:/data"),
        ("--env", "secret", "A={{{{secret:{}}}}}"),
    ):
        name = served.names[kind]
        done = with_key(served, ("create",), "new", option, value.format(misspelt(name)))
        assert done.returncode in (2, 3) and f'did you mean "{name}"?' in done.stderr, (option, done)


def test_names_that_a_key_may_not_list_are_not_suggested(served: Served) -> None:
    other = served.tenants.tenant("other")
    done = served.run("inspect", "dmeo", "--api-key", other.key)
    assert done.returncode == 3 and '"demo"' not in done.stderr and "arenite ls" in done.stderr, done
    # A list that is refused altogether leaves the server's own words.
    done = served.run("tenant", "rm", "amce", "--api-key", other.key)
    assert done.returncode in (3, 4) and '"acme"' not in done.stderr, done


def test_exit_codes_are_those_of_the_help(served: Served) -> None:
    listed = dict(re.findall(r"^  (\d+) +(.*)$", help_of(()).split("Exit codes:")[1], re.MULTILINE))
    assert {"0", "1", "2", "3", "4", "5", "124", "125", "130", "141"} == set(listed), listed
    assert with_key(served, ("inspect",), "nobody").returncode == 3
    assert with_key(served, ("create",), "demo").returncode == 4
    assert served.run("ls").returncode == 4, "without a key"
    assert with_key(served, ("ls",), "--no-such-flag").returncode == 2
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert served.run("ls", "--server", away).returncode == 5
        assert served.run("exec", "demo", "--server", away, "true").returncode == 125


def test_exec_takes_a_command_as_it_is(served: Served) -> None:
    def executed(*words: str) -> tuple[int, str]:
        done = with_key(served, ("exec",), *words)
        return done.returncode, done.stdout

    assert executed("demo", "echo", "-n", "a", "--", "-b") == (0, "a -- -b")
    assert executed("demo", "--", "echo", "-n", "--", "a") == (0, "-- a")
    assert executed("-it", "demo", "bash", "-c", "exit 7") == (7, "")
    assert executed("demo", "-c", "echo $((6 * 7))") == (0, "42\n")
    assert executed("demo", "--workdir", "/usr", "bash", "-c", "echo $PWD --workdir") == (0, "/usr --workdir\n")
    code, listed = executed("demo", "ls", "-la", "/usr")
    assert code == 0 and re.search(r"^d.* bin$", listed, re.MULTILINE), listed
    assert executed("demo", "--timeout", "1s", "sleep", "60")[0] == 124


@dataclass
class Shown:
    text: str
    code: int


def on_terminal(server: Server, width: int, *words: str, interrupt_after: str | None = None, **variables: str) -> Shown:
    """What a command writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    inherited = environment(server) | {"TERM": "xterm"} | variables
    process = subprocess.Popen([str(binary()), *words], stdin=theirs, stdout=theirs, stderr=theirs, env=inherited)
    os.close(theirs)
    shown, end = b"", time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if not select.select([ours], [], [], 1)[0]:
                continue
            shown += os.read(ours, 65536)
            if interrupt_after and interrupt_after.encode() in shown:
                process.send_signal(signal.SIGINT)
                interrupt_after = None
    except OSError:
        pass  # The terminal's other side is closed: the command has ended.
    os.close(ours)
    return Shown(shown.decode(), process.wait(30))


def test_tables_fit_the_terminal(served: Served) -> None:
    key, server = ("--api-key", served.tenants.operator.key), served.tenants.server
    plain = lambda text: re.sub(r"\x1b\[[0-9;]*m", "", text)  # noqa: E731
    wide = plain(on_terminal(server, 200, "ls", *key).text).splitlines()
    assert "ID" in wide[0] and "TIER" in wide[0], wide
    narrow = plain(on_terminal(server, 40, "ls", *key).text).splitlines()
    assert len(narrow) == 2 and all(len(line) <= 40 for line in narrow), narrow
    assert "NAME" in narrow[0] and "STATE" in narrow[0] and "ID" not in narrow[0].split(), narrow
    steps = plain(on_terminal(server, 60, "trajectory", "show", "demo", *key).text).splitlines()
    assert "ARGUMENTS" in steps[0] and all(len(line) <= 60 for line in steps), steps
    piped = with_key(served, ("ls",)).stdout
    assert "ID" in piped.split() and "\x1b" not in piped, piped
    assert "\x1b[32mrunning" in on_terminal(server, 80, "ls", *key).text
    assert "\x1b" not in on_terminal(server, 80, "ls", *key, NO_COLOR="1").text


def test_a_watched_list_shows_changes_until_it_is_interrupted(served: Served) -> None:
    key, server = ("--api-key", served.tenants.operator.key), served.tenants.server
    watching = subprocess.Popen(
        [str(binary()), "ls", "--watch", *key], stdout=subprocess.PIPE, text=True, env=environment(server)
    )
    try:
        assert re.search(r"listed +demo +running$", watching.stdout.readline().rstrip())
        assert with_key(served, ("create",), "brief").returncode == 0
        line = watching.stdout.readline()
        assert "brief" in line and "added" in line, line
        assert with_key(served, ("pause",), "brief").returncode == 0
        while "state: running -> paused" not in line:
            line = watching.stdout.readline()
            assert "brief" in line, line
        assert with_key(served, ("rm",), "brief").returncode == 0
        while "removed" not in line:
            line = watching.stdout.readline()
            assert "brief" in line, line
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130
    finally:
        watching.kill()
        watching.wait(30)
    drawn = on_terminal(server, 80, "ps", "-w", *key, interrupt_after="demo")
    assert drawn.code == 130 and drawn.text.startswith("\x1b[H"), drawn


def completed(served: Served, *words: str, shell: str = "bash", **variables: str) -> list[str]:
    asked = environment(served.tenants.server) | {"ARENITE_API_KEY": served.tenants.operator.key, **variables}
    asked |= {"ARENITE_COMPLETE": shell, "_CLAP_COMPLETE_INDEX": str(len(words)), "_CLAP_IFS": "\n"}
    done = subprocess.run([str(binary()), "--", "arenite", *words], capture_output=True, text=True, timeout=30, env=asked)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_completions_have_the_names_on_the_server(served: Served) -> None:
    assert completed(served, "exec", "de") == ["demo"]
    assert "demo" in completed(served, "rm", "demo", "")
    assert completed(served, "create", "--image", "ti") == ["tiny"]
    assert completed(served, "create", "--template", "defa") == ["default"]
    assert completed(served, "snapshot", "inspect", "r") == ["ready"]
    assert completed(served, "volume", "rm", "m") == ["models"]
    assert completed(served, "tenant", "rm", "ac") == ["acme"]
    assert completed(served, "snapshot", "create", "demo", "re") == [], "a new name"
    assert completed(served, "cp", "dem") == ["demo:/"]
    assert "inspect" in completed(served, "insp")
    for shell, text in [("bash", "complete -o"), ("zsh", "#compdef arenite"), ("fish", "--command arenite")]:
        assert text in served.run("completions", shell).stdout


def test_completions_are_silent_and_quick_without_a_server(served: Served) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for server in (address, "http://127.0.0.1:1"):
            start = time.monotonic()
            assert completed(served, "exec", "de", ARENITE_SERVER=server) == []
            # It waits for 0.4 seconds; the rest is for a busy host.
            assert time.monotonic() - start < 3


def test_open_signs_the_browser_in(served: Served, tmp_path: Path) -> None:
    key, server = served.tenants.operator.key, served.tenants.server
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" >{opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    variables = environment(server) | {"BROWSER": str(browser), "ARENITE_API_KEY": key}
    for more, path in ([], "/sandbox/demo/"), (["--port", "3000"], "/sandbox/demo/proxy/3000/"):
        done = subprocess.run([str(binary()), "open", "demo", *more], capture_output=True, text=True, timeout=60, env=variables)
        address = done.stdout.strip()
        assert done.returncode == 0 and address.startswith(f"{server.url}{path}?ticket=") and key not in address, done
        end = time.monotonic() + 30
        while not opened.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        assert opened.read_text() == address
        opened.unlink()
    as_browser = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none"}
    address = with_key(served, ("open",), "demo", "--print").stdout.strip()
    signed_in = httpx.get(address, headers=as_browser, timeout=30)
    assert signed_in.status_code in (200, 302, 303, 307), signed_in
    assert httpx.get(address.split("?")[0], headers=as_browser, timeout=30).status_code == 401
    assert not opened.exists(), "--print opens nothing"


def demo_sandboxes(server: Server) -> list[str]:
    listed = httpx.get(f"{server.url}/api/v2/sandboxes", params={"name_prefix": "demo-"}, timeout=30).json()["sandboxes"]
    return [sandbox["name"] for sandbox in listed]


def test_the_demo_shows_everything_and_leaves_nothing(server: Server) -> None:
    done = run(server, "demo", "--no-wait", "--image", "base")
    assert done.returncode == 0, done
    for text in ["total: 42", "checkpoint 1;", "exit code", "$ arenite rollback", "-try-1: pears at 9: total: 39", "/trajectory/", "$ arenite rm"]:
        assert text in done.stdout, (text, done.stdout)
    assert "skipped" not in done.stdout, done.stdout
    assert demo_sandboxes(server) == []


def test_an_interrupted_demo_cleans_up(server: Server) -> None:
    command = [str(binary()), "demo", "--image", "base", "--name", "demo-interrupted"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(server))
    try:
        while "ready in" not in (line := running.stdout.readline()):
            assert line, "the demo ended"
        assert demo_sandboxes(server) == ["demo-interrupted"]
        again = run(server, "demo", "--no-wait", "--name", "demo-interrupted")
        assert again.returncode == 4 and "exists already" in again.stderr, again
        assert demo_sandboxes(server) == ["demo-interrupted"], "another one's sandbox is not deleted"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    finally:
        running.kill()
        running.wait(30)
    assert demo_sandboxes(server) == []


def test_a_kept_demo_is_there_afterwards(server: Server) -> None:
    done = run(server, "demo", "--no-wait", "--image", "base", "--name", "demo-kept", "--keep")
    try:
        assert done.returncode == 0 and "arenite open demo-kept" in done.stdout, done
        assert sorted(demo_sandboxes(server)) == ["demo-kept", "demo-kept-try-0", "demo-kept-try-1"]
    finally:
        run(server, "rm", "--force", *demo_sandboxes(server))


def test_the_last_lines_of_a_log(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    name = f"logs-{os.getpid()}"
    made = run(server, "create", name, "--image", "base", "--", "bash", "-c", "seq 1 100; sleep 600")
    assert made.returncode == 0, made
    try:
        end = time.monotonic() + 30
        while run(server, "logs", name, "--tail", "1").stdout != "100\n":
            assert time.monotonic() < end
        assert run(server, "logs", "-n", "3", name).stdout == "98\n99\n100\n"
        assert run(server, "logs", name, "--tail", "0").stdout == ""
    finally:
        run(server, "rm", "--force", name)


def test_snapshots_show_their_progress_on_a_terminal(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "ready.tar"
    key = ("--api-key", served.tenants.operator.key)
    shown = on_terminal(served.tenants.server, 100, "snapshot", "export", "ready", "-o", str(file), *key)
    assert shown.code == 0 and file.stat().st_size > 0, shown
    assert re.search(r"[KM]iB", shown.text) and "/s" in shown.text, shown
    quiet = served.run("snapshot", "export", "ready", "-o", str(file), *key)
    assert (quiet.returncode, quiet.stdout) == (0, ""), quiet
