# SPDX-License-Identifier: LGPL-2.1-or-later
"""anchor-import on the booted image, with bundles as a hostile guest would make them.

Each bundle is made on the test's side with git's plumbing, so that trees can hold what `git add` refuses. The
check runs in the image, under the sandbox of anchor-import@.service. `control` shows that the same road is open to a good
result.
"""

import base64
import hashlib
import json
import os
import pathlib
import re
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

import host as hosting
import test_run_supervisor as supervisor
from daemons import Daemons

BASE_REF = "refs/anchorhold/base"
RESULT_REF = "refs/anchorhold/result"
SANDBOX_KEYS = ("DynamicUser CapabilityBoundingSet PrivateNetwork ProtectSystem ProtectHome PrivateTmp PrivateDevices PrivateIPC "
                "ProtectProc ProcSubset NoExecPaths ExecPaths RestrictNamespaces MemoryDenyWriteExecute RestrictAddressFamilies "
                "SystemCallFilter SystemCallErrorNumber MemoryMax TasksMax").split()
UNIT = pathlib.Path(__file__).resolve().parents[2] / "units" / "anchor-import@.service"


class Repo:
    """A repository to make bundles from."""

    def __init__(self, path):
        self.path = path
        self.git("init", "-q", "-b", "main", ".")
        for name, text in {"Makefile": "check:\n\ttrue\n", "src/a.c": "int a;\n"}.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "base")
        self.base = self.git("rev-parse", "HEAD")
        self.git("update-ref", BASE_REF, self.base)
        self.git("bundle", "create", "-q", "seed.bundle", BASE_REF)

    def git(self, *args, input=None, binary=False):
        env = {"PATH": os.environ["PATH"], "HOME": str(self.path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
               "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
               "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
        out = subprocess.run(["git", *args], cwd=self.path, env=env, input=input, capture_output=True, check=True).stdout
        return out if binary else out.decode().strip()

    def blob(self, data=b"x\n"):
        return self.git("hash-object", "-w", "--stdin", input=data)

    def write_object(self, kind, data):
        """Writes a loose object that git itself would not make."""
        raw = f"{kind} {len(data)}".encode() + b"\0" + data
        oid = hashlib.sha1(raw).hexdigest()
        path = self.path / ".git" / "objects" / oid[:2] / oid[2:]
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(zlib.compress(raw))
        return oid

    def tree(self, *entries):
        """A tree of the base's entries and (mode, name, oid), as git sorts them."""
        rows = [(m, n.encode() if isinstance(n, str) else n, o) for m, n, o in entries]
        for line in self.git("ls-tree", "-z", self.base, binary=True).split(b"\0")[:-1]:
            meta, name = line.split(b"\t", 1)
            rows.append((meta.split()[0].decode(), name, meta.split()[2].decode()))
        rows.sort(key=lambda e: e[1] + (b"/" if e[0] in ("040000", "40000") else b""))
        return self.write_object("tree", b"".join(m.lstrip("0").encode() + b" " + n + b"\0" + bytes.fromhex(o) for m, n, o in rows))

    def bare_tree(self, *entries):
        return self.write_object("tree", b"".join(m.lstrip("0").encode() + b" " + n.encode() + b"\0" + bytes.fromhex(o) for m, n, o in entries))

    def commit(self, tree, *parents):
        return self.git("commit-tree", tree, *[x for p in (parents or (self.base,)) for x in ("-p", p)], "-m", "work")

    def bundle(self, commit, name=RESULT_REF, exclude=None, extra=()):
        """A bundle as the guest's collecting script makes it, but from plumbing, which checks nothing."""
        exclude = self.base if exclude is None else exclude
        pack = self.git("pack-objects", "--revs", "--stdout", "--thin", "-q", binary=True,
                        input="\n".join([commit, *[o for o, _ in extra], *([f"^{exclude}"] if exclude else [])]).encode() + b"\n")
        head = "# v2 git bundle\n" + (f"-{exclude} base\n" if exclude else "") + f"{commit} {name}\n"
        head += "".join(f"{o} {n}\n" for o, n in extra)
        return head.encode() + b"\n" + pack


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path)


@pytest.fixture(scope="module")
def sandbox():
    """The unit's own sandbox, for a run without anchord."""
    lines = [line.strip() for line in UNIT.read_text().splitlines()]
    return [f"--property={line}" for line in lines if line.split("=")[0] in SANDBOX_KEYS and not line.startswith("#")]


@pytest.fixture
def check(host, repo, sandbox, request):
    """Checks a bundle in the image: (accepted, what it said, folder there with `checked` and `diff`)."""
    def run(bundle, base=None, ref=RESULT_REF, seed=None, timeout=120, limit=268435456):
        where = "/var/tmp/import-test"
        host.run(f"rm -rf {where} && mkdir -p {where}")
        host.write(f"{where}/seed", seed if seed is not None else (repo.path / "seed.bundle").read_bytes())
        host.write(f"{where}/result", bundle)
        result = host.run(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *sandbox, f"--property=BindReadOnlyPaths={where}",
                           "--property=LimitCORE=0", "/bin/sh", "-c",
                           f"/usr/libexec/anchorhold/anchor-import --files {base or repo.base} {ref} {where}/seed {where}/result /tmp/c /tmp/d {limit}; "
                           "r=$?; [ $r != 0 ] || { base64 -w0 /tmp/c; echo; base64 -w0 /tmp/d; echo; }; exit $r"],
                          check=False, timeout=timeout)
        assert "Segmentation" not in result.stderr
        assert result.returncode in (0, 3), result.stdout[-2000:] + result.stderr[-2000:]
        lines = result.stdout.splitlines()
        return result.returncode == 0, lines[0], lines[1:]
    return run


