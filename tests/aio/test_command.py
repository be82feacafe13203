"""`aio` inside sandboxes: the API as a command, for people on a terminal and for programs in a pipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from sandboxes import LiveSandbox


@pytest.fixture(params=["base", "code"])
def live(request: pytest.FixtureRequest, sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    return sandbox(image=request.param)


def outcome(live: LiveSandbox, command: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    result = live.bash(command)
    assert result.status == "completed", result
    return result.exit_code, result.stdout or "", result.stderr or ""


class TestPipes:
    def test_an_answer_is_a_line_of_json(self, live: LiveSandbox) -> None:
        out = live.output("aio sandbox get-context")
        answer = json.loads(out)
        assert answer["success"] is True and answer["home_dir"] == "/home/gem" and "\n" not in out
        assert live.output("aio bash exec 'echo $A' --env A=b | jq -r .data.stdout") == "b"
        assert live.output("sudo aio file read /etc/hostname | jq -r .data.content | head -1") == live.name

    def test_standard_input_is_a_value(self, live: LiveSandbox) -> None:
        live.output("printf 'a\\nb' | aio file write /tmp/x - --trailing-newline")
        assert live.output("cat /tmp/x | wc -l") == "2"
        asked = """echo '{"path": "/tmp", "pattern": "x"}' | aio file glob --json - | jq -r '.data.files[].path'"""
        assert live.output(asked) == "/tmp/x"

    def test_files_go_up_and_down(self, live: LiveSandbox) -> None:
        copied = "head -c 300000 /dev/urandom > /tmp/a; aio file upload /tmp/a --path /tmp/b; aio file download /tmp/b | cmp - /tmp/a"
        assert '"success":true' in live.output(copied)
        skill = "mkdir -p /tmp/s/k; printf -- '---\\nname: k\\ndescription: d\\n---\\nDo it.' > /tmp/s/k/SKILL.md"
        live.output(f"{skill}; aio skills register --path /tmp/s")
        assert live.output("aio skills list-metadata | jq -r '.data.skills[].name'") == "k"
        assert "content  Do it." in live.output("aio -o text skills get-content k").splitlines()

    def test_a_reader_that_leaves_is_no_error(self, live: LiveSandbox) -> None:
        live.output("seq 200000 > /tmp/n")
        assert live.output("aio file download /tmp/n | head -1; echo ${PIPESTATUS[0]}").split() == ["1", "141"]


class TestFailures:
    def test_a_failed_call_is_told_on_standard_error(self, live: LiveSandbox) -> None:
        code, out, err = outcome(live, "aio shell view absent")
        assert code == 1 and json.loads(out)["success"] is False
        assert err.startswith('error: session "absent" not found\nhint: create a session')
        code, out, err = outcome(live, "aio -o text file read /absent")
        assert (code, out) == (1, "") and "does not exist" in err
        code, _, err = outcome(live, "aio jupyter execute-code 1 --timeout 900")
        assert code == 1 and "300" in err

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("browse", "there is no group \"browse\": there are bash, browser, code"),
            ("bash run x", "bash has no method \"run\": there are close-session, create-session, exec"),
            ("bash exec", "command is missing"),
            ("bash exec x --fast", "no field \"fast\""),
            ("--fast", "there is no option --fast"),
            ("-o yaml bash sessions", "-o is json or text"),
        ],
    )
    def test_what_is_no_call_is_taught(self, client: Client, words: str, told: str) -> None:
        result = client.bash.exec(command=f"aio {words}").data
        assert result.exit_code == 2 and told in result.stderr and "hint: aio " in result.stderr

    def test_an_api_that_is_not_there(self, client: Client) -> None:
        result = client.bash.exec(command="aio --api-url http://127.0.0.1:9 bash sessions").data
        assert result.exit_code == 3 and "http://127.0.0.1:9 can't be reached" in result.stderr


class TestGuide:
    """Commands as AIO's guide writes them."""

    def test_of_the_sandbox(self, live: LiveSandbox) -> None:
        assert json.loads(live.output("aio sandbox info"))["home_dir"] == "/home/gem"
        assert "sandbox" in json.loads(live.output("aio mcp list"))["data"]
        assert json.loads(live.output("aio skills list"))["data"]["skills"] == []
        told = json.loads(live.output("aio file read /etc/hostname -o /tmp/answer.json"))
        assert told["path"] == "/tmp/answer.json"
        assert live.name in live.output("jq -r .data.content /tmp/answer.json")

    def test_of_the_browser(self, browsing: LiveSandbox) -> None:
        for command in ("aio browser screenshot -o /tmp/page.png", "aio gui screenshot --output /tmp/screen.png"):
            told = json.loads(browsing.output(command, timeout=60))
            assert browsing.output(f"head -c 4 {told['path']} | tail -c 3") == "PNG" and told["bytes"] > 1000


