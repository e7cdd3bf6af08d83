# SPDX-License-Identifier: LGPL-2.1-or-later
"""A power cut somewhere in an upgrade: QEMU is killed where it stands. Whatever is on the disk then must boot, as one of the two images, with what the
host knew. Where the cut comes is drawn anew each time; the seed is said, and VM_SEED= brings the same cuts again, as far as the machine is as fast."""

import os
import random
import time

from waiting import wait_for

SEED = os.environ.get("VM_SEED") or os.urandom(4).hex()
LOT = random.Random(SEED)

# What an upgrade goes through, and for how long after its beginning the cut may come (seconds). It may come later than that stage ends, in the next
# one then: none is the wrong place.
STAGES = {"while it is fetched": 15, "while the host goes down": 15, "in the first boot": 60}


def upgrade(machine, number, stage):
    """Begins an upgrade, and returns as soon as it is in that stage."""
    told, starts = len(machine.audit("host.upgrade")), machine.starts()
    fetch = machine.popen(["anchorctl", "host", "upgrade", machine.next_image(number)], stdout=-1, stderr=-2, text=True)
    if stage == "while it is fetched":
        wait_for(lambda: len(machine.audit("host.upgrade")) > told, 120)
        return fetch
    said, _ = fetch.communicate(timeout=900)
    assert fetch.returncode == 0 and "is staged" in said, said
    machine.run("systemctl reboot", check=False)
    if stage == "in the first boot":
        machine.await_start(starts)
    return fetch


def cut_in(machine, number, stage, digests):
    """One cut in that stage of an upgrade to that image. The digest of what is up then, by itself and healthy."""
    before, boot = machine.sealed(), machine.boot_id()
    fetch = upgrade(machine, number, stage)
    after = LOT.uniform(0, STAGES[stage])
    time.sleep(after)                                              # drawn by lot, so there is nothing that could be waited for
    os.write(2, f"  … power cut {stage}, after {after:.1f} s (seed {SEED})\n".encode())
    machine.cut_power()
    machine.await_complete(boot)
    fetch.communicate(timeout=60)

    roles = machine.deployments()
    assert roles["booted"] in digests, roles
    assert set(roles.values()) <= set(digests), roles
    machine.is_whole()
    # What is new are the health check's own: one that was cut off is queued again, and ends now.
    wait_for(lambda: {state for item, state in machine.items().items() if item not in before["items"]} == {"closed"}, 300, machine.items)
    assert {key: value for key, value in machine.sealed().items() if key != "items"} == {key: value for key, value in before.items() if key != "items"}
    assert before["items"].items() <= machine.items().items()
    assert machine.run("systemctl --failed --no-legend --plain").stdout == ""
    return roles["booted"]