def decoded(lines):
    return [base64.b64decode(line) for line in lines]


def good(repo, data=b"int a = 1;\n", name="src/new.c"):
    return repo.commit(repo.tree(("100644", name.split("/")[-1], repo.blob(data))))


def test_control(check, repo, tmp_path):
    commit = good(repo)
    ok, said, rest = check(repo.bundle(commit))
    assert ok, said
    assert said.startswith(f"accepted: {commit} ")
    facts = json.loads(said.split(" ", 2)[2])
    assert facts["commits"] == 1 and facts["symlinks_outside"] == [] and facts["diff_truncated"] is False

    checked, diff = decoded(rest)
    assert b"+int a = 1;" in diff
    # what the verification gets: the whole history, both references, nothing else
    (tmp_path / "checked").write_bytes(checked)
    heads = repo.git("bundle", "list-heads", "checked").splitlines()
    assert sorted(heads) == sorted([f"{repo.base} {BASE_REF}", f"{commit} {RESULT_REF}"])
    other = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", other], check=True)
    subprocess.run(["git", "-C", other, "fetch", "-q", tmp_path / "checked", f"{RESULT_REF}:{RESULT_REF}"], check=True)


def test_merge_of_own_branches(check, repo):
    one, two = good(repo, name="one"), good(repo, name="two")
    ok, said, _ = check(repo.bundle(repo.commit(repo.tree(("100644", "both", repo.blob())), one, two)))
    assert ok, said


def test_symlinks_are_reported(check, repo):
    links = [("120000", "in", repo.blob(b"src/a.c")), ("120000", "out", repo.blob(b"../../etc/passwd"))]
    ok, said, _ = check(repo.bundle(repo.commit(repo.tree(*links))))
    assert ok, said
    assert json.loads(said.split(" ", 2)[2])["symlinks_outside"] == [{"path": "out", "target": "../../etc/passwd"}]


def test_diff_is_text_whatever_attributes_say(check, repo):
    attributes = repo.blob(b"*.c diff=evil\n*.c filter=evil\n")
    tree = repo.tree(("100644", ".gitattributes", attributes), ("100644", "new.c", repo.blob(b"\x1b[31mred\n")))
    ok, said, rest = check(repo.bundle(repo.commit(tree)))
    assert ok, said
    assert b"red" in decoded(rest)[1]


def refused(outcome, *words):
    ok, said, rest = outcome
    assert not ok and said.startswith("rejected: "), said
    assert not rest
    for word in words:
        assert word in said, said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", [".git", ".GIT", ".Git ", ".git.", "git~1", ".git::$INDEX_ALLOCATION", ".g\u200cit", "a\\.git"])
def test_deny_dotgit(check, repo, name):
    inner = repo.bare_tree(("100644", "config", repo.blob(b"[core]\n\tfsmonitor = /bin/sh\n")))
    refused(check(repo.bundle(repo.commit(repo.tree(("40000", name, inner))))))


