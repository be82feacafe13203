"""The examples of the three systems' READMEs, as their users type them; docs/SEEDS.md has the whole table."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from agent_sandbox import Sandbox
from arenite_server import Server
from sandboxes import LiveSandbox


@pytest.fixture(scope="module")
def live(server: Server) -> Iterator[LiveSandbox]:
    """One sandbox with all services, as AIO's container is."""
    name = f"t-seeds-{uuid.uuid4().hex[:8]}"
    made = httpx.post(f"{server.url}/api/v1/sandbox", json={"name": name, "environment": "aio"}, timeout=120)
    assert made.status_code == 200, made.text
    live = LiveSandbox(server.url, name, 120)
    yield live
    live.delete()


@pytest.fixture(scope="module")
def client(live: LiveSandbox) -> Sandbox:
    return live.client


def test_aio_addresses(live: LiveSandbox) -> None:
    for path in ("/v1/docs", "/vnc/index.html?autoconnect=true", "/code-server/"):
        assert live.http.get(path, follow_redirects=True).status_code == 200, path
    assert live.http.get("/v1/openapi.json").json()["openapi"].startswith("3.")


def test_aio_basic_usage(client: Sandbox) -> None:
    home_dir = client.sandbox.get_context().home_dir
    assert home_dir == "/home/gem"
    assert "total" in client.shell.exec_command(command="ls -la").data.output
    assert client.file.read_file(file=f"{home_dir}/.bashrc").data.content is not None
    assert b"".join(client.browser.screenshot()).startswith(b"\x89PNG")


def test_aio_client_with_header_and_timeout(live: LiveSandbox) -> None:
    client = Sandbox(base_url=live.url, headers={"Authorization": "Bearer <jwt>"}, timeout=120)
    assert client.sandbox.get_context().home_dir
    assert client.sandbox.get_python_packages().data


def test_aio_shell(client: Sandbox) -> None:
    assert client.shell.exec_command(command="echo 'Hello World'").data.output == "Hello World"
    assert client.shell.exec_command(command="ls -la /tmp | head -5").data.output
    assert client.shell.exec_command(command="pwd", exec_dir="/home/gem").data.output == "/home/gem"
    session = client.shell.create_session(id=str(uuid.uuid4()), exec_dir="/home/gem", no_change_timeout=120)
    session_id = session.data.session_id
    client.shell.exec_command(command="export MY_VAR=hello", id=session_id)
    assert client.shell.exec_command(command="echo $MY_VAR", id=session_id).data.output == "hello"
    assert session_id in client.shell.list_sessions().data.sessions
    client.shell.cleanup_session(session_id)


def test_aio_files(client: Sandbox) -> None:
    path = "/home/gem/notes.txt"
    written = client.file.write_file(file=path, content="Hello from AIO Sandbox!\nLine two.\n", encoding="utf-8")
    assert written.data.bytes_written == 34
    picture = base64.b64encode(b"\x89PNG\r\n").decode()
    client.file.write_file(file="/home/gem/image.png", content=picture, encoding="base64")
    client.file.write_file(file=path, content="Appended line.\n", append=True)
    assert client.file.read_file(file=path).data.content.endswith("Appended line.\n")
    assert client.file.read_file(file=path, start_line=0, end_line=1).data.content.startswith("Hello")
    listed = client.file.list_path(path="/home/gem").data
    assert listed.total_count >= 2 and {"notes.txt", "image.png"} <= {file.name for file in listed.files}
    assert client.file.list_path(path="/home/gem", recursive=True).data.files
    client.file.write_file(file="/home/gem/app.py", content="def one():\n    pass  # TODO\n\ndef two():\n    pass\n")
    found = client.file.search_in_file(file="/home/gem/app.py", regex=r"def \w+").data
    assert len(found.matches) == len(found.line_numbers) == 2, found
    assert "/home/gem/app.py" in client.file.find_files(path="/home/gem", glob="**/*.py").data.files
    grepped = client.file.grep_files(
        path="/home/gem", pattern="todo", include=["*.py", "*.ts"], exclude=["node_modules", "__pycache__"],
        case_insensitive=True, recursive=True, max_results=50,
    )
    match = grepped.data.matches[0]
    assert (match.file, match.line_number) == ("/home/gem/app.py", 2), match
    client.file.write_file(file="/home/gem/config.py", content="DEBUG = False\n")
    client.file.replace_in_file(file="/home/gem/config.py", old_str="DEBUG = False", new_str="DEBUG = True")
    assert client.file.read_file(file="/home/gem/config.py").data.content == "DEBUG = True\n"


