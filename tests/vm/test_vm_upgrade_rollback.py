# SPDX-License-Identifier: LGPL-2.1-or-later
"""An operator goes back to the image before, whose /etc is from before the upgrade: what changed there since then waits to be accepted."""

import json

import pytest

import docs
from waiting import wait_for

EGRESS = "/etc/anchorhold/policy/egress/wait.json"


@pytest.fixture(scope="module")
def gone_back(machine, digests):
    """{role: digest} as it was before that."""
    other = 1 if machine.deployments()["booted"] == digests[2] else 2
    machine.operator("host", "upgrade", machine.next_image(other), timeout=900)
    machine.reboot()                                               # where the host can go back to lies one that works
    before = machine.deployments()
    policy = json.loads(machine.run(["cat", EGRESS]).stdout)
    machine.write(EGRESS, json.dumps({**policy, "description": "Changed by an operator since the upgrade."}))
    boot = machine.boot_id()
    apply = machine.popen(docs.command("upgrade.md", "anchorctl host rollback"), stdout=-1, stderr=-2, text=True)
    machine.timed("rollback by hand", lambda: machine.await_complete(boot, 600))
    apply.communicate(timeout=60)
    return before


def test_image_before_is_up(machine, gone_back):
    assert machine.deployments() == {"booted": gone_back["rollback"], "rollback": gone_back["booted"]}
    said = machine.audit("host.rollback")[-1]
    assert (said["digest"], said["from"]) == (gone_back["rollback"], gone_back["booted"])
    assert "Changed by an operator" not in machine.run(["cat", EGRESS]).stdout
    machine.is_whole()


def test_policy_that_came_back_waits_for_an_operator(machine, gone_back):
    """The control is the upgrade, after which everything was leased; and the same item, as soon as somebody has accepted."""
    item = machine.operator("submit", "--workflow", "exec", "--", "/bin/true").stdout.strip()
    site = machine.status()["site_policy"]
    assert site["waits"] and site["digest"] != site["previous"]
    assert site["previous"] in machine.run(docs.command("upgrade.md", "anchorctl status")).stdout
    assert machine.show(item)["state"] == "queued"
    machine.run(docs.command("upgrade.md", "anchorctl policy accept", DIGEST=site["digest"]))
    wait_for(lambda: machine.show(item)["state"] == "closed", 300, lambda: machine.show(item))
    assert machine.audit("policy.accepted")[-1]["digest"] == site["digest"]
