# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every way to send a packet that tests/adversary/sockets.py knows, from everywhere that an agent's code could come to be: as root in the cgroup of
each of a run's units, which is what the fence alone denies; in the place of each unit's process, with its user, capabilities, namespaces and seccomp filter; and
as root in the microVM. The same outside works, where the machine's kernel can do it at all. A sniffer at the host's device, and one on the other side of it, is the witness.

The tables are printed at the end of the session.
"""

import base64
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import zlib

import pytest
import world as worlds

TOP = pathlib.Path(__file__).resolve().parents[2]
ADVERSARY = TOP / "tests/adversary"
sys.path.insert(0, str(ADVERSARY))
import sockets  # noqa: E402

from inside import cgroup_of, enter, in_child, take_place  # noqa: E402
from liverun import LiveRun  # noqa: E402
from seccomp import confine, filters_of  # noqa: E402
from test_run_attack import SNIFF  # noqa: E402
from test_run_fence import LISTEN  # noqa: E402
from test_run_fence import UNITS as GUESTS  # noqa: E402  those that take something of the guest's

UNITS = [*GUESTS, "anchor-net", "anchor-netlog", "anchor-probe", "anchor-check", "anchor-import"]
SPARE = 1 + 2 * len(UNITS)
INET, NETLINK = {"anchor-proxy", "anchor-inject", "anchor-probe"}, {"anchor-net", "anchor-netlog", "anchor-probe", "anchor-check"}
# What these two are for. They are root with two capabilities and see nothing of the guest; still they may send no packet, nor make a socket that could.
CONFIGURES = {"AF_NETLINK, a rule of routing", "AF_NETLINK, nftables", "TUN device"}
BY_DESIGN = {"anchor-net": CONFIGURES | {"a pinned program opened", "written beside a pinned program"}, "anchor-check": CONFIGURES}
UNSUPPORTED = {"EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EAFNOSUPPORT"}
# Where the kernel of the machine, or this network, has no answer outside either: what it says there.
OUTSIDE = {"TCP, NAT64": {"ENETUNREACH", "EADDRNOTAVAIL", "timeout"}, "TCP, 6to4": {"ENETUNREACH", "EADDRNOTAVAIL", "timeout"},
           "TCP, IPv6 link-local": {"timeout", "EHOSTUNREACH", "ENETUNREACH", "EADDRNOTAVAIL"}, "TCP, metadata": {"ENETUNREACH"},
           "UDP, link-local": {"ok", "ENETUNREACH"}, "UDP, broadcast": {"EACCES", "ENETUNREACH"}, "UDP, multicast": {"ok", "ENETUNREACH"},
           "source route, cmsg": {"ok", "EINVAL"}, "MPTCP": {"ok", "ENOPROTOOPT"}, "TCP fast open, MSG_FASTOPEN": {"ok", "EINPROGRESS"},
           "SO_BINDTODEVICE": {"ok", "ENETUNREACH", "EHOSTUNREACH"}, "io_uring connect, SQPOLL": {"ok", "EINPROGRESS"},
           "repaired TCP (TCP_REPAIR)": {"ok", "ECONNRESET"},
           "SCTP": {"timeout", "ECONNREFUSED", "ENOPROTOOPT"} | UNSUPPORTED, "DCCP": {"timeout", "ECONNREFUSED", "ENOPROTOOPT"} | UNSUPPORTED,
           "AF_VSOCK": {"ENODEV", "ECONNRESET", "ETIMEDOUT", "timeout", "EHOSTUNREACH"} | UNSUPPORTED, "AF_ALG": {"ok"} | UNSUPPORTED,
           "any other family": {"ok"} | UNSUPPORTED, "AF_XDP": {"ok"} | UNSUPPORTED}
# In the guest these are its own kernel's affair; that nothing comes of them the witness says.
REACHES = ("TCP", "MPTCP", "SCTP", "DCCP", "io_uring connect", "io_uring socket and connect", "AF_VSOCK", "pidfd_getfd", "socket made before", "socket received")
GRANT = 1 << 62
# What the guest's own allowed connection needs.
NEEDED = {f"{worlds.GATEWAY} 6 {worlds.ORIGIN} 443", f"{worlds.GATEWAY} 17 {worlds.RESOLVER} 53"}


class Grants:
    """What egressd would grant each of the run's cgroups, for a control: the origin, which is nobody's target here."""

    def __init__(self, host, pids):
        self.host, self.made = host, []
        address = b"\0" * 10 + b"\xff\xff" + socket.inet_aton(worlds.ORIGIN)
        for n, pid in enumerate(pids.values()):
            key = cgroup_of(pid).stat().st_ino.to_bytes(8, "little") + address + (80).to_bytes(2, "big") + bytes([socket.IPPROTO_TCP]) + bytes(5)
            self.made.append((key, (GRANT + n).to_bytes(8, "little")))
        for key, ident in self.made:
            self.bpftool("update", "grants", key, ident + (1 << 62).to_bytes(8, "little"))
            self.bpftool("update", "live", ident, key)

    def bpftool(self, verb, name, key, value=None):
        def words(data):
            return [f"{b:02x}" for b in data]
        self.host.run(["bpftool", "map", verb, "pinned", f"/run/anchorhold/maps/{name}", "key", "hex", *words(key), *(["value", "hex", *words(value)] if value else [])])

    def withdraw(self):
        for key, ident in self.made:
            self.bpftool("delete", "grants", key)
            self.bpftool("delete", "live", ident)


@pytest.fixture(scope="module")
def hold(host):
    """Gives a unit of a run, whose process ends soon or has its turn later, one that stays; in all else it is as it is."""
    drop_ins = "/run/systemd/system"

    def write(unit, lines):
        host.write(f"{drop_ins}/{unit}.service.d/hold.conf", f"[Service]\n{lines}\n")
        host.systemctl("daemon-reload")

    yield write
    host.run(f"rm {drop_ins}/*.service.d/hold.conf; systemctl daemon-reload")


@pytest.fixture(scope="module")
def live(host, world, listening, hold):
    """A run whose command is the adversary; then it waits."""
    packed = base64.b64encode(zlib.compress((ADVERSARY / "sockets.py").read_bytes() + f"""
