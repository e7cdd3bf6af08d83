# SPDX-License-Identifier: LGPL-2.1-or-later
"""An origin that notes to the byte what it got, and answers in all the ways that HTTP/1.1 has.

    POST /hash       the SHA-256 and the size of the body
    POST /echo       the body
    POST /held       as /hash, from an origin that stops reading after 64 KiB, and goes on when it was asked for /release, by whomever
    POST /guess      "it is: " and half of the body, and 300 ms later the other half, which ends in " and" and a line
    GET  /sse        five events, 300 ms apart, each with the time at which it was sent
    GET  /reflect    the value of x-wire-key as it is, in Base64, with percent-escapes and with JSON's, in the head, the body and the trailer
    GET  /gzip       the same body in gzip, asked for or not
    GET  /ws         a WebSocket (RFC 6455): each message comes back; "key" is answered with the value of x-wire-key
"""

import base64
import gzip
import hashlib
import json
import socket
import socketserver
import ssl
import struct
import threading
import time


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 512
    log_path = context = None
    lock, released = threading.Lock(), threading.Event()

    def note(self, entry):
        with self.lock, open(self.log_path, "a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")

    def handle_error(self, request, client_address):
        pass                                                   # a client that breaks off is what is tested


def reflections(key):
    percent = "".join("%%%02x" % c for c in key.encode())
    escaped = "".join("\\u%04X" % ord(c) for c in key)
    aligned = [base64.b64encode(prefix + key.encode() + b"!!").decode() for prefix in (b"", b"u:", b"me:")]
    return json.dumps({"plain": key, "base64": aligned})[:-1] + ', "percent": "%s", "escaped": "%s"}' % (percent, escaped)


class Wire(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.server.context.wrap_socket(self.request, server_side=True) as s:
            self.stream, self.input = s, s.makefile("rb", 65536)
            while self.answer_one():
                pass

    def read_head(self):
        lines = []
        while (line := self.input.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines).decode("latin-1")

    def read_chunks(self):
        while size := int(self.input.readline().split(b";")[0], 16):
            yield self.input.read(size)
            self.input.readline()
        self.trailer = self.read_head()

    def read_body(self, fields):
        self.trailer = ""
        if fields.get("transfer-encoding") == "chunked":
            yield from self.read_chunks()
            return
        left = int(fields.get("content-length", 0))
        while left and (data := self.input.read(min(left, 65536))):
            left -= len(data)
            yield data

    def answer_one(self):
        head = self.read_head()
        if not head:
            return False
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:-1])}
        path = head.split(" ")[1]
        if fields.get("expect") == "100-continue":
            self.stream.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        digest, size, kept, holds = hashlib.sha256(), 0, [], path == "/held"
        for data in self.read_body(fields):
            digest.update(data)
            size += len(data)
            if path in ("/echo", "/guess"):
                kept.append(data)
            if holds and size >= 65536:
                holds = False
                self.server.note({"held": size})
                self.server.released.wait(120)
        if path == "/release":
            self.server.released.set()
        self.server.note({"head": head, "size": size, "sha256": digest.hexdigest(), "trailer": self.trailer})
        return getattr(self, "answer_" + path.strip("/").partition("?")[0], self.answer_other)(
            fields, b"".join(kept), f"{digest.hexdigest()} {size}\n".encode())

    def reply(self, body, head=""):
        self.stream.sendall(f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return True

    def answer_other(self, fields, body, text):
        return self.reply(text)

    def answer_echo(self, fields, body, text):
        return self.reply(body)

    def answer_guess(self, fields, body, text):
        self.stream.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i, piece in enumerate((b"it is: " + body[:len(body) // 2], body[len(body) // 2:] + b" and\n")):
            time.sleep(0.3 * i)
            self.stream.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.stream.sendall(b"0\r\n\r\n")
        return True

    def answer_sse(self, fields, body, text):
        self.stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            event = f"data: {time.time():.6f}\n\n".encode()
            self.stream.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(0.3)
        self.stream.sendall(b"0\r\n\r\n")
        return True

    def answer_reflect(self, fields, body, text):
        key = fields.get("x-wire-key", "")
        text = reflections(key).encode()
        pieces = [text[i:i + 7] for i in range(0, len(text), 7)]
        self.stream.sendall(f"HTTP/1.1 200 OK\r\nSet-Cookie: key={key}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for piece in pieces:
            self.stream.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.stream.sendall(f"0\r\nX-Key: {key}\r\n\r\n".encode())
        return True

    def answer_gzip(self, fields, body, text):
        return self.reply(gzip.compress(reflections(fields.get("x-wire-key", "")).encode()), "Content-Encoding: gzip\r\n")

    # WebSocket

    def answer_ws(self, fields, body, text):
        accept = base64.b64encode(hashlib.sha1((fields["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        self.stream.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        message, kind = b"", 0
        while True:
            first, size = struct.unpack(">BB", self.input.read(2))
            assert size & 0x80, "a client's frame without a mask"
            size &= 0x7f
            if size >= 126:
                size = int.from_bytes(self.input.read(2 if size == 126 else 8), "big")
            mask = self.input.read(4)
            data = unmask(self.input.read(size), mask)
            op = first & 0xf
            if op >= 8:
                self.send_frame(0x80 | {8: 8, 9: 10, 10: 10}[op], data)
                if op == 8:
                    return False
                continue
            message, kind = message + data, op or kind
            if first & 0x80:
                self.server.note({"message": hashlib.sha256(message).hexdigest(), "size": len(message)})
                self.send_frame(0x80 | kind, fields.get("x-wire-key", "").encode() if message == b"key" else message)
                message = b""

    def send_frame(self, first, data):
        self.stream.sendall(make_frame(first, data))


def make_frame(first, data):
    """A frame of a server's."""
    size = bytes([len(data)]) if len(data) < 126 else struct.pack(">BH", 126, len(data)) if len(data) < 65536 else struct.pack(">BQ", 127, len(data))
    return bytes([first]) + size + data


def take_frame(data):
    """The first frame of a client's, taken off a bytearray: (first byte, payload), or None if it is not whole yet."""
    if len(data) < 2:
        return None
    more = {126: 2, 127: 8}.get(data[1] & 0x7f, 0)
    size = int.from_bytes(data[2:2 + more], "big") if more else data[1] & 0x7f
    assert data[1] & 0x80, "a client's frame without a mask"
    if len(data) < 6 + more or len(data) < 6 + more + size:
        return None
    found = data[0], unmask(bytes(data[6 + more:6 + more + size]), bytes(data[2 + more:6 + more]))
    del data[:6 + more + size]
    return found


def unmask(data, mask):
    n = len(data)
    return (int.from_bytes(data, "big") ^ int.from_bytes((mask * (n // 4 + 1))[:n], "big")).to_bytes(n, "big")


def serve(address, log_path, cert, key):
    server = Server(address, Wire)
    server.log_path = log_path
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(cert, key)
    threading.Thread(target=server.serve_forever, daemon=True).start()
