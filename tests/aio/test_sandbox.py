"""sandbox: the context and the packages; and the first example of the README against both kinds of address."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
from agent_sandbox import Sandbox as Client
from sandboxes import LiveSandbox


class TestContext:
    def test_context(self, client: Client) -> None:
        context = client.sandbox.get_context()
        assert context.success
        assert re.fullmatch(r"v\d+\.\d+\.\d+\.\d+", context.version), context.version
        assert context.home_dir == client.bash.exec(command="echo $HOME").data.stdout.strip()
        assert isinstance(context.data, str) and context.home_dir in context.data
        system = context.detail.system
        assert system.os and system.os_version and system.timezone
        assert system.arch == client.bash.exec(command="uname -m").data.stdout.strip()
        assert system.user == client.bash.exec(command="id -un").data.stdout.strip()
        assert isinstance(system.occupied_ports, list)
        assert context.detail.runtime is not None
        assert isinstance(context.detail.utils, list)

    def test_it_is_no_plain_envelope(self, http: httpx.Client) -> None:
        body = http.get("/v1/sandbox").json()
        assert {"success", "message", "data", "home_dir", "version", "detail"} <= body.keys()
        assert {"os", "os_version", "arch", "user", "home_dir", "timezone", "occupied_ports"} <= body["detail"]["system"].keys()

    def test_in_a_sandbox_the_user_is_gem(self, server: Any, client: Client) -> None:
        context = client.sandbox.get_context()
        assert (context.detail.system.user, context.home_dir) == ("gem", "/home/gem")


class TestPackages:
    def test_python(self, client: Client) -> None:
        packages = client.sandbox.get_python_packages()
        assert packages.success
        assert re.search(r"\bpip==\d+", str(packages.data)) or any(
            package["name"] == "pip" for package in packages.data
        ), packages.data

    def test_nodejs(self, client: Client) -> None:
        packages = client.sandbox.get_nodejs_packages()
        assert packages.success
        assert "npm" in str(packages.data)


def first_example(client: Client) -> None:
    home = client.sandbox.get_context().home_dir
    assert client.shell.exec_command(command="echo shell").data.output == "shell"
    assert client.bash.exec(command="echo bash").data.stdout == "bash\n"
    path = f"{home}/example/hello.txt"
    assert client.file.write_file(file=path, content="hello\n").success
    assert client.file.read_file(file=path).data.content == "hello\n"
    assert "hello.txt" in [file.name for file in client.file.list_path(path=f"{home}/example").data.files]
    edited = client.file.str_replace_editor(command="str_replace", path=path, old_str="hello", new_str="goodbye")
    assert edited.data.new_content == "goodbye\n"
    client.bash.exec(command=f"rm -r {home}/example")


class TestFirstExample:
    def test_on_the_bare_port(self, client: Client) -> None:
        first_example(client)

    def test_under_a_sandboxes_path(self, sandbox: Callable[..., LiveSandbox]) -> None:
        first_example(sandbox("demo").client)

    def test_inside_the_sandbox_the_same_api_answers(self, server: Any, client: Client) -> None:
        answer = client.bash.exec(command="curl -s http://localhost:8080/v1/sandbox").data
        assert '"home_dir"' in answer.stdout

    def test_an_unknown_sandbox_is_404_with_a_hint(self, api: httpx.Client) -> None:
        answer = api.get("/sandbox/never-made/v1/sandbox")
        assert answer.status_code == 404
        assert answer.json()["success"] is False
        assert "never-made" in answer.json()["message"]
        assert answer.json()["hint"]
