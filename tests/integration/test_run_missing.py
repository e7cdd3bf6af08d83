# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host that lacks one of the programs of a run: no run without anchor-run or anchor-vm, no review without anchor-import."""

import contextlib
import re

import pytest
from host import REPOSITORY
from waiting import wait_for

PROGRAMS = "/usr/libexec/anchorhold"
COMMIT = "cd /workspace/repo && echo more >>README.md && git commit -qam more && echo committed"


@contextlib.contextmanager
def without(host, program):
    """That program is not there, for whatever starts until the block ends."""
    host.run(f"cp -a {PROGRAMS} /run/programs && rm /run/programs/{program}")
    try:
        host.run(f"mount --bind /run/programs {PROGRAMS}")
        try:
            assert host.run(["test", "-e", f"{PROGRAMS}/{program}"], check=False).returncode == 1
            yield
        finally:
            host.run(["umount", PROGRAMS])
    finally:
        host.run("rm -r /run/programs")


def run(host, *options):
    """One run followed to its end: its exit status, what it printed, and the item."""
    done = host.anchorctl("run", *options, check=False, timeout=300)
    said = done.stdout + done.stderr
    return done.returncode, said, host.show(re.search(r"\bi[0-9a-z]{12}\b", said).group())


def assert_nothing_left(host):
    wait_for(lambda: not host.systemctl("list-units", "--all", "--plain", "--no-legend", "anchor-*@*", "anchorhold-runs-r*").stdout, 15)
    assert host.systemctl("--failed", "--no-legend", "--plain").stdout == ""


@pytest.mark.parametrize("program, reason", [
    ("anchor-run", "anchor-run@RUN.service did not start: failed, exit status 203"),
    ("anchor-vm", "the microVM did not boot: the virtual machine has ended (anchor-vm@RUN.service says why)"),
])
def test_no_run_without(host, program, reason):
    command = ("--workflow", "exec", "--", "sh", "-c", "echo it $((40 + 2)) ran")
    with without(host, program):
        status, said, shown = run(host, *command)
        assert_nothing_left(host)
    assert (status, shown["state"]) == (1, "exhausted") and "it 42 ran" not in said, said
    assert shown["reason"] == reason.replace("RUN", shown["runs"][0]["id"]) and f"exhausted: {shown['reason']}" in said, said
    # the control: the same when it is there again
    status, said, shown = run(host, *command)
    assert (status, shown["state"]) == (0, "closed") and "it 42 ran" in said, said


def test_no_review_without_anchor_import(host):
    command = ("--workflow", "script-agent", "--repo", REPOSITORY, "--base", "main", "--task", COMMIT)
    with without(host, "anchor-import"):
        status, said, shown = run(host, *command)
        assert_nothing_left(host)
    assert "committed" in said                                   # it did come to a result
    assert (status, shown["state"], shown["result_commit"]) == (1, "exhausted", None), said
    assert [each["stage"] for each in shown["runs"]] == ["work"], shown
    assert shown["reason"] == f"import: anchor-import@{shown['runs'][0]['id']}.service did not start: failed, exit status 203"
    # the control
    status, said, shown = run(host, *command)
    assert (status, shown["state"]) == (0, "in_review") and shown["result_commit"], said