def test_aio_editor(client: Sandbox) -> None:
    path = "/home/gem/hello.py"
    edit = client.file.str_replace_editor
    client.bash.exec(command=f"rm -f {path}")
    edit(command="create", path=path, file_text="def greet(name):\n    return f'Hello, {name}!'\n")
    assert "greet" in edit(command="view", path=path).data.output
    edit(command="str_replace", path=path, old_str="Hello, {name}!", new_str="Hi, {name}!")
    edit(command="insert", path=path, insert_line=1, new_str='    """Greet a user."""\n')
    assert '"""Greet' in client.file.read_file(file=path).data.content
    edit(command="undo_edit", path=path)
    assert '"""Greet' not in client.file.read_file(file=path).data.content


def test_aio_code(client: Sandbox) -> None:
    sid = client.jupyter.create_session(kernel_name="python3").data.session_id
    code = "import pandas as pd\ndf = pd.DataFrame({'x': [1,2,3], 'y': [4,5,6]})"
    client.jupyter.execute_code(code=code, session_id=sid, kernel_name="python3")
    described = client.jupyter.execute_code(code="print(df.describe())", session_id=sid, kernel_name="python3")
    assert "mean" in described.data.outputs[0].text
    client.jupyter.delete_session(sid)
    node = client.nodejs.execute_code(code="const os = require('os'); console.log('Platform:', os.platform());")
    assert node.data.outputs[0].text.startswith("Platform: linux")
    code = "import sys, json\nprint(json.dumps({'version': sys.version.split()[0], 'sum': sum(range(100))}))"
    answer = client.code.execute_code(code=code, language="python").data
    assert json.loads(answer.outputs[0]["text"])["sum"] == 4950
    script = "console.log(JSON.stringify([1,2,3].map(x => x*x)))"
    assert client.code.execute_code(code=script, language="javascript").data.outputs[0]["text"].strip() == "[1,4,9]"


def test_aio_browser(client: Sandbox) -> None:
    info = client.browser.get_info().data
    assert info.cdp_url.startswith("ws://") and info.viewport.width > 0
    page = client.browser_page
    form = "<title>Example Domain</title><input name=q><button id=submit-button>Go</button><p>text"
    page.navigate(url=f"data:text/html,{form}", wait_until="networkidle")
    assert "text" in page.get_text().data
    assert page.get_markdown().data is not None
    assert page.evaluate(expression="document.title").data == "Example Domain"
    page.click(selector="#submit-button")
    page.fill(selector='input[name="q"]', text="AIO Sandbox")
    page.press_key(key="Enter")
    assert b"".join(page.screenshot()).startswith(b"\x89PNG")


def test_aio_mcp(live: LiveSandbox) -> None:
    def call(name: str, **arguments: str) -> dict:
        body = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
        answer = live.http.post("/mcp", json=body).raise_for_status().json()
        assert "error" not in answer, answer
        return answer

    assert call("browser_navigate", url="data:text/html,<title>x</title>hello")
    assert call("sandbox_execute_bash", cmd="uname -a")


