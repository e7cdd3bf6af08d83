# SPDX-License-Identifier: LGPL-2.1-or-later
"""The image deployed by its own ostree on a disk: what bootc and a boot from that disk will find there. Nothing is booted."""

import contextlib
import json
import os
import subprocess
import tomllib

import pytest

from conftest import TOP

IMAGE = TOP / "image"


@pytest.fixture(scope="module")
def disk(archive, tmp_path_factory):
    """The disk, mounted here read-only."""
    folder = tmp_path_factory.mktemp("disk")
    file, at = TOP / "build" / "test.disk", folder / "at"
    at.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(file.unlink, missing_ok=True)
        subprocess.run([IMAGE / "disk", "--size", "3G", file], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop,ro", file, at], check=True)
        stack.callback(subprocess.run, ["umount", at], check=True)
        yield at


@pytest.fixture(scope="module")
def entry(disk):
    """The only boot entry, as {key: value}."""
    path, = (disk / "boot/loader/entries").iterdir()
    return dict(line.split(None, 1) for line in path.read_text().splitlines())


@pytest.fixture(scope="module")
def deployment(disk):
    found, = (disk / "ostree/deploy/anchorhold/deploy").glob("*.0")
    return found


def test_boot_entry_has_the_kernel_and_its_arguments(archive, disk, entry, deployment):
    kernel = disk / "boot" / entry["linux"].lstrip("/")
    version = kernel.name.removeprefix("vmlinuz-")
    modules = deployment / "usr/lib/modules" / version
    assert kernel.read_bytes() == (modules / "vmlinuz").read_bytes()
    assert (disk / "boot" / entry["initrd"].lstrip("/")).read_bytes() == (modules / "initramfs.img").read_bytes()
    wanted = [word for path in (TOP / "rootfs-overlay/usr/lib/bootc/kargs.d").glob("*.toml") for word in tomllib.loads(path.read_text())["kargs"]]
    words = entry["options"].split()
    assert len(wanted) > 3 and set(wanted) <= set(words) and "root=LABEL=anchorhold" in words
    link = next(word for word in words if word.startswith("ostree=")).removeprefix("ostree=/")
    assert (disk / link).resolve() == deployment.resolve()
    assert (archive / "digest").read_text().strip() in entry["title"]


def test_composefs_image_of_the_deployment(deployment):
    """With it the initramfs mounts / so that nobody can write to it; trixie's own ostree would have made none."""
    with open(deployment / ".ostree.cfs", "rb") as image:
        image.seek(1024)
        assert image.read(4) == bytes.fromhex("e2e1f5e0")            # erofs
    assert "enabled = yes" in (deployment / "usr/lib/ostree/prepare-root.conf").read_text()


def test_deployment_is_what_the_image_holds(deployment, tmp_path):
    ours = tmp_path / "ours"
    subprocess.run([IMAGE / "ours", ours], check=True)
    for folder, _, files in os.walk(ours):
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), ours)
            there = deployment / path
            assert os.path.islink(ours / path) or there.read_bytes() == (ours / path).read_bytes(), path
    manifest = json.loads((deployment / "usr/lib/anchorhold/templates/base/manifest.json").read_text())
    for name in manifest["files"]:
        assert (deployment / "usr/lib/anchorhold/templates/base" / name).stat().st_size


def test_etc_can_be_merged_and_var_is_empty(disk, deployment):
    assert (deployment / "etc/passwd").read_bytes() == (deployment / "usr/etc/passwd").read_bytes()
    shadow = (deployment / "etc/shadow").stat()
    assert (shadow.st_uid, shadow.st_gid, shadow.st_mode & 0o777) == (0, 42, 0o640)
    assert not (deployment / "etc/machine-id").exists()
    assert not [path for path in (disk / "ostree/deploy/anchorhold/var").rglob("*") if path.is_file() and path.name != ".ostree-selabeled"]
    assert not list((deployment / "var").iterdir())


def test_state_has_one_place(deployment):
    links = {name: os.readlink(deployment / name) for name in ("home", "root", "srv", "opt", "mnt", "ostree")}
    assert links == {"home": "var/home", "root": "var/roothome", "srv": "var/srv", "opt": "var/opt", "mnt": "var/mnt", "ostree": "sysroot/ostree"}


def test_modes_that_matter(deployment):
    assert (deployment / "usr/bin/su").stat().st_mode & 0o4000
    assert (deployment / "tmp").stat().st_mode & 0o7777 == 0o1777
