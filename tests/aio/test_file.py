"""file: read, write, replace, search, find, list, upload, download; 0-based lines; failures that both SDKs parse."""

from __future__ import annotations

import base64
import email
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from agent_sandbox.core.request_options import RequestOptions


def write(client: Client, path: str, content: str, **arguments: Any) -> Any:
    answer = client.file.write_file(file=path, content=content, **arguments)
    assert answer.success is True, answer
    return answer.data


def read(client: Client, path: str, **arguments: Any) -> str:
    answer = client.file.read_file(file=path, **arguments)
    assert answer.success is True, answer
    assert answer.data.file == path
    return answer.data.content


def sh(client: Client, command: str) -> str:
    result = client.bash.exec(command=command).data
    assert result.exit_code == 0, result
    return result.stdout or ""


class TestWriteAndRead:
    @pytest.mark.parametrize("content", ["", "one line", "two\nlines\n", "crlf\r\nkept\r\n", "漢字 🦀 \u0000 nul", "\ufeffbom"])
    def test_round_trip(self, client: Client, folder: str, content: str) -> None:
        result = write(client, f"{folder}/f", content)
        assert result.file == f"{folder}/f"
        assert result.bytes_written == len(content.encode())
        assert read(client, f"{folder}/f") == content

    def test_missing_parents_are_made(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/a/b/c/f", "deep")
        assert read(client, f"{folder}/a/b/c/f") == "deep"

    def test_overwrite_and_append(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "long content")
        write(client, f"{folder}/f", "short")
        assert read(client, f"{folder}/f") == "short"
        write(client, f"{folder}/f", "+more", append=True)
        assert read(client, f"{folder}/f") == "short+more"

    def test_append_makes_the_file(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/new", "x", append=True)
        assert read(client, f"{folder}/new") == "x"

    def test_newlines_around(self, client: Client, folder: str) -> None:
        result = write(client, f"{folder}/f", "x", leading_newline=True, trailing_newline=True)
        assert result.bytes_written == 3
        assert read(client, f"{folder}/f") == "\nx\n"

    def test_base64(self, client: Client, folder: str) -> None:
        data = bytes(range(256)) * 3
        result = write(client, f"{folder}/b", base64.b64encode(data).decode(), encoding="base64")
        assert result.bytes_written == len(data)
        assert b"".join(client.file.download_file(path=f"{folder}/b")) == data

    def test_raw_is_one_byte_a_character(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/r", "".join(map(chr, range(256))), encoding="raw")
        assert b"".join(client.file.download_file(path=f"{folder}/r")) == bytes(range(256))

    def test_bad_base64_writes_nothing(self, client: Client, http: httpx.Client, folder: str) -> None:
        answer = http.post("/v1/file/write", json={"file": f"{folder}/x", "content": "%%%", "encoding": "base64"})
        assert answer.status_code in (200, 400, 422)
        assert answer.json()["success"] is False
        assert client.file.read_file(file=f"{folder}/x").success is False

    def test_lines_are_zero_based_and_the_end_is_exclusive(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "l0\nl1\nl2\nl3\n")
        assert read(client, f"{folder}/f", start_line=1, end_line=3).rstrip("\n") == "l1\nl2"
        assert read(client, f"{folder}/f", start_line=2).rstrip("\n") == "l2\nl3"
        assert read(client, f"{folder}/f", end_line=1).rstrip("\n") == "l0"
        assert read(client, f"{folder}/f", start_line=3, end_line=100).rstrip("\n") == "l3"
        assert read(client, f"{folder}/f", start_line=100) == ""
        assert read(client, f"{folder}/f", start_line=2, end_line=2) == ""

    def test_a_write_keeps_mode_and_owner(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/s.sh", "#!/bin/sh\necho 1\n")
        sh(client, f"chmod 750 {folder}/s.sh")
        write(client, f"{folder}/s.sh", "#!/bin/sh\necho 2\n")
        assert sh(client, f"stat -c %a {folder}/s.sh; {folder}/s.sh") == "750\n2\n"

    def test_a_write_goes_through_a_link_and_keeps_it(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/real", "old")
        sh(client, f"ln -s real {folder}/link")
        write(client, f"{folder}/link", "new")
        assert sh(client, f"readlink {folder}/link; cat {folder}/real") == "real\nnew"

    def test_new_files_belong_to_the_user_of_commands(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/d/f", "x")
        assert sh(client, f"stat -c %u {folder}/d {folder}/d/f; id -u").split() == [sh(client, "id -u").strip()] * 3

    def test_writes_are_atomic(self, client: Client, folder: str) -> None:
        path = f"{folder}/f"
        contents = [f"{i}" * 200_000 for i in range(4)]
        write(client, path, contents[0])

        def writer(i: int) -> None:
            for _ in range(5):
                write(client, path, contents[i])

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(writer, i) for i in range(4)]
            while not all(job.done() for job in jobs):
                assert read(client, path) in contents
            for job in jobs:
                job.result()
        assert sh(client, f"ls -A {folder}") == "f\n", "nothing temporary is left behind"

    def test_relative_paths_start_in_the_default_directory(self, client: Client) -> None:
        home = sh(client, "pwd").strip()
        name = f"relative-{os.urandom(4).hex()}"
        assert client.file.write_file(file=name, content="here").success
        assert sh(client, f"cat {home}/{name}; rm {home}/{name}") == "here"

    def test_a_large_file(self, client: Client, folder: str) -> None:
        content = "0123456789abcde\n" * 500_000
        assert write(client, f"{folder}/big", content).bytes_written == 8_000_000
        assert read(client, f"{folder}/big", start_line=499_999).rstrip("\n") == "0123456789abcde"
        assert sh(client, f"sha256sum < {folder}/big").split()[0] == hashlib.sha256(content.encode()).hexdigest()


#: Each call with a path that is not there, and the keys that the result's type requires.
MISSING = [
    ("read", {"file": "/no/such/file"}, {"content", "file"}),
    ("replace", {"file": "/no/such/file", "old_str": "a", "new_str": "b"}, {"file"}),
    ("search", {"file": "/no/such/file", "regex": "x"}, {"file"}),
    ("find", {"path": "/no/such/dir", "glob": "*"}, {"path"}),
    ("list", {"path": "/no/such/dir"}, {"path"}),
    ("str_replace_editor", {"command": "view", "path": "/no/such/file"}, {"output", "path", "prev_exist"}),
    ("write", {"file": "/proc/version", "content": "x"}, {"file"}),
]
ERROR_TYPES = {
    "not_found",
    "permission_denied",
    "invalid_target",
    "already_exists",
    "invalid_path",
    "read_only_filesystem",
    "no_space_left",
    "decode_error",
    "io_error",
}


class TestFailures:
    @pytest.mark.parametrize(("call", "body", "required"), MISSING, ids=[m[0] for m in MISSING])
    def test_the_body_is_error_and_result_in_one(
        self, http: httpx.Client, call: str, body: dict[str, Any], required: set[str]
    ) -> None:
        answer = http.post(f"/v1/file/{call}", json=body)
        assert answer.status_code == 200, answer.text
        envelope = answer.json()
        assert envelope["success"] is False
        data = envelope["data"]
        # FileOperationError of the newer SDK …
        assert {"path", "operation", "message", "error_type"} <= data.keys()
        assert data["error_type"] in ERROR_TYPES
        assert isinstance(data["retryable"], bool)
        # … and the result's own keys, without which 0.0.30 raises.
        assert required <= data.keys()
        if call != "write":
            assert data["error_type"] == "not_found"
            assert data["errno"] == 2
            assert data["errno_name"] == "ENOENT"

    def test_the_sdk_returns_them(self, client: Client) -> None:
        read = client.file.read_file(file="/no/such/file")
        assert (read.success, read.data.error_type) == (False, "not_found")
        assert "No such file or directory: '/no/such/file'" in read.message
        assert "[Errno 2]" in read.message
        assert client.file.replace_in_file(file="/no/such/file", old_str="a", new_str="b").success is False
        assert client.file.search_in_file(file="/no/such/file", regex="x").success is False
        assert client.file.find_files(path="/no/such/dir", glob="*").success is False
        assert client.file.list_path(path="/no/such/dir").success is False
        assert client.file.str_replace_editor(command="view", path="/no/such/file").success is False

    def test_reading_a_directory(self, client: Client, folder: str) -> None:
        answer = client.file.read_file(file=folder)
        assert (answer.success, answer.data.error_type) == (False, "invalid_target")

    def test_writing_over_a_directory(self, client: Client, folder: str) -> None:
        answer = client.file.write_file(file=folder, content="x")
        assert (answer.success, answer.data.error_type) == (False, "invalid_target")

    def test_a_file_as_a_parent(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "x")
        answer = client.file.write_file(file=f"{folder}/f/child", content="x")
        assert answer.success is False
        assert answer.data.error_type in ("invalid_target", "invalid_path")

    def test_reading_binary_is_a_decode_error(self, client: Client, folder: str) -> None:
        sh(client, f"printf '\\xff\\xfe\\x00\\x80' > {folder}/b")
        answer = client.file.read_file(file=f"{folder}/b")
        assert (answer.success, answer.data.error_type) == (False, "decode_error")

    def test_special_files_do_not_hang(self, client: Client, folder: str) -> None:
        sh(client, f"mkfifo {folder}/pipe")
        options = RequestOptions(timeout_in_seconds=20)
        assert client.file.read_file(file=f"{folder}/pipe", request_options=options).success is False
        assert client.file.write_file(file=f"{folder}/pipe", content="x", request_options=options).success is False
        assert client.file.read_file(file="/dev/zero", request_options=options).success is False

    def test_a_loop_of_links(self, client: Client, folder: str) -> None:
        sh(client, f"ln -s b {folder}/a; ln -s a {folder}/b")
        assert client.file.read_file(file=f"{folder}/a").success is False

    @pytest.mark.parametrize("path", ["", "/tmp/nul\0byte", "/" + "a" * 5000])
    def test_paths_that_can_not_be(self, client: Client, path: str) -> None:
        try:
            answer = client.file.read_file(file=path)
            assert answer.success is False
            assert answer.data.error_type in ("invalid_path", "not_found", "invalid_target")
        except ApiError as error:
            assert error.status_code in (400, 422)

    def test_permissions_hold_without_sudo_and_yield_to_it(self, server: Any, client: Client, folder: str) -> None:
        assert sh(client, "id -un") == "gem\n"
        assert client.file.read_file(file="/etc/shadow").data.error_type == "permission_denied"
        assert "root" in read(client, "/etc/shadow", sudo=True)
        path = "/etc/arenite-test"
        assert client.file.write_file(file=path, content="x").data.error_type == "permission_denied"
        write(client, path, "by root", sudo=True)
        assert sh(client, f"stat -c %U {path}") == "root\n"
        assert client.file.replace_in_file(file=path, old_str="by", new_str="for").data.error_type == "permission_denied"
        assert client.file.replace_in_file(file=path, old_str="by", new_str="for", sudo=True).data.replaced_count == 1
        sh(client, f"sudo chmod 600 {path}")
        assert client.file.search_in_file(file=path, regex="for").data.error_type == "permission_denied"
        assert client.file.search_in_file(file=path, regex="for", sudo=True).data.line_numbers == [0]
        sh(client, f"sudo rm {path}")


class TestReplaceAndSearch:
    def test_replace_counts(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "a.b a.b axb")
        result = client.file.replace_in_file(file=f"{folder}/f", old_str="a.b", new_str="$1\\n")
        assert (result.success, result.data.replaced_count) == (True, 2)
        assert read(client, f"{folder}/f") == "$1\\n $1\\n axb"

    def test_replace_of_nothing(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "abc")
        assert client.file.replace_in_file(file=f"{folder}/f", old_str="zzz", new_str="").data.replaced_count == 0
        assert read(client, f"{folder}/f") == "abc"

    def test_replace_of_the_empty_string_is_refused(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "abc")
        try:
            answer = client.file.replace_in_file(file=f"{folder}/f", old_str="", new_str="-")
            assert answer.success is False or answer.data.replaced_count == 0
        except ApiError as error:
            assert error.status_code in (400, 422)
        assert read(client, f"{folder}/f") == "abc"

    def test_search(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "alpha\nbeta 1\ngamma\nbeta 22\n")
        result = client.file.search_in_file(file=f"{folder}/f", regex=r"beta \d+").data
        assert result.file == f"{folder}/f"
        assert [match.strip() for match in result.matches] == ["beta 1", "beta 22"]
        assert result.line_numbers == [1, 3]

    def test_search_without_a_match(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "abc")
        result = client.file.search_in_file(file=f"{folder}/f", regex="zzz")
        assert (result.success, result.data.matches) == (True, [])

    def test_a_bad_regex_says_so(self, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "abc")
        try:
            answer = client.file.search_in_file(file=f"{folder}/f", regex="(unclosed")
            assert answer.success is False
            assert answer.message
        except ApiError as error:
            assert error.status_code in (400, 422)


class TestFindAndList:
    @pytest.fixture
    def tree(self, client: Client, folder: str) -> str:
        sh(client, f"cd {folder}; mkdir -p src/deep .hidden; echo 1234567890 > a.txt; echo > b.py; echo > src/c.py; "
                   "echo > src/deep/d.py; echo > .dot; echo > noext; ln -s b.py link")
        return folder

    def test_find(self, client: Client, tree: str) -> None:
        assert client.file.find_files(path=tree, glob="*.txt").data.files == [f"{tree}/a.txt"]
        found = client.file.find_files(path=tree, glob="**/*.py").data.files
        assert {f"{tree}/src/c.py", f"{tree}/src/deep/d.py"} <= set(found)

    def test_find_by_exact_name(self, client: Client, tree: str) -> None:
        assert client.file.find_files(path=tree, glob="noext").data.files == [f"{tree}/noext"]
        assert client.file.find_files(path=tree, glob="missing").data.files == []

    def test_list(self, client: Client, tree: str) -> None:
        result = client.file.list_path(path=tree).data
        by_name = {file.name: file for file in result.files}
        assert set(by_name) == {"a.txt", "b.py", "src", ".hidden", ".dot", "noext", "link"}
        assert result.total_count == 7
        assert result.directory_count == 2
        assert result.file_count == 5
        assert by_name["src"].is_directory and not by_name["a.txt"].is_directory
        assert by_name["a.txt"].size == 11
        assert by_name["a.txt"].extension == ".txt"
        assert by_name["noext"].extension == ""
        assert by_name["a.txt"].path == f"{tree}/a.txt"

    def test_list_options(self, client: Client, tree: str) -> None:
        def names(**options: Any) -> list[str]:
            return [file.name for file in client.file.list_path(path=tree, **options).data.files]

        assert not [name for name in names(show_hidden=False) if name.startswith(".")]
        recursive = client.file.list_path(path=tree, recursive=True).data.files
        assert f"{tree}/src/deep/d.py" in {file.path for file in recursive}
        shallow = client.file.list_path(path=tree, recursive=True, max_depth=1).data.files
        assert f"{tree}/src/deep/d.py" not in {file.path for file in shallow}
        only = client.file.list_path(path=tree, recursive=True, file_types=[".py"]).data.files
        assert {file.name for file in only if not file.is_directory} == {"b.py", "c.py", "d.py"}
        by_size = [f for f in client.file.list_path(path=tree, sort_by="size", sort_desc=True).data.files if not f.is_directory]
        assert by_size[0].name == "a.txt"
        assert names(sort_by="name", sort_desc=True) == list(reversed(names(sort_by="name")))
        info = client.file.list_path(path=tree, include_permissions=True, include_size=False).data.files
        assert all(file.permissions for file in info)
        assert all(file.size is None for file in info)

    def test_relative_dot(self, client: Client) -> None:
        assert client.file.list_path(path=".").success is True

    def test_list_of_a_file_is_an_error(self, client: Client, tree: str) -> None:
        answer = client.file.list_path(path=f"{tree}/a.txt")
        assert (answer.success, answer.data.error_type) == (False, "invalid_target")

    def test_names_that_are_not_utf8_do_not_break_the_list(self, client: Client, folder: str) -> None:
        sh(client, f"touch {folder}/good \"$(printf '{folder}/bad\\xff')\"")
        assert len(client.file.list_path(path=folder).data.files) == 2


class TestTransfer:
    def test_upload_and_download(self, client: Client, folder: str) -> None:
        data = os.urandom(3_000_000)
        result = client.file.upload_file(file=("name.bin", io.BytesIO(data)), path=f"{folder}/up/name.bin")
        assert result.success
        assert (result.data.file_path, result.data.file_size, result.data.success) == (f"{folder}/up/name.bin", len(data), True)
        assert b"".join(client.file.download_file(path=f"{folder}/up/name.bin")) == data

    def test_upload_of_nothing(self, client: Client, folder: str) -> None:
        assert client.file.upload_file(file=("e", b""), path=f"{folder}/e").data.file_size == 0
        assert b"".join(client.file.download_file(path=f"{folder}/e")) == b""

    def test_the_order_of_the_parts_does_not_matter(self, http: httpx.Client, folder: str) -> None:
        boundary = "b0undary"
        file_part = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nbody\r\n'
        path_part = f'--{boundary}\r\nContent-Disposition: form-data; name="path"\r\n\r\n{folder}/o\r\n'
        for parts in (file_part + path_part, path_part + file_part):
            answer = http.post(
                "/v1/file/upload",
                content=parts + f"--{boundary}--\r\n",
                headers={"content-type": f"multipart/form-data; boundary={boundary}"},
            )
            assert answer.json()["data"]["file_size"] == 4, answer.text

    def test_an_upload_that_breaks_off_leaves_nothing(self, http: httpx.Client, client: Client, folder: str) -> None:
        boundary = "b0undary"
        body = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="path"\r\n\r\n{folder}/half\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nunfinished'
        )
        answer = http.post(
            "/v1/file/upload", content=body, headers={"content-type": f"multipart/form-data; boundary={boundary}"}
        )
        assert answer.json()["success"] is False
        assert sh(client, f"ls -A {folder}") == ""

    def test_upload_without_a_file_part(self, http: httpx.Client, folder: str) -> None:
        answer = http.post("/v1/file/upload", files={"path": (None, f"{folder}/x")})
        assert answer.status_code == 422
        assert "detail" in answer.json()

    def test_download_of_what_is_not_there(self, client: Client, http: httpx.Client, folder: str) -> None:
        with pytest.raises(ApiError) as caught:
            b"".join(client.file.download_file(path=f"{folder}/missing"))
        assert caught.value.status_code == 404
        assert http.get("/v1/file/download", params={"path": folder}).status_code in (400, 404)
        assert http.get("/v1/file/download").status_code == 422

    def test_download_is_raw_bytes(self, http: httpx.Client, client: Client, folder: str) -> None:
        write(client, f"{folder}/page.html", "<script>1</script>")
        answer = http.get("/v1/file/download", params={"path": f"{folder}/page.html"})
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.content == b"<script>1</script>"

    def test_several_ranges_in_one_answer(self, http: httpx.Client, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "0123456789")
        answer = http.get("/v1/file/download", params={"path": f"{folder}/f"}, headers={"range": "bytes=0-1,4-5,-1"})
        assert answer.status_code == 206, answer.text
        kind = answer.headers["content-type"]
        assert kind.startswith("multipart/byteranges; boundary=")
        parsed = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + answer.content)
        parts = [(part["content-range"], part.get_payload()) for part in parsed.get_payload()]
        assert parts == [("bytes 0-1/10", "01"), ("bytes 4-5/10", "45"), ("bytes 9-9/10", "9")]
        assert int(answer.headers["content-length"]) == len(answer.content)

    def test_change_policy_abort_on_a_file_at_rest(self, http: httpx.Client, client: Client, folder: str) -> None:
        write(client, f"{folder}/f", "still")
        answer = http.get("/v1/file/download", params={"path": f"{folder}/f", "change_policy": "abort"})
        assert (answer.status_code, answer.text) == (200, "still")

    def test_a_stream_of_hundreds_of_megabytes(self, http: httpx.Client, client: Client, folder: str) -> None:
        size = 200_000_000

        def blocks() -> Any:
            block = b"\x5a" * 1_000_000
            boundary = b"b0undary"
            yield b"--" + boundary + b'\r\nContent-Disposition: form-data; name="path"\r\n\r\n' + f"{folder}/big\r\n".encode()
            yield b"--" + boundary + b'\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n'
            for _ in range(size // len(block)):
                yield block
            yield b"\r\n--" + boundary + b"--\r\n"

        answer = http.post(
            "/v1/file/upload", content=blocks(), headers={"content-type": "multipart/form-data; boundary=b0undary"}, timeout=120
        )
        assert answer.json()["data"]["file_size"] == size, answer.text
        got = 0
        with http.stream("GET", "/v1/file/download", params={"path": f"{folder}/big"}, timeout=120) as stream:
            for chunk in stream.iter_bytes():
                got += len(chunk)
        assert got == size
