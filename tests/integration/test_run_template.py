# SPDX-License-Identifier: LGPL-2.1-or-later
"""A template starts only with a good signature: anchord wants one for its manifest, and the launcher wants one as well, and
that each file is what the signed manifest names."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from conftest import TOP
from waiting import wait_for

FILES = ("vmlinuz", "initrd", "root.erofs")


class Altered:
    """The template "altered": the base template's files without its agents, as the tests want them signed."""

    def __init__(self, host, keys):
        self.host, self.keys = host, keys
        self.base, self.folder = host.state / "templates" / "base", host.state / "templates" / "altered"
        self.folder.mkdir()
        for name in FILES:
            os.link(self.base / name, self.folder / name)

    def key(self, name):
        """A private key of the tests' own."""
        path = self.keys / f"{name}.key"
        if not path.exists():
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True)
            subprocess.run(["openssl", "pkey", "-in", path, "-pubout", "-out", self.keys / f"{name}.pem"], check=True)
        return path

    def write_manifest(self, key=None, **changes):
        manifest = json.loads((self.base / "manifest.json").read_text())
        del manifest["digest"]
        manifest.update(name="altered", files={name: manifest["files"][name] for name in FILES}, **changes)
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        self.sign(key)

    def sign(self, key=None):
        environment = {**os.environ, **({"SIGNING_KEY": str(self.key(key))} if key else {})}
        subprocess.run([TOP / "image" / "sign", self.folder / "manifest.json"], check=True, env=environment)

    def run(self):
        done = self.host.anchorctl("run", "--workflow", "altered", "--", "echo", "inside", check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def altered(host, tmp_path):
    there = Altered(host, tmp_path)
    yield there
    shutil.rmtree(there.folder)
    host.run("rm -f /etc/anchorhold/keys/*")


def refused(altered, reason):
    status, output = altered.run()
    assert status != 0 and "inside" not in output and reason in output, output


def test_signed_template_runs(altered):
    altered.write_manifest()
    status, output = altered.run()
    assert status == 0 and "inside" in output, output


def test_files_are_measured_once_a_boot(host):
    """Their contents, as the unit that reads them found them; what launchers make of that is in tests/unit/test-vm-template.c."""
    manifest = json.loads(host.run("cat /usr/lib/anchorhold/templates/base/manifest.json").stdout)

    def measured():
        wait_for(lambda: host.property("anchor-templates.service", "SubState") == "exited", 90)
        return {entry["sha256"] for entry in json.loads(host.run("cat /run/anchorhold-templates/measured.json").stdout)["files"]}

    for _ in range(5):
        if measured() >= set(manifest["files"].values()):
            break
        host.systemctl("restart", "anchor-templates.service")  # another boot made links to the same files meanwhile, which is a change as well
    assert measured() >= set(manifest["files"].values())
    assert host.run("stat -c %a:%U /run/anchorhold-templates").stdout.split(":")[0] == "755"
    assert host.run("setpriv --reuid=anchorhold --clear-groups -- sh -c ': >>/run/anchorhold-templates/measured.json'", check=False).returncode != 0


def test_template_without_signature_is_refused(altered):
    altered.write_manifest()
    (altered.folder / "manifest.json.sig").unlink()
    refused(altered, "it is not signed")


def test_template_signed_by_a_stranger_is_refused_until_the_operator_trusts_the_key(altered, host):
    altered.write_manifest(key="site")
    refused(altered, "no key that this host trusts made its signature")
    host.write("/etc/anchorhold/keys/site.pem", (altered.keys / "site.pem").read_text())
    status, output = altered.run()
    assert status == 0 and "inside" in output, output


def test_vendor_key_taken_out_of_use_is_refused(altered, host):
    altered.write_manifest()
    vendor = host.run("ls /usr/lib/anchorhold/keys").stdout.split()
    assert len(vendor) == 1
    host.write(f"/etc/anchorhold/keys/{vendor[0]}", "")
    refused(altered, "no key that this host trusts made its signature")


def test_manifest_changed_after_signing_is_refused(altered):
    altered.write_manifest()
    text = (altered.folder / "manifest.json").read_text()
    (altered.folder / "manifest.json").write_text(text.replace("console=ttyS0", "console=ttyS1"))
    refused(altered, "no key that this host trusts made its signature")


def test_manifest_of_another_template_is_refused(altered):
    for name in ("manifest.json", "manifest.json.sig"):
        shutil.copy(altered.base / name, altered.folder / name)
    refused(altered, "its manifest is another template's")


@pytest.mark.parametrize("name", FILES)
def test_file_changed_after_signing_does_not_start(altered, host, name):
    """anchord looks at the manifest only. It is the launcher that finds this, in the unit of the run."""
    altered.write_manifest()
    data = bytearray((altered.folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (altered.folder / name).unlink()
    (altered.folder / name).write_bytes(data)
    since = host.run("date +%s").stdout.strip()
    status, output = altered.run()
    assert status == 1 and "inside" not in output, output
    journal = host.journal("--unit=anchor-vm@*", f"--since=@{since}")
    assert f"template altered: {name} is not what its signed manifest names" in journal, journal
