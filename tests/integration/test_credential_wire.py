# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP/1.1 through inject to the byte, on the booted image: what leaves and what comes back, of curl and Python in a microVM, and of many at once."""

import base64
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from egressrun import InjectRun, records
from injectclient import connect, make_context
from waiting import wait_for

NAME = "wire.example.org"
REAL = "wire-REALWIREREALWIREREALWIREREALWIREREALWIRE"
RUN = "r0000000wire1"

# Run by Python in the microVM: real clients, which trust the run's CA by what every step has. Prints one JSON object.
GUEST = r'''
import base64, hashlib, http.client, json, os, socket, ssl, subprocess, sys
key, name, out = os.environ["WIRE_KEY"], "wire.example.org", {"key": os.environ["WIRE_KEY"]}
out["environment"] = {k: os.environ.get(k) for k in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
                                                     "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO")}
def sh(line, **kw):
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, **kw)
    return done.stdout + done.stderr
ca = {k: v for k, v in out["environment"].items()}
bare = {"PATH": os.environ["PATH"], "HOME": "/root"}
url = "https://" + name
out["curl"] = sh(f"curl -sS --http1.1 -H 'x-wire-key: {key}' -A golden/1 '{url}/golden?a=b%20c'")
out["curl-bare"] = sh(f"curl -sS --http1.1 {url}/bare", env=bare)
out["curl-wrong"] = sh(f"curl -sS --http1.1 {url}/wrong", env={**bare, "CURL_CA_BUNDLE": "/dev/null"})
out["git"] = [sh(f"git ls-remote {url}/repo", env={**bare, **more}) for more in ({}, {"GIT_SSL_CAINFO": ca["GIT_SSL_CAINFO"]})]
c = http.client.HTTPSConnection(name, timeout=60)
body = os.urandom(3 << 20)
c.request("POST", "/hash", body, {"Authorization": "Bearer " + key})
out["upload"] = [c.getresponse().read().decode().split()[0], hashlib.sha256(body).hexdigest()]
c.request("POST", "/hash", iter([body[:5], body[5:70000], b"", body[70000:]]), {"x-wire-key": key}, encode_chunked=True)
out["chunked"] = c.getresponse().read().decode().split()[0]
c.request("GET", "/reflect", headers={"x-wire-key": key})
r = c.getresponse()
out["cookie"], out["reflect"] = r.getheader("Set-Cookie"), r.read().decode()
c.request("GET", "/gzip", headers={"x-wire-key": key, "Accept-Encoding": "gzip, br"})
r = c.getresponse()
out["gzip"], out["gzip-encoding"] = r.read().decode(), r.getheader("Content-Encoding")
c.close()
out["trailer"] = sh(f"curl -sS --http1.1 --raw -H 'x-wire-key: {key}' {url}/reflect | tail -c 200")
out["continue"] = sh(f"head -c 2000000 /dev/zero | curl -sS -v --http1.1 -H 'x-wire-key: {key}' -H 'Expect: 100-continue' --data-binary @- {url}/hash")
out["range"] = sh(f"curl -sS --http1.1 -H 'x-wire-key: {key}' -r 0-9 {url}/x")
out["elsewhere-base64"] = sh("printf 'x:%s' \"$WIRE_KEY\" | base64 -w0 | curl -sS --http1.1 --data-binary @- https://www.example.org/echo")

s = ssl.create_default_context().wrap_socket(socket.create_connection((name, 443)), server_hostname=name)
f = s.makefile("rb")
s.sendall(f"GET /ws HTTP/1.1\r\nHost: {name}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
          f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\nx-wire-key: {key}\r\n\r\n".encode())
head = b""
while not head.endswith(b"\r\n\r\n"):
    head += f.readline()
out["ws"] = head.decode()
s.sendall(b"\x81\x83\x01\x02\x03\x04" + bytes(a ^ b for a, b in zip(b"key", b"\x01\x02\x03\x04")))
first, size = f.read(2)
out["ws-key"] = [first, f.read(size).decode()]
print("RESULT " + json.dumps(out))
'''


