# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/backup.md, word for word: a host is backed up while it works, another one becomes it, and its items, audit log and keys are what they were."""

import json
import os
import re
import shutil
import sqlite3
import subprocess

import pytest

import host as hosting
from conftest import TOP
from waiting import wait_for

SECRET = "sk-ant-of-the-lost-host"
COMMIT = "cd /workspace/repo && echo more >>README.md && git -c user.name=a -c user.email=a@example.org commit -qam more"


def blocks(section):
    """The commands of one section of the page, each as one script."""
    text = (TOP / "docs/backup.md").read_text()
    part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)
    return re.findall(r"^```sh\n(.*?)^```$", part, re.M | re.S)


class Machine:
    """A host whose /etc and /var outlive its boots."""

    def __init__(self, name, etc):
        self.name, self.etc, self.host = name, etc, None

    def boot(self, *more):
        subprocess.run([TOP / "image/boot", "--container", "--keep", "--name", self.name, *more], check=True, capture_output=True, timeout=180,
                       stdin=subprocess.DEVNULL)
        self.host = hosting.Host(self.name)
        wait_for(lambda: self.host.status(user=None).get("ready"))
        return self.host

    def install(self):
        return self.boot("--fresh", "--etc", self.etc)

    def end(self):
        if (hosting.BOOTS / self.name).exists():
            state = self.host.state
            self.host.stop()
            shutil.rmtree(state, ignore_errors=True)


def report(host, *args):
    return json.loads(host.run(["anchorctl", "audit", "verify", "--json=short", *args]).stdout)


@pytest.fixture(scope="module")
def etc(tmp_path_factory):
    return hosting.make_etc(tmp_path_factory.mktemp("etc"), {"accel": "tcg", "max_runs": 2}, ["workflows/script-agent.json", "harness/test-script.json"])


@pytest.fixture(scope="module")
def backup(etc, repository, tmp_path_factory):
    """A host with items in three states and a credential is backed up in the middle of its work; then it is lost. What it was, and the backup."""
    machine = Machine(f"check-{os.getpid()}-lost", etc)
    host = machine.install()
    try:
        host.run("install -d -o operator -g operator /var/home/operator")
        host.copy_in(repository, hosting.REPOSITORY)
        host.seal_credential("anthropic", SECRET)
        host.anchorctl("run", "--workflow", "script-agent", "--repo", hosting.REPOSITORY, "--base", "main", "--task", COMMIT, timeout=300)
        reviewed = host.items()[0]["id"]
        running = host.anchorctl("submit", "--workflow", "exec", "--", "sleep", "600").stdout.strip()
        wait_for(lambda: host.show(running)["state"] == "running")
        was = {"reviewed": host.show(reviewed), "running": running, "diff": host.anchorctl("result", reviewed, "--diff").stdout,
               "id": host.run("cat /etc/machine-id").stdout, "key": host.run("cat /var/lib/anchorhold/audit/checkpoint-key.pub.pem").stdout}
        script, = blocks("Backup")
        path = host.run(script, timeout=120).stdout.splitlines()[-1]
        assert host.show(running)["state"] == "running"                                # nothing was stopped for it
        was["log"] = report(host)
        target = tmp_path_factory.mktemp("backup") / "backup.tar"
        target.write_bytes(host.run(["cat", path], text=False).stdout)
        assert host.run(f"stat -c %a:%U {path}").stdout == "600:root\n"
    finally:
        machine.end()
    return was, target


@pytest.fixture(scope="module")
def machine(etc):
    """Another machine, freshly installed."""
    there = Machine(f"check-{os.getpid()}-new", etc)
    there.install()
    yield there
    there.end()


def look(host, data):
    """The first part of a restore, which says whether a backup is whole."""
    host.run("rm -rf /var/restore")
    host.write("/var/backup.tar", data, 0o600)
    return host.run("export BACKUP=/var/backup.tar\n" + blocks("Restore")[0], check=False)


