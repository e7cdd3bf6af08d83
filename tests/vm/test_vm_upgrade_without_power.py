# SPDX-License-Identifier: LGPL-2.1-or-later
"""The power is cut in the middle of an upgrade, once in each of its stages; then the upgrade is made once more, and nothing keeps it."""

import pytest

import power


@pytest.fixture(scope="module")
def upgrade(machine, digests):
    """(the image that is up, the one that is not)"""
    here = 1 if machine.deployments()["booted"] == digests[1] else 2
    return here, 3 - here


def test_power_cut_in_each_stage_of_an_upgrade(machine, upgrade, digests):
    """What lies on the disk is one of the two whenever the power goes. In the first boot that is the next one, whose start was counted and which passes with its second."""
    here, there = upgrade
    both = {digests[here], digests[there]}
    for stage in power.STAGES:
        up = machine.timed(f"power cut {stage}", lambda stage=stage: power.cut_in(machine, there, stage, both))
        if up == digests[there] and stage != "in the first boot":
            here, there = there, here                              # the cut came late; so the next one is of an upgrade as well
    assert up == digests[there]
    assert {each["health"] for each in machine.host_status()["deployments"]} == {"healthy"}


def test_upgrade_after_the_cuts(machine, upgrade, digests):
    """The control: nothing that they left is in the way of a whole one."""
    there = 1 if machine.deployments()["booted"] == digests[2] else 2
    said = machine.operator("host", "upgrade", machine.next_image(there), timeout=900).stderr
    assert f"sha256:{digests[there]} is staged" in said
    machine.run("! test -e /run/ostree/staged-deployment || ostree admin undeploy 0")
    assert not [line for line in machine.run("ls /var/lib/anchorhold/host").stdout.split() if line == "image"]
