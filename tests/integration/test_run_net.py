# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fence and a run's namespace on the booted image, under real systemd units.

What packets meet in the kernel is tested by tests/unit/test-fence-*.c and test-run-net.c; here is what
only an image has: slices, units, audit, and nothing left behind.
"""

import json
import subprocess
import sys
import time

import pytest

import frames
from waiting import wait_for

RUN = "r0000nette5t0"
PINS = "/sys/fs/bpf/anchorhold/prog"
PROGRAMS = ["connect4", "connect6", "sendmsg4", "sendmsg6", "bind4", "bind6", "sock_create", "setsockopt", "egress", "connect_unix", "sendmsg_unix",
            "uplink"]
FLOOR = [f"floor_{name}" for name in PROGRAMS if name not in ("connect_unix", "sendmsg_unix", "uplink")]


def fenced(host, command, run=RUN, check=True, **properties):
    """Runs a shell command as a unit of that run."""
    options = [f"--property={k}={v}" for k, v in properties.items()]
    return host.run(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--slice=anchorhold-runs-{run}.slice", *options,
                     "/bin/bash", "-c", command], check=check)


@pytest.fixture(scope="module", autouse=True)
def without_anchord(host):
    """anchord stops units of runs that its ledger does not know, and these are such."""
    with host.stopped("anchord"):
        yield
    wait_for(host.is_enforced, 60, host.status)


@pytest.fixture
def no_slice(host):
    yield
    host.systemctl("stop", f"anchorhold-runs-{RUN}.slice", check=False)


def test_programs_are_pinned_for_root_alone(host):
    assert host.property("anchor-bpf.service", "Result") == "success"
    assert sorted(host.run(["ls", PINS]).stdout.split()) == sorted(PROGRAMS + FLOOR)
    assert host.run(["ls", PINS], user="anchor-egress", check=False).returncode != 0
    assert host.run(["ls", "/run/anchorhold/maps"], user="nobody", check=False).returncode != 0
    # control: egressd's user sees its maps, and may write them
    listed = host.run(["ls", "-l", "/run/anchorhold/maps"], user="anchor-egress").stdout.splitlines()
    for name in ("grants", "live", "heartbeat"):
        assert any(line.startswith("-rw-rw---- 1 root anchor-egress") and line.endswith(f" {name}") for line in listed), listed
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1", "169.254.169.254", "::1"])
def test_deny_connect_below_the_slice(host, no_slice, address):
    probe = f"(exec 3<>/dev/tcp/{address}/9) 2>&1; (echo >/dev/udp/{address}/9) 2>&1; true"
    said = fenced(host, probe, ExecStartPre="+/usr/libexec/anchorhold/anchor-fence").stdout
    assert said.count("connect: Operation not permitted") == 2, said
    # without that first step, the floor does not let it have a socket at all, if this slice is new
    said = fenced(host, probe).stdout
    assert said.count("connect: Operation not permitted") + said.count("socket: Operation not permitted") == 2, said
    # control: outside, the kernel says something else, or nothing
    assert "Operation not permitted" not in host.run(probe).stdout


def test_fence_passes_and_fails(host, no_slice):
    fenced(host, "/usr/libexec/anchorhold/anchor-fence")
    outside = host.run("/usr/libexec/anchorhold/anchor-fence", check=False)
    assert outside.returncode == 1 and "connect4" in outside.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_deny_start_without_a_pin(host, no_slice, program):
    host.run(["rm", f"{PINS}/{program}"])
    try:
        failed = host.systemctl("start", f"anchor-net@{RUN}.service", check=False)
        assert failed.returncode != 0
        assert f"no pinned program {PINS}/{program}" in host.journal("-u", f"anchor-net@{RUN}.service")
        assert RUN not in host.run(["ls", "/run/netns"], check=False).stdout
    finally:
        host.systemctl("restart", "anchor-bpf.service")
        host.systemctl("reset-failed", check=False)
    fenced(host, "/usr/libexec/anchorhold/anchor-fence")


@pytest.fixture
def network(host):
    """A run's namespace, held by a unit that needs it."""
    start_network(host)
    yield RUN
    host.systemctl("stop", "net-test-user.service", check=False)
    host.systemctl("stop", f"anchor-net@{RUN}.service", check=False)
    host.systemctl("stop", f"anchorhold-runs-{RUN}.slice", check=False)
    gone(host)


