# SPDX-License-Identifier: LGPL-2.1-or-later
"""Connections of a guest: protocols of every kind on ports that policy names, the explicit proxy, what a connection must say about itself, and how it ends.

Beside each denial the same that is allowed. What egressd decides in general is tested in test_run_egress.py.
"""

import http.client
import json
import os
import socket
import ssl
import struct
import threading
import time

import pytest

import protocols
import world as worlds
from egressrun import Anchord, EgressRun, tls, wait_for
from fakeguest import dns, exchange

RUN = "r0000connect1"
PROXY = ("10.255.255.1", 3128)
NAME = "www.example.org"


@pytest.fixture(scope="module")
def anchord(host):
    it = Anchord(host)
    yield it
    it.restore()


@pytest.fixture(scope="module")
def run(host, anchord):
    it = EgressRun(host, anchord, RUN, "exec-names")
    yield it
    it.stop()


@pytest.fixture(scope="module")
def www(run):
    return run.address_of(NAME)


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


# ---- any protocol ----

def banner(address, port, line):
    """(what is said first, the answer to a line, seconds) where the server speaks first."""
    begin = time.monotonic()
    with socket.create_connection((address, port), timeout=5) as s:
        first = s.recv(100)
        took = time.monotonic() - begin
        s.sendall(line)
        return first, s.recv(100), took


@pytest.mark.parametrize("port, first", [(protocols.SSH_PORT, b"SSH-2.0-world\r\n"), (protocols.SMTP_PORT, b"220 world ESMTP\r\n")])
def test_server_speaks_first(run, www, port, first):
    said, answer, took = run.call(banner, www, port, b"SSH-2.0-guest\r\n")
    assert (said, answer) == (first, b"you said SSH-2.0-guest\r\n") and took < 1
    assert run.records("egress.allow", name=NAME, port=port)[0]["protocol"] == "raw"


def postgres(address, ca, through=None):
    """SSLRequest, TLS in the midst of the connection, a startup message; (TLS version, the server's answer)."""
    with socket.create_connection(through or (address, protocols.POSTGRES_PORT), timeout=5) as s:
        if through:
            s.sendall(f"CONNECT {address}:{protocols.POSTGRES_PORT} HTTP/1.1\r\n\r\n".encode())
            assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        s.sendall(protocols.SSL_REQUEST)
        assert s.recv(1) == b"S"
        with ssl.create_default_context(cafile=ca).wrap_socket(s, server_hostname=NAME) as t:
            t.sendall(struct.pack(">II", 8, 196608))
            return t.version(), t.recv(100)


def test_postgres_turns_to_tls(run, www, world):
    answer = ("TLSv1.3", b"R\0\0\0\x08\0\0\0\0")
    assert run.call(postgres, www, world.path("world.pem")) == answer
    assert run.call(postgres, NAME, world.path("world.pem"), PROXY) == answer


def test_deny_the_same_protocols_on_other_ports(run, www):
    """22 of a host for which policy names no port 22, and a port that it names for nobody."""
    git = run.address_of("git.example.org")
    for address, name, port in ((git, "git.example.org", 22), (git, "git.example.org", 5432), (www, NAME, 2222)):
        begin = time.monotonic()
        assert run.call(exchange, address, port, b"SSH-2.0-guest\r\n", 5, False) == "ConnectionResetError"
        assert time.monotonic() - begin < 1.5
        assert wait_for(lambda n=name, p=port: run.records("egress.deny", name=n, port=p, reason="port"))


def test_addresses_are_tried_in_turn(run):
    """The first refuses, or nobody is there: neither costs much."""
    for name in ("refusing.example.org", "silent.example.org"):
        begin = time.monotonic()
        assert run.call(exchange, run.address_of(name), 9000, b"hello") == b"hello", name
        assert time.monotonic() - begin < 2, name
        [allowed] = run.records("egress.allow", name=name)
        assert sorted(allowed["addresses"]) == sorted([worlds.ORIGIN, worlds.OTHER if name[0] == "r" else worlds.SILENT])


# ---- first bytes ----

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


