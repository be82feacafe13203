"""jupyter: kernels whose state lasts with their session, and what notebooks show."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import loads
import pytest
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox


def run(coder: LiveSandbox, code: str, **arguments: Any) -> Any:
    answer = coder.client.jupyter.execute_code(code=code, **arguments)
    assert answer.success is True, answer
    return answer.data


def text(coder: LiveSandbox, code: str, **arguments: Any) -> str:
    data = run(coder, code, **arguments)
    assert data.status == "ok", data
    return data.outputs[0].text


@pytest.fixture(autouse=True)
def few_sessions(coder: LiveSandbox) -> None:
    coder.client.jupyter.delete_sessions()


class TestSessions:
    def test_variables_last_in_a_session_and_not_across(self, coder: LiveSandbox) -> None:
        run(coder, "x = 41", session_id="one")
        assert text(coder, "x + 1", session_id="one") == "42"
        other = run(coder, "x", session_id="two")
        assert (other.status, other.outputs[-1].ename) == ("error", "NameError")
        assert other.outputs[-1].traceback and "\x1b" not in "".join(other.outputs[-1].traceback)

    def test_a_call_without_a_session_makes_one_that_can_be_gone_on_with(self, coder: LiveSandbox) -> None:
        first = run(coder, "x = 1")
        assert first.session_id and first.kernel_name == "python3"
        assert text(coder, "x", session_id=first.session_id) == "1"

    def test_create_list_delete(self, coder: LiveSandbox) -> None:
        made = coder.client.jupyter.create_session().data
        assert made.session_id and made.kernel_name == "python3" and made.message
        again = coder.client.jupyter.create_session(session_id=made.session_id).data
        assert again.session_id == made.session_id
        listed = coder.client.jupyter.list_sessions().data.sessions
        assert list(listed) == [made.session_id]
        assert listed[made.session_id].kernel_name == "python3" and abs(listed[made.session_id].last_used - time.time()) < 60
        coder.client.jupyter.delete_session(made.session_id)
        assert coder.client.jupyter.list_sessions().data.sessions == {}
        with pytest.raises(ApiError) as missing:
            coder.client.jupyter.delete_session(made.session_id)
        assert missing.value.status_code == 404
        assert "ipykernel" not in coder.output("ps -eo args")

    def test_names_of_one_kernel_share_sessions_and_others_are_refused(self, coder: LiveSandbox) -> None:
        info = coder.client.jupyter.get_info().data
        assert info.default_kernel == "python3" and info.session_timeout_seconds == 1800
        assert {"python3", "python3.10", "python3.11", "python3.12"} <= set(info.available_kernels)
        run(coder, "x = 1", session_id="s", kernel_name="python3.11")
        assert text(coder, "x", session_id="s", kernel_name="python3") == "1"
        with pytest.raises(ApiError) as unknown:
            run(coder, "1", session_id="s", kernel_name="ir")
        assert unknown.value.status_code == 400 and "python3.12" in str(unknown.value.body)

    def test_the_one_that_was_unused_for_longest_ends_for_another(self, coder: LiveSandbox) -> None:
        most = coder.client.jupyter.get_info().data.max_sessions
        for number in range(most + 1):
            run(coder, "1", session_id=f"s{number}")
        left = coder.client.jupyter.list_sessions().data.sessions
        assert len(left) == most and "s0" not in left and f"s{most}" in left

    def test_a_directory_of_its_own(self, coder: LiveSandbox) -> None:
        assert text(coder, "import os; os.getcwd()", session_id="d", cwd="/usr") == "'/usr'"
        assert text(coder, "os.getcwd()", session_id="d") == "'/usr'"
        assert text(coder, "os.getcwd()", session_id="d", cwd="/tmp") == "'/tmp'"
        with pytest.raises(ApiError) as missing:
            run(coder, "1", session_id="d", cwd="/nowhere")
        assert missing.value.status_code == 400

    def test_calls_at_once_in_one_session_take_turns(self, coder: LiveSandbox) -> None:
        run(coder, "import time; n = 0", session_id="turns")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: run(coder, "m = n; time.sleep(0.02); n = m + 1", session_id="turns"), range(16)))
        assert text(coder, "n", session_id="turns") == "16"


class TestOutputs:
    def test_what_is_printed_stands_first(self, coder: LiveSandbox) -> None:
        data = run(coder, "import sys\nprint('a'); print('w', file=sys.stderr); print('b')\n6 * 7")
        assert [output.output_type for output in data.outputs] == ["stream", "stream", "execute_result"]
        assert data.outputs[0].text == "a\nb\n" and data.outputs[1].text == "w\n"
        assert data.outputs[2].data == {"text/plain": "42"} and data.execution_count == 1

    def test_a_figure_is_a_png(self, coder: LiveSandbox) -> None:
        data = run(coder, "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()", timeout=60)
        image = base64.b64decode(data.outputs[0].data["image/png"])
        assert data.outputs[0].output_type == "display_data" and image.startswith(b"\x89PNG") and len(image) > 5000

    def test_a_frame_is_html_and_text(self, coder: LiveSandbox) -> None:
        data = run(coder, "import pandas as pd\npd.DataFrame({'a': [1, 2]})", timeout=60)
        assert "<table" in data.outputs[0].data["text/html"]
        assert data.outputs[0].data["text/plain"].split() == ["a", "0", "1", "1", "2"]

    def test_what_commands_print_is_there(self, coder: LiveSandbox) -> None:
        assert text(coder, "import os; _ = os.system('echo from a child')") == "from a child\n"
        assert "hello" in text(coder, "!echo hello")

    def test_large_code_and_odd_text(self, coder: LiveSandbox) -> None:
        page = "<p>ü€\n</p>" * 200_000
        assert text(coder, f"page = {page!r}\nlen(page)") == str(len(page))
        assert text(coder, "print('\\udcff ok')").endswith(" ok\n")

    def test_floods_are_cut_and_the_session_lives(self, coder: LiveSandbox) -> None:
        flood = text(coder, "for _ in range(100_000): print('x' * 100)", session_id="flood", timeout=60)
        assert len(flood) < 2 << 20 and "truncated" in flood
        data = run(coder, "from IPython.display import HTML\nHTML('y' * 50_000_000)", session_id="flood", timeout=60)
        assert "left out" in data.outputs[0].text

    def test_a_message_that_is_too_long_is_cut(self, coder: LiveSandbox) -> None:
        """What was printed before it comes in the same message of the kernel."""
        data = run(coder, "print('before'); print('x' * (9 << 20)); print('after', flush=True)")
        assert data.status == "ok", data
        printed = data.outputs[0].text
        assert printed.startswith("before\nxxx") and "bytes of output were left out" in printed, printed[:100]
        assert text(coder, "'alive'") == "'alive'"
        assert text(coder, "1", session_id="flood") == "1"

    def test_libraries_that_agents_expect(self, coder: LiveSandbox) -> None:
        run(coder, "import numpy, pandas, matplotlib, markitdown, fastapi, markdownify", timeout=60)
        assert text(coder, "import markdownify; markdownify.markdownify('<b>x</b>')") == "'**x**'"
        assert coder.output("uv --version").startswith("uv ")

    @pytest.mark.parametrize("minor", ["3.10", "3.11", "3.12"])
    def test_interpreters_and_kernels_are_what_they_are_called(self, coder: LiveSandbox, minor: str) -> None:
        assert coder.output(f"python{minor} --version").startswith(f"Python {minor}.")
        assert f"(python {minor})" in coder.output(f"pip{minor} --version")
        version = "import sys; '.'.join(map(str, sys.version_info[:2]))"
        assert text(coder, version, session_id=minor, kernel_name=f"python{minor}", timeout=60) == repr(minor)
        uses = "import ssl, sqlite3, ctypes, lzma, readline, venv, requests"
        assert coder.output(f"python{minor} -c '{uses}; print(ssl.create_default_context().cert_store_stats()[\"x509_ca\"] > 0)'") == "True"

    def test_libraries_of_python_3_12(self, coder: LiveSandbox) -> None:
        code = "import matplotlib, numpy, pandas; from markdownify import markdownify; markdownify('<b>x</b>')"
        assert text(coder, code, session_id="libraries", kernel_name="python3.12", timeout=60) == "'**x**'"


class TestTimes:
    def test_an_endless_loop_is_interrupted_and_the_session_lives(self, coder: LiveSandbox) -> None:
        run(coder, "x = 5", session_id="loop")
        begun = time.monotonic()
        data = run(coder, "print('before')\nwhile True: pass", session_id="loop", timeout=1)
        assert data.status == "timeout" and time.monotonic() - begun < 8
        assert data.outputs[0].text == "before\n" and data.outputs[-1].ename == "KeyboardInterrupt"
        assert text(coder, "x", session_id="loop") == "5"

    def test_a_program_that_is_waited_for_ends_too(self, coder: LiveSandbox) -> None:
        data = run(coder, "import subprocess; subprocess.run(['sleep', '4321'])", session_id="child", timeout=1)
        assert data.status == "timeout"
        assert "4321" not in coder.output("ps -eo args")

    def test_who_does_not_heed_it_is_killed_and_said_so(self, coder: LiveSandbox) -> None:
        code = "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass"
        answer = coder.client.jupyter.execute_code(code=code, session_id="deaf", timeout=1)
        assert answer.data.status == "timeout" and "killed" in answer.message and "new kernel" in answer.hint
        assert text(coder, "'back'", session_id="deaf") == "'back'"

    def test_input_is_refused_at_once(self, coder: LiveSandbox) -> None:
        answer = coder.client.jupyter.execute_code(code="input('name? ')")
        assert answer.data.status == "error" and answer.data.outputs[-1].ename == "StdinNotImplementedError"
        assert "input()" in answer.hint

    def test_bounds_of_the_timeout(self, coder: LiveSandbox) -> None:
        for timeout in (0, 301):
            answer = coder.http.post("/v1/jupyter/execute", json={"code": "1", "timeout": timeout})
            assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", "timeout"]


class TestEnds:
    def test_a_kernel_that_is_killed_is_said_and_restarted(self, coder: LiveSandbox) -> None:
        run(coder, "x = 1", session_id="dies")
        answer = coder.client.jupyter.execute_code(
            code="print('last words', flush=True)\nimport os; os.kill(os.getpid(), 9)", session_id="dies"
        )
        assert answer.data.status == "error" and answer.data.outputs[-1].ename == "KernelEnded"
        assert "signal 9" in answer.message and "variables" in answer.hint
        after = coder.client.jupyter.execute_code(code="'x' in globals()", session_id="dies")
        assert after.data.outputs[0].text == "False" and "was restarted" in after.hint

    def test_one_that_ends_between_two_calls(self, coder: LiveSandbox) -> None:
        run(coder, "x = 1", session_id="idle")
        coder.output("pkill -9 -f ipykernel_launche[r]; while pgrep -f ipykernel_launche[r]; do :; done")
        time.sleep(0.2)
        after = coder.client.jupyter.execute_code(code="'x' in globals()", session_id="idle")
        assert after.data.outputs[0].text == "False" and "signal 9" in after.hint

    def test_deleting_a_session_ends_what_it_does(self, coder: LiveSandbox) -> None:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(coder.client.jupyter.execute_code, code="import time; time.sleep(60)", session_id="gone")
            while "gone" not in coder.client.jupyter.list_sessions().data.sessions:
                time.sleep(0.02)
            time.sleep(1)
            coder.client.jupyter.delete_session("gone")
            try:
                assert running.result(20).data.status == "error"
            except ApiError as refused:
                assert refused.status_code == 404
        assert "ipykernel" not in coder.output("ps -eo args")


@pytest.mark.load
def test_kernels_in_many_sandboxes_at_once(sandbox: Callable[..., LiveSandbox]) -> None:
    def one(number: int) -> str:
        live = sandbox(image="code", patience=170)
        return text(live, f"{number} * {number}", timeout=120)

    count = loads.size(6, 20)
    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(one, range(count))) == [str(n * n) for n in range(count)]


def test_an_image_without_a_kernel_says_what_to_do(sandbox: Callable[..., LiveSandbox]) -> None:
    with pytest.raises(ApiError) as missing:
        run(sandbox(), "1")
    assert missing.value.status_code == 424 and "ipykernel" in missing.value.body["hint"]
