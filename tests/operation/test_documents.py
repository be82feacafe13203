"""The examples of the README and of docs, as they are written there, against the real server on the addresses that they name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import REPOSITORY, Server, binary
from default_address import DEFAULT, default_address
from documents import Block, Reader, blocks

PORT = 8080
DOCUMENTS = ["README.md", *sorted(f"docs/{file.name}" for file in (REPOSITORY / "docs").glob("*.md"))]
EXAMPLES = {document: found for document in DOCUMENTS if (found := blocks(document))}

#: The start of commands, or of blocks that are not commands, which are not run here; and why.
ELSEWHERE = {
    "cargo xtask up": "soak/test_commands.py runs it",
    "cargo xtask test": "this test is a part of it",
    "client = openai.OpenAI(base_url": "needs an upstream; trajectory/test_models_crash.py calls a fake one with both clients",
    "arenite rollout run tasks.jsonl --out runs/model": "needs an upstream, too; trajectory/test_models_crash.py runs a rollout",
    "arenite create --tier gvisor": "needs gVisor's runsc; isolation/test_tiers.py creates and refuses such sandboxes",
    "ADD https://example.org": "lines of a Dockerfile; operation/test_dockerfiles.py downloads from a local server",
    "arenite create coder --image code --tier gvisor": "needs runsc, too; state/test_kept_processes.py creates such sandboxes",
    "arenite checkpoint coder": "needs that sandbox; state/test_kept_processes.py runs it",
    "arenite rollback coder": "needs that sandbox; state/test_kept_processes.py runs it",
    "arenite snapshot create coder": "needs that sandbox; state/test_kept_processes.py makes such snapshots",
    "arenite create other --snapshot warm": "needs that snapshot; state/test_kept_processes.py creates from one",
    "arenite fork coder": "needs that sandbox; state/test_kept_processes.py forks one",
    "arenite create desk --image vm": "needs an image with a VM; vm/test_kept_vm.py creates such sandboxes",
    "arenite checkpoint desk": "needs that sandbox; vm/test_kept_vm.py seals one",
    "arenite fork desk": "needs that sandbox; vm/test_kept_vm.py forks one",
    "arenite rollback desk": "needs that sandbox; vm/test_kept_vm.py runs it",
    "arenite serve --tier gvisor": "needs runsc, too; isolation/test_tiers.py starts such a server",
    "sudo apt install": "operation/test_packages.py installs the package in a root directory",
    "claude mcp add": "a client of another project, which is not installed here; hub/test_hub.py connects in both ways",
    "sudo arenite serve --tenants": "needs a server with tenants; tenants/test_tenants.py starts one",
    "export ARENITE_API_KEY=arn_": "a key of the line above; tenants/test_tenants.py uses one",
    "arenite tenant create acme": "needs that key; tenants/test_tenants.py runs it",
    "arenite key create --tenant acme": "needs that key; tenants/test_tenants.py runs it",
    "arenite tenant set acme": "needs that key; operation/test_quotas.py runs it",
    '{"code": "exhausted"': "an answer, not a command; operation/test_quotas.py causes some",
    "arenite tenant ls": "needs that key; operation/test_quotas.py runs it",
    "arenite usage --tenant acme": "needs that key; operation/test_quotas.py runs it",
    "arenite audit --tenant acme": "needs that key; tenants/test_tenants.py runs it",
    '{\n  "type": "/api/v2/docs/errors#not_found"': "an answer, not a command; operation/test_api.py causes refusals of each route",
    "Server-Timing: auth": "a header, not a command; operation/test_api.py reads it from each route",
    "error: there is no sandbox dmeo": "messages, not a command; operation/test_command_line.py causes one for each command",
    "error: could not listen": "messages, not a command; operation/test_servers.py causes and compares both",
    '{\n  "id": "64f0c2a8b1c5d-17"': "an event, not a command; operation/test_events.py causes some",
    "arenite node drain": "needs a cluster; operation/test_node_drain.py has one with three nodes",
    "arenite node uncordon": "needs a cluster; operation/test_node_drain.py has one with three nodes",
    'trajectory_store = "s3:': "needs a bucket; trajectory/test_object_storage.py has one",
    "arenite exec agent -- git clone git@git.example.com": "needs a server; isolation/test_ssh_agent.py has one",
    "arenite exec agent -- sh -c 'PGSSLROOTCERT": "needs a database server; isolation/test_postgres_secrets.py has one",
    "sudo arenite serve --store": "needs a database server; operation/test_nodes.py has one with three nodes",
    "sudo -u postgres create": "needs a database server; postgres.py makes one for each test of the store",
    "sudo arenite serve --listen 0.0.0.0:8443": "needs a certificate; operation/test_tls.py makes several",
    "sudo systemctl": "needs systemd; operation/test_packages.py has the units",
    "sudo arenite store import": "needs a stopped server; operation/test_store.py stops one, and restores a backup",
    "sudo arenite store export - |": "needs a database server; operation/test_store.py moves rows in both directions",
    "sudo arenite image save base code": "loads into another data directory; operation/test_images.py does both",
    "sudo arenite image build NAME PATH": "forms, not commands; operation/test_dockerfiles.py uses them",
    '{\n  "runtimes"': "an entry of Docker's configuration; engines/test_docker_gvisor.py has a daemon with it",
    '{\n  "mode": "allowlist"': "a network policy; a test of crates/egress compiles it",
    'engine = "docker"': "settings, not a command; engines/test_conformance.py has a server with Docker",
    "sudo arenite image pull": "needs a registry; operation/test_images_oci.py has one, and pulls from it",
    "sudo arenite image push": "needs a registry; operation/test_images_oci.py has one, and pushes to it",
    "tar -C app -c .": "needs a folder with a Dockerfile; operation/test_image_builds.py sends contexts",
    "sudo arenite image build base --from": "needs a registry; operation/test_base_on_image.py pulls from one",
    "sudo arenite image build tools --from": "the same; operation/test_base_on_image.py uses other names",
    "sudo arenite image prune --unused-for": "changes images of other tests; operation/test_image_age.py runs it",
    "sudo arenite image save base --with-guest": "for Docker; operation/test_standalone.py saves it and runs it there",
    "docker load": "needs Docker; operation/test_standalone.py loads the image into one",
    "docker run": "needs Docker; operation/test_standalone.py runs containers with and without a key",
    "docker exec": "needs such a container; operation/test_standalone.py runs the command in one",
    "docker save": "needs Docker; operation/test_images_oci.py writes what it writes",
    "sudo arenite image load": "loads that; operation/test_images_oci.py does it, and loads a layout as a directory",
    "# /etc/arenite/shared.toml": "the file of a bucket; state/test_bucket_volumes.py has one",
    "arenite volume create data --bucket": "needs a bucket; state/test_bucket_volumes.py has one",
    "arenite create worker --volume data": "needs the volume of the line above; state/test_bucket_volumes.py mounts one",
    "arenite quarantine adopt ID": "needs a damaged record; isolation/test_crash_records.py damages some and runs it",
    "arenite quarantine rm ID": "needs a damaged record; isolation/test_crash_records.py damages some and runs it",
    "cargo xtask container-image": "needs a program to put into it; operation/test_container_image.py runs it",
    "docker load": "needs Docker; operation/test_container_image.py loads and runs the image",
    "docker push": "needs a registry of the reader's; kubernetes/test_chart.py gives the image to nodes",
    "helm ": "needs a cluster; kubernetes/test_chart.py installs, upgrades, and uninstalls the chart",
    "image:\n  repository:": "values, not a command; operation/test_deploy.py has the renderings of others",
    "sandboxes:\n  podSecurity:": "values, not a command; kubernetes/test_chart.py has a sandbox with them",
    "mode: nodes\n": "values, not a command; kubernetes/test_chart.py installs a node with others",
    "kubectl ": "needs a cluster; kubernetes/test_chart.py applies install.yaml",
    'curl -s http://127.0.0.1:8080/api/v1/sandbox -H "x-api-key': "needs a key of that cluster; kubernetes/test_chart.py calls the server",
    "sed 's|arenite:0.1.0|": "for the line after it; kubernetes/test_chart.py changes the same names",
    "sudo arenite vm build": "takes minutes; vm/conftest.py builds the VM that comes with Arenite, and no test another one",
    "sudo arenite vm import osworld": "needs a disk with a system, and boots it; vm/conftest.py imports an empty disk",
    "arenite create demo --image vm": "needs the VM of the line above; vm/test_vm.py creates sandboxes with it",
    "sudo arenite vm probe": "boots a VM, and decides for all later tests; vm/test_kvm.py runs it with and without --off",
}

#: By document and heading, what the examples print.
EXPECTED = {
    "README.md": {
        "Python, with AIO Sandbox's client": ["0\n", "hello from /tmp\n", "out\n err\n 3\n", "1\t", "Hello"],
        "Arenite's own clients": ["started\ndone\n42\n"],
        "Agent-Sandbox's API": ['"demo"', '"stdout":"demo\\n"'],
        "AgentFlow's client, for many workers": ["42\n"],
        "MCP": ["Linux"],
        "Command line": ["42\n", "bash"],
        "Recording": ["demo"],
    },
    "docs/API.md": {
        "Errors": ['"detail":"there is no sandbox nobody"', '"/api/v2/docs/errors#not_found"'],
        "Pages": ['"next_cursor":"', "'default'"],
        "Filters": ['"sandboxes":[]', '"next_cursor":null'],
    },
    "docs/ENVIRONMENT.md": {"MCP servers": ['cwd\\": \\"/home/gem', '{\\"n\\": 7}']},
    "docs/MCP.md": {"Transports": ["Linux"], "Clients": ["Linux"]},
    "docs/PLUGINS.md": {
        "A backend in Python": ["{'count': 7}\n"],
        "API tools in Python": ["30", "It rains in Bergen.", '"pages":2'],
        "Errors": ["boom"],
    },
    "docs/RETRIEVAL.md": {"Corpora: searching passages by words and by meaning": ["bm25", '"results"', "a new password"]},
    "docs/SYNTHESIS.md": {"Data synthesis: AgentFlow's server": ["Linux"]},
    "docs/TRAJECTORIES.md": {"Trajectories": ["solver-3", "exit 3", '"task-17"']},
    "docs/WAYS_IN.md": {"Inside a sandbox": ["Ran 1 test", "localhost", "Usage"]},
}

IMAGEFILE = "FROM base"
TASK = '{"id": "sum", "steps": [{"action": "bash:run", "params": {"command": "expr 6 \'*\' 7"}}], "expect": "42"}\n'
UNIT_TEST = "import unittest\n\nclass Sum(unittest.TestCase):\n    def test_sum(self):\n        self.assertEqual(1 + 1, 2)\n"


# What a reader has before the first example of a document.


def create_default(reader: Reader) -> None:
    """The README's server has `aio` as its default image."""
    made = httpx.post(f"{reader.server.url}/api/v2/sandboxes", json={"name": "default", "image": "aio"}, timeout=120)
    assert made.status_code == 201, made.text


