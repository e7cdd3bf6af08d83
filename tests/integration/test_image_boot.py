# SPDX-License-Identifier: LGPL-2.1-or-later
"""The image as a container: what is up, what is read-only, what a boot leaves behind."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

from conftest import TOP
from waiting import wait_for

BOOT = TOP / "image" / "boot"
BOOTS = pathlib.Path("/run/anchorhold-boot")


def cgroup_of(name):
    return pathlib.Path((BOOTS / name / "cgroup").read_text().strip())


def test_system_is_running(host):
    failed = host.systemctl("--failed", "--no-legend", "--plain").stdout
    assert host.run("systemctl is-system-running", check=False).stdout.strip() == "running", failed


def test_root_is_read_only(host):
    for path in ("/x", "/usr/x", "/usr/lib/anchorhold/policy/x", "/usr/lib/anchorhold/templates/x"):
        refused = host.run(["touch", path], check=False)
        assert refused.returncode and "Read-only" in refused.stderr, path
    for path in ("/etc/x", "/var/x", "/run/x", "/tmp/x"):
        host.run(["touch", path])
        host.run(["rm", path])


def test_machine_is_out_of_reach(host):
    """Not its devices, not its kernel's settings, not its processes."""
    devices = host.run("find /dev -type b").stdout
    assert devices == ""
    assert host.run("echo 1 >/proc/sys/kernel/panic", check=False).returncode
    assert host.run("touch /sys/kernel/x", check=False).returncode
    assert host.run("ls /proc").stdout.split().count(str(host.pid)) == 0
    links = {line.split(": ")[1].split("@")[0] for line in host.run("ip -o link").stdout.splitlines()}
    assert links <= {"lo", "uplink0"}                           # uplink0: the tests' own world
    host.run("ping -c1 127.0.0.1 || (exec 3<>/dev/tcp/127.0.0.1/9) 2>&1 | grep -q refused")


def test_devices_of_microvms(host):
    assert host.run("stat -c %F /dev/net/tun").stdout.startswith("character")
    assert host.run("qemu-system-x86_64 -M help | grep -c microvm").stdout.strip() != "0"


def test_journal_is_persistent(host):
    host.run("journalctl --flush")
    assert host.run("ls /var/log/journal/*/system.journal").stdout.strip()


def test_unlinked_files_can_be_made_in_var(host):
    """The scratch disk of a microVM is one."""
    host.run("mkdir -p /var/tmp && mount | grep -q ' on /var type'")
    assert "overlay" not in host.run("findmnt -no FSTYPE /var").stdout


def test_credentials_reach_a_service(host):
    """PID 1's credential mounts need shared propagation, and silently vanish without it."""
    out = host.run("systemd-run --quiet --wait --pipe -p SetCredential=k:v systemd-creds cat k").stdout
    assert out.strip() == "v"


def test_empty_environment(host):
    names = {entry.split("=")[0] for entry in host.run("tr '\\0' '\\n' </proc/1/environ").stdout.split()}
    assert names <= {"container", "PATH", "LANG"}


PRESETS = r"""
set -e
mount -t tmpfs tmpfs "$3"
mkdir "$3"/{changed,work,tree}
mount -t overlay overlay -o "lowerdir=$2:$1,upperdir=$3/changed,workdir=$3/work" "$3/tree"
links() { (cd "$3/changed" && find . -type l | sort); }
chroot "$3/tree" systemctl preset-all >&2
links "$@"
echo without
rm "$3/tree/usr/lib/systemd/system-preset/00-anchorhold.preset"
chroot "$3/tree" systemctl preset-all >&2
links "$@"
"""