def test_deny_dotgit_that_was_taken_away_again(check, repo):
    inner = repo.bare_tree(("100644", "config", repo.blob(b"x")))
    first = repo.commit(repo.tree(("40000", ".GIT", inner)))
    refused(check(repo.bundle(repo.commit(repo.tree(("100644", "fine", repo.blob())), first))))


def test_deny_dotdot(check, repo):
    inner = repo.bare_tree(("100644", "authorized_keys", repo.blob()))
    refused(check(repo.bundle(repo.commit(repo.tree(("40000", "..", inner))))))


def test_deny_slash_in_name(check, repo):
    refused(check(repo.bundle(repo.commit(repo.tree(("100644", "../../x", repo.blob()))))))


def test_deny_submodule(check, repo):
    refused(check(repo.bundle(repo.commit(repo.tree(("160000", "sub", repo.base))))), "submodule")


@pytest.mark.parametrize("text", [b'[submodule "a"]\n\tpath = a\n\turl = -u./payload\n', b'[submodule "a"]\n\tpath = a\n\turl = https://example.org/a\n'])
def test_deny_gitmodules(check, repo, text):
    refused(check(repo.bundle(repo.commit(repo.tree(("100644", ".gitmodules", repo.blob(text)))))), "gitmodules")


def test_deny_gitmodules_link(check, repo):
    refused(check(repo.bundle(repo.commit(repo.tree(("120000", ".gitmodules", repo.blob(b"/etc/passwd")))))), "gitmodules")


def test_deny_extra_reference(check, repo):
    commit = good(repo)
    refused(check(repo.bundle(commit, extra=[(commit, "refs/heads/\x1b[31mmain")])), "nobody asked for", "\\x1b")


def test_deny_other_reference(check, repo):
    refused(check(repo.bundle(good(repo), name="refs/heads/main")), "refs/heads/main")


def test_deny_same_reference_twice(check, repo):
    commit = good(repo)
    refused(check(repo.bundle(commit, extra=[(commit, RESULT_REF)])), "2 references")


def test_deny_no_reference(check, repo):
    pack = repo.bundle(good(repo)).split(b"\n\n", 1)[1]
    refused(check(b"# v2 git bundle\n\n" + pack), "0 references")


def test_deny_base_itself(check, repo):
    refused(check(repo.bundle(repo.base, exclude="")), "nothing was committed")


def test_deny_unrelated_history(check, repo):
    commit = repo.git("commit-tree", repo.tree(), "-m", "orphan")
    refused(check(repo.bundle(commit, exclude="")), "does not descend")


def test_deny_tag_and_tree(check, repo):
    commit = good(repo)
    tag = repo.git("mktag", input=f"object {commit}\ntype commit\ntag v1\ntagger a <a@example.org> 1700000000 +0000\n\nx\n".encode())
    refused(check(repo.bundle(tag)), "commit")
    refused(check(repo.bundle(repo.tree(("100644", "x", repo.blob())), exclude="")), "commit")


def test_deny_reference_to_nothing(check, repo):
    bundle = repo.bundle(good(repo))
    refused(check(bundle.replace(good(repo).encode(), b"1" * 40, 1)))


def test_deny_missing_objects(check, repo):
    blob = repo.blob(b"not sent\n")
    commit = repo.commit(repo.tree(("100644", "x", blob)))
    pack = repo.git("pack-objects", "--stdout", "-q", binary=True, input=f"{commit}\n{repo.git('rev-parse', commit + '^{tree}')}\n".encode())
    refused(check(f"# v2 git bundle\n-{repo.base} base\n{commit} {RESULT_REF}\n\n".encode() + pack))


@pytest.mark.parametrize("cut", [0, 10, 60, -1, -20, -25])
def test_deny_truncated(check, repo, cut):
    bundle = repo.bundle(good(repo))
    refused(check(bundle[:cut] if cut else b""))


def test_deny_flipped_bits(check, repo):
    bundle = bytearray(repo.bundle(good(repo)))
    bundle[-30] ^= 0x40
    refused(check(bytes(bundle)))


def test_deny_partial_clone(check, repo):
    commit = good(repo)
    pack = repo.bundle(commit).split(b"\n\n", 1)[1]
    refused(check(f"# v3 git bundle\n@filter=blob:none\n{commit} {RESULT_REF}\n\n".encode() + pack), "capability")


