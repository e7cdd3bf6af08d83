# SPDX-License-Identifier: LGPL-2.1-or-later
"""From the place of each of a live run's processes (cgroup, namespaces, user): what it can reach, which is what egressd granted it and the
sockets that it needs, and nothing else. Beside each denial stands the same attempt from where it is allowed."""

import os
import pathlib
import subprocess
import sys
import time

import pytest
import world as worlds

from inside import attempt, call, reach, tcp, udp, unix
from liverun import LiveRun

UNITS = ["anchor-proxy", "anchor-inject", "anchor-run", "anchor-vm"]
PORT = 4479

LISTEN = f"""
import socket, sys
held = []
for name, kind in (("stream", socket.SOCK_STREAM), ("packet", socket.SOCK_SEQPACKET), ("datagram", socket.SOCK_DGRAM)):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind("\\0anchor-test-" + name)
    held.append(s)
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, {PORT}))
    held.append(s)
for s in held:
    if s.type != socket.SOCK_DGRAM: s.listen(64)
print("ready", flush=True)
sys.stdin.read()
"""

# Nobody granted these to anybody. As the cgroup's programs see each, the privileges of who tries make no difference.
NOWHERE = [
    tcp(worlds.OTHER, 443),
    tcp(worlds.ORIGIN, 80),
    tcp(worlds.RESOLVER, 53),
    udp(worlds.RESOLVER, 53),
    udp(worlds.RESOLVER, 53, "connect"),
    udp(worlds.ORIGIN, 443),
    udp(worlds.PROVIDER, 443, "connect"),
    tcp("127.0.0.1", PORT),
    tcp("::1", PORT),
    udp("::1", PORT),
    tcp(f"::ffff:{worlds.OTHER}", 443),
    tcp("2001:db8::1", 443),
    udp("2001:db8::1", 443),
    tcp("169.254.169.254", 80),
    udp("169.254.169.254", 80),
    tcp("::ffff:169.254.169.254", 80),
    tcp("64:ff9b::a9fe:a9fe", 80),
    tcp("fd00:ec2::254", 80),
    ("socket", "AF_INET", "SOCK_RAW", 1),
    ("socket", "AF_INET", "SOCK_RAW", 255),
    ("socket", "AF_INET6", "SOCK_RAW", 58),
    ("socket", "AF_INET", "SOCK_DGRAM", 136),    # UDP-Lite
    ("socket", "AF_INET", "SOCK_STREAM", 262),   # MPTCP
]
GRANTED = {"anchor-proxy": tcp(worlds.ORIGIN, 443), "anchor-inject": tcp(worlds.PROVIDER, 443)}
ABSTRACT = [unix("@anchor-test-stream"), unix("@anchor-test-packet", "SOCK_SEQPACKET"), unix("@anchor-test-datagram", "SOCK_DGRAM"),
            unix("@anchor-test-datagram", "SOCK_DGRAM", "send")]

# What each may connect to, by design; its own run's folder as RUN.
DAEMONS = {"audit.sock", "egress.sock", "run-api.sock", "secret-api.sock"}
MAY = {
    "anchor-proxy": DAEMONS | {"run/RUN/inject", "/run/systemd/notify"},
    "anchor-inject": DAEMONS | {"/run/systemd/notify"},
    "anchor-run": DAEMONS | {"run/RUN/channel", "run/RUN/qmp"},
    "anchor-vm": set(),
}
API = "/run/anchorhold/api.sock"
SYSTEM = [unix("/run/dbus/system_bus_socket"), unix("/run/systemd/private"), unix("/run/systemd/journal/stdout"),
          unix("/run/systemd/journal/socket", "SOCK_DGRAM", "send"), unix("/run/systemd/journal/dev-log", "SOCK_DGRAM", "send"),
          unix("/dev/log", "SOCK_DGRAM", "send"), unix(API), unix("/run/systemd/io.systemd.ManagedOOM")]