def write_folders(reader: Reader) -> None:
    for name in ("project", "tools"):
        reader.write(f"{name}/hello.txt", "hello\n")
    shutil.copytree(REPOSITORY / "clients", reader.folder / "clients", ignore=shutil.ignore_patterns("build", "*.egg-info"))


def write_agent(reader: Reader) -> None:
    reader.write("tasks.jsonl", TASK)
    shutil.copy(REPOSITORY / "examples/agents/scripted.py", reader.folder / "agent.py")


def write_handbook(reader: Reader) -> None:
    reader.write("docs/accounts.md", "# Accounts\n\nTo reset a password, ask for a new password by mail.\n")
    reader.write("queries.jsonl", '{"id": "q1", "text": "reset a password"}\n')
    reader.write("qrels.tsv", "q1\t0\t1\n")


def write_plan(reader: Reader, text: str) -> str:
    reader.write("plan.toml", text)
    return ""


def write_dataset(reader: Reader) -> None:
    reader.write("srv/datasets/numbers.csv", "1,2\n")


def copy_unit_test(reader: Reader) -> None:
    reader.write("test_sum.py", UNIT_TEST)
    reader.run("arenite", "cp", "test_sum.py", "default:/home/gem/")


def record_trajectories(reader: Reader) -> None:
    work = {"worker_id": "solver-3", "task_id": "task-17", "action": "bash:run", "params": {"command": "echo ok"}}
    with reader.server.api() as api:
        api.post("/api/v2/sandboxes", json={"name": "demo"}).raise_for_status()
        api.post("/sandbox/demo/v1/bash/exec", json={"command": "echo out; exit 3"}).raise_for_status()
        api.post("/api/v1/execute", json=work).raise_for_status()
        found = api.get("/api/v1/trajectories", params={"worker": "solver-3"}).raise_for_status().json()
    reader.stand_ins["{id}"] = found["trajectories"][0]["trajectory"]


