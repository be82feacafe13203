"""A fork's shells: in the directory of the parent's, and with the environment that those have by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sandboxes import LiveSandbox

#: Values that a line of a shell could misread.
HOSTILE = "'; touch ~/owned; echo \"$(touch ~/owned)\" `touch ~/owned`\n\x07\x1b]7701;x;P;0;/\x07 ü \\ export X=1"


class Shells:
    """The sessions of a sandbox, by the API's own paths."""

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.sandbox = sandbox

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self.sandbox.http.request(method, f"/v1/{path}", **({"json": body} if body else {}))
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def run(self, session: str, command: str, **arguments: Any) -> str:
        return str(self.call("POST", "shell/exec", id=session, command=command, **arguments)["output"])

    def forks(self, **body: Any) -> list[Shells]:
        path = f"{self.sandbox.base_url}/api/v2/sandboxes/{self.sandbox.name}/fork"
        answer = httpx.post(path, json=body, timeout=120)
        assert answer.status_code == 201, answer.text
        return [Shells(LiveSandbox(self.sandbox.base_url, fork["name"])) for fork in answer.json()["sandboxes"]]


@pytest.fixture
def parent(sandbox: Callable[..., LiveSandbox]) -> Shells:
    return Shells(sandbox(image="base", env={"WHO": "parent", "GONE": "soon", "SAME": "same"}))


@pytest.fixture
def forked() -> Iterator[Callable[..., list[Shells]]]:
    """Forks that are removed at the end."""
    made: list[Shells] = []

    def fork(parent: Shells, **body: Any) -> list[Shells]:
        forks = parent.forks(**body)
        made.extend(forks)
        return forks

    yield fork
    for one in made:
        one.sandbox.delete()


def test_shells_go_on_in_their_directory_and_with_their_environment(parent: Shells, forked: Callable[..., list[Shells]]) -> None:
    parent.sandbox.output("mkdir -p ~/work/'a b' && ln -s ~/work ~/link")
    parent.sandbox.http.post("/v1/file/write", json={"file": "/home/gem/hostile", "content": HOSTILE}).raise_for_status()
    parent.call("POST", "shell/sessions/create", id="agent's", exec_dir="/home/gem/link/a b")
    parent.run("agent's", "cd ~/link/'a b'; export HOSTILE=\"$(cat ~/hostile)\" WHO=shell EMPTY=; unset GONE; own=1; set -u -x")
    plain = parent.call("POST", "shell/exec", command="cd /var && export PLAIN=1")["session_id"]
    parent.run(plain, "(exit 7)")
    before = [parent.call("POST", "shell/view", id=session) for session in ("agent's", plain)]

    children = forked(parent, count=2)
    for child in children:
        assert child.run("agent's", "set +x; pwd") == "/home/gem/link/a b"
        assert child.run("agent's", "echo $WHO ${GONE-gone} $SAME ${EMPTY-unset}. ${own-not exported}") == "shell gone same . not exported"
        assert child.run("agent's", '[[ $HOSTILE == "$(cat ~/hostile)" ]] && echo equal; ls ~ | grep -c owned') == "equal\n0"
        assert child.run(plain, "pwd; echo $PLAIN") == "/var\n1"
        assert child.run("agent's", "hostname") == child.sandbox.name
    # Each goes on by itself.
    children[0].run("agent's", "cd /; export WHO=first")
    assert children[1].run("agent's", "echo $WHO $PWD") == "shell /home/gem/link/a b"

    after = [parent.call("POST", "shell/view", id=session) for session in ("agent's", plain)]
    assert after == before, "the question leaves no trace"
    assert parent.run(plain, "echo $?") == "7"
    assert "__arenite_carry" not in parent.run("agent's", "set +x; history; cat ~/.bash_history 2>/dev/null")


def test_the_forks_own_variables_win(parent: Shells, forked: Callable[..., list[Shells]]) -> None:
    parent.call("POST", "shell/sessions/create", id="s")
    parent.run("s", "export WHO=shell KEPT=yes; unset GONE")
    (child,) = forked(parent, env={"WHO": "fork", "GONE": "back"})
    assert child.run("s", "echo $WHO $GONE $KEPT") == "fork back yes"


def test_a_busy_shell_leaves_its_directory(parent: Shells, forked: Callable[..., list[Shells]]) -> None:
    parent.call("POST", "shell/sessions/create", id="busy")
    parent.run("busy", "cd /tmp; export LATE=1")
    parent.run("busy", "sleep 1000", async_mode=True)
    (child,) = forked(parent)
    assert child.run("busy", "echo $PWD ${LATE-unset}") == "/tmp unset"
    assert parent.call("POST", "shell/view", id="busy")["status"] == "running"


def test_sessions_of_commands_have_their_directory_and_script(parent: Shells, forked: Callable[..., list[Shells]]) -> None:
    parent.sandbox.output("mkdir ~/sub && echo 'export FROM_SCRIPT=1' > ~/env.sh")
    parent.call("POST", "bash/sessions/create", session_id="b", exec_dir="/home/gem/sub", snapshot_path="/home/gem/env.sh")
    (child,) = forked(parent)
    assert child.sandbox.output("echo $PWD $FROM_SCRIPT", session_id="b") == "/home/gem/sub 1"
    gone = child.sandbox.http.post("/v1/shell/exec", json={"id": "b", "command": "true"})
    assert gone.status_code == 404, "it is no shell"


def test_what_is_too_large_is_left_out(parent: Shells, forked: Callable[..., list[Shells]]) -> None:
    parent.call("POST", "shell/sessions/create", id="large")
    parent.run("large", "cd /usr; export LARGE=$(head -c 100000 /dev/zero | tr '\\0' x)")
    (child,) = forked(parent)
    assert child.run("large", "echo $PWD ${#LARGE}") == "/usr 0"


def test_a_shell_that_hides_its_builtins_keeps_none_from_forking(parent: Shells, forked: Callable[..., list[Shells]]) -> None:
    parent.call("POST", "shell/sessions/create", id="odd")
    parent.run("odd", "cd /opt; printf() { echo no; }; compgen() { sleep 100; }; trap 'echo trapped' DEBUG; export ODD=1; IFS=x")
    (child,) = forked(parent)
    assert child.run("odd", "echo $PWD $ODD") == "/opt 1"
