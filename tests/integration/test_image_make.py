# SPDX-License-Identifier: LGPL-2.1-or-later
"""What `make` is asked for that there is not, is refused before anything is built."""

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
    (["demo", "AGENT=foo"], "AGENT=foo: there are claude pi", ["demo", "AGENT=claude"]),
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
