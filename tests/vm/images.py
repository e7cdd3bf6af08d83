# SPDX-License-Identifier: LGPL-2.1-or-later
"""The images that a machine of these tests is upgraded to, on a disk that it may read: its only source of images, as it has no network.

1   the image that it was installed with, as `make image` left it
2   the same programs, and files that differ: another /etc/issue, a mark below /usr, and a guest template with another command line for its kernel
3   what a later release would be: compiled from these sources with one more event, one more level of the ledger, another version; and
    broken, in that no run gets its network
4   (`make soak`, as the next two) PID 1 stands still early in each boot
5   what the health check waits for never comes to an end
6   an initramfs that ends after 64 KiB

Of each the disk has only what differs from the others: the manifest, its signature, the configuration and the last layer. Whoever
needs more of it than that fails.
"""

import hashlib
import json
import pathlib
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[2]
WORK = TOP / "build" / "vm"
MARK = "usr/share/anchorhold-test-image"

# (file, what is there once, what is put in its place)
LATER = (
    ("supervisor/util/version.h", 'ANCHORHOLD_VERSION "0.1"', 'ANCHORHOLD_VERSION "0.2"'),
    ("supervisor/audit/audit-event.c", "static const AuditEvent events[] = {\n",
     'static const AuditEvent events[] = {\n        { "host.later", PEER_ROOT, 0, LOG_NOTICE, "2d6b1c0f8e7a4b53a9c1d4e6f7081923", "A later image says {what}" },\n'),
    ("supervisor/ledger/ledger-schema.c", "};\n\nstatic int apply_additions(",
     '        "ALTER TABLE item ADD COLUMN later TEXT NOT NULL DEFAULT \'later\'; CREATE TABLE later (what TEXT); INSERT INTO later VALUES (\'of a later image\');",\n'
     "};\n\nstatic int apply_additions("),
)

# What only the later image records, before its health is looked at.
LATER_UNIT = """[Unit]
Requires=anchor-auditd-api.socket
After=anchor-auditd.service anchord.service
Before=host-health.service
[Service]
Type=oneshot
ExecStart=varlinkctl call /run/anchorhold/audit-api.sock io.anchorhold.Audit.Append '{"event":"host.later","data":{"what":"something"}}'
"""


def call(*argv):
    subprocess.run([str(word) for word in argv], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def over(number):
    """The folder that is laid over image `number`."""
    folder = WORK / f"over-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    write(folder / "etc/issue", f"image {number}\n")
    write(folder / MARK, f"{number}\n")
    return folder


def later_sources():
    """This source tree, changed into that of a later release, compiled; only what differs is compiled anew."""
    folder = WORK / "later"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "build").mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP, check=True, capture_output=True).stdout
    for name in listed.decode().split("\0"):
        if name and (TOP / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, folder / name, follow_symlinks=False)
    call("cp", "-a", TOP / "build/plain", folder / "build/")
    call("cp", "-al", TOP / "build/templates", folder / "build/")
    for name, before, after in LATER:
        text = (folder / name).read_text()
        assert text.count(before) == 1, f"{name} does not have {before!r} once: see {__file__}"
        (folder / name).write_text(text.replace(before, after))
    call("make", "-C", folder, "shipped")
    return folder


def other_template(folder, number):
    """The template of this tree with one more word on its kernel's command line, signed again; its digest."""
    base = folder / "usr/lib/anchorhold/templates/base"
    manifest = json.loads((TOP / "build/templates/base/manifest.json").read_text())
    del manifest["digest"]
    manifest["cmdline"] += f" anchorhold.image={number}"
    manifest["digest"] = hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
    write(base / "manifest.json", json.dumps(manifest))
    call(TOP / "image/sign", base / "manifest.json")
    return manifest["digest"]


