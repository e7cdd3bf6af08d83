# SPDX-License-Identifier: LGPL-2.1-or-later
"""One microVM whose root tries all it can think of (attacker.py); each group of attempts beside one that has to succeed.

What leaves the host is watched from the other side: a packet to anybody but the three that the policy's two names need fails the test,
whatever the guest was told.
"""

import base64
import json
import pathlib
import re
import subprocess
import sys
import time
import zlib

import pytest

import world as worlds

HERE = pathlib.Path(__file__).parent
DAEMONS = ("anchord", "anchor-egressd", "anchor-auditd", "anchor-secretd")
UNREACHABLE = {"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EACCES", "EPERM"}

SNIFF = """
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("world0", 3))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
seen = set()
print("ready", flush=True)
while True:
    frame, address = s.recvfrom(2048)
    if address[2] == socket.PACKET_OUTGOING or frame[12:14] != b"\\x08\\0":
        continue
    at = 14 + (frame[14] & 15) * 4
    port = struct.unpack("!H", frame[at + 2:at + 4])[0] if frame[23] in (6, 17) else 0
    flow = (socket.inet_ntoa(frame[26:30]), frame[23], socket.inet_ntoa(frame[30:34]), port)
    if flow not in seen:
        seen.add(flow)
        print(*flow, flush=True)
"""


def usage(host):
    """Main process, memory (kB) and descriptors of each daemon."""
    found = {}
    for name in DAEMONS:
        pid = host.property(name + ".service", "MainPID")
        lines = host.run(f"grep RssAnon /proc/{pid}/status; ls /proc/{pid}/fd | wc -l").stdout.split()
        found[name] = (pid, int(lines[1]), int(lines[3]))
    return found


# A daemon keeps up to eight connections to auditd, opened one by one as runs' names choose them (audit-client.c);
# auditd holds the socket and a pidfd for each of its three clients'.
LANES = {"anchor-auditd": 2 * 3 * 8}


def growth(before, after):
    """Which daemons were started anew, or hold more than a tenth and a little more than before."""
    return {name: (before[name], now) for name, now in after.items()
            if now[0] != before[name][0] or now[1] > before[name][1] * 1.1 + 4096
            or now[2] > before[name][2] * 1.1 + 4 + LANES.get(name, 8)}


