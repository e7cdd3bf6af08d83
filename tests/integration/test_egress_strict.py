# SPDX-License-Identifier: LGPL-2.1-or-later
"""Strict mode: of the host's units only those that host.json lists may send. Two units stand for all: one is listed and one is not.

Each attempt is made from a unit's cgroup, with a sniffer at the host's device as the witness, and beside each denial stands the same from the listed unit
and with strict mode off.
"""

import errno
import json
import os
import pathlib
import socket
import struct
import sys
import time

import pytest
import world as worlds

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "adversary"))
import sockets  # noqa: E402

from inside import cgroup_of, enter, in_child  # noqa: E402
from liverun import LiveRun  # noqa: E402

LISTED, OTHER, TEMPLATE = "strict-listed.service", "strict-other.service", "strict-many@1.service"
CONFIG = "/etc/anchorhold/host.json"
QDISC_BYPASS = 20


def cgroup(host, unit):
    """Of a unit in system.slice, on the test machine."""
    return cgroup_of(host.pid).parent / "system.slice" / unit


def put_config(host, text):
    host.run(f"cat >{CONFIG}.new && mv {CONFIG}.new {CONFIG}", input=text)


def strict_state(host):
    return json.loads(host.run("cat /run/anchorhold/fence.json").stdout)["strict"]


def await_strict(host, wanted, seconds=4):
    """Until fence.json says so: the warden looks every two seconds."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        state = strict_state(host)
        if wanted(state):
            return state
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {state}")


class Config:
    def __init__(self, host):
        self.host, self.before = host, host.run(f"cat {CONFIG}").stdout

    def set(self, units):
        """A list of units; None: off."""
        config = json.loads(self.before)
        if units is not None:
            config["strict"] = {"units": units}
        put_config(self.host, json.dumps(config))
        await_strict(self.host, lambda s: s["on"] == (units is not None) and not s["problem"] and set(units or []) <= set(s["units"]))


@pytest.fixture(scope="module")
def config(host):
    """host.json, and the units; both are as before when this is over."""
    for unit in (LISTED, OTHER, TEMPLATE):
        host.run(["systemd-run", "--quiet", f"--unit={unit}", "--slice=system.slice", "-p", "Delegate=yes", "sleep", "infinity"])
    it = Config(host)
    yield it
    put_config(host, it.before)
    await_strict(host, lambda s: not s["on"] and not s["problem"])
    host.systemctl("stop", LISTED, OTHER, TEMPLATE)


def name_of(function, *args):
    try:
        function(*args)
        return "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)


def packet_socket(bypass):
    """A frame with an IP packet to the target, written to the device itself."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as s:
        if bypass:
            s.setsockopt(263, QDISC_BYPASS, 1)
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, socket.inet_aton(worlds.GATEWAY), socket.inet_aton(worlds.OTHER))
        s.sendto(head + struct.pack("!HHHH", 9, 9999, 8, 0), ("uplink0", 0x0800, 0, 0, b"\xff" * 6))


ATTEMPTS = {
    "TCP": lambda: sockets.tcp(worlds.OTHER),
    "TCP, IPv4-mapped IPv6": lambda: sockets.tcp(f"::ffff:{worlds.OTHER}", family=socket.AF_INET6),
    "UDP sendto": lambda: sockets.udp_send(worlds.OTHER),
    "UDP-Lite sendto": lambda: sockets.udplite_send(worlds.OTHER),
    "raw ICMP": lambda: sockets.raw(worlds.OTHER, socket.IPPROTO_ICMP),
    "raw, own header": lambda: sockets.raw_with_header(worlds.OTHER),
    "io_uring connect": lambda: sockets.uring(worlds.OTHER),
    "AF_PACKET": lambda: packet_socket(False),
    "AF_PACKET, bypass": lambda: packet_socket(True),
}
# Written past every hook of the device; RestrictAddressFamilies= of a run's units is what closes it.
NEVER_SEEN = {"AF_PACKET, bypass"}


def packets(host, world, place):
    """How many packets to the target each attempt, made in the cgroup `place`, brought to the other end of the wire."""
    def work():
        enter(world.process.pid, ["net"])
        witness = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        enter(host.pid, ["net"])
        witness.setblocking(False)
        (place / "cgroup.procs").write_text(str(os.getpid()))
        seen = []
        for attempt in ATTEMPTS.values():
            name_of(attempt)
            time.sleep(0.05)
            n = 0
            try:
                while True:
                    packet, address = witness.recvfrom(2048)
                    n += address[0] == "world0" and address[2] != socket.PACKET_OUTGOING and packet[16:20] == socket.inet_aton(worlds.OTHER)
            except BlockingIOError:
                pass
            seen.append(n)
        return seen
    return dict(zip(ATTEMPTS, in_child(work)))