GIVEN: dict[str, list[Callable[[Reader], None]]] = {
    "README.md": [create_default, write_folders, write_agent],
    "docs/OPERATIONS.md": [write_dataset],
    "docs/RETRIEVAL.md": [write_handbook],
    "docs/ROLLOUTS.md": [write_agent],
    "docs/TRAJECTORIES.md": [record_trajectories],
    "docs/WAYS_IN.md": [create_default, copy_unit_test],
}

# What a reader does with a block that is not for a shell or Python on the host.


def save_imagefile(reader: Reader, text: str) -> str:
    assert IMAGEFILE in text
    reader.write("Imagefile", text)
    return ""


def run_inside(reader: Reader, text: str) -> str:
    shell = ("arenite", "exec", "default", "--", "bash", "-euo", "pipefail", "-c")
    return "".join(reader.run(*shell, line) for line in text.splitlines())


def run_javascript(reader: Reader, text: str) -> str:
    return reader.run("node", "--input-type=module", "-e", text)


#: What clients do with an entry of their configuration: start a program, or open an address with headers.
CONNECT = """
import asyncio, json, sys
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

async def main(type=None, url=None, headers=None, **program):
    if url is None:
        place = StdioServerParameters(**program)
    else:
        place = streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers))
    async with Client(place) as client:
        print((await client.call_tool("sandbox_execute_bash", {"cmd": "uname"})).content[0].text)

asyncio.run(main(**json.loads(sys.argv[1])))
"""


