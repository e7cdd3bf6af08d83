# SPDX-License-Identifier: LGPL-2.1-or-later
"""The harness itself, on sessions of made-up tests: what it says, and when."""

import os
import pathlib
import select
import subprocess
import sys
import time

import pytest

import host as hosting
from conftest import TOP
from sharedhost import SharedHost
from waiting import wait_for

HERE = pathlib.Path(__file__).resolve().parent
CONFTEST = f"""
import pathlib, sys
sys.dont_write_bytecode = True
sys.path[:0] = {[str(HERE), str(HERE.parent / "world")]!r}
import beside
beside.BUILD = pathlib.Path(__file__).parent / "build"
def pytest_configure(config):
    beside.configure(config)
"""
BESIDE = ["-n", "2", "--dist", "loadfile", "--max-worker-restart=0"]
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-q", "--tb=short"]


@pytest.fixture
def session(tmp_path):
    """A function: a folder with that conftest.py and these files of tests."""
    def make(**files):
        (tmp_path / "conftest.py").write_text(CONFTEST + files.pop("conftest", ""))
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        return tmp_path

    return make


def finish(argv, folder):
    return subprocess.run(argv, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)


def read_until(process, what, seconds=60):
    """What it printed, up to that."""
    said, end = "", time.monotonic() + seconds
    while what not in said:
        ready, _, _ = select.select([process.stdout], [], [], end - time.monotonic())
        data = os.read(process.stdout.fileno(), 65536) if ready else b""
        assert data, said
        said += data.decode()
    return said


WAITS = """
import pathlib, time
def test_waits():
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
"""