@pytest.fixture(scope="module")
def key(host):
    """The real value, sealed."""
    host.seal_credential("test-wire", REAL)


@pytest.fixture(scope="module")
def ran(host, world, key):
    world.forget_logs()
    done = host.anchorctl("run", "--workflow", "exec-wire", "--", "python3", "-c", GUEST, check=False)
    found = re.search(r"^RESULT (.*)$", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    result = json.loads(found.group(1))
    result["text"] = done.stdout + done.stderr
    result["wire"] = world.log("wire")
    result["run"] = host.show(re.search(r"\bi[0-9a-z]{12}\b", result["text"]).group(0))["runs"][0]["id"]
    return result


def test_golden_bytes(ran):
    """What the origin got of one request of curl's: each byte of the head but the order that inject gives it."""
    head = next(e["head"] for e in ran["wire"] if "/golden" in e["head"])
    assert head == ("GET /golden?a=b%%20c HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: identity\r\nx-wire-key: %s\r\nUser-Agent: golden/1\r\nAccept: */*\r\n" % (NAME, REAL)) or \
        sorted(head.split("\r\n")) == sorted(["GET /golden?a=b%20c HTTP/1.1", "Host: " + NAME, "Accept-Encoding: identity", "x-wire-key: " + REAL,
                                              "User-Agent: golden/1", "Accept: */*", ""])


def test_no_sentinel_arrives_and_no_value_comes_back(ran):
    assert re.fullmatch(r"wire-[A-Za-z0-9_-]{40}", ran["key"])
    assert ran["key"] not in json.dumps(ran["wire"])
    assert REAL not in ran["text"]
    assert base64.b64encode(REAL.encode()).decode().rstrip("=")[:-2] not in ran["text"]


def test_uploads_are_bit_identical(ran):
    assert ran["upload"][0] == ran["upload"][1] == ran["chunked"]
    assert hashlib.sha256(bytes(2000000)).hexdigest() in ran["continue"] and "100 Continue" in ran["continue"]


def test_reflected_value_is_masked_in_every_form(ran):
    key = ran["key"]
    assert ran["cookie"] == "key=" + key
    assert "X-Key: " + key in ran["trailer"]
    for text in (ran["reflect"], ran["gzip"]):
        said = json.loads(text)
        assert said["plain"] == said["percent"] == said["escaped"] == key
        assert [base64.b64decode(b) for b in said["base64"]] == [p + key.encode() + b"!!" for p in (b"", b"u:", b"me:")]
    assert ran["gzip-encoding"] is None


def test_parts_are_refused(ran):
    assert "cannot-substitute" in ran["range"]
    assert not any("/x " in e["head"] for e in ran["wire"] if "head" in e)


def test_disguised_sentinel_elsewhere(host, ran):
    """In Base64, in a body to a host that it is not for."""
    assert "credential-misuse" in ran["elsewhere-base64"]
    assert wait_for(lambda: records(host, "credential.misuse", ran["run"], name="www.example.org", where="body"))


def test_websocket_of_a_microvm(ran):
    assert ran["ws"].startswith("HTTP/1.1 101 ") and "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in ran["ws"]
    assert "Extensions" not in ran["ws"] and not any("Extensions" in e.get("head", "") for e in ran["wire"])
    assert ran["ws-key"] == [0x81, ran["key"]]


def test_stores(ran):
    """With the step's environment and without it; and not with a store that holds no CA."""
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    assert ran["environment"] == {"NODE_EXTRA_CA_CERTS": "/run/anchorhold/ca.pem", **{k: bundle for k in (
        "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO")}}
    assert re.match(r"[0-9a-f]{64} 0\n", ran["curl"]) and re.match(r"[0-9a-f]{64} 0\n", ran["curl-bare"])
    assert "certificate" in ran["curl-wrong"]
    # the origin is no git server: who comes so far has believed its certificate
    assert all("is this a git repository" in said for said in ran["git"])


# ---- in volume: a stand-in for the guest, on everything else of the image ----

@pytest.fixture(scope="module")
def guest(host, world, key, ran, anchord):
    it = InjectRun(host, anchord, RUN, "exec-wire")
    yield it
    it.stop()


@pytest.fixture(scope="module")
def address(guest):
    return guest.address_of(NAME)


def post_many(address, n):
    """So many posts at once, each over TLS of its own with a body of its own; how many came back as they went."""
    barrier = threading.Barrier(n)

    def post(i):
        body = hashlib.sha256(b"%d" % i).digest() * (1 + i % 97) + os.urandom(1000)
        with connect(address, NAME) as s:
            barrier.wait(60)
            s.sendall(b"POST /echo HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (NAME.encode(), len(body)) + body)
            response = http.client.HTTPResponse(s)
            response.begin()
            return response.status == 200 and response.read() == body

    with ThreadPoolExecutor(n) as pool:
        return sum(pool.map(post, range(n)))


def test_200_parallel_posts(guest, address):
    assert guest.call(post_many, address, 200, timeout=80) == 200


def shake_slowly(address, seconds):
    """The status of a request over a connection whose guest is so long about the end of its handshake."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = make_context().wrap_bio(into, out, server_hostname=NAME)
    with socket.create_connection((address, 443), timeout=30) as s:

        def until_done(step):
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    s.sendall(out.read())
                    data = s.recv(65536)
                    into.write(data) if data else into.write_eof()

        until_done(tls.do_handshake)
        assert tls.version() == "TLSv1.3" and out.pending                # the last word is ours, and not said yet
        time.sleep(seconds)
        tls.write(b"GET /x HTTP/1.1\r\nHost: %s\r\n\r\n" % NAME.encode())
        return until_done(lambda: tls.read(65536)).split()[1]


def test_a_slow_guest_is_waited_for(guest, address):
    """As on a busy machine, when many connect at once."""
    assert guest.call(shake_slowly, address, 12) == b"200"


def read_events(address):
    """How late each event of a stream was, in seconds: both ends have one clock here."""
    late, text = [], b""
    with connect(address, NAME) as s:
        s.sendall(b"GET /sse HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % NAME.encode())
        while data := s.recv(65536):
            now, text = time.time(), text + data
            sent = re.findall(rb"data: ([0-9.]+)\n\n", text)
            late += [now - float(t) for t in sent[len(late):]]
    return late


@pytest.mark.quiet
def test_events_are_not_late(guest, address):
    late = guest.call(read_events, address)
    assert len(late) == 5
    assert sorted(late)[2] < 0.05 and max(late) < 0.2, late


def talk(address, sizes):
    """Binary messages of these sizes over one WebSocket, in one frame or in three: those that came back changed."""
    bad = []

    def frame(first, data):
        mask = os.urandom(4)
        size = struct.pack(">B", 0x80 | len(data)) if len(data) < 126 else struct.pack(">BH", 0xfe, len(data)) if len(data) < 65536 \
            else struct.pack(">BQ", 0xff, len(data))
        n = len(data)
        masked = (int.from_bytes(data, "big") ^ int.from_bytes((mask * (n // 4 + 1))[:n], "big")).to_bytes(n, "big")
        return bytes([first]) + size + mask + masked

    with connect(address, NAME) as s:
        f = s.makefile("rb")
        s.sendall(b"GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                  b"Sec-WebSocket-Version: 13\r\n\r\n" % NAME.encode())
        while f.readline() != b"\r\n":
            pass
        for size in sizes:
            data, message, last = os.urandom(size), b"", False
            third = size // 3
            s.sendall(frame(0x82, data) if size % 2 else
                      frame(0x02, data[:third]) + frame(0x89, b"ping") + frame(0, data[third:2 * third]) + frame(0x80, data[2 * third:]))
            while not last:
                first, n = f.read(2)
                if n >= 126:
                    n = int.from_bytes(f.read(2 if n == 126 else 8), "big")
                part = f.read(n)
                if first & 8:
                    bad += [] if (first, part) == (0x8a, b"ping") else [(first, part)]
                else:
                    message, last = message + part, first & 0x80
            if message != data:
                bad.append(size)
        s.sendall(frame(0x88, b"\x03\xe8"))
        if f.read(4) != b"\x88\x02\x03\xe8":
            bad.append("close")
    return bad


def test_websocket_messages(guest, address):
    assert guest.call(talk, address, [0, 1, 2, 125, 126, 65535, 65536, 300001, 1000000, 7]) == []


# ---- one verdict for all requests on a connection, where no rule asks for a method or a path ----

def ask_many(address, path, n, wait=0.0):
    """So many requests on one connection; the statuses, or where it ended. wait: seconds before the last one."""
    statuses = []
    with connect(address, NAME) as s:
        try:
            for i in range(n):
                if i == n - 1:
                    time.sleep(wait)
                s.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path.encode(), NAME.encode()))
                response = http.client.HTTPResponse(s)
                response.begin()
                response.read()
                statuses.append(response.status)
        except (OSError, http.client.HTTPException):
            statuses.append("cut")
    return statuses


def test_requests_are_covered_and_counted(host, guest, address, world):
    assert guest.call(ask_many, address, "/covered?x=1", 5) == [200] * 5
    [first] = records(host, "egress.allow", RUN, name=NAME, path="/covered")
    assert first["method"] == "GET" and first["grant"] > 0
    told = wait_for(lambda: [r for record in records(host, "egress.requests", RUN, name=NAME, port=443, rule=first["rule"]) for r in record["requests"]
                             if r[1] == "/covered"], 20)
    assert told == [["GET", "/covered", 4]]
    assert sum("GET /covered?x=1 " in e.get("head", "") for e in world.log("wire")) == 5


def ask_once(address, name, method, path):
    """(status, reason) of one request."""
    with connect(address, name) as s:
        s.sendall(b"%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (method.encode(), path.encode(), name.encode()))
        response = http.client.HTTPResponse(s)
        response.begin()
        response.read()
        return response.status, response.getheader("Anchorhold-Reason")


def test_deny_by_method_alone_and_what_it_leaves(host, guest, world):
    """A host that would be passed through is inspected for what is denied there; the rest goes on."""
    name = "www.example.org"
    there = guest.address_of(name)
    assert guest.call(ask_once, there, name, "DELETE", "/denied") == (403, "denied-by-rule")
    assert guest.call(ask_once, there, name, "GET", "/left") == (200, None)
    assert [r["path"] for r in world.log("origin") if r["path"] in ("/denied", "/left")] == ["/left"]
    assert [r["verdict"] for r in records(host, "egress.allow", RUN, name=name, path="/left")] == ["pass"]


def test_live_rule_by_path_cuts_what_was_covered(host, guest, address):
    """After it each request is asked about again; beside it, what a rule about another name does: nothing."""
    for rule, then in ((f'{{"name": "other.{NAME}", "paths": ["/no"]}}', 200), (f'{{"name": "{NAME}", "paths": ["/no"]}}', "cut")):
        with ThreadPoolExecutor(1) as pool:
            path = "/open/%s" % then
            result = pool.submit(guest.call, ask_many, address, path, 2, 3.0)
            wait_for(lambda: records(host, "egress.allow", RUN, name=NAME, path=path), 10)
            said = json.loads(host.anchorctl("policy", "deny", RUN, rule, "--json=short").stdout)
            assert said["changed"] and said["cut"] == (then == "cut")
            assert result.result() == [200, then]
    assert guest.call(ask_many, address, "/asked", 3) == [200] * 3
    assert len(records(host, "egress.allow", RUN, name=NAME, path="/asked")) == 3
    assert guest.call(ask_many, address, "/no/1", 1) == [403]
