# SPDX-License-Identifier: LGPL-2.1-or-later
"""The harness itself, on sessions of made-up tests: what it says, and when."""

import os
import pathlib
import select
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
CONFTEST = f"""
import pathlib, sys
sys.dont_write_bytecode = True
sys.path.insert(0, {str(HERE)!r})
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
    with subprocess.Popen([*PYTEST, *options, "."], cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            said = read_until(process, "the floor\n")
            assert "  ✗ test_a.py::test_bad (call): AssertionError: the sky\n" in said and "✗ test_a.py::test_bad (teardown): OSError: the floor\n" in said, said
            assert process.poll() is None and "= FAILURES =" not in said, said
        finally:
            (folder / "go").touch()
        said += process.communicate(timeout=60)[0].decode()
        assert process.returncode == 1 and "= FAILURES =" in said and said.count("✗") == 2, said