def test_first_boot_enables_nothing(tmp_path):
    """A machine without an id applies all presets. The control is the same tree without ours: systemd's own would start a resolver that listens on every network."""
    ours, there = tmp_path / "ours", tmp_path / "there"
    there.mkdir()
    subprocess.run([TOP / "image/ours", ours], check=True, capture_output=True)
    base = subprocess.run([TOP / "image/rootfs"], check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c", PRESETS, "presets", base, ours, there],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    enabled, without = done.stdout.split("without\n")
    assert enabled == ""
    assert "./etc/systemd/system/sysinit.target.wants/systemd-resolved.service\n" in without


@pytest.mark.parametrize("namespace", ["pid", "mnt", "net", "uts", "ipc", "cgroup"])
def test_namespaces_of_its_own(host, namespace):
    """Its PID 1 is in another one than its caller, and so is what image/exec runs; that one is PID 1's."""
    def of(pid):
        return os.readlink(f"/proc/{pid}/ns/{namespace}")

    assert of(host.pid) != of("self")
    assert host.run(["readlink", f"/proc/self/ns/{namespace}"]).stdout.strip() == of(host.pid)
    # the control: one that image/boot does not make is the caller's
    assert os.readlink(f"/proc/{host.pid}/ns/user") == os.readlink("/proc/self/ns/user")


# In a mount namespace of its own: mounts cgroup2 as one or another machine has it, and nowhere else, and boots. WAY FOLDER PART BOOT...
CGROUP2 = r"""
set -e
way=$1 folder=$2 part=$3
shift 3
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/first" "$folder/part" "$folder/with a space" "$folder/whole"
mount -t cgroup2 cgroup2 "$folder/first"
findmnt --noheadings --raw --types cgroup2 --output TARGET | while read -r target; do [ "$target" = "$folder/first" ] || umount -l "$target"; done
case $way in
        first) ;;
        "with a space") mount --move "$folder/first" "$folder/with a space" ;;
        whole)
                mount --bind "$folder/first/$part" "$folder/part"
                mount --bind "$folder/first" "$folder/whole"
                umount "$folder/first" ;;
        nowhere) umount "$folder/first" ;;
esac
exec "$@"
"""


@pytest.fixture
def boot_with_cgroup2(tmp_path):
    """A function that boots where cgroup2 is mounted that way; the boot says first which cgroup it is in."""
    cgroups = subprocess.check_output(["findmnt", "--noheadings", "--raw", "--types", "cgroup2", "--output", "TARGET"], text=True).splitlines()[0]
    part = pathlib.Path(cgroups) / f"check-part-{os.getpid()}"
    part.mkdir()
    try:
        yield lambda way: subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c", CGROUP2, "cgroup2", way, tmp_path, part.name,
                                          BOOT, "--container", "--netns-hook", f"cat {BOOTS}/$BOOT_NAME/cgroup", "--", "systemctl", "is-system-running"],
                                         capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL, check=False)
    finally:
        part.rmdir()


@pytest.mark.parametrize("where", ["first", "with a space", "whole"])
def test_cgroup2_is_found_where_it_is_mounted(tmp_path, boot_with_cgroup2, where):
    """At another place than on this machine, at one whose name mountinfo escapes, and beside a part of it that was mounted before."""
    done = boot_with_cgroup2(where)
    assert done.returncode == 0, done
    cgroup, said = done.stdout.splitlines()
    assert cgroup.startswith(f"{tmp_path}/{where}/anchorhold-boot-") and said == "running", done


def test_without_cgroup2_nothing_is_booted(boot_with_cgroup2):
    """The control of the above: those mounts were all there were."""
    done = boot_with_cgroup2("nowhere")
    assert done.returncode == 1 and "no cgroup2 is mounted on this machine" in done.stderr, done


def test_exec_returns_status(host):
    assert host.run("exit 7", check=False).returncode == 7
    assert host.run("kill -9 $$", check=False).returncode in (-9, 137)


