# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each command that the documents about the image show is executed by some test, which takes it from there (tests/world/docs.py); or it is
named here, with the reason why it is not. And each refusal that inject writes is in the table of those."""

import re

import pytest

import docs
from conftest import TOP

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
