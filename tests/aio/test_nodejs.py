"""nodejs: JavaScript in processes of its own, and in sessions whose state lasts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox


def run(coder: LiveSandbox, code: str, **arguments: Any) -> Any:
    answer = coder.client.nodejs.execute_code(code=code, **arguments)
    assert answer.success is True, answer
    return answer.data


class TestOnce:
    def test_output_result_and_exit(self, coder: LiveSandbox) -> None:
        data = run(coder, "console.log('hi'); console.error('err'); 6 * 7")
        assert (data.status, data.exit_code, data.stdout, data.stderr) == ("ok", 0, "hi\n", "err\n")
        assert data.outputs[0].text == "hi\n" and data.language == "javascript"
        assert data.outputs[-1].output_type == "execute_result" and data.outputs[-1].data["text/plain"] == "42"
        assert data.session_id is None

    def test_nothing_lasts(self, coder: LiveSandbox) -> None:
        run(coder, "globalThis.x = 1; require('fs').writeFileSync('left', '')")
        assert run(coder, "typeof x + require('fs').existsSync('left')").outputs[0].text == "'undefinedfalse'"

    def test_input_and_files(self, coder: LiveSandbox) -> None:
        data = run(
            coder,
            "import {twice} from './lib/twice.mjs';\nconst one = require('./one.json');\n"
            "twice(require('fs').readFileSync(0, 'utf8')) + one.n",
            stdin="ab",
            files={"lib/twice.mjs": "export const twice = (x) => x + x;", "one.json": '{"n": 1}'},
        )
        assert data.outputs[-1].text == "'abab1'", data
        for name in ("../up", "/etc/passwd", "a/../../b", ""):
            with pytest.raises(ApiError) as refused:
                run(coder, "1", files={name: "x"})
            assert refused.value.status_code == 400

    def test_errors_and_exits(self, coder: LiveSandbox) -> None:
        failed = run(coder, "throw new TypeError('no')")
        assert (failed.status, failed.exit_code) == ("error", 1) and "TypeError: no" in failed.stderr
        assert (failed.outputs[-1].ename, failed.outputs[-1].evalue) == ("TypeError", "no")
        assert failed.outputs[-1].traceback[0] == "TypeError: no"
        assert run(coder, "process.exit(3)").exit_code == 3
        assert run(coder, "process.exit(0)").status == "ok"
        assert run(coder, "function f( {").outputs[-1].ename == "SyntaxError"

    def test_it_lasts_until_nothing_is_left_to_do(self, coder: LiveSandbox) -> None:
        assert run(coder, "setTimeout(() => console.log('later'), 200); 0").stdout == "later\n"

    def test_time(self, coder: LiveSandbox) -> None:
        for code in ("while (true) {}", "await new Promise(() => {}); 1", "setInterval(() => {}, 1000); 0"):
            begun = time.monotonic()
            data = run(coder, f"console.log('x');{code}", timeout=1)
            assert (data.status, data.exit_code, data.stdout) == ("timeout", 124, "x\n"), code
            assert time.monotonic() - begun < 6

    def test_the_directory(self, coder: LiveSandbox) -> None:
        assert run(coder, "process.cwd()", cwd="/usr").outputs[0].text == "'/usr'"

    def test_versions(self, coder: LiveSandbox) -> None:
        info = coder.client.nodejs.get_info().data
        assert info.current_version == "node24" and set(info.available_versions) == {"node18", "node20", "node22", "node24"}
        assert info.node_version.startswith("v24.") and info.npm_version and info.supported_languages == ["javascript"]
        for major in (18, 20, 22, 24):
            assert run(coder, "process.version", version=f"node{major}").outputs[0].text.startswith(f"'v{major}.")
            assert coder.output(f"node{major} --version").startswith(f"v{major}.")
        with pytest.raises(ApiError) as missing:
            run(coder, "1", version="node16")
        assert missing.value.status_code == 400 and "node24" in str(missing.value.body)


class TestSessions:
    def test_state_lasts(self, coder: LiveSandbox) -> None:
        first = run(coder, "const x = await Promise.resolve(41); function f() { return x + 1 }", stateful=True)
        assert first.session_id
        assert run(coder, "f()", session_id=first.session_id).outputs[0].text == "42"
        assert run(coder, "const x = 5; x", session_id=first.session_id).outputs[0].text == "5"
        assert run(coder, "x", session_id=first.session_id).execution_count == 4

    def test_imports(self, coder: LiveSandbox) -> None:
        code = "import path, {sep as s} from 'node:path';\nimport * as os from 'os';\npath.join('a', 'b') + s + typeof os.cpus"
        assert run(coder, code, session_id="imports").outputs[0].text == "'a/b/function'"
        assert run(coder, "path.sep + (await import('node:path')).sep", session_id="imports").outputs[0].text == "'//'"

    def test_loops_are_interrupted_and_the_session_lives(self, coder: LiveSandbox) -> None:
        run(coder, "let kept = 1", session_id="loop")
        for code in ("while (true) {}", "await new Promise(() => {})", "require('child_process').execSync('sleep 60')"):
            answer = coder.client.nodejs.execute_code(code=code, session_id="loop", timeout=1)
            assert answer.data.status == "timeout" and "lives on" in answer.message, code
            assert run(coder, "kept", session_id="loop").outputs[0].text == "1"

    def test_an_end_is_said_and_a_new_process_started(self, coder: LiveSandbox) -> None:
        run(coder, "let y = 1", session_id="ends")
        answer = coder.client.nodejs.execute_code(code="process.exit(4)", session_id="ends")
        assert answer.data.status == "error" and "exit code 4" in answer.message and answer.data.exit_code == 4
        again = coder.client.nodejs.execute_code(code="typeof y", session_id="ends")
        assert again.data.outputs[0].text == "'undefined'" and "was restarted" in again.hint

    def test_create_get_update_list_delete(self, coder: LiveSandbox) -> None:
        made = coder.client.nodejs.create_session().data
        assert made.created and made.session.state == "IDLE" and made.session.max_idle_time == 86_400_000
        assert not coder.client.nodejs.create_session(session_id=made.session_id).data.created
        updated = coder.client.nodejs.update_session(made.session_id, max_idle_time=60, cwd="/usr").data
        assert updated.updated and (updated.session.max_idle_time, updated.session.cwd) == (60_000, "/usr")
        assert run(coder, "process.cwd()", session_id=made.session_id).outputs[0].text == "'/usr'"
        got = coder.client.nodejs.get_session(made.session_id).data.session
        assert got.age_seconds < 30 and abs(got.last_used / 1000 - time.time()) < 60 and got.created_at <= got.last_used
        assert made.session_id in coder.client.nodejs.list_sessions().data.sessions
        assert coder.client.nodejs.delete_session(made.session_id).data.deleted
        for call in (coder.client.nodejs.get_session, coder.client.nodejs.delete_session):
            with pytest.raises(ApiError) as gone:
                call(made.session_id)
            assert gone.value.status_code == 404

    def test_bounds(self, coder: LiveSandbox) -> None:
        for seconds in (59, 86_401):
            answer = coder.http.post("/v1/nodejs/sessions", json={"max_idle_time": seconds})
            assert answer.status_code == 422, answer.text
        with pytest.raises(ApiError) as refused:
            run(coder, "1", session_id="in", stdin="x")
        assert refused.value.status_code == 400
