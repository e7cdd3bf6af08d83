# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a run reaches and what it does not: egressd, the proxy, the namespace and the fence together, on the booted image.

The microVM is replaced by a namespace with the guest's address (fakeguest.py), and anchord's place is taken for the two calls that only it may make; the
rest are the image's own units.
"""

import http.client
import json
import os
import shlex
import socket
import ssl
import threading
import time

import pytest

import egressrun
import world as worlds
from egressrun import EgressRun, address_of, tls, under_way
from fakeguest import FakeGuest, dns, exchange
from waiting import wait_for

RUN = "r00000egress1"
REFUSED = 5


@pytest.fixture(scope="module")
def guest(host, anchord):
    it = EgressRun(host, anchord, RUN, "exec-net")
    yield it.guest
    it.stop()


def records(host, event, run=RUN, **fields):
    return egressrun.records(host, event, run, **fields)


# ---- names ----

def test_dns_allowed_name_gets_a_synthetic_address(host, guest):
    rcode, addresses, source = guest.call(dns, "WWW.example.org")
    assert rcode == 0 and source == "10.255.255.1"
    assert addresses[0].startswith("198.18.")
    assert guest.call(dns, "www.example.org")[1] == addresses
    assert guest.call(dns, "www.example.org", 1, "10.255.255.1", True)[1] == addresses
    assert records(host, "dns.allow", name="www.example.org")


def test_dns_answers_from_the_resolver_that_was_asked(guest):
    rcode, addresses, source = guest.call(dns, "www.example.org", 1, "8.8.8.8")
    assert rcode == 0 and addresses and source == "8.8.8.8"


def test_dns_other_types_are_empty_or_refused(guest):
    for qtype in (28, 65, 64):
        assert guest.call(dns, "www.example.org", qtype)[:2] == (0, [])
    for qtype in (16, 15, 255):
        assert guest.call(dns, "www.example.org", qtype)[:2] == (REFUSED, [])
    assert guest.call(dns, "1.0.18.198.in-addr.arpa", 12)[:2] == (REFUSED, [])


def test_dns_unlisted_name_is_refused_and_never_leaves_the_host(host, guest, world):
    assert guest.call(dns, "data.in.a.name.attacker.example.com")[:2] == (REFUSED, [])
    assert wait_for(lambda: records(host, "dns.refused", name="data.in.a.name.attacker.example.com", rule="default"))
    assert not [q for q in world.log("dns") if "attacker" in json.dumps(q)]


def test_dns_query_alone_asks_nobody(guest, world):
    before = len(world.log("dns"))
    assert guest.call(dns, "git.example.org")[0] == 0
    assert len(world.log("dns")) == before


# ---- connections ----

def test_tls_passes_to_the_allowed_host(host, guest, world):
    address = address_of(guest, "www.example.org")
    status, body = guest.call(tls, address, "www.example.org", world.path("world.pem"))
    assert (status, body) == (200, "hello from www.example.org\n")
    [allowed] = records(host, "egress.allow", name="www.example.org", port=443)
    assert allowed["addresses"] == [worlds.ORIGIN] and allowed["rule"] == "egress/test-net.json#/allow/0"
    [closed] = wait_for(lambda: records(host, "conn.close", grant=allowed["grant"]))
    assert closed["bytes_in"] > 500 and closed["bytes_out"] > 200


def test_alias_is_followed(guest, world):
    address = address_of(guest, "alias.example.org")
    assert guest.call(tls, address, "alias.example.org", world.path("world.pem"))[0] == 200


def test_deny_fronting_in_tls(host, guest, world):
    address = address_of(guest, "www.example.org")
    status, text = guest.call(tls, address, "git.example.org", world.path("world.pem"))
    assert status == "SSLError" and "access denied" in text.lower()
    assert wait_for(lambda: records(host, "egress.deny", name="www.example.org", reason="fronting"))


def no_sni(address):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((address, 443), timeout=5) as raw, context.wrap_socket(raw):
            return "connected"
    except OSError as error:
        return str(error)


def test_deny_tls_without_a_name(host, guest):
    assert "access denied" in guest.call(no_sni, address_of(guest, "www.example.org")).lower()
    assert wait_for(lambda: records(host, "egress.deny", name="www.example.org", reason="no-sni"))


def test_deny_another_protocol_on_a_tls_port(host, guest):
    answer = guest.call(exchange, address_of(guest, "www.example.org"), 443, b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n", 5, False)
    assert answer.startswith(b"HTTP/1.1 403 ") and b'"protocol"' in answer
    assert guest.call(exchange, address_of(guest, "www.example.org"), 443, b"SSH-2.0-x\r\n", 5, False) == "ConnectionResetError"


@pytest.mark.quiet
def test_deny_port_not_in_the_rule(host, guest):
    begin = time.monotonic()
    assert guest.call(exchange, address_of(guest, "www.example.org"), 8443, b"hello\n", 5, False) == "ConnectionResetError"
    assert time.monotonic() - begin < 1
    assert wait_for(lambda: records(host, "egress.deny", name="www.example.org", port=8443, reason="port"))


def test_http_passes_and_each_request_is_compared(host, guest):
    address = address_of(guest, "www.example.org")

    def get(target, name, extra=""):
        return ("GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (target, name, extra)).encode()

    answer = guest.call(exchange, address, 80, get("/one", "www.example.org") + get("/two", "www.example.org", "Connection: close\r\n"), 5, False)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    paths = [r["path"] for r in records(host, "egress.allow", name="www.example.org", port=80)]
    assert "/one" in paths and "/two" in paths

    answer = guest.call(exchange, address, 80, get("/", "git.example.org"), 5, False)
    assert answer.startswith(b"HTTP/1.1 421 ") and b'"rule": "egress/test-net.json#/allow/0"' in answer

    answer = guest.call(exchange, address, 80, get("/fine", "www.example.org") + get("/not", "git.example.org"), 5, False)
    assert b"421 Misdirected" in answer
    assert wait_for(lambda: records(host, "egress.deny", name="www.example.org", port=80, reason="fronting"))


def test_deny_smuggled_second_host(guest, world):
    address = address_of(guest, "www.example.org")
    smuggle = (b"POST /s HTTP/1.1\r\nHost: www.example.org\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
               b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: git.example.org\r\n\r\n")
    answer = guest.call(exchange, address, 80, smuggle, 5, False)
    assert answer.startswith(b"HTTP/1.1 403 ") and b'"protocol"' in answer
    assert not [r for r in world.log("origin") if r["path"] == "/smuggled"]


def echo(address, port):
    with socket.create_connection((address, port), timeout=5) as s:
        sent = os.urandom(1 << 20)
        got = bytearray()
        s.setblocking(False)
        at = 0
        deadline = time.monotonic() + 20
        while len(got) < len(sent) and time.monotonic() < deadline:
            try:
                at += s.send(sent[at:at + 65536]) if at < len(sent) else 0
            except BlockingIOError:
                pass
            try:
                got += s.recv(65536)
            except BlockingIOError:
                time.sleep(0.001)
        return bytes(got) == sent


def test_raw_port_carries_anything(guest):
    assert guest.call(echo, address_of(guest, "www.example.org"), worlds.ECHO_PORT)


def test_deny_names_that_resolve_to_what_is_not_global(host, guest):
    for name, reason in (("metadata.example.org", "metadata"), ("loopback.example.org", ("own-address", "not-global")), ("host.example.org", "own-address")):
        answer = guest.call(exchange, address_of(guest, name), 80, b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode(), 8, False)
        assert b"HTTP/1.1 403 " in answer, (name, answer)
        assert wait_for(lambda n=name, r=reason: [d for d in records(host, "egress.deny", name=n) if d["reason"] in (r if isinstance(r, tuple) else (r,))])


def attempt(address, port):
    begin = time.monotonic()
    try:
        socket.create_connection((address, port), timeout=3).close()
        return "connected", time.monotonic() - begin
    except OSError as error:
        return type(error).__name__, time.monotonic() - begin


@pytest.mark.quiet
def test_deny_literal_addresses(guest):
    for address in (worlds.ORIGIN, "1.1.1.1", "169.254.169.254", "10.255.255.1", worlds.GATEWAY):
        result, seconds = guest.call(attempt, address, 443)
        assert result != "connected" and seconds < 1, (address, result, seconds)


def test_deny_synthetic_address_that_stands_for_no_name(host, guest):
    answer = guest.call(exchange, "198.19.0.77", 443, b"hello", 5, False)
    assert answer == "ConnectionResetError"
    assert wait_for(lambda: records(host, "egress.deny", name="198.19.0.77", reason="literal-address"))


def test_deny_connection_to_the_listener_itself(guest):
    result, _ = guest.call(attempt, "10.255.255.1", 15001)
    assert result != "connected"


# ---- the explicit proxy ----

def connect(target, name, ca):
    context = ssl.create_default_context(cafile=ca)
    with socket.create_connection(("10.255.255.1", 3128), timeout=5) as s:
        s.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target.encode(), target.encode()))
        head = b""
        while b"\r\n\r\n" not in head:
            part = s.recv(4096)
            if not part:
                break
            head += part
        if not head.startswith(b"HTTP/1.1 200"):
            while True:
                part = s.recv(4096)
                if not part:
                    return head.decode()
                head += part
        try:
            with context.wrap_socket(s, server_hostname=name) as t:
                t.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode())
                response = http.client.HTTPResponse(t)
                response.begin()
                return response.status
        except OSError as error:
            return str(error)


def test_explicit_proxy_connect(host, guest, world):
    ca = world.path("world.pem")
    assert guest.call(connect, "www.example.org:443", "www.example.org", ca) == 200
    assert "access denied" in guest.call(connect, "www.example.org:443", "git.example.org", ca).lower()
    for target in ("paste.example.net:443", "%s:443" % worlds.ORIGIN, "169.254.169.254:80", "[::1]:443", "2130706433:80", "www.example.org:22"):
        answer = guest.call(connect, target, "www.example.org", ca)
        assert answer.startswith("HTTP/1.1 403 "), (target, answer)
    assert wait_for(lambda: records(host, "egress.deny", name="paste.example.net", rule="default", reason="no-rule"))


def test_explicit_proxy_absolute_form(guest, world):
    request = b"GET http://www.example.org/absolute HTTP/1.1\r\nHost: www.example.org\r\nProxy-Connection: keep-alive\r\n\r\n"
    answer = guest.call(exchange, "10.255.255.1", 3128, request, 5, False)
    assert answer.startswith(b"HTTP/1.1 200 ")
    [seen] = [r for r in world.log("origin") if r["path"] == "/absolute"]
    assert "Proxy-Connection" not in seen["headers"]

    other = request.replace(b"http://www", b"http://git")
    assert guest.call(exchange, "10.255.255.1", 3128, other, 5, False).split()[1] in (b"403", b"421")
    assert guest.call(exchange, "10.255.255.1", 3128, b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n", 5, False).startswith(b"HTTP/1.1 400 ")


# ---- limits ----

def flood(name, n):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for i in range(n):
        label = "n%d" % i
        question = b"".join(bytes([len(x)]) + x.encode() for x in [label] + name.split(".")) + b"\0\0\1\0\1"
        s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0" + question, ("10.255.255.1", 53))
    return "sent"


def test_flood_of_denied_names_is_bounded_in_the_log(host, guest):
    before = len(records(host, "dns.refused"))
    guest.call(flood, "flood.example.com", 5000)

    def answered():
        try:
            return guest.call(dns, "www.example.org", 1, "10.255.255.1", False, 2)[0] == 0
        except AssertionError:  # no answer: the datagram may have found a full queue
            return False

    # the run's own questions wait behind its flood, and are then answered
    wait_for(answered, 20)
    assert len(records(host, "dns.refused")) - before < 2000


def hold(address, n):
    sockets = []
    try:
        for _ in range(n):
            sockets.append(socket.create_connection((address, 443), timeout=2))
    except OSError:
        pass
    time.sleep(1)
    return len(sockets)


def test_idle_connections_are_bounded_and_forgotten(host, guest, world):
    address = address_of(guest, "www.example.org")
    guest.call(hold, address, 700, timeout=60)
    assert wait_for(lambda: guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] == 200, 20)
    assert host.is_active("anchor-proxy@%s.service" % RUN) == "active"


# ---- inspected hosts ----

@pytest.fixture
def inspected(host, anchord):
    """A guest whose run has the provider's credential: its connections to the provider are inspected."""
    run = "r00000egress2"
    anchord.call("Register", run=run, workflow="code-fix", stage="work")
    anchord.call("Register", "Secret", "secret-api", run=run, workflow="code-fix", item="i00000egress2", stage="work",
                 expires_usec=int((time.time() + 3600) * 1e6))
    host.systemctl("start", "anchor-inject@%s.socket" % run, "anchor-proxy@%s.socket" % run)
    it = FakeGuest(host, run)
    it.run = run
    yield it
    it.stop()
    host.run("systemctl stop anchor-proxy@{0}.socket anchor-inject@{0}.socket anchorhold-runs-{0}.slice; true".format(run))
    anchord.call("Release", run=run)
    anchord.call("Release", "Secret", "secret-api", run=run)


