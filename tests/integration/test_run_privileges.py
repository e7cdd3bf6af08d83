# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the supervisor's user may ask of the system: the listed units of runs, by four verbs, and nothing else.

Each refusal has its control: the same call that succeeds for the allowed unit, or for root.
"""

import pathlib

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
RUN = "r00000000test"
ALLOWED = [f"anchor-{kind}@{RUN}.service" for kind in ("run", "import", "net", "netlog", "check", "probe", "vm", "proxy", "inject")] + \
          [f"anchor-{kind}@{RUN}.socket" for kind in ("vm", "proxy", "inject")] + [f"anchorhold-runs-{RUN}.slice"]
SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


def bus(host, *arguments, user="anchorhold"):
    return host.run(["busctl", "--allow-interactive-authorization=no", "call", *arguments], check=False, user=user)


def manager(host, member, *arguments, user="anchorhold"):
    return bus(host, *SYSTEMD, member, *arguments, user=user)


def assert_refused(done):
    assert done.returncode and ("Access denied" in done.stderr or "AccessDenied" in done.stderr or "not allowed" in done.stderr
                                or "authentication required" in done.stderr or "Sender is not authorized" in done.stderr), done.stdout + done.stderr


def clean_up(host):
    for unit in ALLOWED:
        host.systemctl("stop", unit, check=False)
        host.systemctl("reset-failed", unit, check=False)


@pytest.mark.parametrize("unit", ALLOWED)
def test_listed_units(host, unit):
    """Every verb reaches systemd; what the unit then does is its own affair (there is no such run)."""
    try:
        for member, arguments in (("StartUnit", ("ss", unit, "replace")), ("StopUnit", ("ss", unit, "replace"))):
            done = manager(host, member, *arguments)
            assert done.returncode == 0 or "Unit" in done.stderr and "not loaded" in done.stderr, done.stderr
        for member, arguments in (("KillUnit", ("ssi", unit, "all", "9")), ("ResetFailedUnit", ("s", unit))):
            done = manager(host, member, *arguments)
            assert "denied" not in done.stderr.lower() and "authentication" not in done.stderr, done.stderr
    finally:
        clean_up(host)


OTHERS = [
    "debug-shell.service", "anchord.service", "anchor-egressd.service", "anchor-auditd.socket", "anchorhold-runs.slice",
    "anchor-publish@r00000000test.service", "anchor-other@r00000000test.service", "anchor-run@x.service", "anchor-run@r00000000tes.service",
    "anchor-run@r00000000TEST.service", "anchor-run@r0000000-test.service", "anchor-run@r00000000test.timer", "anchor-net@r00000000test.socket",
    "anchorhold-runs-r00000000test-x.slice", "xanchor-run@r00000000test.service", "anchor-run@r00000000test.service.service",
]
DAEMONS = OTHERS[1:5]                                       # they are there already; the others get a stand-in
STAND_INS = {"service": "[Service]\nExecStart=/bin/sleep infinity\n", "timer": "[Timer]\nOnActiveSec=1d\n",
             "socket": "[Socket]\nListenStream=/run/stand-in.sock\n", "slice": "[Slice]\n"}


@pytest.mark.parametrize("unit", OTHERS)
def test_other_units(host, unit):
    for member in ("StartUnit", "StopUnit"):
        assert_refused(manager(host, member, "ss", unit, "replace"))


@pytest.fixture(scope="module")
def others(host):
    """All of them, active: systemd says of a unit that it has not loaded just that, and asks nobody."""
    stand_ins = [unit for unit in OTHERS if unit not in DAEMONS]
    for unit in stand_ins:
        host.write(f"/run/systemd/system/{unit}", STAND_INS[unit.rpartition(".")[2]])
    # anchord sweeps slices of runs that it does not know, and may: what is in this one would go with it
    host.write(f"/run/systemd/system/anchorhold-runs-{RUN}.slice", "[Unit]\nRefuseManualStop=yes\n")
    host.systemctl("daemon-reload")
    host.systemctl("start", *OTHERS)
    yield
    host.systemctl("stop", *stand_ins)
    host.run(["rm", "/run/stand-in.sock", *(f"/run/systemd/system/{unit}" for unit in (*stand_ins, f"anchorhold-runs-{RUN}.slice"))])
    host.systemctl("daemon-reload")
    host.systemctl("stop", f"anchorhold-runs-{RUN}.slice")


@pytest.mark.parametrize("unit", OTHERS)
def test_other_units_are_neither_killed_nor_reset(host, others, unit):
    state = ["show", "-p", "ActiveState", "-p", "MainPID", "-p", "NRestarts", "-p", "InvocationID", unit]
    host.systemctl("start", unit)                # anchord may have swept the slice of a run that it does not know
    before = host.systemctl(*state).stdout
    assert "ActiveState=active" in before
    assert_refused(manager(host, "KillUnit", "ssi", unit, "all", "9"))
    assert_refused(manager(host, "ResetFailedUnit", "s", unit))
    assert host.systemctl(*state).stdout == before
    # the control: root can, with a signal that ends nothing (a timer has no process)
    control = manager(host, "KillUnit", "ssi", unit, "all", "18", user="root")
    assert "not support" in control.stderr if unit.endswith(".timer") else control.returncode == 0, control.stderr
    assert manager(host, "ResetFailedUnit", "s", unit, user="root").returncode == 0


TRANSIENT = ("ssa(sv)a(sa(sv))", f"anchor-run@{RUN}.service", "fail", "2", "Type", "s", "oneshot",
             "ExecStart", "a(sasb)", "1", "/bin/touch", "2", "/bin/touch", "/run/transient-was-here", "false")


def test_transient_unit(host):
    """Even under a listed name, with and without an auxiliary unit. systemd's own check cannot tell it from a start."""
    assert_refused(manager(host, "StartTransientUnit", *TRANSIENT, "0"))
    assert_refused(manager(host, "StartTransientUnit", *TRANSIENT, "1", "other.service", "1", "Description", "s", "x"))
    assert host.run("test -e /run/transient-was-here", check=False).returncode
    named = list(TRANSIENT)
    named[1] = "control-transient.service"
    control = manager(host, "StartTransientUnit", *named, "0", user="root")
    assert control.returncode == 0, control.stderr
    host.run("for i in $(seq 50); do test -e /run/transient-was-here && exit; sleep 0.1; done; exit 1")
    host.run("rm /run/transient-was-here")


