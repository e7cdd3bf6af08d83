#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The demo: boots the image, files one work item for a real agent, and shows what came of it.

    demo.py [--agent pi|claude] [--keep]

Everything on the host's side is what would run against the real provider. The world beside it (tests/world) plays
the provider, a git server and the DNS, under the real names, in a network namespace without a way out.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests/world"))
import world as w  # noqa: E402

BUILD = os.path.join(TOP, "build/demo")
NAME = "demo"
WORKFLOWS = {"pi": "code-fix", "claude": "code-fix-claude"}
TASK = "The test suite of this repository fails. Find the cause, fix it, and commit the fix."

OPERATOR = """# the demo's operator
u operator - "Operator of the demo" /var/home/operator /bin/bash
m operator anchorhold-operators
"""

START = time.monotonic()


def title(text):
    print("\n\033[1m== %s\033[0m \033[2m(%.0f s)\033[0m" % (text, time.monotonic() - START), flush=True)


def image(tool, *argv, **kwargs):
    return subprocess.run([os.path.join(TOP, "image", tool), *argv], check=True, **kwargs)


def inside(*argv, **kwargs):
    """A command on the booted host, as root."""
    return image("exec", NAME, *argv, stdin=kwargs.pop("stdin", subprocess.DEVNULL), **kwargs)


def operator(*argv, **kwargs):
    """A command on the booted host, as the unprivileged operator."""
    return image("exec", NAME, "runuser", "-u", "operator", "--", *argv, stdin=subprocess.DEVNULL, **kwargs)


def output(runner, *argv):
    return runner(*argv, stdout=subprocess.PIPE).stdout.decode(errors="replace")


def make_repository():
    """The demo's program as a git repository with one commit."""
    path = os.path.join(BUILD, "csvsum")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(os.path.join(TOP, "tests/demo/repository"), path,
                    ignore=shutil.ignore_patterns("*.o", "csvsum", "test-csv"))
    environment = {"PATH": os.environ["PATH"], "HOME": BUILD, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        environment.update({"GIT_%s_NAME" % role: "csvsum", "GIT_%s_EMAIL" % role: "csvsum@example.org",
                            "GIT_%s_DATE" % role: "2026-01-01T00:00:00Z"})
    for argv in (("init", "--quiet", "--initial-branch=main"), ("add", "--all"),
                 ("commit", "--quiet", "--message=csvsum 1.0")):
        subprocess.run(["git", *argv], cwd=path, env=environment, check=True)
    return path


def egress_with_git():
    """The vendor's egress policy and one rule of the operator's own: the site's git server."""
    with open(os.path.join(TOP, "policy/egress/anthropic.json"), encoding="utf-8") as f:
        policy = json.load(f)
    policy["allow"].append({"name": "git.example.org", "ports": [443], "tls": "pass"})
    return policy


def boot(there, repository):
    etc = there.make_etc([("egress", "anthropic", egress_with_git())])
    os.makedirs(os.path.join(etc, "sysusers.d"))
    with open(os.path.join(etc, "sysusers.d/operator.conf"), "w", encoding="ascii") as f:
        f.write(OPERATOR)
    subprocess.run([os.path.join(TOP, "image/stop"), NAME], check=False, stderr=subprocess.DEVNULL)
    image("boot", "--container", "--fresh", "--keep", "--name", NAME, "--etc", etc)
    there.join(int(output(inside_pid)))
    inside("install", "-d", "-o", "operator", "-g", "operator", "/var/home/operator")
    archive = subprocess.Popen(["tar", "-C", os.path.dirname(repository), "-cf", "-", "csvsum"],
                               stdout=subprocess.PIPE)
    inside("tar", "-C", "/var/home/operator", "--owner=operator", "--group=operator", "-xf", "-",
           stdin=archive.stdout)
    archive.wait()
    inside("chown", "-R", "operator:operator", "/var/home/operator")


def inside_pid(**kwargs):
    return image("pid", NAME, **kwargs)


def seal_credential():
    """What an administrator does once: the key, encrypted to this host."""
    encrypt = "systemd-creds encrypt --name=cred_anthropic - /var/lib/anchorhold/credentials/anthropic"
    image("exec", NAME, "sh", "-c", encrypt, input=w.REAL_KEY.encode(), stderr=subprocess.DEVNULL)
    inside("systemctl", "try-restart", "anchor-secretd.service")


def newest_item():
    return json.loads(output(operator, "anchorctl", "list", "--json=short"))[0]


def main():
    parser = argparse.ArgumentParser(description="one coding run, end to end")
    parser.add_argument("--agent", choices=sorted(WORKFLOWS), default=os.environ.get("AGENT") or "pi")
    parser.add_argument("--keep", action="store_true", help="leave the host running (image/exec demo, image/stop demo)")
    arguments = parser.parse_args()

    os.makedirs(BUILD, exist_ok=True)
    repository = make_repository()
    there = w.World(os.path.join(BUILD, "world"))
    there.add_repository(repository, "csvsum.git")
    for name in ("provider", "git", "dns", "origin", "other"):
        if os.path.exists(there.path(name + ".jsonl")):
            os.unlink(there.path(name + ".jsonl"))
    status = 1
    try:
        title("the world: a model provider, a git server and DNS, in a namespace of their own")
        there.start()
        title("boot the image")
        boot(there, repository)
        seal_credential()
        inside("anchorctl", "doctor")
        status = show_run(there, WORKFLOWS[arguments.agent])
    finally:
        if arguments.keep:
            print("\nThe host is still up: image/exec %s anchorctl list; image/stop %s" % (NAME, NAME))
        else:
            subprocess.run([os.path.join(TOP, "image/stop"), NAME], check=False)
        there.stop()
    return status


def show_run(there, workflow):
    title("the run: anchorctl run --workflow %s" % workflow)
    try:
        operator("anchorctl", "run", "--workflow", workflow, "--repo", "/var/home/operator/csvsum", "--base", "main",
                 "--task", TASK)
    except subprocess.CalledProcessError as error:
        print("anchorctl run: exit status %d" % error.returncode)
        operator("anchorctl", "list")
        inside("journalctl", "--no-pager", "-p", "warning", "-b", "-n", "40")
        return 1
    item = newest_item()

    title("the item, its runs, where the time went and what it cost")
    operator("anchorctl", "show", item["id"])
    title("the change")
    operator("anchorctl", "result", item["id"], "--diff")
    title("what the run reached, and what it tried in vain")
    inside("anchorctl", "policy", "log", item["id"])
    title("the record: every step above, hash-chained")
    inside("anchorctl", "audit", "verify")
    title("the key")
    keys = sorted({entry["x_api_key"] or entry["authorization"] for entry in there.log("provider")})
    print("the provider received:  %s…  (%s)" % (keys[0][:24], "the real key" if keys == [w.REAL_KEY] else "NOT the real key"))
    return 0 if keys == [w.REAL_KEY] else 1


if __name__ == "__main__":
    sys.exit(main())
