# SPDX-License-Identifier: LGPL-2.1-or-later
"""systemd reads its units anew, which takes the programs that it attached off the slice, until the next unit below it starts: nobody gets out meanwhile,
what is granted goes on, and nothing is said of it.

Processes in a run's slice try all the time what must not work, each loop on every kind of hook, and one thing that is granted.
"""

import collections
import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

import inside
from test_egress_agreement import mismatches
from test_egress_never_off import PINS, SLICE, calling, live  # noqa: F401
from waiting import wait_for

PORT = 4481
RELOADS = 10


def errno_of(call, *args):
    try:
        call(*args)
        return "ok"
    except BlockingIOError:
        return "ok"                                            # under way: it was let through
    except OSError as error:
        return inside.name_of(error.errno)


ATTEMPTS = [
    ("connect4", socket.AF_INET, socket.SOCK_DGRAM, "connect", ("169.254.169.254", 80)),
    ("connect6", socket.AF_INET6, socket.SOCK_DGRAM, "connect", ("::1", PORT)),
    ("connect to this host", socket.AF_INET, socket.SOCK_STREAM, "connect", ("127.0.0.1", PORT)),
    ("sendto4", socket.AF_INET, socket.SOCK_DGRAM, "sendto", b"x", ("127.0.0.1", PORT)),
    ("sendto6", socket.AF_INET6, socket.SOCK_DGRAM, "sendto", b"x", ("::1", PORT)),
    ("bind4", socket.AF_INET, socket.SOCK_STREAM, "bind", ("127.0.0.1", 0)),
    ("bind6", socket.AF_INET6, socket.SOCK_DGRAM, "bind", ("::1", 0)),
    ("option", socket.AF_INET, socket.SOCK_STREAM, "setsockopt", socket.IPPROTO_IP, socket.IP_TRANSPARENT, 1),
]


def new_socket(family, kind):
    s = socket.socket(family, kind)
    s.setblocking(False)
    return s


def try_all(granted):
    """One round: what was tried, and what came of it."""
    for name, family, kind, method, *args in ATTEMPTS:
        with new_socket(family, kind) as s:
            yield name, errno_of(getattr(s, method), *args)
    yield "raw socket", errno_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close())
    with new_socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        yield "granted", errno_of(s.connect, granted)


