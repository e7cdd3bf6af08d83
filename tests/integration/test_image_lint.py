# SPDX-License-Identifier: LGPL-2.1-or-later
"""image/lint: a small tree that passes every check, and for each check trees that fail this one and no other."""

import os
import pathlib
import subprocess

import pytest

from conftest import TOP

LINT = TOP / "image" / "lint"


def lint(tree):
    return subprocess.run([LINT, tree], capture_output=True, text=True, check=False)


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    for name in ("dev", "proc", "sys", "run", "tmp", "var", "boot", "sysroot"):
        (top / name).mkdir(parents=True)
    (top / "ostree").symlink_to("sysroot/ostree")
    write(top / "usr/lib/modules/6.12.1/vmlinuz", "kernel")
    write(top / "usr/lib/modules/6.12.1/initramfs.img", "initramfs")
    write(top / "usr/lib/modules/other/modules.dep")            # no kernel
    write(top / "usr/lib/ostree/prepare-root.conf", "[composefs]\nenabled = yes\n")
    write(top / "usr/lib/bootc/kargs.d/10-x.toml", 'kargs = ["quiet"]\nmatch-architectures = ["x86_64"]\n')
    write(top / "usr/lib/bootc/install/10-x.toml", '[install]\nroot-fs-type = "ext4"\n')
    write(top / "usr/lib/sysusers.d/x.conf", "# a comment\nu daemon 1 - / /usr/sbin/nologin\ng staff 50\nu! guest - - /\n")
    write(top / "usr/lib/tmpfiles.d/x.conf", "d /var/cache 0755 root root -\nL /var/run - - - - /run\nz /etc/owned - - - -\nZ /etc/below - - - -\n")
    write(top / "etc/passwd", "root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/:/usr/sbin/nologin\nguest:x:999:999::/:\n")
    write(top / "etc/group", "root:x:0:\ndaemon:x:1:\nstaff:x:50:\nguest:x:999:\n")
    os.chown(write(top / "etc/by-number"), 1, 50)
    os.chown(write(top / "etc/owned"), 999, 999)
    os.chown(write(top / "etc/below/deeper"), 999, 999)
    (top / "var/cache").mkdir()
    (top / "var/run").symlink_to("/run")
    (top / "usr/gutes-Zeichen-ß").symlink_to("nirgends-ß")
    return top


def replace_with_file(path):
    path.rmdir()
    path.write_text("")


def non_utf8_link(top):
    os.symlink(b"\xff", os.fsencode(top / "link"))


def non_utf8_name(top):
    (pathlib.Path(os.fsdecode(os.fsencode(top / "usr") + b"/\xff"))).write_text("")


def relink(top, target):
    (top / "ostree").unlink()
    if target:
        (top / "ostree").symlink_to(target)