def test_command_boots_runs_and_leaves_nothing():
    def unnamed():
        return {path.name for path in BOOTS.glob("boot-*")}    # others on this machine may boot under names of their own

    before = unnamed()
    done = subprocess.run([BOOT, "--container", "--", "bash", "-c", "systemctl is-system-running; exit 5"],
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (5, "running"), done.stderr
    assert unnamed() <= before


@pytest.fixture
def tree_for_nobody():
    """What make needs of this tree, where everybody can read it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        tree.chmod(0o755)
        for name in ("Makefile", "image", "tests"):
            source = TOP / name
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("corpus", "__pycache__")) if source.is_dir() else shutil.copy(source, tree / name)
        subprocess.run(["chmod", "-R", "a+rX", tree], check=True)
        yield tree


@pytest.mark.parametrize("command", [["make", "image-root"], ["make", "unit"], ["make", "templates"], ["make", "demo"], ["image/rootfs"], ["image/boot", "--container"],
                                     ["image/exec", "demo", "true"]], ids=" ".join)
def test_who_is_not_root_is_told_so(tree_for_nobody, command):
    """By the first that needs it, not by what then fails. The controls are all other tests: they build and boot as root."""
    done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", *command], cwd=tree_for_nobody, text=True, capture_output=True,
                          timeout=60, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "CACHE": "/nonexistent/cache"})
    assert done.returncode != 0 and "only root can " in done.stderr and "sudo" in done.stderr, done.stderr
    assert not re.search("unshare|Permission denied|Operation not permitted|cannot", done.stderr), done.stderr


def test_sigterm_leaves_nothing(boot):
    again = boot()
    cgroup, state, leader = cgroup_of(again.name), again.state, again.pid
    monitor = int((BOOTS / again.name / "monitor").read_text())
    import os
    os.kill(monitor, signal.SIGTERM)
    wait_for(lambda: not (BOOTS / again.name).exists())
    assert not cgroup.exists() and not state.exists()
    assert not pathlib.Path(f"/proc/{leader}").exists()
    assert again.name not in pathlib.Path("/proc/mounts").read_text()


def test_next_start_removes_what_sigkill_leaves(boot):
    import os
    again = boot()
    cgroup, state, leader = cgroup_of(again.name), again.state, again.pid
    os.kill(int((BOOTS / again.name / "monitor").read_text()), signal.SIGKILL)
    wait_for(lambda: not pathlib.Path(f"/proc/{leader}").exists())
    assert cgroup.exists()                                     # the control: it is the next start that removes it
    subprocess.run([BOOT, "--container", "--", "true"], check=True, timeout=120)
    assert not cgroup.exists() and not state.exists() and not (BOOTS / again.name).exists()


def test_named_boot_keeps_its_state(tmp_path):
    name = f"check-state-{tmp_path.parent.name.strip('pytest-').replace('_', '-') or 'x'}"
    start = [BOOT, "--container", "--keep", "--name", name]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "laid-over").write_text("etc\n")
    try:
        subprocess.run([*start, "--fresh", "--etc", tmp_path / "etc"], check=True, timeout=120)
        run = [TOP / "image" / "exec", name]
        assert subprocess.check_output([*run, "cat", "/etc/laid-over"], text=True) == "etc\n"
        subprocess.run([*run, "bash", "-c", "echo a >/etc/kept; echo b >/var/kept; cat /etc/machine-id >/var/id"], check=True)
        subprocess.run([TOP / "image" / "stop", name], check=True, timeout=90)
        subprocess.run([*start, "--forget"], check=True, timeout=120)
        kept = subprocess.check_output([*run, "bash", "-c", "cat /etc/kept /var/kept; cmp /etc/machine-id /var/id"], text=True)
        assert kept == "a\nb\n"
    finally:
        subprocess.run([TOP / "image" / "stop", name], check=True, timeout=90)


def test_kept_boot_holds_nothing_of_its_caller(tmp_path):
    """A lock that the caller of `image/boot --keep` holds is free when the caller has gone."""
    lock, name = tmp_path / "lock", f"check-fd-{tmp_path.parent.name.strip('pytest-').replace('_', '-') or 'x'}"
    try:
        subprocess.run(["flock", lock, BOOT, "--container", "--keep", "--forget", "--name", name], check=True, timeout=120)
        assert subprocess.run(["flock", "--nonblock", lock, "true"], check=False).returncode == 0
    finally:
        subprocess.run([TOP / "image" / "stop", name], check=True, timeout=90)


@pytest.mark.parametrize("options, why", [
    (["--container", "--name"], "--name needs a value"),
    (["--container", "--timeout"], "--timeout needs a value"),
    (["--container", "--etc", ""], "--etc needs a value"),
    (["--container", "--timeout", "abc"], "--timeout takes a number of seconds, not abc"),
    (["--container", "--timeout", "0"], "--timeout takes a number of seconds, not 0"),
    (["--vm", "--memory", "much"], "--memory takes a size such as 4G, not much"),
    (["--container", "--memory", "1G"], "are for --vm"),
    (["--container", "--append", "quiet"], "are for --vm"),
    (["--vm", "--templates", "/"], "are for --container"),
    (["--container", "--templates", "/nonexistent"], "--templates: there is no folder /nonexistent"),
    (["--container", "--credentials", "/nonexistent"], "--credentials: there is no folder /nonexistent"),
    (["--container", "--etc", "/nonexistent/etc"], "--etc: there is no folder /nonexistent/etc"),
    (["--container", "--var", "/nonexistent"], "--var: there is no folder /nonexistent"),
    (["--vm", "--image", "/nonexistent"], "--image: there is no folder /nonexistent"),
    (["--vm", "--attach", "/nonexistent"], "--attach: there is no file /nonexistent"),
    (["--container", "--keep"], "--keep needs --name"),
    (["--container", "--keep", "--name", "x", "--", "true"], "--keep takes no command"),
    (["--container", "--name", "X"], "a boot's name is"),
    (["--nothing"], "there is no option --nothing"),
    ([], "say how to boot")], ids=" ".join)
def test_arguments_that_mean_nothing(tmp_path, options, why):
    """Told in one line, with 2, and nothing was touched. The controls are the boots of all other tests, with those that mean something."""
    done = subprocess.run([BOOT, *options], env={"PATH": os.environ["PATH"], "CACHE": str(tmp_path)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and why in done.stderr, done
    assert not list(tmp_path.iterdir())


def test_what_fails_at_its_beginning_leaves_nothing(tmp_path):
    """The state of a boot without a name goes with it, also when its credentials cannot be copied. The control: that of a named one stays."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cp").write_text("#!/bin/sh\necho cannot copy >&2\nexit 1\n")
    (tmp_path / "bin" / "cp").chmod(0o755)
    name = f"check-begin-{os.getpid()}"
    for named in ([], ["--name", name]):
        done = subprocess.run([BOOT, "--container", *named, "--credentials", tmp_path / "bin", "--", "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CACHE": str(tmp_path / "cache")}, timeout=60, check=False)
        assert done.returncode == 1 and "cannot copy" in done.stderr, done
        assert [path.name for path in (tmp_path / "cache" / "boot").iterdir()] == named[1:]
        assert not (BOOTS / name).exists()


def test_stop_of_what_does_not_run():
    for argv, status, why in ((["check-nobody"], 1, "no boot named check-nobody is running"), ([], 2, "usage"), (["../x"], 2, "usage")):
        done = subprocess.run([TOP / "image" / "stop", *argv], capture_output=True, text=True, check=False)
        assert (done.returncode, why in done.stderr) == (status, True), done


@pytest.mark.parametrize("release, btf, fine", [("6.7.0", True, True), ("6.12.9-amd64", True, True), ("7.0", True, True),
                                                ("6.6.99", True, False), ("6.1.0-41-amd64", True, False), ("5.10", True, False), ("6.12.9", False, False)])
def test_a_kernel_that_is_too_old_is_named_first(tmp_path, release, btf, fine):
    """Before anything is built, and by image/boot as well."""
    uname = tmp_path / "uname"
    uname.write_text(f"#!/bin/sh\necho {release}\n")
    uname.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "BTF": "/proc/self/status" if btf else "/nowhere/vmlinux"}
    for argv in ([TOP / "image" / "kernel"], ["make", "-C", TOP, "kernel"], *([] if fine else [[BOOT, "--container", "--", "true"]])):
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == fine, done
        assert fine or ("BTF" if not btf else f"Linux {release};") in done.stderr
