"""How each method of the SDK fails by itself: what is wrong with the call or the sandbox, the status, and the words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import sdk_calls
from agent_sandbox import Resolution
from agent_sandbox import Sandbox as Client
from agent_sandbox.browser import Action_MoveTo
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from sandboxes import LiveSandbox


class Row(NamedTuple):
    method: str
    #: 200: the answer comes with `success` false. Else the SDK raises its `ApiError`.
    status: int
    #: Stands in the message.
    text: str
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    #: The sandbox that is called, a fixture below.
    where: str = "sound"

    def call(self, client: Client) -> Any:
        namespace, name = self.method.split(".")
        answer = getattr(getattr(client, namespace), name)(*self.arguments, **self.named)
        return list(answer) if inspect.isgenerator(answer) else answer


def absent(method: str, text: str, *arguments: Any, **named: Any) -> Row:
    """What is named is not there."""
    return Row(method, 404, text, arguments, named)


def refused(method: str, text: str, **named: Any) -> Row:
    """An argument can't be used."""
    return Row(method, 400, text, named=named)


def unsuccessful(method: str, text: str, **named: Any) -> Row:
    """What was asked for can't be done, which is no error of HTTP."""
    return Row(method, 200, text, named=named)


def lacks(method: str, status: int, text: str) -> Row:
    """The sandbox lacks what the method needs, or was configured wrongly."""
    return Row(method, status, text, where="lacking")


def gone(method: str) -> Row:
    """Nothing in the call can be wrong, so the sandbox is: it was deleted while the client held on to it."""
    return Row(method, 404, "there is no sandbox {name}", where="deleted")


def bare(method: str, text: str = "no X server", **named: Any) -> Row:
    """The sandbox's image has no desktop."""
    return Row(method, 424, f"this sandbox's image has {text}", named=named)


def shown(method: str, status: int, text: str, /, *arguments: Any, **named: Any) -> Row:
    """The sandbox has a browser, so the failure is the call's own."""
    return Row(method, status, text, arguments, named, where="browsing")


def locked(method: str) -> Row:
    """The server's own, and nothing in the call can be wrong: the caller does not have the key."""
    return Row(method, 401, "Unauthorized", where="guarded")