@pytest.mark.parametrize("options", [BESIDE, []], ids=["beside", "alone"])
def test_a_failure_is_named_at_once(session, options):
    """While others still run, with its reason, each part of a test that fails, and nothing else."""
    folder = session(test_a="import pytest\n@pytest.fixture\ndef broken():\n    yield\n    raise OSError('the floor')\n"
                            "def test_fine(): pass\ndef test_bad(broken): assert 1 == 2, 'the sky\\nis falling'\n", test_b=WAITS)
    with subprocess.Popen([*PYTEST, *options, "."], cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as process:
        try:
            said = read_until(process, "the floor\n")
            assert "  ✗ test_a.py::test_bad (call): AssertionError: the sky\n" in said, said
            assert "  ✗ test_a.py::test_bad (teardown): OSError: the floor\n" in said, said
            assert process.poll() is None and "= FAILURES =" not in said, said
        finally:
            (folder / "go").touch()
        said += process.communicate(timeout=60)[0].decode()
        assert process.returncode == 1 and "= FAILURES =" in said and said.count("✗") == 2, said


SHARED = """
import pytest, sharedhost
class Host:
    def __init__(self, name):
        self.name, self.broken = name, False
class Shared(sharedhost.SharedHost):
    places = lambda self: set()
    trouble = lambda self: ["the roof"] if self.host.broken else []
sharedhost.PATIENCE_S = 0
def stop_boot(host):
    host.broken = False
    raise OSError("does not stop")
sharedhost.stop_boot = stop_boot
@pytest.fixture(scope="session")
def host(request):
    shared = Shared("boot", Host)
    request.config.pluginmanager.register(shared)
    yield shared.host
    request.config.pluginmanager.unregister(shared)
"""


def test_a_failure_stays_one(session):
    """A host that a failed test left broken is another one for the next file, also when it broke in a set-up or a tear-down, and cannot be stopped; one that
    is in order, or that nothing failed on, is the same."""
    folder = session(conftest=SHARED,
                     test_a="def test_breaks(host):\n    host.broken = True\n    assert 0\ndef test_same_file(host): assert host.name == 'boot'\n",
                     test_b="def test_replaced(host): assert host.name == 'boot-2' and not host.broken\ndef test_fails(host): assert 0\n",
                     test_c="def test_in_order(host):\n    assert host.name == 'boot-2'\n    host.broken = True\n",
                     test_d="import pytest\n@pytest.fixture(scope='module')\ndef broken(host):\n    yield\n    assert 0\n"
                            "def test_nothing_had_failed(host, broken): assert host.name == 'boot-2' and host.broken\n",
                     test_e="def test_replaced_again(host): assert host.name == 'boot-3'\n")
    for options in ([], BESIDE[:1] + ["1"] + BESIDE[2:]):
        done = finish([*PYTEST, *options, "."], folder)
        assert done.returncode == 1 and "2 failed, 5 passed, 1 error in" in done.stdout, done.stdout + done.stderr
        said = "after %s the host %s was not in order, and %s is in its place:"
        for told in said % ("test_a.py", "boot", "boot-2"), said % ("test_d.py", "boot-2", "boot-3"):
            assert f"  ! {told}\n    the roof\n" in done.stdout and f"\n{told}\nthe roof\n" in done.stdout, done.stdout      # at once, and at the end
        assert done.stdout.count("was not in order") == 4, done.stdout


BROKEN = {  # how, what is said, and how that is undone
    "a stand-in": ("mkdir -p /run/systemd/system/anchord.service.d && touch /run/systemd/system/anchord.service.d/test.conf",
                   "left: /run/systemd/system/anchord.service.d/test.conf", "rm -r /run/systemd/system/anchord.service.d"),
    "another host.json": ("cp /etc/anchorhold/host.json /run/kept; echo >>/etc/anchorhold/host.json", "gone: ", "cp /run/kept /etc/anchorhold/host.json"),
    "no credential": ("mv /var/lib/anchorhold/credentials/kept /run/kept", "gone: credential: kept", "mv /run/kept /var/lib/anchorhold/credentials/kept"),
    "another program": ("mount --bind /dev/null /usr/libexec/anchorhold/anchor-proxy", "left: mounted: /usr/libexec/anchorhold/anchor-proxy",
                        "umount /usr/libexec/anchorhold/anchor-proxy"),
    "a frozen daemon": ("systemctl service-watchdogs no; systemctl kill --signal=STOP anchor-auditd.service", "enforcers: {",
                        "systemctl kill --signal=CONT anchor-auditd.service; systemctl service-watchdogs yes"),
    "a failed unit": ("systemd-run --quiet --wait --unit=fails false", "failed: fails.service", "systemctl reset-failed fails.service"),
    "no anchord": ("systemctl stop anchord.socket anchord-run.socket anchord-spec.socket anchord.service", "enforcers: anchord does not answer",
                   "systemctl start anchord.service"),
}


def test_what_a_broken_host_is(tmp_path):
    """Each kind on its own, and each is mended; then a boot that has ended, and another that takes its place. A credential more is not one: the files that
    share a boot add theirs."""
    (tmp_path / "etc").mkdir()
    hosting.make_etc(tmp_path / "etc", {"accel": "tcg"})

    shared = SharedHost(f"check-{os.getpid()}-shared", lambda name: hosting.start_boot(name, "--etc", tmp_path / "etc"))
    try:
        shared.host.seal_credential("kept", "of-a-test")
        shared.note()
        shared.host.seal_credential("more", "of-a-test")
        for what, (broken, said, mended) in BROKEN.items():
            wait_for(lambda: not shared.trouble(), 60, shared.trouble)
            shared.host.run(broken, check=False)
            wait_for(lambda: any(line.startswith(said) for line in shared.trouble()), 60, lambda: f"{what}: {shared.trouble()}")
            shared.host.run(mended)
        wait_for(lambda: not shared.trouble(), 60, shared.trouble)
        old = shared.host.name
        hosting.Host(old).stop()
        assert shared.trouble()[0].startswith("it does not answer: ")
        shared.replace()
        assert shared.host.name != old and not (hosting.BOOTS / old).exists()
        wait_for(lambda: not shared.trouble(), 60, shared.trouble)
    finally:
        shared.host.stop()


UNSTEADY = """
import pathlib, pytest
@pytest.mark.parametrize("n", range(%d))
def test_unsteady(n):
    there = pathlib.Path(f"tried {n}")
    tried = there.exists()
    there.touch()
    assert tried
def test_fine(): pass
"""
BROKEN_TEST = "def test_broken(): assert 0\n"
ONCE_MORE = "== unsteady or broken: "


def again(folder, *what, options=()):
    return finish([TOP / "tests/again", "build/failed", *PYTEST, "--", *options, *what], folder)


@pytest.mark.parametrize("options", [BESIDE, []], ids=["beside", "alone"])
@pytest.mark.parametrize("n, files, status, last", [
    (12, {}, 0, "12 passed in"),
    (1, {"test_b": BROKEN_TEST}, 1, "1 failed, 1 passed in"),
    (13, {}, 1, "13 failed, 1 passed in")], ids=["12", "1 and a broken one", "13"])
def test_a_few_that_fail_run_once_more(session, options, n, files, status, last):
    """The names of all that failed stand there twice, and what decides is the last line. The same without tests/again fails."""
    folder = session(test_a=UNSTEADY % n, **files)
    done = again(folder, ".", options=options)
    assert done.returncode == status and last in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert (ONCE_MORE in done.stdout) == (n <= 12), done.stdout
    if n <= 12:
        first, second = done.stdout.split(ONCE_MORE)
        names = [f"test_a.py::test_unsteady[{i}]" for i in range(n)] + ["test_b.py::test_broken"] * len(files)
        assert all(f"FAILED {name}" in first and f"  {name}\n" in second for name in names) and "test_fine" not in second, done.stdout
    for tried in folder.glob("tried *"):
        tried.unlink()
    assert finish([*PYTEST, *options, "."], folder).returncode == 1


OTHERWISE = {
    "a file that cannot be read": {"test_b": "import nothing_of_that_name\n"},
    "an interruption": {"test_b": "import pytest\ndef test_stops(): pytest.exit('enough')\n"},
    "a process that dies": {"test_b": "import os\ndef test_dies(): os._exit(1)\ndef test_not_run(): pass\n"},
    "an end of the harness": {"conftest": "def pytest_sessionfinish(): raise OSError\n"},
    "an error within": {"conftest": "def pytest_runtest_logfinish(): raise OSError\n"},
    "all together": {"test_b": "import pytest\n@pytest.fixture(scope='session')\ndef host(request):\n    yield\n    request.config.of_all.append('')\n"
                                "    assert 0\ndef test_host(host): pass\n"},
}


@pytest.mark.parametrize("options", [BESIDE, []], ids=["beside", "alone"])
@pytest.mark.parametrize("what", OTHERWISE)
def test_what_else_goes_wrong_is_not_tried_again(session, what, options):
    """A second time would hide what else was wrong: the first status stands. The control is above: the one failure alone would have been tried."""
    folder = session(test_a=UNSTEADY % 1, **OTHERWISE[what])
    done = again(folder, ".", options=options)
    (folder / "tried 0").unlink(missing_ok=True)
    assert done.returncode == finish([*PYTEST, *options, "."], folder).returncode != 0 and ONCE_MORE not in done.stdout, done.stdout + done.stderr


def test_nothing_found_is_not_tried_again(session):
    folder = session(test_a=UNSTEADY % 1)
    assert again(folder, "test_a.py").returncode == 0                                  # the control
    for what, status in (["-k", "nothing", "."], 5), (["nowhere"], 4):
        done = again(folder, *what)
        assert done.returncode == status and ONCE_MORE not in done.stdout, done.stdout + done.stderr


def test_it_is_asked_for():
    for options, there in ((), False), (("AGAIN=1",), True), (("AGAIN=0",), False), (("AGAIN=1", "T=harness"), True):
        done = finish(["make", "-n", "integration", *options], TOP)
        assert done.returncode == 0 and ("tests/again build/integration/failed" in done.stdout) == there == (" -- " in done.stdout), done
