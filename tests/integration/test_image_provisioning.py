# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host that is told by systemd's credentials what it is; and what a second boot with the same ones leaves as it was."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

import host as hosting
from conftest import TOP
from waiting import wait_for

USERS = 'u operator - "Operator" /var/home/operator /bin/bash\nm operator anchorhold-operators\ng fleet -\nu machine - "Of the fleet" /var/home/machine /bin/bash\n' \
        "m machine anchorhold-operators\nm machine fleet\n"
HOST = {"accel": "tcg", "resolvers": ["203.0.113.53"], "max_runs": 1}
AUTHORITY = {"submit": {"groups": ["fleet"]}, "approve": {"groups": ["fleet"]}, "authorize": {"groups": ["fleet"]}}

# What a second boot changes, and nothing else: what is written because time goes on or something happens.
CHANGES = ("var/log/journal/",                                     # the journals, the audit log's among them
           "var/lib/anchorhold/audit/",                            # its outbox and its checkpoints; the keys are looked at apart
           "var/lib/anchorhold/ledger/", "var/lib/anchorhold/egress/",   # databases that are open
           "var/lib/systemd/random-seed", "var/lib/systemd/timesync/clock", "var/lib/systemd/timers/",
           "var/.updated", "etc/.updated",                         # image/boot removes them at each start
           "var/tmp/")