def connect(host, place, seconds=0.8):
    """One TCP connection to the target from the cgroup, before its first packet would be sent again."""
    def work():
        enter(host.pid, ["net"])
        (place / "cgroup.procs").write_text(str(os.getpid()))
        with socket.socket() as s:
            s.settimeout(seconds)
            return [name_of(s.connect, (worlds.OTHER, 80))]
    return in_child(work)[0]


def test_only_listed_units_send_and_off_is_off(host, world, config):
    columns = {}
    assert not strict_state(host)["on"]                                           # the default
    columns["off"] = packets(host, world, cgroup(host, OTHER))
    config.set([LISTED])
    columns["unlisted"] = packets(host, world, cgroup(host, OTHER))
    columns["listed"] = packets(host, world, cgroup(host, LISTED))
    config.set(None)
    columns["off again"] = packets(host, world, cgroup(host, OTHER))

    print()
    print(f"{'packets on the wire':24}" + "".join(f"{name:>12}" for name in columns))
    for name in ATTEMPTS:
        print(f"{name:24}" + "".join(f"{column[name]:>12}" for column in columns.values()))

    for name in ATTEMPTS:
        for column in ("off", "listed", "off again"):
            assert columns[column][name] > 0, (column, name)
        assert (columns["unlisted"][name] > 0) == (name in NEVER_SEEN), name


def test_the_list_is_live(host, config):
    for units, wanted in (([LISTED, "strict-many@*.service"], {LISTED, TEMPLATE}), ([OTHER], {OTHER}), ([], set()),
                          (["system.slice"], {LISTED, OTHER, TEMPLATE}), (None, {LISTED, OTHER, TEMPLATE})):
        config.set(units)
        assert {unit for unit in (LISTED, OTHER, TEMPLATE) if connect(host, cgroup(host, unit)) == "ok"} == wanted, units


def test_who_was_dropped_is_named(host, config):
    config.set([LISTED])
    assert connect(host, cgroup(host, OTHER)) == "TimeoutError"
    state = await_strict(host, lambda s: OTHER in s["dropped"])
    assert LISTED not in state["dropped"] and state["present"] >= 2 and "anchor-egressd.service" in state["units"]
    said = {f["check"]: f for f in json.loads(host.anchorctl("doctor", "--json=short", check=False).stdout)}["strict"]
    assert said["health"] == "warning" and "dropped" in said["text"], said
    assert f"packets of {OTHER} are dropped" in host.journal("-u", "anchor-warden.service")
    # on again, it has dropped nobody yet
    config.set(None)
    config.set([LISTED])
    assert strict_state(host)["dropped"] == []
    said = {f["check"]: f for f in json.loads(host.anchorctl("doctor", "--json=short", check=False).stdout)}["strict"]
    assert said["health"] == "good" and said["text"].startswith("on"), said


def test_a_unit_that_is_started_anew_is_known_at_once(host, config):
    config.set([LISTED])
    for _ in range(5):
        host.systemctl("restart", LISTED)
        assert connect(host, cgroup(host, LISTED)) == "ok"
    assert connect(host, cgroup(host, OTHER)) == "TimeoutError"


def test_a_made_up_name_below_a_unit_is_nobody(host, config):
    config.set([LISTED])
    fake = cgroup(host, OTHER) / LISTED
    fake.mkdir()
    try:
        time.sleep(2.5)
        assert connect(host, fake) == "TimeoutError"
    finally:
        fake.rmdir()
    below = cgroup(host, LISTED) / OTHER                                           # the control: what is below a listed unit is the unit's
    below.mkdir()
    try:
        assert connect(host, below) == "ok"
    finally:
        below.rmdir()


def from_the_world(world, function):
    def work():
        enter(world.process.pid, ["net"])
        return [name_of(function)]
    return in_child(work)[0]


def ping():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
        s.settimeout(2)
        s.sendto(b"\x08\0\xe5\xca\x12\x34\0\x01", (worlds.GATEWAY, 0))
        while s.recv(2048)[20] != 0:                                              # an echo reply
            pass


def knock(port):
    with socket.socket() as s:
        s.settimeout(0.8)
        s.connect((worlds.GATEWAY, port))


