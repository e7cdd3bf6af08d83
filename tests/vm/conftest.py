# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests on the image as a full virtual machine (`make check-vm`): what a container cannot show. All files of that share one machine, which
they take through its life in the order of their names; a boot of it takes a minute. Each file of `make soak` has a machine of its own."""

import json
import os
import pathlib
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "vm"), str(TOP / "tests" / "integration")]

import images as next_images  # noqa: E402
import vmhost  # noqa: E402


# A workflow of the site, whose guest may look up one name; an operator adds another to what a run may reach, and the guest sees that.
POLICY = {
    "egress/wait.json": {"description": "One name.", "allow": [{"name": "stays.example.org", "ports": [443], "tls": "pass"}], "deny": []},
    "workflows/wait.json": {"description": "Waits for a name.", "template": "base", "egress": "wait", "repository": False,
                            "limits": {"memory": "512M", "vcpus": 1, "disk": "1G", "run": "2h", "attempts": 1, "output": "1M"},
                            "steps": [{"name": "exec", "kind": "exec", "timeout": "2h"}]},
}


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
    with vmhost.booted("check-vm", "--etc", etc, "--attach", next_images.make_disk(images)) as machine:
        yield machine


@pytest.fixture(scope="session")
def soak_images():
    return next_images.make_for_soak()


@pytest.fixture(scope="session")
def soak_digests(soak_images):
    return {number: next_images.digest(folder) for number, folder in soak_images.items()}


@pytest.fixture(scope="session")
def soak_disk(soak_images):
    return next_images.make_disk(soak_images)


@pytest.fixture(scope="module")
def soaked(soak_disk):
    """A machine for one file of `make soak`."""
    with vmhost.booted("soak", "--attach", soak_disk) as machine:
        yield machine


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and a skip is a failure here"


@pytest.hookimpl(trylast=True)
def pytest_runtest_logstart(nodeid, location):
    os.write(2, f"  … {nodeid}\n".encode())
