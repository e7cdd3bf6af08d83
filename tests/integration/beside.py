# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests in several processes side by side (pytest-xdist), each with a boot of its own; a file's tests stay together.

A test marked `quiet` (a figure, a bound of a second or so) has the machine for itself: it begins when no other runs, and none begins meanwhile. A file
marked `quiet("first")` measures in its set-up alone, which its first test waits for: the others only look at what came of it. Also here is what must be told
from process to process, and what is shown while nothing is finished.
"""

import contextlib
import fcntl
import os
import pathlib
import threading
import time

import pytest

# Begun first, so that the processes end together, and that no quiet test waits for one of theirs.
LONGEST = ("test_run_result", "test_egress_never_off", "test_run_rogue_guest", "test_credential_clients", "test_image_disk_full", "test_run_supervisor",
           "test_metering_caps", "test_egress_strict", "test_egress_agreement", "test_credential_places", "test_run_import", "test_egress_names",
           "test_egress_never_off_daemons", "test_run_crash", "test_egress_guest", "test_run_anchorctl")
# These wait most of the time: without a microVM, or with one at a time that does little. They have a process of their own beside those whose guests keep the
# processors busy.
LIGHT = {"test_credential_origin", "test_credential_volume", "test_egress_flood", "test_egress_http", "test_egress_live", "test_egress_lost",
         "test_egress_names", "test_egress_never_off", "test_egress_never_off_daemons", "test_egress_policy", "test_egress_proxy",
         "test_egress_reload", "test_egress_resolution", "test_harness", "test_image_boot", "test_image_demo", "test_image_disk", "test_image_docs",
         "test_image_hardening", "test_image_lint", "test_image_make", "test_image_oci", "test_run_audit", "test_run_egress", "test_run_import",
         "test_run_net", "test_run_privileges", "test_run_supervisor"}
LIGHT_PROCESS = "gw2"
ALOUD = "aloud"                                                # the name of such a property of a report
BUILD = pathlib.Path(__file__).resolve().parents[2] / "build/integration"


class Turns:
    """One lock, shared by tests and held alone by quiet ones. Who wants it takes the gate first, so that a quiet test is not waited past."""

    def __init__(self):
        BUILD.mkdir(parents=True, exist_ok=True)
        self.gate, self.turn = (os.open(BUILD / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in ("gate", "turn"))
        self.file = None                                       # of the last test

    def is_quiet(self, item):
        marker, before, self.file = item.get_closest_marker("quiet"), self.file, item.path
        return marker is not None and (item.path != before or "first" not in marker.args)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        kind = fcntl.LOCK_EX if self.is_quiet(item) else fcntl.LOCK_SH
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.turn, kind)
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        yield
        fcntl.flock(self.turn, fcntl.LOCK_UN)


class Order:
    """Files with quiet tests come last, beside each other: a quiet test waits until the one that runs beside it has ended, and many of the others' are long."""

    def pytest_collection_modifyitems(self, items):
        quiet = {item.path for item in items if item.get_closest_marker("quiet")}
        items.sort(key=lambda item: (item.path in quiet, LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)))


