"""What AgentFlow's server was asked of `ds`, `doc` and `text2sql`, asked of ours. `backends/` has the exchanges, the configurations of
the servers that they were recorded with, and their data. Differences are listed here, each with its reason."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arenite_server import Server, free_port

HERE = Path(__file__).resolve().parent / "backends"
SERVERS: dict[str, dict[str, Any]] = json.loads((HERE / "servers.json").read_text())
EXCHANGES: list[dict[str, Any]] = [json.loads(line) for line in (HERE / "wire.jsonl").read_text().splitlines()]

#: Servers that were set up alike are one here, to start fewer.
SAME = {"ds-plain-tabulate": "ds-plain", "ds-plain-2": "ds-plain", "ds-no-seaborn": "ds-plain"}

OWN_SPACE = "AgentFlow runs code with separate globals and locals, so functions do not see what the code defines; here they do"
SANDBOXED = "AgentFlow keeps names and modules from code because it runs in its server; here it runs in a sandbox, with all of Python"
ALONE = "the folder is copied into the sandbox without those beside it"
PYTHON = "AgentFlow repeats what Python said of a wrong value; here the message says what it has to be"
AS_WRITTEN = "a path in an error is as the code has it, and none of the server's"
TEXT_IS_ONE = "AgentFlow takes a text letter by letter; here it is one name"
NO_CODE = "AgentFlow's own program for calls without code breaks off with NameError; ours answers"
TABULATE = "tabulate was not installed there, and is in our image"

#: A title of an exchange: why it differs, the status, and what has to be in the answer: values by their paths, patterns of the result.
Difference = tuple[str, int, dict[str, Any] | str]
DIFFERENT: dict[str, Difference] = {
    # ds: code
    "groupby and merge, comprehension over a top level name (Python 3.11: NameError)": (OWN_SPACE, 200, r"^📄 Standard Output:\n\(62, 11\)\nstore_id\nS1    78\.0"),
    "function sees predefined names but not own top level names": (OWN_SPACE, 200, r"^📄 Standard Output:\n3\n3$"),
    "function calls another function": (OWN_SPACE, 200, r"^📄 Standard Output:\n1$"),
    "comprehension uses a local name": (OWN_SPACE, 200, r"^📄 Standard Output:\n\[0, 1, 2\]\n\[0, 2, 4\]$"),
    "lambda uses a local name": (OWN_SPACE, 200, r"^📄 Standard Output:\n\[2, 4\]\n\[2, 4\]$"),
    "recursive function": (OWN_SPACE, 200, r"^📄 Standard Output:\n24$"),
    "module imported at top level is not visible in a function": (OWN_SPACE, 200, r"^📄 Standard Output:\n1\.5$"),
    "dataframe apply with lambda over a local": (OWN_SPACE, 200, r"^📄 Standard Output:\n\[840, .*\]\n\[1260, .*\]$"),
    "open() is not there": (SANDBOXED, 200, r"^📄 Standard Output:\nstore_id,city"),
    "blocked import": (SANDBOXED, 200, r"^✅ Execution successful"),
    "blocked import inside try": (SANDBOXED, 200, {"code": 0}),
    "eval, exec, input, globals, open, super, __import__": (SANDBOXED, 200, r"(?s)eval True.*FileNotFoundError True.*print True"),
    "all names of the builtins table": (SANDBOXED, 200, r"'open'"),
    "class statement": (SANDBOXED, 200, r"^📄 Standard Output:\n<class '__main__.A'>$"),
    "__name__ main guard": (SANDBOXED, 200, r"^📄 Standard Output:\nmain$"),
    "stop iteration and try/except of unlisted exception names": (SANDBOXED, 200, r"^📄 Standard Output:\nx list index out of range$"),
    "exit()": (SANDBOXED, 200, r"^✅ Execution successful"),
    "predefined names": (SANDBOXED, 200, r"(?s)<class 'module'> 2020-01-02 00:00:00\n\[.*'Path'.*'collections'.*'datetime'.*'itertools'.*'json'.*'load_csv'.*'math'.*'np'.*'os'.*'pd'.*'plt'.*'random'.*'re'.*'save_file'.*'scipy'.*'sklearn'.*'sm'.*'sns'.*'sys'.*'time'.*'warnings'"),
    "sys.exit escapes the tool: plain text HTTP 500, the server lives on": ("here it ends the code, and its output is answered", 200, r"(?s)SystemExit: 3.*📄 Standard Output:\nbye$"),
    "load_csv helper": (ALONE, 200, r"(?s)FileNotFoundError.*📄 Standard Output:\n\(5, 1\)$"),
    "pd.read_csv may leave the folder": (ALONE, 200, r"FileNotFoundError"),
    "pd.read_csv of a sibling folder whose name starts the same": (ALONE, 200, r"FileNotFoundError"),
    "globals of pandas stay patched only during the call": ("pandas is as it is: the folder is the working directory", 200, r"^📄 Standard Output:\nread_csv$"),
    "return_vars dataframe, tabulate not installed": (TABULATE, 200, r"^📦 Variables Inspection:\ndf \(shape=\(5, 7\)\):\n\| store_id"),
    "return_vars as text": (TEXT_IS_ONE, 200, r"^📦 Variables Inspection:\nab = 1$"),
    "two figures, one image": ("the other figure is not lost", 200, r"Generated 2 images"),
    "empty code": (NO_CODE, 200, r"(?s)'clustering': \{'file': 'sales\.csv'.*summary = "),
    "code given as number": (NO_CODE, 200, r"'clustering': \{'file': 'sales\.csv'"),
    "code only white space": (NO_CODE, 200, r"'clustering': \{'file': 'sales\.csv'"),
    "code missing": (NO_CODE, 200, r"'clustering': \{'file': 'sales\.csv'"),
    "timeout 1 with sleep 2.5: not enforced": ("timeouts hold for every tool", 500, {"code": 5006}),
    "missing file in user code": (AS_WRITTEN, 200, r"^❌ Execution Error:\nTraceback(?s:.*)No such file or directory: 'nope\.csv'\n$"),
    "relative seed: seed path again inside the code": (AS_WRITTEN, 200, r"No such file or directory: 'csv/stores\.csv'\n$"),
    "relative seed: pd.read_csv": ("AgentFlow looks for a relative folder within itself", 200, r"^📄 Standard Output:\ncsv\n\(5, 7\)$"),
    "relative seed: load_csv": ("the same", 200, r"^📄 Standard Output:\n\(5, 7\)$"),
    # ds: the other tools
    "inspect, seed_path number": (PYTHON, 500, {"code": 5000}),
    "read_csv max_rows as text": ("a number as text is that number", 200, r"^stores\.csv\n.*\nS1,.*\nS2,.*\n\n\.\.\. Truncated, showing first 2 rows"),
    "read_csv null name": (PYTHON, 200, r"^Read failed: csv_file has to be a string$"),
    "trace_id and session_id as params": ("parameters can't forge a session", 200, {"code": 0, "meta": {"session_id": None, "trace_id": "my-trace"}}),
    "one library missing: inspect": ("only code that needs the library fails: here none is missing", 200, r"^sales\.csv:"),
    "one library missing: read_csv": ("the same", 200, r"^stores\.csv\n"),
    "one library missing: run_python": ("the same", 200, r"^📄 Standard Output:\n1$"),
    # doc
    "search max bad text": (PYTHON, 500, {"code": 5000}),
    "search numbers in list": ("a number is taken as it is written", 200, r"^A Document search for `123` found"),
    "search number": ("the same", 200, r"^A Document search for `5` found"),
    "search null": (PYTHON, 500, {"code": 5000}),
    "search broken xml": ("in our parser's words", 500, {"code": 5000}),
    "read number id": ("a number is taken as it is written", 200, r"section_id=2\)"),
    "read number": ("the same", 200, r"section_id=2\)"),
    "read max_text_token text": (PYTHON, 500, {"code": 5000}),
    "read, model endpoint not reachable, key is the unexpanded placeholder": ("a variable that is not set is no key", 500, {"code": 5000, "message": "VLM API key not configured. Please set 'vlm_api_key' in config or VLM_API_KEY/OPENAI_API_KEY environment variable"}),
    # text2sql
    "get_schema, env var set but apis section not expanded by the CLI": ("variables are expanded everywhere", 200, {"code": 0, "data": {"result": {"db_id": "retail"}}}),
    "execute, same": ("the same", 200, {"data": {"result": {"rows": [[1]]}}}),
    "schema of all tables (relative database path)": ("tables with a space in their name work", 200, {"code": 0}),
    "schema of a table with a space in the name": ("the same", 200, {"data": {"result": {"schema": {"odd name": {"foreign_keys": []}}}}}),
    "schema table_names empty": ("the same", 200, {"code": 0}),
    "schema table_names as text": (TEXT_IS_ONE, 200, {"data": {"result": {"schema": {"customer": {"foreign_keys": []}}}}}),
    "execute exactly 100 rows": ("no row is left out", 200, {"data": {"result": {"row_count": 100, "truncated": False}}}),
    "execute blob": ("bytes are Base64", 200, {"data": {"result": {"rows": [[None], ["AP8="], [None]]}}}),
    "execute infinity": ("a number that JSON has not is text", 200, {"data": {"result": {"rows": [["inf"]]}}}),
    "execute query number": (PYTHON, 500, {"code": 5000}),
    "execute db_id list": (PYTHON, 500, {"code": 5000}),
    "session create ds again": ("a session that exists tells its status", 200, {"data": {"status": "exists", "session_status": "active"}}),
}


class Model(http.server.BaseHTTPRequestHandler):
    """Stands for a model: answers as the goal of the call tells it, as the one of the recording did."""

    asked: list[dict[str, Any]] = []
    flaky = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        last = body["messages"][-1]["content"]
        text = json.dumps(last)
        content = '<json>\n{"rational":"r","evidence":"fake evidence","summary":"fake summary"}\n</json>'
        status = 200
        for mode, answer in {
            "MODEEMPTY": "",
            "MODEPLAIN": "I could not find anything.",
            "MODERAW": '{"rational":"r","evidence":"raw evidence","summary":"raw summary"}',
            "MODELIST": '<json>{"rational":"r","evidence":["a","b"],"summary":{"k":1}}</json>',
            "MODEMISSING": '<json>{"rational":"only"}</json>',
            "MODEARRAY": "<json>[1,2]</json>",
        }.items():
            if mode in text:
                content = answer
        if "MODE401" in text or "MODE500" in text:
            status = 401 if "MODE401" in text else 500
        elif "MODEFLAKY" in text:
            Model.flaky += 1
            content = "not json yet" if Model.flaky % 2 else '<json>{"rational":"r","evidence":"second try","summary":"ok"}</json>'
        elif "Summarize the following" in text:
            content = f" fake summary of {len(last)} chars \n"
        answer = {"choices": [{"message": {"role": "assistant", "content": content}}]}
        data = json.dumps(answer if status == 200 else {"error": {"message": "fake failure", "code": status}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[int]:
    """The port of a model."""
    Model.asked, Model.flaky = [], 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        yield endpoint.server_address[1]
        endpoint.shutdown()


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The folders that the recording calls by these names. All are below the first, where the server runs."""
    root = tmp_path / "repository"
    sample, scratch = root / "sample", root / "scratch"
    shutil.copytree(HERE / "sample", sample)
    for folder in ("empty", "badxml", "noout"):
        (scratch / folder).mkdir(parents=True)
    shutil.copytree(sample / "csv", scratch / "w")
    for name in ("outline.xml", "all_content.xml"):
        (scratch / "badxml" / name).write_text("<Outline><Section>")
    shutil.copy(sample / "doc/kettle/all_content.xml", scratch / "noout")
    return {"{REPO}": str(root), "{SAMPLE}": str(sample), "{TMP}": str(scratch)}