# What systemd-resolved offers: by a socket in the file system, and by addresses of the host's own.
RESOLVED = [unix("/run/systemd/resolve/io.systemd.Resolve"), unix("/run/systemd/resolve/io.systemd.Resolve.Monitor")]
RESOLVED_STUBS = [tcp("127.0.0.53", 53), udp("127.0.0.53", 53), udp("127.0.0.53", 53, "connect"), tcp("127.0.0.54", 53), udp("127.0.0.54", 53)]


# In the guest: connections to one host that is passed through and one that is inspected, each held for a while. A grant is withdrawn
# with the connection that it was for.
GUEST = """
import http.client, os, time
held = []
while True:
    for name, path in (("www.example.org", "/"), ("api.anthropic.com", "/v1/models")):
        c = http.client.HTTPSConnection(name, timeout=20)
        c.request("GET", path, headers={"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
        r = c.getresponse()
        r.read()
        held.append((time.time(), c))
        if len(held) < 3:
            print(name, r.status, flush=True)
    while held[0][0] < time.time() - 8:
        held.pop(0)[1].close()
    time.sleep(3)
"""


@pytest.fixture(scope="module")
def live(host):
    """A run with grants of the proxy's and of inject's."""
    run = LiveRun(host, "exec-both", f"python3 -c '{GUEST}'")
    run.await_line("www.example.org 200")
    run.await_line("api.anthropic.com 200")
    run.pids = {unit: run.pid(unit) for unit in UNITS}
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


@pytest.fixture(scope="module")
def other(host, live):
    """Another run beside it."""
    run = LiveRun(host, "exec", "echo up; sleep 600")
    run.await_line("up")
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


