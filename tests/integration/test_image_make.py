# SPDX-License-Identifier: LGPL-2.1-or-later
"""What `make` is asked for that there is not, is refused before anything is built; and packages that are not those of the lock, of which the demo warns and
the image refuses."""

import pathlib
import shutil
import subprocess

import pytest
from conftest import TOP

EMPTY = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "CACHE": "/nonexistent/cache"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """This tree, in which the first thing that a build needs says so, and fails."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(TOP / "Makefile", folder)
    for name in ("image", "tests"):
        shutil.copytree(TOP / name, folder / name, ignore=shutil.ignore_patterns("corpus", "__pycache__"))
    for first in ("kernel", "deps"):
        (folder / "image" / first).write_text("#!/bin/sh\necho the build begins\nexit 1\n")
    return pathlib.Path(folder)


@pytest.mark.parametrize("wrong, why, right", [
    (["check", "T=typo"], 'no test file has "typo" in its name', ["check", "T=image_make"]),
    (["check-vm", "T=typo"], 'no test file of the virtual machine has "typo" in its name', ["check-vm"]),
    (["soak", "T=typo"], 'no test file of the soak has "typo" in its name', ["soak"]),
    (["demo", "AGENT=foo"], "AGENT=foo: there are claude codex pi", ["demo", "AGENT=claude"]),
    (["demo", "AGENT="], "AGENT=: there are", ["demo"])], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_refused_before_anything_is_built(tree, wrong, why, right):
    done = subprocess.run(["make", *wrong], cwd=tree, env=EMPTY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode and why in done.stderr and "the build begins" not in done.stdout, done
    done = subprocess.run(["make", *right], cwd=tree, env=EMPTY, capture_output=True, text=True, timeout=60, check=False)    # the control
    assert done.returncode and "the build begins" in done.stdout, done


def test_colours_are_for_whoever_wants_them(tree):
    """What env -i would take from the demo."""
    for value in ("1", ""):
        done = subprocess.run(["make", "-n", "demo"], cwd=tree, env={**EMPTY, "NO_COLOR": value}, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and f'NO_COLOR="{value}"' in done.stdout, done


PACKAGES = "bash 5.2 amd64 aaaa\ngit 2.47 amd64 bbbb\n"


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    """That tree with everything built, of PACKAGES, as far as make can see; the demo itself is one line, and image/oci as it is."""
    folder = tmp_path_factory.mktemp("built") / "tree"
    shutil.copytree(tree, folder)
    (folder / "supervisor/util").mkdir(parents=True)
    shutil.copy(TOP / "supervisor/util/version.h", folder / "supervisor/util")
    for name in ("kernel", "deps", "template", "in-buildroot"):
        (folder / "image" / name).write_text("#!/bin/sh\n")
    for name in ("buildroot", "rootfs", "bootable"):
        (folder / "image" / name).write_text(f"#!/bin/sh\necho {folder}/{name}\n")
        (folder / f"{name}.packages").write_text(PACKAGES)
    (folder / "build").mkdir()
    (folder / "build/template-base.packages").write_text(PACKAGES)
    (folder / "tests/demo/demo.py").write_text("print('the demo runs')\n")
    for lock in (folder / "image/lock").glob("*.lock"):
        lock.write_text(PACKAGES)
    return folder


def make(folder, target):
    return subprocess.run(["make", target], cwd=folder, env={**EMPTY, "CACHE": folder / "cache"}, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["buildroot", "rootfs", "template-base"])
def test_the_demo_warns_and_the_image_refuses(built, name):
    lock = built / "image/lock" / f"{name}.lock"
    same = make(built, "demo")
    assert same.returncode == 0 and "the demo runs" in same.stdout and "differs" not in same.stderr, same
    reached = make(built, "image")                                  # the control: it gets past the lock, to what this tree has not
    assert "differs" not in reached.stderr and "not those of image/lock" not in reached.stderr, reached
    try:
        lock.write_text(PACKAGES.replace("bash 5.2", "bash 5.1") + "gone 1 amd64 cccc\n")
        warned = make(built, "demo")
        assert warned.returncode == 0 and "the demo runs" in warned.stdout, warned
        refused = make(built, "image")
        assert refused.returncode and "not those of image/lock" in refused.stderr and not (built / "build/image").exists(), refused
        for done in (warned, refused):
            assert f"{name} differs from image/lock/{name}.lock" in done.stderr, done
            assert "changed: bash 5.1 → 5.2" in done.stderr and "gone:    gone 1" in done.stderr and "git" not in done.stderr, done
    finally:
        lock.write_text(PACKAGES)
