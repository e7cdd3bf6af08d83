# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests on the image as a full virtual machine (`make check-vm`): what a container cannot show. All files share one machine, which they
take through its life in the order of their names; a boot of it takes a minute."""

import json
import os
import pathlib
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "vm"), str(TOP / "tests" / "integration")]

import images as next_images  # noqa: E402
import vmhost  # noqa: E402

LOGS = TOP / "build" / "vm"

# A workflow of the site, whose guest may look up one name; an operator adds another to what a run may reach, and the guest sees that.
POLICY = {
    "egress/wait.json": {"description": "One name.", "allow": [{"name": "stays.example.org", "ports": [443], "tls": "pass"}], "deny": []},
    "workflows/wait.json": {"description": "Waits for a name.", "template": "base", "egress": "wait", "repository": False,
                            "limits": {"memory": "512M", "vcpus": 1, "disk": "1G", "run": "2h", "attempts": 1, "output": "1M"},
                            "steps": [{"name": "exec", "kind": "exec", "timeout": "2h"}]},
}


def end(machine):
    """Keeps what helps whoever looks for the cause of a failure, then ends the machine."""
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        journal = machine.run("journalctl --no-pager -o short-precise -n 20000; journalctl --no-pager --namespace=anchorhold -n 5000", check=False, timeout=120)
        (LOGS / "machine.journal").write_text(journal.stdout)
    finally:
        (LOGS / "machine.console").write_text(machine.console())
        (LOGS / "machine.starts").write_text((machine.folder / "setup.log").read_text())
        machine.stop()


@pytest.fixture(scope="session")
def images():
    """{number: folder} of the images that there are for the machine."""
    return next_images.make()


@pytest.fixture(scope="session")
def digests(images):
    return {number: next_images.digest(folder) for number, folder in images.items()}


@pytest.fixture(scope="session")
def machine(images, tmp_path_factory):
    """A machine of the image whose /var is empty, on its first boot, with the site's policy in /etc and the other images on a second disk."""
    etc = tmp_path_factory.mktemp("site")
    for name, policy in POLICY.items():
        next_images.write(etc / "anchorhold/policy" / name, json.dumps(policy))
    vmhost.install(TOP / "build/image/disk")
    booted = vmhost.start(f"check-vm-{os.getpid()}", "--etc", etc, "--attach", next_images.make_disk(images))
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
