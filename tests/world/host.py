# SPDX-License-Identifier: LGPL-2.1-or-later
"""A running boot of the image, as the demo and the tests drive it."""

import contextlib
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import time

import world as world_module

TOP = pathlib.Path(__file__).resolve().parents[2]
BOOTS = pathlib.Path("/run/anchorhold-boot")

# An unprivileged user who may use the API, and for the tests one who may not.
OPERATOR = """u operator - "Operator" /var/home/operator /bin/bash
m operator anchorhold-operators
"""
USERS = OPERATOR + """u stranger - "Nobody in particular" /var/home/stranger /bin/bash
"""
REPOSITORY = "/var/home/operator/csvsum"
UNIT_FAILED = "d9b373ed55a64feb8242e02dbe79a49c"            # PID 1's "Failed with result"


# The sockets of each daemon, whose name is also its service's.
SOCKETS = {
    "anchord": ("anchord.socket", "anchord-run.socket", "anchord-spec.socket"),
    "anchor-auditd": ("anchor-auditd.socket", "anchor-auditd-api.socket"),
    "anchor-egressd": ("anchor-egressd.socket", "anchor-egressd-api.socket"),
    "anchor-secretd": ("anchor-secretd.socket", "anchor-secretd-api.socket"),
}


class BootFailed(Exception):
    pass


class CommandFailed(AssertionError):
    pass


