# SPDX-License-Identifier: LGPL-2.1-or-later
"""What runs in a microVM for realguest.py: it connects out, as far as its policy lets it, and calls the functions that it is told, each in a process of its own."""

import os
import pickle
import select
import signal
import socket
import sys
import traceback

PLACE = ("www.example.org", 9100)


def receive(s):
    """One message: four bytes of length, then so many."""
    head = s.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise EOFError
    parts, left = [], int.from_bytes(head, "big")
    while left:
        parts.append(s.recv(min(left, 1 << 16)))
        if not parts[-1]:
            raise EOFError
        left -= len(parts[-1])
    return b"".join(parts)


def send(s, data):
    s.sendall(len(data).to_bytes(4, "big") + data)


def call(function, args):
    try:
        return True, function(*args)
    except Exception as error:  # noqa: BLE001  told to whoever called
        return False, "%s: %s\n%s" % (type(error).__name__, error, traceback.format_exc())


def call_apart(function, args, timeout):
    """The pickled outcome."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(r)
        with os.fdopen(w, "wb") as f:
            f.write(pickle.dumps(call(function, args), 4))
        os._exit(0)
    os.close(w)
    parts = []
    with os.fdopen(r, "rb", 0) as f:
        while select.select([f], [], [], timeout)[0] and (part := f.read(1 << 16)):
            parts.append(part)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return b"".join(parts) or pickle.dumps((False, "%s did not return in %d s" % (function.__name__, timeout)), 4)


def serve():
    with socket.create_connection(PLACE) as s:
        while True:
            function, args, timeout = pickle.loads(receive(s))
            send(s, call_apart(function, args, timeout))


def main(workers):
    for _ in range(workers):
        if os.fork() == 0:
            try:
                serve()
            finally:
                os._exit(0)
    print("serving", flush=True)
    for _ in range(workers):
        os.wait()
    sys.exit(0)