def start_network(host):
    host.run(["systemd-run", "--collect", "--unit=net-test-user", f"--slice=anchorhold-runs-{RUN}.slice",
              f"--property=BindsTo=anchor-net@{RUN}.service", f"--property=After=anchor-net@{RUN}.service",
              f"--property=NetworkNamespacePath=/run/netns/anchor-{RUN}", "sleep", "300"])
    assert host.is_active(f"anchor-net@{RUN}.service") == "active"


def gone(host, seconds=10):
    """Nothing of the run's network is left."""
    until = time.monotonic() + seconds
    while True:
        left = host.run(f"ls /run/netns /run/anchorhold/run 2>/dev/null | grep {RUN}; "
                        f"ls -d /sys/fs/cgroup/anchorhold.slice/anchorhold-runs.slice/*{RUN}*/*.service 2>/dev/null; "
                        f"grep {RUN} /proc/self/mountinfo", check=False).stdout
        if not left:
            return
        if time.monotonic() > until:
            pytest.fail(f"left: {left}")
        time.sleep(0.2)


def test_namespace(host, network):
    inside = ["nsenter", f"--net=/run/netns/anchor-{network}", "--"]
    links = json.loads(host.run([*inside, "ip", "-json", "link"]).stdout)
    assert sorted(link["ifname"] for link in links) == ["lo", "tap0"]
    assert "10.255.255.1/30" in host.run([*inside, "ip", "address", "show", "tap0"]).stdout
    assert "local default dev lo" in host.run([*inside, "ip", "-4", "route", "show", "table", "main", "type", "local"]).stdout
    assert host.run([*inside, "ip", "-6", "address"]).stdout == ""
    rules = host.run([*inside, "nft", "list", "ruleset"]).stdout
    for words in ("hook prerouting priority mangle; policy drop;", "ip saddr != 10.255.255.2", "ip daddr 198.18.0.0/15", "tproxy ip to :15001",
                  "tproxy ip to :53", "ip daddr 10.255.255.1 tcp dport 3128",
                  "reject with tcp reset", "reject with icmpx admin-prohibited", "set denied"):
        assert words in rules, rules
    of_frames = rules[rules.index("table netdev anchorhold"):]
    # nft shows what is compared there as bytes at an offset
    assert 'hook ingress device "tap0"' in of_frames and "0x86dd" in of_frames and "!= 0xaffff02" in of_frames, of_frames
    verdicts = [of_frames.count(words) for words in ("reject with tcp reset", "reject with icmpx admin-prohibited", " drop\n")]
    assert verdicts == ([2, 2, 1] if frames.are_answered(host) else [0, 0, 5]), of_frames
    # the host has none of it
    assert "anchorhold" not in host.run(["nft", "list", "ruleset"]).stdout
    assert "tap0" not in host.run(["ip", "link"]).stdout


def test_goes_with_its_last_user(host, network):
    host.systemctl("stop", "net-test-user.service")
    gone(host)


def test_goes_with_the_slice(host, network):
    host.systemctl("stop", "anchorhold-runs.slice")
    gone(host)
    start_network(host)  # and comes again


