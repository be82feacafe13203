"""A Jupyter kernel from its start to its first answer, by the bare protocol; prints microseconds."""

import json
import os
import subprocess
import sys
import tempfile
import time

import zmq

with tempfile.TemporaryDirectory() as scratch:
    connection = os.path.join(scratch, "connection.json")
    address = os.path.join(scratch, "s")
    ports = {f"{name}_port": number for number, name in enumerate(["shell", "iopub", "stdin", "control", "hb"], 1)}
    with open(connection, "w") as file:
        json.dump({"transport": "ipc", "ip": address, "key": "", "signature_scheme": "hmac-sha256", **ports}, file)
    begun = time.perf_counter()
    command = ["python3", "-m", "ipykernel_launcher", "-f", connection]
    kernel = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shell = zmq.Context().socket(zmq.DEALER)
    shell.setsockopt(zmq.RECONNECT_IVL, 1)
    shell.connect(f"ipc://{address}-1")
    header = {"msg_id": "1", "session": "1", "username": "", "msg_type": "execute_request", "version": "5.3", "date": ""}
    content = {"code": "1", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
    shell.send_multipart([b"<IDS|MSG>", b"", *parts])
    while b"execute_reply" not in b"".join(shell.recv_multipart()):
        pass
    took = time.perf_counter() - begun
    kernel.kill()
    kernel.wait()
    sys.stdout.write(f"{took * 1e6:.0f}\n")