def test_aio_site_to_markdown(live: LiveSandbox) -> None:
    """The complete example, of a page that needs no internet: browser over CDP, kernel, shell, file."""
    from playwright.sync_api import sync_playwright

    client = live.client
    home_dir = client.sandbox.get_context().home_dir

    def visit() -> tuple[str, str]:
        with sync_playwright() as playwright:
            browser = playwright.chromium.connect_over_cdp(client.browser.get_info().data.cdp_url)
            page = browser.new_page()
            page.goto("data:text/html,<h1>Heading</h1><p>words", wait_until="networkidle")
            html, picture = page.content(), base64.b64encode(page.screenshot()).decode()
            browser.close()
            return html, picture

    # The thread of the tests may have another Playwright.
    with ThreadPoolExecutor(1) as pool:
        html, picture = pool.submit(visit).result()
    client.jupyter.execute_code(code=f"""
from markdownify import markdownify
html = '''{html}'''
screenshot_b64 = "{picture}"
md = f"{{markdownify(html)}}\\n\\n![Screenshot](data:image/png;base64,{{screenshot_b64}})"
with open('{home_dir}/site.md', 'w') as f:
    f.write(md)
""")
    assert "site.md" in client.shell.exec_command(command=f"ls -lh {home_dir}").data.output
    text = client.file.read_file(file=f"{home_dir}/site.md").data.content
    assert "Heading" in text and "data:image/png;base64," in text


def test_aio_compose_settings(server: Server) -> None:
    """The variables of its compose files, with their defaults."""
    env = {
        "PROXY_SERVER": "host.docker.internal:7890", "JWT_PUBLIC_KEY": "", "DNS_OVER_HTTPS_TEMPLATES": "", "WORKSPACE": "/home/gem/project",
        "HOMEPAGE": "", "BROWSER_EXTRA_ARGS": "", "TZ": "Asia/Singapore", "WAIT_PORTS": "",
    }
    name = f"t-compose-{uuid.uuid4().hex[:8]}"
    made = httpx.post(f"{server.url}/api/v1/sandbox", json={"name": name, "image": "base", "env": env}, timeout=120)
    assert made.status_code == 200, made.text
    live = LiveSandbox(server.url, name)
    try:
        assert live.output("date +%Z; pwd").split() == ["+08", "/home/gem/project"]
    finally:
        live.delete()


def test_agent_sandbox_create_use_and_delete(server: Server) -> None:
    name = f"sandbox-{uuid.uuid4().hex[:8]}"
    curl = ["curl", "--silent", "--location"]
    made = subprocess.run(
        [*curl, f"{server.url}/api/v1/sandbox", "--header", "Content-Type: application/json", "--data", json.dumps({"name": name})],
        capture_output=True, text=True, check=True, timeout=120,
    )
    assert json.loads(made.stdout) == {"code": "0", "data": f"Sandbox {name} created successfully"}
    client = Sandbox(base_url=f"{server.url}/sandbox/{name}")
    home_dir = client.sandbox.get_context().home_dir
    assert client.shell.exec_command(command="ls -la").data.output
    assert client.file.read_file(file=f"{home_dir}/.bashrc").data.content is not None
    tools = httpx.post(f"{server.url}/sandbox/{name}/mcp", json={"method": "tools/list"}, timeout=60).json()
    assert tools["result"]["tools"]
    gone = subprocess.run(
        [*curl, "--request", "DELETE", f"{server.url}/api/v1/sandbox/{name}"], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(gone.stdout) == {"code": "0", "data": f"Sandbox {name} deleted successfully"}


def test_agentflow_requests(server: Server) -> None:
    """The two requests of its introduction, with the backend that needs no machine."""
    worker = f"sandbox_{uuid.uuid4().hex[:8]}"
    with server.api() as api:
        made = api.post("/api/v1/session/create", json={"worker_id": worker, "resource_type": "bash", "config": {}})
        assert made.json()["code"] == 0, made.text
        done = api.post("/api/v1/execute", json={"worker_id": worker, "action": "bash:run", "params": {"command": "echo $((6*7))"}})
        assert done.json()["code"] == 0 and "42" in done.text, done.text
        assert {"data", "meta"} <= done.json().keys()
        api.post("/api/v1/worker/disconnect", json={"worker_id": worker})
