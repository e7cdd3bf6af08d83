# SPDX-License-Identifier: LGPL-2.1-or-later
"""The audit log: who may write, that it reads well, that no record is lost, and that verification names what was done to it."""

import json
import re
import time

import pytest

SOCKET = "/run/anchorhold/audit.sock"
API = "/run/anchorhold/audit-api.sock"
ITEM = "i3k9x0a1b2c3d"
NAMESPACE = "journalctl --namespace=anchorhold --no-pager"


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A boot of its own, whose log may be spoiled."""
    import conftest
    import os
    booted = conftest.hosting.start_boot(f"check-{os.getpid()}-audit")
    yield booted
    conftest.stop_boot(booted)


# This boot has no user of the group; one that it has becomes a member for as long as a command runs.
OPERATOR = ["setpriv", "--reuid=mail", "--regid=mail", "--groups=anchorhold-operators"]


def call(host, method, params, user=None, check=True, socket=SOCKET, prefix=()):
    return host.run([*prefix, "varlinkctl", "call", "--json=short", socket, f"io.anchorhold.Audit.{method}", json.dumps(params)], user=user, check=check)


def approve(host, text="fine", **more):
    """The one event that root may write."""
    return json.loads(call(host, "Append", {"event": "approval.recorded", "item": ITEM, "data": {"verdict": "approved", "reason": text}, **more}).stdout)


def wait_kept(host, seq, seconds=20):
    end = time.monotonic() + seconds
    while json.loads(call(host, "Head", {}).stdout)["kept_seq"] < seq:
        assert time.monotonic() < end, f"record {seq} is not in the journal"
        time.sleep(0.1)


def verify(host, *args):
    """anchorctl audit verify, as root: its status and what it said."""
    done = host.run(["anchorctl", "audit", "verify", *args], check=False)
    return done.returncode, done.stdout + done.stderr


def export(host):
    """The exported log as a list of entries, each the text of one; the last is the closing line."""
    text = host.run(["anchorctl", "audit", "export", "--quiet"]).stdout
    return [entry for entry in text.split("\n\n") if entry.strip()]


def records(entries):
    """Index of each record in the list, by number; the last copy."""
    found = {}
    for index, entry in enumerate(entries):
        number = re.search(r"^ANCHORHOLD_SEQ=(\d+)$", entry, re.M)
        if number:
            found[int(number[1])] = index
    return found


def verify_entries(host, entries):
    host.write("/var/tmp/export", "\n\n".join(entries) + "\n\n")
    return verify(host, "--file", "/var/tmp/export")


def test_reads_well(audited):
    seq = approve(audited, "well done")["seq"]
    wait_kept(audited, seq)
    line = audited.run(f"{NAMESPACE} -o cat ANCHORHOLD_SEQ={seq}").stdout
    assert line == f"uid 0 gave the verdict approved on item {ITEM}: well done\n"
    explained = audited.run(f"{NAMESPACE} -x ANCHORHOLD_SEQ={seq}").stdout
    assert "Anchorhold event approval.recorded" in explained
    entry = json.loads(audited.run(f"{NAMESPACE} -o json ANCHORHOLD_SEQ={seq}").stdout)
    assert entry["_SYSTEMD_UNIT"] == "anchor-auditd.service"
    assert entry["ANCHORHOLD_SOURCE"] == "uid 0"
    assert json.loads(entry["ANCHORHOLD_DATA"]) == {"reason": "well done", "verdict": "approved"}


def test_who_may_write(audited):
    """Root writes what operators write, and nothing else; nobody else writes anything; the journal's own socket is closed."""
    approve(audited)  # the control
    refused = call(audited, "Append", {"event": "run.leased", "run": "r3k9x0a1b2c3d", "item": ITEM, "data": {}}, check=False)
    assert refused.returncode != 0 and "io.anchorhold.Audit.Denied" in refused.stderr + refused.stdout
    refused = call(audited, "Append", {"event": "approval.recorded", "item": ITEM, "actor": "uid 7", "data": {}}, check=False)
    assert refused.returncode != 0 and "io.anchorhold.Audit.Denied" in refused.stderr + refused.stdout
    for socket in (SOCKET, API):
        for method, params in (("Append", {"event": "approval.recorded", "item": ITEM, "data": {}}), ("Ping", {}), ("Head", {})):
            refused = call(audited, method, params, user="mail", check=False, socket=socket)
            assert refused.returncode != 0 and "ermission denied" in refused.stderr + refused.stdout
    # a daemon may connect, and is then refused what is not its business; so are operators, at their own socket
    refused = call(audited, "Head", {}, user="anchor-egress", check=False)
    assert refused.returncode != 0 and "PermissionDenied" in refused.stderr + refused.stdout
    refused = call(audited, "Append", {"event": "run.leased", "run": "r3k9x0a1b2c3d", "item": ITEM, "data": {}}, check=False, socket=API, prefix=OPERATOR)
    assert refused.returncode != 0 and "io.anchorhold.Audit.Denied" in refused.stderr + refused.stdout
    assert call(audited, "Head", {}, check=False, prefix=OPERATOR).returncode != 0
    assert json.loads(call(audited, "Head", {}, socket=API, prefix=OPERATOR).stdout)["seq"] > 0
    mode = audited.run("stat -c '%a %G' /run/systemd/journal.anchorhold/socket").stdout
    assert mode == "660 anchor-audit\n"


