"""The agent in a machine: OSWorld's HTTP protocol, with Python's standard library and GObject's bindings alone.

Whoever reaches this port may do all that the machine's user may. It is forwarded to the sandbox's loopback and nowhere else.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

PORT = int(os.environ.get("AGENT_PORT", "5000"))
MAX_BODY = 256 << 20
MAX_OUTPUT = 8 << 20
MAX_DEPTH, MAX_CHILDREN, MAX_ELEMENTS = 50, 1024, 5000  # Of the tree: levels, children of one element, elements in all.
NAMESPACE = "https://accessibility.ubuntu.example.org/ns/"
ST, CP, VAL, ATTR, ACT = (f"{{{NAMESPACE}{name}}}" for name in ("state", "component", "value", "attributes", "action"))
for prefix, name in [("st", "state"), ("cp", "component"), ("val", "value"), ("attr", "attributes"), ("act", "action")]:
    ET.register_namespace(prefix, NAMESPACE + name)

LOCK = threading.RLock()  # GObject's libraries are for one thread at a time.
recording = {"process": None, "path": None}


class Refused(Exception):
    """What the caller did wrong, with its status."""

    def __init__(self, message, status=400):
        super().__init__(message)
        self.status = status


def library(name, version):
    import gi

    gi.require_version(name, version)
    return getattr(__import__("gi.repository", fromlist=[name]), name)


def screen():
    """GDK's window of the whole screen; GDK is loaded at the first use."""
    gdk = library("Gdk", "3.0")
    window = gdk.get_default_root_window()
    if window is None:
        raise Refused("the machine has no screen yet", 503)
    return gdk, window


def pointer(gdk):
    return gdk.Display.get_default().get_default_seat().get_pointer()


def screenshot():
    with LOCK:
        gdk, window = screen()
        picture = gdk.pixbuf_get_from_window(window, 0, 0, window.get_width(), window.get_height())
        _, x, y = pointer(gdk).get_position()
        cursor = gdk.Cursor.new_for_display(gdk.Display.get_default(), gdk.CursorType.LEFT_PTR).get_image()
        if cursor is not None:
            pixbuf = library("GdkPixbuf", "2.0")
            width = min(cursor.get_width(), picture.get_width() - x)
            height = min(cursor.get_height(), picture.get_height() - y)
            if x >= 0 and y >= 0 and width > 0 and height > 0:
                cursor.composite(picture, x, y, width, height, x, y, 1, 1, pixbuf.InterpType.NEAREST, 255)
        _, data = picture.save_to_bufferv("png", ["compression"], ["1"])
        return bytes(data)


def screen_size():
    with LOCK:
        _, window = screen()
        return {"width": window.get_width(), "height": window.get_height()}


def cursor_position():
    with LOCK:
        gdk, _ = screen()
        _, x, y = pointer(gdk).get_position()
        return [x, y]


def tag(role):
    """A role as an element's name: `push button` is `push-button`."""
    name = re.sub(r"[^\w.-]+", "-", role.strip()) or "unknown"
    return name if name[0].isalpha() else "_" + name


