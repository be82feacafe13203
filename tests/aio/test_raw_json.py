"""What no SDK sends but clients do: empty bodies, wrong types, unknown fields, malformed JSON, nulls, huge bodies."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

JSON = {"content-type": "application/json"}

#: Calls whose every field may be left out.
OPTIONAL = ["/v1/shell/sessions/create", "/v1/bash/sessions/create"]

#: A body that works for each call that needs one.
VALID: dict[str, dict[str, Any]] = {
    "/v1/shell/exec": {"command": "true"},
    "/v1/bash/exec": {"command": "true"},
    "/v1/file/read": {"file": "/etc/hostname"},
    "/v1/file/write": {"file": "/tmp/raw-json", "content": "x"},
    "/v1/file/replace": {"file": "/tmp/raw-json", "old_str": "a", "new_str": "b"},
    "/v1/file/search": {"file": "/etc/hostname", "regex": "x"},
    "/v1/file/find": {"path": "/etc", "glob": "hostname"},
    "/v1/file/list": {"path": "/etc"},
    "/v1/file/str_replace_editor": {"command": "view", "path": "/etc/hostname"},
}

WRONG_TYPES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/shell/exec", {"command": 5}, "command"),
    ("/v1/shell/exec", {"command": "true", "timeout": "soon"}, "timeout"),
    ("/v1/shell/exec", {"command": "true", "async_mode": []}, "async_mode"),
    ("/v1/shell/view", {"id": 7}, "id"),
    ("/v1/shell/write", {"id": "x", "input": "y", "press_enter": {}}, "press_enter"),
    ("/v1/bash/exec", {"command": ["ls"]}, "command"),
    ("/v1/bash/exec", {"command": "true", "env": "A=1"}, "env"),
    ("/v1/bash/output", {"session_id": "x", "offset": "far"}, "offset"),
    ("/v1/file/read", {"file": {}}, "file"),
    ("/v1/file/read", {"file": "/etc/hostname", "start_line": "one"}, "start_line"),
    ("/v1/file/write", {"file": "/tmp/x", "content": 1}, "content"),
    ("/v1/file/write", {"file": "/tmp/x", "content": "x", "encoding": "utf-77"}, "encoding"),
    ("/v1/file/list", {"path": 1}, "path"),
    ("/v1/file/str_replace_editor", {"command": "view", "path": "/etc", "view_range": "1-2"}, "view_range"),
    ("/v1/file/str_replace_editor", {"command": "fly", "path": "/etc"}, "command"),
]


def refused(answer: httpx.Response, field: str | None = None) -> None:
    """422 in both shapes: the declared `detail` and the envelope with `errors`."""
    assert answer.status_code == 422, answer.text
    body = answer.json()
    assert body["success"] is False
    assert body["message"]
    assert body["data"] is None
    assert isinstance(body["errors"], list) and body["errors"]
    for entry in body["detail"]:
        assert isinstance(entry["loc"], list)
        assert isinstance(entry["msg"], str)
        assert isinstance(entry["type"], str)
    if field:
        assert field in json.dumps(body["detail"]), body


class TestBodies:
    @pytest.mark.parametrize("path", OPTIONAL)
    def test_an_empty_body_is_an_empty_object(self, http: httpx.Client, path: str) -> None:
        for content in (b"", b"{}", b"  "):
            answer = http.post(path, content=content, headers=JSON)
            assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text
        assert http.post(path).status_code == 200

    @pytest.mark.parametrize("path", VALID)
    def test_a_missing_field_is_named(self, http: httpx.Client, path: str) -> None:
        field = next(iter(VALID[path]))
        body = {key: value for key, value in VALID[path].items() if key != field}
        refused(http.post(path, json=body), field)
        refused(http.post(path, content=b"", headers=JSON), field)

    @pytest.mark.parametrize(("path", "body", "field"), WRONG_TYPES, ids=[f"{p}:{f}" for p, _, f in WRONG_TYPES])
    def test_a_wrong_type_is_named(self, http: httpx.Client, path: str, body: dict[str, Any], field: str) -> None:
        refused(http.post(path, json=body), field)

    @pytest.mark.parametrize("path", VALID)
    def test_unknown_fields_are_ignored(self, http: httpx.Client, path: str) -> None:
        http.post("/v1/file/write", json=VALID["/v1/file/write"])
        answer = http.post(path, json={**VALID[path], "from_the_future": {"x": [1]}})
        assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/shell/exec", {"command": "true", "id": None, "exec_dir": None, "timeout": None, "hard_timeout": None,
                                "no_change_timeout": None, "strict": None, "preserve_symlinks": None}),
            ("/v1/bash/exec", {"command": "true", "session_id": None, "exec_dir": None, "env": None, "timeout": None,
                               "hard_timeout": None}),
            ("/v1/bash/sessions/create", {"session_id": None, "exec_dir": None, "snapshot_path": None}),
            ("/v1/shell/sessions/create", {"exec_dir": None, "no_change_timeout": None, "preserve_symlinks": None}),
            ("/v1/file/read", {"file": "/etc/hostname", "start_line": None, "end_line": None, "sudo": None}),
            ("/v1/file/write", {"file": "/tmp/raw-json", "content": "x", "encoding": None, "append": None,
                                "leading_newline": None, "trailing_newline": None, "sudo": None}),
            ("/v1/file/list", {"path": "/etc", "recursive": None, "show_hidden": None, "file_types": None, "max_depth": None,
                               "include_size": None, "include_permissions": None, "sort_by": None, "sort_desc": None}),
            ("/v1/file/str_replace_editor", {"command": "view", "path": "/etc/hostname", "view_range": None,
                                             "old_str": None, "replace_mode": None, "enable_metadata": None}),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_null_is_absent(self, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
        answer = http.post(path, json=body)
        assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text

    @pytest.mark.parametrize("content", [b"{", b"[1]", b"null", b'"text"', b"\xff\xfe", b"{}{}", b"[" * 100_000])
    @pytest.mark.parametrize("path", ["/v1/bash/exec", "/v1/shell/exec", "/v1/file/read"])
    def test_malformed_json(self, http: httpx.Client, path: str, content: bytes) -> None:
        refused(http.post(path, content=content, headers=JSON))

    def test_json_without_its_content_type(self, http: httpx.Client) -> None:
        answer = http.post("/v1/bash/exec", content=b'{"command": "echo x"}')
        assert answer.json()["data"]["stdout"] == "x\n"

    def test_lone_surrogates(self, http: httpx.Client) -> None:
        answer = http.post("/v1/bash/exec", content=b'{"command": "echo \\ud800"}', headers=JSON)
        assert answer.status_code in (200, 422)

    def test_numbers_out_of_all_bounds(self, http: httpx.Client) -> None:
        for timeout in ("1e400", "-1", "1e18", "NaN"):
            body = '{"command": "echo x", "timeout": %s}' % timeout
            answer = http.post("/v1/bash/exec", content=body.encode(), headers=JSON)
            assert answer.status_code in (200, 400, 422), (timeout, answer.text)
        answer = http.post("/v1/bash/output", json={"session_id": "x", "offset": -5})
        assert answer.status_code in (404, 422)

    def test_nul_in_a_command(self, http: httpx.Client) -> None:
        answer = http.post("/v1/bash/exec", json={"command": "echo a\0b"})
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        assert answer.status_code != 200 or answer.json()["success"] is False

    def test_a_command_longer_than_the_kernel_takes(self, http: httpx.Client) -> None:
        # One argument may have 128 KiB; a script of this size has to reach bash some other way, or be refused.
        answer = http.post("/v1/bash/exec", json={"command": "true #" + "x" * 300_000})
        assert answer.status_code in (200, 400, 413, 422), answer.text
        if answer.status_code == 200 and answer.json()["success"]:
            assert answer.json()["data"]["exit_code"] == 0

    def test_a_null_in_env(self, http: httpx.Client) -> None:
        answer = http.post("/v1/bash/exec", json={"command": "true", "env": {"A": None}})
        assert answer.status_code in (200, 422)


class TestRoutes:
    def test_wrong_method(self, http: httpx.Client) -> None:
        answer = http.get("/v1/bash/exec")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        body = answer.json()
        assert body["success"] is False and "/v1/bash/exec takes POST" in body["message"] and "/v1/docs" in body["hint"]

    def test_unknown_route(self, http: httpx.Client) -> None:
        for path in ("/v1/no/such/route", "/v1/bash/nothing", "/v1/file/nothing"):
            answer = http.get(path)
            body = answer.json()
            assert answer.status_code == 404 and body["success"] is False
            assert path in body["message"] and "/v1/docs" in body["hint"]

    def test_success_envelope(self, http: httpx.Client) -> None:
        body = http.post("/v1/bash/exec", json={"command": "true"}).json()
        assert {"success", "message", "data", "hint"} <= body.keys()


class TestSizes:
    def test_json_of_ten_megabytes_is_taken(self, http: httpx.Client) -> None:
        body = {"file": "/tmp/raw-json-big", "content": "x" * 10_000_000}
        answer = http.post("/v1/file/write", json=body)
        assert answer.json()["data"]["bytes_written"] == 10_000_000

    def test_json_above_its_bound_is_413(self, http: httpx.Client) -> None:
        answer = http.post("/v1/file/write", json={"file": "/tmp/raw-json-big", "content": "x" * (33 << 20)})
        assert answer.status_code == 413
        assert answer.json()["success"] is False