# Takes as many connections as it can get, says how many, and keeps them.
HOARD = r"""use Socket qw(:DEFAULT SOCK_NONBLOCK); $| = 1;
my (@held, $refused);
while (@held < 1500 && $refused < 50) {
        socket(my $s, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0) or last;
        if (connect($s, pack_sockaddr_un($ARGV[0]))) { push @held, $s } else { $refused++; select(undef, undef, undef, 0.01) }
}
print scalar(@held), "\n"; sleep 600;
"""


def test_who_may_take_up_connections(audited):
    """No user of this host gets one; a member of the runs' group, or an operator, not more than is one user's share. The log goes on."""
    audited.write("/run/hoard.pl", HOARD)
    hoards, held = [], []
    try:
        for who, socket in (("--reuid=mail --regid=mail --clear-groups", SOCKET), ("--reuid=mail --regid=mail --clear-groups", API),
                            ("--reuid=anchor-egress --regid=anchor-egress --init-groups", SOCKET), (" ".join(OPERATOR[1:]), API)):
            hoards.append(audited.popen(f"ulimit -n 4096; exec setpriv {who} perl /run/hoard.pl {socket}", stdout=-1, text=True))
            held.append(int(hoards[-1].stdout.readline()))
        assert held[:2] == [0, 0] and min(held[2:]) > 64, held
        began = time.monotonic()
        approve(audited)
        call(audited, "Head", {}, socket=API)
        assert time.monotonic() - began < 5
        pid = audited.property("anchor-auditd.service", "MainPID")
        assert int(audited.run(f"ls /proc/{pid}/fd | wc -l").stdout) < 600
    finally:
        for hoard in hoards:
            hoard.kill()
            hoard.wait()


# As many calls without an end as it can make, each of a megabyte as far as it is taken; says how many, and how much.
HALVES = r"""use Socket qw(:DEFAULT SOCK_NONBLOCK); $| = 1; $SIG{PIPE} = "IGNORE";
my (%held, $sent, $idle); my $chunk = " " x 65536;
for (my $refused = 0; keys %held < 100 && $refused < 200;) {
        socket(my $s, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0) or last;
        if (!connect($s, pack_sockaddr_un($ARGV[0]))) { $refused++; select(undef, undef, undef, 0.01); next }
        syswrite($s, "{\"method\":\"io.anchorhold.Audit.Append\",\"parameters\":{") or do { $refused++; next };
        $held{$s} = [$s, 0];
}
for ($idle = 0; $idle < 100; $idle++) {
        for my $c (values %held) {
                next if $c->[1] >= 400000;
                my $n = syswrite($c->[0], $chunk) or next;
                $c->[1] += $n; $sent += $n; $idle = 0;
        }
        select(undef, undef, undef, 0.02);
}
print scalar(keys %held), " $sent\n"; sleep 600;
"""

