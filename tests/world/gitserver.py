# SPDX-License-Identifier: LGPL-2.1-or-later
"""A git server over smart HTTP: git's own http-backend behind a small HTTPS front.

    gitserver.py --listen 203.0.113.11:443 --cert CERT --key KEY --root DIR --log FILE

Every bare repository below DIR can be fetched; pushing is off unless the repository itself allows it. What lies below DIR/private needs a token
as well, and is asked for by Git LFS too.
"""

import argparse
import base64
import json
import os
import subprocess
import threading
import time

import servers


# What it wants to see. Unmistakable, so that a search for it can say "not here".
TOKEN = "ghp_REALGITTOKENREALGITTOKENREALGITTOKEN"
AUTHORIZATION = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()


class GitServer(servers.Server):
    def __init__(self, address, root, log_path):
        super().__init__(address, Handler, log_path)
        self.root = root


class Handler(servers.Handler):
    server_version = "git-front"

    def do_GET(self):
        self.backend(b"")

    def do_POST(self):
        self.backend(b"".join(self.pieces()))

    def pieces(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def backend(self, body):
        path, _, query = self.path.partition("?")
        self.server.note({"time": time.time(), "client": self.client_address[0], "method": self.command,
                          "path": self.path, "headers": dict(self.headers.items()), "size": len(body)})
        private = path.startswith("/private/")
        if private and self.headers.get("Authorization") != AUTHORIZATION:
            self.answer(401, b"", [("WWW-Authenticate", 'Basic realm="git"')])
            return
        if path.endswith("/info/lfs/objects/batch"):
            self.answer(200, json.dumps({"transfer": "basic", "objects": [], "asked": json.loads(body)}).encode(),
                        [("Content-Type", "application/vnd.git-lfs+json")])
            return
        environment = {
            **({"REMOTE_USER": "x-access-token"} if private else {}), "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "GIT_PROJECT_ROOT": self.server.root,
            "GIT_HTTP_EXPORT_ALL": "1", "REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
            "REMOTE_ADDR": self.client_address[0], "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        result = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, timeout=60, check=False)
        head, _, content = result.stdout.partition(b"\r\n\r\n")
        status, headers = 200, []
        for line in head.decode("latin-1").split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                status = int(value.split()[0])
            elif name:
                headers.append((name, value))
        self.answer(status, content, headers)


def serve(address, cert, key, root, log_path):
    """A running git server in this process; call .shutdown() to end it."""
    return GitServer(address, root, log_path).start(cert, key)


def main():
    parser = argparse.ArgumentParser(description="git over smart HTTP")
    parser.add_argument("--listen", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--root", required=True)
    parser.add_argument("--log", required=True)
    arguments = parser.parse_args()
    host, port = arguments.listen.rsplit(":", 1)
    serve((host, int(port)), arguments.cert, arguments.key, arguments.root, arguments.log)
    print("listening on", arguments.listen, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
