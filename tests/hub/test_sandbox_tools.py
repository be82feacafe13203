"""The sandbox's own tools, as an agent's program calls them: by name, with JSON arguments, through the hub's REST view."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

#: More than an answer shows, in characters.
MORE_THAN_SHOWN = 100_000


class Tools:
    """The tools of one sandbox."""

    def __init__(self, live: LiveSandbox):
        self.live = live

    def result(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        answer = self.live.http.post(f"/v1/mcp/hub/tools/{name}", json=arguments, timeout=120)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["success"], body
        return body["data"]

    def ok(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a call that has to work; its text says the same."""
        result = self.result(name, **arguments)
        assert not result.get("isError"), result
        structured = result["structuredContent"]
        assert json.loads(result["content"][0]["text"]) == structured
        return structured

    def error(self, name: str, /, **arguments: Any) -> str:
        result = self.result(name, **arguments)
        assert result["isError"], result
        return result["content"][0]["text"]

    def bash(self, cmd: str, **arguments: Any) -> dict[str, Any]:
        return self.ok("sandbox_execute_bash", cmd=cmd, **arguments)

    def code(self, code: str, **arguments: Any) -> dict[str, Any]:
        return self.ok("sandbox_execute_code", code=code, **arguments)

    def files(self, action: str, path: str, **arguments: Any) -> dict[str, Any]:
        return self.ok("sandbox_file_operations", action=action, path=path, **arguments)

    def edit(self, command: str, path: str, **arguments: Any) -> dict[str, Any]:
        return self.ok("sandbox_str_replace_editor", command=command, path=path, **arguments)

    def runs(self, pattern: str) -> bool:
        """Whether a process has this command line. The pattern must not match itself."""
        return self.live.bash(f"pgrep -f {pattern!r}").exit_code == 0

    def wait_until(self, pattern: str, *, runs: bool, seconds: float) -> float:
        begun = time.monotonic()
        while self.runs(pattern) != runs:
            assert time.monotonic() - begun < seconds, f"{pattern} runs: {not runs}"
            time.sleep(0.05)
        return time.monotonic() - begun