def test_a_backup_that_is_not_whole_is_refused(backup, machine):
    data, host = backup[1].read_bytes(), machine.host
    before = host.run("sha256sum /var/lib/anchorhold/audit/*.pem /etc/machine-id").stdout
    spoilt = data.replace(SECRET.encode(), b"")
    assert spoilt == data                                                              # no secret is in it as it is
    middle = data.index(b"SQLite format 3") + 8192
    for name, wrong in (("truncated", data[:len(data) // 2]), ("cut between two files", data[:len(data) // 20480 * 10240]),
                        ("a byte of the ledger", data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1:])):
        assert look(host, wrong).returncode != 0, name
    good = look(host, data)                                                            # the control
    assert good.returncode == 0, good.stdout + good.stderr
    assert host.run("sha256sum /var/lib/anchorhold/audit/*.pem /etc/machine-id").stdout == before


def boot_of_another_machine(ledger):
    """Both hosts are containers of one kernel, and have its boot id; two machines never have the same."""
    with sqlite3.connect(ledger) as db:
        trigger, = db.execute("SELECT sql FROM sqlite_master WHERE name = 'lease_update'").fetchone()
        db.execute("DROP TRIGGER lease_update")
        assert db.execute("UPDATE lease SET boot = 'another'").rowcount == 1
        db.execute(trigger)
    db.close()
    for path in ledger.parent.iterdir():
        shutil.chown(path, ledger.parent.stat().st_uid, ledger.parent.stat().st_gid)


@pytest.fixture(scope="module")
def restored(backup, machine):
    was, data = backup
    whole = look(machine.host, data.read_bytes())
    assert whole.returncode == 0, whole.stderr
    machine.host.run(blocks("Restore")[1], timeout=120)
    state = machine.host.state
    machine.host.stop()
    boot_of_another_machine(state / "var/lib/anchorhold/ledger/ledger.db")
    host = machine.boot()
    host.run("install -d -o operator -g operator /var/home/operator")
    return host


def test_items_are_what_they_were(backup, restored):
    was = backup[0]
    item = restored.show(was["reviewed"]["id"])
    for key in ("state", "result_commit", "evidence", "history", "usage", "attempt"):
        assert item[key] == was["reviewed"][key], key
    assert restored.anchorctl("result", item["id"], "--diff").stdout == was["diff"]
    assert restored.anchorctl("logs", item["id"]).returncode == 0


def test_what_ran_runs_again(backup, restored):
    """It was queued, once, and keeps its attempt; it can be stopped, and something new be run."""
    item = restored.show(backup[0]["running"])
    assert item["attempt"] == 1 and "queued" in [change["to"] for change in item["history"]][2:]
    wait_for(lambda: restored.show(item["id"])["state"] == "running", 120)
    restored.anchorctl("stop", item["id"])
    assert restored.exec_run("echo there").stdout == "there\n"


def test_the_log_goes_on(backup, restored):
    was = backup[0]
    script = blocks("Restore")[2]
    done = restored.run(script, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    told = report(restored)
    assert told["first_seq"] == was["log"]["first_seq"] == 1 and told["checkpoints_checked"] and told["last_seq"] > 20
    recovered = json.loads(restored.run("journalctl --namespace=anchorhold -o json ANCHORHOLD_EVENT=audit.started | tail -n 1").stdout)
    assert json.loads(recovered["ANCHORHOLD_DATA"])["recovered"] > 10
    # the key is the one that it was, and is used: what it signs now is good by the public part that somebody kept
    restored.systemctl("restart", "anchor-auditd.service")
    restored.write("/run/kept.pem", was["key"])
    assert report(restored, "--key", "/run/kept.pem")["finding"] == "good"
    newest = int(restored.run("tail -n 1 /var/lib/anchorhold/audit/checkpoints | cut -d' ' -f2").stdout)
    assert newest > json.loads(recovered["ANCHORHOLD_DATA"])["recovered"]


def test_credentials_open(backup, restored):
    assert restored.run("cat /etc/machine-id").stdout == backup[0]["id"]
    assert restored.run("systemd-creds decrypt --name=cred_anthropic /var/lib/anchorhold/credentials/anthropic -").stdout == SECRET
    assert restored.is_active("anchor-secretd.service") == "active"


def test_lost_tpm(restored):
    """The key that credentials are sealed with is gone: nothing is leased, and it is said why; what cannot be opened is taken away, and sealed anew."""
    restored.seal_credential("openai", "sk-the-other-value")
    restored.run("rm /var/lib/systemd/credential.secret")
    restored.systemctl("restart", "anchor-secretd.service", check=False)
    wait_for(lambda: restored.status(user=None)["enforcers"]["secretd"] != "ok")
    told = restored.anchorctl("doctor", check=False)
    assert told.returncode == 1 and "secretd" in told.stdout
    item = restored.anchorctl("submit", "--workflow", "exec", "--", "true").stdout.strip()
    assert restored.show(item)["state"] == "queued"

    script, = blocks("A lost TPM")
    restored.run(script)
    assert restored.run("ls /var/lib/anchorhold/credentials").stdout == ""
    restored.seal_credential("anthropic", "sk-ant-of-the-new-value")
    restored.run(script)                                                               # the control: what can be opened stays
    assert restored.run("systemd-creds decrypt --name=cred_anthropic /var/lib/anchorhold/credentials/anthropic -").stdout == "sk-ant-of-the-new-value"
    wait_for(lambda: restored.show(item)["state"] == "closed", 120)