# One call, with so many spaces in it.
LARGE = r"""use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; connect($s, pack_sockaddr_un($ARGV[0])) or die "connect: $!";
my $m = "{\"method\":\"io.anchorhold.Audit.Append\",\"parameters\":" . " " x $ARGV[1] . "$ARGV[2]}\0"; my $at = 0; $SIG{PIPE} = "IGNORE";
while ($at < length $m) { my $n = syswrite($s, $m, length($m) - $at, $at) or last; $at += $n }
$/ = "\0"; my $r = <$s>; print defined $r ? $r =~ s/\0//r : "closed", "\n";
"""


def resident_kib(host, unit):
    pid = host.property(unit, "MainPID")
    return int(host.run(f"awk '/^VmRSS/ {{ print $2 }}' /proc/{pid}/status").stdout)


def test_calls_without_an_end(audited):
    """They cost their senders memory and auditd next to none; others' calls go on, also a large one, and what is too large is not read."""
    audited.write("/run/halves.pl", HALVES)
    audited.write("/run/large.pl", LARGE)
    record = json.dumps({"event": "approval.recorded", "item": ITEM, "data": {"verdict": "approved"}})
    large = lambda size: audited.run(["perl", "/run/large.pl", SOCKET, str(size), record]).stdout.strip()
    approve(audited)
    pid, before = audited.property("anchor-auditd.service", "MainPID"), resident_kib(audited, "anchor-auditd.service")
    floods = []
    try:
        for who, socket in (("--reuid=anchor-egress --regid=anchor-egress --init-groups", SOCKET), (" ".join(OPERATOR[1:]), API)):
            floods.append(audited.popen(f"ulimit -n 4096; exec setpriv {who} perl /run/halves.pl {socket}", stdout=-1, text=True))
        told = [list(map(int, flood.stdout.readline().split())) for flood in floods]
        # what auditd and the kernel take of them before they stand still depends on who runs when: half a mebibyte at least
        assert all(connections > 50 for connections, _ in told) and sum(size for _, size in told) > 1 << 19, told
        began = time.monotonic()
        approve(audited)
        call(audited, "Head", {}, socket=API)
        assert "seq" in json.loads(large(200000))["parameters"]
        assert time.monotonic() - began < 5
        assert large(1000000) == "closed"
        assert resident_kib(audited, "anchor-auditd.service") < before + 16 * 1024
    finally:
        for flood in floods:
            flood.kill()
            flood.wait()
    assert "seq" in json.loads(large(200000))["parameters"]
    assert audited.property("anchor-auditd.service", "MainPID") == pid


def test_killed_during_appends(audited):
    """Whatever was acknowledged is in the log, once and for all, and the chain is whole."""
    script = f"""for i in $(seq 120); do
            varlinkctl call --json=short {SOCKET} io.anchorhold.Audit.Append \
                    '{{"event":"approval.recorded","item":"{ITEM}","data":{{"verdict":"approved"}}}}' 2>/dev/null
        done"""
    writer = audited.popen(script, stdout=-1, text=True)
    pid = 0
    for _ in range(5):
        time.sleep(0.7)
        now = int(audited.property("anchor-auditd.service", "MainPID"))
        if now and now != pid:
            audited.run(f"kill -KILL {now}", check=False)
            pid = now
    out, _ = writer.communicate(timeout=120)
    acknowledged = {answer["seq"]: answer["hash"] for answer in map(json.loads, out.splitlines())}
    assert len(acknowledged) > 20

    last = approve(audited)["seq"]
    wait_kept(audited, last)
    entries = export(audited)
    found = records(entries)
    assert sorted(found) == list(range(1, last + 1))
    for seq, digest in acknowledged.items():
        assert f"\nANCHORHOLD_HASH={digest}" in entries[found[seq]]
    status, text = verify(audited)
    assert status == 0, text
    assert int(audited.property("anchor-auditd.service", "NRestarts")) >= 2


def test_sent_again_is_told_once(audited):
    """Under one key the same is one record, also across a death of auditd; under another, or under none, it is as many as it was sent.
    (That it is so when auditd dies between writing and answering: tests/unit/test-audit-server.c.)"""
    first = approve(audited, "again", key="k1")
    audited.systemctl("kill", "--signal=KILL", "anchor-auditd.service")
    assert approve(audited, "again", key="k1") == first
    others = [approve(audited, "again", key="k2"), approve(audited, "again"), approve(audited, "again"), approve(audited, "changed", key="k1")]
    assert len({answer["seq"] for answer in (first, *others)}) == 5
    wait_kept(audited, others[-1]["seq"])
    assert sum('"reason":"again"' in entry for entry in export(audited)) == 4
    assert verify(audited)[0] == 0


