# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ten power cuts in upgrades from one image to the other and back (`make soak`)."""

import power

CUTS = 10


def test_ten_power_cuts(soaked, soak_digests):
    machine, both = soaked, {soak_digests[1], soak_digests[2]}
    for number in range(CUTS):
        there = 2 if machine.deployments()["booted"] == soak_digests[1] else 1
        stage = list(power.STAGES)[number % len(power.STAGES)]
        machine.timed(f"cut {number + 1} of {CUTS}", lambda there=there, stage=stage: power.cut_in(machine, there, stage, both))
    assert machine.deployments().keys() <= {"booted", "rollback", "staged"}