ROWS = [
    locked("auth.authenticate"),
    locked("auth.create_ticket"),
    bare("browser.execute_action", request=Action_MoveTo(x=1, y=1)),
    bare("browser.get_info"),
    gone("browser.get_proxy_pac"),
    bare("browser.restart"),
    bare("browser.screenshot"),
    bare("browser.set_config", resolution=Resolution(width=1280, height=720)),
    shown("browser_captcha.wait", 400, "timeout", timeout=-1),
    bare("browser_captcha.detect"),
    bare("browser_cookies.clear_cookies"),
    shown("browser_cookies.get_cookies", 400, "nonsense", urls="nonsense"),
    shown("browser_cookies.set_cookies", 400, "url", cookies=[{"name": "x", "value": "1"}]),
    shown("browser_network.add_route", 400, "regular expression", url_pattern="/(/", abort=True),
    shown("browser_network.export_har", 400, "path", save_path=""),
    shown("browser_network.get_requests", 400, "(", filter="/(/"),
    shown("browser_network.remove_route", 404, "**/absent", url_pattern="**/absent"),
    shown("browser_network.set_headers", 400, "a b", headers={"a b": "c"}),
    shown("browser_network.set_scoped_headers", 400, "nonsense", origin="nonsense", headers={"a": "b"}),
    shown("browser_page.back", 424, "back"),
    shown("browser_page.check", 400, "][", selector="]["),
    shown("browser_page.click", 400, "selector"),
    shown("browser_page.evaluate", 424, "on purpose", expression="throw new Error('on purpose')"),
    shown("browser_page.export_console", 400, "path", save_path=""),
    shown("browser_page.fill", 400, "selector", text="x"),
    shown("browser_page.fill_form", 400, "items[0]", items=[{"value": "x"}]),
    shown("browser_page.find_text", 400, "empty", keyword=""),
    shown("browser_page.forward", 424, "forward"),
    bare("browser_page.get_console"),
    bare("browser_page.get_elements"),
    bare("browser_page.get_html"),
    bare("browser_page.get_markdown"),
    bare("browser_page.get_text"),
    shown("browser_page.hot_key", 400, "nonsense", keys=["ctrl", "nonsense"]),
    shown("browser_page.hover", 400, "selector"),
    shown("browser_page.navigate", 424, "net::ERR_CONNECTION_REFUSED", url="http://127.0.0.1:8009/"),
    shown("browser_page.press_key", 400, "nonsense", key="nonsense"),
    shown("browser_page.record", 400, "webm", action="start", save_path="/tmp/film.avi"),
    bare("browser_page.reload"),
    shown("browser_page.screenshot", 400, "gif", format="gif"),
    shown("browser_page.scroll", 400, "sideways", direction="sideways"),
    bare("browser_page.scroll_to"),
    shown("browser_page.scroll_to_element", 400, "][", selector="]["),
    shown("browser_page.select_option", 400, "value", selector="select"),
    shown("browser_page.type_text", 400, "delay", text="x", delay=-1),
    shown("browser_page.uncheck", 400, "][", selector="]["),
    shown("browser_page.upload_file", 404, "/absent", selector="input", files=["/absent"]),
    shown("browser_page.wait", 424, "timed out", type="selector", selector="#absent", timeout=0.1),
    shown("browser_state.load", 404, "/absent", path="/absent"),
    shown("browser_state.save", 400, "path", path=""),
    shown("browser_tabs.activate", 404, "99", 99),
    shown("browser_tabs.close", 404, "99", 99),
    shown("browser_tabs.create", 400, "javascript", url="javascript:1"),
    bare("browser_tabs.list"),
    absent("bash.close_session", 'session "absent" not found', "absent"),
    refused("bash.create_session", 'snapshot "/absent" is not a readable file', snapshot_path="/absent"),
    refused("bash.exec", 'directory "/absent" does not exist', command="true", exec_dir="/absent"),
    absent("bash.kill", 'session "absent" not found', session_id="absent"),
    absent("bash.output", 'session "absent" not found', session_id="absent"),
    gone("bash.sessions"),
    absent("bash.write", 'session "absent" not found', session_id="absent", input="x"),
    refused("code.execute_code", 'directory "/absent" does not exist', language="python", code="1", cwd="/absent"),
    gone("code.get_info"),
    bare("display.record", "no recorder", action="start"),
    absent("file.download_file", "No such file or directory: '/absent'", path="/absent"),
    unsuccessful("file.find_files", "No such file or directory: '/absent'", path="/absent", glob="*"),
    unsuccessful("file.glob_files", "No such file or directory: '/absent'", path="/absent", pattern="*"),
    unsuccessful("file.grep_files", "unclosed group", path="/etc", pattern="("),
    unsuccessful("file.list_path", "Not a directory: '/etc/hostname'", path="/etc/hostname"),
    unsuccessful("file.read_file", "'/absent' (it does not exist)", file="/absent"),
    unsuccessful("file.replace_in_file", "Permission denied: '/etc/hosts'", file="/etc/hosts", old_str="localhost", new_str="x"),
    unsuccessful("file.search_in_file", "unclosed group", file="/etc/hostname", regex="("),
    unsuccessful(
        "file.str_replace_editor", "did not appear", command="str_replace", path="/etc/hosts", old_str="absent", new_str="x"
    ),
    unsuccessful("file.upload_file", "Permission denied: '/etc'", file=("upload", b"x"), path="/etc/upload"),
    absent("file.watch_create", "'/absent'", path="/absent"),
    absent("file.watch_events", 'there is no watcher "absent"', "absent"),
    gone("file.watch_list"),
    absent("file.watch_poll", 'there is no watcher "absent"', "absent"),
    absent("file.watch_stop", 'there is no watcher "absent"', "absent"),
    unsuccessful("file.watch_wait", "nothing happened within 1 s", path="/tmp/never", timeout=1),
    unsuccessful("file.write_file", "Permission denied: '/etc/write'", file="/etc/write", content="x"),
    refused("jupyter.create_session", 'there is no kernel "absent"; installed are', kernel_name="absent"),
    absent("jupyter.delete_session", 'session "absent" not found', "absent"),
    gone("jupyter.delete_sessions"),
    refused("jupyter.execute_code", 'there is no kernel "absent"; installed are', code="1", kernel_name="absent"),
    gone("jupyter.get_info"),
    gone("jupyter.list_sessions"),
    absent("mcp.execute_mcp_tool", 'MCP server "absent" is not configured', "absent", "tool", request={}),
    lacks("mcp.list_mcp_servers", 424, "EXTRA_MCP_SERVERS"),
    absent("mcp.list_mcp_tools", 'MCP server "absent" is not configured', "absent"),
    refused("nodejs.create_session", 'directory "/absent" does not exist', cwd="/absent"),
    absent("nodejs.delete_session", 'session "absent" not found', "absent"),
    refused("nodejs.execute_code", 'Node.js "99" is not installed; there are', code="1", version="99"),
    lacks("nodejs.get_info", 200, "no Node.js"),
    absent("nodejs.get_session", 'session "absent" not found', "absent"),
    gone("nodejs.list_sessions"),
    absent("nodejs.update_session", 'session "absent" not found', "absent"),
    refused("proxy.add_exclude", '"a b" can\'t be used', pattern="a b"),
    refused("proxy.add_mapping", '"a b" can\'t be used', source="a b", target="3000"),
    refused("proxy.diagnose", '"ftp://x" can\'t be used', url="ftp://x"),
    gone("proxy.get_upstream"),
    gone("proxy.list_excludes"),
    gone("proxy.list_mappings"),
    absent("proxy.remove_exclude", 'there is no pattern "absent.example"', pattern="absent.example"),
    absent("proxy.remove_mapping", 'there is no mapping of "absent.example"', "absent.example"),
    gone("proxy.remove_upstream"),
    refused("proxy.set_upstream", "the upstream can't be used", server="me:sekrit@"),
    gone("sandbox.get_context"),
    gone("sandbox.get_nodejs_packages"),
    gone("sandbox.get_python_packages"),
    refused("sandbox.list_hooks", 'there is no event "start": there are init, pre_services', event="start"),
    refused("sandbox.register_hook", 'there is no event "start"', name="x", command="true", event="start"),
    absent("sandbox.remove_hook", 'there is no hook "absent"', "absent"),
    gone("shell.cleanup_all_sessions"),
    absent("shell.cleanup_session", 'session "absent" not found', "absent"),
    refused("shell.create_session", "is no session id", id="a\nb"),
    refused("shell.exec_command", 'directory "/absent" does not exist', command="true", exec_dir="/absent", strict=True),
    gone("shell.get_session_stats"),
    lacks("shell.get_terminal_url", 424, "no shell"),
    absent("shell.kill_process", 'session "absent" not found', id="absent"),
    gone("shell.list_sessions"),
    absent("shell.update_session", 'session "absent" not found', id="absent"),
    absent("shell.view", 'session "absent" not found', id="absent"),
    absent("shell.wait_for_process", 'session "absent" not found', id="absent"),
    absent("shell.write_to_process", 'session "absent" not found', id="absent", input="x", press_enter=True),
    gone("skills.clear_skills"),
    absent("skills.delete_skill", 'there is no skill "absent"', "absent"),
    absent("skills.get_content", 'there is no skill "absent"', "absent"),
    gone("skills.list_metadata"),
    refused("skills.register_skills", "the skills were not registered", file=("skills.zip", b"no archive")),
    unsuccessful("util.convert_to_markdown", '"gopher://x" is no address that can be converted', uri="gopher://x"),
]


