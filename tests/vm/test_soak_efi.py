# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host with UEFI, whose boot loader counts boots (`make soak`): a story in the order of the file, told by one machine."""

import pytest

import power
import vmhost
from waiting import wait_for

CONFLICT = 5
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"                      # of systemd-boot's variables


@pytest.fixture(scope="module")
def efi(soak_disk):
    vmhost.install(vmhost.TOP / "build/image/disk-efi", efi=True)
    with vmhost.booted("soak-efi", "--attach", soak_disk, efi=True) as machine:
        yield machine


def variable(machine, name):
    """What the loader said to this boot; "" if it said nothing."""
    return machine.run(f"cat /sys/firmware/efi/efivars/{name}-{VENDOR} 2>/dev/null | tail -c +5 | tr -d '\\0'", check=False).stdout


def entries(machine):
    """{commit and serial: (tries, or "" if its boots are not counted; its text)} on the partition."""
    listed = machine.run("systemctl start host-bless.service && mkdir -p /run/esp && mount -o ro /dev/disk/by-partlabel/EFI /run/esp && trap 'umount /run/esp' EXIT; cd /run/esp/loader/entries;"
                         "for f in *.conf; do echo \"= $f\"; cat \"$f\"; done; cd /").stdout
    found = {}
    for part in listed.split("= anchorhold-")[1:]:
        name, text = part.split("\n", 1)
        identity, _, tries = name.removesuffix(".conf").partition("+")
        found[identity] = (tries, text)
    return found


def follows(machine):
    """The entries have ostree's order and command lines, and a kernel each."""
    shown = machine.run("cat /boot/loader/entries/*.conf").stdout
    ours = "".join(text for _, text in entries(machine).values())
    for line in shown.splitlines():
        assert line.replace(" /boot/ostree/", " /ostree/") in ours, (line, ours)
    machine.run("mount -o ro /dev/disk/by-partlabel/EFI /run/esp && trap 'umount /run/esp' EXIT; diff -r /boot/ostree /run/esp/ostree")
    return {identity: tries for identity, (tries, _) in entries(machine).items()}


def rejected_by_the_loader(machine, digest):
    """It has the story, and takes the image no more. The control is every upgrade here."""
    assert "boot loader started it 2 times" in machine.host_status()["rejected"][digest]["reason"]
    said = machine.audit("host.rolled_back")[-1]
    assert said["digest"] == digest and "boot loader started it 2 times" in said["reason"]
    assert machine.deployments()["rollback"] == digest
    machine.is_whole()


def go(machine, number, seconds=900):
    """Upgrades, and waits until a boot of whatever comes up has passed. How often the machine was started."""
    boot, starts = machine.boot_id(), machine.starts()
    machine.operator("host", "upgrade", machine.next_image(number), timeout=900)
    machine.run("systemctl reboot", check=False)
    machine.timed(f"image {number}", lambda: machine.await_complete(boot, seconds))
    return machine.starts() - starts


def test_loader_of_the_disk_boots_it(efi, soak_digests):
    assert variable(efi, "LoaderInfo").startswith("systemd-boot")
    assert efi.deployments() == {"booted": soak_digests[1]}
    assert list(follows(efi).values()) == [""]
    assert efi.run("findmnt -rno TARGET -t vfat", check=False).stdout == ""       # nobody has that partition but for a moment
    assert efi.run("systemctl --failed --no-legend --plain").stdout == ""


def test_boots_of_an_image_are_counted_until_one_is_good(efi, soak_digests):
    assert go(efi, 2) == 1
    assert efi.deployments() == {"booted": soak_digests[2], "rollback": soak_digests[1]}
    assert variable(efi, "LoaderBootCountPath").endswith("+1-1.conf")
    wait_for(lambda: efi.is_active("host-bless.service") == "active", 60)
    assert list(follows(efi).values()) == ["", ""]
    assert variable(efi, "LoaderEntrySelected").removesuffix(".conf").removeprefix("anchorhold-") in entries(efi)


def test_rollback_is_what_the_loader_boots(efi, soak_digests):
    boot = efi.boot_id()
    efi.operator("host", "rollback")
    efi.run("systemctl reboot", check=False)
    efi.await_complete(boot)
    assert efi.deployments() == {"booted": soak_digests[1], "rollback": soak_digests[2]}
    assert list(follows(efi).values()) == ["", ""]
    assert variable(efi, "LoaderBootCountPath") == ""                # it has worked here before


def test_cut_initramfs_goes_back_by_itself(efi, soak_digests):
    """Two boots panic, without a system that could count them; the third is of the image before."""
    before = efi.deployments()["booted"]
    assert go(efi, 6) == 3
    assert efi.console().count("Kernel panic") == 2
    assert efi.deployments()["booted"] == before
    rejected_by_the_loader(efi, soak_digests[6])
    refused = efi.operator("host", "upgrade", efi.next_image(6), check=False)
    assert refused.returncode == CONFLICT
    assert sorted(follows(efi).values()) == ["", "0-2"]


def test_host_that_hangs_goes_back_by_itself(efi, soak_digests):
    """Userspace and the loader count both, and come to the same."""
    before = efi.deployments()["booted"]
    assert go(efi, 4, 1800) == 3
    assert efi.deployments()["booted"] == before
    rejected_by_the_loader(efi, soak_digests[4])


@pytest.mark.parametrize("stage", power.STAGES)
def test_power_cut(efi, soak_digests, stage):
    there = 2 if efi.deployments()["booted"] == soak_digests[1] else 1
    known = {soak_digests[1], soak_digests[2]} | set(efi.deployments().values())
    efi.timed(f"power cut {stage}", lambda: power.cut_in(efi, there, stage, known))
    assert efi.deployments()["booted"] in (soak_digests[1], soak_digests[2])
    follows(efi)
