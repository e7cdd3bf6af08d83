# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each command that the documents about the image show is executed by some test, which takes it from there (tests/world/docs.py); or it is
named here, with the reason why it is not. Each policy file that they show loads, and what needs no model runs. And each refusal that inject
writes is in the table of those."""

import json
import re

import pytest

import docs
from conftest import TOP
from host import REPOSITORY

# (page, how the command begins): why no test executes it
NOT_EXECUTED = {
    ("install.md", "skopeo copy dir:build/image/signed docker://"): "needs a registry; that a host takes what lies there is tested from a folder",
    ("install.md", "bootc install"): "the image brings no bootc",
    ("install.md", "image/boot --vm                            #"): "a boot of its own; the third form is that of each test in tests/vm",
    ("install.md", "image/boot --vm -- "): "the same",
}


def executed():
    """(page, beginning) of every command that a test asks for."""
    sources = [path.read_text() for folder in ("vm", "integration") for path in (TOP / "tests" / folder).glob("*.py") if path.name != "test_image_docs.py"]
    return {match for source in sources for match in re.findall(r'docs\.command\("([a-z.]+)", "([^"]+)"', source)}


@pytest.mark.parametrize("page", ["install.md", "upgrade.md"])
def test_every_command_of_a_page_is_executed(page):
    begins = [(where, beginning) for where, beginning in executed() | set(NOT_EXECUTED) if where == page]
    shown = docs.commands(page)
    assert len(shown) >= 5
    for line in shown:
        assert any(line.startswith(beginning) for _, beginning in begins), f"docs/{page}: no test executes {line!r}"
    for _, beginning in begins:
        assert any(line.startswith(beginning) for line in shown), f"docs/{page} has no command that begins with {beginning!r}"


def test_command_that_nobody_shows_is_not_found():
    with pytest.raises(AssertionError):
        docs.command("upgrade.md", "anchorctl host upgrade")       # there are two
    with pytest.raises(AssertionError):
        docs.command("upgrade.md", "anchorctl host downgrade")
    assert docs.command("upgrade.md", "anchorctl host rollback") == ["anchorctl", "host", "rollback", "--apply"]


def refusals():
    """(status, reason) of each refusal that inject's sources have as a literal."""
    sources = (path.read_text() for path in (TOP / "supervisor" / "inject").glob("*.c"))
    return {pair for source in sources for pair in re.findall(r'\b([45]\d\d), "([a-z][a-z-]+)"', source)}


def listed(status, reason):
    """Is there a row for both? Git's refusals have a table of their own, without a status, since git shows none."""
    text = (TOP / "docs" / "credentials.md").read_text()
    rows = re.findall(r"^\| (\d{3}(?: \d{3})*) \| (`[^|]*`) \|", text, re.MULTILINE)
    if reason.startswith("git-"):
        return any(f"`{reason}`" in reasons for reasons in re.findall(r"^\| (`git-[^|]*) \|", text, re.MULTILINE))
    return any(status in statuses.split() and f"`{reason}`" in reasons.split() for statuses, reasons in rows)


def test_every_refusal_is_in_the_table():
    found = refusals()
    assert len(found) >= 25 and ("403", "credential-misuse") in found
    assert not listed("418", "bad-request") and not listed("400", "no-such-reason")
    assert sorted(pair for pair in found if not listed(*pair)) == []


# ---- docs/workflows.md ----

FILES = docs.policy_files("workflows.md")


@pytest.fixture
def root(host):
    """A folder of the host with the vendor's policy, which policy check can be asked about; and the page's files in its /etc."""
    folder = host.run("mktemp -d /tmp/docs-XXXXXX && chmod 755 /tmp/docs-*").stdout.strip()
    try:
        host.run(f"mkdir -p {folder}/usr/lib/anchorhold && cp -r /usr/lib/anchorhold/policy {folder}/usr/lib/anchorhold/")
        for name, text in FILES.items():
            host.write(f"{folder}/etc/anchorhold/policy/{name}", text)
        yield folder
    finally:
        host.run(["rm", "-r", folder])


def check(host, root):
    return host.anchorctl("policy", "check", f"--root={root}", check=False)


def test_every_policy_file_of_the_page_loads(host, root):
    assert {name.split("/")[0] for name in FILES} == {"workflows", "harness", "egress", "credentials", "providers"}
    done = check(host, root)
    assert done.returncode == 0, done.stdout + done.stderr
    explained = json.loads(host.anchorctl("policy", "explain", f"--root={root}", "fix-by-gateway", "https://models.example.com/v1/messages", "--method=POST",
                                          "--json=short").stdout)
    assert explained["verdict"] == "inspect", explained


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_of_them_is_looked_at(host, root, name):
    """The controls: with a word that is none of its kind there is a finding in that very file, and what others name is missed."""
    path = f"{root}/etc/anchorhold/policy/{name}"
    host.write(path, json.dumps({**json.loads(FILES[name]), "no-such-word": 1}))
    done = check(host, root)
    assert done.returncode == 1 and name in done.stdout + done.stderr and "no-such-word" in done.stdout + done.stderr, done
    if not name.startswith("workflows/"):
        host.run(["rm", path])
        assert check(host, root).returncode == 1


@pytest.fixture
def script(host):
    """The page's first two files, where the host's own are."""
    names = [name for name in FILES if name.endswith("/script.json")]
    assert len(names) == 2
    try:
        for name in names:
            host.write(f"/etc/anchorhold/policy/{name}", FILES[name])
        yield
    finally:
        host.run(["rm", "-f", *(f"/etc/anchorhold/policy/{name}" for name in names)])


TASK = "pwd; stat -c 'mode %a' \"$0\"; cd repo; printf 'check:\\n\\ttrue\\n' >Makefile; git commit -qam Passing"


def test_the_script_of_the_page_runs(host, script):
    """In its folder, with the mode that lets it be started at all; to review, and out of that as operate.md says."""
    done = host.anchorctl("run", "--workflow", "script", "--repo", REPOSITORY, "--base", "main", "--task", TASK, check=False, timeout=600)
    assert done.returncode == 0 and "/workspace\nmode 700\n" in done.stdout, done.stdout + done.stderr
    item = host.items()[0]["id"]
    assert host.show(item)["state"] == "in_review"
    assert "+check:" in host.anchorctl("result", item, "--diff").stdout and host.show(item)["state"] == "in_review"
    host.anchorctl("stop", item)
    assert host.show(item)["state"] == "cancelled"
    assert "+check:" in host.anchorctl("result", item, "--diff").stdout