BAD = [
    ("var-run", lambda top: ((top / "var/run").unlink(), (top / "var/run").mkdir())),
    ("buildah-injected", lambda top: write(top / "etc/hostname")),
    ("buildah-injected", lambda top: write(top / "etc/resolv.conf", "nameserver 192.0.2.1\n")),
    ("etc-usretc", lambda top: (top / "usr/etc").mkdir()),
    ("bootc-kargs", lambda top: write(top / "usr/lib/bootc/kargs.d/bad.toml", "kargs = [")),
    ("bootc-kargs", lambda top: write(top / "usr/lib/bootc/kargs.d/bad.toml", 'kargs = "quiet"')),
    ("bootc-kargs", lambda top: write(top / "usr/lib/bootc/kargs.d/bad.toml", 'kargs = ["quiet"]\nmore = ["x"]')),
    ("bootc-kargs", lambda top: write(top / "usr/lib/bootc/kargs.d/bad.toml", 'match-architectures = ["x86_64"]')),
    ("kernel", lambda top: write(top / "usr/lib/modules/6.12.2/vmlinuz") and write(top / "usr/lib/modules/6.12.2/initramfs.img", "x")),
    ("kernel", lambda top: (top / "usr/lib/modules/6.12.1/vmlinuz").unlink()),
    ("utf8", non_utf8_name),
    ("utf8", non_utf8_link),
    *[("api-base-directories", lambda top, name=name: (top / name).rmdir()) for name in ("dev", "proc", "sys", "run", "tmp")],
    ("api-base-directories", lambda top: replace_with_file(top / "dev")),
    ("baseimage-composefs", lambda top: (top / "usr/lib/ostree/prepare-root.conf").unlink()),
    ("baseimage-composefs", lambda top: write(top / "usr/lib/ostree/prepare-root.conf", "[composefs]\nenabled = no\n")),
    ("baseimage-composefs", lambda top: write(top / "usr/lib/ostree/prepare-root.conf", "[sysroot]\nreadonly = true\n")),
    ("baseimage-composefs", lambda top: write(top / "usr/lib/ostree/prepare-root.conf", "enabled = yes\n")),
    ("baseimage-root", lambda top: (top / "sysroot").rmdir()),
    ("baseimage-root", lambda top: relink(top, None)),
    ("baseimage-root", lambda top: relink(top, "/sysroot/ostree")),
    ("var-log", lambda top: write(top / "var/log/dpkg.log", "x")),
    ("var-tmpfiles", lambda top: (top / "var/lib").mkdir()),
    ("var-tmpfiles", lambda top: write(top / "var/cache/file", "x")),
    ("sysusers", lambda top: write(top / "etc/passwd", "tss:x:101:0::/:\n")),
    ("sysusers", lambda top: write(top / "etc/group", "tss:x:101:\n")),
    ("nonempty-boot", lambda top: (top / "boot").rmdir()),
    ("nonempty-boot", lambda top: write(top / "boot/vmlinuz")),
    ("nonempty-run-tmp", lambda top: (top / "run/lock").mkdir()),
    ("nonempty-run-tmp", lambda top: write(top / "tmp/x")),
    ("etc-uid-drift", lambda top: os.chown(write(top / "etc/mine"), 999, 0)),
    ("etc-uid-drift", lambda top: os.chown(write(top / "etc/mine"), 0, 999)),
    ("etc-uid-drift", lambda top: os.chown(write(top / "etc/owned-as-well"), 0, 999)),
    ("initramfs", lambda top: (top / "usr/lib/modules/6.12.1/initramfs.img").unlink()),
    ("initramfs", lambda top: write(top / "usr/lib/modules/6.12.1/initramfs.img")),
    ("install-config", lambda top: (top / "usr/lib/bootc/install/10-x.toml").unlink()),
    ("install-config", lambda top: write(top / "usr/lib/bootc/install/20-x.toml", "[install")),
    ("machine-id", lambda top: write(top / "etc/machine-id", 32 * "0" + "\n")),
]

# A file in /var/log is also a file in /var, and a /var/run that is no link a folder that nobody makes again.
ALSO = {"var-log": {"var-tmpfiles"}}


def test_good_tree_passes(tree):
    done = lint(tree)
    assert done.returncode == 0, done.stdout
    names = subprocess.check_output([LINT, "--list"], text=True).split()
    assert done.stdout == f"{len(names)} checks passed\n"


@pytest.mark.parametrize("number", range(len(BAD)), ids=[f"{name}-{i}" for i, (name, _) in enumerate(BAD)])
def test_bad_tree_fails(tree, number):
    name, spoil = BAD[number]
    spoil(tree)
    done = lint(tree)
    failed = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert done.returncode == 1 and name in failed and failed <= {name, *ALSO.get(name, ())}, done.stdout + done.stderr


def test_each_check_has_a_bad_tree():
    assert set(subprocess.check_output([LINT, "--list"], text=True).split()) == {name for name, _ in BAD}


def test_checks_are_those_of_bootc_and_three_more():
    """`bootc container lint --list`, bootc 1.15."""
    theirs = {"var-run", "buildah-injected", "etc-usretc", "bootc-kargs", "kernel", "utf8", "api-base-directories", "baseimage-composefs",
              "baseimage-root", "var-log", "var-tmpfiles", "sysusers", "nonempty-boot", "nonempty-run-tmp", "etc-uid-drift"}
    assert set(subprocess.check_output([LINT, "--list"], text=True).split()) == theirs | {"initramfs", "install-config", "machine-id"}


@pytest.mark.parametrize("args", [[], ["/nowhere"], ["/", "/"]])
def test_usage(args):
    assert subprocess.run([LINT, *args], capture_output=True, check=False).returncode == 2
