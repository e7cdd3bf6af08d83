# SPDX-License-Identifier: LGPL-2.1-or-later
"""The agreement check: the same probes to each layer of a run's enforcement, before it begins and while it lasts.

Each kind of damage is done to a live run, by root; the run must end for that reason. The control is the run itself, which went on
for several rounds before.
"""

import json
import time

import pytest

from liverun import LiveRun
from waiting import wait_for

PROBES = {"metadata", "loopback", "host-address", "unlisted-name", "unlisted-port", "allowed-control"}
LAYERS = {"guest-network", "cgroup", "policy"}


def mismatches(host, run):
    lines = host.run(["journalctl", "--namespace=anchorhold", "-o", "json", "--no-pager", f"ANCHORHOLD_RUN={run}",
                      "ANCHORHOLD_EVENT=enforcement.mismatch"], check=False).stdout.splitlines()
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines if line.startswith("{")]


@pytest.fixture
def live(host):
    run = LiveRun(host, "exec-net", "echo up; sleep 600")
    run.await_line("up")
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


def in_netns(host, run, command):
    return host.run(f"ip netns exec anchor-{run} {command}")


DAMAGE = {
    "rules flushed": ("nft flush ruleset", "missing: "),
    "rule added": ("nft insert rule inet anchorhold guest accept", "there is: rule "),
    "another table": ("nft 'add table ip x; add chain ip x c { type filter hook prerouting priority -300; }'", "there is: table "),
    "table asleep": ("nft 'add table inet anchorhold { flags dormant; }'", "missing: table "),
    "route added": ("ip route add 192.0.2.0/24 via 10.255.255.2", "route family 2 to 24"),
    "device added": ("ip link add up0 type veth peer name up1", "there is: link "),
    "forwarding": ("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'", "ip_forward 0"),
}


def test_a_run_under_way_agrees_and_each_damage_ends_it(host, live):
    """One run, which goes on for three rounds; then its rules go, and it goes."""
    unit = f"anchor-check@{live.run}.service"
    since = time.monotonic()
    while time.monotonic() < since + 12:
        assert host.is_active(unit) == "active"
        time.sleep(1)
    assert not mismatches(host, live.run)
    assert host.is_active(f"anchor-run@{live.run}.service") == "active"

    item = host.items()[0]["id"]
    in_netns(host, live.run, DAMAGE["rules flushed"][0])
    since = time.monotonic()
    wait_for(lambda: host.show(item)["state"] not in ("running", "leased"), 15, explain=lambda: host.show(item))
    assert time.monotonic() - since < 15
    shown = host.show(item)
    assert "enforcement.mismatch" in shown["reason"] and "nftables" in shown["reason"], shown["reason"]
    found = mismatches(host, live.run)
    assert len(found) == 1 and "nftables" in found[0]["reason"]
    tried = {(p["layer"], p["probe"]): p["result"] for p in found[0]["probes"]}
    assert tried[("cgroup", "allowed-control")] == "allowed" and tried[("cgroup", "metadata")] == "denied"


def test_the_check_cannot_be_killed_and_the_run_go_on(host, live):
    host.systemctl("kill", "--signal=KILL", f"anchor-check@{live.run}.service")
    wait_for(lambda: host.is_active(f"anchor-run@{live.run}.service") in ("inactive", "failed"), 10)


def test_doctor_asks_all_layers(host):
    result = host.anchorctl("doctor", "--json=short", check=False)
    findings = json.loads(result.stdout)
    assert result.returncode == 0, findings
    good = {f["check"] for f in findings if f["health"] == "good"}
    assert {"agreement", "fence", "units", "policy", "anchord", "cgroup2", "audit", "disk"} <= good, findings
    table = json.loads(host.run("cat /run/anchorhold/doctor.json").stdout)
    assert table["agree"] and {p["probe"] for p in table["probes"]} == PROBES
    assert {p["layer"] for p in table["probes"]} == LAYERS
    for p in table["probes"]:
        assert p["result"] == ("allowed" if p["probe"] == "allowed-control" else "denied"), p
    # on a terminal it is a table of layers and probes
    assert "unlisted-name" in host.anchorctl("doctor").stdout


