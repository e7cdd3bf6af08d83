# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands that the documents show, so that tests execute what is written there, and not what was."""

import pathlib
import re
import shlex

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def commands(page):
    """Each line of a page that is shown as a command: indented, and beginning with a program that we or Debian have."""
    lines = [line.strip() for line in (DOCS / page).read_text().splitlines() if line.startswith("    ")]
    return [line for line in lines if line.split()[0].startswith(("anchorctl", "image/", "systemctl", "journalctl", "skopeo", "bootc"))]


def command(page, beginning, **words):
    """The words of the one command of a page that begins so, without what is said behind #. `words` are put in the place of those that are called so
    there; one in brackets that has none is left out."""
    found = [line for line in commands(page) if line.startswith(beginning)]
    assert len(found) == 1, f"docs/{page} has {len(found)} commands that begin with {beginning!r}: {found}"
    shown = [word for word in shlex.split(found[0], comments=True) if not word.startswith("[") or word.strip("[]") in words]
    return [str(words.get(word.strip("[]"), word)) for word in shown]


def policy_files(page):
    """The policy files that a page shows whole, each behind a line with its path: {"KIND/NAME.json": text}."""
    found = re.findall(r"^`/etc/anchorhold/policy/([a-z]+/[a-z-]+\.json)`:\n\n```json\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found)) > 0, f"docs/{page} shows {[name for name, _ in found]}"
    return dict(found)
