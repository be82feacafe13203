"""The sites that tests visit with a sandbox's browser. They are served inside the sandbox: its network does not lead to the tests' host.

Usage: server.py PORT... Each port is another origin; `localhost` in place of 127.0.0.1 is another site.
"""

from __future__ import annotations

import email
import email.policy
import json
import re
import sys
import threading
import time
import uuid
from collections import deque
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

FOLDER = Path(__file__).parent
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
PORTS = [int(port) for port in sys.argv[1:]]
#: What reached the server, as [method, path, headers]; `/_seen` shows it.
SEEN: deque[tuple[str, str, dict[str, str]]] = deque(maxlen=20_000)
#: Session to what is in its cart.
SESSIONS: dict[str, list[str]] = {}
PRODUCTS = ("amber", "beryl", "citrine")
BLOCK = bytes(1 << 20)


class Site(BaseHTTPRequestHandler):
    def answer(self, body: str | bytes, status: int = 200, kind: str = KINDS[".html"], **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def json(self, value: object) -> None:
        self.answer(json.dumps(value), kind="application/json", access_control_allow_origin="*")

    def moved(self, place: str, status: int = 302, **headers: str) -> None:
        self.answer("", status, location=place, **headers)

    def page(self, title: str, body: str, status: int = 200, **headers: str) -> None:
        self.answer(f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>{body}", status, **headers)

    def until_closed(self) -> None:
        """Says no more until the client gives up."""
        while self.connection.recv(1):
            pass

    def do_OPTIONS(self) -> None:
        allow = {f"access_control_allow_{what}": "*" for what in ("origin", "headers", "methods")}
        self.answer("", 204, **allow)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.sent = b""
        self.go()

    def do_POST(self) -> None:
        self.sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.go()

    def go(self) -> None:
        place = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        first, _, self.rest = place.path.lstrip("/").partition("/")
        if first == "_seen":
            return self.json(list(SEEN))
        SEEN.append((self.command, self.path, dict(self.headers)))
        special = getattr(self, f"serve_{first}", None)
        if special is not None:
            return special()
        return self.file("spa.html" if first == "spa" else place.path.lstrip("/") or "index.html")

    def file(self, name: str) -> None:
        path = (FOLDER / name).resolve()
        if path.parent != FOLDER.resolve() or path.suffix not in KINDS or not path.is_file():
            return self.page("Not found", "<h1>Not found</h1>", 404)
        text = path.read_text().replace("%OTHER%", f"http://localhost:{PORTS[0]}").replace("%BESIDE%", f"http://127.0.0.1:{PORTS[1]}")
        return self.answer(text, kind=KINDS[path.suffix], cache_control="no-store")

    def serve_echo(self) -> None:
        self.json({"method": self.command, "path": self.path, "headers": dict(self.headers), "body": self.sent.decode()})

    def serve_status(self) -> None:
        self.page(self.rest, f"<h1>{int(self.rest)}</h1>", int(self.rest))

    def serve_redirect(self) -> None:
        if self.rest == "endless":
            return self.moved(f"/redirect/endless?{uuid.uuid4().hex}")
        left = int(self.rest)
        return self.moved(f"/redirect/{left - 1}") if left else self.page("Arrived", "<h1>Arrived</h1>")

    def serve_slow(self) -> None:
        time.sleep(float(self.query["seconds"]))
        self.page("Slow", "<h1>Slow but here</h1>")

    def serve_never(self) -> None:
        if self.rest == "body":
            self.send_response(200)
            self.send_header("content-type", KINDS[".html"])
            self.send_header("content-length", "1000000")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Begun</title><h1>Begun</h1>" + b" " * 4096)
        self.until_closed()

    def serve_cookies(self) -> None:
        self.send_response(200)
        self.send_header("content-type", KINDS[".html"])
        for name, value in self.query.items():
            self.send_header("set-cookie", f"{name}={value}")
        self.end_headers()
        self.wfile.write(b"<title>Cookies</title>")

    def serve_cached(self) -> None:
        self.answer("cached = 1", kind=KINDS[".js"], cache_control="max-age=3600")

    def serve_download(self) -> None:
        self.answer("a,b\n1,2\n", kind="text/csv", content_disposition='attachment; filename="report.csv"')

    def serve_zeros(self) -> None:
        size = int(self.query["mb"])
        self.send_response(200)
        self.send_header("content-type", "application/octet-stream")
        self.send_header("content-disposition", 'attachment; filename="zeros.bin"')
        self.send_header("content-length", str(size << 20))
        self.end_headers()
        for _ in range(size):
            self.wfile.write(BLOCK)

    def serve_big(self) -> None:
        lines = "".join(f"line {number:07} of a long text, longer than most\n" for number in range(int(self.query["lines"])))
        self.page("Big", f"<pre>{lines}</pre><p>the very end</p>")

    def serve_api(self) -> None:
        page = int(self.query.get("page", 0))
        self.json({"items": [f"item {number}" for number in range(page * 20, page * 20 + 20)] if page < 5 else []})

    def serve_upload(self) -> None:
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + self.sent, policy=email.policy.HTTP)
        parts = [
            {"name": part.get_filename(), "text": (part.get_payload(decode=True) or b"").decode()}
            for part in message.iter_parts()
            if part.get_filename()
        ]
        self.page("Uploaded", f"<pre id=files>{escape(json.dumps(parts))}</pre>")

    # What captchas load into their frames, by the paths that theirs have.
    def serve_recaptcha(self) -> None:
        self.page("reCAPTCHA", '<div id=rc-anchor-container class="rc-anchor">I am not a robot <input type=checkbox></div>')

    def serve_captcha(self) -> None:
        self.page("hCaptcha", "<div id=anchor><div id=checkbox role=checkbox tabindex=0></div>I am human</div>")

    def serve_turnstile(self) -> None:
        self.page("Turnstile", "<div>Verify you are human <input type=checkbox></div>")

    def serve_shop(self) -> None:
        found = re.search(r"session=(\w+)", self.headers.get("cookie", ""))
        session = found[1] if found and found[1] in SESSIONS else None
        fields = {name: values[-1] for name, values in parse_qs(self.sent.decode()).items()}
        if self.rest == "login" and self.command == "POST":
            if (fields.get("user"), fields.get("word")) != ("gem", "stone & 10% more"):
                return self.login("<p id=wrong>Wrong name or word</p>", 401)
            session = uuid.uuid4().hex
            SESSIONS[session] = []
            return self.moved("/shop/", 303, set_cookie=f"session={session}; Path=/shop; HttpOnly; SameSite=Lax")
        if session is None:
            return self.login() if self.rest == "login" else self.moved("/shop/login")
        cart = SESSIONS[session]
        if self.rest == "cart" and self.command == "POST":
            cart.append(json.loads(self.sent)["name"])
            return self.json({"count": len(cart)})
        if self.rest == "cart":
            rows = "".join(f"<li>{escape(name)}</li>" for name in cart)
            form = "<form method=post action=/shop/order><label>Address <textarea name=address></textarea></label><button>Order</button></form>"
            return self.page("Cart", f"<h1>Cart</h1><ul id=cart>{rows}</ul>{form}")
        if self.rest == "order":
            bought = ", ".join(cart)
            cart.clear()
            return self.page("Thanks", f"<h1>Thanks</h1><p id=order>{escape(bought)} to {escape(fields['address'])}</p>")
        goods = "".join(f'<li>{name} <button onclick="add(\'{name}\')">Add {name}</button></li>' for name in PRODUCTS)
        script = """async function add(name) {
            const answer = await fetch('/shop/cart', {method: 'POST', body: JSON.stringify({name})});
            document.querySelector('#count').textContent = (await answer.json()).count;
        }"""
        return self.page("Shop", f"<h1>Shop</h1><ul>{goods}</ul><a href=/shop/cart>Cart (<span id=count>{len(cart)}</span>)</a><script>{script}</script>")

    def login(self, note: str = "", status: int = 200) -> None:
        form = "<form method=post action=/shop/login><label>Name <input name=user></label><label>Word <input name=word type=password></label><button>Log in</button></form>"
        self.page("Login", f"<h1>Login</h1>{note}{form}", status)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args: object) -> None:
        """A client that went away is nothing to tell of."""


for port in PORTS[1:]:
    threading.Thread(target=Server(("127.0.0.1", port), Site).serve_forever, daemon=True).start()
Server(("127.0.0.1", PORTS[0]), Site).serve_forever()