main("{worlds.OTHER}", "{worlds.ORIGIN6}", "eth0", "www.example.org")
""".encode(), 9)).decode()
    sniffer = subprocess.Popen(["nsenter", "--net", "--target", str(world.process.pid), "--", sys.executable, "-c", SNIFF],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    hold("anchor-net@", "ExecStart=/usr/bin/sh -c 'sleep infinity &'")
    try:
        assert sniffer.stdout.readline() == "ready\n"
        run = LiveRun(host, "exec-both", f"""python3 -c 'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'; echo all was tried; sleep 600""")
        run.await_line("all was tried")
    finally:
        sniffer.terminate()
        flows = set(sniffer.communicate()[0].split("\n")) - {""}
    run.flows = flows
    run.inside = [json.loads(line[3:]) for line in run.lines if line.startswith("@@ ")]
    checked = f"anchor-import@{run.run}"
    hold(checked, "ExecStart=\nExecStart=/usr/bin/sleep infinity")
    host.systemctl("start", f"anchor-proxy@{run.run}.service", f"anchor-inject@{run.run}.service", f"{checked}.service")
    run.pids = {unit: run.pid(unit) for unit in UNITS if unit != "anchor-net"}
    run.pids["anchor-net"] = int((cgroup_of(run.pids["anchor-run"]).parent / f"anchor-net@{run.run}.service/cgroup.procs").read_text())
    grants = Grants(host, run.pids)
    yield run
    grants.withdraw()
    host.systemctl("stop", f"{checked}.service")
    host.anchorctl("stop", "--all", check=False)
    run.rest()


@pytest.fixture(scope="module")
def listening(host):
    """Listeners in the host's network namespace, by a process that has some sockets to spare: its descriptors from 3 on."""
    spare = f"import socket\nspare = [socket.socket() for _ in range({SPARE})]\n"
    process = subprocess.Popen(["nsenter", "--net", "--target", str(host.pid), "--", sys.executable, "-c", spare + LISTEN],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


TARGETS = socket.inet_aton(worlds.OTHER), socket.inet_pton(socket.AF_INET6, worlds.ORIGIN6)


def connected_before():
    """Our ports of the TCP connections to the target that are there already: when its server closes one, the kernel acknowledges that, whoever's turn it is then."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
            (_, ours), (address, _) = (end.split(":") for end in line.split()[1:3])
            address = b"".join(bytes.fromhex(address[at:at + 8])[::-1] for at in range(0, len(address), 8))
            if address[-4:] == TARGETS[0] or address == TARGETS[1]:
                ports.add(int(ours, 16))
    return ports


def packets_to_others(witness, before=frozenset()):
    """What left for the target, IPv4 or IPv6, since it was asked last, but for the connections of before: each the protocol and the packet's first bytes."""
    seen = []
    witness.setblocking(False)
    try:
        while True:
            packet, address = witness.recvfrom(2048)
            if address[2] != socket.PACKET_OUTGOING or address[0] == "lo":
                continue
            six = packet[:1] == b"\x60"
            protocol, target, payload = (packet[6], packet[24:40], packet[40:]) if six else (packet[9], packet[16:20], packet[(packet[0] & 15) * 4:])
            neighbour = six and protocol == 58                             # the kernel asks who has the address
            late = protocol == socket.IPPROTO_TCP and int.from_bytes(payload[:2], "big") in before
            if target in TARGETS and not neighbour and not late:
                seen.append(f"{protocol} {packet[:64].hex()}")
    except BlockingIOError:
        return seen


def control(unit, whole):
    """The allowed attempt: a granted connection. Most units may make no inet socket at all, whatever was granted, but a Unix socket; the microVM none whatever, but
    use one that it has: a pair, which is a socket to nobody else."""
    if whole and unit == "anchor-vm":
        return lambda: [end.close() for end in socket.socketpair()]
    if whole and unit and unit not in INET:
        return lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()
    return lambda: sockets.tcp(worlds.ORIGIN)


def attack(host, victim, unit=None, pid=None, filters=None):
    """[results, packets that the device saw of those that have to be denied]: outside, as root in a unit's cgroup, or with all that the unit's process has."""
    whole = filters is not None

    def work():
        enter(host.pid, ["net"])
        witness = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        witness.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)             # SO_RCVBUFFORCE
        before = connected_before()
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        ours, theirs = socket.socketpair()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
            socket.send_fds(theirs, [b"x"], [s.fileno()])
        place = sockets.Place(worlds.OTHER, worlds.ORIGIN6, "uplink0", victim, made.fileno(), ours.fileno())
        if pid:
            take_place(pid, ["mnt", "net"] if whole else [], True, whole)
        if not whole:
            enter(host.pid, ["mnt"])
        limit = (lambda: confine(filters)) if whole else None
        packets_to_others(witness)
        allowed = control(unit, whole)
        results = [["control", sockets.outcome(allowed, limit)], *sockets.run(place, ("fence", "unit") if whole else ("fence",), limit)]
        seen = packets_to_others(witness, before)
        if not whole:
            results += sockets.run(place, ("unit",))
        results += sockets.run(place, ("gift",), limit)
        results.append(["control at the end", sockets.outcome(allowed, limit)])
        return [results, seen]
    return in_child(work)