class TestPeople:
    @pytest.fixture
    def typed(self, live: LiveSandbox) -> Iterator[Callable[[str], str]]:
        """Runs a command on a terminal."""
        session = live.client.shell.create_session().data.session_id

        def run(command: str) -> str:
            result = live.client.shell.exec_command(id=session, command=command).data
            assert result.status == "completed", result
            return result.output or ""

        yield run

    def test_a_terminal_gets_text(self, typed: Callable[[str], str]) -> None:
        lines = typed("aio bash exec 'echo one; echo two'").splitlines()
        assert ["status", "completed"] in [line.split() for line in lines]
        assert lines[lines.index("stdout") :][:3] == ["stdout", "  one", "  two"]
        head, *rows = typed("aio sandbox python-packages").splitlines()
        assert head.split() == ["NAME", "SPEC", "VERSION"] and any(row.split()[1].startswith("pip==") for row in rows)
        assert typed("aio file read /absent").startswith("error: Failed to read file")
        assert json.loads(typed("aio -o json bash sessions"))["success"] is True

    def test_nothing_in_an_answer_acts_on_the_terminal(self, typed: Callable[[str], str]) -> None:
        typed("printf 'a\\033[31mb' > /tmp/coloured")
        assert typed("aio file read /tmp/coloured").splitlines()[0].split() == ["content", "a\ufffd[31mb"]

    def test_help(self, typed: Callable[[str], str]) -> None:
        for asked in ("aio", "aio --help", "aio help"):
            told = typed(asked)
            assert all(word in told for word in ("Usage: aio", "bash", "jupyter", "mcp", "Exit status", "--api-url"))
        assert "exec COMMAND  " in typed("aio bash") and "Runs a command in a fresh process." in typed("aio bash --help")
        told = typed("aio bash exec --help")
        assert all(word in told for word in ("--max-output-length NUMBER", "default: 50000", "POST /v1/bash/exec", "required"))


def test_its_calls_are_steps_of_the_sandbox(server: Any, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    assert json.loads(live.output("aio bash exec 'echo inside'"))["data"]["stdout"] == "inside\n"
    for _ in range(100):
        steps = httpx.get(f"{server.url}/api/v1/trajectories/{live.id}").json()["steps"]
        if any(step["client"] == "inside" and step["action"] == "POST /v1/bash/exec" for step in steps):
            return
        live.output("sleep 0.1")
    raise AssertionError(steps)


def test_nothing_of_the_image_is_changed_nor_can_it_be(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    assert live.output("stat -c '%U %a' /usr /usr/local /usr/local/bin").splitlines() == ["root 755"] * 3
    assert live.output("command -v aio") == "/usr/local/bin/aio"
    code, _, err = outcome(live, "sudo sh -c 'echo x > /usr/local/bin/aio'")
    assert code != 0 and err
    code, _, err = outcome(live, "sudo rm /usr/local/bin/aio")
    assert code != 0 and "busy" in err