GUEST = r'''
import ctypes, fcntl, os, select, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
netns = os.open(sys.argv[1], os.O_RDONLY)
assert libc.setns(netns, 0x40000000) == 0, ctypes.get_errno()
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack("16sH22x", b"tap0", 0x0002 | 0x1000))  # TUNSETIFF: IFF_TAP | IFF_NO_PI
mac = fcntl.ioctl(tap, 0x8927, struct.pack("40x"))[18:24]  # SIOCGIFHWADDR
own = b"\2\0\0\0\0\2"
time.sleep(1.2)  # until the kernel has noticed the carrier

def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def ip(protocol, address, payload):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0, socket.inet_aton("10.255.255.2"), socket.inet_aton(address))
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload

def icmp():
    body = struct.pack("!BBHHH", 8, 0, 0, 1, 1)
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]

def answer():
    until = time.monotonic() + 1
    while time.monotonic() < until:
        if not select.select([tap], [], [], 0.2)[0]:
            continue
        frame = os.read(tap, 2048)
        if frame[12:14] == b"\x08\x06" and frame[38:42] == socket.inet_aton("10.255.255.2"):
            os.write(tap, frame[6:12] + own + b"\x08\x06" + frame[14:20] + b"\0\2" + own + frame[38:42] + frame[22:32])
        if frame[12:14] == b"\x08\x00":
            return frame[23], frame[34], frame[35]

for protocol, address, payload in ((17, "8.8.8.8", struct.pack("!HHHH", 40000, 123, 8, 0)), (17, "169.254.169.254", struct.pack("!HHHH", 40000, 80, 8, 0)),
                                   (1, "1.1.1.1", icmp())):
    start = time.monotonic()
    os.write(tap, mac + own + b"\x08\x00" + ip(protocol, address, payload))
    got = answer()
    assert got == (1, 3, 13), (address, got)
    assert time.monotonic() - start < 1
'''


def records(host, event):
    lines = host.run(["journalctl", "--namespace=anchorhold", "-o", "json", "--no-pager", f"ANCHORHOLD_RUN={RUN}",
                      f"ANCHORHOLD_EVENT={event}"], check=False).stdout
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines.splitlines() if line.startswith("{")]


def await_records(host, event, wanted, seconds=10):
    until = time.monotonic() + seconds
    while not wanted(found := records(host, event)) and time.monotonic() < until:
        time.sleep(0.2)
    return found


FLOOD = GUEST[:GUEST.index("for protocol, address")] + """
for n in range(3000):
    os.write(tap, mac + own + b"\\x08\\x00" + ip(17, "192.0.2.%d" % (n % 60 + 1), struct.pack("!HHHH", 40000, 1000 + n % 60, 8, 0)))
time.sleep(0.5)
"""


FORGED = GUEST[:GUEST.index("for protocol, address")] + """
def forged(source, port):
    payload = struct.pack("!HHHH", 40000, port, 8, 0)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton("8.8.8.8"))
    os.write(tap, mac + own + b"\\x08\\x00" + head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload)

for source, times in (("203.0.113.77", 3), ("198.18.0.9", 2), ("10.255.255.1", 1)):
    for _ in range(times):
        forged(source, 53)
if len(sys.argv) > 2:
    for n in range(3000):
        forged("203.0.113.%d" % (n % 60 + 1), 1000 + n % 60)
os.write(tap, mac + own + b"\\x08\\x00" + ip(17, "192.0.2.1", struct.pack("!HHHH", 40000, 7, 8, 0)))
"""


@pytest.fixture
def netlog(host, network):
    """In a run, anchor-run@ wants it."""
    folder = f"/run/systemd/system/anchor-netlog@{RUN}.service.d"
    host.write(f"{folder}/test.conf", "[Unit]\nStopWhenUnneeded=no\n")
    host.systemctl("daemon-reload")
    host.systemctl("start", f"anchor-netlog@{RUN}.service")
    yield
    host.run(f"rm -r {folder}; systemctl daemon-reload")


def test_denied_packets_are_evidence(host, netlog):
    """UDP and ICMP that the ruleset rejects are in the audit log while the run lasts, its counters when its network goes."""
    before = len(records(host, "egress.totals"))
    netns = f"/proc/{host.pid}/root/run/netns/anchor-{RUN}"
    subprocess.run([sys.executable, "-c", GUEST, netns], check=True, timeout=30)

    wanted = {("8.8.8.8", 123, "udp", "guest-network"), ("169.254.169.254", 80, "udp", "guest-network"), ("1.1.1.1", 0, "icmp", "guest-network")}

    def seen(found):
        return {(d["name"], d["port"], d["reason"], d["rule"]) for d in found}

    # the network is still there, and so is who reads it, without any capability
    assert seen(await_records(host, "conn.deny", lambda found: seen(found) >= wanted)) >= wanted
    assert host.is_active(f"anchor-net@{RUN}.service") == "active"
    pid = host.property(f"anchor-netlog@{RUN}.service", "MainPID")
    assert host.run(f"grep -c '^Cap[EPIA].*:[[:space:]]*0000000000000000' /proc/{pid}/status").stdout.strip() == "4"

    host.systemctl("stop", f"anchor-netlog@{RUN}.service", "net-test-user.service")
    gone(host)
    totals = await_records(host, "egress.totals", lambda found: len(found) > before)[-1]
    assert totals["rejected"] == totals["logged"] >= 3 and totals["unlogged"] == 0
    denied = {(d["name"], d["port"]): d["packets"] for d in totals["denied"]}
    assert denied == {("8.8.8.8", 123): 1, ("169.254.169.254", 80): 1, ("1.1.1.1", 0): 1}
    # the fence's own tests are told apart from attempts
    assert set(totals["fence"]) <= {"tested"}, totals