KEPT = ("var/lib/anchorhold/audit/checkpoint-key.pem", "var/lib/anchorhold/audit/checkpoint-key.pub.pem", "var/lib/systemd/credential.secret",
        "var/lib/anchorhold/credentials/anthropic", "etc/machine-id")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A CA and a key of the site's own, and the image's template signed by nobody else."""
    folder = tmp_path_factory.mktemp("site")
    run = lambda *argv, **options: subprocess.run([str(word) for word in argv], check=True, capture_output=True, **options)  # noqa: E731
    run("openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-days", "2", "-subj", "/CN=site",
        "-addext", "basicConstraints=critical,CA:TRUE")
    run("openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / "site.key")
    run("openssl", "pkey", "-in", folder / "site.key", "-pubout", "-out", folder / "site.pem")
    base = folder / "templates/base"
    shutil.copytree(TOP / "build/templates/base", base, copy_function=link)
    (base / "manifest.json").unlink()
    (base / "manifest.json.sig").unlink()
    shutil.copy(TOP / "build/templates/base/manifest.json", base)
    run(TOP / "image/sign", base / "manifest.json", env={**os.environ, "SIGNING_KEY": str(folder / "site.key")})
    return folder


def link(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def provision(folder, site, **others):
    """A folder of credentials: the good ones, and others in their place."""
    values = {"host": json.dumps(HOST), "authority": json.dumps(AUTHORITY), "upstream-ca": (site / "ca.pem").read_text(),
              "trusted-keys": (site / "site.pem").read_text(), **others}
    folder.mkdir()
    for name, text in values.items():
        (folder / f"anchorhold.{name}").write_text(text)
    (folder / "sysusers.extra").write_text(USERS)
    return folder


class Twice:
    """One host, booted twice; what its /etc and /var held when each boot was done."""

    def __init__(self, options):
        self.options, self.host, self.seen = options, None, []

    def boot(self, *more):
        done = subprocess.run([TOP / "image/boot", "--container", "--keep", "--name", "check-provision", *map(str, [*self.options, *more])],
                              capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, done.stderr
        self.host = hosting.Host("check-provision")
        wait_for(lambda: self.host.is_active("boot-complete.target") == "active")
        return self.host

    def look(self):
        state = self.host.state
        self.seen.append({str(path.relative_to(state)): (path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_gid, content(path))
                          for top in ("etc", "var") for path in (state / top).rglob("*")})


def content(path):
    if path.is_symlink():
        return os.readlink(path)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


@pytest.fixture(scope="module")
def twice(site, tmp_path_factory):
    there = Twice(["--templates", site / "templates", "--credentials", provision(tmp_path_factory.mktemp("given") / "c", site)])
    there.boot("--fresh")
    state = there.host.state
    yield there
    if (hosting.BOOTS / "check-provision").exists():
        there.host.stop()
    shutil.rmtree(state, ignore_errors=True)


def test_what_it_was_told_holds(twice, site):
    host = twice.host
    host.run(["anchorctl", "policy", "check"])
    assert json.loads(host.run("cat /etc/anchorhold/host.json").stdout) == HOST
    assert host.status(user=None)["accelerator"]["configured"] == "tcg"
    assert "names a resolver" not in host.journal("-u", "anchor-egressd.service")
    assert host.run("cat /etc/anchorhold/upstream-ca.d/provisioned.pem").stdout == (site / "ca.pem").read_text()
    assert host.run("stat -c %U:%a /etc/anchorhold/authority.json").stdout == "root:644\n"


def password_of_root(host):
    return host.run(["getent", "shadow", "root"]).stdout.split(":")[1]


def test_root_has_the_password_that_it_was_given(boot, tmp_path):
    """And none without: nobody gets in."""
    given = "$6$saltsaltsaltsalt$" + "x" * 86
    (tmp_path / "passwd.hashed-password.root").write_text(given)
    told, other = boot("--credentials", tmp_path), boot()
    assert password_of_root(told) == given and password_of_root(other) == "*"
    assert told.run("stat -c %U:%G:%a /etc/shadow").stdout == "root:shadow:640\n"
    for each in (told, other):
        assert each.systemctl("--failed", "--no-legend", "--plain").stdout == ""


def test_authority_is_the_one_that_it_was_told(twice):
    refused = twice.host.anchorctl("submit", "--workflow", "exec", "--", "true", check=False)
    assert refused.returncode == 3, refused.stderr
    item = twice.host.anchorctl("submit", "--workflow", "exec", "--", "true", user="machine").stdout.strip()
    twice.host.anchorctl("stop", item, user="machine", check=False)


def test_template_by_the_key_that_it_was_told_is_trusted(twice):
    assert twice.host.status(user=None)["templates"]["base"] is not None
    # the control: without that key nobody has signed it
    twice.host.run("mv /etc/anchorhold/keys/provisioned-1.pem /root/")
    assert twice.host.status(user=None)["templates"]["base"] is None
    twice.host.run("mv /root/provisioned-1.pem /etc/anchorhold/keys/")


def test_second_boot_changes_nothing_but_what_is_named(twice):
    twice.host.seal_credential("anthropic", "sk-ant-0123456789")
    twice.look()
    twice.host.stop()
    host = twice.boot("--forget")
    wait_for(lambda: host.status(user=None).get("ready"))
    twice.look()
    first, second = twice.seen
    changed = {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}
    unexpected = sorted(path for path in changed if not path.startswith(CHANGES))
    assert not unexpected, unexpected
    for path in KEPT:
        assert first[path] == second[path], path
    assert any(path.startswith("var/log/journal/") for path in changed)       # it was a boot


@pytest.mark.parametrize("what, text, why", [
    ("host", '{"max_runs": 2, "max_run": 3}', "/max_run"),
    ("authority", '{"submit": ["everybody"]}', "/submit"),
    ("upstream-ca", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "object 1"),
    ("trusted-keys", "no key", "PEM"),
])
def test_malformed_credential_keeps_the_boot_from_being_complete(boot, site, tmp_path, what, text, why):
    """The control is the host above, with the good ones."""
    host = boot("--templates", site / "templates", "--credentials", provision(tmp_path / "given", site, **{what: text}))
    assert host.is_active("boot-complete.target") == "inactive"
    assert host.is_active("host-provision.service") == "failed"
    said = host.journal("-u", "host-provision.service", "-p", "err", "-o", "cat")
    assert "nothing of what this host is provisioned with was taken over" in said and f"anchorhold.{what}" in said and why in said, said
    assert host.run("ls -A /etc/anchorhold/keys /etc/anchorhold").stdout.split() == ["/etc/anchorhold:", "keys", "/etc/anchorhold/keys:"]