def test_exported_record_altered_removed_swapped(audited):
    seqs = [approve(audited, f"number {n}")["seq"] for n in range(5)]
    wait_kept(audited, seqs[-1])
    entries = export(audited)
    status, text = verify_entries(audited, entries)  # the control
    assert status == 0, text
    where = records(entries)
    first, second = seqs[1], seqs[2]

    changed = list(entries)
    changed[where[first]] = changed[where[first]].replace("number 1", "number 7")
    status, text = verify_entries(audited, changed)
    assert status == 1 and f"Record {first}:" in text, text

    changed = [entry for entry in entries if f"ANCHORHOLD_SEQ={first}\n" not in entry]
    status, text = verify_entries(audited, changed)
    assert status == 1 and f"Record {first} is missing" in text, text

    changed = list(entries)
    changed[where[first]], changed[where[second]] = changed[where[second]], changed[where[first]]
    status, text = verify_entries(audited, changed)
    assert status == 1 and f"Record {second} stands before record {first}" in text, text


def test_export_without_its_end(audited):
    """Whatever is missing at an export's end is noticed, also when it is newer than any checkpoint; what can be known of a dump without a closing line is said."""
    seq = approve(audited, "the newest")["seq"]
    wait_kept(audited, seq)
    entries = export(audited)
    status, text = verify_entries(audited, entries)  # the control
    assert status == 0 and "signed: whole as of then" in text, text
    where = records(entries)
    last = max(where)
    assert last >= seq and where[last] == len(entries) - 2, (seq, last, where[last], len(entries))

    status, text = verify_entries(audited, entries[:-2] + entries[-1:])
    assert status == 1 and f"Record {last} is bad (cut): The file ends at record {last - 1}, but its closing line names record {last} as the last." in text, text
    for lost in (1, 2):
        status, text = verify_entries(audited, entries[:-lost])
        assert status == 1 and f"The file ends without its closing line: records at its end, after record {last - lost + 1}, may be missing." in text, text
        assert "To export with a closing line: anchorctl audit export." in text, text
    told = json.loads(verify(audited, "--json=short", "--file", "/var/tmp/export")[1])
    assert told["finding"] == "unclosed" and not told["closed"], told
    status, text = verify_entries(audited, entries[:-1] + [entries[-1].replace("anchorhold-export-1 ", "anchorhold-export-1 1")])
    assert status == 1 and "is not signed with this key" in text, text

    # a dump of journalctl's, and the head that was noted on the host
    audited.run(f"{NAMESPACE} -o export >/var/tmp/dump")
    status, text = verify(audited, "--file", "/var/tmp/dump")
    assert status == 1 and "No record is bad" in text and "without its closing line" in text, text
    head = json.loads(call(audited, "Head", {}).stdout)["kept_hash"]
    audited.run(f"{NAMESPACE} -o export >/var/tmp/dump")
    for noted in (head, head[:16]):
        status, text = verify(audited, "--file", "/var/tmp/dump", "--head", noted)
        assert status == 0 and "has that hash" in text, text
    verify_entries(audited, entries[:where[last - 1] + 1])
    status, text = verify(audited, "--file", "/var/tmp/export", "--head", re.search("ANCHORHOLD_HASH=([0-9a-f]+)", entries[where[last]])[1])
    assert status == 1 and f"the log ends at record {last - 1}, before that one" in text, text
    assert verify(audited, "--head", "xyz")[0] == 2

    # who has not the key cannot close an export
    refused = audited.run("anchorctl audit export", user="mail", check=False)
    assert refused.returncode == 3 and "it is root who exports" in refused.stderr and not refused.stdout, refused.stderr


