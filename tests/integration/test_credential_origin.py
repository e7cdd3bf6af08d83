# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whom inject believes, on the booted image, and what the pieces tell in which an answer comes."""

import contextlib
import json
import re
import shlex
import statistics
import subprocess
import time

import pytest

from egressrun import InjectRun, records
from injectclient import ask, connect
from waiting import wait_for

WIRE, STRANGE = "wire.example.org", "strange.example.org"
REAL = "client-REALCLIENTREALCLIENTREALCLIENTREALCLIENT"
RUNS = iter(f"r0000origin{i:02}" for i in range(1, 10))
TIMES = 9


@contextlib.contextmanager
def inject(host, anchord, to_egressd=None):
    it = InjectRun(host, anchord, next(RUNS), "exec-client", to_egressd)
    try:
        yield it
    finally:
        it.stop()


@pytest.fixture(scope="module")
def guest(host, world, anchord):
    host.seal_credential_once("test-client", REAL)
    world.forget_logs()
    with inject(host, anchord) as it:
        yield it


def answer(guest, name):
    """(status, reason, message) of one request."""
    [(status, body)] = guest.call(ask, guest.address_of(name), name, "/x")
    error = json.loads(body)["error"] if status != 200 else {"reason": "", "message": ""}
    return status, error["reason"], error["message"]


def test_nobody_vouches_for_it(guest, world):
    status, reason, message = answer(guest, STRANGE)
    assert (status, reason) == (502, "origin-certificate") and "self-signed certificate" in message
    assert world.log("strange") == []                                    # it got nothing
    assert answer(guest, WIRE)[0] == 200                                 # the control


def test_the_hosts_own_store_counts(host, world, anchord, guest):
    """What vouches for the world's origins is in upstream-ca.d. In the system's store it does as well; in neither it does not."""
    ca = shlex.quote(world.path("world.pem"))
    name = subprocess.run(f"openssl x509 -hash -noout -in {ca}", shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    configured, own, kept = "/etc/anchorhold/upstream-ca.d/world.pem", f"/etc/ssl/certs/{name}.0", "/run/world.pem"
    host.run(f"mv {configured} {kept}")
    try:
        with inject(host, anchord) as without:
            status, reason, message = answer(without, WIRE)
            assert (status, reason) == (502, "origin-certificate") and "issuer certificate" in message
        host.run(f"cp {kept} {own}")
        with inject(host, anchord) as other:
            assert answer(other, WIRE)[0] == 200
    finally:
        host.run(f"rm -f {own}; mv {kept} {configured}")


def test_deny_run_that_two_were_told_otherwise_of(host, world, anchord, guest):
    """Another workflow may reach the same host; what anchord told egressd is not what it told secretd, so that none of its credentials leaves."""
    workflows = "/etc/anchorhold/policy/workflows"
    host.run(f"cp {workflows}/exec-client.json {workflows}/exec-twin.json")
    try:
        before = len(world.log("wire"))
        with inject(host, anchord, "exec-twin") as torn:
            status, reason, message = answer(torn, WIRE)
            assert (status, reason) == (503, "disagreement") and "different things" in message
            [record] = wait_for(lambda: records(host, "conn.deny", torn.run, name=WIRE, reason="disagreement"))
            assert record["detail"] == "egressd: exec-twin, work; secretd: exec-client, work"
        assert len(world.log("wire")) == before
        assert answer(guest, WIRE)[0] == 200                             # the control
    finally:
        host.run(f"rm {workflows}/exec-twin.json")


def test_a_call_is_answered_whole(host, anchord):
    """As above each test asks in anchord's place: also while a client at a socket of anchord's has that unit started again and again; and an error has its name."""
    anchord.call("Ping")                                                 # from here on it is not anchord itself that such a client starts
    host.systemctl("start", "anchord.socket")
    host.run(["systemd-run", "--quiet", "--collect", "--unit=waits", "varlinkctl", "call", "/run/anchorhold/api.sock", "io.anchorhold.Control.Ping", "{}"])
    try:
        assert [anchord.shell("echo one; sleep 0.5; echo two") for _ in range(10)] == ["one\ntwo\n"] * 10
        with pytest.raises(AssertionError, match=r"io\.anchorhold\.Egress\.\w+"):
            anchord.call("Register", run="r0000origin00", workflow="no-such-workflow", stage="work")
    finally:
        host.systemctl("stop", "waits.service", check=False)
        host.stop_daemon("anchord")


def guess(address, texts):
    """For each text, as the origin sends it back in two pieces: the sizes of what comes, record by record, with "|" for its pause, and when that came."""
    seen = []
    for text in texts:
        with connect(address, WIRE) as s:
            s.sendall(b"POST /guess HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (WIRE.encode(), len(text), text.encode()))
            since, pieces, times, data = time.monotonic(), [], [], b""
            while piece := s.recv(16384):
                times.append(time.monotonic() - since)
                if len(times) > 1 and times[-1] - times[-2] > 0.15:
                    pieces.append("|")
                pieces.append(len(piece))
                data += piece
        seen.append((pieces, times[-1], data.decode()))
    return seen


@pytest.mark.quiet
def test_a_guess_tells_nothing(guest):
    """Right but for its last character, wrong from its first: the same records, at the same times."""
    right, wrong = REAL[:-1] + "x", "x" * len(REAL)
    address = guest.address_of(WIRE)
    seen = guest.call(guess, address, [right, wrong] * TIMES, timeout=60)
    assert {json.dumps(pieces) for pieces, _, _ in seen} == {json.dumps(seen[0][0])}, seen
    assert "|" in seen[0][0]
    late = [statistics.median(end for _, end, _ in seen[i::2]) for i in (0, 1)]
    assert abs(late[0] - late[1]) < 0.02, late
    # the control: the value itself is not what comes back
    [(_, _, text)] = guest.call(guess, address, [REAL])
    assert REAL not in text and re.search(r"\bclient-[A-Za-z0-9_-]{40} and\n", text)