class Hammers:
    """Two processes in a cgroup of that run's slice, at it until stopped; `results` is then how often each attempt had which outcome."""

    def __init__(self, host, cgroup, granted, n=2):
        self.stop, self.children = os.pipe(), []
        for _ in range(n):
            r, w = os.pipe()
            pid = os.fork()
            if pid == 0:
                self.work(host, cgroup, granted, w)
            os.close(w)
            self.children.append((pid, r))

    def work(self, host, cgroup, granted, w):
        results = collections.Counter()
        try:
            os.close(self.stop[1])
            if cgroup:
                (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            inside.enter(host.pid, ["net"])
            while not select.select([self.stop[0]], [], [], 0)[0]:
                results.update(try_all(granted))
        except BaseException as error:  # noqa: BLE001  the test reads it
            results[type(error).__name__, str(error)] += 1
        finally:
            os.write(w, json.dumps([[*what, n] for what, n in results.items()]).encode())
            os._exit(0)

    def results(self):
        for fd in self.stop:
            os.close(fd)
        results = collections.defaultdict(collections.Counter)
        for pid, r in self.children:
            with os.fdopen(r) as f:
                for name, outcome, n in json.load(f):
                    results[name][outcome] += n
            os.waitpid(pid, 0)
        return results


def map_update(host, path, key, value):
    host.run(f"bpftool map update pinned {path} key hex {key.hex(' ')} value hex {value.hex(' ')}")


def grant(host, cgroup, address, port):
    """As egressd writes it (ebpf/fence-api.bpf.h), for ten minutes."""
    expires = (int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 600) * 10 ** 9
    key = struct.pack("=Q", cgroup) + bytes(10) + b"\xff\xff" + socket.inet_aton(address) + struct.pack("!HB5x", port, socket.IPPROTO_UDP)
    number = 1 << 62 | cgroup
    map_update(host, "/run/anchorhold/maps/live", struct.pack("=Q", number), key)
    map_update(host, "/run/anchorhold/maps/grants", key, struct.pack("=QQ", number, expires))


LISTEN = f"""
import socket, sys
held = [socket.create_server(("127.0.0.1", {PORT}), backlog=4096)]
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    held.append(socket.socket(family, socket.SOCK_DGRAM))
    held[-1].bind((address, {PORT}))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def granted(host):
    """The address that the cgroups below are granted, over UDP: of this host, so that there is a route. Somebody listens where nothing is granted."""
    process = subprocess.Popen(["nsenter", "--net", "--target", str(host.pid), "--", sys.executable, "-c", LISTEN],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    address = json.loads(host.run("ip -j -4 address show scope global").stdout)[0]["addr_info"][0]["local"]
    yield address, PORT
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


@contextlib.contextmanager
def cgroup_with_grant(host, below, granted):
    path = inside.cgroup_of(host.pid).parent / "anchorhold.slice/anchorhold-runs.slice" / below / "hammer"
    path.mkdir()
    grant(host, path.stat().st_ino, *granted)
    yield path
    with contextlib.suppress(FileNotFoundError):               # its slice was stopped
        path.rmdir()


@pytest.fixture
def place(host, live, granted):  # noqa: F811
    """A cgroup in the live run's slice."""
    with cgroup_with_grant(host, f"anchorhold-runs-{live.run}.slice", granted) as path:
        yield path


@pytest.fixture
def bare(host, live, granted):  # noqa: F811
    """A cgroup in the runs' slice while there is no run. The check of one would end it if it looked just when something is taken away: test_egress_agreement.py."""
    host.anchorctl("stop", "--all")
    live.ended()
    with cgroup_with_grant(host, "", granted) as path:
        yield path


class Watch:
    """What anchor-warden says, all the while."""

    def __init__(self, host):
        self.path, self.said, self.stop = f"/proc/{host.pid}/root/run/anchorhold/fence.json", set(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stop.wait(0.05):
            with open(self.path, encoding="utf-8") as f:
                self.said.add(json.loads(f.read())["reason"])

    def all(self):
        self.stop.set()
        self.thread.join(5)
        return self.said


def denied_and_granted(results):
    granted, denied = results.pop("granted"), results
    return granted, {name: dict(outcomes) for name, outcomes in denied.items()}


def floor_of(host):
    """The names of systemd's programs that are on the slice now; the kernel cuts them."""
    return {program["name"] for program in json.loads(host.run(f"bpftool -j cgroup show {SLICE}").stdout) if program["name"].startswith("floor_")}


def hammered(host, cgroup, granted, seconds=1):
    hammers = Hammers(host, cgroup, granted, n=1)
    time.sleep(seconds)
    return denied_and_granted(hammers.results())


def assert_all_denied(denied):
    assert len(denied) == len(ATTEMPTS) + 1 and all(set(outcomes) == {"EPERM"} for outcomes in denied.values()), denied


def test_deny_all_the_same_while_systemd_reads_its_units(host, live, place, granted):  # noqa: F811
    notes, begin, floor = live.show()["notes"], time.monotonic(), len(floor_of(host))
    watch, hammers = Watch(host), Hammers(host, place, granted)
    try:
        for _ in range(RELOADS):
            host.systemctl("daemon-reload")
            floor = min(floor, len(floor_of(host)))
        host.systemctl("daemon-reexec")
        time.sleep(5)                                          # a warden who missed something would say so
    finally:
        results = hammers.results()
        said = watch.all()
    allowed, denied = denied_and_granted(results)
    assert_all_denied(denied)
    assert sum(denied["connect4"].values()) > 300 and set(allowed) == {"ok"}, allowed
    assert floor == 0                                          # the control: systemd did take its programs off

    # the run neither
    live.await_line("^call 200$", time.monotonic(), 20)
    assert not live.said("^call (?!200)", begin) and not live.said("^cut", begin)
    shown = live.show()
    assert shown["state"] == "running" and shown["notes"] == notes, shown["notes"]
    assert not mismatches(host, live.run)
    assert said == {""}
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")
    assert host.anchorctl("doctor", check=False).returncode == 0
    assert len(floor_of(host)) == 9                            # with doctor's units systemd has put them on again


def test_the_hammer_would_notice(host, bare, granted):
    """Outside of the slice; and in it with one program of the full layer gone."""
    allowed, outside = hammered(host, None, granted)
    assert set(allowed) == {"ok"} and not any("EPERM" in outcomes for outcomes in outside.values()), outside
    assert set(outside["connect to this host"]) == set(outside["sendto6"]) == set(outside["bind4"]) == {"ok"}, outside

    hook, program = "cgroup_inet4_connect", f"{PINS}/connect4"
    host.run(f"bpftool cgroup detach {SLICE} {hook} pinned {program}")
    try:
        _, denied = hammered(host, bare, granted)
    finally:
        host.run(f"bpftool cgroup attach {SLICE} {hook} pinned {program} multi")
    assert "EPERM" not in denied["connect4"] and set(denied["connect to this host"]) == {"ok"}, denied
    assert set(denied["connect6"]) == set(denied["bind4"]) == {"EPERM"}, denied


def test_the_floor_alone_denies_everything(host, bare, granted):
    """As in a slice that nobody has looked after yet: map `place` names no cgroup, and what is granted is denied with the rest."""
    host.systemctl("stop", "anchor-warden.service")
    try:
        map_update(host, "/sys/fs/bpf/anchorhold/maps/place", bytes(4), bytes(16))
        assert len(floor_of(host)) == 9
        hammers = Hammers(host, bare, granted, n=1)
        time.sleep(0.5)
        denied = {name: dict(outcomes) for name, outcomes in hammers.results().items()}
    finally:
        host.systemctl("start", "anchor-warden.service")       # which looks after it
    assert denied == {"PermissionError": {"[Errno 1] Operation not permitted": 1}}    # no inet socket at all
    allowed, denied = hammered(host, bare, granted)
    assert_all_denied(denied)
    assert set(allowed) == {"ok"}, allowed
    assert host.exec_run("true").returncode == 0               # whose check finds that all layers agree


def test_no_run_in_a_slice_without_its_floor(host, live):  # noqa: F811
    """systemd does not attach it when it makes the slice: the first unit does not start, and it says which program is missing."""
    dropin = "/run/systemd/system/anchorhold-runs.slice.d/no-floor.conf"
    host.anchorctl("stop", "--all")
    live.ended()
    host.write(dropin, "[Slice]\nBPFProgram=\n")
    host.systemctl("daemon-reload")
    host.systemctl("stop", "anchorhold-runs.slice")
    try:
        begin = host.run("date +%s.%N").stdout.strip()
        item = host.anchorctl("submit", "--workflow", "exec", "--", "/bin/true").stdout.strip()
        wait_for(lambda: "floor_connect4" in host.journal(f"--since=@{begin}", "-t", "anchor-fence"), 30, lambda: host.journal("-n", "30"))
        shown = host.show(item)
        assert shown["state"] in ("queued", "leased") and "running" not in [t["to"] for t in shown["history"]], shown
    finally:
        host.run(f"rm {dropin}; systemctl daemon-reload")
        host.systemctl("stop", "anchorhold-runs.slice")
    wait_for(lambda: host.show(item)["state"] == "closed", 90, lambda: json.dumps(host.show(item), indent=1))
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")