def clean(text):
    """Without what XML can't hold."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text or "")


def element(atspi, node, budget, depth):
    budget[0] -= 1
    role = node.get_role_name() or "unknown"
    attributes = {"name": clean(node.get_name())}
    states = {state.value_nick for state in node.get_state_set().get_states()}
    for state in states:
        attributes[ST + state] = "true"
    shows = "showing" in states and "visible" in states
    component = node.get_component_iface()
    if shows and component is not None:
        box = component.get_extents(atspi.CoordType.SCREEN)
        attributes[CP + "screencoord"] = f"({box.x}, {box.y})"
        attributes[CP + "size"] = f"({box.width}, {box.height})"
    value = node.get_value_iface()
    if value is not None:
        attributes[VAL + "value"] = str(value.get_current_value())
        attributes[VAL + "min"], attributes[VAL + "max"] = str(value.get_minimum_value()), str(value.get_maximum_value())
    for name, text in (node.get_attributes() or {}).items():
        attributes[ATTR + tag(name)] = clean(text)
    found = ET.Element(tag(role), attributes)
    text = node.get_text_iface()
    if text is not None:
        found.text = clean(text.get_text(0, min(text.get_character_count(), 1 << 20))).replace("\ufffc", "")
    # What manages its descendants, such as a long table, has more of them than anybody sees.
    if depth >= MAX_DEPTH or "manages-descendants" in states and not shows:
        return found
    for index in range(min(node.get_child_count(), MAX_CHILDREN)):
        if budget[0] <= 0:
            break
        try:
            child = node.get_child_at_index(index)
            if child is not None:
                found.append(element(atspi, child, budget, depth + 1))
        except Exception:  # It is gone by now, or its program does not answer.
            continue
    return found


def accessibility():
    with LOCK:
        atspi = library("Atspi", "2.0")
        atspi.set_timeout(1500, 5000)
        desktop = atspi.get_desktop(0)
        # The registry's children are kept from the last time, unless they are dropped.
        desktop.clear_cache()
        return ET.tostring(element(atspi, desktop, [MAX_ELEMENTS], 0), encoding="unicode")


def run(command, shell=False, timeout=120, cwd=None):
    """Runs a command to its end; what it leaves in the background does not hold the answer up."""
    if isinstance(command, str) and not shell:
        command = shlex.split(command)
    command = [os.path.expanduser(word) for word in command] if isinstance(command, list) else command
    if isinstance(command, list) and shell:
        command = shlex.join(command)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, shell=shell, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Refused(f"the command did not end within {timeout} s", 500) from None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(MAX_OUTPUT).decode(errors="replace"))
    return code, *texts


def execute(data):
    command = data.get("command")
    if not command:
        raise Refused("give the command")
    code, out, err = run(command, bool(data.get("shell")), float(data.get("timeout") or 120))
    return {"status": "success", "output": out, "error": err, "returncode": code}


def run_python(data):
    code, out, err = run(["python3", "-c", data.get("code") or ""], timeout=float(data.get("timeout") or 30))
    told = {"status": "success" if code == 0 else "error", "message": out + err, "need_more": False}
    return {**told, "output": out, "error": err, "return_code": code}


def run_bash_script(data):
    script, timeout = data.get("script"), float(data.get("timeout") or 30)
    if not script:
        raise Refused("give the script")
    code, out, err = run(["bash", "-c", script], timeout=timeout, cwd=data.get("working_dir") or None)
    return {"status": "success" if code == 0 else "error", "output": out + err, "error": err, "returncode": code}


def start(command, shell=False):
    if isinstance(command, str) and not shell:
        command = shlex.split(command)
    if not command:
        raise Refused("give the command")
    if isinstance(command, list):
        command = [os.path.expanduser(word) for word in command]
        if shell:
            command = shlex.join(command)
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, shell=shell, start_new_session=True, **quiet)
    threading.Thread(target=process.wait, daemon=True).start()


def launch(data):
    start(data.get("command"), bool(data.get("shell")))
    return "started"


def open_file(data):
    path = os.path.expanduser(data.get("path") or "")
    if not os.path.exists(path):
        raise Refused(f"there is no file {path}", 404)
    opener = next((name for name in ("xdg-open", "mousepad") if shutil.which(name)), None)
    if opener is None:
        raise Refused("nothing here opens files", 500)
    start([opener, path])
    return "opened"


def window(data, *order):
    """Has the window manager do something with the window of a title, or of a class."""
    name = data.get("window_name")
    if not name:
        raise Refused("give the window's name")
    code, _, err = run(["wmctrl", *(["-x"] if data.get("by_class") else []), *(["-F"] if data.get("strict") else []), *order, name])
    if code != 0:
        raise Refused(err.strip() or f"there is no window {name!r}", 404)
    return "done"


def change_wallpaper(data):
    path = os.path.expanduser(data.get("path") or "")
    if not os.path.isfile(path):
        raise Refused(f"there is no file {path}", 404)
    # The window manager paints it, and takes this file in when it is told to begin anew.
    with open(os.path.expanduser("~/.wallpaper.jwmrc"), "w") as file:
        file.write(f'<JWM><Desktops><Background type="scale">{escape(path)}</Background></Desktops></JWM>\n')
    run(["jwm", "-restart"])
    return "changed"


def start_recording(_):
    if recording["process"] is not None:
        raise Refused("it is recording already")
    if shutil.which("ffmpeg") is None:
        raise Refused("this machine has no ffmpeg: record it from outside, with POST /v1/display/record", 501)
    size = screen_size()
    recording["path"] = os.path.join(tempfile.mkdtemp(), "recording.mp4")
    grab = ["-f", "x11grab", "-draw_mouse", "1", "-s", "{width}x{height}".format(**size), "-i", os.environ.get("DISPLAY", ":0")]
    command = ["ffmpeg", "-y", *grab, "-c:v", "libx264", "-preset", "ultrafast", "-r", "10", recording["path"]]
    recording["process"] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"status": "success", "message": "recording"}


def end_recording(_):
    process, recording["process"] = recording["process"], None
    if process is None:
        raise Refused("nothing is being recorded")
    process.send_signal(signal.SIGINT)
    process.wait(20)
    with open(recording["path"], "rb") as file:
        return file.read()


def upload(data):
    path, content = data.get("file_path"), data.get("file_data")
    if not path or content is None:
        raise Refused("give file_path and file_data")
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return "uploaded"


def read_file(data):
    path = os.path.expanduser(data.get("file_path") or "")
    if not os.path.isfile(path):
        raise Refused(f"there is no file {path}", 404)
    with open(path, "rb") as file:
        return file.read()


def list_directory(data):
    path = os.path.expanduser(data.get("path") or "~")

    def node(entry):
        if not os.path.isdir(entry):
            return {"type": "file", "name": os.path.basename(entry)}
        children = [node(os.path.join(entry, name)) for name in sorted(os.listdir(entry))] if not os.path.islink(entry) else []
        return {"type": "directory", "name": os.path.basename(entry), "children": children}

    if not os.path.isdir(path):
        raise Refused(f"there is no directory {path}", 404)
    return {"directory_tree": node(path.rstrip("/") or "/")}


GETS = {
    "/screenshot": screenshot,
    "/accessibility": lambda: {"AT": accessibility()},
    "/platform": lambda: "Linux",
    "/screen_size": screen_size,
    "/cursor_position": cursor_position,
}
POSTS = {
    "/execute": execute,
    "/setup/execute": execute,
    "/run_python": run_python,
    "/run_bash_script": run_bash_script,
    "/file": read_file,
    "/list_directory": list_directory,
    "/screen_size": lambda _: screen_size(),
    "/desktop_path": lambda _: {"desktop_path": os.path.expanduser("~/Desktop")},
    "/start_recording": start_recording,
    "/end_recording": end_recording,
    "/setup/upload": upload,
    "/setup/launch": launch,
    "/setup/open_file": open_file,
    "/setup/activate_window": lambda data: window(data, "-a"),
    "/setup/close_window": lambda data: window(data, "-c"),
    "/setup/change_wallpaper": change_wallpaper,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 300

    def do_GET(self):
        self.answer(lambda: GETS.get(self.path.split("?")[0]), lambda work: work())

    def do_POST(self):
        self.answer(lambda: POSTS.get(self.path.split("?")[0]), lambda work: work(self.body()))

    def answer(self, find, do):
        try:
            work = find()
            if work is None:
                raise Refused(f"there is no {self.path}", 404)
            status, content = 200, do(work)
        except Refused as error:
            status, content = error.status, {"status": "error", "message": str(error)}
        except Exception as error:
            status, content = 500, {"status": "error", "message": f"{type(error).__name__}: {error}"}
        if isinstance(content, bytes):
            kind = "image/png" if content.startswith(b"\x89PNG") else "application/octet-stream"
        elif isinstance(content, str):
            kind, content = "text/html; charset=utf-8", content.encode()
        else:
            kind, content = "application/json", json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def body(self):
        """The fields of a form, or the members of a JSON object."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            raise Refused(f"a body can have {MAX_BODY} bytes", 413)
        raw, kind = self.rfile.read(length), self.headers.get("Content-Type") or ""
        if kind.startswith("multipart/form-data"):
            return multipart(raw, kind)
        if kind.startswith("application/x-www-form-urlencoded"):
            return dict(urllib.parse.parse_qsl(raw.decode()))
        try:
            data = json.loads(raw or b"{}")
        except ValueError as error:
            raise Refused(f"the body is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise Refused("the body is no JSON object")
        return data

    def log_message(self, *_):
        pass


def multipart(raw, kind):
    """A form's parts: texts, and the bytes of files."""
    boundary = re.search(r'boundary="?([^";]+)"?', kind)
    if boundary is None:
        raise Refused("the form has no boundary")
    fields = {}
    for part in (b"\r\n" + raw).split(b"\r\n--" + boundary[1].encode())[1:]:
        head, divider, content = part.partition(b"\r\n\r\n")
        name = re.search(rb'[; ]name="([^"]*)"', head)
        if divider and name:
            fields[name[1].decode()] = content if b"filename" in head else content.decode()
    return fields


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