def test_flood_of_denied_packets_is_counted_and_not_written(host, netlog):
    """Few records, and none of the packets unaccounted for."""
    denials, totals = len(records(host, "conn.deny")), len(records(host, "egress.totals"))
    subprocess.run([sys.executable, "-c", FLOOD, f"/proc/{host.pid}/root/run/netns/anchor-{RUN}"], check=True, timeout=30)
    host.systemctl("stop", f"anchor-netlog@{RUN}.service", "net-test-user.service")
    gone(host)
    total = await_records(host, "egress.totals", lambda found: len(found) > totals)[-1]
    new = records(host, "conn.deny")[denials:]
    assert total["rejected"] == 3000 and sum(d["packets"] for d in total["denied"]) == 3000
    assert 200 <= total["logged"] < 3000
    # what was recorded and what was lost is what was logged; with what the limit kept back, it is all
    assert sum(d["count"] for d in new) == total["logged"], (new, total)
    assert total["logged"] + total["unlogged"] == 3000
    assert len(new) <= 100 and any(d["reason"] == "others" for d in new)


@pytest.mark.parametrize("flood", [False, True], ids=["few", "flood"])
def test_forged_sources_are_evidence(host, netlog, flood):
    """Refused, and in the log while the run lasts, with its own rule and as many as nftables counted."""
    denials, totals = len(records(host, "conn.deny")), len(records(host, "egress.totals"))
    subprocess.run([sys.executable, "-c", FORGED, f"/proc/{host.pid}/root/run/netns/anchor-{RUN}", *(["flood"] if flood else [])], check=True, timeout=30)

    def seen(found):
        return {(d["name"], d["port"], d["rule"], d["reason"], d.get("source")) for d in found[denials:]}

    wanted = {("8.8.8.8", 53, "guest-source", "forged-source", source) for source in ("203.0.113.77", "198.18.0.9", "10.255.255.1")}
    wanted.add(("192.0.2.1", 7, "guest-network", "udp", None))           # the control: under its own address it is what it was
    assert seen(await_records(host, "conn.deny", lambda found: seen(found) >= wanted)) >= wanted
    assert host.is_active(f"anchor-net@{RUN}.service") == "active"

    host.systemctl("stop", f"anchor-netlog@{RUN}.service", "net-test-user.service")
    gone(host)
    total = await_records(host, "egress.totals", lambda found: len(found) > totals)[-1]
    told = {rule: [d for d in records(host, "conn.deny")[denials:] if d["rule"] == rule] for rule in ("guest-source", "guest-network")}
    assert total["dropped"]["other_source"] == total["forged"]["logged"] + total["forged"]["unlogged"] == (3006 if flood else 6)
    assert sum(d["count"] for d in told["guest-source"]) == total["forged"]["logged"], (told, total)
    assert sum(d["count"] for d in told["guest-network"]) == total["logged"] == total["rejected"] == 1
    assert {(d["name"], d["port"]) for d in total["denied"]} == {("192.0.2.1", 7)}
    if flood:
        assert total["forged"]["unlogged"] > 0 and len(told["guest-source"]) <= 100 and any(d["reason"] == "others" for d in told["guest-source"])
    log = host.anchorctl("policy", "log", RUN, "--blocked", "--no-pager", user=None).stdout
    assert "8.8.8.8:53: forged-source 203.0.113.77" in log and "guest-source" in log, log


