# SPDX-License-Identifier: LGPL-2.1-or-later
"""Draining a host, with real runs: what ends in time ends, what does not is handed back, nothing begins meanwhile."""

import time

import pytest

from liverun import LiveRun
from waiting import wait_for


@pytest.fixture(scope="module")
def runs(host):
    """Two runs, one that ends when it is told to, and one that does not end by itself; and then the drain."""
    ends = LiveRun(host, "exec", "echo up; sleep 12; echo over")
    stays = LiveRun(host, "exec", "echo up; sleep 600")
    for each in (ends, stays):
        each.await_line("up")
    items = [item["id"] for item in host.items()[:2]]
    yield ends, stays, items[1], items[0]
    host.anchorctl("host", "undrain")
    host.anchorctl("stop", "--all")
    for each in (ends, stays):
        each.process.kill()


@pytest.fixture(scope="module")
def drained(host, runs):
    """The drain, a third item that is submitted during it, and how the first two ended."""
    drain = host.popen(["anchorctl", "host", "drain", "--within=20s", "--reason=a test"], user="operator", stdout=-1, stderr=-1, text=True)
    wait_for(lambda: host.status()["drain"])
    during = host.status()
    third = host.anchorctl("submit", "--workflow", "exec", "--", "true").stdout.strip()
    out = drain.communicate(timeout=90)
    return during, third, drain.returncode, "".join(out)


def test_drain_waits_for_what_ends(host, runs, drained):
    ends, _, item, _ = runs
    during, _, code, said = drained
    assert code == 0 and "Nothing runs" in said
    assert during["drain"]["reason"] == "a test" and 0 < during["drain"]["left_s"] <= 20 and len(during["runs"]) == 2
    assert "over" in ends.rest() and ends.process.returncode == 0
    assert host.show(item)["state"] == "closed"


def test_what_does_not_end_is_handed_back(host, runs, drained):
    item = host.show(runs[3])
    assert (item["state"], item["attempt"]) == ("queued", 1)
    assert "handed back" in item["reason"]
    assert host.status()["runs"] == []
    assert host.run("systemctl list-units --no-legend --plain 'anchor-*@*' 'anchorhold-runs-*.slice'").stdout == ""


def test_nothing_begins_on_a_drained_host(host, runs, drained):
    third = drained[1]
    assert host.show(third)["state"] == "queued"
    host.run("systemctl restart anchord.service")
    wait_for(lambda: host.status().get("ready"))
    assert host.status()["drain"]["reason"] == "a test"
    time.sleep(3)
    assert host.show(third)["state"] == "queued"
    assert "drained" in host.anchorctl("list").stderr + host.anchorctl("list").stdout
    assert "undrain" in host.anchorctl("doctor", check=False).stdout


def test_undrain_leases_again(host, runs, drained):
    """The control: the very items that waited."""
    host.anchorctl("host", "undrain")
    wait_for(lambda: host.show(drained[1])["state"] == "closed")
    wait_for(lambda: host.show(runs[3])["state"] == "running")
    assert host.show(runs[3])["attempt"] == 1
    events = host.run("journalctl --namespace=anchorhold -o cat -b ANCHORHOLD_EVENT=drain.begun + ANCHORHOLD_EVENT=drain.ended").stdout.splitlines()
    assert "a test" in events[-2] and "takes up work again" in events[-1]


def test_only_operators_drain(host, drained):
    refused = host.anchorctl("host", "drain", "--within=0s", user="stranger", check=False)
    assert refused.returncode == 3 and host.status()["drain"] is None
