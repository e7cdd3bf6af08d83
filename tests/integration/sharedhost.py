# SPDX-License-Identifier: LGPL-2.1-or-later
"""The boot that the files of a process share. What a failed test left broken would fail everything after it: so, after a file in which something failed, it
is looked at, and a boot that is not in order is ended and another takes its place. Within a file nothing can be done: its fixtures hold what they set up.

The object that the tests have stays the same, and has the name of the new boot.
"""

import subprocess
import time

import pytest

import beside
import host as hosting

# What the tests change and must put back: configuration, drop-ins, and programs that something is mounted over. A line each.
PLACES = r"""find /etc/anchorhold -type f -exec sha256sum -- {} +
find /run/systemd/system /etc/systemd/system -type f
awk '$5 ~ "^/(usr|etc)/" { print "mounted: " $5 }' /proc/1/mountinfo
ls /var/lib/anchorhold/credentials | sed 's/^/credential: /'
"""
PATIENCE_S = 30
ANSWER_S = 20


def stop_boot(booted):
    """Keeps the journal for whoever looks for the cause of a failure, then ends the boot."""
    beside.BUILD.mkdir(parents=True, exist_ok=True)
    try:
        journal = booted.run("journalctl --no-pager -b -o short-precise; journalctl --no-pager -b --namespace=anchorhold", check=False)
        (beside.BUILD / f"{booted.name}.journal").write_text(journal.stdout)
    finally:
        booted.stop()


class SharedHost:
    """`start` boots one of a name. As a plugin of pytest it looks after `host` between the files."""

    def __init__(self, name, start):
        self.name, self.start, self.boots = name, start, 1
        self.failed = False
        self.host = start(name)
        self.note()

    def note(self):
        """How it is now that it is up."""
        try:
            self.before = self.places()
        except BaseException:
            self.host.stop()
            raise

    def places(self):
        return set(self.host.run(PLACES, timeout=ANSWER_S).stdout.splitlines())

    def trouble(self):
        """What is not as it was when it was up, line by line."""
        try:
            now = self.places()
            found = [f"gone: {line}" for line in self.before - now] + [f"left: {line}" for line in now - self.before if not line.startswith("credential: ")]
            for kind, options in ("failed", ["--failed"]), ("left", ["--state=active,activating,deactivating,reloading", "anchor*@*"]):
                units = self.host.systemctl("list-units", "--no-legend", "--plain", *options, timeout=ANSWER_S).stdout.splitlines()
                found += [f"{kind}: {line.split()[0]}" for line in units]
            if not self.host.is_enforced(timeout=ANSWER_S):
                found.append(f"enforcers: {self.host.status(timeout=ANSWER_S).get('enforcers', 'anchord does not answer')}")
            return sorted(found)
        except (hosting.CommandFailed, subprocess.TimeoutExpired, OSError) as error:
            return [f"it does not answer: {str(error).strip()}"]

    def look(self):
        """What is still wrong after a while: much of it ends by itself."""
        end = time.monotonic() + PATIENCE_S
        while (found := self.trouble()) and time.monotonic() < end:
            time.sleep(0.5)
        return found

    def replace(self):
        """Ends the boot, however that goes, and starts another."""
        try:
            stop_boot(self.host)
        except (subprocess.SubprocessError, OSError):
            pass                                               # the next start of any boot removes what is left of it
        self.boots += 1
        self.host.name = self.start(f"{self.name}-{self.boots}").name
        self.note()

    def look_after(self, item):
        found = self.look()
        if not found:
            return
        old = self.host.name
        self.replace()
        lines = [f"after {item.path.name} the host {old} was not in order, and {self.host.name} is in its place:", *found]
        beside.aloud(item, "\n    ".join(lines))
        item.config.tables.append(("hosts that were replaced", lines))

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or report.failed

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item, nextitem):
        outcome = yield                                        # with that, of a file's last test, everything of the file
        self.failed = self.failed or outcome.excinfo is not None
        if nextitem is None or nextitem.path == item.path:
            return
        if self.failed:
            self.look_after(item)
        self.failed = False
