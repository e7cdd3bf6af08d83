# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every integration test starts from: one boot of the image as a container, shared by all.

A test that needs a boot of its own (another /etc, a reboot) makes one with the `boot` fixture.
A skipped test counts as a failure: what `make check` did not run, it did not check.
"""

import os
import pathlib
import shlex
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
LOGS = TOP / "build" / "integration"


class Host:
    """A running boot of the image, entered as root by image/exec."""

    def __init__(self, name):
        self.name = name

    @property
    def pid(self):
        """PID 1 of the boot, in the pid namespace of the tests."""
        return int(pathlib.Path(f"/run/anchorhold-boot/{self.name}/leader").read_text())

    @property
    def state(self):
        """The folder on the test machine that holds the boot's var and etc."""
        return pathlib.Path(pathlib.Path(f"/run/anchorhold-boot/{self.name}/state").read_text().strip())

    def argv(self, command, user=None):
        """The command line that runs `command` (a shell line or a list) in the boot."""
        if isinstance(command, str):
            command = ["/bin/bash", "-c", command]
        if user is not None:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--", *command]
        return [str(TOP / "image" / "exec"), self.name, *map(str, command)]

    def run(self, command, check=True, timeout=60, input=None, user=None, text=True):
        """Runs a command to its end and returns it, with stdout and stderr. `check` fails the test on a non-zero status."""
        result = subprocess.run(self.argv(command, user), input=input, capture_output=True, text=text,
                                timeout=timeout, stdin=None if input is not None else subprocess.DEVNULL)
        if check and result.returncode:
            shown = command if isinstance(command, str) else shlex.join(map(str, command))
            pytest.fail(f"{shown}: status {result.returncode}\n{result.stdout}{result.stderr}", pytrace=True)
        return result

    def popen(self, command, user=None, **options):
        """Starts a command; the caller ends it."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.argv(command, user), **options)

    def systemctl(self, *args, check=True, timeout=60):
        return self.run(["systemctl", "--no-pager", *args], check=check, timeout=timeout)

    def is_active(self, unit):
        return self.run(["systemctl", "is-active", unit], check=False).stdout.strip()

    def property(self, unit, name):
        return self.run(["systemctl", "show", "--value", "-p", name, unit]).stdout.strip()

    def journal(self, *args):
        return self.run(["journalctl", "--no-pager", "-b", *args], check=False).stdout

    def write(self, path, data, mode=0o644):
        """Writes a file in the boot (text or bytes)."""
        data = data.encode() if isinstance(data, str) else data
        self.run(f'mkdir -p "$(dirname {shlex.quote(str(path))})" && cat >{shlex.quote(str(path))} '
                 f"&& chmod {mode:o} {shlex.quote(str(path))}", input=data, text=False)

    def stop(self):
        subprocess.run([TOP / "image" / "stop", self.name], check=True, timeout=90)


def start_boot(name, *options):
    done = subprocess.run([TOP / "image" / "boot", "--container", "--keep", "--forget", "--name", name, *map(str, options)],
                          capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    if done.returncode:
        pytest.exit(f"the image does not boot:\n{done.stdout}{done.stderr}", returncode=3)
    return Host(name)


def stop_boot(host):
    """Keeps the journal for whoever looks for the cause of a failure, then ends the boot."""
    LOGS.mkdir(parents=True, exist_ok=True)
    journal = host.run("journalctl --no-pager -b -o short-precise; journalctl --no-pager -b --namespace=anchorhold", check=False)
    (LOGS / f"{host.name}.journal").write_text(journal.stdout)
    host.stop()


@pytest.fixture(scope="session")
def host():
    booted = start_boot(f"check-{os.getpid()}")
    yield booted
    stop_boot(booted)


@pytest.fixture
def boot():
    """A function that boots the image again, beside the shared one, with options of image/boot."""
    booted = []

    def start(*options):
        booted.append(start_boot(f"check-{os.getpid()}-{len(booted)}", *options))
        return booted[-1]

    yield start
    for each in booted:
        if pathlib.Path(f"/run/anchorhold-boot/{each.name}").exists():
            stop_boot(each)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and a skip is a failure here: {call.excinfo.value if call.excinfo else ''}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    report = (yield).get_result()
    if report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, and a skip is a failure here"