def filled(value: Any, places: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, path in places.items():
        text = text.replace(name, path)
    return json.loads(text)


def masked(value: Any, places: dict[str, str], key: str = "") -> Any:
    """Without what is another at each call."""
    match value:
        case dict():
            return {name: masked(part, places, name) for name, part in value.items()}
        case list():
            return [masked(part, places, key) for part in value]
        case int() | float() if key == "execution_time_ms":
            return "{MS}"
        case str() if key == "trace_id":
            return "{UUID}"
        case str() if key in ("created_at", "last_activity", "expires_at", "timestamp"):
            return "{TIME}"
        case str() if key == "base64":
            return "{BASE64 png}" if value.startswith(("iVBOR", "{BASE64")) else value
        case str():
            # Longer names first: one is within the other.
            for name, path in sorted(places.items(), key=lambda one: -len(one[1])):
                value = value.replace(path, name)
            value = re.sub(r"^(ds|doc|sql|text2sql)_(w\d)_\d{3}", r"\1_\2_N", value)
            value = re.sub(r"_([0-9a-f]{8}|\{HEX\})$", "_{HEX}", value)
            value = re.sub(r"0x[0-9a-f]+", "0x{HEX}", value)
            value = re.sub(r"fake summary of \d+ chars", "fake summary of N chars", value)
            return plain_traceback(value)
    return value


def plain_traceback(text: str) -> str:
    """Frames of the code alone: those of the server's own files are not shown here, and those of libraries are other versions'."""
    if "Traceback (most recent call last)" not in text:
        return text
    return re.sub(r'  File "(?!<string>)[^"]+", line \d+, in .*\n(    .*\n)*', "", text)


#: What our answers say beyond AgentFlow's.
BEYOND = {"version", "sandboxes", "engine", "parameters"}


def unlike(wanted: Any, got: Any, at: str = "") -> list[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        found = []
        for name in sorted((wanted.keys() | got.keys()) - (BEYOND - wanted.keys())):
            if name not in got or name not in wanted:
                found.append(f"{at}.{name} is {'missing' if name not in got else f'new: {got[name]!r}'}")
            else:
                found += unlike(wanted[name], got[name], f"{at}.{name}")
        return found
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [one for n, (w, g) in enumerate(zip(wanted, got, strict=True)) for one in unlike(w, g, f"{at}[{n}]")]
    return [] if wanted == got else [f"{at}:\n    there: {wanted!r}\n    here:  {got!r}"]


def holds(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(name in got and holds(part, got[name]) for name, part in wanted.items())
    return wanted == got


def compared(exchange: dict[str, Any], status: int, got: Any, places: dict[str, str]) -> list[str]:
    title = exchange["title"].removeprefix("sample: ")
    if title in DIFFERENT:
        reason, wanted_status, wanted = DIFFERENT[title]
        if isinstance(wanted, dict):
            same = holds(wanted, got)
        else:
            result = got.get("data", {}).get("result") if isinstance(got, dict) else None
            same = isinstance(result, str) and re.search(wanted, result) is not None
        return [] if status == wanted_status and same else [f"({reason}) status {status}: {json.dumps(got, ensure_ascii=False)[:1500]}"]
    response = exchange["response"]
    if status != response["status"]:
        return [f"status {response['status']} there, {status} here: {json.dumps(got, ensure_ascii=False)[:800]}"]
    return unlike(masked(response["body"], {}), masked(got, places))


Configure = Callable[[dict[str, Any], Path], Server]


@pytest.fixture
def recorded_server(server: Server, tmp_path: Path) -> Iterator[Configure]:
    """Restarts the server with a configuration, in a working directory."""

    def configure(configuration: dict[str, Any], folder: Path) -> Server:
        file = tmp_path / "configuration" / "sandbox-server.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(configuration))
        leave(server)
        server.cwd = folder
        server.restart(("--config", str(file)))
        return server

    yield configure
    leave(server)
    server.cwd, server.environment = None, {}
    server.restart()


def leave(server: Server) -> None:
    """Ends all sessions: they outlive a server."""
    with server.api() as api:
        for one in api.get("/api/v2/workers").raise_for_status().json()["workers"]:
            api.post("/api/v1/worker/disconnect", json={"worker_id": one["worker_id"]})


#: Keys of models that the machine of the tests may have.
NO_KEYS = dict.fromkeys(["OPENAI_API_KEY", "OPENAI_API_URL", "OPENROUTER_API_KEY", "VLM_API_KEY", "VLM_API_URL", "VLM_MODEL"], "")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["ds", "doc", "text2sql"])
def test_every_recorded_exchange_is_answered_as_agentflows_server_did(
    backend: str, recorded_server: Configure, server: Server, places: dict[str, str], model: int
) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for exchange in EXCHANGES:
        if exchange["backend"] == backend:
            groups.setdefault(SAME.get(exchange["server"], exchange["server"]), []).append(exchange)
    wrong = []
    for name, exchanges in groups.items():
        told = SERVERS[name]
        configuration = filled(told["config"], {**places, "{PORT}": str(model if "dead" not in name else free_port())})
        configuration["server"] = {"url": "http://127.0.0.1:18890", "port": 18890, "session_ttl": 300}
        server.environment = NO_KEYS | {"TEXT2SQL_RETAIL_DB_PATH": f"{places['{SAMPLE}']}/sql/shop.sqlite" if told.get("env") else ""}
        recorded_server(configuration, Path(filled(told["cwd"], places)))
        with server.api(timeout=120) as api:
            for exchange in exchanges:
                request, asked = filled(exchange["request"], places), len(Model.asked)
                if isinstance(request["body"], str):
                    answer = api.request(request["method"], request["path"], content=request["body"], headers={"content-type": "application/json"})
                else:
                    answer = api.request(request["method"], request["path"], json=request["body"])
                got = answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text
                if exchange["title"].removeprefix("sample: ") in DIFFERENT:
                    # What it has a model do is another thing too.
                    del Model.asked[asked:]
                wrong += [f"{name}: {exchange['title']}: {one}" for one in compared(exchange, answer.status_code, got, places)]
    assert not wrong, f"{len(wrong)} of {len(EXCHANGES)}\n" + "\n".join(wrong)
    calls = [one["body"] for one in map(json.loads, (HERE / "model_calls.jsonl").read_text().splitlines()) if one["backend"] == backend]
    assert shown_to_the_model(masked(Model.asked, places)) == shown_to_the_model(calls)


def shown_to_the_model(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without instructions, and without calls that were repeated: AgentFlow's library repeats those that failed more often."""
    shown: list[dict[str, Any]] = []
    for call in calls:
        text = json.dumps(call, ensure_ascii=False)
        text = re.sub(r"base64,[A-Za-z0-9+/=]+", "base64,{BASE64}", text)
        one = json.loads(text)
        for message in one["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else [message]:
                for key in ("text", "content"):
                    said = part.get(key)
                    if isinstance(said, str):
                        said = re.sub(r"(?s)^.*?(?=## Document Content|\+\+\+Content:)", "", said)
                        part[key] = re.sub(r"(?s)\n\n(\{INSTRUCTIONS|Work in three steps).*$", "", said)
        if not shown or shown[-1] != one:
            shown.append(one)
    return shown


@pytest.mark.parametrize("file", sorted(path.name for path in (HERE / "configurations").glob("*.json")))
def test_agentflows_configurations_start_as_they_are(
    file: str, recorded_server: Configure, server: Server, tmp_path: Path, model: int
) -> None:
    """In a working directory with data where they name it; variables are set as AgentFlow's documents tell."""
    root = tmp_path / "checkout"
    shutil.copytree(HERE / "sample/csv", root / "seeds/ds/seed")
    shutil.copytree(HERE / "sample/doc/kettle", root / "seeds/doc/seed/2210.02442v1")
    (root / "corpus.jsonl").write_text('{"contents": "Lima is the capital of Peru."}\n')
    key = "k-fake"
    server.environment = NO_KEYS | {
        "OPENAI_API_KEY": key,
        "OPENAI_API_URL": f"http://127.0.0.1:{model}/v1",
        "VLM_API_KEY": key,
        "SERPER_API_KEY": key,
        "JINA_API_KEY": key,
        "TEXT2SQL_RETAIL_DB_PATH": str(HERE / "sample/sql/shop.sqlite"),
    }
    configuration = json.loads((HERE / "configurations" / file).read_text())
    if file == "rag_config.json":
        # Its files are not there: that is said, and nothing else is held up by it.
        configuration["warmup"]["enabled"] = False
    recorded_server(configuration, root)
    with server.api(timeout=120) as api:

        def call(action: str, **params: Any) -> dict[str, Any]:
            return api.post("/api/v1/execute", json={"worker_id": "starter", "action": action, "params": params}).json()

        tools = {tool["full_name"] for tool in api.get("/api/v1/tools").json()["tools"]}
        if file == "rag_config.json":
            assert "rag:search" in tools and call("rag:search", query="Peru")["code"] == 4007
            return
        assert {"web:search", "ds_run_python", "doc:read", "text2sql:execute"} <= tools and len(tools) == 12
        match file.removesuffix("_config.json"):
            case "ds":
                assert call("ds_inspect_data", seed_path="seeds/ds/seed")["data"]["result"].startswith("fake summary")
                ran = call("ds_run_python", seed_path="seeds/ds/seed", code="print(len(pd.read_csv('sales.csv')))")
                assert ran["data"]["result"] == "📄 Standard Output:\n62", ran
            case "doc":
                assert "found 1 results" in call("doc:search", key_words=["fuse"])["data"]["result"]
                assert "found 4 results" in call("doc:search", key_words="kettle", seed_path="seeds/doc/seed/2210.02442v1")["data"]["result"]
            case "text2sql":
                names = ["retail", "music", "hospital", "finance", "chinook", "sakila", "adventureworks"]
                assert call("text2sql:list_databases")["data"]["result"] == {"databases": names}
                counted = call("text2sql:execute", db_id="retail", query="SELECT count(*) FROM customer")
                assert counted["data"]["result"]["rows"] == [[3]], counted
                # One without a path is no empty database.
                assert call("text2sql:execute", db_id="music", query="SELECT 1")["message"] == "Database not found: music"
            case "web":
                assert call("web:visit", urls=[], goal="nothing")["code"] == 0