@pytest.fixture
def sound(coder: LiveSandbox) -> LiveSandbox:
    """One of the image that has all that methods need."""
    return coder


@pytest.fixture
def lacking(sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    """Commands find no program there, and its MCP servers are no JSON."""
    return sandbox(env={"PATH": "/absent", "EXTRA_MCP_SERVERS": "{"})


@pytest.fixture
def deleted(sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    live = sandbox()
    assert live.output("echo here") == "here"
    assert live.delete().is_success
    return live


@pytest.fixture
def guarded(server: Server) -> Iterator[LiveSandbox]:
    """The same server, restarted with a key that the client does not have."""
    server.restart(("--api-key", "a-key-that-nobody-has"))
    yield LiveSandbox(server.url, "default")
    server.restart()


def test_every_method_has_a_row() -> None:
    methods = {name for name, _, _ in sdk_calls.methods()}
    assert sorted(row.method for row in ROWS) == sorted(methods)


@pytest.mark.parametrize("row", ROWS, ids=[row.method for row in ROWS])
def test_it_fails_in_its_own_way(request: pytest.FixtureRequest, row: Row) -> None:
    live: LiveSandbox = request.getfixturevalue(row.where)
    text = row.text.format(name=live.name)
    if row.status == 200:
        answer = row.call(live.client)
        answer = answer if isinstance(answer, dict) else answer.model_dump()
        assert answer["success"] is False, answer
        assert text in answer["message"]
        return
    with pytest.raises(ApiError) as failure:
        row.call(live.client)
    assert failure.value.status_code == row.status, failure.value
    assert failure.value.body["success"] is False
    assert text in failure.value.body["message"], failure.value
