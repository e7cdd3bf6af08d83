# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guest templates of the tests' own, beside the image's."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[2]


def place(source, target):
    """A link, or a copy where that is another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(f.read()).hexdigest()


def make_template(host, name, files):
    """The template `name`, signed: those files of the base template's (NAME: None), and others (NAME: where it is)."""
    base, folder = host.state / "templates" / "base", host.state / "templates" / name
    manifest = json.loads((base / "manifest.json").read_text())
    del manifest["digest"]
    for file, source in files.items():
        place(source or base / file, folder / file)
    manifest.update(name=name, files={file: sha256(folder / file) if source else manifest["files"][file] for file, source in files.items()})
    manifest["digest"] = hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    subprocess.run([TOP / "image" / "sign", folder / "manifest.json"], check=True)
    return folder