def test_deny_malformed_commit(check, repo):
    commit = repo.write_object("commit", f"tree {repo.tree()}\nparent {repo.base}\nauthor <no name\ncommitter x\n\nx\n".encode())
    refused(check(repo.bundle(commit)))


def test_deny_unsorted_tree(check, repo):
    tree = repo.bare_tree(("100644", "b", repo.blob()), ("100644", "a", repo.blob()), ("100644", "a", repo.blob()))
    refused(check(repo.bundle(repo.commit(tree))))


def test_deny_huge_name(check, repo):
    refused(check(repo.bundle(repo.commit(repo.tree(("100644", "n" * 5000, repo.blob()))))), "")
    refused(check(repo.bundle(repo.commit(repo.tree(("100644", "n" * 300, repo.blob()))))), "255")


def zip_bomb(repo):
    """600 MiB of zeros in 600 KiB."""
    big = repo.path / "big"
    with open(big, "wb") as f:
        f.truncate(600 * 1024 * 1024)
    blob = repo.git("hash-object", "-w", "big")
    big.unlink()
    bundle = repo.bundle(repo.commit(repo.tree(("100644", "big", blob))))
    assert len(bundle) < 1024 * 1024
    return bundle


def delta_bomb(repo):
    """A few bytes of delta that copy their base 65,536 times: four gigabytes, if anybody believed it."""
    def varint(n):
        out = bytearray()
        while True:
            out.append((n & 0x7f) | (0x80 if n >> 7 else 0))
            n >>= 7
            if not n:
                return bytes(out)

    def entry(kind, size, data, prefix=b""):
        head = bytearray([(kind << 4) | (size & 15)])
        size >>= 4
        while size:
            head[-1] |= 0x80
            head.append(size & 0x7f)
            size >>= 7
        return bytes(head) + prefix + zlib.compress(data)

    base = b"\0" * 65536
    base_oid = hashlib.sha1(b"blob 65536\0" + base).digest()
    copy = b"\x80"  # offset 0, size 0 meaning 65536
    delta = varint(65536) + varint(65536 * 65536) + copy * 65536
    body = entry(3, len(base), base) + entry(7, len(delta), delta, base_oid)
    pack = b"PACK" + (2).to_bytes(4, "big") + (2).to_bytes(4, "big") + body
    return f"# v2 git bundle\n{good(repo)} {RESULT_REF}\n\n".encode() + pack + hashlib.sha1(pack).digest()


def too_many_objects(repo):
    """A pack whose head claims 4,294,967,295 objects, for which an index would be made."""
    head, pack = repo.bundle(good(repo)).split(b"\n\n", 1)
    return head + b"\n\n" + pack[:8] + b"\xff\xff\xff\xff" + pack[12:]


def test_deny_zip_bomb(check, repo):
    """Its sum unpacked is refused under a limit of 256 MiB, and it never is in memory as a whole."""
    bundle = zip_bomb(repo)
    refused(check(bundle, timeout=300, limit=4 * 1024 * 1024), "unpacked")
    refused(check(bundle, timeout=300, limit=100_000), "larger than 97.7K")


def test_deny_delta_bomb(check, repo):
    refused(check(delta_bomb(repo), timeout=300))


def test_deny_many_claimed_objects(check, repo):
    refused(check(too_many_objects(repo)), "claims")


def test_a_base_that_is_not_in_the_seed(check, repo):
    refused(check(repo.bundle(good(repo)), base="1" * 40), "not in the seed")


def test_leaves_nothing(host, check, repo):
    refused(check(b"junk"), "not a git bundle")
    assert host.run("ls -d /var/tmp/import-?????? 2>/dev/null", check=False).stdout == ""


# ---- the real unit, under the real anchord ----

GOOD = "good"
# What is refused, and what the reason says of it.
BAD = {"submodule": "is a submodule", "extra-reference": "nobody asked for", "dot-git": "hasDotgit",
       "zip-bomb": "more than 256M unpacked", "delta-bomb": "git hit the import's limit of memory", "too-many": "claims 4294967295 objects"}
