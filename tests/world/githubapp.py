# SPDX-License-Identifier: LGPL-2.1-or-later
"""The API of a git host as far as GitHub Apps need it, and one place where their tokens are good for something.

    GET    /repos/OWNER/NAME/installation              with the app's JWT
    POST   /app/installations/ID/access_tokens         with the app's JWT: a token for what the body asks for
    DELETE /installation/token                         with a token: it is worth nothing any more
    GET    /whoami                                     with a token, Bearer or as Basic's password: its repository, its permissions, and itself

The JWT is verified by openssl's own command with the public half of the app's key, its claims here. What the server answers is in github.json, which a test may write:
{"mint": MODE, "revoke": MODE, "life": SECONDS, "hold": true}; while the last is there a good question for a token waits for its answer. Each request is a line of github.jsonl with what was found of it.
"""

import base64
import json
import os
import secrets
import subprocess
import tempfile
import threading
import time

import servers

APP, INSTALLATION, REPOSITORIES = "42", 7, ("acme/widgets", "acme/other")
MAY = {"contents": "write", "pull_requests": "write", "metadata": "read"}
LEVELS = ("read", "write", "admin")
ERRORS = {"401": (401, "A JSON web token could not be decoded"), "403": (403, "Resource not accessible by integration"),
          "422": (422, "The permissions requested are not granted to this installation."), "500": (500, "Server Error"), "503": (503, "No server is available")}


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def verify(jwt, public_key):
    """What is wrong with it, or None."""
    try:
        head, claims, signature = jwt.split(".")
        header, payload = json.loads(decode(head)), json.loads(decode(claims))
    except ValueError:
        return "no JWT"
    with tempfile.NamedTemporaryFile() as f:
        f.write(decode(signature))
        f.flush()
        done = subprocess.run(["openssl", "dgst", "-sha256", "-verify", public_key, "-signature", f.name], input=f"{head}.{claims}".encode(),
                              capture_output=True, check=False)
    now = time.time()
    if header != {"alg": "RS256", "typ": "JWT"}:
        return "header"
    if done.returncode:
        return "signature"
    if payload.get("iss") != APP or set(payload) != {"iss", "iat", "exp"}:
        return "claims"
    if not now - 75 < payload["iat"] < now - 45:
        return f"iat {payload['iat'] - now:+.0f}"
    if not now < payload["exp"] <= payload["iat"] + 600:
        return f"exp {payload['exp'] - now:+.0f}"
    return None


class Server(servers.Server):
    def __init__(self, address, log_path, state_path, public_key):
        super().__init__(address, Handler, log_path)
        self.state_path, self.public_key = state_path, public_key
        self.tokens, self.guard = {}, threading.Lock()       # token: (repository, permissions, expiry)

    def state(self):
        try:
            with open(self.state_path, encoding="utf-8") as f:
                return {"mint": "ok", "revoke": "ok", "life": 3600, **json.load(f)}
        except FileNotFoundError:
            return {"mint": "ok", "revoke": "ok", "life": 3600}


class Handler(servers.Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.endswith("/installation"):
            self.lookup()
        else:
            self.whoami()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        wrong = verify(self.bearer(), self.server.public_key)
        state = self.server.state()
        self.note(jwt=wrong or "good", body=body.decode(), mode=state["mint"], agent=self.headers.get("User-Agent"))
        if wrong:
            self.answer(401, {"message": f"A JSON web token could not be decoded ({wrong})"})
        elif self.misbehave(state["mint"]):
            pass
        elif self.path != f"/app/installations/{INSTALLATION}/access_tokens":
            self.answer(404, {"message": "Not Found"})
        else:
            while self.server.state().get("hold"):
                time.sleep(0.05)
            self.mint(json.loads(body), state)

    def do_DELETE(self):
        token, state = self.bearer(), self.server.state()
        with self.server.guard:
            known = self.token_of(token)
            self.note(token=token, known=bool(known), mode=state["revoke"])
            if state["revoke"] == "ok" and known:
                del self.server.tokens[token]
        if self.misbehave(state["revoke"]):
            return
        if known:
            self.answer(204)
        else:
            self.answer(401, {"message": "Bad credentials"})

    # what each of them does

    def lookup(self):
        wrong = verify(self.bearer(), self.server.public_key)
        repository = self.path.removeprefix("/repos/").removesuffix("/installation")
        self.note(jwt=wrong or "good")
        if wrong:
            self.answer(401, {"message": wrong})
        elif repository in REPOSITORIES:
            self.answer(200, {"id": INSTALLATION, "account": {"login": repository.split("/")[0]}})
        else:
            self.answer(404, {"message": "Not Found"})

    def mint(self, asked, state):
        repositories, permissions = [f"acme/{name}" for name in asked["repositories"]], asked["permissions"]
        if not set(repositories) <= set(REPOSITORIES) or not all(
                name in MAY and LEVELS.index(level) <= LEVELS.index(MAY[name]) for name, level in permissions.items()):
            self.answer(422, {"message": "There is at least one repository or permission that does not exist or is not accessible"})
            return
        token = "ghs_" + "".join(secrets.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") for _ in range(36))
        expiry = int(time.time() + state["life"])
        granted = {**permissions, "metadata": "read"}
        if state["mint"] == "wider":
            granted["administration"] = "write"
        with self.server.guard:
            self.server.tokens[token] = (repositories[0], granted, expiry)
        self.note(minted=token, expiry=expiry)
        self.answer(201, {"token": token, "expires_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expiry)), "permissions": granted,
                          "repository_selection": "selected", "repositories": [{"full_name": name} for name in repositories]})

    def whoami(self):
        token = self.bearer()
        with self.server.guard:
            known = self.token_of(token)
        self.note(token=token, known=bool(known))
        if known:
            self.answer(200, {"repository": known[0], "permissions": known[1], "token": token, "base64": base64.b64encode(token.encode()).decode()})
        else:
            self.answer(401, {"message": "Bad credentials"})

    # the rest

    def bearer(self):
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            return base64.b64decode(value).decode().partition(":")[2]
        return value if scheme == "Bearer" else ""

    def token_of(self, token):
        known = self.server.tokens.get(token)
        return known if known and known[2] > time.time() else None

    def note(self, **more):
        self.server.note({"time": time.time(), "method": self.command, "path": self.path, **more})

    def misbehave(self, mode):
        """True: something else than an answer was given."""
        if mode in ERRORS:
            status, message = ERRORS[mode]
            self.answer(status, {"message": message})
        elif mode == "garbage":
            self.answer(201, b"<html>\x00\xff not what you think</html>")
        elif mode == "no-expiry":
            self.answer(201, {"token": "ghs_" + "x" * 36})
        elif mode == "no-http":
            self.wfile.write(b"\x15\x03\x01 what?\r\n\r\n")
            self.close_connection = True
        elif mode == "huge":
            self.answer(201, {"token": "ghs_" + "x" * 100000})
        elif mode == "slow":
            time.sleep(12)
            self.close_connection = True
        elif mode == "close":
            self.close_connection = True
        else:
            return False
        return True

    def answer(self, status, content=None):
        body = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(address, log_path, cert, key, state_path, public_key):
    return Server(address, log_path, state_path, public_key).start(cert, key)


def make_key(private_path, public_path):
    for argv in (["genrsa", "-traditional", "-out", private_path, "2048"], ["rsa", "-in", private_path, "-pubout", "-out", public_path]):
        subprocess.run(["openssl", *argv], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.chmod(private_path, 0o600)
