# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hosts that stand still, and what ends that (`make soak`): the machine's watchdog, the count of starts, the deadline of the health check."""

import time

import pytest

WATCHDOG_S = 60

FREEZE = "echo 1 >/sys/fs/cgroup/init.scope/cgroup.freeze"


def go(machine, number):
    """Upgrades to that image, and waits until another boot than that of before is up and healthy; how often the machine was started."""
    boot, starts = machine.boot_id(), machine.starts()
    machine.operator("host", "upgrade", machine.next_image(number), timeout=900)
    machine.run("systemctl reboot", check=False)
    machine.await_complete(boot, 1800)
    return machine.starts() - starts


def test_pid_1_that_stands_still_is_reset(soaked, soak_digests):
    """In the middle of a host's life, for no fault of its image: the same one comes up again. The control is the minutes before, in which nothing was reset."""
    before, boot, starts = soaked.deployments(), soaked.boot_id(), soaked.starts()
    soaked.run(FREEZE, check=False)
    frozen = time.monotonic()
    soaked.await_start(starts)
    assert time.monotonic() - frozen < WATCHDOG_S
    soaked.await_complete(boot)
    assert soaked.deployments() == before and soaked.starts() == starts + 1
    soaked.is_whole()


@pytest.mark.parametrize(("number", "starts", "reason"), [(4, 4, "never came to an end"), (5, 2, "did not begin")])
def test_image_that_hangs_is_left(soaked, soak_digests, number, starts, reason):
    """Frozen in each boot: two starts hang, the third goes back, the fourth is the image before. A unit that never returns: its first boot has a deadline."""
    before = soaked.deployments()["booted"]
    assert soaked.timed(f"image {number}, and back", lambda: go(soaked, number)) == starts
    assert soaked.deployments()["booted"] == before
    assert reason in soaked.host_status()["rejected"][soak_digests[number]]["reason"]
    said = soaked.audit("host.rolled_back")[-1]
    assert said["digest"] == soak_digests[number] and reason in said["reason"]
    soaked.is_whole()
