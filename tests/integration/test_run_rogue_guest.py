# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests that never answer, flood the channel or send what is no frame: each run ends with a reason, and
nothing else on the host notices."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from daemons import Daemons
from egressrun import records
from waiting import wait_for

TOP = pathlib.Path(__file__).resolve().parents[2]
INIT = TOP / "build/plain/guest/rogue-init"
UNIT_STARTED = "39f53479d3a045ac8e11786248231fbf"            # PID 1's "Started"
MODES = ["hang", "reboot", "garbage", "hello", "flood", "twice", "silent", "escapes"]


def make_initrd(base, target):
    """The template's initrd (a cpio archive in format newc) with another /init."""
    data = (base / "initrd").read_bytes()
    init = INIT.read_bytes()
    out, at = b"", 0

    def padding(n):
        return b"\0" * (-n % 4)

    while True:
        fields = [int(data[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
        size, name_size = fields[6], fields[11]
        name = data[at + 110:at + 110 + name_size]
        content_at = at + 110 + name_size + len(padding(110 + name_size))
        content = data[content_at:content_at + size]
        at = content_at + size + len(padding(size))
        if name.rstrip(b"\0") in (b"init", b"./init"):
            content = init
        fields[6] = len(content)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        out += header + name + padding(110 + name_size) + content + padding(len(content))
        if name.startswith(b"TRAILER!!!"):
            break
    target.write_bytes(out)


@pytest.fixture(scope="module")
def rogues(host):
    """Templates rogue-MODE beside the real one."""
    templates = host.state / "templates"
    base = templates / "base"
    manifest = json.loads((base / "manifest.json").read_text())
    first = None
    for mode in MODES:
        folder = templates / f"rogue-{mode}"
        folder.mkdir()
        for name in ("vmlinuz", "root.erofs"):
            os.link(base / name, folder / name)
        if first is None:
            first = folder / "initrd"
            make_initrd(base, first)
        else:
            os.link(first, folder / "initrd")
        files = {name: manifest["files"][name] for name in ("vmlinuz", "root.erofs")}
        files["initrd"] = hashlib.sha256(first.read_bytes()).hexdigest()
        new = {**manifest, "name": f"rogue-{mode}", "files": files, "cmdline": f"{manifest['cmdline']} rogue={mode}"}
        del new["digest"]
        new["digest"] = hashlib.sha256(json.dumps(new, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(new))
        subprocess.run([TOP / "image" / "sign", folder / "manifest.json"], check=True)
    yield
    for mode in MODES:
        shutil.rmtree(templates / f"rogue-{mode}")


@pytest.fixture(scope="module")
def before_all(host):
    return host.journal_end()


@pytest.fixture(scope="module", autouse=True)
def hanging(host, rogues, before_all):
    """A guest that never answers; it takes two minutes to give up on, so that the others run meanwhile."""
    process = host.popen(["anchorctl", "run", "--workflow", "rogue-hang", "--", "true"], user="operator",
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.wait()


def run(host, mode, timeout=120):
    done = host.anchorctl("run", "--workflow", f"rogue-{mode}", "--", "true", check=False, timeout=timeout)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def show(host, output):
    return host.show(re.search(r"anchorctl show (i[0-9a-z]{12})", output).group(1))


def reason(host, output):
    shown = show(host, output)
    assert shown["state"] == "exhausted", shown
    return shown["reason"]


def boots(host, run):
    """How often systemd started that run's microVM."""
    lines = host.run(["journalctl", "--no-pager", "-o", "json", f"MESSAGE_ID={UNIT_STARTED}", f"UNIT=anchor-vm@{run}.service"]).stdout.splitlines()
    return len({json.loads(line)["INVOCATION_ID"] for line in lines})


@pytest.mark.parametrize("mode, word", [
    ("garbage", "channel-error: version 255"),
    ("hello", "channel-error: hello is not what it should be"),
    ("flood", "channel-error: stdout beyond the stream's credit"),
    ("twice", "channel-error: a second hello"),
    ("silent", "guest-silent"),
    ("reboot", "did not boot"),
])
def test_a_guest_that_breaks_the_rules_ends_its_run(host, rogues, before_all, mode, word):
    # A guest that lets the loop of credits run can also just fill its output: both are a clear end.
    ended = reason(host, run(host, mode))
    assert word in ended, ended
    assert host.failures(before_all) == []


def test_escapes_of_a_guest_do_not_reach_the_terminal(host, rogues):
    output = run(host, "escapes")
    assert "red" in output
    assert not any(ord(c) < 32 and c not in "\n\t" or 0x7f <= ord(c) < 0xa0 for c in output), repr(output)


def test_another_run_finishes_beside_a_flood(host, rogues):
    flood = host.popen(["anchorctl", "run", "--workflow", "rogue-silent", "--", "true"], user="operator")
    try:
        assert host.exec_run("echo fine", check=True).stdout.count("fine") == 1
    finally:
        assert flood.wait(120) == 1


@pytest.fixture(scope="module")
def given_up(hanging):
    """What anchorctl said of the guest that never answers, when it had been given up on: 60 s of each boot, and what is between."""
    return hanging.communicate(timeout=300)[0]


def test_a_guest_that_hangs_ends_its_run(host, hanging, given_up):
    assert hanging.returncode == 1, given_up
    assert reason(host, given_up) == "the microVM did not boot: no hello from the guest within 60 s"


def test_a_guest_that_hangs_is_booted_twice_and_each_boot_is_told(host, given_up):
    """By systemd's word, the ledger's, the audit log's and the operator's. The control: one that answers is booted once, and nothing is told."""
    shown = show(host, given_up)
    assert len(shown["runs"]) == 1, shown
    run = shown["runs"][0]["id"]
    assert boots(host, run) == shown["runs"][0]["boots"] == 2, shown
    told = [record["reason"] for record in records(host, "run.boot_retry", run)]
    assert told == [note["text"] for note in shown["notes"] if note["kind"] == "boot-retry"] == ["no hello from the guest within 60 s"] * 2
    assert len(re.findall("^.*boot-retry.*no hello from the guest within 60 s", given_up, re.M)) == 2, given_up

    host.exec_run("true", check=True)
    fine = host.show(next(item["id"] for item in host.items() if item["workflow"] == "exec"))
    run = fine["runs"][0]["id"]
    assert boots(host, run) == fine["runs"][0]["boots"] == 1, fine
    assert not records(host, "run.boot_retry", run) and "boot-retry" not in [note["kind"] for note in fine["notes"]]


def write_host_json(host, text):
    host.write("/etc/anchorhold/.host.json", text)
    host.run("mv /etc/anchorhold/.host.json /etc/anchorhold/host.json")                    # at once: anchord reads it any time


@pytest.fixture(scope="module")
def seen(host, rogues, given_up):
    """Each kind once, so that what the daemons keep for good they have."""
    for mode in KINDS[:-1]:
        run(host, mode)
    host.exec_run("true", check=True)


def start_hanging(host):
    """With five seconds to answer, by host.json; what is leased afterwards has the usual time."""
    config = host.run("cat /etc/anchorhold/host.json").stdout
    try:
        write_host_json(host, json.dumps({**json.loads(config), "boot_timeout": "5s"}))
        item = host.anchorctl("submit", "--workflow", "rogue-hang", "--", "true").stdout.strip()
        wait_for(lambda: host.show(item)["state"] not in ("submitted", "queued", "leased"), explain=lambda: json.dumps(host.show(item), indent=1))
    finally:
        write_host_json(host, config)
    return item


KINDS = ["garbage", "flood", "hang"]


@pytest.mark.parametrize("mode", KINDS)
def test_daemons_are_what_they_were(host, seen, mode):
    """After a guest of that kind, beside a run that ends well."""
    since, daemons = host.journal_end(), Daemons(host)
    before = daemons.measure()
    item = start_hanging(host) if mode == "hang" else host.anchorctl("submit", "--workflow", f"rogue-{mode}", "--", "true").stdout.strip()
    assert host.exec_run("echo fine", check=True).stdout == "fine\n"
    shown = wait_for(lambda: (shown := host.show(item))["state"] == "exhausted" and shown, 120)
    if mode == "hang":
        assert shown["reason"] == "the microVM did not boot: no hello from the guest within 5 s", shown
    daemons.await_as_before(before)
    assert host.failures(since) == []


def test_no_unit_failed(host, before_all, given_up):
    """Of all those runs. The control: a unit that fails and is forgotten as those of a run are."""
    assert host.systemctl("list-units", "--failed", "--plain", "--no-legend", "anchor*").stdout == ""
    assert host.failures(before_all) == []
    host.run("systemd-run --quiet --wait --collect --unit=anchor-that-fails.service false", check=False)
    assert host.failures(before_all) == [("anchor-that-fails.service", "exit-code")]