@pytest.fixture(scope="module")
def table(host, live, listening, request):
    """{column: {row: result}} and what the witness saw; printed at the end of the session."""
    before = host.run("cat /proc/sys/net/ipv4/ping_group_range").stdout.strip()
    host.run("echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range")      # as systemd sets it on a host
    columns, witness, victims = {}, {}, ((listening, fd) for fd in range(3, 3 + SPARE))
    try:
        results, witness["outside"] = attack(host, next(victims))
        columns["outside"] = dict(results)
        for unit in UNITS:
            results, witness["cgroup " + unit] = attack(host, next(victims), unit, live.pids[unit])
            columns["cgroup " + unit] = dict(results)
        for unit in UNITS:
            results, witness["unit " + unit] = attack(host, next(victims), unit, live.pids[unit], filters_of(live.pids[unit]))
            columns["unit " + unit] = dict(results)
    finally:
        host.run(f"echo {before} >/proc/sys/net/ipv4/ping_group_range")
    columns["guest"], witness["guest"] = dict(live.inside), sorted(live.flows - NEEDED)
    for kind, title in (("cgroup", "as root in the cgroup of anchor-NAME"), ("unit", "as anchor-NAME's own process")):
        shown = {name: column for name, column in columns.items() if name.startswith(kind) or " " not in name}
        request.config.tables.append((f"attempts to send a packet, {title}", columns_of(shown, witness)))
    return columns, witness


def columns_of(columns, witness):
    names = ["", *(re.sub(r".*anchor-", "", name) for name in columns)]
    rows = [names] + [[name, *(column.get(name, "-") for column in columns.values())] for name in columns["outside"]]
    rows.append(["packets at the device", *(str(len(witness[name])) if name in witness else "-" for name in columns)])
    legend = ["Each row is a way to send a packet to whom nobody was granted, each column where it was tried. The last rows take an accomplice outside",
              'of the run: docs/operate.md, "What the fence does not see".']
    return legend + ["%-36s" % row[0] + "".join(f" {cell[:11]:>11}" for cell in row[1:]) for row in rows]


CLOSED = {name: closed for name, closed, _ in sockets.attempts(sockets.Place(worlds.OTHER, worlds.ORIGIN6, "lo", (0, 0), 0, 0))}


def test_no_unit_of_a_run_is_missing():
    units = {path.name.split("@")[0] for path in (TOP / "units").glob("*.service") if "\nSlice=anchorhold-runs-%i.slice\n" in path.read_text()}
    assert units == set(UNITS)


