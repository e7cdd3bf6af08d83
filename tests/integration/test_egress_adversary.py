# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every way to send a packet that FACTS of the fence list, as root in the place of each of a run's processes, without its seccomp filter; and the
same outside, which works. A sniffer at the host's device is the witness: nothing arrives there from inside.

(What root in the guest tries: test_run_attack.py. The families that seccomp closes: test_families_are_closed below.)
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest
import world as worlds

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "adversary"))
import sockets  # noqa: E402

from inside import enter, take_place  # noqa: E402
from liverun import LiveRun  # noqa: E402
from test_run_fence import LISTEN, UNITS  # noqa: E402

# Where the kernel of the machine, or this network, has no answer outside either: what it says there.
OUTSIDE = {"TCP, NAT64": {"ENETUNREACH", "EADDRNOTAVAIL", "TimeoutError"}, "UDP, link-local": {"ok", "ENETUNREACH"},
           "UDP, broadcast": {"EACCES", "ENETUNREACH"}, "UDP, multicast": {"ok", "ENETUNREACH"},
           "source route, cmsg": {"ok", "EINVAL"}, "MPTCP": {"ok", "ENOPROTOOPT"}, "TCP fast open, MSG_FASTOPEN": {"ok", "EINPROGRESS"},
           "SO_BINDTODEVICE": {"ok", "ENETUNREACH", "EHOSTUNREACH"}, "io_uring connect, SQPOLL": {"ok", "EINPROGRESS"}}


@pytest.fixture(scope="module")
def live(host):
    run = LiveRun(host, "exec-both", "echo up; sleep 600")
    run.await_line("up")
    host.systemctl("start", f"anchor-proxy@{run.run}.service", f"anchor-inject@{run.run}.service")
    run.pids = {unit: run.pid(unit) for unit in UNITS}
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


@pytest.fixture(scope="module", autouse=True)
def listening(host):
    process = subprocess.Popen(["nsenter", "--net", "--target", str(host.pid), "--", sys.executable, "-c", LISTEN],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def in_child(function):
    """The JSON that a function returns in a child of its own."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(r)
            os.write(w, json.dumps(function()).encode())
        except BaseException as error:  # noqa: BLE001  the test reads it
            os.write(w, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        data = f.read()
    os.waitpid(child, 0)
    answer = json.loads(data)
    assert isinstance(answer, list), answer
    return answer


def attack(host, pid=None):
    """Results of all attempts, and how many packets to the target the device saw meanwhile."""
    def work():
        enter(host.pid, ["net"])
        witness = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        if pid:
            take_place(pid, [], True, False)
        results = sockets.run(worlds.OTHER)
        seen = 0
        witness.setblocking(False)
        try:
            while True:
                packet, address = witness.recvfrom(2048)
                outgoing = address[2] == socket.PACKET_OUTGOING and address[0] != "lo"
                seen += outgoing and packet[:1] != b"\x60" and packet[16:20] == socket.inet_aton(worlds.OTHER)
        except BlockingIOError:
            pass
        return [results, seen]
    return in_child(work)


def test_what_is_denied_inside_and_possible_outside(host, live):
    before = host.run("cat /proc/sys/net/ipv4/ping_group_range").stdout.strip()
    host.run("echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range")      # as systemd sets it on a host
    try:
        compare(host, live)
    finally:
        host.run(f"echo {before} >/proc/sys/net/ipv4/ping_group_range")


def compare(host, live):
    outside, seen = attack(host)
    columns = {"outside": dict(outside)}
    witness = {"outside": seen}
    for unit in UNITS:
        results, witness[unit] = attack(host, live.pids[unit])
        columns[unit] = dict(results)

    print()
    print(f"{'':38}" + "".join(f"{name:>16}" for name in columns))
    for name, _ in outside:
        print(f"{name:38}" + "".join(f"{column[name]:>16}" for column in columns.values()))
    print(f"{'packets at the device':38}" + "".join(f"{n:>16}" for n in witness.values()))

    for name, result in outside:
        assert result in OUTSIDE.get(name, {"ok"}), (name, result)
        for unit in UNITS:
            assert columns[unit][name] != "ok", (unit, name)
    assert witness["outside"] > 15
    assert [witness[unit] for unit in UNITS] == [0] * len(UNITS)


# ---- what only seccomp closes ----

def test_families_are_closed(host):
    """Each unit's own RestrictAddressFamilies= and SystemCallFilter= have none of these, nor io_uring, whose sockets would walk past the first."""
    for unit in (*UNITS, "anchor-netlog", "anchor-import"):
        shown = host.run(["systemctl", "show", f"{unit}@r0000adver500.service", "-p", "RestrictAddressFamilies", "-p", "SystemCallFilter"]).stdout
        values = dict(line.split("=", 1) for line in shown.splitlines())
        families = set(values["RestrictAddressFamilies"].split())
        assert families and families <= {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}, (unit, families)
        if unit != "anchor-netlog":
            assert "AF_NETLINK" not in families
        allowed = values["SystemCallFilter"].split()
        assert allowed and not allowed[0].startswith("~")
        assert not {"io_uring_setup", "io_uring_enter", "io_uring_register"} & set(allowed), unit


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
