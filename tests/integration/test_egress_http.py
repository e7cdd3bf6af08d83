# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cleartext HTTP of a guest, request by request; connections that end by halves; and very many of them.

Beside each denial the same that is allowed.
"""

import http.client
import resource
import socket
import threading
import time

import pytest

import protocols
from egressrun import tls
from fakeguest import exchange
from firstbytes import HELLO, NAME, read_all, request, web
from waiting import wait_for

RUN = "r0000cleartx1"


# ---- a long answer, beside everything else here ----

STREAM = 40      # seconds; a grant is for connects of its first thirty


@pytest.fixture(scope="module", autouse=True)
def stream(run, www):
    """Waits for the whole answer, and returns it."""
    answers = []
    request = f"GET /slow/{STREAM} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
    thread = threading.Thread(target=lambda: answers.append(run.call(exchange, www, 80, request, 10, False, timeout=STREAM + 60)))
    thread.start()

    def wait():
        thread.join()
        return answers[0]

    yield wait
    thread.join()


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


@pytest.mark.quiet
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


def test_answer_in_the_midst_of_an_upload(run, www):
    def upload(address):
        with socket.create_connection((address, 8081), timeout=10) as s:
            s.sendall(request("/early", method="PUT", fields="Content-Length: 50000000\r\n"))
            try:
                for _ in range(50):
                    s.sendall(bytes(1000000))
            except OSError:
                pass
            return s.recv(4096)

    assert run.call(upload, www).startswith(b"HTTP/1.1 413 ")


@pytest.mark.quiet
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
    f"POST / HTTP/1.0\r\nHost: {NAME}:8081\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    f"POST / HTTP/1.1\r\nHost: {NAME}:8081\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", f"OPTIONS / RTSP/1.0\r\nHost: {NAME}:8081\r\n\r\n",
    f"POST / HTTP/1.1\r\nHost: {NAME}:8081\r\nX-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {NAME}:8081\r\nX-Original-URL: /x\r\n\r\n",
    f"GET / HTTP/1.1\r\nHost: {NAME}:8081\r\nX-Forwarded-Host: git.example.org\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {NAME}:8081\r\nForwarded: host=git.example.org\r\n\r\n",
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
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 ")), answer[:100]
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


# ---- many ----

def resident(host):
    pid = host.property(f"anchor-proxy@{RUN}.service", "MainPID")
    return int(host.run(f"awk '/^VmRSS/ {{print $2}}' /proc/{pid}/status").stdout)


def half_closed(address, port, n, data):
    """n connections that say this and end their side; (made, ended by the other side within ten seconds)."""
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
    wait_for(lambda: works(run, www, world.path("world.pem")), 10)
    wait_for(lambda: resident(host) < before + 8192, 10, explain=lambda: (before, resident(host)))


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
    wait_for(lambda: resident(host) < before + 8192, 10, explain=lambda: (before, resident(host)))


def test_a_stream_outlives_its_grant(stream):
    """Begun before all that stands above; and to the last line."""
    answer = stream()
    assert isinstance(answer, bytes) and answer.endswith(b"\r\n0\r\n\r\n"), answer[-100:]
    assert [int(line) for line in answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[1:-3:2]] == list(range(STREAM))
