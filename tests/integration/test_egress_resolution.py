# SPDX-License-Identifier: LGPL-2.1-or-later
"""What becomes of an allowed name that resolves to something else than the policy's author thought of.

A stand-in guest (fakeguest.py) connects to names of one wildcard; the zone says what they are. Each refusal has
`control` beside it: a name of the same kind that is let through.
"""

import json
import socket
import time

import pytest

import world as worlds
from fakeguest import FakeGuest, dns, exchange
from inside import enter, in_child
from test_run_egress import records
from waiting import wait_for

RUN = "r00000resolv1"
RESOLV_CONF = "/etc/resolv.conf"
HOSTS = "/etc/hosts"
RESOLVED, DROP_INS = "/run/systemd/resolve", "/run/systemd/resolved.conf.d"


class Names:
    """A zone that grows: every test uses names of its own, so that none finds another's in egressd's cache."""

    def __init__(self, world, domain="example.org"):
        self.world, self.domain, self.zone, self.n = world, domain, dict(worlds.ZONE), 0

    def add(self, entry, also=None):
        """A new name with that entry of the zone."""
        self.n += 1
        name = "n%d.%s" % (self.n, self.domain)
        self.zone[name] = entry
        self.zone.update(also or {})
        self.world.set_zone(self.zone)
        return name

    def queries(self, name, qtype=1):
        return [q for q in self.world.log("dns") if q["name"] == name and q["type"] == qtype]


@pytest.fixture(scope="module")
def names(world):
    yield Names(world)
    world.set_zone(worlds.ZONE)


@pytest.fixture(scope="module")
def guest(host, anchord):  # noqa: F811
    assert len(anchord.call("Register", run=RUN, workflow="exec-resolution", stage="work")["digest"]) == 64
    host.systemctl("start", "anchor-proxy@%s.socket" % RUN)
    it = FakeGuest(host, RUN)
    yield it
    it.stop()
    host.run("systemctl stop anchor-proxy@%s.socket anchor-proxy@%s.service anchorhold-runs-%s.slice; true" % (RUN, RUN, RUN))
    anchord.call("Release", run=RUN)


def get_inside(name, timeout):
    rcode, addresses, _ = dns(name)
    assert rcode == 0 and len(addresses) == 1, (name, rcode)
    return exchange(addresses[0], 80, b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode(), timeout, False)


