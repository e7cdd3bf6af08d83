# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host whose definition is malformed stays up, leases nothing, and goes back to no other image, which would be told the same."""

import pytest

from waiting import wait_for


@pytest.fixture(scope="module")
def told_wrong(machine):
    """The host, booted with a credential that has a key which nobody knows; what was there before."""
    before, boot, starts = machine.deployments(), machine.boot_id(), machine.starts()
    given = machine.folder / "credentials" / "anchorhold.host"
    given.parent.mkdir(exist_ok=True)
    given.write_text('{"max_run": 3}')
    machine.run("systemctl reboot", check=False)

    def on_hold():
        said = machine.run("cat /proc/sys/kernel/random/boot_id; anchorctl status --json=short", check=False).stdout
        return boot not in said and '"hold":true' in said.replace(" ", "")
    machine.timed("malformed definition", lambda: wait_for(on_hold, 600))
    return before, starts


@pytest.fixture(scope="module")
def put_right(machine, told_wrong):
    (machine.folder / "credentials" / "anchorhold.host").unlink()
    machine.reboot()
    machine.operator("release")


def test_it_stays_up_and_leases_nothing(machine, told_wrong):
    before, starts = told_wrong
    assert machine.starts() == starts + 1 and machine.deployments() == before
    assert machine.is_active("boot-complete.target") == "inactive" and machine.is_active("host-provision.service") == "failed"
    assert "anchorhold.host" in machine.journal("-u", "host-provision.service") and "/max_run" in machine.journal("-u", "host-provision.service")
    assert "provisioning" in machine.audit("host.unhealthy")[-1]["reason"]
    assert "provisioning" in machine.status()["hold_reason"]
    item = machine.operator("submit", "--workflow", "exec", "--", "/bin/true").stdout.strip()
    assert machine.show(item)["state"] == "queued"


def test_it_works_again_when_that_is_gone(machine, told_wrong, request):
    """The control: the same host with the credential gone, and released by an operator."""
    waits = [item for item, state in machine.items().items() if state == "queued"]
    assert waits
    request.getfixturevalue("put_right")
    for item in waits:
        wait_for(lambda item=item: machine.items()[item] == "closed", 300, lambda item=item: machine.show(item))