def test_doctor_is_for_operators(host):
    refused = host.run(["systemctl", "start", "anchor-doctor.service"], user="stranger", check=False)
    assert refused.returncode != 0
    # nor may an operator start anything else that way
    assert host.run(["systemctl", "start", "anchor-accel.service"], user="operator", check=False).returncode != 0
    host.run(["systemctl", "start", "anchor-doctor.service"], user="operator")


RUN = "r0000check000"


@pytest.fixture(scope="module")
def network(host):
    """A run's network without anchord and without a microVM, in which the check itself is started by hand."""
    host.stop_daemon("anchord")
    host.write(f"/run/systemd/system/anchor-check@{RUN}.service.d/test.conf",
               "[Unit]\nStopWhenUnneeded=no\nStartLimitIntervalSec=0\n")
    host.write(f"/run/systemd/system/anchor-net@{RUN}.service.d/test.conf", "[Unit]\nStartLimitIntervalSec=0\n")
    host.systemctl("daemon-reload")
    yield
    host.systemctl("stop", "anchorhold-runs.slice", f"anchor-net@{RUN}.service", check=False)
    host.run(f"rm -r /run/systemd/system/anchor-{{check,net}}@{RUN}.service.d; systemctl daemon-reload; systemctl reset-failed", check=False)
    host.start_daemon("anchord")


def once(host, damage=None, fence=True):
    """What the check says of a fresh network after `damage`: its reason, from the journal. egressd does not know this run, which the
    check says when nothing else is wrong."""
    dropin = f"/run/systemd/system/anchor-check@{RUN}.service.d/damage.conf"
    host.systemctl("stop", f"anchor-check@{RUN}.service", f"anchor-net@{RUN}.service", check=False)
    host.run("systemctl reset-failed", check=False)
    if damage:
        host.write("/run/anchorhold/damage", damage + "\n")
        host.write(dropin, "[Service]\n" + ("" if fence else "ExecStartPre=\n") + "ExecStartPre=+/bin/sh -e /run/anchorhold/damage\n")
    host.systemctl("daemon-reload")
    begin = host.run("date +%s.%N").stdout.strip()
    try:
        assert host.systemctl("start", f"anchor-check@{RUN}.service", check=False).returncode != 0
    finally:
        host.run(f"rm -f {dropin} /run/anchorhold/damage; systemctl daemon-reload")
    return host.journal(f"--since=@{begin}", "-u", f"anchor-check@{RUN}.service")


@pytest.mark.parametrize("name", [None, *DAMAGE])
def test_damage_is_found(host, network, name):
    if name is None:
        assert "egressd has no policy for this run" in once(host)  # the control: up to there all was well
        return
    command, words = DAMAGE[name]
    said = once(host, f"ip netns exec anchor-{RUN} {command}")
    assert "is not as it was made" in said and words in said, said


CGROUP = "/sys/fs/cgroup/anchorhold.slice/anchorhold-runs.slice"
PROGRAMS = "/sys/fs/bpf/anchorhold/prog"


def test_a_layer_that_lets_through_is_found(host, network):
    """The slice loses its programs: the probes are let through by that layer, and nothing leaves, for they have no packets."""
    damage = "\n".join(f"bpftool cgroup detach {CGROUP} {hook} pinned {PROGRAMS}/{program}" for hook, program in
                       (("cgroup_inet4_connect", "connect4"), ("cgroup_inet6_connect", "connect6")))
    try:
        said = once(host, damage, fence=False)
        assert "layer cgroup: metadata is allowed" in said or "could not" in said or "not fenced" in said, said
    finally:
        host.run("systemctl stop anchorhold-runs.slice; systemctl restart anchor-bpf.service; systemctl start anchor-warden.service")
    assert "egressd has no policy for this run" in once(host)
