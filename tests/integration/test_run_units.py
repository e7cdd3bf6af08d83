# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each unit of a run, stopped or killed by hand: the item says which one it was, and what happened to it.

What may die without the run's end is in test_run_crash.py.
"""

import re

import pytest

from test_run_crash import Live, assert_gone
from test_run_result import OWN, REPOSITORY
from waiting import wait_for

STOP, KILL, TERM = ("stop",), ("kill", "--signal=KILL"), ("kill", "--signal=TERM")

# verb, unit, and what the reason begins with
ENDS = [
    (STOP, "anchor-net@RUN.service", "anchor-net@RUN.service was stopped: "),
    (STOP, "anchor-netlog@RUN.service", "anchor-netlog@RUN.service was stopped: "),
    (STOP, "anchor-vm@RUN.socket", "anchor-vm@RUN.socket was stopped: "),
    (STOP, "anchor-vm@RUN.service", "anchor-vm@RUN.service was stopped: "),
    (STOP, "anchor-probe@RUN.service", "anchor-probe@RUN.service was stopped: "),
    (STOP, "anchor-check@RUN.service", "anchor-check@RUN.service was stopped: "),
    (STOP, "anchor-run@RUN.service", "anchor-run@RUN.service was stopped"),
    (KILL, "anchor-vm@RUN.service", "anchor-vm@RUN.service ended: signal 9: vm-gone: "),
    (KILL, "anchor-probe@RUN.service", "anchor-probe@RUN.service ended: signal 9: "),
    (KILL, "anchor-check@RUN.service", "anchor-check@RUN.service ended: signal 9: "),
    (KILL, "anchor-run@RUN.service", "anchor-run@RUN.service ended without a result: signal 9"),
    (TERM, "anchor-probe@RUN.service", "anchor-probe@RUN.service ended: "),
    (TERM, "anchor-check@RUN.service", "anchor-check@RUN.service ended: "),
    (TERM, "anchor-run@RUN.service", "anchor-run@RUN.service ended without a result: "),
]
NAMES = [f"{' '.join(verb)} {unit}" for verb, unit, _ in ENDS]


@pytest.fixture(scope="module")
def victims(host, request):
    """One for each that is to be tried, of which as many run as the host lets run at once: the next boots while one is looked at."""
    chosen = [item.callspec.id for item in request.session.items if getattr(item, "originalname", "") == "test_reason_names_the_unit"]
    yield {name: Live(host, "exec", "echo up; sleep 600") for name in chosen}
    host.anchorctl("stop", "--all", check=False)


@pytest.mark.parametrize("verb, unit, reason", ENDS, ids=NAMES)
def test_reason_names_the_unit(host, victims, verb, unit, reason):
    victim = victims[f"{' '.join(verb)} {unit}"]
    victim.await_line("^up$", seconds=180)
    run = victim.ready().run
    host.systemctl(*verb, unit.replace("RUN", run))
    shown = victim.ended(30)
    assert shown["state"] == "exhausted" and shown["reason"].startswith(reason.replace("RUN", run)), shown["reason"]
    assert shown["runs"][0]["reason"] == shown["reason"]
    # no unit is named twice, nor one that only followed
    assert len(re.findall("was stopped|signal|ended: ", shown["reason"].replace("ended: signal", "signal"))) <= 1, shown["reason"]
    assert_gone(host, run)


def test_control_a_guest_that_ends_by_itself(host):
    done = host.exec_run("echo up; echo o >/proc/sysrq-trigger; sleep 60")
    assert done.returncode == 1
    assert host.show(host.items()[0]["id"])["reason"] == "vm-gone: the virtual machine has ended"


@pytest.fixture
def slow_import(host):
    """An import whose first step takes its time."""
    folder = "/run/systemd/system/anchor-import@.service.d"
    host.write(f"{folder}/slow.conf", "[Service]\nExecStartPre=/bin/sleep 120\n")
    host.systemctl("daemon-reload")
    yield
    host.run(f"rm -r {folder}")
    host.systemctl("daemon-reload")


@pytest.mark.parametrize("verb, reason", [
    (STOP, "import: anchor-import@RUN.service was stopped"),
    (("kill",), "import: anchor-import@RUN.service did not start: failed, killed in its first step"),
    (KILL, "import: anchor-import@RUN.service did not start: failed, killed in its first step"),
], ids=["stop", "kill TERM", "kill KILL"])
def test_import_that_is_ended_while_it_starts(host, slow_import, verb, reason):
    item = host.anchorctl("submit", "--workflow", "script-agent", "--repo", REPOSITORY, "--base", "main", "--task", OWN).stdout.split()[-1]

    def importing():
        run = host.show(item)["run"]
        return run if run and host.is_active(f"anchor-import@{run}.service") == "activating" else None

    run = wait_for(importing, 90, lambda: str(host.show(item)))
    host.systemctl(*verb, f"anchor-import@{run}.service")
    wait_for(lambda: host.show(item)["state"] == "exhausted", 20, lambda: str(host.show(item)))
    assert host.show(item)["reason"] == reason.replace("RUN", run)
    assert_gone(host, run)