def test_the_kernel_answers_and_listeners_are_their_units(host, world, config):
    config.set([LISTED])
    assert from_the_world(world, ping) == "ok"
    assert from_the_world(world, lambda: knock(7)) == "ECONNREFUSED"
    for port, unit, wanted in ((4481, LISTED, "ok"), (4482, OTHER, "TimeoutError")):
        r, w = os.pipe()
        child = os.fork()
        if child == 0:
            enter(host.pid, ["net"])
            (cgroup(host, unit) / "cgroup.procs").write_text(str(os.getpid()))
            with socket.create_server((worlds.GATEWAY, port)):
                os.write(w, b"x")
                time.sleep(3)
            os._exit(0)
        assert os.read(r, 1) == b"x"
        assert from_the_world(world, lambda: knock(port)) == wanted, unit
        os.waitpid(child, 0)
        os.close(r)
        os.close(w)


# ---- what it is for ----

def hand_in(host, maker, user):
    """A socket made in one cgroup and used in another."""
    def work():
        enter(host.pid, ["net"])
        (maker / "cgroup.procs").write_text(str(os.getpid()))
        s = socket.socket()
        (user / "cgroup.procs").write_text(str(os.getpid()))
        s.settimeout(0.8)
        return [name_of(s.connect, (worlds.OTHER, 80))]
    return in_child(work)[0]


def test_a_socket_handed_into_a_run(host, config):
    """In strict mode a run works as ever, and a socket of an unlisted unit is of no use to it. One of a listed unit is, and so is any when it is off."""
    config.set([LISTED])
    live = LiveRun(host, "exec-net", "curl -sS -o /dev/null -w '%{http_code}\\n' https://www.example.org/; echo up; sleep 600")
    try:
        live.await_line("200")
        live.await_line("up")
        proxy = cgroup_of(live.pid("anchor-proxy"))
        assert hand_in(host, cgroup(host, OTHER), proxy) == "TimeoutError"
        assert hand_in(host, cgroup(host, LISTED), proxy) == "ok"                  # docs/operate.md says so
        assert hand_in(host, proxy, cgroup(host, LISTED)) != "ok"                  # made below the slice: a grant or nothing
        config.set(None)
        assert hand_in(host, cgroup(host, OTHER), proxy) == "ok"
    finally:
        host.anchorctl("stop", "--all", check=False)
        live.rest()


# ---- a file that cannot be used ----

WRONG = {"truncated": '{"strict": {"uni', "empty": "", "of another type": '{"strict": false}', "wrong elsewhere": '{"accel": "x"}', "gone": None}


def put_wrong(host, text):
    if text is None:
        host.run(f"rm -f {CONFIG}; mkdir {CONFIG}")
    else:
        host.run(f"rm -rf {CONFIG}")
        put_config(host, text)


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_used_is_never_off(host, config, name):
    config.set([LISTED])
    try:
        put_wrong(host, WRONG[name])
        state = await_strict(host, lambda s: s["problem"])
        assert state["on"] and "host.json" in state["problem"] or "cannot read" in state["problem"], state
        assert connect(host, cgroup(host, OTHER)) == "TimeoutError"
        host.systemctl("restart", LISTED)                                          # its name is still known
        assert connect(host, cgroup(host, LISTED)) == "ok"
        if name == "truncated":
            said = {f["check"]: f for f in json.loads(host.anchorctl("doctor", "--json=short", check=False).stdout)}["strict"]
            assert said["health"] == "warning" and "stays on" in said["text"], said
            host.systemctl("restart", "anchor-warden.service")                     # which knows only what the maps say
            assert strict_state(host)["on"]
            assert connect(host, cgroup(host, OTHER)) == "TimeoutError"
            assert connect(host, cgroup(host, LISTED)) == "ok"
    finally:
        host.run(f"rm -rf {CONFIG}")
        config.set(None)
    assert connect(host, cgroup(host, OTHER)) == "ok"


def test_where_nothing_was_ever_understood_no_run_begins(host, config):
    host.systemctl("stop", "anchor-warden.service")
    host.run("bpftool map update pinned /sys/fs/bpf/anchorhold/maps/strict key 0 0 0 0 value 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0")   # as after a boot
    try:
        put_config(host, WRONG["truncated"])
        assert host.systemctl("start", "anchor-warden.service", check=False).returncode != 0
        fence = json.loads(host.run("cat /run/anchorhold/fence.json").stdout)
        assert not fence["ok"] and "not known whether" in fence["reason"], fence
        assert connect(host, cgroup(host, OTHER)) == "ok"                          # the host stays reachable
    finally:
        put_config(host, config.before)
    end = time.monotonic() + 10
    while host.is_active("anchor-warden.service") != "active" and time.monotonic() < end:
        time.sleep(0.2)
    assert json.loads(host.run("cat /run/anchorhold/fence.json").stdout)["ok"]
