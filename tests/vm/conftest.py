# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests on the image as a full virtual machine (`make check-vm`): what a container cannot show. One machine at a time."""

import os
import pathlib
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "vm"))

import vmhost  # noqa: E402

LOGS = TOP / "build" / "vm"


def end(machine):
    """Keeps what helps whoever looks for the cause of a failure, then ends the machine."""
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        journal = machine.run("journalctl --no-pager -o short-precise -n 5000; journalctl --no-pager --namespace=anchorhold -n 2000", check=False, timeout=60)
        (LOGS / f"{machine.name}.journal").write_text(journal.stdout)
    finally:
        (LOGS / f"{machine.name}.console").write_text(machine.console())
        machine.stop()


@pytest.fixture(scope="module")
def machine(request, tmp_path_factory):
    """A machine of the image whose /var is empty, on its first boot; with what the file's `OPTIONS()` gives to image/boot."""
    options = getattr(request.module, "options", lambda _: [])(tmp_path_factory.mktemp("machine"))
    booted = vmhost.start(vmhost.name_of(request.module.__name__.removeprefix("test_vm_").replace("_", "-")), *options)
    yield booted
    end(booted)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and a skip is a failure here"


@pytest.hookimpl(trylast=True)
def pytest_runtest_logstart(nodeid, location):
    os.write(2, f"  … {nodeid}\n".encode())