@pytest.mark.parametrize("member, arguments", [
    ("SetUnitProperties", ("sba(sv)", f"anchor-run@{RUN}.service", "true", "1", "Description", "s", "x")),
    ("BindMountUnit", ("sssbb", f"anchor-run@{RUN}.service", "/etc", "/mnt", "false", "false")),
    ("MountImageUnit", ("sssbba(ss)", f"anchor-run@{RUN}.service", "/x", "/mnt", "false", "false", "0")),
    ("AttachProcessesToUnit", ("ssau", f"anchor-run@{RUN}.service", "", "1", "1")),
    ("RestartUnit", ("ss", f"anchor-run@{RUN}.service", "replace")),
    ("FreezeUnit", ("s", f"anchor-run@{RUN}.service")),
    ("CleanUnit", ("sas", f"anchor-run@{RUN}.service", "1", "all")),
    ("QueueSignalUnit", ("ssii", f"anchor-run@{RUN}.service", "all", "9", "0")),
    ("EnqueueUnitJob", ("sss", f"anchor-run@{RUN}.service", "start", "replace")),
    ("Reload", ()), ("Reexecute", ()), ("PowerOff", ()),
    ("SetEnvironment", ("as", "1", "LD_PRELOAD=/x")),
    ("EnableUnitFiles", ("asbb", "1", "debug-shell.service", "true", "true")),
    ("LinkUnitFiles", ("asbb", "1", "/tmp/x.service", "true", "true")),
])
def test_other_methods(host, member, arguments):
    assert_refused(manager(host, member, *arguments))


def test_units_own_interface(host):
    path = host.run(["busctl", "call", *SYSTEMD, "LoadUnit", "s", f"anchor-import@{RUN}.service"]).stdout.split('"')[1]
    assert_refused(bus(host, SYSTEMD[0], path, "org.freedesktop.systemd1.Unit", "Start", "s", "replace"))
    assert_refused(bus(host, SYSTEMD[0], path, "org.freedesktop.systemd1.Unit", "SetProperties", "ba(sv)", "true", "1", "Description", "s", "x"))
    control = bus(host, SYSTEMD[0], path, "org.freedesktop.DBus.Properties", "GetAll", "s", "org.freedesktop.systemd1.Unit")
    assert control.returncode == 0, control.stderr


def test_other_services_of_the_bus(host):
    assert_refused(bus(host, "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListSessions"))
    assert_refused(bus(host, "org.freedesktop.PolicyKit1", "/org/freedesktop/PolicyKit1/Authority", "org.freedesktop.DBus.Peer", "Ping"))
    control = bus(host, *SYSTEMD, "ListUnitsByPatterns", "asas", "0", "1", "anchord.service")
    assert control.returncode == 0 and "anchord.service" in control.stdout


def test_systemd_private_socket(host):
    refused = host.run("perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(\"/run/systemd/private\")) or exit 7'",
                       check=False, user="anchorhold")
    assert refused.returncode == 7


def test_other_users_start_nothing(host):
    unit = f"anchor-import@{RUN}.service"
    for user in ("anchor-egress", "anchor-audit", "anchor-secret"):
        assert_refused(manager(host, "StartUnit", "ss", unit, "replace", user=user))


UNITS = ["%s.service" % name.replace("@", "@" + RUN) for name in sorted(path.stem for path in (TOP / "units").glob("anchor*.service"))]


@pytest.mark.parametrize("unit", UNITS)
def test_no_unit_may_use_io_uring(host, unit):
    """It makes sockets of any family without calling socket(). What systemd has merged counts, not what one file says."""
    allowed = host.property(unit, "SystemCallFilter").split()
    assert "socket" in allowed and "epoll_wait" in allowed
    assert not [name for name in allowed if name.startswith("io_uring")]


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_has_what_holds_without_exception(host, unit):
    """Of each unit that we ship, whatever its name and its own file say: what systemd has merged."""
    expected = {"NoNewPrivileges": "yes", "LockPersonality": "yes", "RestrictRealtime": "yes", "RestrictSUIDSGID": "yes",
                "SystemCallArchitectures": "native", "KeyringMode": "private"}
    assert {name: host.property(unit, name) for name in expected} == expected


def test_supervisor_itself_has_nothing(host):
    pid = host.property("anchord.service", "MainPID")
    status = dict(line.split(":\t", 1) for line in host.run(f"cat /proc/{pid}/status").stdout.splitlines() if ":\t" in line)
    assert {status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert host.run(f"stat -c %U /proc/{pid}").stdout.strip() == "anchorhold"
