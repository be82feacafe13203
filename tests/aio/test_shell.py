"""shell: a terminal with a lasting bash in it. State stays; output is clean; `timeout` waits, `hard_timeout` stops."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from websockets.sync.client import connect


def run(client: Client, command: str, **arguments: Any) -> Any:
    answer = client.shell.exec_command(command=command, **arguments)
    assert answer.success is True, answer
    return answer.data


def wait_until_done(client: Client, session: str, seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = client.shell.wait_for_process(id=session, seconds=5).data.status
        if status != "running":
            return status
    raise AssertionError(f"session {session} was still running after {seconds} s")


def wait_until_shown(client: Client, session: str, text: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while text not in (shown := client.shell.view(id=session).data.output):
        assert time.monotonic() < deadline, f"no {text!r} in {shown!r}"
        time.sleep(0.05)


class TestExec:
    def test_output_is_what_the_command_wrote(self, client: Client) -> None:
        result = run(client, "echo hello")
        assert (result.output, result.exit_code, result.status) == ("hello", 0, "completed")
        assert result.command == "echo hello"
        assert result.session_id

    @pytest.mark.parametrize(
        ("command", "output"),
        [
            ("printf 'a\\nb\\n'", "a\nb"),
            ("printf x", "x"),
            ("true", ""),
            ("echo '  spaced  '", "  spaced  "),
            ("printf '\\n\\nmiddle\\n'", "\n\nmiddle"),
            ("echo one; echo two >&2", "one\ntwo"),
            ("cat <<'END'\nhere $HOME\nEND", "here $HOME"),
            ("for i in 1 2 3\ndo\n  echo $i\ndone", "1\n2\n3"),
            ("echo \"quote ' in\" 'quote \" in'", "quote ' in quote \" in"),
            ("echo 'dollar $ back\\slash `tick` !bang'", "dollar $ back\\slash `tick` !bang"),
            ("echo ünïcödé 漢字 🦀", "ünïcödé 漢字 🦀"),
            ("# only a comment", ""),
            ("echo last # with a comment", "last"),
            ("printf 'tab\\there'", "tab\there"),
        ],
    )
    def test_neither_prompt_nor_echo_nor_last_newline(self, client: Client, shell_id: str, command: str, output: str) -> None:
        result = run(client, command, id=shell_id)
        assert (result.status, result.exit_code) == ("completed", 0), result
        assert result.output == output

    def test_long_lines_are_not_folded_at_the_terminals_width(self, client: Client, shell_id: str) -> None:
        word = "w" * 3000
        assert run(client, f"echo {word}", id=shell_id).output == word

    def test_a_long_command_line_arrives_whole(self, client: Client, shell_id: str) -> None:
        # Longer than a terminal's 4096 byte line.
        text = "0123456789" * 2000
        assert run(client, f"x={text}; echo ${{#x}}", id=shell_id).output == "20000"

    def test_no_colours_by_default(self, client: Client, shell_id: str, folder: str) -> None:
        run(client, f"mkdir {folder}/sub && touch {folder}/file", id=shell_id)
        assert run(client, f"ls -1 {folder}", id=shell_id).output == "file\nsub"

    @pytest.mark.parametrize(("command", "code"), [("false", 1), ("(exit 42)", 42), ("no-such-command-at-all", 127)])
    def test_failing_is_completed_with_its_code(self, client: Client, command: str, code: int) -> None:
        result = run(client, command)
        assert (result.status, result.exit_code) == ("completed", code)

    def test_console_is_the_transcript(self, client: Client, shell_id: str) -> None:
        run(client, "echo first", id=shell_id)
        result = run(client, "echo second", id=shell_id)
        last = result.console[-1]
        assert (last.command, last.output) == ("echo second", "second")
        assert last.ps_1
        view = client.shell.view(id=shell_id).data
        assert [(r.command, r.output) for r in view.console[-2:]] == [("echo first", "first"), ("echo second", "second")]

    def test_a_session_keeps_directory_variables_and_functions(self, client: Client, shell_id: str, folder: str) -> None:
        run(client, f"cd {folder}; export GREETING=hi; plain=1; f() {{ echo f:$1; }}", id=shell_id)
        result = run(client, "pwd; echo $GREETING $plain; f x; bash -c 'echo $GREETING'", id=shell_id)
        assert result.output == f"{folder}\nhi 1\nf:x\nhi"

    def test_without_id_each_call_has_its_own_session(self, client: Client) -> None:
        first = run(client, "cd /; export MINE=1; echo ok")
        second = run(client, "echo [$MINE]")
        assert first.session_id != second.session_id
        assert second.output == "[]"
        assert run(client, "echo $MINE", id=first.session_id).output == "1"

    def test_background_child_does_not_hold_the_command(self, client: Client, shell_id: str) -> None:
        before = time.monotonic()
        result = run(client, "sleep 120 & echo started", id=shell_id)
        assert result.status == "completed"
        assert "started" in result.output
        assert time.monotonic() - before < 60
        run(client, "kill %1 2>/dev/null; wait 2>/dev/null; true", id=shell_id)

    def test_a_syntax_error_is_an_answer_and_the_session_goes_on(self, client: Client, shell_id: str) -> None:
        result = run(client, "if then fi", id=shell_id, timeout=15)
        assert result.status == "completed"
        assert result.exit_code != 0
        assert run(client, "echo still", id=shell_id).output == "still"

    def test_an_open_quote_does_not_wedge_the_session(self, client: Client, shell_id: str) -> None:
        result = run(client, 'echo "never closed', id=shell_id, timeout=15)
        if result.status == "running":
            client.shell.write_to_process(id=shell_id, input='"', press_enter=True)
            wait_until_done(client, shell_id)
        assert run(client, "echo still", id=shell_id).output == "still"

    def test_exit_ends_no_more_than_the_session(self, client: Client, shell_id: str) -> None:
        result = run(client, "exit 7", id=shell_id, timeout=15)
        assert result.status in ("completed", "terminated")
        # The session is either recreated or known to be gone; never stuck, never an internal error.
        try:
            again = run(client, "echo back", id=shell_id, timeout=15)
            assert again.output == "back"
        except ApiError as error:
            assert error.status_code in (404, 410)
        assert run(client, "echo other").output == "other"

    def test_set_e_in_a_session_does_not_lose_the_answer(self, client: Client, shell_id: str) -> None:
        run(client, "set -e", id=shell_id, timeout=15)
        result = run(client, "false", id=shell_id, timeout=15)
        assert result.status in ("completed", "terminated")

    def test_bytes_that_are_not_utf8(self, client: Client, shell_id: str) -> None:
        result = run(client, "printf 'a\\xff\\xfeb'", id=shell_id)
        assert result.output.startswith("a") and result.output.endswith("b")

    def test_output_that_imitates_control_sequences_does_not_confuse(self, client: Client, shell_id: str) -> None:
        run(client, "printf '\\033]0;title\\007\\033[2J\\033[31mred\\033[0m'", id=shell_id)
        assert run(client, "echo clean", id=shell_id).output == "clean"

    def test_empty_command(self, client: Client, shell_id: str) -> None:
        result = run(client, "", id=shell_id, timeout=15)
        assert (result.status, result.output) == ("completed", "")


class TestDirectories:
    def test_exec_dir(self, client: Client, shell_id: str, folder: str) -> None:
        assert run(client, "pwd", id=shell_id, exec_dir=folder).output == folder

    def test_missing_exec_dir_falls_back_unless_strict(self, client: Client, shell_id: str) -> None:
        usual = run(client, "pwd", id=shell_id).output
        assert run(client, "pwd", id=shell_id, exec_dir="/no/such/dir").output == usual
        assert run(client, "pwd", id=shell_id, exec_dir="/no/such/dir", strict=False).output == usual

    def test_missing_exec_dir_is_an_error_when_strict(self, client: Client, shell_id: str) -> None:
        try:
            answer = client.shell.exec_command(command="echo ran", id=shell_id, exec_dir="/no/such/dir", strict=True)
        except ApiError as error:
            assert 400 <= error.status_code < 500
            message = str(error.body)
        else:
            assert answer.success is False
            message = answer.message
            assert answer.data is None or "ran" not in (answer.data.output or "")
        assert "/no/such/dir" in message

    def test_symlinks_are_resolved_unless_kept(self, client: Client, folder: str) -> None:
        client.bash.exec(command=f"mkdir {folder}/real && ln -s real {folder}/link")
        resolved = run(client, "pwd", exec_dir=f"{folder}/link")
        kept = run(client, "pwd", exec_dir=f"{folder}/link", preserve_symlinks=True)
        assert resolved.output == f"{folder}/real"
        assert kept.output == f"{folder}/link"

    def test_create_session_in_a_directory(self, client: Client, folder: str) -> None:
        session = client.shell.create_session(exec_dir=folder).data
        assert session.working_dir == folder
        assert run(client, "pwd", id=session.session_id).output == folder


class TestClocks:
    def test_timeout_only_stops_waiting(self, client: Client, shell_id: str, folder: str) -> None:
        flag = f"{folder}/go"
        result = run(client, f"echo begun; while [ ! -e {flag} ]; do sleep 0.05; done; echo ended", id=shell_id, timeout=1)
        assert (result.status, result.exit_code) == ("running", None)
        view = client.shell.view(id=shell_id).data
        assert view.status == "running"
        assert "begun" in view.output
        assert client.shell.wait_for_process(id=shell_id, seconds=1).data.status == "running"
        client.bash.exec(command=f"touch {flag}")
        assert wait_until_done(client, shell_id) == "completed"
        view = client.shell.view(id=shell_id).data
        assert "ended" in view.output
        assert view.exit_code == 0

    def test_hard_timeout_stops_the_command_and_keeps_the_session(self, client: Client, shell_id: str) -> None:
        run(client, "kept=yes", id=shell_id)
        result = run(client, "echo before; sleep 300; echo after", id=shell_id, hard_timeout=1)
        assert result.status == "hard_timeout"
        assert result.exit_code is None
        assert "after" not in (result.output or "")
        assert run(client, "echo $kept; pgrep -c -x sleep -P $$ || true", id=shell_id).output == "yes\n0"

    def test_hard_timeout_of_a_command_that_ignores_signals(self, client: Client, shell_id: str) -> None:
        command = "bash -c 'trap \"\" INT TERM HUP; while :; do sleep 0.1; done'"
        result = run(client, command, id=shell_id, hard_timeout=1, timeout=40)
        assert result.status == "hard_timeout"
        assert run(client, "echo usable", id=shell_id, timeout=20).output == "usable"

    def test_timeout_and_hard_timeout_together(self, client: Client, shell_id: str) -> None:
        result = run(client, "sleep 300", id=shell_id, timeout=1, hard_timeout=3)
        assert result.status == "running"
        assert wait_until_done(client, shell_id) == "hard_timeout"

    def test_no_change_timeout(self, client: Client, shell_id: str) -> None:
        result = run(client, "echo spoken; sleep 300", id=shell_id, no_change_timeout=1)
        assert result.status == "no_change_timeout"
        assert "spoken" in result.output

    def test_no_change_timeout_of_the_session(self, client: Client) -> None:
        session = client.shell.create_session(no_change_timeout=1).data.session_id
        assert run(client, "sleep 300", id=session).status == "no_change_timeout"
        client.shell.cleanup_session(session)

    def test_update_session_changes_it(self, client: Client, shell_id: str) -> None:
        assert client.shell.update_session(id=shell_id, no_change_timeout=1).success
        assert run(client, "sleep 300", id=shell_id).status == "no_change_timeout"

    def test_output_holds_off_no_change_timeout(self, client: Client, shell_id: str) -> None:
        result = run(client, "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done", id=shell_id, no_change_timeout=2)
        assert (result.status, result.output) == ("completed", "1\n2\n3\n4\n5\n6")

    def test_async_mode_returns_at_once(self, client: Client, shell_id: str) -> None:
        result = run(client, "sleep 1; echo later", id=shell_id, async_mode=True)
        assert (result.status, result.exit_code) == ("running", None)
        assert wait_until_done(client, shell_id) == "completed"
        view = client.shell.view(id=shell_id).data
        assert (view.status, view.exit_code) == ("completed", 0)
        assert "later" in view.output
        assert view.command == "sleep 1; echo later"


class TestProcess:
    def test_write_answers_a_question(self, client: Client, shell_id: str) -> None:
        run(client, "read -r answer; echo got:$answer", id=shell_id, async_mode=True)
        answer = client.shell.write_to_process(id=shell_id, input="forty two", press_enter=True)
        assert answer.success
        assert wait_until_done(client, shell_id) == "completed"
        assert "got:forty two" in client.shell.view(id=shell_id).data.output

    def test_write_without_enter_waits_for_more(self, client: Client, shell_id: str) -> None:
        run(client, "read -r answer; echo got:$answer", id=shell_id, async_mode=True)
        client.shell.write_to_process(id=shell_id, input="half", press_enter=False)
        assert client.shell.wait_for_process(id=shell_id, seconds=1).data.status == "running"
        client.shell.write_to_process(id=shell_id, input=" whole", press_enter=True)
        assert wait_until_done(client, shell_id) == "completed"
        assert "got:half whole" in client.shell.view(id=shell_id).data.output

    def test_a_repl(self, client: Client, shell_id: str) -> None:
        run(client, "python3 -q -i", id=shell_id, async_mode=True)
        wait_until_shown(client, shell_id, ">>> ")
        client.shell.write_to_process(id=shell_id, input="print(6*7)", press_enter=True)
        wait_until_shown(client, shell_id, "42")
        client.shell.write_to_process(id=shell_id, input="exit()", press_enter=True)
        assert wait_until_done(client, shell_id) == "completed"

    def test_control_c_by_write(self, client: Client, shell_id: str) -> None:
        run(client, "sleep 300", id=shell_id, async_mode=True)
        time.sleep(0.3)
        client.shell.write_to_process(id=shell_id, input="\x03", press_enter=False)
        assert wait_until_done(client, shell_id) == "completed"
        assert run(client, "echo on", id=shell_id).output == "on"

    def test_kill_ends_the_command(self, client: Client, shell_id: str) -> None:
        marker = f"31{int(time.time() * 1000) % 10**7}"
        run(client, f"sleep {marker}", id=shell_id, async_mode=True)
        result = client.shell.kill_process(id=shell_id).data
        assert result.status == "terminated"
        deadline = time.monotonic() + 20
        while client.bash.exec(command=f"pgrep -f -x 'sleep {marker}'").data.exit_code == 0:
            assert time.monotonic() < deadline, "the killed command lives"
            time.sleep(0.1)

    @pytest.mark.parametrize("call", ["view", "wait_for_process", "kill_process", "write_to_process", "update_session"])
    def test_unknown_session_is_404(self, client: Client, call: str) -> None:
        arguments = {"input": "x", "press_enter": True} if call == "write_to_process" else {}
        with pytest.raises(ApiError) as caught:
            getattr(client.shell, call)(id="no-such-session", **arguments)
        assert caught.value.status_code == 404
        assert caught.value.body["success"] is False
        assert "no-such-session" in caught.value.body["message"]


class TestTruncation:
    def test_default_keeps_head_and_tail(self, client: Client, shell_id: str) -> None:
        output = run(client, "seq 1 20000", id=shell_id).output
        assert 25_000 < len(output) < 32_000
        assert output.startswith("1\n2\n3\n")
        assert output.endswith("\n19999\n20000")

    def test_off_returns_everything(self, client: Client, shell_id: str) -> None:
        output = run(client, "seq 1 20000", id=shell_id, truncate=False).output
        assert output == "\n".join(str(i) for i in range(1, 20001))

    def test_much_output_does_not_stall_the_session(self, client: Client, shell_id: str) -> None:
        result = run(client, "head -c 30000000 /dev/zero | tr '\\0' 'x' | fold -w 99; echo; echo end", id=shell_id)
        assert result.status == "completed"
        assert result.output.endswith("end")
        assert len(result.output) < 32_000
        assert run(client, "echo next", id=shell_id).output == "next"


class TestSessions:
    def test_create_with_an_existing_id_returns_that_session(self, client: Client) -> None:
        first = client.shell.create_session(id="mine").data
        run(client, "kept=1", id="mine")
        assert client.shell.create_session(id="mine").data.session_id == first.session_id == "mine"
        assert run(client, "echo $kept", id="mine").output == "1"
        client.shell.cleanup_session("mine")

    def test_an_empty_id_means_a_new_one(self, client: Client) -> None:
        one = client.shell.create_session(id="").data.session_id
        two = client.shell.create_session(id="").data.session_id
        assert one and two and one != two

    def test_list_stats_and_cleanup(self, client: Client) -> None:
        client.shell.cleanup_all_sessions()
        session = client.shell.create_session(exec_dir="/").data.session_id
        sessions = client.shell.list_sessions().data.sessions
        assert list(sessions) == [session]
        info = sessions[session]
        assert info.working_dir == "/"
        assert info.age_seconds >= 0
        assert info.created_at <= info.last_used_at
        stats = client.shell.get_session_stats().data
        assert (stats.total_sessions, stats.active_sessions, stats.idle_sessions) == (1, 1, 0)
        assert stats.max_sessions >= 20
        assert stats.session_timeout > 0
        assert 0 < stats.usage_ratio <= 1
        assert client.shell.cleanup_session(session).success
        assert client.shell.list_sessions().data.sessions == {}
        with pytest.raises(ApiError) as caught:
            client.shell.view(id=session)
        assert caught.value.status_code == 404

    def test_cleanup_of_an_unknown_session_is_404(self, client: Client) -> None:
        with pytest.raises(ApiError) as caught:
            client.shell.cleanup_session("never-was")
        assert caught.value.status_code == 404

    def test_cleanup_kills_what_runs(self, client: Client) -> None:
        marker = f"32{int(time.time() * 1000) % 10**7}"
        session = run(client, f"sleep {marker}", async_mode=True).session_id
        client.shell.cleanup_session(session)
        deadline = time.monotonic() + 20
        while client.bash.exec(command=f"pgrep -f -x 'sleep {marker}'").data.exit_code == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def test_terminal_url(self, client: Client, base_url: str) -> None:
        url = client.shell.get_terminal_url().data
        assert url.startswith(base_url + "/terminal")
        assert "session_id=" in url

    def test_terminal_url_behind_a_proxy(self, server: Server) -> None:
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "localhost", "X-Forwarded-Prefix": "/box"}
        path = f"{server.url}/v1/shell/terminal-url"
        # Only a proxy that the configuration names is believed.
        assert httpx.get(path, headers=headers).json()["data"].startswith(server.url)
        server.restart(("--trusted-proxy", "127.0.0.1"))
        try:
            assert httpx.get(path, headers=headers).json()["data"].startswith("https://localhost/box/terminal")
        finally:
            server.restart()


class TestParallel:
    def test_a_hundred_calls_on_one_session(self, client: Client, shell_id: str) -> None:
        run(client, "count=0", id=shell_id)

        def call(i: int) -> tuple[int, str]:
            result = run(client, f"count=$((count+1)); sleep 0.01; echo call-{i}", id=shell_id)
            return i, result.output

        with ThreadPoolExecutor(100) as pool:
            for i, output in pool.map(call, range(100)):
                assert output == f"call-{i}"
        assert run(client, "echo $count", id=shell_id).output == "100"

    def test_a_hundred_calls_without_a_session(self, client: Client) -> None:
        def call(i: int) -> tuple[int, str, str]:
            result = run(client, f"v={i}; sleep 0.2; echo call-$v")
            return i, result.output, result.session_id

        with ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(call, range(100)))
        assert [(i, f"call-{i}") for i in range(100)] == [(i, output) for i, output, _ in answers]
        assert len({session for _, _, session in answers}) == 100
        client.shell.cleanup_all_sessions()

    def test_two_sessions_do_not_wait_for_each_other(self, client: Client) -> None:
        slow = client.shell.create_session().data.session_id
        run(client, "sleep 300", id=slow, async_mode=True)
        assert run(client, "echo quick", timeout=20).output == "quick"
        client.shell.cleanup_session(slow)


class TestWebSocket:
    def frames_until(self, socket: Any, kind: str, wanted: str = "", seconds: float = 20) -> tuple[dict[str, Any], str]:
        """Reads until a frame of `kind` came and all output so far holds `wanted`."""
        seen = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            frame = json.loads(socket.recv(timeout=max(0.1, deadline - time.monotonic())))
            if frame["type"] == "ping":
                socket.send(json.dumps({"type": "pong", "data": frame.get("data")}))
            if frame["type"] == "output":
                seen += frame["data"]
            if frame["type"] == kind and re.search(wanted, seen):
                return frame, seen
        raise AssertionError(f"no {kind!r} with {wanted!r} within {seconds} s; output so far: {seen!r}")

    def test_type_resize_and_read(self, base_url: str) -> None:
        url = base_url.replace("http", "ws", 1) + "/v1/shell/ws"
        with connect(url) as socket:
            frame, _ = self.frames_until(socket, "session_id")
            assert frame["data"]
            self.frames_until(socket, "ready")
            socket.send(json.dumps({"type": "input", "data": "echo $((6*7))\n"}))
            self.frames_until(socket, "output", r"\b42\b")
            socket.send(json.dumps({"type": "resize", "data": {"cols": 97, "rows": 31}}))
            socket.send(json.dumps({"type": "input", "data": "stty size\n"}))
            self.frames_until(socket, "output", r"31 97")

    def test_joins_a_session_that_exists(self, client: Client, base_url: str, shell_id: str) -> None:
        run(client, "secret=opened", id=shell_id)
        url = base_url.replace("http", "ws", 1) + f"/v1/shell/ws?session_id={shell_id}"
        with connect(url) as socket:
            frame, _ = self.frames_until(socket, "session_id")
            assert shell_id in json.dumps(frame)
            self.frames_until(socket, "ready")
            socket.send(json.dumps({"type": "input", "data": "echo [$secret]\n"}))
            self.frames_until(socket, "output", r"\[opened\]")
