# SPDX-License-Identifier: LGPL-2.1-or-later
"""Origins that are no ordinary web server: protocols in which the server speaks first, one that turns to TLS in its midst, and HTTP as odd as it may be.

    serve(address, log_path, cert, key)     ports 22, 25, 5432, 8081 and 9001 of that address
"""

import json
import socket
import socketserver
import ssl
import threading
import time

SSH_PORT, SMTP_PORT, POSTGRES_PORT, WEB_PORT, LAST_WORD_PORT = 22, 25, 5432, 8081, 9001
SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 512
    log_path = context = None
    lock = threading.Lock()

    def note(self, entry):
        with self.lock, open(self.log_path, "a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")

    def handle_error(self, request, client_address):
        pass                                                   # a client that breaks off is what is tested


class Ssh(socketserver.StreamRequestHandler):
    """A banner before the client has said anything, then each line back."""

    banner = b"SSH-2.0-world\r\n"

    def handle(self):
        self.wfile.write(self.banner)
        for line in self.rfile:
            self.wfile.write(b"you said " + line)


class Smtp(Ssh):
    banner = b"220 world ESMTP\r\n"


class Postgres(socketserver.BaseRequestHandler):
    """SSLRequest, 'S', TLS, a startup message, and AuthenticationOk."""

    def handle(self):
        if self.request.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
            self.request.sendall(b"E")
            return
        self.request.sendall(b"S")
        with self.server.context.wrap_socket(self.request, server_side=True) as s:
            s.recv(int.from_bytes(s.recv(4), "big") - 4)
            s.sendall(b"R" + (8).to_bytes(4, "big") + (0).to_bytes(4, "big"))
            s.recv(1)


class LastWord(socketserver.BaseRequestHandler):
    """Says something, ends its side, and then counts what still comes."""

    def handle(self):
        self.request.sendall(b"that is all\n")
        self.request.shutdown(socket.SHUT_WR)
        n = 0
        while data := self.request.recv(65536):
            n += len(data)
        self.server.note({"port": LAST_WORD_PORT, "bytes": n})


class Web(socketserver.StreamRequestHandler):
    """/sse, /204, /304, /slowly/SECONDS, /chunked, /early, /ws; anything else answers with method, target, host and the size of the body."""

    def handle(self):
        while self.answer_one():
            pass

    def read_head(self):
        first = self.rfile.readline()
        fields = {}
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.strip().lower()] = value.strip()
        return first.decode("latin-1").split(), fields

    def read_body(self, fields):
        if fields.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(fields.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        return body

    def send(self, data):
        self.wfile.write(data)
        self.wfile.flush()

    def answer_one(self):
        line, fields = self.read_head()
        if len(line) != 3:
            return False
        method, target, _ = line
        if target == "/early":                                 # does not even look at the body
            self.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return False
        if fields.get("expect") == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.read_body(fields)
        self.server.note({"method": method, "target": target, "fields": fields, "size": len(body), "from": self.client_address[1]})

        kind = target.strip("/").split("/")
        text = f"{method} {target} {fields.get('host')} {len(body)}\n".encode()
        if kind[0] == "slowly":
            time.sleep(min(float(kind[1]), 20))
        if kind[0] in ("204", "304"):
            self.send(b"HTTP/1.1 %s Nothing\r\nETag: \"x\"\r\n\r\n" % kind[0].encode())
        elif kind[0] == "ws":
            self.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            self.server.note({"switched": True, "size": len(self.rfile.read())})
            return False
        elif kind[0] == "sse":
            self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(4):
                self.send(b"9\r\ndata: %d\n\n\r\n" % i)
                time.sleep(0.3)
            self.send(b"0\r\n\r\n")
        elif kind[0] == "chunked":
            self.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in text) + b"0\r\nX-Trailer: 1\r\n\r\n")
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text)
            self.send(head if method == "HEAD" else head + text)
        return fields.get("connection") != "close"


def serve(address, log_path, cert, key):
    for port, handler in ((SSH_PORT, Ssh), (SMTP_PORT, Smtp), (POSTGRES_PORT, Postgres), (WEB_PORT, Web), (LAST_WORD_PORT, LastWord)):
        server = Server((address, port), handler)
        server.log_path = log_path
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.context.load_cert_chain(cert, key)
        threading.Thread(target=server.serve_forever, daemon=True).start()