@pytest.fixture(scope="module")
def tools(server: Server) -> Iterator[Tools]:
    name = "mcp-tools"
    answer = httpx.post(f"{server.url}/api/v1/sandbox", json={"name": name, "image": "code"}, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    live = LiveSandbox(server.url, name, 120)
    yield Tools(live)
    live.delete()


@pytest.fixture
def place(tools: Tools) -> Iterator[str]:
    """A new directory in the sandbox."""
    path = tools.live.output("mktemp -d")
    yield path
    tools.live.bash('rm -rf "$F"', env={"F": path})


def test_tools_are_listed_with_their_arguments(tools: Tools) -> None:
    listed = tools.live.http.get("/v1/mcp/sandbox/tools").json()["data"]["tools"]
    by_name = {tool["name"]: tool for tool in listed}
    wanted = [
        "sandbox_execute_bash", "sandbox_execute_code", "sandbox_file_operations", "sandbox_str_replace_editor",
        "sandbox_get_context", "sandbox_get_packages", "sandbox_convert_to_markdown",
    ]
    assert [name for name in by_name if name in wanted] == wanted
    assert "sandbox_load_skill" not in by_name
    for tool in by_name.values():
        assert tool["description"] and tool["annotations"]["title"], tool
        assert all(schema.get("description") for schema in tool["inputSchema"]["properties"].values()), tool
    schema = by_name["sandbox_file_operations"]["inputSchema"]
    assert schema["required"] == ["action", "path"]
    assert set(schema["properties"]["action"]["enum"]) == {
        "read", "write", "replace", "search", "find", "list", "grep", "glob",
    }
    assert "0" in schema["properties"]["start_line"]["description"]


def test_wrong_arguments_are_results_that_say_what_is_wrong(tools: Tools) -> None:
    assert "missing field `cmd`" in tools.error("sandbox_execute_bash")
    assert "unknown variant `ruby`" in tools.error("sandbox_execute_code", code="1", language="ruby")
    assert "action" in tools.error("sandbox_file_operations", action="delete", path="/tmp")
    unknown = tools.live.http.post("/v1/mcp/hub/tools/sandbox_nothing", json={})
    assert unknown.status_code == 404 and "Unknown tool: sandbox_nothing" in unknown.text


# sandbox_execute_bash


def test_a_shell_keeps_its_directory_between_calls(tools: Tools, place: str) -> None:
    first = tools.bash(f"cd {place} && HERE=yes && echo out && echo err >&2")
    assert (first["status"], first["exit_code"], first["output"].split()) == ("completed", 0, ["out", "err"])
    assert first["cwd"] == place
    second = tools.bash("pwd; echo $HERE")
    assert second["output"].split() == [place, "yes"]
    assert second["session_id"] == first["session_id"]
    moved = tools.bash("pwd", cwd="/usr")
    assert (moved["output"].strip(), tools.bash("pwd")["output"].strip()) == ("/usr", "/usr")
    fresh = tools.bash("echo ${HERE:-no}", new_session=True)
    assert fresh["output"].strip() == "no" and fresh["session_id"] != first["session_id"]


def test_a_failing_command_is_an_answer(tools: Tools) -> None:
    failed = tools.bash("ls /nowhere")
    assert failed["exit_code"] == 2 and "/nowhere" in failed["output"]
    assert "/nowhere" in tools.error("sandbox_execute_bash", cmd="pwd", cwd="/nowhere")
    assert "session_id" in tools.error("sandbox_execute_bash", cmd="")


def test_what_takes_longer_goes_on_and_can_be_awaited_or_stopped(tools: Tools) -> None:
    begun = tools.bash("echo first; sleep 2; echo second", timeout=0.5, new_session=True)
    assert (begun["status"], begun["exit_code"]) == ("running", None)
    assert "first" in begun["output"] and "second" not in begun["output"]
    assert begun["session_id"] in begun["hint"]
    rest = tools.bash("", session_id=begun["session_id"], timeout=10)
    assert (rest["status"], rest["exit_code"]) == ("completed", 0) and "second" in rest["output"]
    long = tools.bash("sleep 611", timeout=0.5, session_id=begun["session_id"])
    assert long["status"] == "running" and tools.runs("[s]leep 611")
    stopped = tools.bash("C-c", session_id=long["session_id"])
    assert stopped["status"] != "running"
    tools.wait_until("[s]leep 611", runs=False, seconds=5)
    assert tools.bash("echo alive", session_id=long["session_id"])["output"].strip() == "alive"


def test_a_busy_session_gives_the_next_call_one_of_its_own(tools: Tools) -> None:
    results: list[dict[str, Any]] = []
    first = threading.Thread(target=lambda: results.append(tools.bash("sleep 3; echo slow")))
    first.start()
    time.sleep(1)
    begun = time.monotonic()
    second = tools.bash("echo quick")
    assert time.monotonic() - begun < 1.5
    first.join()
    assert second["output"].strip() == "quick" and results[0]["output"].strip() == "slow"
    assert second["session_id"] != results[0]["session_id"]


def test_long_output_is_cut_and_the_whole_of_it_kept(tools: Tools) -> None:
    long = tools.bash(f"echo BEGIN; head -c {MORE_THAN_SHOWN} /dev/zero | tr '\\0' x | fold -w 80; echo; echo END")
    assert len(long["output"]) < 31_000
    assert long["output"].startswith("BEGIN") and long["output"].rstrip().endswith("END")
    path = re.search(r"/tmp/tool-output/\S+\.txt", long["hint"])
    assert path, long["hint"]
    assert int(tools.live.output(f"wc -c < {path[0]}")) > MORE_THAN_SHOWN
    part = tools.files("read", path[0], start_line=0, end_line=2)
    assert part["content"].splitlines() == ["BEGIN", "x" * 80] and part["total_lines"] > 1000
    assert len(tools.bash("seq 20000", truncate=False)["output"]) > 100_000


def test_lines_are_told_while_a_command_runs(tools: Tools) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("sandbox_execute_bash", {"cmd": "for i in 1 2 3; do echo line $i; sleep 0.7; done"}),
        ("sandbox_execute_code", {"code": "import time\nfor i in 1, 2, 3:\n print('line', i)\n time.sleep(0.7)"}),
        (
            "sandbox_execute_code",
            {
                "code": "for (const i of [1, 2, 3]) { console.log('line', i); await new Promise(r => setTimeout(r, 700)); }",
                "language": "javascript",
            },
        ),
    ]
    for name, arguments in calls:
        told: list[tuple[float, dict[str, Any]]] = []
        url, headers = f"/v1/mcp/hub/tools/{name}", {"Accept": "application/x-ndjson"}
        with tools.live.http.stream("POST", url, json=arguments, headers=headers, timeout=60) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            for line in answer.iter_lines():
                told.append((time.monotonic(), json.loads(line)))
        news = [(at, line["progress"]) for at, line in told if "progress" in line]
        assert [line for _, text in news for line in text.split("\n") if line] == ["line 1", "line 2", "line 3"], (name, told)
        end, last = told[-1]
        assert last["status"] == 200 and last["answer"]["data"]["structuredContent"]["exit_code"] == 0
        assert end - news[0][0] > 1.5, "the first line came while the rest was still to come"