def test_journal_without_its_newest_records(audited):
    """auditd knows its head: a journal that lacks records which it had read back does not verify, nor is an export of it closed."""
    wait_kept(audited, approve(audited, "early")["seq"])
    audited.run("journalctl --namespace=anchorhold --sync; rm -rf /var/tmp/early; cp -a $(ls -d /var/log/journal/*.anchorhold) /var/tmp/early")
    seq = approve(audited, "late")["seq"]
    wait_kept(audited, seq)
    status, text = verify(audited)  # the control
    assert status == 0 and "auditd: agrees on the head" in text, text
    hidden = "unshare --mount sh -c 'mount --bind /var/tmp/early $(ls -d /var/log/journal/*.anchorhold) && %s'"
    cut = audited.run(hidden % "anchorctl audit verify", check=False)
    assert cut.returncode == 1 and "but auditd had read back record" in cut.stdout, cut.stdout
    cut = audited.run(hidden % "anchorctl audit export", check=False)
    assert cut.returncode == 1 and "and not closed" in cut.stderr and "__ANCHORHOLD_EXPORT" not in cut.stdout, cut.stderr


def test_export_cut_within_a_record(audited):
    """The record is named, by its own number if that is there and else by its place; the byte as well."""
    seqs = [approve(audited, f"piece {n}")["seq"] for n in range(3)]
    wait_kept(audited, seqs[-1])
    entries = export(audited)
    assert verify_entries(audited, entries)[0] == 0  # the control
    where = records(entries)
    text = "\n\n".join(entries[:where[seqs[1]] + 1])
    start = text.rindex("\n\n") + 2
    for cut in (start + 10, text.rindex("ANCHORHOLD_"), text.rindex("ANCHORHOLD_") + 5, len(text) - 3):
        audited.write("/var/tmp/export", text[:cut])
        status, said = verify(audited, "--file", "/var/tmp/export")
        assert status == 1 and f"Record {seqs[1]} is bad (malformed): Record {seqs[1]}:" in said, (cut - start, said)
        assert f"before: {seqs[1] - min(where):,} good records" in said, said
    


def test_cut_log(audited):
    """Stopping auditd signs where the chain stands: an export without its tail, or without its head, is known to be cut."""
    seq = approve(audited)["seq"]
    wait_kept(audited, seq)
    audited.systemctl("restart", "anchor-auditd.service")
    wait_kept(audited, approve(audited)["seq"])
    entries = export(audited)
    status, text = verify_entries(audited, entries)  # the control
    assert status == 0, text
    where = records(entries)
    status, text = verify_entries(audited, entries[: where[seq]])
    assert status == 1 and f"record {seq} was signed" in text, text
    status, text = verify_entries(audited, [entry for entry in entries if "\nANCHORHOLD_SEQ=1\n" not in entry])
    assert status == 1 and "it began with record 1" in text, text


def test_frozen_journal_refuses(audited):
    """What cannot be kept is not acknowledged; when the journal comes back, so does the log."""
    approve(audited)
    audited.systemctl("kill", "--signal=STOP", "systemd-journald@anchorhold.service")
    try:
        end = time.monotonic() + 30
        while call(audited, "Append", {"event": "approval.recorded", "item": ITEM, "data": {}}, check=False).returncode == 0:
            assert time.monotonic() < end, "records are taken although the journal is frozen"
            time.sleep(0.5)
        assert call(audited, "Ping", {}, check=False).returncode != 0
    finally:
        audited.systemctl("kill", "--signal=CONT", "systemd-journald@anchorhold.service")
    end = time.monotonic() + 30
    while call(audited, "Ping", {}, check=False).returncode != 0:
        assert time.monotonic() < end, "nothing is taken although the journal is back"
        time.sleep(0.5)
    wait_kept(audited, approve(audited)["seq"])
    status, text = verify(audited)
    assert status == 0, text


def test_forged_entry_is_found(audited):
    """Root can write into the namespace, but not as auditd. Last: it spoils the log."""
    status, text = verify(audited)  # the control
    assert status == 0, text
    audited.run("printf 'ANCHORHOLD_SEQ=99999\\nANCHORHOLD_EVENT=run.finished\\nMESSAGE=never happened\\n' >/run/forged && "
                "systemd-run --quiet --wait -p LogNamespace=anchorhold logger --journald=/run/forged", check=False)
    time.sleep(1)
    status, text = verify(audited)
    assert status == 1 and "99999" in text, text
