# SPDX-License-Identifier: LGPL-2.1-or-later
"""Denials are told in sum every ten seconds. What egressd had counted when it is killed is told by its next life: the counts of a run's records
are the number of its denials. And what ends while it is away, it hears of afterwards; what ends while auditd is away is in the log
when that is back."""

import collections
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from egressrun import EgressRun
from fakeguest import dns
from waiting import wait_for

RUN, DENIED, ALLOWED = "r0000lost0001", "denied.example.com", "www.example.org"


@pytest.fixture(scope="module")
def run(host, anchord):
    it = EgressRun(host, anchord, RUN, "exec-net")
    yield it
    it.stop()


def refuse(run, n):
    for _ in range(n):
        rcode, _, _ = run.call(dns, DENIED)
        assert rcode == 5


def counts(run, **fields):
    return sum(r["count"] for r in run.records("dns.refused", **fields))


def test_counts_add_up_after_a_kill(host, run):
    refuse(run, 1)
    wait_for(lambda: counts(run) == 1, 10)                       # the first is told at once; the next ones are counted
    refuse(run, 60)
    told = counts(run)
    assert told < 61
    host.systemctl("kill", "--signal=KILL", "anchor-egressd.service")
    wait_for(lambda: counts(run) == 61, 20, lambda: run.records("dns.refused"))
    lost = run.records("dns.refused", reason="log-lost")
    assert len(lost) == 1 and lost[0]["count"] == 61 - told and lost[0]["name"] == "-"
    assert f"run {RUN}: {61 - told} denials were not in the log" in host.journal("-u", "anchor-egressd.service")

    # the control: without a kill it adds up as well, and nothing is lost
    refuse(run, 30)
    wait_for(lambda: counts(run) == 91, 20, lambda: run.records("dns.refused"))
    assert run.records("dns.refused", reason="log-lost") == lost


def test_nor_are_they_lost_by_a_restart(host, run):
    before = counts(run)
    refuse(run, 1)
    wait_for(lambda: counts(run) > before, 10)
    refuse(run, 20)
    host.systemctl("restart", "anchor-egressd.service")
    wait_for(lambda: counts(run) == before + 21, 20, lambda: run.records("dns.refused"))
    # and each is told once
    host.systemctl("restart", "anchor-egressd.service")
    assert run.call(dns, DENIED)[0] == 5
    wait_for(lambda: counts(run) == before + 22, 20, lambda: run.records("dns.refused"))


def hold(address, n, path, opened, over):
    """Opens so many connections, asks for something on each, and closes them when the file `over` is there."""
    held = []
    for _ in range(n):
        s = socket.create_connection((address, 80), timeout=10)
        s.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path.encode(), ALLOWED.encode()))
        assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
        held.append(s)
    opened.touch()
    wait_for(over.exists, 60)
    for s in held:
        s.close()
    return n


def ends(run, grants):
    """The records of the ends of these grants, by grant."""
    by_grant = collections.defaultdict(list)
    for r in run.records("conn.close", name=ALLOWED):
        if r["grant"] in grants:
            by_grant[r["grant"]].append(r)
    return by_grant


@contextlib.contextmanager
def held_open(run, tmp_path, path):
    """So many connections with a request on each; gives their grants, and a function that closes them."""
    opened, over = tmp_path / "opened", tmp_path / "over"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(run.call, hold, run.address_of(ALLOWED), 48, path, opened, over)
        try:
            wait_for(opened.exists, 20)
            grants = {r["grant"] for r in run.records("egress.allow", name=ALLOWED, path=path)}
            assert len(grants) == 48
            yield grants, over.touch
        finally:
            over.touch()
        assert held.result() == 48


def assert_each_once(run, grants):
    wait_for(lambda: set(ends(run, grants)) == grants, 20, lambda: grants - set(ends(run, grants)))
    found = ends(run, grants)
    assert all(len(r) == 1 and "reason" not in r[0] and r[0]["bytes_in"] > 0 for r in found.values())   # its proxy's word, not egressd's guess


def test_ends_are_told_when_egressd_is_back(host, run, tmp_path):
    """Connections that end while egressd is away end for it as well, and each is in the log: nothing of them counts against the run."""
    with contextlib.ExitStack() as away:
        with held_open(run, tmp_path, "/held") as (grants, _):
            away.enter_context(host.stopped("anchor-egressd"))
    assert_each_once(run, grants)


def test_ends_are_told_when_auditd_is_back(host, run, tmp_path):
    """As many ends as grants, each once, also of connections that ended while nobody could write it down."""
    def refused():
        return host.journal("-u", "anchor-egressd.service").count("the end of a connection cannot be recorded")

    before = refused()
    with held_open(run, tmp_path, "/held/too") as (grants, close):
        with host.frozen("anchor-auditd"):
            close()
            wait_for(lambda: refused() > before, 15)
            assert not ends(run, grants)
    assert_each_once(run, grants)


def test_ends_are_told_when_the_proxy_ends(host, run, tmp_path):
    """As at the end of each run: what went over the connections that are open then."""
    with held_open(run, tmp_path, "/held/last") as (grants, _):
        host.systemctl("stop", f"anchor-proxy@{RUN}.service")
        assert_each_once(run, grants)
    assert run.call(dns, ALLOWED)[0] == 0   # the next one serves