def ask_unverified(address, name):
    """(issuer's common name, status) of whoever answers there under that name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address, 443), timeout=10) as raw, context.wrap_socket(raw, server_hostname=name) as s:
        certificate = s.getpeercert(binary_form=True)
        s.sendall(b"POST /v1/messages/count_tokens HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % name.encode())
        response = http.client.HTTPResponse(s)
        response.begin()
        return b"Test world CA" in certificate, response.status


def test_inspected_host_is_handed_to_inject(host, inspected, world):
    address = address_of(inspected, "api.anthropic.com")
    by_origin, status = inspected.call(ask_unverified, address, "api.anthropic.com")
    assert not by_origin, "the origin's own certificate came through: nobody inspected"
    assert status == 200
    allowed = records(host, "egress.allow", inspected.run, name="api.anthropic.com")
    assert [a["verdict"] for a in allowed] == ["inspect", "pass"]
    assert allowed[1]["addresses"] == [worlds.PROVIDER] and allowed[1]["path"] == "/v1/messages/count_tokens"
    assert wait_for(lambda: records(host, "conn.close", inspected.run, name="api.anthropic.com"))


def test_deny_fronting_on_an_inspected_host(host, inspected, world):
    address = address_of(inspected, "api.anthropic.com")
    status, text = inspected.call(tls, address, "git.example.org", world.path("world.pem"))
    assert status == "SSLError" and "access denied" in text.lower()
    assert wait_for(lambda: records(host, "egress.deny", inspected.run, reason="fronting"))


# ---- a record under way ----

def register_twice(host, anchord, run, thaw):
    """With auditd frozen: the same run registered twice at once, with egressd and with secretd. How many calls were answered
    before it was thawed (or gave up, without `thaw`), their exit statuses, and what they printed."""
    item = {"item": "i00000egress3", "expires_usec": int((time.time() + 3600) * 1e6)}
    calls = [("egress", "Egress", {}), ("egress", "Egress", {}), ("secret-api", "Secret", item), ("secret-api", "Secret", item)]
    script = "cd $(mktemp -d)\n" + "".join(
        "{ varlinkctl --json=short call /run/anchorhold/%s.sock io.anchorhold.%s.Register %s >answer-%d 2>&1; echo $? >status-%d; } &\n" % (
            sock, interface, shlex.quote(json.dumps({"run": run, "workflow": "code-fix", "stage": "work", **more})), n, n)
        for n, (sock, interface, more) in enumerate(calls)) + "sleep 0.7; cat status-* 2>/dev/null | wc -l; wait; cat status-* answer-*"
    anchord.call("Ping")
    # inject's units bring anchord's sockets back, and what is connected there would run the script again and again
    host.stop_daemon("anchord")
    host.run("rm -f /run/anchord-answer.*")
    with host.frozen("anchor-auditd"):
        said = []
        asking = threading.Thread(target=lambda: said.extend(anchord.shell(script).splitlines()))
        asking.start()
        if thaw:
            assert wait_for(lambda: host.run("cat /run/anchord-answer.* 2>/dev/null; true").stdout, 10)
        else:
            asking.join(20)
    asking.join(20)
    return int(said[0]), said[1:5], said[5:]


def test_second_registration_waits_for_the_record_of_the_first(host, anchord, guest):
    run = "r00000egress3"
    early, statuses, said = register_twice(host, anchord, run, thaw=True)
    assert early == 0, "somebody was answered while nothing could be recorded"
    assert statuses == ["0"] * 4, said
    answers = [json.loads(line) for line in said]
    assert answers[0] == answers[1] and len(answers[0]["digest"]) == 64
    assert answers[2] == answers[3] and answers[2]["credentials"] == ["anthropic"]
    # one record each, and once there is one, an answer at once
    assert len(records(host, "egress.registered", run)) == len(records(host, "secret.registered", run)) == 1
    assert anchord.call("Register", run=run, workflow="code-fix", stage="work") == answers[0]
    assert len(records(host, "egress.registered", run)) == 1
    anchord.call("Release", run=run)
    anchord.call("Release", "Secret", "secret-api", run=run)


def test_second_registration_is_refused_with_the_first(host, anchord, guest):
    """The audit log takes nothing: both are refused, and the run is registered with nobody."""
    run = "r00000egress4"
    early, statuses, said = register_twice(host, anchord, run, thaw=False)
    assert early == 0 and statuses == ["1"] * 4 and sum("Unavailable" in line for line in said) == 4, said
    assert wait_for(lambda: host.run("test ! -e /var/lib/anchorhold/secret/%s*; echo $?" % run).stdout == "0\n")
    # control: the log is back, and at egressd's next heartbeat so is registering
    wait_for(lambda: '"runs"' in anchord.shell("varlinkctl --json=short call /run/anchorhold/egress.sock io.anchorhold.Egress.Ping {} 2>&1; true"), 10)
    assert len(anchord.call("Register", run=run, workflow="code-fix", stage="work")["digest"]) == 64
    anchord.call("Release", run=run)


# ---- who may ask ----

def test_only_the_right_units_may_ask(host):
    for method, params in (("Register", {"run": RUN, "workflow": "exec-net", "stage": "work"}), ("Connect", {"name": "www.example.org", "port": 443, "protocol": "tls"}),
                           ("Resolve", {"name": "www.example.org", "qtype": "A"})):
        done = host.run(["varlinkctl", "call", "/run/anchorhold/egress.sock", "io.anchorhold.Egress." + method, json.dumps(params)], check=False)
        assert done.returncode != 0 and "PermissionDenied" in done.stderr + done.stdout
    assert json.loads(host.run(["varlinkctl", "--json=short", "call", "/run/anchorhold/egress.sock", "io.anchorhold.Egress.Ping", "{}"]).stdout)["runs"] >= 1


# ---- when something dies ----

def stream(address, seconds):
    """Reads a line a second; (how many came, how it ended)."""
    n = 0
    try:
        with socket.create_connection((address, 80), timeout=30) as s:
            s.sendall(b"GET /slow/%d HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n" % seconds)
            while True:
                part = s.recv(4096)
                if not part:
                    return n, "end"
                n += part.count(b"\r\n1\r\n") + 1
    except OSError as error:
        return n, type(error).__name__


def fence(host):
    """What the kernel counted and which grants are live, for whoever reads a failure."""
    return host.run("for m in /sys/fs/bpf/anchorhold/maps/verdicts /run/anchorhold/maps/live /run/anchorhold/maps/heartbeat; do "
                    "echo $m; bpftool map dump pinned $m; done; journalctl --no-pager -b -n 30 -u anchor-egressd -u 'anchor-proxy@*'").stdout


def test_egressd_killed_open_connections_go_on(host, guest, world):
    address = address_of(guest, "www.example.org")
    assert guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] == 200
    result = {}
    thread = threading.Thread(target=lambda: result.update(r=guest.call(stream, address, 12, timeout=40)))
    with under_way(world, "/slow/12"):
        thread.start()
    old = host.property("anchor-egressd.service", "MainPID")
    host.systemctl("kill", "--signal=KILL", "anchor-egressd.service")
    wait_for(lambda: host.property("anchor-egressd.service", "MainPID") not in ("0", old) and host.is_active("anchor-egressd.service") == "active", 10)
    after = fence(host)
    thread.join()
    assert result["r"][1] == "end" and result["r"][0] >= 10, (result, after, fence(host))
    assert address_of(guest, "www.example.org") == address
    assert guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] == 200


def test_auditd_frozen_cuts_and_denies_then_recovers(host, guest, world):
    address = address_of(guest, "www.example.org")
    result = {}
    thread = threading.Thread(target=lambda: result.update(r=guest.call(stream, address, 60, timeout=80)))
    with under_way(world, "/slow/60"):
        thread.start()
    begin = time.monotonic()
    with host.frozen("anchor-auditd"):
        thread.join(20)
        assert not thread.is_alive()
        assert result["r"][1] != "end" and time.monotonic() - begin < 15
        assert guest.call(tls, address, "www.example.org", world.path("world.pem"), None, 20)[0] != 200
    assert wait_for(lambda: guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] == 200, 20)


def test_egressd_stopped_denies_and_comes_back(host, guest, world):
    address = address_of(guest, "www.example.org")
    # who connects to anchord's sockets starts it, and with it egressd's socket
    host.stop_daemon("anchord")
    with host.stopped("anchor-egressd"):
        assert guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] != 200
        assert guest.call(dns, "git.example.org")[0] == 2
    assert wait_for(lambda: guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] == 200, 20)


def test_proxy_killed_names_stay(host, guest, world):
    address = address_of(guest, "www.example.org")
    host.systemctl("kill", "--signal=KILL", "anchor-proxy@%s.service" % RUN)
    assert wait_for(lambda: guest.call(tls, address, "www.example.org", world.path("world.pem"))[0] == 200, 20)
    assert address_of(guest, "www.example.org") == address