@pytest.mark.parametrize("port, data, answer", [
    (443, request(host=NAME), b"HTTP/1.1 403 "), (443, b"SSH-2.0-guest\r\n", "ConnectionResetError"), (443, b"\0\0\0\x08\4\xd2\x16\x2f", "ConnectionResetError"),
    (443, b"\x80\x2e\1\3\1\0\x15\0\0\0\x10", "ConnectionResetError"),                           # an SSLv2 hello
    (443, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 403 "),
    (443, b"\x16\3\1\0\4\2\0\0\0", "ConnectionResetError"),                                     # a handshake, but no client's hello
    (443, HELLO[:5] + b"\1\0\0\0" + bytes(600), ALERT),                                     # an empty hello
    (80, HELLO, ALERT), (80, b"SSH-2.0-guest\r\n", "ConnectionResetError"), (80, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 403 "),
    (80, b"\r\nGET / HTTP/1.1\r\n", "ConnectionResetError"), (80, b"get / http/1.1\r\n\r\n", "ConnectionResetError"),
])
def test_deny_another_protocol_than_the_ports(run, www, port, data, answer):
    got = run.call(exchange, www, port, data, 5, False)
    assert got == answer if isinstance(answer, str) else got.startswith(answer), got
    if isinstance(got, bytes) and got.startswith(b"HTTP"):
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"Anchorhold-Reason: protocol" in head and json.loads(body)["rule"].startswith("egress/test-names.json#/allow/")
    assert wait_for(lambda: run.records("egress.deny", name=NAME, port=port, reason="protocol"))


def hello(address, pieces, pause=0.0, port=443):
    """The first bytes of the answer to a hello sent in these pieces."""
    with socket.create_connection((address, port), timeout=5) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            s.sendall(piece)
            if pause:
                time.sleep(pause)
        return s.recv(4096)


def test_hello_in_pieces(run, www):
    message = make_hello(NAME)
    one, many = records_of(message), records_of(message, 7)
    for pieces, pause in (([one], 0), ([one[i:i + 1] for i in range(len(one))], 0.001), ([many], 0), ([many[i:i + 5] for i in range(0, len(many), 5)], 0.005)):
        assert run.call(hello, www, pieces, pause)[:3] == b"\x16\3\3"
    # the same with another name
    for pieces in ([records_of(make_hello("git.example.org"), 7)], [records_of(make_hello("git.example.org"))]):
        assert run.call(hello, www, pieces) == ALERT


@pytest.mark.parametrize("name, extra, reason", [
    ("git.example.org", b"", "fronting"), ("paste.example.net", b"", "fronting"), (NAME + ".evil.example", b"", "fronting"), ("", b"", "no-sni"),
    (NAME, struct.pack(">HH", 0xfe0d, 10) + b"\0\0\1\0\1\0\0\0\0\0", "ech"),
])
def test_deny_what_a_hello_says(run, www, name, extra, reason):
    assert run.call(hello, www, [records_of(make_hello(name, extra=extra))]) == ALERT
    assert wait_for(lambda: run.records("egress.deny", name=NAME, port=443, reason=reason))


@pytest.mark.parametrize("name", [NAME, "WWW.Example.ORG", NAME + "."])
def test_hello_with_the_name(run, www, name):
    assert run.call(hello, www, [records_of(make_hello(name))])[:1] == b"\x16"


@pytest.mark.parametrize("extra", [
    struct.pack(">HH", 0, 8) + b"\0\6\0\0\3a.b",                        # a second server_name
    struct.pack(">HH", 9999, 9) + b"short",                               # an extension that is longer than the rest
])
def test_deny_an_ambiguous_hello(run, www, extra):
    assert run.call(hello, www, [records_of(make_hello(NAME, extra=extra))]) == ALERT


def retry(address, second_name, ahead=False, piece=16384):
    """A first hello for git.example.org without a key share, then the second one with this name; the first bytes of both answers."""
    share = b"\0\x1d\0\x20" + bytes([9]) + bytes(31)
    second = b"\x14\3\3\0\1\1" + records_of(make_hello(second_name, shares=share), piece)
    with socket.create_connection((address, 443), timeout=5) as s:
        s.sendall(records_of(make_hello("git.example.org")) + (second if ahead else b""))
        first = s.recv(4096)
        if not ahead:
            s.sendall(second)
        return first[:6], (first[6:] if ahead else b"") + s.recv(4096)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("piece", [16384, 11])
def test_deny_another_name_in_a_second_hello(run, ahead, piece):
    """The server asks for another hello, and would serve by the name in that one."""
    git = run.address_of("git.example.org")
    first, answer = run.call(retry, git, "git.example.org", ahead, piece)
    assert first == b"\x16\3\3" + first[3:5] + b"\2" and b"\x17\3\3" in answer         # ServerHello, and encrypted from then on
    first, answer = run.call(retry, git, "other.example.net", ahead, piece)
    assert ALERT in answer and b"\x17\3\3" not in answer
    assert wait_for(lambda: run.records("egress.deny", name="git.example.org", port=443, reason="fronting", detail="other.example.net"))


def test_silence_is_not_waited_for_forever(run, www):
    """Half a hello, half a head, nothing at all: refused after ten seconds, and logged."""
    def all_at_once(cases):
        sockets = []
        for where, data in cases:
            s = socket.create_connection(where, timeout=15)
            s.sendall(data)
            sockets.append(s)
        begin, ends = time.monotonic(), []
        for s in sockets:
            try:
                ends.append(read_all(s))
            except ConnectionResetError:
                ends.append("reset")
        return ends, time.monotonic() - begin

    ends, took = run.call(all_at_once, [((www, 443), HELLO[:100]), ((www, 443), b""), ((www, 80), b"GET / HTTP/1.1\r\nHost: w"), ((www, 80), b""), (PROXY, b"CONNECT ")])
    assert 8 < took < 14
    assert ends[:2] == [ALERT, ALERT] and all(e.startswith(b"HTTP/1.1 408 ") for e in ends[2:]), ends
    for port in (443, 80, 3128):
        assert wait_for(lambda p=port: run.records("egress.deny", port=p, reason="timeout"))


# ---- the explicit proxy ----

def connect(target, data=b"", fields="", timeout=5):
    """(status line, what comes behind the head) after a CONNECT and these bytes."""
    with socket.create_connection(PROXY, timeout=timeout) as s:
        s.sendall(f"CONNECT {target} HTTP/1.1\r\n{fields}\r\n".encode())
        got = b""
        while b"\r\n\r\n" not in got:
            part = s.recv(4096)
            if not part:
                return got.decode(), b""
            got += part
        head, _, rest = got.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 200 "):
            if data:
                s.sendall(data)
            try:
                return head.split(b"\r\n")[0].decode(), rest + s.recv(4096)
            except ConnectionResetError:
                return head.split(b"\r\n")[0].decode(), b"reset"
        return head.split(b"\r\n")[0].decode(), rest + read_all(s)


@pytest.mark.parametrize("port, data, answer", [(22, b"", b"SSH-2.0-world"), (25, b"", b"220 world"), (9000, b"hello", b"hello"), (443, HELLO, b"\x16\3\3"),
                                                (8081, request("/through"), b"HTTP/1.1 200 OK")])
def test_connect_to_any_port_in_policy(run, port, data, answer):
    line, got = run.call(connect, f"{NAME}:{port}", data)
    assert line == "HTTP/1.1 200 Connection established" and got.startswith(answer), (line, got)


@pytest.mark.parametrize("target, status, record", [
    (f"{NAME}:2222", 403, (NAME, 2222, "port")), ("git.example.org:22", 403, ("git.example.org", 22, "port")), ("paste.example.net:443", 403, ("paste.example.net", 443, "no-rule")),
    (f"{worlds.ORIGIN}:443", 403, (worlds.ORIGIN, 443, "literal-address")), ("[2001:db8::1]:443", 403, ("[2001:db8::1]", 443, "no-rule")),
    ("[::ffff:203.0.113.12]:443", 403, ("[::ffff:203.0.113.12]", 443, "no-rule")), (f"user:secret@{NAME}:443", 403, (f"user:secret@{NAME}", 443, "no-rule")),
    ("0xcb00710c:443", 403, ("0xcb00710c", 443, "no-rule")), ("3405803788:443", 403, ("3405803788", 443, "no-rule")), (f"%77ww.example.org:443", 403, ("%77ww.example.org", 443, "no-rule")),
    (NAME, 400, ("", 3128, "malformed")), (f"{NAME}:", 400, None), (f"{NAME}:0", 400, None), (f"{NAME}:65536", 400, None), (f"{NAME}:+443", 400, None), (":443", 400, None),
    (f"https://{NAME}/", 400, None), ("/", 400, None), ("*", 400, None),
])
def test_deny_connect(run, target, status, record):
    line, body = run.call(connect, target)
    assert line.startswith(f"HTTP/1.1 {status} "), (line, body)
    assert json.loads(body)["error"] == "refused by Anchorhold"
    if record:
        name, port, reason = record
        assert wait_for(lambda: run.records("egress.deny", name=name, port=port, reason=reason)), run.records("egress.deny", port=port)


def test_connect_must_carry_its_name(run):
    for name, answer in (("git.example.org", ALERT), ("", ALERT), (NAME, b"\x16\3\3")):
        line, got = run.call(connect, f"{NAME}:443", records_of(make_hello(name)))
        assert line.startswith("HTTP/1.1 200 ") and got.startswith(answer), name
    _, got = run.call(connect, f"{NAME}:8081", request("/x", host="git.example.org:8081"))
    assert got.startswith(b"HTTP/1.1 421 ")
    _, got = run.call(connect, f"{NAME}:443", b"SSH-2.0-guest\r\n")
    assert got == b"reset"


def test_connect_and_hello_in_one_piece(run):
    def both():
        with socket.create_connection(PROXY, timeout=5) as s:
            s.sendall(f"CONNECT {NAME}:443 HTTP/1.1\r\nHost: {NAME}:443\r\nProxy-Authorization: Basic eDp5\r\n\r\n".encode() + HELLO)
            return s.recv(39), s.recv(4096)

    assert run.call(both)[0].startswith(b"HTTP/1.1 200 ")
    assert run.call(both)[1].startswith(b"\x16\3\3")


def test_absolute_form(run, world):
    def get(target, host, extra=""):
        return f"GET {target} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n{extra}\r\n".encode()

    # one connection, two hosts: the first is answered, the second reaches neither host by this connection
    two = get(f"http://{NAME}:8081/first", f"{NAME}:8081") + get("http://git.example.org:8081/second", "git.example.org:8081")
    answer = run.call(exchange, *PROXY, two, 5, False)
    assert answer.count(b"HTTP/1.1 200 OK") == 1 and b"GET /first www.example.org:8081 0" in answer
    [seen] = web(world, target="/first")
    assert set(seen["fields"]) == {"host", "connection"} and seen["fields"]["connection"] == "close"
    assert not web(world, target="/second")

    # the authority decides, and the Host header has to agree
    for target, host, status in (("http://paste.example.net/", "paste.example.net", b"403"), (f"http://{NAME}:2222/", f"{NAME}:2222", b"403"), (f"http://{worlds.ORIGIN}/", worlds.ORIGIN, b"403"),
                                 (f"http://{NAME}:8081/x", "git.example.org", b"421"), ("http://git.example.org:8081/x", NAME, b"421"), (f"http://{NAME}:22/", f"{NAME}:22", b"403"),
                                 (f"http://user@{NAME}:8081/", f"{NAME}:8081", b"400"), (f"https://{NAME}/", NAME, b"400"), ("/", NAME, b"400"), (f"ftp://{NAME}/", NAME, b"400")):
        answer = run.call(exchange, *PROXY, get(target, host), 5, False)
        assert answer.split()[1] == status, (target, answer)
    assert not web(world, target="/x")


def test_absolute_form_with_a_body(run, world):
    head = f"POST http://{NAME}:8081/upload HTTP/1.1\r\nHost: {NAME}:8081\r\nContent-Length: 200000\r\n\r\n".encode()
    assert b"POST /upload www.example.org:8081 200000" in run.call(exchange, *PROXY, head + b"x" * 200000 + request("/smuggled"), 10, False)
    assert not web(world, target="/smuggled")


# ---- cleartext HTTP ----

def converse(address, parts, port=8081, end=True):
    """Everything that is answered to parts sent in turn; a number is a pause."""
    with socket.create_connection((address, port), timeout=10) as s:
        for part in parts:
            if isinstance(part, (int, float)):
                time.sleep(part)
            else:
                s.sendall(part)
        if end:
            s.shutdown(socket.SHUT_WR)
        return read_all(s)


def test_requests_in_a_row_are_all_answered(run, www, world):
    """Pipelined, and the guest half-closes before the second is decided."""
    data = b"".join(request(f"/row/{i}") for i in range(5))
    answer = run.call(converse, www, [data])
    assert [f"GET /row/{i} {NAME}:8081 0".encode() in answer for i in range(5)] == [True] * 5
    assert len({e["from"] for i in range(5) for e in web(world, target=f"/row/{i}")}) == 1


def test_deny_one_of_several_requests_in_their_order(run, www, world):
    """The refusal comes behind the answers that were asked for before, and nothing behind it is served."""
    data = request("/slowly/0.3") + request("/denied", host="git.example.org:8081") + request("/behind")
    answer = run.call(converse, www, [data], 8081, False)
    first, second = answer.find(b"GET /slowly/0.3"), answer.find(b"HTTP/1.1 421 ")
    assert 0 < first < second and b'"reason": "fronting"' in answer[second:], answer
    assert not web(world, target="/denied") and not web(world, target="/behind")

    begin = time.monotonic()                                   # in turn: the refusal is not late
    answer = run.call(converse, www, [request("/once"), 0.3, request("/denied", host="git.example.org:8081")], 8081, False)
    assert answer.count(b"HTTP/1.1 200 OK") == 1 and b"HTTP/1.1 421 " in answer and time.monotonic() - begin < 3


def test_head_and_empty_answers(run, www):
    answer = run.call(converse, www, [request("/x", method="HEAD") + request("/204") + request("/304") + request("/after")])
    assert [answer.count(t) for t in (b"HTTP/1.1 200 OK", b"HTTP/1.1 204 ", b"HTTP/1.1 304 ", b"GET /after")] == [2, 1, 1, 1]


def test_expect_continue(run, www):
    def upload(address):
        with socket.create_connection((address, 8081), timeout=5) as s:
            s.sendall(request("/expect", method="PUT", fields="Expect: 100-continue\r\nContent-Length: 5\r\n"))
            interim = s.recv(4096)
            s.sendall(b"hello" + request("/next", fields="Connection: close\r\n"))
            return interim, read_all(s)

    interim, answer = run.call(upload, www)
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n" and b"PUT /expect www.example.org:8081 5" in answer and b"GET /next" in answer


def test_chunked_both_ways(run, www):
    def post(address):
        body = "".join(f"{n:x};x=y\r\n{'z' * n}\r\n" for n in (1, 1000, 16, 70000)) + "0\r\nX-Trailer: 1\r\n\r\n"
        with socket.create_connection((address, 8081), timeout=10) as s:
            s.sendall(request("/chunked", method="POST", fields="Transfer-Encoding: chunked\r\n", body=body) + request("/after", fields="Connection: close\r\n"))
            response = http.client.HTTPResponse(s)
            response.begin()
            return response.read()

    assert run.call(post, www) == b"POST /chunked www.example.org:8081 71017\n"
    assert b"GET /after" in run.call(converse, www, [request("/chunked", method="POST", fields="Transfer-Encoding: chunked\r\n", body="0\r\n\r\n") + request("/after")])


def test_event_stream_is_not_held_back(run, www):
    def listen(address):
        times = []
        with socket.create_connection((address, 8081), timeout=5) as s:
            s.sendall(request("/sse"))
            while part := s.recv(4096):
                times += [time.monotonic()] * part.count(b"data:")
                if part.endswith(b"0\r\n\r\n"):
                    break
        return [b - a for a, b in zip(times, times[1:])]

    gaps = run.call(listen, www)
    assert len(gaps) == 3 and all(0.2 < gap < 0.6 for gap in gaps), gaps


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_deny_upgrades(run, www, world, upgrade):
    """Behind a switch of protocols nothing could be compared any more: refused, so that the client sees why."""
    answer = run.call(converse, www, [request("/ws", fields=f"Connection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Version: 13\r\n")], 8081, False)
    assert answer.startswith(b"HTTP/1.1 403 ") and b'"reason": "protocol"' in answer
    assert not web(world, target="/ws")


def test_deny_http2_behind_an_ignored_upgrade(run, www, world):
    """A server that switches without having been asked properly: the next bytes are no request."""
    answer = run.call(converse, www, [request("/ws", fields="Upgrade: h2c\r\n"), 0.3, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)], 8081, False)
    assert b"101 Switching" in answer and b"HTTP/1.1 403 " in answer
    assert wait_for(lambda: web(world, switched=True)) == [{"switched": True, "size": 0}]


@pytest.mark.parametrize("head", [
    f"GET / HTTP/1.1\r\nHost: {NAME}:8081\r\nHost: git.example.org\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {NAME}:8081\r\n X: y\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
    f"GET / HTTP/1.1\nHost: {NAME}:8081\n\n", f"GET / HTTP/1.1\r\nHost : {NAME}:8081\r\n\r\n", f"POST / HTTP/1.1\r\nHost: {NAME}:8081\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    f"POST / HTTP/1.1\r\nHost: {NAME}:8081\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", f"POST / HTTP/1.1\r\nHost: {NAME}:8081\r\nTransfer-Encoding: gzip\r\n\r\n",
    f"GET http://git.example.org/ HTTP/1.1\r\nHost: {NAME}:8081\r\n\r\n", f"GET / HTTP/2.0\r\nHost: {NAME}:8081\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {NAME}:80\r\n\r\n",
    f"CONNECT git.example.org:443 HTTP/1.1\r\nHost: {NAME}:8081\r\n\r\n", f"GET / HTTP/1.1\r\nHost: git.example.org,{NAME}:8081\r\n\r\n", f"GET / HTTP/1.1\r\nHost: x@{NAME}:8081\r\n\r\n",
])
@pytest.mark.parametrize("first", [True, False])
def test_deny_ambiguous_heads(run, www, world, head, first):
    """As the first request, and behind one that is allowed."""
    before = len(world.log("web"))
    answer = run.call(converse, www, ([] if first else [request("/good"), 0.1]) + [head.encode()], 8081, False)
    assert b"HTTP/1.1 403 " in answer or b"HTTP/1.1 421 " in answer, answer
    assert len(world.log("web")) - before == (0 if first else 1)


def test_too_large_a_head(run, www):
    answer = run.call(converse, www, [request("/", fields=f"X: {'y' * 20000}\r\n")], 8081, False)
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 403 ")), answer[:100]
    assert run.call(converse, www, [request("/", fields=f"X: {'y' * 8000}\r\nConnection: close\r\n")], 8081, False).startswith(b"HTTP/1.1 200 ")


# ---- half-closed ----

def test_guest_ends_first(run, www):
    """The origin still answers, in every protocol."""
    assert run.call(exchange, www, 9000, b"x" * 300000) == b"x" * 300000
    assert b"GET /slowly/1" in run.call(converse, www, [request("/slowly/1")])


def test_origin_ends_first(run, www, world):
    def go_on(address):
        with socket.create_connection((address, protocols.LAST_WORD_PORT), timeout=5) as s:
            said = read_all(s)
            for _ in range(20):
                s.sendall(b"y" * 10000)
                time.sleep(0.01)
            return said

    assert run.call(go_on, www) == b"that is all\n"
    assert wait_for(lambda: web(world, port=protocols.LAST_WORD_PORT, bytes=200000))


# ---- ways around ----

def test_redirect_to_a_denied_host(run, www, world):
    """The guest follows it, and meets what everybody meets there."""
    answer = run.call(exchange, www, 80, f"GET /redirect?to=http://paste.example.net/ HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
    assert b"302" in answer.split(b"\r\n")[0] and b"Location: http://paste.example.net/" in answer
    assert run.call(dns, "paste.example.net")[0] == 5
    assert run.call(exchange, *PROXY, b"GET http://paste.example.net/ HTTP/1.1\r\nHost: paste.example.net\r\n\r\n", 5, False).startswith(b"HTTP/1.1 403 ")
    assert run.call(exchange, worlds.OTHER, 80, b"GET / HTTP/1.1\r\n\r\n") == "ConnectionRefusedError"
    # to an allowed one it can
    assert run.call(exchange, run.address_of("git.example.org"), 8081, b"") == b""
    assert not world.log("other")


def relayed(target, data):
    """One process of the guest's passes on for another what that one may not do itself: the relay CONNECTs, the other speaks to the relay."""
    listener = socket.create_server(("127.0.0.1", 0))

    def relay():
        client, _ = listener.accept()
        with client, socket.create_connection(PROXY, timeout=5) as s:
            s.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            client.sendall(s.recv(4096))
            s.sendall(client.recv(4096))
            client.sendall(s.recv(4096))

    threading.Thread(target=relay, daemon=True).start()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with socket.create_connection(listener.getsockname(), timeout=5) as s:
        head = s.recv(4096)
        s.sendall(data)
        return head, s.recv(4096)


def test_relay_inside_the_guest_wins_nothing(run):
    head, answer = run.call(relayed, f"{NAME}:443", HELLO)
    assert head.startswith(b"HTTP/1.1 200 ") and answer.startswith(b"\x16\3\3")
    assert run.call(relayed, f"{NAME}:443", records_of(make_hello("paste.example.net")))[1] == ALERT
    assert run.call(relayed, "paste.example.net:443", HELLO)[0].startswith(b"HTTP/1.1 403 ")


# ---- many ----

def resident(host):
    pid = host.property(f"anchor-proxy@{RUN}.service", "MainPID")
    return int(host.run(f"awk '/^VmRSS/ {{print $2}}' /proc/{pid}/status").stdout)


def half_closed(address, port, n, data):
    """n connections that say this and end their side; (made, ended by the other side within ten seconds)."""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (n + 200, max(n + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    sockets, ended = [], 0
    for _ in range(n):
        try:
            s = socket.create_connection((address, port), timeout=5)
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            sockets.append(s)
        except OSError:
            pass
    end = time.monotonic() + 10
    for s in sockets:
        s.settimeout(max(end - time.monotonic(), 0.01))
        try:
            while s.recv(65536):
                pass
            ended += 1
        except ConnectionResetError:
            ended += 1
        except OSError:
            pass
        s.close()
    return len(sockets), ended


def works(run, www, ca):
    return run.call(tls, www, NAME, ca)[0] == 200 and run.call(exchange, www, 9000, b"hello") == b"hello"


def test_2000_half_closed_connections(host, run, www, world):
    before = resident(host)
    for port, data, n in ((443, b"", 300), (443, HELLO[:50], 300), (9000, b"x", 2000)):
        made, ended = run.call(half_closed, www, port, n, data, timeout=60)
        assert made == n and ended == n, (port, made, ended)
    assert wait_for(lambda: works(run, www, world.path("world.pem")), 10)
    assert wait_for(lambda: resident(host) < before + 8192, 10), (before, resident(host))


def short(address, n):
    fine = 0
    for _ in range(n):
        try:
            with socket.create_connection((address, 9000), timeout=10) as s:
                s.sendall(b"x")
                fine += s.recv(1) == b"x"
        except OSError:
            pass
    return fine


def test_10000_short_connections(host, run, www, world):
    before, begin = resident(host), time.monotonic()
    results = []
    threads = [threading.Thread(target=lambda: results.append(run.call(short, www, 1250, timeout=170))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"10,000 connections in {time.monotonic() - begin:.1f} s")
    assert sum(results) == 10000
    assert works(run, www, world.path("world.pem"))
    assert wait_for(lambda: resident(host) < before + 8192, 10), (before, resident(host))