@pytest.mark.parametrize(
    ("name", "arguments", "pattern"),
    [
        ("sandbox_execute_bash", {"cmd": "sleep 621", "timeout": 600}, "[s]leep 621"),
        ("sandbox_execute_code", {"code": "import os; os.system('sleep 622')", "timeout": 600}, "[s]leep 622"),
        (
            "sandbox_execute_code",
            {"code": "require('child_process').execSync('sleep 623')", "language": "js", "timeout": 600},
            "[s]leep 623",
        ),
    ],
)
@pytest.mark.parametrize("news", [True, False])
def test_whoever_hangs_up_ends_the_work(
    tools: Tools, name: str, arguments: dict[str, Any], pattern: str, news: bool
) -> None:
    accept = "application/x-ndjson" if news else "application/json"
    client = httpx.Client(base_url=tools.live.url)

    def call() -> None:
        try:
            client.post(f"/v1/mcp/hub/tools/{name}", json=arguments, headers={"Accept": accept}, timeout=3)
        except httpx.TimeoutException:
            pass  # The connection is closed by it.

    caller = threading.Thread(target=call)
    caller.start()
    tools.wait_until(pattern, runs=True, seconds=3)
    caller.join()
    took = tools.wait_until(pattern, runs=False, seconds=5)
    client.close()
    assert took < 1.5, f"it lived on for {took} s"


# sandbox_execute_code


def test_the_value_of_the_last_expression_is_the_result(tools: Tools) -> None:
    python = tools.code("x = 6\nprint('printed')\nx * 7")
    assert (python["language"], python["status"], python["exit_code"]) == ("python", "ok", 0)
    assert (python["result"], python["stdout"].strip(), python["stderr"]) == ("42", "printed", "")
    script = tools.code("const x = 6; console.log('printed'); x * 7", language="javascript")
    assert (script["language"], script["status"], script["exit_code"]) == ("javascript", "ok", 0)
    assert (script["result"], script["stdout"].strip()) == ("42", "printed")
    assert tools.code("x = 1")["result"] is None
    assert tools.code("({a: [1, 2]})", language="javascript")["result"] == "{ a: [ 1, 2 ] }"


def test_languages_have_several_names(tools: Tools) -> None:
    assert {tools.code("1", language=name)["language"] for name in ("python", "py", "python3")} == {"python"}
    assert {tools.code("1", language=name)["language"] for name in ("javascript", "js", "node", "nodejs")} == {"javascript"}


def test_every_execution_starts_afresh_in_the_working_directory(tools: Tools) -> None:
    tools.code("kept = 1; open('from_code.txt', 'w').write('hello')")
    assert tools.code("kept")["status"] == "error"
    script = tools.code("require('fs').readFileSync('from_code.txt', 'utf8')", language="js")
    assert script["result"] == "'hello'"
    assert tools.files("read", "from_code.txt")["content"] == "hello"
    tools.live.bash("rm -f ~/from_code.txt")


def test_code_that_fails_says_how(tools: Tools) -> None:
    python = tools.code("def f():\n    raise ValueError('bad thing')\nf()")
    assert (python["status"], python["exit_code"]) == ("error", 1)
    assert "ValueError" in python["traceback"] and "bad thing" in python["traceback"]
    script = tools.code("throw new TypeError('bad thing')", language="js")
    assert (script["status"], script["exit_code"]) == ("error", 1) and "TypeError: bad thing" in script["traceback"]
    assert tools.code("import sys; sys.exit(3)")["exit_code"] == 3
    for language, code in (("python", "import time; time.sleep(60)"), ("js", "setTimeout(() => {}, 60000)")):
        begun = time.monotonic()
        late = tools.code(code, language=language, timeout=1)
        assert (late["status"], late["exit_code"]) == ("timeout", 124) and "1 s" in late["hint"]
        assert time.monotonic() - begun < 10


