# SPDX-License-Identifier: LGPL-2.1-or-later
"""Connections of a guest: protocols of every kind on ports that policy names, the explicit proxy, what a connection must say about itself, and how it ends.

Beside each denial the same that is allowed. What egressd decides in general is tested in test_run_egress.py.
"""

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
from fakeguest import dns, exchange
from firstbytes import ALERT, HELLO, NAME, PROXY, make_hello, read_all, records_of, request, web
from waiting import wait_for

RUN = "r0000connect1"


# ---- any protocol ----

def banner(address, port, line):
    """(what is said first, the answer to a line, seconds) where the server speaks first."""
    begin = time.monotonic()
    with socket.create_connection((address, port), timeout=5) as s:
        first = s.recv(100)
        took = time.monotonic() - begin
        s.sendall(line)
        return first, s.recv(100), took


@pytest.mark.quiet
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


@pytest.mark.quiet
def test_deny_the_same_protocols_on_other_ports(run, www):
    """22 of a host for which policy names no port 22, and a port that it names for nobody."""
    git = run.address_of("git.example.org")
    for address, name, port in ((git, "git.example.org", 22), (git, "git.example.org", 5432), (www, NAME, 2222)):
        begin = time.monotonic()
        assert run.call(exchange, address, port, b"SSH-2.0-guest\r\n", 5, False) == "ConnectionResetError"
        assert time.monotonic() - begin < 1.5
        assert wait_for(lambda n=name, p=port: run.records("egress.deny", name=n, port=p, reason="port"))


@pytest.mark.quiet
def test_addresses_are_tried_in_turn(run):
    """The first refuses, or nobody is there: neither costs much."""
    for name in ("refusing.example.org", "silent.example.org"):
        begin = time.monotonic()
        assert run.call(exchange, run.address_of(name), 9000, b"hello") == b"hello", name
        assert time.monotonic() - begin < 2, name
        [allowed] = run.records("egress.allow", name=name)
        assert sorted(allowed["addresses"]) == sorted([worlds.ORIGIN, worlds.OTHER if name[0] == "r" else worlds.SILENT])


# ---- first bytes ----

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
    (NAME, struct.pack(">HH", 0xfe0d, 10) + b"\0\0\1\0\1\0\0\0\0\0", "ech"), (NAME, struct.pack(">HH", 0xfe0a, 10) + b"\0\0\1\0\1\0\0\0\0\0", "ech"),
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
        got = s.recv(4096)
        if not ahead:
            s.sendall(second)
        while b"\x17\3\3" not in got and (part := s.recv(4096)):
            got += part
        return got[:6], got[6:]


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


def test_connect_to_a_synthetic_address(run, www):
    """Who resolves a name and then CONNECTs to what it was told means the name; an address that was given to none is a literal one."""
    line, got = run.call(connect, f"{www}:443", HELLO)
    assert line.startswith("HTTP/1.1 200 ") and got.startswith(b"\x16\3\3"), (line, got)
    line, got = run.call(connect, f"{www}:443", records_of(make_hello("git.example.org")))
    assert line.startswith("HTTP/1.1 200 ") and got.startswith(ALERT), (line, got)
    line, _ = run.call(connect, "198.19.255.254:443")
    assert line.startswith("HTTP/1.1 403 ")
    wait_for(lambda: run.records("egress.deny", name="198.19.255.254", port=443, reason="literal-address"))


@pytest.mark.parametrize("target, status, record", [
    (f"{NAME}:2222", 403, (NAME, 2222, "port")), ("git.example.org:22", 403, ("git.example.org", 22, "port")), ("paste.example.net:443", 403, ("paste.example.net", 443, "no-rule")),
    (f"{worlds.ORIGIN}:443", 403, (worlds.ORIGIN, 443, "literal-address")), ("[2001:db8::1]:443", 403, ("2001:db8::1", 443, "literal-address")),
    ("[::ffff:203.0.113.12]:443", 403, ("::ffff:203.0.113.12", 443, "literal-address")), (f"user:secret@{NAME}:443", 403, (f"user:secret@{NAME}", 443, "no-rule")),
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
        wait_for(lambda: run.records("egress.deny", name=name, port=port, reason=reason), explain=lambda: run.records("egress.deny", port=port)[-3:])


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
                                 (f"http://{NAME}:8081/not-agreed", "git.example.org", b"421"), ("http://git.example.org:8081/not-agreed", NAME, b"421"), (f"http://{NAME}:22/", f"{NAME}:22", b"403"),
                                 (f"http://user@{NAME}:8081/", f"{NAME}:8081", b"400"), (f"https://{NAME}/", NAME, b"400"), ("/", NAME, b"400"), (f"ftp://{NAME}/", NAME, b"400")):
        answer = run.call(exchange, *PROXY, get(target, host), 5, False)
        assert answer.split()[1] == status, (target, answer)
    assert not web(world, target="/not-agreed")


def test_absolute_form_with_a_body(run, world):
    head = f"POST http://{NAME}:8081/upload HTTP/1.1\r\nHost: {NAME}:8081\r\nContent-Length: 200000\r\n\r\n".encode()
    assert b"POST /upload www.example.org:8081 200000" in run.call(exchange, *PROXY, head + b"x" * 200000 + request("/smuggled"), 10, False)
    assert not web(world, target="/smuggled")


# ---- ways around ----

def test_redirect_to_a_denied_host(run, www, world):
    """The guest follows it, and meets what everybody meets there."""
    before = world.log("other")
    answer = run.call(exchange, www, 80, f"GET /redirect?to=http://paste.example.net/ HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
    assert b"302" in answer.split(b"\r\n")[0] and b"Location: http://paste.example.net/" in answer
    assert run.call(dns, "paste.example.net")[0] == 5
    assert run.call(exchange, *PROXY, b"GET http://paste.example.net/ HTTP/1.1\r\nHost: paste.example.net\r\n\r\n", 5, False).startswith(b"HTTP/1.1 403 ")
    assert run.call(exchange, worlds.OTHER, 80, b"GET / HTTP/1.1\r\n\r\n") == "ConnectionRefusedError"
    # to an allowed one it can
    assert run.call(exchange, run.address_of("git.example.org"), 8081, b"") == b""
    assert world.log("other") == before


def relayed(target, data):
    """One process of the guest's passes on for another what that one may not do itself: the relay CONNECTs, the other speaks to the relay."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)

    def relay():
        client, _ = listener.accept()
        with client, socket.create_connection(PROXY, timeout=5) as s:
            s.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            client.sendall(s.recv(4096))
            s.sendall(client.recv(4096))
            client.sendall(s.recv(4096))

    pid = os.fork()
    if pid == 0:
        try:
            relay()
        finally:
            os._exit(0)
    try:
        with socket.create_connection(listener.getsockname(), timeout=5) as s:
            head = s.recv(4096)
            s.sendall(data)
            return head, s.recv(4096)
    finally:
        os.waitpid(pid, 0)


def test_relay_inside_the_guest_wins_nothing(run):
    head, answer = run.call(relayed, f"{NAME}:443", HELLO)
    assert head.startswith(b"HTTP/1.1 200 ") and answer.startswith(b"\x16\3\3")
    assert run.call(relayed, f"{NAME}:443", records_of(make_hello("paste.example.net")))[1] == ALERT
    assert run.call(relayed, "paste.example.net:443", HELLO)[0].startswith(b"HTTP/1.1 403 ")
