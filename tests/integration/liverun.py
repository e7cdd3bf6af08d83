# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run that is under way while a test looks at it from outside."""

import os
import pathlib
import re
import time

from waiting import wait_for


class LiveRun:
    """An item in a microVM, followed in the background."""

    def __init__(self, host, workflow, script, *options):
        self.host = host
        before = set(host.run("ls /run/anchorhold/run").stdout.split())
        self.process = host.popen(["anchorctl", "run", "--workflow", workflow, *options, "--", "sh", "-c", script], user="operator",
                                  stdout=-1, stderr=-2, text=True)
        self.lines = []
        self.await_line("")
        self.run = wait_for(lambda: set(host.run("ls /run/anchorhold/run").stdout.split()) - before).pop()

    def await_line(self, text, seconds=90):
        """The first line with that text; the output so far is the failure's."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            if not line:
                break
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r}:\n" + "".join(self.lines))

    def rest(self, seconds=90):
        out, _ = self.process.communicate(timeout=seconds)
        self.lines.append(out)
        return "".join(self.lines)

    def pid(self, unit):
        """The main process of one of its units, as the test machine numbers it."""
        inside = self.host.property(f"{unit}@{self.run}.service", "MainPID")
        for pid in processes(self.host):
            numbers = re.search(r"^NSpid:\s+(.*)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M).group(1).split()
            if numbers[-1] == inside:
                return int(pid)
        raise AssertionError(f"no process of {unit}@{self.run}.service")


def processes(host):
    """Every process of the boot, as the test machine numbers them."""
    inside = os.readlink(f"/proc/{host.pid}/ns/pid")
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns" / "pid") == inside:
                yield process.name
        except OSError:
            continue                                           # it has ended


def microvms(host):
    return set(host.run("systemctl list-units --plain --no-legend --state=activating,active 'anchor-vm@*.service' | awk '{ print $1 }'").stdout.split())


def assert_nothing_starts(host, seconds=4):
    """However often one looks: an item waits in the queue without a run, and no microVM is there that was not before."""
    there = microvms(host)
    assert len(there) < host.status()["max_runs"]             # or it waits for room
    submitted = host.anchorctl("submit", "--workflow", "exec", "--", "/bin/true", check=False)
    item, end = submitted.stdout.strip(), time.monotonic() + seconds
    if not item:                                              # without auditd not even that is taken
        assert submitted.returncode != 0 and "audit" in submitted.stderr, submitted.stderr
    while time.monotonic() < end:
        assert microvms(host) <= there
        if item:
            shown = host.show(item)
            assert (shown["state"], shown["runs"]) == ("queued", []), shown
    if item:
        host.anchorctl("stop", item, check=False)
