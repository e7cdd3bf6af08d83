# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests in several processes side by side (pytest-xdist), each with a boot of its own; a file's tests stay together.

A test marked `quiet` (a figure, a bound of a second or so) has the machine for itself: it begins when no other runs, and none begins meanwhile. Also
here is what must be told from process to process, and what is shown while nothing is finished.
"""

import contextlib
import fcntl
import os
import pathlib
import threading
import time

import pytest

# Begun first, so that the processes end together.
LONGEST = ("test_run_result", "test_egress_never_off", "test_run_rogue_guest", "test_run_crash", "test_egress_guest", "test_run_supervisor", "test_metering_caps",
           "test_egress_strict", "test_egress_agreement", "test_run_anchorctl", "test_run_import", "test_egress_names", "test_egress_never_off_daemons")
BUILD = pathlib.Path(__file__).resolve().parents[2] / "build/integration"


class Turns:
    """One lock, shared by tests and held alone by quiet ones. Who wants it takes the gate first, so that a quiet test is not waited past."""

    def __init__(self):
        BUILD.mkdir(parents=True, exist_ok=True)
        self.gate, self.turn = (os.open(BUILD / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in ("gate", "turn"))

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.turn, fcntl.LOCK_EX if item.get_closest_marker("quiet") else fcntl.LOCK_SH)
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        yield
        fcntl.flock(self.turn, fcntl.LOCK_UN)


class Order:
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


class Progress(threading.Thread):
    """Nothing is silent for long: a test that takes more than ten seconds says so while it runs."""

    def __init__(self, config):
        super().__init__(daemon=True)
        self.config = config
        self.running, self.stopped = {}, threading.Event()     # since when, and when that was last said

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = [time.monotonic()] * 2

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)

    def run(self):
        while not self.stopped.wait(0.5):
            now = time.monotonic()
            for nodeid, times in list(self.running.items()):
                if now - times[1] >= 9:
                    os.write(self.terminal(), f"\n  … {nodeid} ({now - times[0]:.0f} s)\n".encode())
                    times[1] = now

    def terminal(self):
        """Standard output as it was before pytest put its capture in front of it."""
        capture = getattr(self.config.pluginmanager.get_plugin("capturemanager"), "_global_capturing", None)
        return getattr(getattr(capture, "out", None), "targetfd_save", 1)

    def pytest_unconfigure(self):
        self.stopped.set()


class Tables:
    """(title, lines) that a test wants seen even if it passes: `config.tables`."""

    def __init__(self, config):
        self.config, self.begun = config, time.time()
        config.tables = []

    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["tables"] = self.config.tables

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.config.tables += getattr(node, "workeroutput", {}).get("tables", [])

    def pytest_terminal_summary(self, terminalreporter):
        for title, lines in self.config.tables:
            terminalreporter.section(title, sep="-")
            for line in lines:
                terminalreporter.write_line(line)
        journals = [path for path in sorted(BUILD.glob("*.journal")) if path.stat().st_mtime >= self.begun]
        if journals and (terminalreporter.stats.get("failed") or terminalreporter.stats.get("error")):
            terminalreporter.section("what the hosts of these tests wrote into their journals", sep="-")
            for path in journals:
                terminalreporter.write_line(str(path))


@contextlib.contextmanager
def once(config, name):
    """True for the first process of the session that gets here; the others wait until its block has ended, and get False."""
    session = getattr(config, "workerinput", {}).get("testrunuid", str(os.getpid()))
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / f"{name}.once", "a+", encoding="ascii") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        first = f.read() != session
        yield first
        f.truncate(0)
        f.write(session)
        f.flush()


def configure(config):
    config.addinivalue_line("markers", "quiet: nothing else may run meanwhile")
    config.pluginmanager.register(Tables(config))
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Turns())
        config.pluginmanager.register(Order())
    else:
        progress = Progress(config)
        config.pluginmanager.register(progress)
        progress.start()


def give_up(config, message):
    """Nothing can be tested: ends the session, of all processes."""
    if hasattr(config, "workerinput"):
        config.tables.append(("why nothing was tested", message.splitlines()))
    pytest.exit(message, returncode=pytest.ExitCode.INTERRUPTED)
