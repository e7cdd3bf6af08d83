#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The demo: boots the image, files one work item for a real agent, and shows what came of it.

    demo.py [--agent pi|claude] [--keep]

Everything on the host's side is what would run against the real provider. The world beside it (tests/world) plays
the provider, a git server and the DNS, under the real names, in a network namespace without a way out.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "world"))
import host as hosting  # noqa: E402
import world as worlds  # noqa: E402

BUILD = TOP / "build" / "demo"
WORKFLOWS = {"pi": "code-fix", "claude": "code-fix-claude"}
TASK = "The test suite of this repository fails. Find the cause, fix it, and commit the fix."
START = time.monotonic()


def title(text):
    print(f"\n\033[1m== {text}\033[0m \033[2m({time.monotonic() - START:.0f} s)\033[0m", flush=True)


def shown(host, *command, user="operator"):
    """A command on the booted host, its output on this terminal as it comes. The exit status."""
    sys.stdout.flush()
    return subprocess.run(host.argv(command, user), stdin=subprocess.DEVNULL, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description="one coding run, end to end")
    parser.add_argument("--agent", choices=sorted(WORKFLOWS), default=os.environ.get("AGENT") or "pi")
    parser.add_argument("--keep", action="store_true", help="leave the host running until Enter is pressed")
    arguments = parser.parse_args()

    BUILD.mkdir(parents=True, exist_ok=True)
    repository = hosting.make_repository(BUILD / "csvsum")
    world = worlds.World(BUILD / "world")
    world.forget_logs()
    world.add_repository(repository, "csvsum.git")
    host = None
    try:
        title("the world: a model provider, a git server and DNS, in a namespace of their own")
        world.start()
        title("boot the image")
        host = hosting.start_in_world("demo", world, repository=repository)
        shown(host, "anchorctl", "doctor")
        status = show_run(host, world, WORKFLOWS[arguments.agent])
        if arguments.keep:
            input("\nThe host is up: image/exec demo bash. Enter ends it.\n")
    finally:
        if host:
            host.stop()
        world.stop()
    return status


def show_run(host, world, workflow):
    title(f"the run: anchorctl run --workflow {workflow}")
    status = shown(host, "anchorctl", "run", "--workflow", workflow, "--repo", hosting.REPOSITORY, "--base", "main",
                   "--task", TASK)
    item = host.items()[0]["id"]

    title("the item: its runs, where the time went, what it cost")
    shown(host, "anchorctl", "show", item)
    if status:
        print(host.journal("-p", "warning", "-n", "40"))
        return status
    title("the change")
    shown(host, "anchorctl", "result", item, "--diff")
    title("what the run reached, and what it tried in vain")
    shown(host, "anchorctl", "policy", "log", item, user="root")
    title("the record: every step above, hash-chained")
    status = shown(host, "anchorctl", "audit", "verify", user="root")
    title("the key")
    return show_key(world) or status


def show_key(world):
    keys = {entry["x_api_key"] or entry["authorization"] for entry in world.log("provider")}
    for key in keys:
        print(f"the provider received   {key[:32]}…")
    if keys != {worlds.REAL_KEY}:
        print("and that is NOT the real key alone")
        return 1
    print("which is the real key; the guest held the sentinel shown above in its place.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
