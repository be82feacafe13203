"""str_replace_editor: 1-based lines, unique matches, an undo of many levels, and the error texts clients match on."""

from __future__ import annotations

from typing import Any

import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError


class Editor:
    def __init__(self, client: Client, path: str):
        self.client, self.path = client, path

    def __call__(self, command: str, **arguments: Any) -> Any:
        answer = self.client.file.str_replace_editor(command=command, path=arguments.pop("path", self.path), **arguments)
        assert answer.success is True, answer
        return answer.data

    def fails(self, command: str, **arguments: Any) -> str:
        try:
            answer = self.client.file.str_replace_editor(command=command, path=arguments.pop("path", self.path), **arguments)
        except ApiError as error:
            assert error.status_code in (400, 422), error
            return str(error.body)
        assert answer.success is False, answer
        return answer.message

    def content(self) -> str:
        return self.client.file.read_file(file=self.path).data.content


@pytest.fixture
def editor(client: Client, folder: str) -> Editor:
    return Editor(client, f"{folder}/f.txt")


FIVE = "one\ntwo\nthree\nfour\nfive\n"


class TestCreate:
    def test_create(self, editor: Editor) -> None:
        result = editor("create", file_text=FIVE)
        assert result.path == editor.path
        assert result.prev_exist is False
        assert editor.content() == FIVE

    def test_create_over_an_existing_file_is_refused(self, editor: Editor) -> None:
        editor("create", file_text="first")
        assert "exists" in editor.fails("create", file_text="second")
        assert editor.content() == "first"

    def test_create_without_text(self, editor: Editor) -> None:
        assert "file_text" in editor.fails("create")


class TestView:
    def test_numbers_the_lines_from_one(self, editor: Editor) -> None:
        editor("create", file_text=FIVE)
        output = editor("view").output
        assert "1\tone" in output
        assert "5\tfive" in output

    def test_range_is_one_based_and_inclusive(self, editor: Editor) -> None:
        editor("create", file_text=FIVE)
        output = editor("view", view_range=[2, 3]).output
        assert "2\ttwo" in output and "3\tthree" in output
        assert "one" not in output and "four" not in output
        output = editor("view", view_range=[4, -1]).output
        assert "4\tfour" in output and "5\tfive" in output and "three" not in output

    @pytest.mark.parametrize("view_range", [[0, 2], [4, 2], [1], [1, 2, 3], [99, 100]])
    def test_bad_ranges(self, editor: Editor, view_range: list[int]) -> None:
        editor("create", file_text=FIVE)
        assert "view_range" in editor.fails("view", view_range=view_range)

    def test_a_directory_is_listed(self, editor: Editor, folder: str) -> None:
        editor("create", file_text="x")
        assert "f.txt" in editor("view", path=folder).output

    def test_missing(self, editor: Editor) -> None:
        assert "does not exist" in editor.fails("view")


class TestReplace:
    def test_unique(self, editor: Editor) -> None:
        editor("create", file_text=FIVE)
        result = editor("str_replace", old_str="two\nthree", new_str="2\n3")
        assert result.prev_exist is True
        assert (result.old_content, result.new_content) == (FIVE, "one\n2\n3\nfour\nfive\n")
        assert editor.content() == "one\n2\n3\nfour\nfive\n"

    def test_without_new_str_it_deletes(self, editor: Editor) -> None:
        editor("create", file_text=FIVE)
        editor("str_replace", old_str="two\n")
        assert editor.content() == "one\nthree\nfour\nfive\n"

    def test_not_found_and_not_unique_by_their_words(self, editor: Editor) -> None:
        editor("create", file_text="a b a")
        assert "did not appear" in editor.fails("str_replace", old_str="z", new_str="y")
        message = editor.fails("str_replace", old_str="a", new_str="y")
        assert "multiple" in message.lower() or "not unique" in message.lower()
        assert editor.content() == "a b a"

    @pytest.mark.parametrize(("mode", "after"), [("ALL", "y b y b y"), ("FIRST", "y b a b a"), ("LAST", "a b a b y")])
    def test_modes(self, editor: Editor, mode: str, after: str) -> None:
        editor("create", file_text="a b a b a")
        editor("str_replace", old_str="a", new_str="y", replace_mode=mode)
        assert editor.content() == after

    def test_text_is_not_a_pattern(self, editor: Editor) -> None:
        editor("create", file_text="a+b (c) $1 \\d")
        editor("str_replace", old_str="(c) $1 \\d", new_str="\\1 & $0")
        assert editor.content() == "a+b \\1 & $0"

    def test_missing_arguments(self, editor: Editor) -> None:
        editor("create", file_text="a")
        assert "old_str" in editor.fails("str_replace", new_str="b")
        assert "does not exist" in editor.fails("str_replace", path=editor.path + ".no", old_str="a", new_str="b")


class TestInsert:
    @pytest.mark.parametrize(
        ("line", "after"),
        [(0, "new\n" + FIVE), (2, "one\ntwo\nnew\nthree\nfour\nfive\n"), (5, FIVE + "new\n")],
    )
    def test_after_that_line(self, editor: Editor, line: int, after: str) -> None:
        editor("create", file_text=FIVE)
        editor("insert", insert_line=line, new_str="new")
        assert editor.content().rstrip("\n") == after.rstrip("\n")

    @pytest.mark.parametrize("line", [-1, 6, 1000])
    def test_outside_the_file(self, editor: Editor, line: int) -> None:
        editor("create", file_text=FIVE)
        assert "insert_line" in editor.fails("insert", insert_line=line, new_str="new")
        assert editor.content() == FIVE

    def test_missing_arguments(self, editor: Editor) -> None:
        editor("create", file_text=FIVE)
        assert "insert_line" in editor.fails("insert", new_str="x")
        assert "new_str" in editor.fails("insert", insert_line=1)


class TestUndo:
    def test_many_levels(self, editor: Editor) -> None:
        editor("create", file_text="v0")
        for i in range(1, 6):
            editor("str_replace", old_str=f"v{i - 1}", new_str=f"v{i}")
        for i in range(4, -1, -1):
            editor("undo_edit")
            assert editor.content() == f"v{i}"

    def test_nothing_to_undo(self, editor: Editor, client: Client) -> None:
        client.file.write_file(file=editor.path, content="x")
        assert editor.fails("undo_edit")
        assert editor.content() == "x"

    def test_histories_are_per_file(self, editor: Editor) -> None:
        other = editor.path + ".other"
        editor("create", file_text="a0")
        editor("create", path=other, file_text="b0")
        editor("str_replace", old_str="a0", new_str="a1")
        editor("str_replace", path=other, old_str="b0", new_str="b1")
        editor("undo_edit")
        assert editor.content() == "a0"
        assert editor.client.file.read_file(file=other).data.content == "b1"


def test_an_unknown_command_is_refused(editor: Editor) -> None:
    assert editor.fails("rename")
