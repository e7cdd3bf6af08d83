# SPDX-License-Identifier: LGPL-2.1-or-later
"""An ordinary web origin, and a TCP echo, for what is neither the model provider nor the git server.

GET /bytes/N sends N bytes; POST /echo sends the body back; /slow/SECONDS streams a line a second; /redirect?to=URL
redirects; everything else says which host was asked. Each request is logged with its headers.
"""

import socketserver
import threading
import time
from urllib.parse import parse_qs, urlsplit

import servers


class Handler(servers.Handler):
    protocol_version = "HTTP/1.1"
    server_version = "origin"

    def reply(self, data, status=200, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.note({"time": time.time(), "client": self.client_address[0], "method": self.command,
                          "path": self.path, "host": self.headers.get("Host"),
                          "headers": dict(self.headers.items()), "size": len(body),
                          # byte for byte, as far as that can be told from what http.server has read
                          "head": [self.requestline, *(f"{name}: {value}" for name, value in self.headers.items())],
                          "body": body[:65536].decode("latin-1")})
        url = urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        if parts[0] == "bytes":
            self.reply(b"x" * min(int(parts[1]), 256 << 20))
        elif parts[0] == "echo":
            self.reply(body)
        elif parts[0] == "redirect":
            self.reply(b"", 302, [("Location", parse_qs(url.query)["to"][0])])
        elif parts[0] == "slow":
            self.slow(min(int(parts[1]), 120))
        else:
            self.reply(("hello from %s\n" % self.headers.get("Host")).encode())

    do_POST = do_PUT = do_HEAD = do_GET

    def slow(self, seconds):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(seconds):
            line = b"%d\n" % i
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            time.sleep(1)
        self.wfile.write(b"0\r\n\r\n")


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def serve(address, log_path, cert=None, key=None):
    return servers.Server(address, Handler, log_path).start(cert, key)


def serve_echo(address):
    server = EchoServer(address, Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
