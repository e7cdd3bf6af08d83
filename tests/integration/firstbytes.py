# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bytes that a guest's client sends first, made by hand, and small readers of what comes back."""

import struct

NAME = "www.example.org"
PROXY = ("10.255.255.1", 3128)


def web(world, **fields):
    """What the odd web server saw, with these values."""
    return [e for e in world.log("web") if all(e.get(k) == v for k, v in fields.items())]


def read_all(s):
    parts = []
    while part := s.recv(65536):
        parts.append(part)
    return b"".join(parts)


def request(target="/", host=f"{NAME}:8081", method="GET", fields="", body=""):
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{body}".encode()


def make_hello(name, groups=b"\0\x1d\0\x17", shares=b"", extra=b""):
    """A TLS 1.3 ClientHello as a handshake message; without key shares the server has to ask for another one."""
    def extension(kind, body):
        return struct.pack(">HH", kind, len(body)) + body

    def vector(body, size=2):
        return len(body).to_bytes(size, "big") + body

    server_name = extension(0, vector(b"\0" + vector(name.encode()))) if name else b""
    extensions = (server_name + extension(43, vector(b"\3\4", 1)) + extension(10, vector(groups)) + extension(13, vector(b"\4\3\x08\4\x08\7\5\3\6\3"))
                  + extension(51, vector(shares)) + extra)
    body = b"\3\3" + bytes(range(32)) + vector(bytes(32), 1) + vector(b"\x13\1\x13\2\x13\3") + vector(b"\0", 1) + vector(extensions)
    return b"\1" + len(body).to_bytes(3, "big") + body


def records_of(message, piece=16384):
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(message[i:i + piece])) + message[i:i + piece] for i in range(0, len(message), piece))


HELLO = records_of(make_hello(NAME))
ALERT = b"\x15\3\3\0\2\2\x31"                                  # access_denied
