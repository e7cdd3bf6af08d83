# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is in /var and /etc when the image under it is another one: a ledger that a newer image wrote, a policy that an older one brings back."""

import json
import os
import sqlite3

import pytest

import docs
import host as hosting
from waiting import wait_for

LEDGER = "var/lib/anchorhold/ledger/ledger.db"
HOST_STATE = "/var/lib/anchorhold/host/state.json"
BEFORE = "/ostree/deploy/anchorhold/deploy/0123.0/etc"


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    etc = hosting.make_etc(tmp_path_factory.mktemp("etc"), {"accel": "tcg", "max_runs": 1})
    with hosting.boot_of_its_own(f"check-{os.getpid()}-state", "--fresh", "--etc", etc) as booted:
        wait_for(lambda: booted.status().get("ready"))
        yield booted


def change_ledger(host, *statements):
    """While anchord is down, as another image's anchord would have left it."""
    host.stop_daemon("anchord")
    with sqlite3.connect(host.state / LEDGER) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    host.run("chown anchorhold:anchorhold /var/lib/anchorhold/ledger/*")


def start(host):
    host.start_daemon("anchord")
    wait_for(lambda: host.status().get("ready"))
    return host.status()["site_policy"]


def edit(host, runs):
    host.write("/etc/anchorhold/host.json", json.dumps({"accel": "tcg", "max_runs": runs}))


def events(host, name):
    lines = host.run(["journalctl", "--namespace=anchorhold", "-b", "-o", "json", f"ANCHORHOLD_EVENT={name}"]).stdout.splitlines()
    return [(json.loads(line)["ANCHORHOLD_ACTOR"], json.loads(json.loads(line)["ANCHORHOLD_DATA"])) for line in lines]


def test_what_a_newer_image_added_is_no_hindrance(host):
    """More columns, tables, a higher level; and an event that was queued and that this image has no name for."""
    change_ledger(host, "ALTER TABLE item ADD COLUMN newer TEXT", "ALTER TABLE run ADD COLUMN newer INTEGER NOT NULL DEFAULT 7", "CREATE TABLE newer (x)",
                  "INSERT INTO addition VALUES (99, 0)",
                  "INSERT INTO outbox (event, actor, data, time_usec) VALUES ('newer.event', 'anchord', '{\"what\":\"nobody knows\"}', 0)")
    start(host)
    wait_for(lambda: host.status()["audit_waiting"] == 0)
    (_, told), = events(host, "image.newer")
    assert told["event"] == "newer.event" and told["data"]["what"] == "nobody knows"
    assert host.exec_run("true").returncode == 0
    host.run(["anchorctl", "audit", "verify"])


def test_ledger_of_another_version_is_refused_and_left_alone(host):
    change_ledger(host, "PRAGMA user_version = 3")
    host.systemctl("start", "anchord.service", check=False)
    wait_for(lambda: "written by a newer image" in host.journal("-u", "anchord.service"))
    assert host.anchorctl("status", check=False).returncode == 1
    # the control: the image that can use it is back, and everything is there
    host.stop_daemon("anchord")
    host.systemctl("reset-failed", "anchord.service", "anchord.socket", "anchord-run.socket", "anchord-spec.socket", check=False)
    change_ledger(host, "PRAGMA user_version = 2")
    start(host)
    assert [item["state"] for item in host.items()] == ["closed"]


def test_item_of_another_image_is_worked_on_with_the_template_that_is_here(host):
    """As it is when the host was upgraded in between; the control is every other item here, of which nothing is said."""
    host.anchorctl("host", "drain", "--within=0s")
    item = host.anchorctl("submit", "--workflow", "exec", "--", "true").stdout.strip()
    here = host.show(item)["template_digest"]
    change_ledger(host, f"UPDATE item SET template_digest = '{64 * '0'}', revision = revision + 1 WHERE id = '{item}'")
    start(host)
    host.anchorctl("host", "undrain")
    wait_for(lambda: host.show(item)["state"] == "closed" and host.status()["audit_waiting"] == 0)
    assert host.show(item)["template_digest"] == here
    (_, said), = events(host, "item.template")
    assert (said["digest"], said["previous"]) == (here, 64 * "0")


def test_operator_changes_policy_and_images_are_replaced_without_a_question(host):
    edit(host, 2)
    host.systemctl("restart", "anchord.service")
    assert not start(host)["waits"]
    change_ledger(host, f"UPDATE site SET deployment = '{BEFORE}'")
    assert not start(host)["waits"]


def test_policy_that_a_rollback_brings_back_waits_for_an_operator(host):
    held = host.status()["site_policy"]["digest"]
    change_ledger(host, f"UPDATE site SET deployment = '{BEFORE}'")
    edit(host, 3)
    site = start(host)
    assert site["waits"] and site["previous"] == held != site["digest"]
    wait_for(lambda: host.status()["audit_waiting"] == 0)
    actor, said = events(host, "policy.waits")[-1]
    assert actor == "anchord" and said["digest"] == site["digest"] and said["previous"] == held

    item = host.anchorctl("submit", "--workflow", "exec", "--", "true").stdout.strip()
    host.systemctl("restart", "anchord.service")
    assert start(host)["waits"]
    listed = host.anchorctl("list")
    assert "policy accept" in listed.stdout + listed.stderr
    assert "anchorctl policy accept" in host.anchorctl("doctor", check=False).stdout
    assert host.show(item)["state"] == "queued"

    assert host.anchorctl("policy", "accept", user="stranger", check=False).returncode == 3
    other = host.anchorctl("policy", "accept", held, check=False)
    assert other.returncode == 5 and "another one" in other.stderr
    assert host.show(item)["state"] == "queued" and host.status()["site_policy"]["waits"]

    host.anchorctl("policy", "accept", site["digest"])
    wait_for(lambda: host.show(item)["state"] == "closed" and host.status()["audit_waiting"] == 0)
    assert not host.status()["site_policy"]["waits"]
    actor, said = events(host, "policy.accepted")[-1]
    assert actor == f"uid {host.run('id -u operator').stdout.strip()}" and said["digest"] == site["digest"] and said["previous"] == held


def test_rejected_image_is_tried_again_when_somebody_says_so(host):
    """What that permits is tested where images are staged (tests/vm). The control is the other digest, which stays rejected."""
    once, other = 64 * "a", 64 * "b"
    entry = {"reason": "a run of /bin/true ends with status 1", "time": "2026-01-01T00:00:00Z", "told": True}
    host.write(HOST_STATE, json.dumps({"healthy": [64 * "c"], "starts": {once: 2}, "rejected": {once: entry, other: entry}}), 0o600)

    def state():
        return json.loads(host.run(["cat", HOST_STATE]).stdout)

    accept = docs.command("upgrade.md", "anchorctl host accept", DIGEST=f"sha256:{once}")
    assert host.run(accept, user="operator", check=False).returncode == 3
    unknown = host.anchorctl("host", "accept", 64 * "c", user=None, check=False)
    assert unknown.returncode == 4 and "has not rejected" in unknown.stderr
    with host.stopped("anchor-auditd"):
        unrecorded = host.run(accept, check=False)
    assert unrecorded.returncode == 1 and state()["rejected"].keys() == {once, other}, unrecorded.stderr
    assert events(host, "host.accepted") == []

    host.run(accept)
    assert state() == {"healthy": [64 * "c"], "rejected": {other: entry}}
    (actor, said), = events(host, "host.accepted")
    assert (said["digest"], said["reason"]) == (once, entry["reason"])
    assert host.run(accept, check=False).returncode == 4