def test_the_whole_table_was_tried(table):
    columns, _ = table
    assert len(CLOSED) >= 47
    for name, column in columns.items():
        assert set(CLOSED) | {"control", "control at the end"} == set(column), name
        assert not {"ended", "no answer"} & set(column.values()), (name, column)


def test_outside_it_is_possible(table):
    columns, witness = table
    wrong = {name: result for name, result in columns["outside"].items() if result not in OUTSIDE.get(name, {"ok"})}
    assert not wrong
    assert len(witness["outside"]) > 20


@pytest.mark.parametrize("unit", UNITS)
def test_deny_to_root_in_the_cgroup(table, unit):
    """The fence alone, without the unit's filter and user."""
    columns, witness = table
    column = columns["cgroup " + unit]
    assert column["control"] == column["control at the end"] == "ok"
    assert not {name: result for name, result in column.items() if CLOSED.get(name) == "fence" and result == "ok"}
    assert witness["cgroup " + unit] == []


@pytest.mark.parametrize("unit", UNITS)
def test_deny_to_the_unit_itself(table, unit):
    columns, witness = table
    column = columns["unit " + unit]
    assert column["control"] == column["control at the end"] == "ok"
    assert {name for name, result in column.items() if CLOSED.get(name) in ("fence", "unit") and result == "ok"} == BY_DESIGN.get(unit, set())
    assert witness["unit " + unit] == []


def test_deny_to_root_in_the_guest(host, live, table):
    """Whom its own kernel obeys: no attempt reaches anybody, and what leaves the host is what the allowed connection needs."""
    column = table[0]["guest"]
    assert column["control"] == column["control at the end"] == "ok"
    assert not {name: result for name, result in column.items() if name.startswith(REACHES) and result == "ok"}
    assert live.flows == NEEDED


# ---- what only seccomp closes ----

def test_families_are_closed(host):
    """Each unit's own RestrictAddressFamilies= and SystemCallFilter= have none of these, nor io_uring, whose sockets would walk past the first."""
    for unit in UNITS:
        if unit == "anchor-vm":                                           # none at all; `show` has no word for that
            path = "/org/freedesktop/systemd1/unit/anchor_2dvm_40r0000adver500_2eservice"
            said = host.run(["busctl", "get-property", "org.freedesktop.systemd1", path, "org.freedesktop.systemd1.Service", "RestrictAddressFamilies"]).stdout
            assert said.split() == ["(bas)", "true", "0"], said
        shown = host.run(["systemctl", "show", f"{unit}@r0000adver500.service", "-p", "RestrictAddressFamilies", "-p", "SystemCallFilter"]).stdout
        values = dict(line.split("=", 1) for line in shown.splitlines())
        families = set(values["RestrictAddressFamilies"].split())
        if unit != "anchor-vm":
            assert families and families <= {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}, (unit, families)
        assert ("AF_NETLINK" in families) == (unit in NETLINK) and ("AF_INET" in families) == (unit in INET)
        allowed = values["SystemCallFilter"].split()
        assert allowed and not allowed[0].startswith("~")
        assert not {"io_uring_setup", "io_uring_enter", "io_uring_register"} & set(allowed), unit


def test_deny_any_socket_to_the_microvm(host, live):
    """Not even a Unix socket, from which it could call the daemons; anchor-run's, which may, is the control."""
    def work(unit, filters):
        enter(host.pid, ["net"])
        take_place(live.pids[unit], ["mnt", "net"], True, True)
        return [sockets.outcome(lambda: socket.socket(socket.AF_UNIX, kind).close(), lambda: confine(filters)) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]

    filters = {unit: filters_of(live.pids[unit]) for unit in ("anchor-vm", "anchor-run")}
    tried = {unit: in_child(lambda: work(unit, filters[unit])) for unit in filters}
    assert tried == {"anchor-vm": ["EAFNOSUPPORT", "EAFNOSUPPORT"], "anchor-run": ["ok", "ok"]}


# ---- a socket that changes hands ----

def test_a_socket_carried_out_of_the_slice_is_dropped_at_the_device(host, live):
    """Made in the run's cgroup and used by a process that is in it no more: the program at the device asks for its grant all the same."""
    def work(inside):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        child = os.fork()
        if child == 0:
            enter(host.pid, ["net"])
            if inside:
                take_place(live.pids["anchor-proxy"], [], True, False)
            s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            socket.send_fds(theirs, [b"x"], [s.fileno()])
            os._exit(0)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        os.waitpid(child, 0)
        with socket.socket(fileno=fds[0]) as s:
            s.settimeout(2)
            try:
                s.connect((worlds.OTHER, 80))
                return ["ok"]
            except OSError as error:
                return [type(error).__name__]

    assert in_child(lambda: work(False)) == ["ok"]                        # the control
    assert in_child(lambda: work(True)) != ["ok"]