class Attack:
    def __init__(self, host, world):
        host.anchorctl("run", "--workflow", "exec-attack", "--", "/bin/true")      # every daemon has worked once
        self.before = usage(host)
        since = {name: len(world.log(name)) for name in ("dns", "origin", "other", "provider")}
        sniffer = subprocess.Popen(["nsenter", "--net", "--target", str(world.process.pid), "--", sys.executable, "-c", SNIFF],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            assert sniffer.stdout.readline() == "ready\n"
            packed = base64.b64encode(zlib.compress((HERE / "attacker.py").read_bytes(), 9)).decode()
            self.done = host.exec_run(f"""exec python3 -c 'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'""", "exec-attack")
        finally:
            sniffer.terminate()
            self.flows = set(sniffer.communicate()[0].split("\n")) - {""}
        self.item = host.show(host.items()[0]["id"])
        self.logs = {name: world.log(name)[n:] for name, n in since.items()}
        self.results = {}
        for line in self.done.stdout.splitlines():
            if line.startswith("@@ "):
                group, name, result, seconds = json.loads(line[3:])
                self.results.setdefault(group, {})[name] = (result, seconds)

    def group(self, name):
        """(controls, denials) of a group: name to result."""
        results = {n: r for n, (r, _) in self.results[name].items()}
        return ({n: r for n, r in results.items() if n.startswith("control")}, {n: r for n, r in results.items() if not n.startswith("control")})


@pytest.fixture(scope="module")
def attack(host, world):
    return Attack(host, world)


def test_all_was_tried(attack):
    assert attack.results["end"]["control"][0][0] == 0, attack.done.stdout[-3000:] + attack.done.stderr
    assert {g: len(r) for g, r in attack.results.items() if len(r) < 4} == {"end": 1}


def test_names(attack):
    controls, denied = attack.group("dns")
    assert all(r[0] == 0 and r[1][0].startswith("198.18.") for r in controls.values()) and len(controls) == 4
    for name, result in denied.items():
        assert (result in (*UNREACHABLE, "TimeoutError") if isinstance(result, str) else result[0] in (1, 4, 5) and not result[1]), (name, result)
    assert {q["name"] for q in attack.logs["dns"]} <= {"www.example.org", "api.anthropic.com"}


def test_addresses(attack):
    controls, denied = attack.group("tcp")
    assert controls["control"].startswith("GET / ")                       # the echo
    for name, result in denied.items():
        assert result in UNREACHABLE | {"ECONNRESET", "EINVAL"} or re.match(r"HTTP/1.1 40[03] .*Anchorhold-Reason", result, re.S), (name, result)
    assert set(r for r, _ in attack.results["udp"].values()) <= UNREACHABLE
    slow = {n: s for n, (r, s) in {**attack.results["tcp"], **attack.results["udp"]}.items() if s > 1}
    assert not slow


def test_frames(attack):
    controls, denied = attack.group("frame")
    assert len(controls) == 2 and all(r and r[0] == 0 for r in controls.values())
    # another hardware address is nobody else's here; a query in fragments is a query
    assert denied.pop("mac") == controls["control"] and denied.pop("fragments") == [5, []]
    assert not {n: r for n, r in denied.items() if r}


def test_tls(attack):
    assert set(r for r, _ in attack.results["tls control"].values()) == {"22"}
    controls, denied = attack.group("tls")
    assert controls == {"control": "22"}
    assert not {n: r for n, r in denied.items() if r not in ("21", "closed", "ECONNRESET", "EPIPE")}


def test_http(attack):
    for group in ("http", "proxy"):
        controls, denied = attack.group(group)
        assert all(r.startswith("HTTP/1.1 200 ") for r in controls.values())
        for name, result in denied.items():
            if name in ("connect www.example.org", "other inside of connect"):      # a tunnel to the allowed host; in it, an alert
                assert "\r\n\r\n" in result and "ServerHello" not in result
                assert name == "connect www.example.org" or result.split("\r\n\r\n")[1].startswith("\x15\x03")
            elif name.startswith("pipelined"):
                assert re.search(r"HTTP/1.1 4\d\d .*Anchorhold-Reason", result, re.S), (name, result)
            elif name != "chunk overflow":                          # the head is fine
                assert result in ("closed", "ECONNRESET") or re.match(r"HTTP/1.1 4\d\d .*Anchorhold-Reason", result, re.S), (name, result)
    assert not attack.logs["other"]
    assert {(r["host"], r["path"]) for r in attack.logs["origin"]} <= {("www.example.org", "/"), ("www.example.org", "/echo")}
    assert all(r["size"] == 0 for r in attack.logs["origin"])


def test_key(attack):
    controls, others = attack.group("key")
    assert len(controls) == 3 and all(r.startswith("HTTP/1.1 200 ") and "x-api-key" in r.lower() or "Bearer" in r for r in controls.values())
    assert not [n for n, r in others.items() if not r.startswith("HTTP/1.1 ")]
    parts = [r for n, r in others.items() if n.startswith("range ")]    # a part of an answer could hold a part of the key
    assert parts and all(re.match(r"HTTP/1.1 422 .*Anchorhold-Reason", r, re.S) for r in parts), parts
    # not the key, and no part of it
    everything = attack.done.stdout + attack.done.stderr
    assert "REALKEY" not in everything and "sk-ant-api03-" in everything
    keys = {k for r in attack.logs["provider"] for k in (r["x_api_key"], (r["authorization"] or "Bearer ").split(" ", 1)[1]) if k}
    assert keys == {worlds.REAL_KEY}
    for request in attack.logs["provider"]:
        request = {**request, "headers": {k.lower(): v for k, v in request["headers"].items()}}
        assert request["method"] in ("GET", "POST") and request["path"].startswith("/v1/") and request["host"] == "api.anthropic.com"
        assert {k for k, v in request["headers"].items() if "REALKEY" in v} <= {"x-api-key", "authorization"}


def test_nothing_else_left_the_host(attack):
    """Flows are (source, protocol, destination, port). That the host's kernel tells the resolver of an answer that came too late (ICMP) is no run's doing."""
    expected = {f"{worlds.GATEWAY} 6 {worlds.PROVIDER} 443", f"{worlds.GATEWAY} 17 {worlds.RESOLVER} 53"}
    expected |= {f"{worlds.GATEWAY} 6 {worlds.ORIGIN} {port}" for port in (80, 443, worlds.ECHO_PORT)}
    assert attack.flows == expected | (attack.flows & {f"{worlds.GATEWAY} 6 {worlds.RESOLVER} 53", f"{worlds.GATEWAY} 1 {worlds.RESOLVER} 0"})


def test_flood(host, attack):
    assert attack.results["flood"]["control"][0].startswith("HTTP/1.1 200 ")
    assert attack.results["flood"]["queries"][0] > 3000
    records = host.run(f"journalctl --namespace=anchorhold --no-pager -o cat ANCHORHOLD_RUN={attack.item['run']} | wc -l").stdout
    assert 20 < int(records) < 3000
    host.anchorctl("run", "--workflow", "exec-attack", "--", "/bin/true")
    end = time.monotonic() + 20                                # who asked a daemon may be on its way out
    while (grown := growth(attack.before, usage(host))) and time.monotonic() < end:
        time.sleep(0.5)
    assert not grown
    assert not host.run("systemctl --failed --no-legend --plain").stdout


def test_channel(host, attack):
    """A second writer of the channel ends its own run, and says why; init is not to be killed, and its port not to be opened."""
    results = {n: r for n, (r, _) in attack.results["channel"].items()}
    assert results == {"kill init": None, "open": "EBUSY", "open again": "EBUSY", "taken": True}
    assert attack.item["state"] in ("failed", "exhausted") and "channel-error" in attack.item["reason"]
    assert attack.done.returncode != 0
    host.anchorctl("audit", "verify", user=None)