def test_pictures_are_images(tools: Tools) -> None:
    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    code = (
        "import base64\nfrom IPython.display import display, Image, Markdown\n"
        f"display(Image(base64.b64decode('{pixel}')))\ndisplay(Markdown('**bold**'))\n'after'"
    )
    result = tools.result("sandbox_execute_code", code=code)
    text, image = result["content"]
    assert (image["type"], image["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
    structured = result["structuredContent"]
    assert json.loads(text["text"]) == structured and pixel not in text["text"]
    assert structured["result"] == "'after'"
    assert "image/png" in structured["outputs"][0]["media_types"]
    assert structured["outputs"][1]["text"] == "**bold**"


def test_long_prints_are_cut_and_kept(tools: Tools) -> None:
    long = tools.code(f"print('x' * {MORE_THAN_SHOWN})")
    assert len(long["stdout"]) < 31_000
    path = re.search(r"/tmp/tool-output/\S+\.txt", long["hint"])
    assert path and int(tools.live.output(f"wc -c < {path[0]}")) >= MORE_THAN_SHOWN


# sandbox_get_context, sandbox_get_packages


def test_the_context_is_in_words_and_in_parts(tools: Tools) -> None:
    result = tools.result("sandbox_get_context")
    assert "Home directory: /home/gem" in result["content"][0]["text"]
    context = result["structuredContent"]
    assert context["home_dir"] == "/home/gem" and re.fullmatch(r"v\d+(\.\d+){3}", context["version"])
    assert context["detail"]["runtime"]["python"]


def test_packages_have_their_headings(tools: Tools) -> None:
    both = tools.result("sandbox_get_packages")
    text = both["content"][0]["text"]
    assert "Python Packages:\n  - " in text and "Node.js Packages:\n  - " in text
    assert re.search(r"^  - pip==\d", text, re.M) and re.search(r"^  - npm@\d", text, re.M)
    assert {"name", "version"} == set(both["structuredContent"]["python"][0])
    for names, heading, other in (
        (("python", "py"), "Python Packages:", "Node.js"), (("nodejs", "node", "js"), "Node.js Packages:", "Python"),
    ):
        for name in names:
            text = tools.result("sandbox_get_packages", language=name)["content"][0]["text"]
            assert text.startswith(heading) and f"{other} Packages:" not in text
    assert "unknown variant" in tools.error("sandbox_get_packages", language="cobol")


# sandbox_file_operations


def test_files_are_written_read_and_changed(tools: Tools, place: str) -> None:
    path = f"{place}/deep/er/a.txt"
    assert tools.files("write", path, content="zero\none\ntwo\n")["bytes_written"] == 13
    assert tools.files("write", path, content="three\n", append=True)["bytes_written"] == 6
    whole = tools.files("read", path)
    assert whole["content"] == "zero\none\ntwo\nthree\n"
    assert (whole["line_count"], whole["total_lines"], whole["truncated"]) == (4, 4, False)
    part = tools.files("read", path, start_line=1, end_line=3)
    assert (part["content"], part["start_line"], part["end_line"], part["total_lines"]) == ("one\ntwo\n", 1, 3, 4)
    assert "only 4 lines" in tools.files("read", path, start_line=9)["hint"]
    assert tools.files("replace", path, content="t", target="T")["replaced_count"] == 2
    nothing = tools.files("replace", path, content="nowhere", target="")
    assert nothing["replaced_count"] == 0 and "did not appear" in nothing["hint"]
    assert tools.files("read", path)["content"] == "zero\none\nTwo\nThree\n"
    found = tools.files("search", path, content="^T")
    assert (found["matches"], found["line_numbers"]) == (["Two", "Three"], [2, 3])
    tools.files("write", f"{place}/bytes", content=base64.b64encode(b"\xff\x00").decode(), encoding="base64")
    assert tools.live.output(f"od -An -tx1 {place}/bytes").split() == ["ff", "00"]


def test_files_that_can_not_be_used_say_why(tools: Tools, place: str) -> None:
    missing = tools.error("sandbox_file_operations", action="read", path=f"{place}/none")
    assert "does not exist" in missing and "Hint:" in missing
    tools.live.bash(f"printf '\\377\\376' > {place}/binary")
    assert "sandbox_convert_to_markdown" in tools.error("sandbox_file_operations", action="read", path=f"{place}/binary")
    assert "content" in tools.error("sandbox_file_operations", action="write", path=f"{place}/x")
    assert "target" in tools.error("sandbox_file_operations", action="replace", path=f"{place}/x", content="a")
    assert "regular expression" in tools.error(
        "sandbox_file_operations", action="search", path=f"{place}/binary", content="("
    )
    assert "root" in tools.error("sandbox_file_operations", action="list", path="/root", sudo=True)
    assert "sudo: true" in tools.error("sandbox_file_operations", action="read", path="/etc/shadow")
    assert "root" in tools.files("read", "/etc/shadow", sudo=True)["content"]


def test_files_are_found_by_name_and_by_content(tools: Tools, place: str) -> None:
    for name in ("a.py", "b.md", ".hidden", "sub/c.py", "sub/deep/d.py"):
        tools.files("write", f"{place}/{name}", content=f"in {name}\nneedle\n")

    def names(result: dict[str, Any]) -> list[str]:
        paths = [entry if isinstance(entry, str) else entry["path"] for entry in result["files"]]
        return [path.removeprefix(f"{place}/") for path in paths]

    assert names(tools.files("find", place, pattern="a.py")) == ["a.py"]
    assert names(tools.files("find", place, pattern="*.py")) == ["a.py"]
    assert names(tools.files("find", place, pattern="*.py", recursive=True)) == ["a.py", "sub/c.py", "sub/deep/d.py"]
    nothing = tools.files("find", place, pattern="d.py")
    assert nothing["files"] == [] and "recursive" in nothing["hint"]
    globbed = tools.files("glob", place, pattern="**/*.py")
    assert names(globbed) == ["a.py", "sub/c.py", "sub/deep/d.py"] and globbed["files"][0]["size"] > 0
    listed = tools.files("list", place)
    assert names(listed) == ["a.py", "b.md", "sub"] and listed["total_count"] == 3
    assert {entry["name"]: entry["extension"] for entry in listed["files"]} == {"a.py": ".py", "b.md": ".md", "sub": ""}
    assert ".hidden" in names(tools.files("list", place, show_hidden=True))
    assert names(tools.files("list", place, recursive=True, file_types=["py"])) == ["a.py", "sub/c.py", "sub/deep/d.py"]
    lines = tools.files("grep", place, pattern="need.e", file_types=[".py"])
    assert [(m["file"].removeprefix(f"{place}/"), m["line_number"]) for m in lines["matches"]] == [
        ("a.py", 2), ("sub/c.py", 2), ("sub/deep/d.py", 2),
    ]
    assert tools.files("grep", place, pattern="needle", recursive=False)["match_count"] == 2


def test_paths_are_those_of_the_users_commands(tools: Tools) -> None:
    tools.files("write", "relative.txt", content="x")
    assert "/home/gem/relative.txt" in [entry["path"] for entry in tools.files("list", ".")["files"]]
    assert tools.files("read", "~/relative.txt")["content"] == "x"
    tools.live.bash("rm ~/relative.txt")


def test_large_files_are_read_in_parts(tools: Tools, place: str) -> None:
    tools.live.bash(f"seq 1 20000 > {place}/numbers; head -c {MORE_THAN_SHOWN} /dev/zero | tr '\\0' x > {place}/line")
    at, pages = 0, 0
    seen: list[str] = []
    while True:
        part = tools.files("read", f"{place}/numbers", start_line=at)
        assert len(part["content"]) <= 30_000 and part["total_lines"] == 20_000
        seen += part["content"].splitlines()
        at, pages = part["end_line"], pages + 1
        if not part["truncated"]:
            break
        assert f"start_line {at}" in part["hint"] and "of 20000" in part["hint"]
    assert seen == [str(n) for n in range(1, 20_001)] and pages > 2
    line = tools.files("read", f"{place}/line")
    assert len(line["content"]) == 30_000 and line["truncated"] and "line 0" in line["hint"]
    listed = tools.files("search", f"{place}/numbers", content="1")
    assert listed["truncated"] and len(listed["matches"]) == len(listed["line_numbers"]) and "narrower" in listed["hint"]


# sandbox_str_replace_editor


def test_the_editor_refuses_what_exists_and_says_what_to_do(tools: Tools, place: str) -> None:
    path = f"{place}/a.py"
    made = tools.edit("create", path, file_text="one\ntwo\nthree\n")
    assert "created" in made["output"] and made["prev_exist"] is False
    refused = tools.error("sandbox_str_replace_editor", command="create", path=path, file_text="new\n")
    assert "exists already" in refused and "overwrite: true" in refused and "str_replace" in refused
    assert tools.files("read", path)["content"] == "one\ntwo\nthree\n"
    over = tools.edit("create", path, file_text="new\n", overwrite=True)
    assert over["prev_exist"] is True and tools.files("read", path)["content"] == "new\n"
    tools.edit("undo_edit", path)
    assert tools.files("read", path)["content"] == "one\ntwo\nthree\n"
    gone = tools.edit("undo_edit", path)
    assert "deleted" in gone["output"]
    assert "does not exist" in tools.error("sandbox_file_operations", action="read", path=path)
    assert "undo" in tools.error("sandbox_str_replace_editor", command="undo_edit", path=path)


def test_the_editor_changes_text(tools: Tools, place: str) -> None:
    path = f"{place}/b.py"
    tools.edit("create", path, file_text="one\ntwo\ntwo\n")
    twice = tools.error("sandbox_str_replace_editor", command="str_replace", path=path, old_str="two", new_str="2")
    assert "not unique" in twice and "lines 2, 3" in twice
    none = tools.error("sandbox_str_replace_editor", command="str_replace", path=path, old_str="ten", new_str="2")
    assert "did not appear" in none
    assert "1\tONE" in tools.edit("str_replace", path, old_str="one", new_str="ONE")["output"]
    tools.edit("insert", path, insert_line=1, new_str="half")
    tools.edit("str_replace", path, old_str="two", new_str="2", replace_mode="ALL")
    assert tools.files("read", path)["content"] == "ONE\nhalf\n2\n2\n"
    viewed = tools.edit("view", path, view_range=[2, 3])["output"]
    assert "     2\thalf\n     3\t2\n" in viewed and "ONE" not in viewed
    assert "b.py" in tools.edit("view", place)["output"]
    assert "old_str" in tools.error("sandbox_str_replace_editor", command="str_replace", path=path)
    assert "view_range" in tools.error("sandbox_str_replace_editor", command="view", path=path, view_range=[9, 10])


def test_a_view_of_a_large_file_says_how_to_go_on(tools: Tools, place: str) -> None:
    tools.live.bash(f"seq 1 20000 > {place}/numbers")
    viewed = tools.edit("view", f"{place}/numbers")["output"]
    cut = re.search(r"\[cut: lines (\d+) to 20000 of 20000 are not shown; ask for them with view_range\]", viewed)
    assert cut and len(viewed) <= 30_000
    assert f"\t{cut[1]}\n" in tools.edit("view", f"{place}/numbers", view_range=[int(cut[1]), -1])["output"]


# sandbox_convert_to_markdown, sandbox_load_skill


def test_documents_become_markdown(tools: Tools, place: str) -> None:
    tools.files("write", f"{place}/page.html", content="<h1>Title</h1><p>A <b>bold</b> word</p>")
    for uri in (f"file://{place}/page.html", f"{place}/page.html", "data:text/html,<h1>Title</h1><p>A <b>bold</b> word</p>"):
        text = tools.result("sandbox_convert_to_markdown", uri=uri)["content"][0]["text"]
        assert "# Title" in text and "**bold**" in text, text
    tools.files("write", f"{place}/long.txt", content="word " * 20_000)
    long = tools.result("sandbox_convert_to_markdown", uri=f"{place}/long.txt")["content"][0]["text"]
    assert len(long) < 31_000 and "/tmp/tool-output/" in long
    assert "does not exist" in tools.error("sandbox_convert_to_markdown", uri=f"file://{place}/none.pdf")
    assert "http" in tools.error("sandbox_convert_to_markdown", uri="ftp://x/y")
    by_alias = tools.live.http.post("/v1/mcp/markitdown/tools/convert_to_markdown", json={"uri": f"{place}/page.html"})
    assert "# Title" in by_alias.json()["data"]["content"][0]["text"]


def test_skills_are_loaded_by_name(tools: Tools, place: str) -> None:
    skill = "---\nname: brew-tea\ndescription: Makes tea\n---\n# Tea\nBoil water.\n"
    tools.files("write", f"{place}/brew-tea/SKILL.md", content=skill)
    registered = tools.live.http.post("/v1/skills/register", files={"path": (None, place)})
    assert registered.json()["success"], registered.text
    loaded = tools.ok("sandbox_load_skill", name="brew-tea")
    assert loaded["content"] == "# Tea\nBoil water.\n" and loaded["path"] == f"{place}/brew-tea"
    unknown = tools.error("sandbox_load_skill", name="brew-coffee")
    assert "brew-coffee" in unknown and "registered are: brew-tea" in unknown
