#!/usr/bin/env python3
"""A fake of the `arenite` program for the tests of starting it: it answers /health, and shows how it was called."""

import json
import os
import sys
import threading
from pathlib import Path

from fake_server import FakeRecordedServer

if os.environ.get("FAKE_ARENITE_FAILS"):
    print("first line")
    sys.exit("error: needs root")

arguments = sys.argv[1:]
assert arguments[:2] == ["serve", "--listen"], arguments
address, port = arguments[2].rsplit(":", 1)
assert address == "127.0.0.1", address
print("listening on", arguments[2])
print("arguments", json.dumps(arguments[3:]))
print("plugin path", os.environ.get("ARENITE_PLUGIN_PATH"))
if "--agentflow-config" in arguments:
    print("configuration", Path(arguments[arguments.index("--agentflow-config") + 1]).read_text())
sys.stdout.flush()
server = FakeRecordedServer(int(port))


def shutdown(_):
    threading.Timer(0.2, lambda: os._exit(0)).start()
    return 200, {"status": "success", "message": "bye", "sessions_cleaned": 0}


server.on("/api/v1/server/shutdown", shutdown)
threading.Event().wait()
