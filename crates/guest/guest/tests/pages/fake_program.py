#!/usr/bin/env python3
"""A stand-in for code-server and for JupyterLab: a socket's file as they are told of it, and answers that they never give.

It appends its pid to `starts` in its home. `mode` there, when it is, says how it fails at its start.
"""

import base64
import hashlib
import http.server
import json
import os
import socketserver
import sys
import time

HOME = os.environ["HOME"]
ARGUMENTS = " ".join(sys.argv[1:]).replace("--ServerApp.sock=", "--socket ").split()
SOCKET = ARGUMENTS[ARGUMENTS.index("--socket") + 1]

with open(f"{HOME}/starts", "a") as starts:
    starts.write(f"{os.getpid()}\n")
mode = open(f"{HOME}/mode").read() if os.path.exists(f"{HOME}/mode") else ""
if mode == "dies":
    print("starting", flush=True)
    sys.stderr.write("\033[31m<script>alert('last words')</script>\033[0m\n")
    sys.exit(3)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, status=200, **headers):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0].removeprefix("/jupyter")
        if path in ("/healthz", "/api"):
            # Slow enough for several to come while it starts.
            time.sleep(0.1 if mode == "slow" else 0)
            self.answer({"status": "alive"})
        elif "websocket" in self.headers.get("upgrade", ""):
            self.socket()
        elif path == "/redirect":
            self.answer("", 302, location="/jupyter/there?a=b" if self.path.startswith("/jupyter") else "/there")
        elif path == "/cookie":
            self.answer("", set_cookie="_xsrf=1; Path=/", x_hop="1", connection="keep-alive, x-hop")
        elif path == "/dies":
            sys.stderr.write("it was the request\n")
            sys.stderr.flush()
            os._exit(1)
        elif path == "/closes":
            self.close_connection = True
        elif path == "/nonsense":
            self.wfile.write(b"220 mail.example ESMTP\r\n\r\n")
            self.close_connection = True
        elif path == "/endless":
            self.close_connection = True
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while True:
                    self.wfile.write(b"x-more: " + b"x" * 8000 + b"\r\n")
            except OSError:
                pass
        elif path == "/half":
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
        else:
            self.told()

    def told(self, body=""):
        headers = {name.lower(): value for name, value in self.headers.items()}
        told = {"pid": os.getpid(), "method": self.command, "path": self.path, "headers": headers, "body": body}
        self.answer({**told, "arguments": sys.argv[1:], "user": os.getuid()})

    def do_POST(self):
        self.told(self.rfile.read(int(self.headers.get("content-length", 0))).decode())

    do_PUT = do_POST

    def socket(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            size = head[1] & 127
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(size))).upper()
            self.wfile.write(bytes([0x81, len(text)]) + text)


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self):
        request, _ = super().get_request()
        return request, ("peer", 0)


Server(SOCKET, Handler).serve_forever()
