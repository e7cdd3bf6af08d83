# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the HTTP servers of the world share: threads, a log of JSON lines, TLS whose handshake belongs to its connection."""

import json
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address, handler, log_path):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self.log_path = log_path
        self.lock = threading.Lock()

    def note(self, entry):
        with self.lock, open(self.log_path, "a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")

    def start(self, cert=None, key=None):
        """Serves in a thread of its own, over TLS if there is a certificate; .shutdown() ends it."""
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def setup(self):
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(20)
            self.request.do_handshake()
            self.request.settimeout(None)
        super().setup()
