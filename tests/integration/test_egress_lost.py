# SPDX-License-Identifier: LGPL-2.1-or-later
"""Denials are told in sum every ten seconds. What egressd had counted when it is killed is told by its next life: the counts of a run's records
are the number of its denials."""

import pytest

from egressrun import EgressRun
from fakeguest import dns
from waiting import wait_for

RUN, DENIED = "r0000lost0001", "denied.example.com"


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
