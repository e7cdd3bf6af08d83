# SPDX-License-Identifier: LGPL-2.1-or-later
"""What becomes of an allowed name that resolves to something else than the policy's author thought of.

A stand-in guest (fakeguest.py) connects to names of one wildcard; the zone says what they are. Each refusal has
`control` beside it: a name of the same kind that is let through.
"""

import json
import pathlib
import subprocess
import sys
import time

import pytest

import world as worlds
from fakeguest import FakeGuest, dns, exchange
from test_run_egress import records
from waiting import wait_for

RUN = "r00000resolv1"
RESOLV_CONF = "/etc/resolv.conf"
STUB_DIR = "/run/systemd/resolve"
TOP = pathlib.Path(__file__).resolve().parents[2]


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


def test_resolved_stub_and_a_change_of_resolv_conf(host, guest, names, configured, world, tmp_path):
    """A host as systemd-resolved leaves it: a link to a file of resolved's that names a stub on the loopback."""
    saved = host.run(f"cat {RESOLV_CONF} 2>/dev/null; true").stdout
    stub_zone, stub_log = tmp_path / "stub.json", tmp_path / "stub.jsonl"
    name, later = names.add({"A": [worlds.OTHER]}), names.add({"A": [worlds.ORIGIN]})
    stub_zone.write_text(json.dumps({name: {"A": [worlds.ORIGIN]}}))
    stub = subprocess.Popen(["nsenter", "--net", "--target", str(host.pid), "--", sys.executable, str(TOP / "tests/world/dnsserver.py"),
                             "127.0.0.53", str(stub_zone), str(stub_log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert stub.stdout.readline().strip() == b"ready"
        host.write(f"{STUB_DIR}/stub-resolv.conf", "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n")
        host.write(f"{STUB_DIR}/resolv.conf", f"nameserver {worlds.RESOLVER}\n")
        host.run(f"ln -sfn {STUB_DIR}/stub-resolv.conf {RESOLV_CONF}")
        configured.set(resolvers=[])
        assert get(guest, name) == (200, None)
        assert allowed(host, name)[0]["addresses"] == [worlds.ORIGIN]
        assert [json.loads(line)["name"] for line in stub_log.read_text().splitlines()][0] == name and not names.queries(name)

        # no run is registered in between: the next lookup sees it
        host.run(f"ln -sfn {STUB_DIR}/resolv.conf {RESOLV_CONF}")
        assert get(guest, later) == (200, None)
        assert names.queries(later)
        # what the other servers said counts no more
        assert get(guest, name) == (200, None)
        assert allowed(host, name)[-1]["addresses"] == [worlds.OTHER]
    finally:
        stub.stdin.close()
        stub.wait(10)
        host.run(f"rm -f {RESOLV_CONF}; rm -rf {STUB_DIR}")
        if saved:
            host.write(RESOLV_CONF, saved)


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
