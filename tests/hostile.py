"""A guest that is not the guest any more: the sandbox's own root takes its listener and answers in its place."""

from __future__ import annotations

TAKE_OVER = r'''
import ctypes, os, select, socket, threading, time

PIDFD_OPEN, PIDFD_GETFD, PTRACE_ATTACH = 434, 438, 16
libc = ctypes.CDLL(None, use_errno=True)
guest = libc.syscall(PIDFD_OPEN, 1, 0)
# While it is traced it stands still, and every connection comes here.
print("stopped", libc.ptrace(PTRACE_ATTACH, 1, 0, 0) == 0, flush=True)
listeners = []
for number in range(256):
    taken = libc.syscall(PIDFD_GETFD, guest, number, 0)
    if taken < 0:
        continue
    try:
        blocking = os.get_blocking(taken)
        end = socket.socket(fileno=taken)
        os.set_blocking(taken, blocking)
        if end.family != socket.AF_UNIX or end.type != socket.SOCK_STREAM:
            end.close()
        elif end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listeners.append(end)
        else:
            # A connection of the gateway's, it may be: cut, so that it has to dial again.
            end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
print("listeners", len(listeners), flush=True)

def answer(connection):
ANSWER

def serve(listener):
    # The guest shares the listener and its flags: made to block, it would block the guest.
    while True:
        select.select([listener], [], [])
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        connection.setblocking(True)
        def run(connection=connection):
            try:
                answer(connection)
            except OSError:
                pass
            connection.close()
        threading.Thread(target=run, daemon=True).start()

threads = [threading.Thread(target=serve, args=(end,)) for end in listeners for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
'''


def program(answer: str) -> str:
    """A Python program for the sandbox's root; `answer` is the body of `def answer(connection)`, indented by four."""
    return TAKE_OVER.replace("ANSWER", answer.strip("\n"))