def make_two():
    """{number: the image's folder} of the first two."""
    made = {1: TOP / "build/image", 2: WORK / "image-2"}
    laid = over(2)
    other_template(laid, 2)
    call(TOP / "image/oci", "--quick", "--version", "2", "--over", laid, made[2])
    return made


def make():
    """{number: the image's folder} for `make check-vm`."""
    made = make_two()
    broken = over(3)
    write(broken / "usr/libexec/anchorhold/anchor-net", "#!/bin/sh\nexit 1\n", 0o755)
    write(broken / "usr/lib/systemd/system/later.service", LATER_UNIT)
    wants = broken / "usr/lib/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "later.service").symlink_to("../later.service")
    later = later_sources()
    made[3] = later / "build/image"                                # below the sources: its build root sees nothing else
    call(later / "image/oci", "--quick", "--over", broken, made[3])
    return made


# PID 1 frozen early in each boot. SIGSTOP does nothing to it: the kernel keeps signals from it for which it has no handler.
FROZEN = """[Unit]
DefaultDependencies=no
After=host-begin.service
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=sh -c 'echo 1 >/sys/fs/cgroup/init.scope/cgroup.freeze; sleep infinity'
"""

# What the health check waits for never gets there, and everything else of the host works.
NEVER = """[Unit]
Before=anchord.service host-health.service
[Service]
Type=oneshot
ExecStart=sleep infinity
TimeoutStartSec=infinity
"""
SOONER = "[Timer]\nOnBootSec=\nOnBootSec=4min\n"                 # than the 20 minutes of host-deadline.timer


def make_hanging(number, unit, target):
    """The second image once more, with a unit that each boot wants and that keeps it from its end."""
    made, laid = WORK / f"image-{number}", over(number)
    units = laid / "usr/lib/systemd/system"
    write(units / "hang.service", unit)
    (units / f"{target}.wants").mkdir()
    (units / f"{target}.wants/hang.service").symlink_to("../hang.service")
    write(units / "host-deadline.timer.d/sooner.conf", SOONER)
    call(TOP / "image/oci", "--quick", "--version", number, "--over", laid, made)
    return made


def make_truncated(number):
    """The second image once more, with the beginning of an initramfs: its kernel panics, and nothing of userspace is ever reached."""
    made, laid = WORK / f"image-{number}", over(number)
    bootable = pathlib.Path(subprocess.run([TOP / "image/bootable"], check=True, capture_output=True, text=True).stdout.strip())
    whole, = bootable.glob("usr/lib/modules/*/initramfs.img")
    cut = laid / whole.relative_to(bootable)
    cut.parent.mkdir(parents=True)
    cut.write_bytes(whole.read_bytes()[:64 * 1024])
    call(TOP / "image/oci", "--quick", "--version", number, "--over", laid, made)
    return made


def make_for_soak():
    """The first two, and those that get to no health check: 4 frozen early in its boot, 5 with a unit that never returns, 6 with an initramfs that is cut off."""
    made = make_two()
    made[4] = make_hanging(4, FROZEN, "sysinit.target")
    made[5] = make_hanging(5, NEVER, "multi-user.target")
    made[6] = make_truncated(6)
    return made


def digest(folder):
    return (folder / "digest").read_text().strip()


def differs(folder, others):
    """The files of an image in skopeo's `dir:` that no other one has."""
    there = {path.name for other in others for path in (other / "signed").iterdir()} - {"manifest.json", "signature-1", "version"}
    return [path for path in (folder / "signed").iterdir() if path.name not in there]


def make_disk(images):
    """An ext4 with a folder for each image."""
    content, disk = WORK / "disk.d", WORK / "next.disk"
    shutil.rmtree(content, ignore_errors=True)
    for number, folder in images.items():
        (content / str(number)).mkdir(parents=True)
        for path in differs(folder, [other for other in images.values() if other != folder]):
            shutil.copy(path, content / str(number))
    disk.unlink(missing_ok=True)
    call("mkfs.ext4", "-q", "-d", content, disk, "256M")
    return disk
