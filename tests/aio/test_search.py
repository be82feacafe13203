"""file: grep and glob, with the real SDK."""

from __future__ import annotations

import httpx
from agent_sandbox import Sandbox as Client


def make(client: Client, folder: str, files: dict[str, str]) -> None:
    for name, content in files.items():
        assert client.file.write_file(file=f"{folder}/{name}", content=content).success


class TestGrep:
    def test_matches_with_context_and_pages(self, client: Client, folder: str) -> None:
        make(client, folder, {"a.py": "one\nimport os\ntwo\nimport sys\n", "b/c.rs": "use std;\nimport\n"})
        found = client.file.grep_files(path=folder, pattern="import", context_before=1, context_after=1).data
        assert [(m.file, m.line_number) for m in found.matches] == [
            (f"{folder}/a.py", 2),
            (f"{folder}/a.py", 4),
            (f"{folder}/b/c.rs", 2),
        ]
        assert found.matches[0].context_before == ["one"]
        assert found.matches[0].context_after == ["two"]
        assert (found.match_count, found.files_searched, found.files_matched, found.truncated) == (3, 2, 2, False)
        page = client.file.grep_files(path=folder, pattern="import", offset=1, max_results=1).data
        assert [m.line_content for m in page.matches] == ["import sys"]
        assert page.truncated

    def test_filters(self, client: Client, folder: str) -> None:
        make(client, folder, {"a.py": "x", "b.rs": "x", "node_modules/c.py": "x", ".hidden": "x"})

        def files(**arguments: object) -> list[str]:
            found = client.file.grep_files(path=folder, pattern="X", case_insensitive=True, **arguments).data
            return [m.file.removeprefix(f"{folder}/") for m in found.matches]

        assert files() == ["a.py", "b.rs", "node_modules/c.py"]
        assert files(type="py", exclude=["node_modules"]) == ["a.py"]
        assert files(include=["*.rs", ".hidden"]) == [".hidden", "b.rs"]
        assert files(recursive=False) == ["a.py", "b.rs"]

    def test_multiline_and_fixed(self, client: Client, folder: str) -> None:
        make(client, folder, {"f": "a(b\nc)d\n"})
        assert client.file.grep_files(path=folder, pattern=r"b.c", multiline=True).data.match_count == 1
        assert client.file.grep_files(path=folder, pattern="a(b", fixed_strings=True).data.match_count == 1

    def test_look_around_and_back_references(self, client: Client, folder: str) -> None:
        client.file.write_file(file=f"{folder}/x", content="foobar\nfoobaz\nthe the end\n")
        found = client.file.grep_files(path=folder, pattern=r"foo(?!bar)").data
        assert [match.line_content for match in found.matches] == ["foobaz"]
        assert found.matches[0].line.strip() == "foobaz", "as AIO's README reads it"
        assert client.file.search_in_file(file=f"{folder}/x", regex=r"(\w+) \1").data.matches == ["the the end"]
        assert client.file.grep_files(path=folder, pattern=r"bar\n(?=foo)", multiline=True).data.match_count == 1
        client.file.write_file(file=f"{folder}/slow", content="a" * 5000)
        answer = client.file.search_in_file(file=f"{folder}/slow", regex=r"^(a+)+(?=b)$")
        assert answer.success is False and "backtracks" in answer.message, answer

    def test_a_failure_parses(self, client: Client, folder: str) -> None:
        for arguments in ({"path": f"{folder}/missing", "pattern": "x"}, {"path": folder, "pattern": "("}):
            answer = client.file.grep_files(**arguments)
            assert answer.success is False
            assert answer.message

    def test_what_is_closed_to_the_user_is_not_searched(self, client: Client, folder: str) -> None:
        make(client, folder, {"open": "secret"})
        answer = client.bash.exec(command=f"sudo sh -c 'umask 077; echo secret > {folder}/closed; mkdir {folder}/d; echo secret > {folder}/d/f'")
        assert answer.data.exit_code == 0, answer
        found = client.file.grep_files(path=folder, pattern="secret").data
        assert [m.file for m in found.matches] == [f"{folder}/open"]
        client.bash.exec(command=f"sudo rm -rf {folder}/closed {folder}/d")

    def test_bounds(self, http: httpx.Client, folder: str) -> None:
        for extra in ({"max_results": 10_001}, {"context_before": 21}, {"offset": -1}):
            assert http.post("/v1/file/grep", json={"path": folder, "pattern": "x", **extra}).status_code == 422, extra


class TestGlob:
    def test_sorted_with_metadata(self, client: Client, folder: str) -> None:
        make(client, folder, {"big.txt": "12345", "small.txt": "1", "d/mid.txt": "123", ".h.txt": ""})
        found = client.file.glob_files(path=folder, pattern="**/*.txt", sort_by="size", sort_desc=True).data
        assert [(f.name, f.size) for f in found.files] == [("big.txt", 5), ("mid.txt", 3), ("small.txt", 1)]
        assert found.total_count == 3
        assert found.files[0].modified_time
        few = client.file.glob_files(path=folder, pattern="**/*.txt", max_results=1, include_hidden=True).data
        assert (len(few.files), few.total_count, few.truncated) == (1, 4, True)

    def test_directories_when_asked_for(self, client: Client, folder: str) -> None:
        make(client, folder, {"d/f": ""})
        found = client.file.glob_files(path=folder, pattern="*", files_only=False).data
        assert [(f.name, f.is_directory) for f in found.files] == [("d", True)]
        assert client.file.glob_files(path=f"{folder}/missing", pattern="*").success is False
