# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest channel from Python: a second implementation of the host's side, written from
supervisor/vmm/channel.h, for tests that talk to a microVM without anchor-run."""

import json
import os
import socket
import struct
import time

NAMES = ["", "hello", "seed", "clock", "exec", "stdin", "stdout", "stderr", "exit", "signal", "put",
         "get", "data", "message", "event", "ping", "credit", "error"]
TYPES = {name: number for number, name in enumerate(NAMES)}
WINDOW = 256 * 1024
HEADER = struct.Struct("<BBHII")


def frame(kind, stream=0, payload=b""):
    if isinstance(payload, dict):
        payload = json.dumps(payload).encode()
    return HEADER.pack(1, TYPES[kind], 0, stream, len(payload)) + payload


class Exit(dict):
    """The payload of an exit frame, with what the stream carried before it."""

    stdout = b""
    stderr = b""
    data = b""

    @property
    def status(self):
        return self.get("status", -self["signal"] if "signal" in self else None)


class Channel:
    def __init__(self, sock, timeout=60):
        self.sock = sock
        self.timeout = timeout
        self.buffer = b""
        self.stream = 0
        self.owed = {}  # stream: bytes received for which no credit was returned

    def send(self, kind, stream=0, payload=b""):
        self.sock.sendall(frame(kind, stream, payload))

    def receive(self, timeout=None):
        """The next frame: (type's name, stream, payload)."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            if len(self.buffer) >= HEADER.size:
                version, kind, reserved, stream, size = HEADER.unpack_from(self.buffer)
                assert version == 1 and reserved == 0 and size <= 65536, self.buffer[:16]
                if len(self.buffer) >= HEADER.size + size:
                    payload = self.buffer[HEADER.size:HEADER.size + size]
                    self.buffer = self.buffer[HEADER.size + size:]
                    return NAMES[kind], stream, payload
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame from the guest")
            self.sock.settimeout(left)
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("the guest's channel was closed")
            self.buffer += data

    def expect(self, kind, timeout=None):
        got = self.receive(timeout)
        assert got[0] == kind, f"{got} instead of {kind}"
        return got[2]

    def open(self, timeout=90, seed=None, **hello):
        self.send("hello", 0, {"protocol": 1, **hello})
        self.send("seed", 0, seed or os.urandom(64))
        self.send("clock", 0, {"realtime_us": time.time_ns() // 1000})
        self.hello = json.loads(self.expect("hello", timeout))
        self.expect("seed")
        self.expect("clock")
        return self.hello

    def next_stream(self):
        self.stream += 1
        return self.stream

    def start(self, argv, **more):
        stream = self.next_stream()
        self.send("exec", stream, {"argv": argv, **more})
        return stream

    def credit(self, stream, size):
        self.send("credit", stream, struct.pack("<I", size))

    def wait(self, stream, timeout=None):
        """Until the stream's exit; frames of other streams are dropped, with their credit returned."""
        parts = {"stdout": [], "stderr": [], "data": []}
        if self.owed.get(stream):
            self.credit(stream, self.owed.pop(stream))
        while True:
            kind, which, payload = self.receive(timeout)
            if kind in parts and payload:
                self.credit(which, len(payload))
                if which == stream:
                    parts[kind].append(payload)
            elif kind == "error":
                raise AssertionError(payload)
            elif kind == "exit" and which == stream:
                result = Exit(json.loads(payload))
                for name, value in parts.items():
                    setattr(result, name, b"".join(value))
                return result

    def run(self, argv, timeout=None, **more):
        return self.wait(self.start(argv, **more), timeout)

    def shell(self, script, **more):
        return self.run(["/bin/sh", "-c", script], **more)

    def put(self, path, data, **more):
        stream = self.next_stream()
        self.send("put", stream, {"path": path, **more})
        room = WINDOW
        while data:
            while room == 0:
                kind, which, payload = self.receive()
                if kind == "exit" and which == stream:
                    return Exit(json.loads(payload))
                assert kind == "credit" and which == stream
                room += struct.unpack("<I", payload)[0]
            part = data[:min(room, 65536)]
            data = data[len(part):]
            room -= len(part)
            self.send("data", stream, part)
        self.send("data", stream)
        return self.wait(stream)

    def get(self, path, limit):
        stream = self.next_stream()
        self.send("get", stream, {"path": path, "max": limit})
        return self.wait(stream)

    def ping(self, timeout=10):
        """Seconds until the answer, whatever else comes in between (and is not given credit)."""
        cookie = os.urandom(8)
        start = time.monotonic()
        self.send("ping", 0, cookie)
        while True:
            kind, stream, payload = self.receive(timeout)
            if kind == "ping" and payload == cookie:
                return time.monotonic() - start
            if kind in ("stdout", "stderr", "data"):
                self.owed[stream] = self.owed.get(stream, 0) + len(payload)

    def poweroff(self):
        self.send("message", 0, {"message": "poweroff"})


def connect(path, timeout=60):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return Channel(sock, timeout)