class Scheduling:
    """Whole files, in their order. One process has nothing but files of LIGHT; the others take of these what is left when they have done all else."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        from xdist.scheduler import LoadFileScheduling             # one process alone goes without it

        class ByKind(LoadFileScheduling):
            def next_file(self, node):
                light = [scope for scope in self.workqueue if pathlib.Path(scope).stem in LIGHT]
                if node.gateway.id == LIGHT_PROCESS:
                    return next(iter(light), None)
                return next(iter(scope for scope in self.workqueue if scope not in light), next(iter(light), None))

            def _assign_work_unit(self, node):
                if scope := self.next_file(node):
                    self.workqueue.move_to_end(scope, last=False)
                super()._assign_work_unit(node)

            def _reschedule(self, node):
                if self.workqueue and not self.next_file(node):
                    if not node.shutting_down:
                        node.shutdown()
                else:
                    super()._reschedule(node)

        return ByKind(config, log)


class Progress(threading.Thread):
    """Nothing is silent for long: a test that takes more than ten seconds says so while it runs, and so does a time in which none does. A test that fails is
    named at once, with the beginning of its reason, and so is what a process has to say aloud()."""

    def __init__(self, config):
        super().__init__(daemon=True)
        self.config = config
        self.running, self.stopped = {}, threading.Event()     # since when
        self.said = time.monotonic()                           # anything at all, a finished test's sign too

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)
        self.said = time.monotonic()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.say(f"  ✗ {report.nodeid} ({report.when}): {reason_of(report)}")
        if report.when == "teardown":
            for _, text in (told for told in report.user_properties if told[0] == ALOUD):
                self.say(f"  ! {text}")

    def run(self):
        while not self.stopped.wait(0.5):
            now = time.monotonic()
            if now - self.said < 8:
                continue
            long = [f"  … {nodeid} ({now - since:.0f} s)" for nodeid, since in list(self.running.items()) if now - since >= 8]
            self.say(*(long or ["  … tests begin"]))

    def say(self, *lines):
        os.write(self.terminal(), "".join(f"{line}\n" for line in ("", *lines)).encode())
        self.said = time.monotonic()

    def terminal(self):
        """Standard output as it was before pytest put its capture in front of it."""
        capture = getattr(self.config.pluginmanager.get_plugin("capturemanager"), "_global_capturing", None)
        return getattr(getattr(capture, "out", None), "targetfd_save", 1)

    def pytest_unconfigure(self):
        self.stopped.set()


def reason_of(report):
    """The first line of why a test failed, as far as a line goes."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
    return lines[0][:200] if lines else "no reason given"


def aloud(item, text):
    """Has that said at the end of this test, whatever came of it, by the one process that has the terminal."""
    item.user_properties.append((ALOUD, text))


class Again:
    """Leaves what failed in BUILD/failed, a line each, for tests/again to try once more: only if that is all that went wrong. Every test that was found has
    run to its end (a process that dies takes the rest of its tests along), nothing could not be read, and no failure is of all tests together."""

    def __init__(self, config):
        self.config, self.found, self.through, self.failed, self.other = config, None, set(), {}, False
        (BUILD / "failed").unlink(missing_ok=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self.found = set(ids)

    def pytest_collectreport(self, report):
        self.other = self.other or report.failed

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.through.add(report.nodeid)
        if report.failed:
            self.failed[report.nodeid] = True

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session, exitstatus):
        (yield).get_result()                                   # if that fails, Python's status is 1 as well
        found = {item.nodeid for item in getattr(session, "items", [])} if self.found is None else self.found
        if exitstatus == pytest.ExitCode.TESTS_FAILED and found == self.through and not self.other and not self.config.of_all:
            BUILD.mkdir(parents=True, exist_ok=True)
            (BUILD / "failed").write_text("".join(f"{self.config.cwd_relative_nodeid(nodeid)}\n" for nodeid in self.failed))


class Tables:
    """(title, lines) that a test wants seen even if it passes: `config.tables`. And failures that no test has alone: `config.of_all`."""

    def __init__(self, config):
        self.config, self.begun = config, time.time()
        config.tables, config.of_all = [], []

    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput.update(tables=self.config.tables, of_all=self.config.of_all)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        for told in "tables", "of_all":
            getattr(self.config, told).extend(getattr(node, "workeroutput", {}).get(told, []))

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
    config.addinivalue_line("markers", "quiet: nothing else may run meanwhile; quiet('first'): beside the file's first test")
    config.pluginmanager.register(Tables(config))
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Turns())
        config.pluginmanager.register(Order())
    else:
        config.pluginmanager.register(Scheduling())
        config.pluginmanager.register(Again(config))
        progress = Progress(config)
        config.pluginmanager.register(progress)
        progress.start()


def give_up(config, message):
    """Nothing can be tested: ends the session, of all processes."""
    if hasattr(config, "workerinput"):
        config.tables.append(("why nothing was tested", message.splitlines()))
    pytest.exit(message, returncode=pytest.ExitCode.INTERRUPTED)