class Host:
    """A running boot of the image, entered as root by image/exec."""

    def __init__(self, name):
        self.name = name

    @property
    def pid(self):
        """PID 1 of the boot, in the pid namespace of the tests."""
        return int((BOOTS / self.name / "leader").read_text())

    @property
    def state(self):
        """The folder on the test machine that holds the boot's var and etc."""
        return pathlib.Path((BOOTS / self.name / "state").read_text().strip())

    def argv(self, command, user=None):
        """The command line that runs `command` (a shell line or a list) in the boot."""
        if isinstance(command, str):
            command = ["/bin/bash", "-c", command]
        if user is not None:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--", *command]
        return [str(TOP / "image" / "exec"), self.name, *map(str, command)]

    def run(self, command, check=True, timeout=60, input=None, user=None, text=True):
        """Runs a command to its end and returns it, with stdout and stderr. `check`: a non-zero status raises CommandFailed."""
        result = subprocess.run(self.argv(command, user), input=input, capture_output=True, text=text,
                                timeout=timeout, stdin=None if input is not None else subprocess.DEVNULL, check=False)
        if check and result.returncode:
            shown = command if isinstance(command, str) else shlex.join(map(str, command))
            raise CommandFailed(f"{shown}: status {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def popen(self, command, user=None, **options):
        """Starts a command; the caller ends it."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.argv(command, user), **options)

    def systemctl(self, *args, check=True, timeout=60):
        return self.run(["systemctl", "--no-pager", *args], check=check, timeout=timeout)

    def is_active(self, unit):
        return self.run(["systemctl", "is-active", unit], check=False).stdout.strip()

    def property(self, unit, name):
        return self.run(["systemctl", "show", "--value", "-p", name, unit]).stdout.strip()

    def hold(self, verb, units, states, seconds=60):
        """Has systemd start or stop a service with its sockets until each of them is in one of these states. Once is not enough: systemctl does so unit by
        unit, and a client that calls at one socket meanwhile has the service started, and for it the other sockets, which cancels what was begun."""
        end = time.monotonic() + seconds
        while True:
            done = self.systemctl(verb, *units, check=False)
            now = self.run(["systemctl", "is-active", *units], check=False).stdout.split()
            if len(now) == len(units) and set(now) <= states:
                return
            if time.monotonic() > end:
                raise CommandFailed(f"{verb} does not hold: {dict(zip(units, now))}\n{done.stdout}{done.stderr}")
            # one that was started too often is not started again before that is forgotten
            self.systemctl("reset-failed", *units, check=False)
            time.sleep(0.1)

    def stop_units(self, *units):
        self.hold("stop", units, {"inactive", "failed"})

    def stop_daemon(self, name):
        self.stop_units(*SOCKETS[name], f"{name}.service")

    def start_daemon(self, name):
        self.hold("start", [*SOCKETS[name], f"{name}.service"], {"active"})

    @contextlib.contextmanager
    def stopped(self, name):
        """A daemon and its sockets are away until the block ends, or the stop itself fails."""
        try:
            self.stop_daemon(name)
            yield
        finally:
            self.start_daemon(name)

    @contextlib.contextmanager
    def frozen(self, daemon):
        """A daemon that lives and does nothing, the same process until the block ends. systemd ends one that has not fed its watchdog for a while, and
        starts another: it is told not to."""
        unit = f"{daemon}.service"
        pid = self.property(unit, "MainPID")
        self.systemctl("service-watchdogs", "no")
        try:
            self.systemctl("kill", "--kill-whom=main", "--signal=STOP", unit)
            yield
        finally:
            try:
                self.systemctl("kill", "--kill-whom=main", "--signal=CONT", unit)
            finally:
                self.systemctl("service-watchdogs", "yes")
        after = self.property(unit, "MainPID")
        assert pid == after != "0", f"{daemon} was started again meanwhile: {pid}, {after}"

    def journal(self, *args):
        return self.run(["journalctl", "--no-pager", "-b", *args], check=False).stdout

    def journal_end(self):
        """Where the journal ends now: for failures()."""
        return self.run("journalctl --sync; journalctl --no-pager -n 1 --show-cursor -o cat").stdout.splitlines()[-1].removeprefix("-- cursor: ")

    def failures(self, since):
        """(unit, result) of each of our units that failed since journal_end() said so. `systemctl --failed` does not have them:
        units of a run are forgotten at once (CollectMode=)."""
        lines = self.run(f"journalctl --sync; journalctl --no-pager -o json --after-cursor='{since}' MESSAGE_ID={UNIT_FAILED}").stdout.splitlines()
        found = [(entry["UNIT"], entry["UNIT_RESULT"]) for entry in map(json.loads, lines)]
        return [each for each in found if each[0].startswith("anchor")]

    def write(self, path, data, mode=0o644):
        """Writes a file in the boot (text or bytes)."""
        data = data.encode() if isinstance(data, str) else data
        self.run(f'mkdir -p "$(dirname {shlex.quote(str(path))})" && cat >{shlex.quote(str(path))} '
                 f"&& chmod {mode:o} {shlex.quote(str(path))}", input=data, text=False)

    # What operators and administrators do.

    def anchorctl(self, *args, check=True, timeout=180, user="operator", input=None):
        return self.run(["anchorctl", *args], check=check, timeout=timeout, user=user, input=input)

    def show(self, item):
        return json.loads(self.anchorctl("show", item, "--json=short").stdout)

    def status(self, user="operator", timeout=180):
        """What the supervisor says of itself; empty while it does not answer."""
        answer = self.anchorctl("status", "--json=short", check=False, user=user, timeout=timeout)
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def is_enforced(self, timeout=180):
        """Whether the supervisor has heard from every enforcer and misses none: what it misses already it does not report anew."""
        return set(self.status(timeout=timeout).get("enforcers", {}).values()) == {"ok"}

    def items(self):
        """All work items, newest first."""
        return json.loads(self.anchorctl("list", "--all", "--json=short").stdout)[::-1]

    def exec_run(self, script, workflow="exec", timeout=180, check=False):
        """One shell script in a microVM, followed to its end."""
        return self.anchorctl("run", "--workflow", workflow, "--", "sh", "-c", script, check=check, timeout=timeout)

    def copy_in(self, source, target, owner="operator"):
        """A folder of the test machine into the boot."""
        source = pathlib.Path(source)
        archive = subprocess.run(["tar", "-C", source, "-cf", "-", "."], check=True, stdout=subprocess.PIPE).stdout
        self.run(f"install -d -o {owner} -g {owner} {shlex.quote(str(pathlib.Path(target).parent))} && "
                 f"mkdir -p {shlex.quote(target)} && tar -C {shlex.quote(target)} -xf - && "
                 f"chown -R {owner}:{owner} {shlex.quote(target)}", input=archive, text=False)

    def seal_credential(self, name, value):
        """What an administrator does once: a secret, encrypted to this host; never on a command line."""
        self.run(["anchorctl", "credential", "add", "--quiet", name], input=value)

    def seal_credential_once(self, name, value):
        """The same, for the files that share a boot."""
        if name not in self.run("ls /var/lib/anchorhold/credentials").stdout.split():
            self.seal_credential(name, value)

    def stop(self):
        subprocess.run([TOP / "image" / "stop", self.name], check=True, timeout=90)


def start_boot(name, *options):
    booting = subprocess.Popen([TOP / "image" / "boot", "--container", "--keep", "--forget", "--name", name, *map(str, options)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = booting.communicate(timeout=180)
    except BaseException:
        booting.terminate()             # which it passes on to the boot; SIGKILL would leave that behind
        booting.communicate(timeout=60)
        raise
    if booting.returncode:
        raise BootFailed(f"the image does not boot:\n{said}")
    return Host(name)


def remove_boot(name):
    """Ends a boot of that name, whoever started it. Whether there was one."""
    if not (BOOTS / f"{name}.lock").exists():
        return False
    done = subprocess.run([TOP / "image" / "stop", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False)
    if (BOOTS / f"{name}.lock").exists():       # else it may have ended by itself meanwhile
        raise BootFailed(f"a boot named {name} does not end:\n{done.stdout}{done.stderr}")
    return True


@contextlib.contextmanager
def boot_of_its_own(name, *options):
    """A boot that ends with whatever uses it, also when what comes first there fails."""
    host = start_boot(name, *options)
    try:
        yield host
    finally:
        host.stop()


def make_etc(etc, config, policies=()):
    """The /etc of a boot without a world, in that folder: host.json, the tests' users, and these files of tests/integration/policy."""
    for path in policies:
        (etc / "anchorhold/policy" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / "tests/integration/policy" / path, etc / "anchorhold/policy" / path)
    (etc / "anchorhold").mkdir(exist_ok=True)
    (etc / "anchorhold/host.json").write_text(json.dumps(config))
    (etc / "sysusers.d").mkdir()
    (etc / "sysusers.d/test-users.conf").write_text(USERS)
    return etc


def egress_with_git(name):
    """One of the vendor's egress policies, and one rule of the operator's own: the site's git server."""
    policy = json.loads((TOP / f"policy/egress/{name}.json").read_text())
    policy["allow"].append({"name": "git.example.org", "ports": [443], "tls": "pass"})
    return ("egress", name, policy)


def load_policies(folder):
    """Every KIND/NAME.json below folder, as World.make_etc() wants them."""
    return [(path.parent.name, path.stem, json.loads(path.read_text())) for path in sorted(pathlib.Path(folder).glob("*/*.json"))]


def make_world_etc(world, policies=(), settings=None, users=OPERATOR):
    """The /etc of a boot in that world: its resolver, CA and network, which is all that the demo has, and an operator."""
    etc = pathlib.Path(world.make_etc(policies, settings))
    (etc / "sysusers.d").mkdir()
    (etc / "sysusers.d/test-users.conf").write_text(users)
    return etc


def start_in_world(name, world, repository=None, **more):
    """A boot with that /etc (`more`: what is added to it), joined to the world, with the users' homes, the demo's repository and
    the provider's credential."""
    etc = make_world_etc(world, **more)
    host = start_boot(name, "--fresh", "--etc", etc)
    try:
        world.join(host.pid)
        for user in re.findall("^u ([a-z]+)", (etc / "sysusers.d/test-users.conf").read_text(), re.MULTILINE):
            host.run(["install", "-d", "-o", user, "-g", user, f"/var/home/{user}"])
        if repository:
            host.copy_in(repository, REPOSITORY)
        host.seal_credential("anthropic", world_module.REAL_KEY)
    except BaseException:
        host.stop()
        raise
    return host


def start_for_tests(name, world, policies, repository=None):
    """The same for tests and bench: what they submit may reach the world's git server, a second user is there, and nobody waits for the probe of KVM,
    which has tests of its own."""
    return start_in_world(name, world, repository, policies=[egress_with_git("anthropic"), egress_with_git("openai"), *policies],
                          settings={"accel": "tcg", "max_runs": 3}, users=USERS)


def make_repository(path):
    """The demo's program as a git repository with one commit on `main`. The same commit every time."""
    path = pathlib.Path(path)
    subprocess.run(["rm", "-rf", "--", path], check=True)
    path.mkdir(parents=True)
    source = TOP / "tests/demo/repository"
    files = subprocess.run(["git", "ls-files", "-z", "--", "."], cwd=source, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["cp", "--parents", "-t", path, "--", *[f for f in files.decode().split("\0") if f]], cwd=source, check=True)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(path), "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        environment.update({f"GIT_{role}_NAME": "csvsum", f"GIT_{role}_EMAIL": "csvsum@example.org",
                            f"GIT_{role}_DATE": "2026-01-01T00:00:00Z"})
    for argv in (("init", "--quiet", "--initial-branch=main"), ("add", "--all"), ("commit", "--quiet", "--message=csvsum 1.0")):
        subprocess.run(["git", *argv], cwd=path, env=environment, check=True)
    return str(path)
