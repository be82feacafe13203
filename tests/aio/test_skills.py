"""skills: registered from archives and directories, listed, read, deleted; archives that mean harm are refused."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox


def skill(name: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: What {name} is for\n{more}---\n\n# {name}\n\nSteps.\n"


def archive(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return out.getvalue()


@pytest.fixture(autouse=True)
def forgotten(client: Client) -> Iterator[None]:
    client.skills.clear_skills()
    yield
    client.skills.clear_skills()


def register(client: Client, files: dict[str, str], **arguments: Any) -> Any:
    answer = client.skills.register_skills(file=("skills.zip", archive(files), "application/zip"), **arguments)
    assert answer.success is True, answer
    return answer.data


def refused(client: Client, content: bytes, **arguments: Any) -> str:
    with pytest.raises(ApiError) as failure:
        client.skills.register_skills(file=("skills.zip", content, "application/zip"), **arguments)
    assert failure.value.status_code == 400, failure.value
    return failure.value.body["message"]


def names(client: Client, **arguments: Any) -> list[str]:
    return [skill.name for skill in client.skills.list_metadata(**arguments).data.skills]


class TestLife:
    def test_all_calls(self, client: Client, folder: str) -> None:
        data = register(client, {"SKILL.md": skill("summary"), "bin/run": "echo hi"}, path=folder)
        assert data.count == 1
        (registered,) = data.registered
        assert (registered.name, registered.path) == ("summary", f"{folder}/summary")
        assert registered.metadata == {"name": "summary", "description": "What summary is for"}
        assert registered.dependency_commands == []
        assert names(client) == ["summary"]
        content = client.skills.get_content(name="summary").data
        assert (content.path, content.content) == (registered.path, "# summary\n\nSteps.\n")
        # A command of the sandbox sees the same files, as its own.
        listing = client.bash.exec(command=f"stat -c '%U %n' {registered.path}/bin/run").data.stdout
        assert listing.strip() == f"gem {registered.path}/bin/run"
        assert client.skills.delete_skill(name="summary").data.name == "summary"
        assert names(client) == []
        for call in (client.skills.get_content, client.skills.delete_skill):
            with pytest.raises(ApiError) as failure:
                call(name="summary")
            assert failure.value.status_code == 404

    def test_a_directory_alone(self, client: Client, base_url: str, folder: str) -> None:
        for name in ("one", "two"):
            client.file.write_file(file=f"{folder}/{name}/SKILL.md", content=skill(name))
        # SDK 0.0.30 insists on a file; the API does not.
        answer = httpx.post(f"{base_url}/v1/skills/register", files={"path": (None, folder)}, timeout=30).json()
        assert answer["success"] and answer["data"]["count"] == 2, answer
        assert names(client) == ["one", "two"]
        assert names(client, names="two,three") == ["two"]
        assert names(client, names="three") == []
        cleared = client.skills.clear_skills()
        assert cleared.success and cleared.data["count"] == 2

    def test_several_in_an_archive_and_a_name(self, client: Client, folder: str) -> None:
        files = {"a/SKILL.md": skill("alpha"), "b/SKILL.md": "without front matter", "README": "x"}
        assert [s.name for s in register(client, files, path=folder).registered] == ["alpha", "b"]
        data = register(client, {"any/SKILL.md": skill("own")}, path=folder, name="given")
        assert [(s.name, s.path) for s in data.registered] == [("given", f"{folder}/given")]

    def test_registering_again_replaces(self, client: Client, folder: str) -> None:
        register(client, {"SKILL.md": skill("s"), "old": "x"}, path=folder)
        register(client, {"SKILL.md": skill("s"), "new": "x"}, path=folder)
        assert client.bash.exec(command=f"ls {folder}/s").data.stdout.split() == ["SKILL.md", "new"]
        assert names(client) == ["s"]


class TestHostile:
    @pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "..\\evil"])
    def test_paths_that_lead_out(self, client: Client, folder: str, name: str) -> None:
        assert "entry" in refused(client, archive({"SKILL.md": skill("s"), name: "x"}), path=f"{folder}/in")
        assert not client.bash.exec(command=f"find {folder} -type f; ls /tmp/evil").data.stdout

    def test_links(self, client: Client, folder: str) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as packed:
            packed.writestr("SKILL.md", skill("s"))
            link = zipfile.ZipInfo("secret")
            link.external_attr = 0o120777 << 16
            packed.writestr(link, "/etc/shadow")
        assert "link" in refused(client, out.getvalue(), path=folder)

    def test_a_bomb(self, client: Client, folder: str) -> None:
        assert "256 MiB" in refused(client, archive({"SKILL.md": skill("s"), "zeros": "0" * (257 << 20)}), path=folder)
        assert not client.bash.exec(command=f"ls -A {folder}").data.stdout

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"no archive", "zip archive"),
            (archive({"README.md": "x"}), "no SKILL.md"),
            (archive({"SKILL.md": "---\nname: [\n---\n"}), "front matter"),
            (archive({"SKILL.md": "---\nname: ../up\n---\n"}), "no name for a skill"),
        ],
    )
    def test_what_is_no_skill(self, client: Client, folder: str, content: bytes, words: str) -> None:
        assert words in refused(client, content, path=folder)
        assert names(client) == []

    def test_other_directories_are_not_replaced(self, client: Client, folder: str) -> None:
        client.file.write_file(file=f"{folder}/work/important", content="x")
        assert "exists" in refused(client, archive({"SKILL.md": skill("s")}), path=folder, name="work")
        assert client.file.read_file(file=f"{folder}/work/important").data.content == "x"

    def test_directories_of_others(self, client: Client) -> None:
        assert "could not write" in refused(client, archive({"SKILL.md": skill("s")}), path="/etc/skills")


class TestDependencies:
    def test_what_is_declared_is_installed(self, sandbox: Callable[..., LiveSandbox]) -> None:
        """A package from a directory, so that no registry is needed."""
        wheel = archive(
            {
                "arenite_probe.py": "VALUE = 7\n",
                "arenite_probe-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: arenite-probe\nVersion: 1.0\n",
                "arenite_probe-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                "arenite_probe-1.0.dist-info/RECORD": "",
            }
        )
        live = sandbox(env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/tmp/wheels"})
        live.client.file.write_file(
            file="/tmp/wheels/arenite_probe-1.0-py3-none-any.whl", content=base64.b64encode(wheel).decode(), encoding="base64"
        )
        declared = 'dependencies:\n  python: ["arenite-probe==1.0"]\n'
        (registered,) = register(live.client, {"SKILL.md": skill("s", declared)}).registered
        (command,) = registered.dependency_commands
        assert command.success and command.command[-1] == "arenite-probe==1.0", command
        assert live.output("python3 -c 'import arenite_probe; print(arenite_probe.VALUE)'") == "7"
        (registered,) = register(live.client, {"SKILL.md": skill("t", declared.replace("1.0", "2.0"))}).registered
        assert registered.dependency_commands[0].success is False and registered.dependency_commands[0].stderr
        assert names(live.client) == ["s", "t"]

    def test_options_are_no_packages(self, client: Client, folder: str) -> None:
        declared = 'dependencies:\n  python: ["--index-url=http://x", "ok"]\n'
        (registered,) = register(client, {"SKILL.md": skill("s", declared)}, path=folder).registered
        (command,) = registered.dependency_commands
        assert command.success is False and "nothing was installed" in command.stderr


def test_skills_of_the_environment_are_there_at_once(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(env={"AIO_SKILLS_PATH": "/home/gem/image-skills"})
    live.client.file.write_file(file="/home/gem/image-skills/one/SKILL.md", content=skill("one"))
    assert names(live.client) == ["one"]