FRAMES = GUEST[:GUEST.index("for protocol, address")] + """
ipv6 = struct.pack("!IHBB", 0x60000000, 8, 17, 64) + socket.inet_pton(socket.AF_INET6, "fe80::2") + socket.inet_pton(socket.AF_INET6, sys.argv[2])
for _ in range(3):
    os.write(tap, mac + own + b"\\x86\\xdd" + ipv6 + struct.pack("!HHHH", 40000, 53, 8, 0))
os.write(tap, mac + own + b"\\x88\\xcc" + bytes(46))
os.write(tap, mac + own + b"\\x08\\x00" + ip(17, "192.0.2.1", struct.pack("!HHHH", 40000, 7, 8, 0)))
"""


def test_frames_that_are_not_ipv4_are_evidence(host, netlog):
    """IPv6 and what is nobody's: refused or dropped, and in the log, and as many as nftables counted."""
    denials = len(records(host, "conn.deny"))
    subprocess.run([sys.executable, "-c", FRAMES, f"/proc/{host.pid}/root/run/netns/anchor-{RUN}", "2001:db8::53"], check=True, timeout=30)

    def seen(found):
        return {(d["name"], d["port"], d["rule"], d["reason"], d.get("detail")) for d in found[denials:]}

    wanted = {("2001:db8::53", 53, "guest-frame", "ipv6", None), ("-", 0, "guest-frame", "not-ip", "EtherType 0x88cc"),
              ("192.0.2.1", 7, "guest-network", "udp", None)}            # the control: as ever
    assert seen(await_records(host, "conn.deny", lambda found: seen(found) >= wanted)) >= wanted
    total = end_of_network(host)
    told = [d for d in records(host, "conn.deny")[denials:] if d["rule"] == "guest-frame"]
    assert total["dropped"]["not_ipv4"] == total["frames"]["logged"] == sum(d["count"] for d in told) == 4 and total["frames"]["unlogged"] == 0, (total, told)
    log = host.anchorctl("policy", "log", RUN, "--no-pager", user=None).stdout
    assert "2001:db8::53:53: ipv6" in log and "4 dropped that were not IPv4" in log, log


def send_denied(host):
    """Three packets, each to another destination."""
    subprocess.run([sys.executable, "-c", GUEST, f"/proc/{host.pid}/root/run/netns/anchor-{RUN}"], check=True, timeout=30)


def end_of_network(host):
    """Its last record."""
    totals = len(records(host, "egress.totals"))
    host.systemctl("stop", f"anchor-netlog@{RUN}.service", "net-test-user.service")
    gone(host)
    return await_records(host, "egress.totals", lambda found: len(found) > totals)[-1]


def test_counts_agree_after_an_outage_of_auditd(host, netlog):
    """What auditd does not take is sent again, once, and what comes meanwhile is counted."""
    before = len(records(host, "conn.deny"))
    send_denied(host)
    await_records(host, "conn.deny", lambda found: len(found) >= before + 3)
    with host.stopped("anchor-auditd"):
        host.systemctl("restart", f"anchor-netlog@{RUN}.service")        # a new window, so that the first three are due at once, and in vain
        for _ in range(4):
            send_denied(host)
    total = end_of_network(host)
    told = [d for d in records(host, "conn.deny")[before:] if d["rule"] == "guest-network"]
    assert total["rejected"] == total["logged"] == 15, total
    assert sum(d["count"] for d in told) == 15, told
    assert not [d for d in told if d["reason"] == "log-lost"], told