REPOSITORY = "/var/tmp/repository"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A boot in which anchor-run@ is a script that hands in a bundle made here, and everything else is real."""
    folder = tmp_path_factory.mktemp("repo")
    repo = Repo(folder)
    commits = {GOOD: good(repo), "submodule": repo.commit(repo.tree(("160000", "sub", repo.base)))}
    config = repo.bare_tree(("100644", "config", repo.blob(b"[core]\n\tfsmonitor = /bin/sh\n")))
    made = {name: repo.bundle(commit) for name, commit in commits.items()}
    made["extra-reference"] = repo.bundle(commits[GOOD], extra=[(commits[GOOD], "refs/heads/main")])
    made["dot-git"] = repo.bundle(repo.commit(repo.tree(("40000", ".GIT", config))))
    made |= {"zip-bomb": zip_bomb(repo), "delta-bomb": delta_bomb(repo), "too-many": too_many_objects(repo)}
    assert made.keys() == {GOOD, *BAD}

    etc = supervisor.make_etc(tmp_path_factory.mktemp("etc"))
    (etc / "systemd/system/anchor-import@.service").unlink()
    bundles = etc / "stand-in" / "bundles"
    bundles.mkdir()
    for name, bundle in made.items():
        (bundles / name).write_bytes(bundle)
    script = (etc / "stand-in/run").read_text()
    assert "        verify)" in script
    (etc / "stand-in/run").write_text(script.replace("        verify)", f'        {"|".join(made)}) finish ok "" 0 "/etc/stand-in/bundles/$scenario" ;;\n        verify)'))

    booted = hosting.start_boot(f"check-{os.getpid()}-import", "--fresh", "--etc", etc)
    try:
        supervisor.wait_for(lambda: supervisor.status(booted).get("ready") and set(supervisor.status(booted)["enforcers"].values()) == {"ok"}, 30,
                            lambda: booted.journal("-u", "anchor*"))
        booted.copy_in(folder, REPOSITORY, owner="root")
        yield booted, repo, commits
    finally:
        booted.stop()


def run(booted, repo, name):
    """What anchorctl says of a run that ends with that bundle: its exit status, what it wrote, and the item."""
    done = booted.anchorctl("run", "--workflow", "stand-in-once", "--repo", REPOSITORY, "--base", repo.base, "--task", name, check=False, user=None)
    said = done.stdout + done.stderr
    return done.returncode, said, json.loads(booted.anchorctl("show", re.search(r"\bi[0-9a-z]{12}\b", said).group(), "--json=short", user=None).stdout)


def events(booted, run, event):
    lines = booted.run(["journalctl", "--namespace=anchorhold", "-o", "json", "--no-pager", f"ANCHORHOLD_RUN={run}", f"ANCHORHOLD_EVENT={event}"]).stdout
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines.splitlines()]


def test_unit_accepts(real):
    booted, repo, commits = real
    status, said, shown = run(booted, repo, GOOD)
    assert status == 0 and "in_review" in said, said + booted.journal("-u", "anchor-import@*")
    assert shown["state"] == "in_review" and shown["result_commit"] == commits[GOOD], shown
    work = [run["id"] for run in shown["runs"] if run["stage"] == "work"]
    assert [e["commit"] for e in events(booted, work[0], "import.accepted")] == [commits[GOOD]]
    supervisor.assert_nothing_left(booted)


@pytest.mark.parametrize("name", BAD)
def test_unit_rejects(real, name):
    """Bombs among them: the operator's command ends with 1 and the reason, and so do item and audit log."""
    booted, repo, _ = real
    status, said, shown = run(booted, repo, name)
    assert status == 1 and re.search(f"exhausted: import: .*{BAD[name]}", said), said
    assert shown["state"] == "exhausted" and BAD[name] in shown["reason"], shown
    rejected = events(booted, shown["runs"][0]["id"], "import.rejected")
    assert len(rejected) == 1 and BAD[name] in rejected[0]["reason"]
    assert [run["stage"] for run in shown["runs"]] == ["work"] and shown["result_commit"] is None
    supervisor.assert_nothing_left(booted)


def test_daemons_are_what_they_were_and_no_unit_failed(real):
    """After each of the bad ones once more, beside good ones, when the daemons have seen all of it once."""
    booted, repo, _ = real
    names = [*BAD, GOOD]
    for name in names:
        run(booted, repo, name)
    since, daemons = booted.journal_end(), Daemons(booted)
    before = daemons.measure()
    for name in BAD:
        with ThreadPoolExecutor(2) as pool:
            bad, fine = pool.submit(run, booted, repo, name), pool.submit(run, booted, repo, GOOD)
            assert (bad.result()[0], fine.result()[0]) == (1, 0), (bad.result()[1], fine.result()[1])
        daemons.await_as_before(before)
    assert booted.failures(since) == []
