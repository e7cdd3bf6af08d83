# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is built on another day is the same: no file of a Debian tree has the day of the build in it (image/lib/undated)."""

import subprocess

import pytest

from conftest import TOP

TODAY = "2026-03-07"
SHADOW = "root:*:{day}:0:99999:7:::\nagent:!:{day}:0:99999:7:::\nolder:*:1:0:99999:7:::\n"


@pytest.fixture
def tree(tmp_path):
    """Of two packages; one has installed a file that names the day, as any file may."""
    top = tmp_path / "tree"
    (top / "etc").mkdir(parents=True)
    (top / "usr/bin").mkdir(parents=True)
    (top / "bin").symlink_to("usr/bin")
    (top / "var/lib/dpkg/info").mkdir(parents=True)
    (top / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (top / "etc/passwd-").write_text("")
    (top / "etc/shadow").write_text(SHADOW.format(day=20519))
    (top / "usr/bin/calendar").write_text(f"{TODAY} is a Saturday\n")
    (top / "var/lib/dpkg/info/calendar.md5sums").write_text("0" * 32 + "  bin/calendar\n")
    return top


def undated(tree, today=TODAY):
    return subprocess.run([TOP / "image/lib/undated", tree, today], capture_output=True, text=True, check=False)


def test_nobody_ever_changed_a_password(tree):
    done = undated(tree)
    assert done.returncode == 0, done.stderr
    assert (tree / "etc/shadow").read_text() == SHADOW.format(day="").replace(":1:0:", "::0:")
    assert not (tree / "etc/passwd-").exists() and (tree / "etc/passwd").exists()


@pytest.mark.parametrize("text", [f"made on {TODAY}", "20260307", "Sat Mar  7 12:00:00 UTC 2026", "Sat, 07 Mar 2026 12:00:00 +0000", "a:20519:b", "1772841600", "SERIAL=1772927999;"])
def test_a_file_that_says_when_it_was_made_is_refused(tree, text):
    (tree / "etc/made").write_bytes(b"\0\xff" + text.encode() + b"\n")
    done = undated(tree)
    assert done.returncode == 1 and "etc/made" in done.stderr and "calendar" not in done.stderr


@pytest.mark.parametrize("text", ["2026-03-08", "20260306", "Sun Mar  8 12:00:00 UTC 2026", "a:20520:b", "1772841599", "1772928000", "11772841600", "17728416001"])
def test_any_other_day_may_stand_there(tree, text):
    """The control."""
    (tree / "etc/made").write_text(text)
    assert undated(tree).returncode == 0


def test_the_guest_has_no_such_day(host):
    shadow = host.exec_run("cat /etc/shadow").stdout
    days = {line.split(":")[0]: line.split(":")[2] for line in shadow.splitlines() if line.count(":") == 8}
    assert days["root"] == "" and not any(day.isdigit() and int(day) > 1 for day in days.values()), days