def connect(reader: Reader, text: str) -> str:
    [servers] = (json.loads if text.startswith("{") else tomllib.loads)(text).values()
    printed = reader.run("python3", "-c", CONNECT, json.dumps(servers["arenite"]))
    assert "Linux" in printed, printed
    return printed


def add_mcp_servers(reader: Reader, text: str) -> str:
    """In a sandbox that has a program of the name, and a server at the address. Calls a tool of each."""
    program = (REPOSITORY / "crates/guest/guest/tests/mcp/server.py").read_text()
    reader.write("servers/notes.py", program)
    reader.write("servers/search.py", program.replace('"127.0.0.1", 0', '"127.0.0.1", 8100').replace("sekrit", "KEY"))
    reader.write("servers/notes-server", "#!/bin/sh\nexec python3 -u /home/gem/servers/notes.py\n")
    reader.run("arenite", "create", "demo", "--env", f"EXTRA_MCP_SERVERS={text}")
    reader.run("arenite", "cp", "./servers", "demo:/home/gem/")
    reader.run("arenite", "exec", "demo", "--", "sudo", "install", "servers/notes-server", "/usr/local/bin")

    def call(tool: str, **arguments: object) -> str:
        body = json.dumps({"method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        return reader.run("curl", "-s", f"http://127.0.0.1:{PORT}/sandbox/demo/mcp", "-d", body)

    # In a shell that stays, so that the server stays.
    call("sandbox_execute_bash", cmd="python3 servers/search.py ready & until [ -e ready ]; do sleep 0.1; done")
    return call("notes_environment") + call("search_echo", n=7)


def execute(reader: Reader, action: str, **params: object) -> str:
    body = json.dumps({"worker_id": "w1", "action": action, "params": params})
    return reader.run("curl", "-s", f"127.0.0.1:{DEFAULT}/api/v1/execute", "-H", "content-type: application/json", "-d", body)


def configure_backend(reader: Reader, text: str) -> str:
    """The start command names the plugin's folder and the configuration."""
    reader.write("srv/plugins/counter_backend.py", (reader.folder / "counter_backend.py").read_text())
    (reader.folder / "counter_backend.py").unlink()
    reader.write("config.json", text)
    return ""


def add_method(reader: Reader, text: str) -> str:
    file = reader.folder / "srv/plugins/counter_backend.py"
    file.write_text(f"{file.read_text()}\n{text}\nCounterBackend.crawl = crawl\n")
    return ""


def configure_tools(reader: Reader, text: str) -> str:
    """Beside the backend, which has another method now."""
    reader.write("config.json", json.dumps(json.loads((reader.folder / "config.json").read_text()) | json.loads(text)))
    reader.serve("--agentflow-config", "config.json", ARENITE_PLUGIN_PATH=f"{reader.folder}/srv/plugins", WEATHER_KEY="key")
    calls = (("add", {"a": 1, "b": 2}), ("weather:today", {"city": "Bergen"}), ("counter:crawl", {"urls": ["a", "b"]}))
    return "".join(execute(reader, tool, **params) for tool, params in calls)


#: A plugin that sends the documented messages, and compares the session that it gets with the documented one.
PLUGIN = """
import json, sys

described, session, error = map(json.loads, open("messages.jsonl"))
kinds = lambda fields: {name: type(value) for name, value in fields.items()}
for request in map(json.loads, sys.stdin):
    answer = {"result": {}}
    match request.get("method"):
        case "describe":
            answer = {"result": described}
        case "initialize":
            assert kinds(request["params"]["session"]) == kinds(session), request
        case "call":
            answer = {"error": error["error"]}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


def keep_message(reader: Reader, text: str) -> str:
    with (reader.folder / "messages.jsonl").open("a") as file:
        file.write(json.dumps(json.loads(text)) + "\n")
    return ""


def start_plugin(reader: Reader, text: str) -> str:
    keep_message(reader, text)
    reader.write("plugin.py", PLUGIN)
    reader.write("config.json", json.dumps({"resources": {"counter": {"command": ["python3", "plugin.py"]}}}))
    reader.serve("--agentflow-config", "config.json")
    return execute(reader, "counter:add", by=2)


#: By document, heading, and language.
USES: dict[tuple[str, str, str], Callable[[Reader, str], str]] = {
    ("README.md", "Images", "dockerfile"): save_imagefile,
    ("docs/ENVIRONMENT.md", "MCP servers", "json"): add_mcp_servers,
    ("docs/MCP.md", "Clients", "js"): run_javascript,
    ("docs/MCP.md", "Clients", "json"): connect,
    ("docs/MCP.md", "Clients", "toml"): connect,
    ("docs/PLUGINS.md", "A backend in Python", "json"): configure_backend,
    ("docs/PLUGINS.md", "Long calls", "python"): add_method,
    ("docs/PLUGINS.md", "API tools in Python", "json"): configure_tools,
    ("docs/PLUGINS.md", "Requests", "json"): keep_message,
    ("docs/PLUGINS.md", "Errors", "json"): start_plugin,
    ("docs/STATE.md", "Exploration", "toml"): write_plan,
    ("docs/WAYS_IN.md", "Inside a sandbox", "sh"): run_inside,
}


def is_elsewhere(text: str) -> bool:
    return text.startswith(tuple(ELSEWHERE))


def follow(reader: Reader, document: str, block: Block) -> str:
    """Runs what is run here of a block, and returns what it prints."""
    if use := USES.get((document, block.heading, block.language)):
        return use(reader, block.text)
    if block.language == "sh":
        return "".join(reader.shell(line) for line in block.commands if not is_elsewhere(line))
    if block.language == "python" and block.file:
        reader.write(block.file, block.text)
    elif block.language == "python":
        # The blocks under a heading are one program.
        kind = (block.heading, "python", None)
        program = [other.text for other in EXAMPLES[document] if (other.heading, other.language, other.file) == kind]
        return reader.run("python3", "-c", "".join(program)) if block.text == program[0] else ""
    else:
        where = f"{document}, {block.heading}"
        assert is_elsewhere(block.text), f"{where}: a block of {block.language!r} is not tried:\n{block.text}"
    return ""


@pytest.fixture
def reader(server: Server, tmp_path: Path, document: str) -> Iterator[Reader]:
    def clean() -> None:
        for name in ("default", "demo", "work"):
            httpx.delete(f"{server.url}/api/v2/sandboxes/{name}", timeout=60)

    clean()
    installs = any(line.startswith("pip install ") for block in EXAMPLES[document] for line in block.commands)
    with default_address(server.port, PORT, DEFAULT) as inside:
        reader = Reader(server, tmp_path, inside, installs)
        yield reader
    try:
        clean()
    finally:
        reader.leave()
    for left in (["image", "rm", "tools", "--force"], ["rag", "rm", "handbook"]):
        subprocess.run([str(binary()), *left, "--data-dir", str(server.data_dir)], capture_output=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", EXAMPLES)
def test_every_example_runs(document: str, reader: Reader) -> None:
    for give in GIVEN.get(document, []):
        give(reader)
    printed: defaultdict[str, str] = defaultdict(str)
    for block in EXAMPLES[document]:
        printed[block.heading] += follow(reader, document, block)
    for heading, texts in EXPECTED.get(document, {}).items():
        for text in texts:
            assert text in printed[heading], f"{heading}: {text!r} is not in\n{printed[heading]}"


def test_the_tables_name_only_what_exists() -> None:
    found = {document: {(block.heading, block.language) for block in examples} for document, examples in EXAMPLES.items()}
    assert [use for use in USES if use[1:] not in found.get(use[0], ())] == []
    assert EXPECTED.keys() | GIVEN.keys() <= EXAMPLES.keys()
    written = [text for examples in EXAMPLES.values() for block in examples for text in (*block.commands, block.text)]
    assert [start for start in ELSEWHERE if not any(text.startswith(start) for text in written)] == []
    tests = [name for reason in ELSEWHERE.values() for name in re.findall(r"\S+\.py", reason)]
    assert [name for name in tests if not (REPOSITORY / "tests" / name).is_file()] == []
