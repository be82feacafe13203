"""bash: each command a process of its own; output by byte offsets; two separate streams."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError


def run(client: Client, command: str, **arguments: Any) -> Any:
    answer = client.bash.exec(command=command, **arguments)
    assert answer.success is True, answer
    return answer.data


def gone(client: Client, pattern: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while run(client, f"pgrep -f -x '{pattern}'").exit_code == 0:
        assert time.monotonic() < deadline, f"{pattern!r} still runs"
        time.sleep(0.1)


def marker() -> str:
    return f"3{int(time.time() * 10000) % 10**8}"


class TestExec:
    def test_streams_are_separate(self, client: Client) -> None:
        result = run(client, "echo out; echo err >&2; exit 3")
        assert (result.status, result.exit_code) == ("completed", 3)
        assert (result.stdout, result.stderr) == ("out\n", "err\n")
        assert (result.offset, result.stderr_offset) == (4, 4)
        assert result.command_id and result.session_id

    def test_empty_streams_are_null(self, http: httpx.Client) -> None:
        data = http.post("/v1/bash/exec", json={"command": "true"}).json()["data"]
        assert (data["stdout"], data["stderr"], data["exit_code"]) == (None, None, 0)

    def test_directory_and_exports_do_not_persist(self, client: Client) -> None:
        session = client.bash.create_session().data.session_id
        first = run(client, "pwd", session_id=session).stdout
        run(client, "cd /usr; export LOST=1; f() { :; }", session_id=session)
        again = run(client, "pwd; echo [$LOST]; type f", session_id=session)
        assert again.stdout == first + "[]\n"
        assert again.exit_code != 0

    def test_exec_dir_stays_with_the_session(self, client: Client, folder: str) -> None:
        session = client.bash.create_session().data.session_id
        assert run(client, "pwd", session_id=session, exec_dir=folder).stdout == f"{folder}\n"
        assert run(client, "pwd", session_id=session).stdout == f"{folder}\n"

    def test_env_is_for_one_command(self, client: Client) -> None:
        session = client.bash.create_session().data.session_id
        value = "a b\n'c' \"d\" $e ü"
        assert run(client, 'printf %s "$V"', session_id=session, env={"V": value}).stdout == value
        assert run(client, "echo [$V]", session_id=session).stdout == "[]\n"

    @pytest.mark.parametrize(
        ("command", "stdout"),
        [
            ("cat <<'E'\na $b\nE", "a $b\n"),
            ("echo a; echo b", "a\nb\n"),
            ("printf x", "x"),
            ("echo 漢字 🦀", "漢字 🦀\n"),
            ("x=1\nif [ $x = 1 ]; then\n echo one\nfi", "one\n"),
        ],
    )
    def test_scripts(self, client: Client, command: str, stdout: str) -> None:
        assert run(client, command).stdout == stdout

    def test_it_is_bash(self, client: Client) -> None:
        assert run(client, "a=(1 2 3); [[ ${a[1]} == 2 ]] && echo ${BASH_VERSION%%.*}").stdout.strip().isdigit()

    def test_missing_exec_dir_is_an_error_with_its_name(self, client: Client) -> None:
        try:
            answer = client.bash.exec(command="echo ran", exec_dir="/no/such/dir")
        except ApiError as error:
            assert 400 <= error.status_code < 500
            assert "/no/such/dir" in str(error.body)
        else:
            # A fallback to the session's directory would have to be told.
            assert answer.success is False, answer
            assert "/no/such/dir" in answer.message

    def test_bytes_that_are_not_utf8_are_counted_as_bytes(self, client: Client) -> None:
        result = run(client, "printf 'a\\xff\\xfeb'")
        assert result.offset == 4
        assert result.stdout[0] == "a" and result.stdout[-1] == "b"

    def test_output_from_the_offset_splits_no_character(self, client: Client) -> None:
        result = run(client, "printf 'ä'; sleep 0.2; printf 'ö'")
        rest = client.bash.output(session_id=result.session_id, command_id=result.command_id, offset=2).data
        assert (rest.stdout, rest.offset) == ("ö", 4)

    def test_background_child_does_not_hold_the_command(self, client: Client) -> None:
        secret = marker()
        before = time.monotonic()
        result = run(client, f"sleep {secret} & echo started")
        assert (result.status, result.stdout) == ("completed", "started\n")
        assert time.monotonic() - before < 60
        run(client, f"pkill -f -x 'sleep {secret}'")

    def test_daemonised_child_does_not_hold_the_command(self, client: Client) -> None:
        secret = marker()
        result = run(client, f"setsid nohup sleep {secret} & disown; echo started")
        assert (result.status, result.stdout) == ("completed", "started\n")
        run(client, f"pkill -f -x 'sleep {secret}'")

    def test_killed_by_its_own_signal_is_completed(self, client: Client) -> None:
        result = run(client, "kill -9 $$")
        assert result.status == "completed"
        assert result.exit_code in (137, -9)


class TestClocks:
    def test_timeout_only_stops_waiting(self, client: Client, folder: str) -> None:
        flag = f"{folder}/go"
        result = run(client, f"echo begun; until [ -e {flag} ]; do sleep 0.05; done; echo ended; exit 5", timeout=1)
        assert (result.status, result.exit_code, result.stdout) == ("running", None, "begun\n")
        # A command of its own does not queue behind the one that runs.
        run(client, f"touch {flag}", session_id=result.session_id)
        deadline = time.monotonic() + 20
        offset, text = result.offset, ""
        while True:
            output = client.bash.output(
                session_id=result.session_id, command_id=result.command_id, offset=offset, wait=True, wait_timeout=5
            ).data
            text += output.stdout
            assert output.offset >= offset
            offset = output.offset
            if output.command.status != "running":
                break
            assert time.monotonic() < deadline
        assert (output.command.status, output.command.exit_code) == ("completed", 5)
        assert text == "ended\n"

    def test_hard_timeout_kills_the_whole_tree(self, client: Client) -> None:
        secret = marker()
        result = run(client, f"echo begun; (sleep {secret} | cat) & sleep {secret}", hard_timeout=1)
        assert result.status == "timed_out"
        assert result.stdout == "begun\n"
        gone(client, f"sleep {secret}")

    def test_hard_timeout_of_a_command_that_ignores_sigterm(self, client: Client) -> None:
        result = run(client, "trap '' TERM INT HUP; while :; do sleep 0.1; done", hard_timeout=1)
        assert result.status == "timed_out"

    def test_async_mode_returns_at_once(self, client: Client) -> None:
        result = run(client, "sleep 0.5; echo later", async_mode=True)
        assert (result.status, result.exit_code) == ("running", None)
        output = client.bash.output(session_id=result.session_id, command_id=result.command_id, wait=True).data
        assert output.stdout == "later\n"

    def test_waiting_for_output_ends_with_its_time(self, client: Client) -> None:
        result = run(client, "sleep 300", async_mode=True)
        output = client.bash.output(
            session_id=result.session_id, command_id=result.command_id, wait=True, wait_timeout=0.5
        ).data
        assert (output.stdout, output.command.status) == ("", "running")
        client.bash.kill(session_id=result.session_id, signal="SIGKILL")


class TestOutput:
    def test_inline_cut_keeps_both_ends_and_counts_all(self, client: Client) -> None:
        full = "".join(f"{i}\n" for i in range(1, 30001))
        result = run(client, "seq 1 30000")
        assert result.offset == len(full)
        assert len(result.stdout) < 52_000
        assert result.stdout.startswith("1\n2\n3\n") and result.stdout.endswith("29999\n30000\n")
        # What was cut is still there for those who ask by offset.
        rest = client.bash.output(session_id=result.session_id, command_id=result.command_id, offset=0).data
        assert rest.stdout == full

    def test_max_output_length(self, client: Client) -> None:
        result = run(client, "seq 1 30000", max_output_length=1000)
        assert len(result.stdout) < 1_300
        assert result.offset == 168_894

    def test_zero_means_uncut(self, client: Client) -> None:
        result = run(client, "seq 1 30000", max_output_length=0)
        assert len(result.stdout) == 168_894

    def test_without_a_command_the_sessions_stream(self, client: Client) -> None:
        session = client.bash.create_session().data.session_id
        run(client, "echo one", session_id=session)
        run(client, "echo two; echo err >&2", session_id=session)
        output = client.bash.output(session_id=session).data
        assert output.stdout == "one\ntwo\n"
        assert output.stderr == "err\n"
        later = client.bash.output(session_id=session, offset=output.offset, stderr_offset=output.stderr_offset).data
        assert (later.stdout, later.stderr) == ("", "")
        assert (later.offset, later.stderr_offset) == (output.offset, output.stderr_offset)

    def test_an_offset_beyond_the_end_never_goes_back(self, client: Client) -> None:
        result = run(client, "echo x")
        output = client.bash.output(session_id=result.session_id, command_id=result.command_id, offset=1000).data
        assert output.stdout == ""
        assert output.offset in (2, 1000)

    def test_both_streams_at_full_flow(self, client: Client) -> None:
        command = "(yes out | head -c 3000000) & (yes err | head -c 3000000 >&2) & wait"
        result = run(client, command)
        assert (result.offset, result.stderr_offset) == (3_000_000, 3_000_000)


class TestWriteAndKill:
    def test_write_is_verbatim(self, client: Client) -> None:
        result = run(client, "read -r a; read -r b; echo $a+$b", async_mode=True)
        assert client.bash.write(session_id=result.session_id, command_id=result.command_id, input="1").success
        client.bash.write(session_id=result.session_id, command_id=result.command_id, input="2\n3\n")
        output = client.bash.output(session_id=result.session_id, command_id=result.command_id, wait=True).data
        assert output.stdout == "12+3\n"

    def test_write_to_a_finished_command_is_an_error(self, client: Client) -> None:
        result = run(client, "true")
        try:
            answer = client.bash.write(session_id=result.session_id, command_id=result.command_id, input="x")
            assert answer.success is False
        except ApiError as error:
            assert 400 <= error.status_code < 500

    @pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL", "SIGINT"])
    def test_kill_reaches_the_whole_tree(self, client: Client, signal: str) -> None:
        secret = marker()
        result = run(client, f"echo begun; bash -c 'sleep {secret}; true'", async_mode=True)
        client.bash.output(session_id=result.session_id, command_id=result.command_id, wait=True)
        assert client.bash.kill(session_id=result.session_id, signal=signal).success
        gone(client, f"sleep {secret}")
        deadline = time.monotonic() + 20
        while True:
            output = client.bash.output(session_id=result.session_id, command_id=result.command_id).data
            if output.command.status != "running":
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert output.command.status == "killed"

    def test_an_unknown_signal_is_refused(self, client: Client) -> None:
        result = run(client, "sleep 300", async_mode=True)
        try:
            answer = client.bash.kill(session_id=result.session_id, signal="SIGNONSENSE")
            assert answer.success is False
        except ApiError as error:
            assert error.status_code in (400, 422)
        client.bash.kill(session_id=result.session_id, signal="SIGKILL")


class TestSessions:
    def test_create_list_close(self, client: Client, folder: str) -> None:
        created = client.bash.create_session(session_id="bash-mine", exec_dir=folder).data
        assert (created.session_id, created.status, created.working_dir) == ("bash-mine", "ready", folder)
        run(client, "true", session_id="bash-mine")
        running = run(client, "sleep 300", session_id="bash-mine", async_mode=True)
        listed = {s.session_id: s for s in client.bash.sessions().data}["bash-mine"]
        assert listed.command_count == 2
        assert listed.current_command == "sleep 300"
        assert listed.created_at <= listed.last_used_at
        assert client.bash.close_session("bash-mine").success
        assert "bash-mine" not in {s.session_id for s in client.bash.sessions().data if s.status == "ready"}
        gone(client, "sleep 300")
        assert running.session_id == "bash-mine"

    def test_a_snapshot_is_sourced(self, client: Client, folder: str) -> None:
        script = f"{folder}/env.sh"
        client.file.write_file(file=script, content="export FROM_SNAPSHOT=yes\ngreet() { echo hello $1; }\n")
        session = client.bash.create_session(snapshot_path=script).data.session_id
        assert run(client, "echo $FROM_SNAPSHOT; greet you", session_id=session).stdout == "yes\nhello you\n"

    @pytest.mark.parametrize("call", ["output", "write", "kill", "close_session"])
    def test_unknown_session_is_404(self, client: Client, call: str) -> None:
        with pytest.raises(ApiError) as caught:
            if call == "close_session":
                client.bash.close_session("no-such-session")
            else:
                arguments = {"input": "x"} if call == "write" else {}
                getattr(client.bash, call)(session_id="no-such-session", **arguments)
        assert caught.value.status_code == 404
        assert caught.value.body["success"] is False

    def test_unknown_command_is_404(self, client: Client) -> None:
        session = client.bash.create_session().data.session_id
        with pytest.raises(ApiError) as caught:
            client.bash.output(session_id=session, command_id="no-such-command")
        assert caught.value.status_code == 404


class TestParallel:
    @pytest.mark.parametrize("shared", [True, False], ids=["one session", "no session"])
    def test_a_hundred_calls(self, client: Client, shared: bool) -> None:
        arguments = {"session_id": client.bash.create_session().data.session_id} if shared else {}

        def call(i: int) -> tuple[int, str, str]:
            result = run(client, f"v={i}; sleep 0.1; echo call-$v", **arguments)
            return i, result.stdout, result.command_id

        with ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(call, range(100)))
        assert [(i, f"call-{i}\n") for i in range(100)] == [(i, out) for i, out, _ in answers]
        assert len({command for _, _, command in answers}) == 100