def test_killed_netlog_loses_no_count(host, netlog):
    """Neither what it had counted and not told, nor what came while there was none."""
    before, unit = len(records(host, "conn.deny")), f"anchor-netlog@{RUN}.service"
    send_denied(host)
    await_records(host, "conn.deny", lambda found: len(found) >= before + 3)
    for _ in range(2):
        send_denied(host)                                                # counted, and due in ten seconds
    pid = host.property(unit, "MainPID")
    host.systemctl("kill", "--signal=KILL", unit)
    send_denied(host)
    until = time.monotonic() + 10
    while host.property(unit, "MainPID") in ("0", pid) or host.is_active(unit) != "active":
        assert time.monotonic() < until
        time.sleep(0.05)
    send_denied(host)
    total = end_of_network(host)
    told = [d for d in records(host, "conn.deny")[before:] if d["rule"] == "guest-network"]
    assert total["logged"] == 15 == sum(d["count"] for d in told), (total, told)
    lost = [d for d in told if d["reason"] == "log-lost"]
    assert len(lost) == 1 and 6 <= lost[0]["count"] <= 9 and "anchor-netlog" in lost[0]["detail"], told


def test_totals_wait_for_auditd(host, netlog):
    """The last record of a network is tried again, after the network is gone."""
    send_denied(host)
    totals = len(records(host, "egress.totals"))
    host.systemctl("stop", f"anchor-netlog@{RUN}.service")
    with host.stopped("anchor-auditd"):
        host.systemctl("stop", "--no-block", "net-test-user.service")
        until = time.monotonic() + 10
        while host.run(["test", "-e", f"/run/netns/anchor-{RUN}"], check=False).returncode == 0:
            assert time.monotonic() < until
            time.sleep(0.05)
    gone(host)
    assert len(await_records(host, "egress.totals", lambda found: len(found) > totals)) == totals + 1


def test_each_network_of_a_run_has_its_record(host, network):
    """Also when what it counted is the very same as with the one before."""
    before = len(records(host, "egress.totals"))
    host.systemctl("stop", "net-test-user.service")
    gone(host)
    start_network(host)
    host.systemctl("stop", "net-test-user.service")
    gone(host)
    first, second = await_records(host, "egress.totals", lambda found: len(found) >= before + 2)[before:]
    assert first == second                                               # so that nothing else tells the two apart


@pytest.fixture
def later(host):
    """A function that gives the unit of the run's network other lines from now on; and its slice stays meanwhile."""
    folder = f"/run/systemd/system/anchor-net@{RUN}.service.d"

    def write(lines):
        host.write(f"{folder}/test.conf", f"[Service]\n{lines}\n")
        host.systemctl("daemon-reload")

    host.run(["systemd-run", "--collect", "--unit=net-test-slice", f"--slice=anchorhold-runs-{RUN}.slice", "sleep", "300"])
    yield write
    host.run(f"rm -rf {folder}; systemctl daemon-reload; systemctl stop net-test-slice.service")


def test_a_network_that_could_not_be_removed_is_one_record(host, network, later):
    """Its totals are told at once, since nobody may come again; and who does tells the same, which is not recorded twice. The next network of the run is the
    control."""
    unit, before = f"anchor-net@{RUN}.service", len(records(host, "egress.totals"))
    send_denied(host)
    later("SystemCallFilter=~umount2")
    host.systemctl("stop", "net-test-user.service")
    await_records(host, "egress.totals", lambda found: len(found) > before)
    wait_for(lambda: host.is_active(unit) in ("inactive", "failed"))
    assert "cannot remove its network" in host.journal("-u", unit)
    assert RUN in host.run("ls /run/netns").stdout

    later("ExecStartPre=\nExecStart=\nExecStart=/bin/true")               # finds what is there, and goes at once, as nobody needs it
    host.systemctl("start", unit)
    wait_for(lambda: RUN not in host.run("ls /run/netns").stdout)
    wait_for(lambda: host.is_active(unit) == "inactive")

    later("")
    start_network(host)
    host.systemctl("stop", "net-test-user.service")
    wait_for(lambda: RUN not in host.run("ls /run/netns").stdout)
    first, *rest = await_records(host, "egress.totals", lambda found: len(found) >= before + 2)[before:]
    assert first["rejected"] == 3 and [total["rejected"] for total in rest] == [0], (first, rest)


def test_teardown_waits_for_nobody(host, network):
    """With auditd gone, a run's network still goes, and at once if it has nothing to tell."""
    with host.stopped("anchor-auditd"):
        start = time.monotonic()
        host.systemctl("stop", "net-test-user.service")
        gone(host, 12)
        assert time.monotonic() - start < 12