def get(guest, name, timeout=10):
    """(status, reason of a refusal or None) of a request to that name."""
    answer = guest.call(get_inside, name, timeout)
    assert isinstance(answer, bytes) and answer.startswith(b"HTTP/1.1 "), (name, answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return status, json.loads(body)["reason"] if status != 200 else None


def allowed(host, name):
    return records(host, "egress.allow", RUN, name=name)


def denied(host, name):
    return wait_for(lambda: records(host, "egress.deny", RUN, name=name))


@pytest.fixture
def control(guest, names):
    """After the test, a name that resolves to the origin is let through."""
    yield
    assert get(guest, names.add({"A": [worlds.ORIGIN]})) == (200, None)


# ---- addresses ----

MAPPED = "::ffff:"
BAD = [
    ({"A": ["169.254.169.254"]}, "metadata"),
    ({"A": ["169.254.170.2"]}, "metadata"),
    ({"A": ["168.63.129.16"]}, "metadata"),
    ({"A": ["100.100.100.200"]}, "metadata"),
    ({"A": ["100.96.0.96"]}, "metadata"),
    ({"A": ["192.0.0.192"]}, "metadata"),
    ({"AAAA": ["fd00:ec2::254"]}, "metadata"),
    ({"AAAA": ["fd20:ce::254"]}, "metadata"),
    ({"AAAA": ["::ffff:169.254.169.254"]}, "metadata"),
    ({"AAAA": ["64:ff9b::a9fe:a9fe"]}, "metadata"),
    ({"AAAA": ["64:ff9b:1::a9fe:a9fe"]}, "metadata"),
    ({"AAAA": ["2002:a9fe:a9fe::1"]}, "metadata"),
    ({"AAAA": ["2001:0:1:2:3:4:5601:5601"]}, "metadata"),
    ({"AAAA": ["2001:db8:113::5efe:a9fe:a9fe"]}, "metadata"),
    ({"A": ["127.0.0.1"]}, "own-address"),
    ({"A": ["127.0.0.2"]}, "not-global"),
    ({"A": [worlds.GATEWAY]}, "own-address"),
    ({"AAAA": [worlds.GATEWAY6]}, "own-address"),
    ({"AAAA": ["::1"]}, "own-address"),
    ({"AAAA": [MAPPED + worlds.GATEWAY]}, "own-address"),
    ({"A": ["0.0.0.0"]}, "not-global"),
    ({"A": ["10.1.2.3"]}, "not-global"),
    ({"A": ["192.168.1.1"]}, "not-global"),
    ({"A": ["198.18.0.1"]}, "not-global"),
    ({"A": ["10.255.255.1"]}, "not-global"),
    ({"A": ["224.0.0.1"]}, "not-global"),
    ({"AAAA": ["fe80::1"]}, "not-global"),
    ({"AAAA": ["fd12:3456::1"]}, "not-global"),
    ({"AAAA": [MAPPED + "203.0.113.12"]}, "not-global"),
]


def test_deny_names_that_resolve_to_what_is_not_reached(host, guest, names, control):
    chosen = [(names.add(entry), entry, reason) for entry, reason in BAD]
    wrong = []
    for name, entry, reason in chosen:
        got = get(guest, name)
        if got != (403, reason):
            wrong.append((entry, reason, got))
    assert not wrong
    for name, entry, reason in chosen:
        [record] = denied(host, name)
        assert record["reason"] == reason and record["detail"] == (entry.get("A") or entry.get("AAAA"))[0]
        assert not allowed(host, name)


def test_good_address_beside_bad_ones_is_used_and_the_bad_are_told(host, guest, names):
    name = names.add({"A": ["169.254.169.254", worlds.ORIGIN, worlds.GATEWAY], "AAAA": ["::1"]})
    assert get(guest, name) == (200, None)
    [record] = allowed(host, name)[:1]
    assert record["addresses"] == [worlds.ORIGIN]
    assert record["refused"] == {"169.254.169.254": "metadata", worlds.GATEWAY: "own-address", "::1": "own-address"}


def test_deny_bad_addresses_with_the_worst_reason(host, guest, names, control):
    name = names.add({"A": ["10.0.0.1", "169.254.169.254", worlds.GATEWAY]})
    assert get(guest, name) == (403, "metadata")
    [record] = denied(host, name)
    assert set(record["detail"].split()) == {"10.0.0.1", "169.254.169.254", worlds.GATEWAY}


def test_deny_rebinding(host, guest, names, world):
    """First good, then bad, never kept: each connection is judged by the answer that it is made with."""
    name = names.add({"answers": [{"A": [worlds.ORIGIN], "ttl": 0}, {"A": ["169.254.169.254"], "ttl": 0}, {"A": ["127.0.0.1"], "ttl": 0},
                                  {"A": [worlds.ORIGIN], "ttl": 0}]})
    assert get(guest, name) == (200, None)
    assert len(names.queries(name)) == 1          # checked and connected to: one lookup
    assert get(guest, name) == (403, "metadata")
    assert get(guest, name) == (403, "own-address")
    assert get(guest, name) == (200, None)
    assert len(names.queries(name)) == 4


def test_own_address_that_comes_and_goes(host, guest, names):
    """Read again whenever the kernel says that one came or went."""
    address = worlds.OTHER
    name = names.add({"A": [address], "ttl": 0})
    assert get(guest, name) == (200, None)
    host.run(f"ip address add {address}/32 dev lo")
    try:
        assert get(guest, name) == (403, "own-address")
    finally:
        host.run(f"ip address del {address}/32 dev lo")
    assert get(guest, name) == (200, None)


# ---- how long ----

def test_an_answer_holds_as_long_as_its_ttl(guest, names):
    long, short = names.add({"A": [worlds.ORIGIN], "ttl": 60}), names.add({"A": [worlds.ORIGIN], "ttl": 1})
    for name in (long, short):
        assert get(guest, name) == (200, None)
    time.sleep(1.2)
    for name in (long, short):
        assert get(guest, name) == (200, None)
    assert (len(names.queries(long)), len(names.queries(short))) == (1, 2)


# ---- aliases ----

def test_alias_of_an_unlisted_name(host, guest, names):
    """Policy is about what the guest asks for; what counts at the end is the address."""
    name = names.add({"CNAME": "cdn.unlisted.example.net"}, {"cdn.unlisted.example.net": {"CNAME": "edge.unlisted.example.net"},
                                                             "edge.unlisted.example.net": {"A": [worlds.ORIGIN]}})
    assert get(guest, name) == (200, None)
    rcode, addresses, _ = guest.call(dns, "cdn.unlisted.example.net")
    assert (rcode, addresses) == (5, [])          # the guest may not ask for it itself


def test_deny_alias_of_a_bad_address(host, guest, names, control):
    name = names.add({"CNAME": "bad.unlisted.example.net"}, {"bad.unlisted.example.net": {"A": ["169.254.169.254"]}})
    assert get(guest, name) == (403, "metadata")


def test_circle_of_aliases_ends(host, guest, names, control):
    name = names.add({"CNAME": "round.example.net"}, {"round.example.net": {"CNAME": "about.example.net"}, "about.example.net": {"CNAME": "round.example.net"}})
    begin = time.monotonic()
    assert get(guest, name)[1] == "resolve-failed"
    assert time.monotonic() - begin < 5


# ---- IPv6 ----

def test_host_with_ipv6(host, guest, names):
    six = names.add({"AAAA": [worlds.ORIGIN6]})
    assert get(guest, six) == (200, None)
    assert allowed(host, six)[0]["addresses"] == [worlds.ORIGIN6]
    both = names.add({"A": [worlds.ORIGIN, worlds.OTHER], "AAAA": [worlds.ORIGIN6]})
    assert get(guest, both) == (200, None)
    granted = allowed(host, both)[0]["addresses"]
    assert granted[0] == worlds.ORIGIN6 and set(granted[1:]) == {worlds.ORIGIN, worlds.OTHER}


def test_ipv6_that_leads_nowhere_does_not_hold_up(guest, names):
    name = names.add({"A": [worlds.ORIGIN], "AAAA": ["2001:db8:113::dead"]})
    begin = time.monotonic()
    assert get(guest, name) == (200, None)
    assert time.monotonic() - begin < 3


def test_deny_what_this_network_translates(host, guest, names):
    """A prefix of its own for NAT64, of which ipv4only.arpa tells (RFC 7050): an address behind it is what it is translated to."""
    behind = "2001:db8:113:0:64:0:"
    bad = [(f"{behind}a9fe:a9fe", "metadata"), (f"{behind}7f00:2", "not-global"), (f"{behind}cb00:7101", "own-address")]

    def ask(address):
        name = names.add({"AAAA": [address], "ttl": 0})
        return name, get(guest, name, 20)

    # nobody translates: it is an address of a network that the operator named, where nobody answers
    name, answer = ask(bad[0][0])
    assert answer[1] == "unreachable" and allowed(host, name)[0]["addresses"] == [bad[0][0]]
    names.zone["ipv4only.arpa"] = {"A": ["192.0.0.170", "192.0.0.171"], "AAAA": [f"{behind}c000:aa", f"{behind}c000:ab"], "ttl": 0}
    try:
        for address, reason in bad:
            name, answer = ask(address)
            assert answer == (403, reason), address
            assert not allowed(host, name)
        # the control: a translated address of the Internet, and one that is not translated
        name, answer = ask(f"{behind}101:101")
        assert answer[1] == "unreachable" and allowed(host, name)
        assert ask(worlds.ORIGIN6)[1] == (200, None)
        # whether it translates nobody can say: then no IPv6 address is what it looks like, and IPv4 goes on
        names.zone["ipv4only.arpa"] = {"rcode": 2}
        name = names.add({"A": [worlds.ORIGIN], "AAAA": [worlds.ORIGIN6], "ttl": 0})
        assert get(guest, name, 20) == (200, None) and allowed(host, name)[0]["refused"] == {worlds.ORIGIN6: "not-global"}
    finally:
        del names.zone["ipv4only.arpa"]
        names.add({"A": [worlds.ORIGIN]})


# ---- resolvers ----

def test_truncated_answer_is_asked_for_over_tcp(guest, names):
    name = names.add({"A": [worlds.ORIGIN], "tcp": True})
    assert get(guest, name) == (200, None)
    assert len(names.queries(name)) == 2


@pytest.mark.parametrize("entry", [{"rcode": 2}, {"rcode": 5}, {"rcode": 3}, {"A": []}], ids=["servfail", "refused", "nxdomain", "nodata"])
def test_name_that_does_not_resolve(guest, names, entry, control):
    assert get(guest, names.add(entry))[1] == "resolve-failed"


class Configured:
    """Another host.json, which egressd reads when a run is registered."""

    def __init__(self, host, anchord):
        self.host, self.anchord, self.path = host, anchord, "/etc/anchorhold/host.json"
        self.before = host.run(["cat", self.path]).stdout

    def set(self, **changes):
        self.host.write(self.path, json.dumps({**json.loads(self.before), **changes}))
        self.reread()

    def reread(self):
        self.anchord.call("Register", run="r0000reread01", workflow="exec-resolution", stage="work")
        self.anchord.call("Release", run="r0000reread01")

    def restore(self):
        self.host.write(self.path, self.before)
        self.reread()


@pytest.fixture
def configured(host, anchord):  # noqa: F811
    it = Configured(host, anchord)
    yield it
    it.restore()


@pytest.mark.quiet
def test_dead_resolver_is_passed_over(host, guest, names, configured):
    configured.set(resolvers=["203.0.113.54", worlds.RESOLVER])
    assert get(guest, names.add({"A": [worlds.ORIGIN]})) == (200, None)
    begin = time.monotonic()
    assert get(guest, names.add({"A": [worlds.ORIGIN]})) == (200, None)
    assert time.monotonic() - begin < 1.4         # and is not asked first again


class Resolved:
    """systemd-resolved, started and linked as an administrator does it, with the world's server as its own. Of `kept` it has its own idea, as /etc/hosts gives it one."""

    def __init__(self, host, names):
        self.host = host
        self.kept, self.inside = (names.add({"A": [worlds.OTHER]}) for _ in range(2))
        # the image has it, and neither starts it nor leads anybody to it
        assert host.is_active("systemd-resolved.service") == "inactive" and not host.run(f"ls -d {RESOLVED} {RESOLV_CONF}", check=False).stdout
        self.hosts = host.run(f"cat {HOSTS}", check=False).stdout
        host.write(f"{DROP_INS}/world.conf", f"[Resolve]\nDNS={worlds.RESOLVER}\nDomains=~.\nFallbackDNS=\nLLMNR=no\nDNSSEC=no\n")
        host.write(HOSTS, f"{self.hosts}\n{worlds.ORIGIN} {self.kept}\n127.0.0.1 {self.inside}\n")
        host.systemctl("enable", "--now", "systemd-resolved.service")
        self.link("stub-resolv.conf")
        assert "nameserver 127.0.0.53\n" in host.run(["cat", RESOLV_CONF]).stdout

    def link(self, name):
        self.host.run(f"ln -sfn {RESOLVED}/{name} {RESOLV_CONF}")

    def stop(self):
        self.host.systemctl("disable", "--now", "systemd-resolved.service")
        self.host.run(f"rm -rf {RESOLV_CONF} {HOSTS} {DROP_INS} {RESOLVED}")
        if self.hosts:
            self.host.write(HOSTS, self.hosts)


@pytest.fixture(scope="module")
def started(host, names):
    it = Resolved(host, names)
    yield it
    it.stop()


@pytest.fixture
def resolved(started, configured):
    configured.set(resolvers=[])
    return started


def test_a_stub_of_systemd_resolved_is_asked(host, guest, names, resolved):
    name = names.add({"A": [worlds.ORIGIN]})
    assert get(guest, name) == (200, None)
    assert allowed(host, name)[0]["addresses"] == [worlds.ORIGIN] and names.queries(name)
    # by the stub, not past it
    assert get(guest, resolved.kept) == (200, None)
    assert allowed(host, resolved.kept)[0]["addresses"] == [worlds.ORIGIN] and not names.queries(resolved.kept)


def test_deny_bad_addresses_that_a_stub_tells(host, guest, names, resolved):
    """Whether they are its servers' or its own."""
    bad = {names.add({kind: [address]}): (address, reason) for kind, address, reason in (
        ("A", "127.0.0.1", "own-address"), ("A", "127.0.0.53", "not-global"), ("A", "10.1.2.3", "not-global"), ("A", "169.254.169.254", "metadata"), ("A", worlds.GATEWAY, "own-address"),
        ("AAAA", "::1", "own-address"), ("AAAA", "::ffff:169.254.169.254", "metadata"), ("AAAA", "fe80::1", "not-global"))}
    bad[resolved.inside] = "127.0.0.1", "own-address"
    for name, (address, reason) in bad.items():
        assert get(guest, name) == (403, reason), address
        [record] = denied(host, name)
        assert record["detail"] == address and not allowed(host, name)
    # the control
    name = names.add({"A": ["10.1.2.3", worlds.ORIGIN, "127.0.0.1"]})
    assert get(guest, name) == (200, None)
    assert allowed(host, name)[0]["refused"] == {"10.1.2.3": "not-global", "127.0.0.1": "own-address"}


def is_truncated(name):
    """Whether the stub has more to say of that name than goes into the datagram that egressd takes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.connect(("127.0.0.53", 53))
        s.send(b"\0\1\1\0\0\1\0\0\0\0\0\1" + b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0\0\1\0\1" + b"\0\0\x29\x04\xd0" + bytes(6))
        return [bool(s.recv(65536)[2] & 2)]


def test_a_stub_that_truncates_is_asked_over_tcp(host, guest, names, resolved):
    """An answer of many aliases with long names."""
    ends = [f"{'a' * 60}.{'b' * 60}.{'c' * 60}.long{n}.example.org" for n in range(10)]
    aliases = {name: {"CNAME": following} for name, following in zip(ends, ends[1:])}
    name = names.add({"CNAME": ends[0], "tcp": True}, {**aliases, ends[-1]: {"A": [worlds.ORIGIN]}})
    short = names.add({"CNAME": ends[-1]})

    def ask(asked):
        enter(host.pid, ["net"])
        return is_truncated(asked)

    assert in_child(lambda: ask(name)) == [True] and in_child(lambda: ask(short)) == [False]
    assert get(guest, name) == get(guest, short) == (200, None)
    assert allowed(host, name)[0]["addresses"] == [worlds.ORIGIN]


def test_a_change_of_resolv_conf_holds_at_once(host, guest, names, resolved):
    """No run is registered in between: past the stub, to the servers that resolved names, and back."""
    try:
        resolved.link("resolv.conf")
        later = names.add({"A": [worlds.ORIGIN]})
        assert get(guest, later) == (200, None)
        # what the other server said counts no more
        assert get(guest, resolved.kept) == (200, None)
        assert allowed(host, resolved.kept)[-1]["addresses"] == [worlds.OTHER] and names.queries(resolved.kept)
    finally:
        resolved.link("stub-resolv.conf")
    assert get(guest, resolved.kept) == (200, None)
    assert allowed(host, resolved.kept)[-1]["addresses"] == [worlds.ORIGIN]


def silent(name, port, timeout=15):
    """How a connection ends whose client waits for the server to speak, and after how long."""
    _, addresses, _ = dns(name)
    begin = time.monotonic()
    end = exchange(addresses[0], port, b"", timeout, False)
    return end, time.monotonic() - begin


REFUSED = {9000: b"ConnectionResetError", 443: b"\x15\x03\x03\x00\x02\x02\x31", 80: b"HTTP/1.1 403 Forbidden\r\n"}     # as the port speaks


@pytest.mark.parametrize("port", REFUSED)
def test_deny_bad_addresses_to_a_silent_client_at_once(host, guest, names, control, port):
    """A server might speak first: there is nothing to wait for once no address is left."""
    name = names.add({"A": ["169.254.169.254", "10.0.0.1"]})
    end, seconds = guest.call(silent, name, port, timeout=30)
    assert (end if isinstance(end, bytes) else end.encode()).startswith(REFUSED[port]) and seconds < 1, (end, seconds)
    [record] = denied(host, name)
    assert (record["reason"], record["port"], record.get("count", 1)) == ("metadata", port, 1)


def test_silent_client_of_a_good_name_may_take_its_time(host, guest, names):
    """The control: it is resolved as early, and nothing is granted before it speaks."""
    name = names.add({"A": [worlds.ORIGIN]})
    assert guest.call(silent, name, 443, 3, timeout=30)[0] == "TimeoutError"
    assert names.queries(name) and not allowed(host, name)
    assert get(guest, name) == (200, None)