@pytest.fixture(scope="module", autouse=True)
def listening(host):
    """Listeners in the host's network namespace: abstract sockets, and the loopback addresses."""
    process = subprocess.Popen(["nsenter", "--net", "--target", str(host.pid), "--", sys.executable, "-c", LISTEN],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def outside(host, attempts):
    """As root, in the host's namespaces, and in no run's cgroup."""
    return reach(host.pid, attempts, cgroup=False, drop=False)


def named(attempts, results):
    return {f"{' '.join(map(str, a))}": r for a, r in zip(attempts, results)}


@pytest.mark.parametrize("drop", [True, False], ids=["unit's user", "root"])
@pytest.mark.parametrize("unit", UNITS)
def test_deny_what_nobody_granted(host, live, unit, drop):
    results = named(NOWHERE, reach(live.pids[unit], NOWHERE, net=host.pid, drop=drop))
    assert set(results.values()) == {"EPERM"}, results


def test_outside_the_fence_the_same_is_possible(host):
    """The control: reached where somebody listens, and elsewhere the network's own answer."""
    results = outside(host, NOWHERE)
    assert "EPERM" not in results and "EACCES" not in results, named(NOWHERE, results)
    for there in (tcp(worlds.OTHER, 443), tcp(worlds.ORIGIN, 80), tcp("127.0.0.1", PORT), tcp("::1", PORT), udp(worlds.RESOLVER, 53),
                  ("socket", "AF_INET", "SOCK_RAW", 1), ("socket", "AF_INET", "SOCK_DGRAM", 136)):
        assert results[NOWHERE.index(there)] == "ok", there


@pytest.mark.parametrize("unit", UNITS)
def test_grants_are_the_units_own(host, live, unit):
    """Each reaches what it was granted itself, and not what its neighbour in the same run was."""
    attempts = list(GRANTED.values())
    expected = ["ok" if GRANTED.get(unit) == a else "EPERM" for a in attempts]
    end = time.monotonic() + 12
    while (results := reach(live.pids[unit], attempts, net=host.pid)) != expected and time.monotonic() < end:
        time.sleep(0.3)
    assert results == expected


@pytest.mark.parametrize("unit", ["anchor-run", "anchor-vm"])
def test_deny_in_its_own_network_namespace(live, unit):
    """No inet socket at all where a run's namespace is; its proxy listens there, for the guest."""
    attempts = [tcp("10.255.255.1", 3128), tcp("127.0.0.1", PORT), udp("10.255.255.1", 53)]
    for drop in (True, False):
        assert set(reach(live.pids[unit], attempts, drop=drop)) == {"EPERM"}
    # the control: without the cgroup it is another answer, or none
    assert "EPERM" not in reach(live.pids[unit], attempts[:1], cgroup=False)


@pytest.mark.parametrize("unit", UNITS)
def test_deny_abstract_sockets(host, live, unit):
    for drop in (True, False):
        results = named(ABSTRACT, reach(live.pids[unit], ABSTRACT, net=host.pid, drop=drop))
        assert set(results.values()) == {"EPERM"}, results
    assert set(outside(host, ABSTRACT)) == {"ok"}


@pytest.mark.parametrize("drop", [True, False], ids=["unit's user", "root"])
@pytest.mark.parametrize("unit", UNITS)
def test_deny_sockets_of_the_system(host, live, unit, drop):
    """D-Bus, systemd's own socket, the journal's, the operators' API. The last is shut to root by who asks, not by its mode."""
    present = [a for a in SYSTEM if os.path.exists(f"/proc/{host.pid}/root{a[4]}")]
    assert len(present) >= 5 and SYSTEM[0] in present
    assert set(outside(host, present)) == {"ok"}
    results = named(present, reach(live.pids[unit], present, drop=drop))
    assert {result for what, result in results.items() if drop or API not in what} <= {"ENOENT", "EACCES"}, results
    status = [call("api", "Manager.Status")]
    assert reach(live.pids[unit], status, drop=drop)[0] in ("ENOENT", "EACCES", "Denied", "PermissionDenied")
    assert outside(host, status) == ["ok"]


@pytest.fixture(scope="module")
def resolved(host):
    """systemd-resolved, which is in the image and which nothing starts."""
    host.run("test ! -e /run/systemd/resolve")
    try:
        host.systemctl("start", "systemd-resolved.service")
        yield
    finally:
        host.systemctl("stop", "systemd-resolved.service")
        host.run("rm -rf /run/systemd/resolve")                # which it keeps for the next time


@pytest.mark.parametrize("drop", [True, False], ids=["unit's user", "root"])
@pytest.mark.parametrize("unit", UNITS)
def test_deny_resolved(host, live, resolved, unit, drop):
    assert set(outside(host, RESOLVED + RESOLVED_STUBS)) == {"ok"}
    results = named(RESOLVED, reach(live.pids[unit], RESOLVED, drop=drop))
    assert set(results.values()) <= {"ENOENT", "EACCES"}, results
    results = named(RESOLVED_STUBS, reach(live.pids[unit], RESOLVED_STUBS, net=host.pid, drop=drop))
    assert set(results.values()) == {"EPERM"}, results


def test_deny_sockets_to_the_agreement_check(host, live, other):
    """It is root, whom modes would let through; so they are not there at all, and neither are those of another run."""
    present = [a for a in SYSTEM if os.path.exists(f"/proc/{host.pid}/root{a[4]}") and not a[4].startswith("/run/anchorhold/")]
    assert len(present) >= 5
    others = [unix(f"/run/anchorhold/run/{other.run}/{name}") for name in ("channel", "qmp", "inject")]
    pid = live.pid("anchor-check")
    results = named(present + others, reach(pid, present + others))
    assert set(results.values()) == {"ENOENT"}, results
    assert reach(pid, [unix("/run/anchorhold/egress.sock")]) == ["ok"]


@pytest.mark.parametrize("unit", UNITS)
def test_deny_sockets_of_another_run(host, live, other, unit):
    paths = [f"/run/anchorhold/run/{other.run}/{name}" for name in ("channel", "qmp", "inject")]
    assert all(pathlib.Path(f"/proc/{host.pid}/root{path}").is_socket() for path in paths)
    results = reach(live.pids[unit], [unix(path) for path in paths])
    assert set(results) == {"ENOENT"}
    # of its own run, those that it needs
    own = reach(live.pids[unit], [unix(path.replace(other.run, live.run)) for path in paths])
    assert [name for name, result in zip(("channel", "qmp", "inject"), own) if result == "ok"] == \
        {"anchor-proxy": ["inject"], "anchor-run": ["channel", "qmp"]}.get(unit, [])


@pytest.mark.parametrize("unit", UNITS)
def test_no_other_socket_of_the_host_is_in_reach(host, live, other, unit):
    """Every socket that has a path, whatever it is for."""
    paths = host.run("find / -xdev -type s; find /run /dev /tmp /var -type s", check=False).stdout.split()
    assert len(paths) > 20 and f"/run/anchorhold/run/{other.run}/qmp" in paths
    paths = sorted(set(paths))
    may = {p if p.startswith("/") else f"/run/anchorhold/{p.replace('RUN', live.run)}" for p in MAY[unit]}
    results = dict(zip(paths, reach(live.pids[unit], [unix(p) for p in paths])))
    # EPROTOTYPE and the like: it got as far as the socket
    reached = {p for p, result in results.items() if result not in ("ENOENT", "EACCES", "EPERM", "ENOTDIR")}
    assert reached == may, {p: results[p] for p in reached ^ may}


# Methods that are somebody else's, on sockets that each of these three may connect to; and what it may not say on record.
ROLES = {
    "egress": [("Amend", {"run": "RUN", "allow": True, "rule": f"{worlds.OTHER}:443"}), ("Reload", {"run": "RUN"}), ("Explain", {"run": "RUN", "name": "www.example.org", "port": 443}),
               ("Register", {"run": "r00000intrude", "workflow": "exec-both", "stage": "work"}), ("Release", {"run": "RUN"}), ("Judge", {"name": "www.example.org", "port": 443}), ("Ping", {})],
    "audit": [("Append", {"event": event, "data": {}}) for event in ("egress.allow", "policy.changed", "import.accepted", "enforcement.mismatch", "egress.totals", "approval.recorded",
                                                                    "secret.denied", "hold.released")] + [("Head", {})],
    "run-api": [("GetImport", {}), ("Imported", {"ok": True, "reason": "", "facts": {}, "seq": 1}), ("Mismatch", {"reason": "made up"})],
}
INTERFACE = {"egress": "Egress", "audit": "Audit", "run-api": "Run"}
OWN = {"anchor-proxy": call("egress", "Egress.Resolve", name="www.example.org", qtype="A"), "anchor-run": call("run-api", "Run.GetSpec"),
       "anchor-inject": call("audit", "Audit.Append", event="conn.deny", data={"name": "test", "port": 1, "reason": "test", "rule": "test"})}


@pytest.mark.parametrize("unit", list(OWN))
def test_deny_methods_of_other_roles(live, unit):
    attempts = [call(name, f"{INTERFACE[name]}.{method}", **{k: live.run if v == "RUN" else v for k, v in parameters.items()})
                for name, methods in ROLES.items() for method, parameters in methods]
    results = [(a[5], a[6], r) for a, r in zip(attempts, reach(live.pids[unit], attempts))]
    assert not [r for r in results if r[2] not in ("Denied", "PermissionDenied")], results
    assert reach(live.pids[unit], [OWN[unit]]) == ["ok"]


@pytest.mark.parametrize("unit", list(OWN))
def test_deny_records_of_others(live, unit):
    """About another run, about an item, or in somebody's name."""
    event = "run.step" if unit == "anchor-run" else "conn.deny"
    attempts = [call("audit", "Audit.Append", event=event, data={}, **said) for said in ({"run": "r00000intrude"}, {"item": "i00000intrude"}, {"actor": "uid 0"}, {"actor": "anchord.service"})]
    assert set(reach(live.pids[unit], attempts)) == {"Denied"}


def test_the_probe_itself_would_notice(host):
    """A connect to nothing is not taken for a denial, nor the other way round."""
    assert attempt(unix("/nowhere")) == "ENOENT"
    assert outside(host, [unix("@anchor-test-nobody")]) == ["ECONNREFUSED"]
