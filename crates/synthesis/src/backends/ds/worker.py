"""Runs the calls of ds_* in a sandbox.

`worker.py start` makes sure that a process is there that has the libraries loaded, and prints its port. That process forks for
each call, so that a call starts at once, sees nothing of the one before but its files, and can be ended without harm to others.
"""

import base64
import gc
import importlib
import io
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
import traceback
import types

HERE = os.path.dirname(os.path.abspath(__file__))
PORT_FILE = os.path.join(HERE, "port")
#: Characters of output in an answer, and of everything else that code can make long.
OUTPUT = 5000
TEXT = 200_000
IMAGES = 20
MAX_BODY = 64 << 20
#: What code finds predefined: a name and the module behind it. Those at the end are loaded when nothing else is to be done.
MODULES = {name: name for name in ("sys", "os", "json", "time", "datetime", "re", "math", "random", "collections", "itertools", "warnings")}
MODULES |= {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot"}
LATER = {"scipy": "scipy.stats", "sns": "seaborn", "sm": "statsmodels.api", "sklearn": "sklearn.cluster"}
#: Loaded after those, since code often imports them.
OFTEN = ["sklearn.linear_model", "sklearn.preprocessing", "statsmodels.formula.api", "tabulate"]

#: Runs when a call brings no code.
OVERVIEW = """
_names = sorted(name for name in os.listdir(".") if name.lower().endswith(".csv"))
_tables = {name: pd.read_csv(name) for name in _names}
_numeric = {name: table.select_dtypes("number") for name, table in _tables.items()}
summary = {
    "csv_files": _names,
    "files": [
        {"file": name, "rows": len(table), "cols": table.shape[1], "numeric_cols": list(_numeric[name].columns)}
        for name, table in _tables.items()
    ],
    "clustering": None,
}
_fit = {name: table.dropna().loc[:, lambda t: t.nunique() > 1] for name, table in _numeric.items()}
_fit = [(len(table), name) for name, table in _fit.items() if table.shape[1] >= 2 and len(table) >= 3]
if _fit:
    from sklearn.cluster import KMeans
    from sklearn.preprocessing import StandardScaler

    _name = max(_fit, key=lambda one: one[0])[1]
    _table = _numeric[_name].dropna().loc[:, lambda t: t.nunique() > 1]
    _clusters = min(3, len(_table.drop_duplicates()))
    _labels = KMeans(n_clusters=_clusters, random_state=42, n_init=10).fit_predict(StandardScaler().fit_transform(_table))
    summary["clustering"] = {
        "file": _name,
        "columns": list(_table.columns),
        "clusters": _clusters,
        "sizes": [int(n) for n in np.bincount(_labels)],
    }
print(summary)
"""


# What a call does, in a process of its own.


def folder_of(request):
    """Enters the folder of the data. A text: it is not there."""
    try:
        os.chdir(os.path.expanduser(request["folder"]))
    except OSError as error:
        raise type(error)(error.errno, os.strerror(error.errno), request["given"]) from None


def inspect_data(request):
    import pandas as pd

    given = request["given"]
    try:
        folder_of(request)
    except FileNotFoundError:
        return {"text": f"Error: The directory '{given}' does not exist.{request['hint']}"}
    names = sorted(name for name in os.listdir(".") if name.lower().endswith(".csv"))
    if not names:
        return {"text": f"No CSV files found in directory: {given}"}
    parts = []
    for name in names[: request["max_csv"]]:
        try:
            parts.append(f"{name}:\n{described(pd.read_csv(name))}")
        except Exception as error:
            parts.append(f"{name}:\nError processing file - {error}")
    if len(names) > request["max_csv"]:
        parts.append(f"... truncated: showing first {request['max_csv']} of {len(names)} CSV files ...")
    text = "\n\n".join(parts)
    if len(text) > request["max_chars"]:
        text = text[: request["max_chars"]] + "\n\n... [Summary truncated to comply with maximum length limit] ..."
    return {"text": text}


def described(table):
    columns = [str(name) for name in table.columns]
    shown = ", ".join(columns[:5]) + (f", and {len(columns) - 5} others" if len(columns) > 5 else "")
    numeric = list(table.select_dtypes("number").columns)
    example = f" (e.g., {numeric[0]})" if numeric else ""
    faults = {"missing values": int(table.isna().sum().sum()), "duplicates": int(table.duplicated().sum())}
    found = ", ".join(f"{count} {what}" for what, count in faults.items() if count)
    quality = f"Data requires cleaning: found {found}." if found else "Data quality is high (no missing values or duplicates)."
    return (
        f"This dataset contains {len(table)} rows and {len(columns)} columns. Key attributes include: [{shown}]. It has "
        f"{len(numeric)} numeric fields{example} and {len(columns) - len(numeric)} categorical fields. {quality}"
    )


def read_csv(request):
    import pandas as pd

    name = re.split(r"[/\\]", request["csv_file"])[-1]
    given = os.path.join(request["given"], name) if name else request["given"]
    try:
        folder_of(request)
    except OSError:
        return {"text": f"File does not exist: {given}{request['hint']}"}
    if not os.path.exists(name or "."):
        return {"text": f"File does not exist: {given}"}
    if not os.path.isfile(name or "."):
        return {"text": f"Path is not a file: {given}"}
    try:
        table = pd.read_csv(name)
    except Exception as error:
        return {"text": f"Read failed: {error}"}
    most = request["max_rows"]
    text = f"{name}\n{table.head(most).to_csv(index=False)}"
    if len(table) > most:
        text += f"\n... Truncated, showing first {most} rows out of {len(table)} total rows ..."
    return {"text": text}


def predefined(code):
    names = {}
    for name, module in (MODULES | LATER).items():
        # What is not loaded yet is loaded for who asks for it.
        if module in sys.modules or re.search(rf"\b{name}\b", code):
            load(module)
            # `scipy` and `sklearn` are packages whose parts are loaded.
            if found := sys.modules.get(name) or sys.modules.get(module):
                names[name] = found
    from pathlib import Path

    return names | {"Path": Path, "load_csv": load_csv, "save_file": save_file}


def load_csv(filename, **kwargs):
    import pandas as pd

    return pd.read_csv(filename, **kwargs)


def save_file(data, filename, **kwargs):
    here = os.getcwd()
    target = os.path.realpath(filename)
    if os.path.commonpath([here, target]) != here:
        raise ValueError("Security Error: Cannot save file outside base_dir.")
    if hasattr(data, "to_csv"):
        data.to_csv(target, **kwargs)
    elif hasattr(data, "savefig"):
        data.savefig(target, **kwargs)
    else:
        import joblib

        joblib.dump(data, target, **kwargs)
    return f"File saved to: {filename}"


def run_python(request):
    import logging
    import warnings

    warnings.simplefilter("ignore")
    # What is logged is not printed.
    logging.getLogger().addHandler(logging.NullHandler())
    code, wanted = request["code"], request["return_vars"]
    if not code.strip():
        code, wanted = OVERVIEW, ["summary"]
    done = {"error": None, "variables": [], "images": []}
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    space = module.__dict__
    known = predefined(code)
    space.update(known)
    try:
        folder_of(request)
        exec(compile(code, "<string>", "exec"), space)
    except SystemExit as error:
        if error.code not in (None, 0):
            done["error"] = said(error)
    except BaseException as error:
        done["error"] = said(error)
    if done["error"] is None:
        done["variables"] = [shown(name, space[name]) for name in wanted if name in space and space[name] is not known.get(name)]
        done["images"] = pictures()
    sys.stdout.flush()
    return done


def said(error):
    """A traceback without the frame of this file."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    head = "Traceback (most recent call last):\n"
    text = "".join(lines)
    return text if head in text else head + text


def shown(name, value):
    if type(value).__name__ == "DataFrame" and hasattr(value, "to_markdown"):
        try:
            table = value.head(5).to_markdown(index=False)
        except ImportError:
            table = value.head(5).to_string(index=False)
        return f"{name} (shape={value.shape}):\n{table}"
    return f"{name} = {value}"


def pictures():
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot as plt

    images = []
    for number in plt.get_fignums()[:IMAGES]:
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="png", bbox_inches="tight")
        image = base64.b64encode(buffer.getvalue()).decode()
        images.append({"type": "image/png", "base64": image, "description": "Generated Plot"})
    return images


TOOLS = {"ds_inspect_data": inspect_data, "ds_read_csv": read_csv, "ds_run_python": run_python}


def put(body):
    """Writes files: a line with their folder, names and sizes, then their bytes."""
    line, _, rest = body.partition(b"\n")
    told = json.loads(line)
    for name, size in told["files"]:
        path = os.path.join(told["folder"], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(rest[:size])
        rest = rest[size:]
    os.makedirs(told["folder"], exist_ok=True)
    if told["mark"]:
        with open(mark_file(told["folder"]), "w") as file:
            file.write(told["mark"])
    return {}


def mark_file(folder):
    return os.path.join(os.path.dirname(folder), ".mark")


def has_data(request):
    """Whether the server's files are here, as they are there now."""
    if request["mark"] is None:
        return True
    try:
        with open(mark_file(request["folder"])) as file:
            return file.read() == request["mark"]
    except OSError:
        return False


# The process that waits for calls.


class Output:
    """The beginning of what a call prints, and how long all of it is without white space at both ends."""

    def __init__(self):
        self.kept, self.total, self.space = [], 0, 0
        self.size = 0
        self.decoder = __import__("codecs").getincrementaldecoder("utf-8")("backslashreplace")

    def feed(self, data):
        text = self.decoder.decode(data)
        if not self.total:
            text = text.lstrip()
        if not text:
            return
        # White space counts when something comes after it.
        trailing = len(text) - len(text.rstrip())
        if trailing == len(text):
            self.space += trailing
        else:
            self.total += self.space + len(text) - trailing
            self.space = trailing
        if self.size <= OUTPUT:
            self.kept.append(text[: OUTPUT + 1])
            self.size += len(self.kept[-1])

    def text(self):
        text = "".join(self.kept)[:OUTPUT]
        if self.total > OUTPUT:
            return f"{text}\n\n[System Warning]: Output truncated! (Total {self.total} chars)."
        return text[: self.total]


class Connection:
    """A client and the call that it made."""

    def __init__(self, worker, client):
        self.worker, self.client = worker, client
        self.read, self.pid, self.deadline = b"", None, None
        self.output, self.result = Output(), b""
        self.pipes = []
        client.setblocking(False)
        worker.selector.register(client, selectors.EVENT_READ, self.on_client)

    def on_client(self):
        try:
            data = self.client.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The client has left: nobody waits for the call.
            self.close()
            return
        self.read += data
        head, end, body = self.read.partition(b"\r\n\r\n")
        if not end or self.pid is not None:
            return
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        size = int(length[1]) if length else 0
        if size > MAX_BODY:
            self.answer(413, {})
        elif len(body) >= size:
            self.serve(head.split(b" ", 2)[1], body[:size])

    def serve(self, path, body):
        if path == b"/put":
            self.answer(200, put(body))
        elif path == b"/call":
            request = json.loads(body)
            if has_data(request):
                self.fork(request)
            else:
                self.answer(409, {})
        else:
            self.answer(200, {})

    def fork(self, request):
        out, result = os.pipe(), os.pipe()
        self.request = request
        self.deadline = time.monotonic() + request["timeout"]
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.worker.leave()
                perform(request, out[1], result[1])
                status = 0
            finally:
                os._exit(status)
        os.close(out[1])
        os.close(result[1])
        self.pipes = [out[0], result[0]]
        for pipe, on in ((out[0], self.on_output), (result[0], self.on_result)):
            os.set_blocking(pipe, False)
            self.worker.selector.register(pipe, selectors.EVENT_READ, on)

    def on_output(self):
        return self.take(0, self.output.feed)

    def on_result(self):
        def add(data):
            self.result += data

        return self.take(1, add)

    def take(self, at, use):
        """False: there is no more."""
        pipe = self.pipes[at]
        try:
            data = os.read(pipe, 1 << 16) if pipe is not None else b""
        except BlockingIOError:
            return False
        if data:
            use(data)
            return True
        if pipe is not None:
            self.worker.selector.unregister(pipe)
            os.close(pipe)
            self.pipes[at] = None
        return False

    def ended(self, status):
        """The call's process is gone. What it started goes too: it would write where nobody reads."""
        kill(self.pid)
        self.pid = None
        for at in range(2):
            while self.take_rest(at):
                pass
        try:
            done = json.loads(self.result)
        except ValueError:
            code = os.waitstatus_to_exitcode(status)
            if time.monotonic() >= self.deadline:
                why = f"TimeoutError: the code took longer than {self.request['timeout']:g} s and was stopped"
            elif code < 0:
                why = f"MemoryError: the process was ended by signal {-code}; most likely it used more memory than its sandbox has"
            else:
                why = f"SystemExit: {code}"
            done = {"error": f"Traceback (most recent call last):\n{why}\n", "variables": [], "images": []}
        if "error" in done:
            done = self.told(done)
        self.answer(200, done)

    def take_rest(self, at):
        return self.pipes[at] is not None and (self.on_output() if at == 0 else self.on_result())

    def told(self, done):
        if self.request["tool"] != "ds_run_python":
            return {"fault": done["error"].strip().splitlines()[-1]}
        parts = []
        if done["error"]:
            parts.append(f"❌ Execution Error:\n{done['error'][:TEXT]}")
        if printed := self.output.text():
            parts.append(f"📄 Standard Output:\n{printed}")
        if done["variables"]:
            parts.append("📦 Variables Inspection:\n" + "\n".join(done["variables"])[:TEXT])
        text = "\n\n".join(parts)
        if count := len(done["images"]):
            text += f"\n\n[Generated Images]:\nGenerated {count} images (base64 data available)."
        return {"text": text or "✅ Execution successful (No output printed).", "images": done["images"]}

    def answer(self, status, body):
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
        try:
            self.client.settimeout(30)
            self.client.sendall(head.encode() + data)
        except OSError:
            pass
        self.close()

    def close(self):
        if self.pid is not None:
            kill(self.pid)
        for pipe in self.pipes:
            if pipe is not None:
                self.worker.selector.unregister(pipe)
                os.close(pipe)
        self.pipes = []
        self.worker.selector.unregister(self.client)
        self.client.close()
        self.worker.connections.remove(self)


def kill(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def perform(request, out, result):
    """In the process of a call: output goes to one pipe, its result to another."""
    os.setsid()
    with open("/proc/self/oom_score_adj", "w") as file:
        # When memory ends, it is the call that goes, and not the process that waits for others.
        file.write("500")
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    try:
        done = TOOLS[request["tool"]](request)
    except BaseException as error:
        done = {"fault": str(error)}
    with open(result, "w") as pipe:
        json.dump(done, pipe)


class Worker:
    def __init__(self, listener):
        self.listener, self.connections = listener, []
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.on_listener)
        self.woken, wake = socket.socketpair()
        self.woken.setblocking(False)
        wake.setblocking(False)
        self.wake = wake
        self.selector.register(self.woken, selectors.EVENT_READ, self.on_child)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def leave(self):
        """What belongs to the waiting process alone is closed in one that it forked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for one in (self.listener, self.woken, self.wake, *(connection.client for connection in self.connections)):
            one.close()
        for connection in self.connections:
            for pipe in connection.pipes:
                if pipe is not None:
                    os.close(pipe)

    def on_listener(self):
        try:
            client, _ = self.listener.accept()
        except OSError:
            return
        self.connections.append(Connection(self, client))

    def on_child(self):
        try:
            while self.woken.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for connection in list(self.connections):
                if connection.pid == pid:
                    connection.ended(status)

    def run(self):
        waiting = [used, *(lambda name=name: load(name) for name in [*LATER.values(), *OFTEN])]
        while True:
            deadlines = [one.deadline for one in self.connections if one.pid is not None]
            # One whose time is over may take a moment to end.
            until = max(0.02, min(deadlines) - time.monotonic()) if deadlines else None
            ready = self.selector.select(0 if waiting and not deadlines else until)
            for key, _ in ready:
                # One that came before may have closed it, and what has its number now is another's.
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            for one in self.connections:
                if one.pid is not None and time.monotonic() >= one.deadline:
                    kill(one.pid)
            if waiting and not ready and not self.connections:
                waiting.pop(0)()
                # What is there now is not looked through again in each call's process.
                gc.freeze()


def load(module):
    try:
        importlib.import_module(module)
        if module.startswith("sklearn"):
            # It looks for cores in files that a sandbox does not have, and prints a traceback when it finds none.
            sys.modules["joblib.externals.loky.backend.context"].physical_cores_cache = os.cpu_count()
    except (ImportError, KeyError):
        pass


def used():
    """What is done at the first use is done here once, and not in every call's process."""
    try:
        import pandas as pd
        from matplotlib import pyplot as plt

        frame = pd.read_csv(io.StringIO("a,b\n1,x\n2,y\n"))
        str(frame), str(frame["a"]), str(frame.dtypes), frame.to_csv(), frame.describe(), frame.isna().sum(), frame.duplicated()
        frame.merge(frame, on="b").groupby("b").sum(numeric_only=True)
        plt.plot([1, 2])
        plt.savefig(io.BytesIO(), format="png", bbox_inches="tight")
        plt.close("all")
    except Exception:
        pass


def running():
    """The port of a process that is there already."""
    try:
        with open(PORT_FILE) as file:
            port = int(file.read())
        with socket.create_connection(("127.0.0.1", port), timeout=20) as known:
            known.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
            return port if known.recv(12) == b"HTTP/1.1 200" else None
    except (OSError, ValueError):
        return None


def main():
    if port := running():
        print(port)
        return
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    with open(PORT_FILE, "w") as file:
        file.write(str(listener.getsockname()[1]))
    if os.fork():
        print(listener.getsockname()[1])
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    os.environ.setdefault("MPLBACKEND", "Agg")
    for module in MODULES.values():
        load(module)
    gc.freeze()
    Worker(listener).run()


if __name__ == "__main__":
    main()
