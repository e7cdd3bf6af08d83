# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk that is full to the last byte: what each daemon does then, and that all goes on when there is space again (docs/operate.md, "A full disk").

The state and the journals of a boot of its own lie on a small file system, which the tests fill.
"""

import json
import os
import re

import pytest

import host as hosting
from liverun import LiveRun
from waiting import wait_for

SMALL = "/run/small"
AUDIT = "/run/anchorhold/audit.sock"
WORKFLOW = {"template": "base", "repository": False, "limits": {"memory": "512M", "vcpus": 2, "disk": "64M", "run": "5min", "attempts": 1, "output": "16M"},
            "steps": [{"name": "exec", "kind": "exec", "timeout": "5min"}]}
MOVE = f"""set -eu
systemctl stop anchorhold.target anchorhold-runs.slice 'anchord*.socket' 'anchor-*.socket' anchord.service 'anchor-*d.service'
systemctl stop 'systemd-journald*@anchorhold.socket' systemd-journald@anchorhold.service
mkdir -p {SMALL} /etc/systemd/journald@anchorhold.conf.d
mount -t tmpfs -o size=64M,mode=755 small {SMALL}
journal=$(echo /var/log/journal/*.anchorhold)
cp -a /var/lib/anchorhold {SMALL}/lib
cp -a "$journal" {SMALL}/journal
mount --bind {SMALL}/lib /var/lib/anchorhold
mount --bind {SMALL}/journal "$journal"
printf '[Journal]\\nSystemKeepFree=1M\\nSystemMaxUse=16M\\n' >/etc/systemd/journald@anchorhold.conf.d/small.conf
systemctl start anchorhold.target anchord.service
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    etc = hosting.make_etc(tmp_path_factory.mktemp("etc"), {"accel": "tcg", "space": {"reserve": {"size": "8M"}}})
    (etc / "anchorhold/policy/workflows").mkdir(parents=True)
    (etc / "anchorhold/policy/workflows/small.json").write_text(json.dumps(WORKFLOW))
    with hosting.boot_of_its_own(f"check-{os.getpid()}-full", "--fresh", "--etc", etc) as booted:
        wait_for(lambda: is_well(booted))
        booted.run(MOVE)
        wait_for(lambda: is_well(booted))
        yield booted


@pytest.fixture(autouse=True)
def whole(host):
    """Each test begins and ends with space; then every daemon is well, and what is on disk is whole."""
    yield
    free(host)
    wait_for(lambda: is_well(host), 90, lambda: host.anchorctl("status", check=False).stdout)
    host.run(["anchorctl", "audit", "verify"])
    assert host.run("sqlite3 /var/lib/anchorhold/ledger/ledger.db 'PRAGMA integrity_check'").stdout == "ok\n"
    assert host.systemctl("--failed", "--no-legend", "--plain").stdout == ""


def is_well(host):
    now = host.status()
    return now.get("ready") and not now["space"]["low"] and set(now["enforcers"].values()) == {"ok"} and now["audit_waiting"] == 0


def fill(host):
    """To the last byte, and so that what is freed meanwhile is taken as well."""
    host.run(f"cat /dev/zero >{SMALL}/fill; cat /dev/zero >>{SMALL}/fill", check=False)
    assert host.run(f"df --output=avail {SMALL} | tail -n 1").stdout.strip() == "0"


def free(host):
    host.run(f"rm -f {SMALL}/fill")


def test_nothing_is_leased(host):
    """The reserve is reached long before the last byte, and what waits goes on by itself."""
    host.run(f"head -c $(( $(df -B1 --output=avail {SMALL} | tail -n 1) - 6291456 )) /dev/zero >{SMALL}/fill")
    wait_for(lambda: host.status()["space"]["low"])
    waits = host.anchorctl("submit", "--workflow", "small", "--", "true").stdout.strip()
    assert host.show(waits)["state"] == "queued" and "8 are kept in reserve" in host.show(waits)["space"]
    free(host)
    wait_for(lambda: host.show(waits)["state"] == "closed")


def until_refused(host, command, user=None):
    """The command's standard output as often as it succeeded (at most 400 times), and what it said when it did not."""
    loop = f"long=$(head -c 40000 /dev/zero | tr '\\0' x); for n in $(seq 400); do {command} || exit 9; done"
    done = host.run(loop, user=user, check=False, timeout=300)
    assert done.returncode == 9, done
    return done.stdout.splitlines(), done.stderr


def test_anchord(host):
    """What it acknowledges is there afterwards, what it refuses is not; it comes back by itself."""
    host.anchorctl("stop", "--all", "--hold")
    fill(host)
    taken, said = until_refused(host, 'anchorctl submit --workflow small -- true "$long"', user="operator")
    assert re.search("the ledger cannot be written|does not answer|closed the connection|not running|auditd does not take", said), said
    free(host)
    wait_for(lambda: is_well(host), 90)
    there = {item["id"] for item in host.items() if (item["command"] or [""])[-1].startswith("xxx")}
    if there:
        host.anchorctl("stop", *there)
    host.anchorctl("release")
    assert set(taken) <= there and len(there) <= len(taken) + 1


def test_auditd(host):
    """A record that it acknowledged is in the log when there is space again; one that does not fit is refused."""
    fill(host)
    params = '{"event":"approval.recorded","item":"i3k9x0a1b2c3d","data":{"verdict":"approved","reason":"\'$long\'"}}'
    taken, said = until_refused(host, f"varlinkctl call --json=short {AUDIT} io.anchorhold.Audit.Append '{params}'")
    assert re.search("Unavailable|onnect", said), said
    taken = {answer["seq"]: answer["hash"] for answer in map(json.loads, taken) if "seq" in answer}   # the last line is the refusal
    free(host)
    wait_for(lambda: is_well(host), 90)
    lines = host.run("journalctl --namespace=anchorhold -o json --output-fields=ANCHORHOLD_SEQ,ANCHORHOLD_HASH").stdout.splitlines()
    kept = {int(entry["ANCHORHOLD_SEQ"]): entry["ANCHORHOLD_HASH"] for entry in map(json.loads, lines) if "ANCHORHOLD_SEQ" in entry}
    assert {seq: kept.get(seq) for seq in taken} == taken


def test_egressd_and_secretd(host):
    """A policy that cannot be written does not hold, a value that cannot be written does not replace the one that is there."""
    host.seal_credential("openai", "sk-the-first-value")
    live = LiveRun(host, "small", "echo up; sleep 60")
    live.await_line("up")
    fill(host)
    refused = host.anchorctl("policy", "allow", live.run, "www.example.org:443", check=False)
    assert refused.returncode == 1 and refused.stderr, refused
    sealed = host.run(["anchorctl", "credential", "rotate", "--quiet", "openai"], input="sk-the-second-value" + "x" * 8000, check=False)
    assert sealed.returncode != 0 and sealed.stderr, sealed
    assert host.run("systemd-creds decrypt --name=cred_openai /var/lib/anchorhold/credentials/openai -").stdout == "sk-the-first-value"

    free(host)
    wait_for(lambda: is_well(host), 90)
    wait_for(lambda: host.anchorctl("policy", "allow", live.run, "www.example.org:443", check=False).returncode == 0)
    host.run(["anchorctl", "credential", "rotate", "--quiet", "openai"], input="sk-the-second-value")
    assert host.run("systemd-creds decrypt --name=cred_openai /var/lib/anchorhold/credentials/openai -").stdout == "sk-the-second-value"
    host.run(["anchorctl", "credential", "remove", "--quiet", "openai"])
    host.anchorctl("stop", "--all")
    live.process.kill()


def vm_is_gone(host, run):
    return host.run(["systemctl", "is-active", f"anchor-vm@{run}.service"], check=False).stdout.strip() not in ("active", "activating")


def ends(host, item):
    """[(outcome, reason)] of the item's runs, once nothing runs any more."""
    wait_for(lambda: is_well(host) and not host.status()["runs"], 90)
    ended = host.show(item)
    assert ended["state"] == "exhausted", ended
    return [(run["outcome"], run["reason"]) for run in ended["runs"]]


def test_a_run_goes_on_and_ends_once(host):
    """Its end waits for who has to record it, if what they had set aside on the disk does not do: with space in time it is the end that the command had."""
    live = LiveRun(host, "small", "echo up; sleep 10; echo over; exit 7")
    live.await_line("up")
    item = host.items()[0]["id"]
    fill(host)
    unit = f"anchor-run@{live.run}.service"
    waits = "auditd does not answer; waiting for it|anchord did not answer .*; trying again"
    wait_for(lambda: vm_is_gone(host, live.run) or re.search(waits, host.journal("-u", unit)), 60, lambda: host.journal("-u", unit))
    free(host)
    assert ends(host, item) == [("failed", "exit status 7")]
    live.process.kill()


def test_a_guest_that_fills_the_disk_is_told(host):
    """Its write fails, as on any disk; the machine is not stopped until somebody notices. Its end waits a minute for who has to record it, not for ever:
    then it is the run's own, if anchord's log had room for it, or an error."""
    live = LiveRun(host, "small", "echo up; sleep 5; dd if=/dev/zero of=/var/tmp/x bs=1M count=8 conv=fsync && echo written; exit 7")
    live.await_line("up")
    item = host.items()[0]["id"]
    fill(host)
    wait_for(lambda: vm_is_gone(host, live.run), 150)
    free(host)
    [end] = ends(host, item)
    assert end in (("failed", "exit status 7"), ("error", "anchor-run ended while the supervisor was away"))
    assert "written" not in live.rest()
