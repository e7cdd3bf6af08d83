# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every integration test starts from: one boot of the image as a container, joined to one world, shared by all.

A test that needs a boot of its own (another /etc, a reboot) makes one with the `boot` fixture.
A skipped test counts as a failure: what `make check` did not run, it did not check.
"""

import os
import pathlib
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "world"))

import beside  # noqa: E402
import host as hosting  # noqa: E402
import world as worlds  # noqa: E402
from egressrun import Anchord, EgressRun  # noqa: E402
from sharedhost import SharedHost, stop_boot  # noqa: E402
from waiting import wait_for  # noqa: E402


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """The demo's repository on the test machine."""
    return hosting.make_repository(tmp_path_factory.mktemp("repository") / "csvsum")


@pytest.fixture(scope="session")
def world(tmp_path_factory, repository):
    """The provider, the git server and the origins that a run may or may not reach."""
    there = worlds.World(tmp_path_factory.mktemp("world"))
    there.add_repository(repository, "csvsum.git")
    there.start()
    yield there
    there.stop()


@pytest.fixture(scope="session")
def policies():
    """Policy files of the tests' own, in the shared boot's /etc: (kind, name, object)."""
    return hosting.load_policies(TOP / "tests" / "integration" / "policy")


@pytest.fixture(scope="session")
def host(request, world, repository, policies):
    def start(name):
        try:
            return hosting.start_for_tests(name, world, policies, repository)
        except hosting.BootFailed as error:
            beside.give_up(request.config, str(error))

    shared = SharedHost(f"check-{os.getpid()}", start)
    request.config.pluginmanager.register(shared)
    yield shared.host
    request.config.pluginmanager.unregister(shared)
    try:
        # after all that: the record of it is whole, and no daemon is left failed
        shared.host.run(["anchorctl", "audit", "verify"])
        assert shared.host.systemctl("--failed", "--no-legend", "--plain").stdout == ""
    except BaseException as error:
        request.config.of_all.append(str(error))
        raise
    finally:
        stop_boot(shared.host)


@pytest.fixture(scope="session")
def archive(request):
    """The folder of the image as an archive, as `make image` leaves it."""
    with beside.once(request.config, "archive") as first:
        if first:
            subprocess.run([TOP / "image" / "oci", "--no-lock"], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return TOP / "build" / "image"


@pytest.fixture(scope="module")
def anchord(host):
    """anchord's place, for a file whose tests make the calls that only anchord may make. What the file before took away is back, to every daemon."""
    wait_for(host.is_enforced, 30, host.status)
    it = Anchord(host)
    try:
        it.take()
        yield it
    finally:
        it.restore()


@pytest.fixture(scope="module")
def run(request, host, anchord):
    """A run of the file's own (its RUN), with a stand-in for the guest. It may reach the world's names."""
    it = EgressRun(host, anchord, request.module.RUN, "exec-names")
    yield it
    it.stop()


@pytest.fixture(scope="module")
def www(run):
    return run.address_of("www.example.org")


@pytest.fixture
def boot():
    """A function that boots the image again, beside the shared one, with options of image/boot."""
    booted = []

    def start(*options):
        booted.append(hosting.start_boot(f"check-{os.getpid()}-{len(booted)}", *options))
        return booted[-1]

    yield start
    for each in booted:
        if (hosting.BOOTS / each.name).exists():
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


def pytest_configure(config):
    beside.configure(config)
