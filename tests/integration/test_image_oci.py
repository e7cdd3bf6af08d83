# SPDX-License-Identifier: LGPL-2.1-or-later
"""The image as hosts get it: an OCI archive with layers, labels, signature and a list of what is in it; and the checks that it passes.
Nothing is booted here; that the container boot is of the same trees is one of the tests."""

import base64
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tarfile

import pytest

from conftest import TOP

IMAGE = TOP / "image"


def call(*argv, check=True, **options):
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=check, **options)


def inside(script, *args):
    """A shell line in the build root, which has zstd."""
    return subprocess.run([IMAGE / "in-buildroot", "bash", "-euo", "pipefail", "-c", script, "x", *map(str, args)],
                          stdout=subprocess.PIPE, check=True).stdout


class Image:
    def __init__(self, folder):
        self.folder = folder
        self.digest = (folder / "digest").read_text().strip()
        self.archive = tarfile.open(folder / "anchorhold.oci")
        self.index = json.loads(self.read("index.json"))
        self.manifest = json.loads(self.blob(self.digest))
        self.config = json.loads(self.blob(self.manifest["config"]["digest"]))

    def read(self, name):
        return self.archive.extractfile(name).read()

    def blob(self, digest):
        return self.read(f"blobs/sha256/{digest.removeprefix('sha256:')}")

    def layer(self, name):
        """A layer as the signed folder has it, where it need not be taken out of an archive."""
        entry = next(each for each in self.manifest["layers"] if each["annotations"]["io.anchorhold.layer"] == name)
        return self.folder / "signed" / entry["digest"].removeprefix("sha256:")

    def members(self, name):
        return tarfile.open(fileobj=io.BytesIO(inside('zstd -dc "$1"', self.layer(name))))


@pytest.fixture(scope="module")
def image(archive):
    return Image(archive)


# The archive.

def test_every_blob_is_what_its_name_says(image):
    named = {image.digest, image.manifest["config"]["digest"].removeprefix("sha256:"),
             *(layer["digest"].removeprefix("sha256:") for layer in image.manifest["layers"])}
    there = {name.rpartition("/")[2] for name in image.archive.getnames() if name.startswith("blobs/sha256/")}
    assert there == named
    for digest in there:
        assert hashlib.sha256(image.blob(digest)).hexdigest() == digest
    entry, = image.index["manifests"]
    assert entry["digest"] == f"sha256:{image.digest}" and entry["size"] == len(image.blob(image.digest))
    assert json.loads(image.read("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    assert [layer["size"] for layer in image.manifest["layers"]] == [len(image.blob(layer["digest"])) for layer in image.manifest["layers"]]


def test_layers_go_from_what_changes_least_to_what_changes_most(image):
    names = [layer["annotations"]["io.anchorhold.layer"] for layer in image.manifest["layers"]]
    assert names == ["base", "bootable", "guest", "agent-claude", "agent-codex", "agent-pi", "ours"]
    for name, diff in zip(names, image.config["rootfs"]["diff_ids"], strict=True):
        assert inside('zstd -dc "$1" | sha256sum', image.layer(name)).split()[0].decode() == diff.removeprefix("sha256:")
    # what a changed program costs
    assert image.layer("ours").stat().st_size < 8_000_000


def test_labels(image):
    labels = image.config["config"]["Labels"]
    locks = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(IMAGE)}\n" for path in
                    [*sorted((IMAGE / "lock").glob("*.lock")), *sorted(IMAGE.glob("agents/*/package-lock.json"))])
    assert labels["containers.bootc"] == "1" and labels["ostree.bootable"] == "1"
    assert labels["io.anchorhold.lock"] == f"sha256:{hashlib.sha256(locks.encode()).hexdigest()}"
    assert f'"{labels["org.opencontainers.image.version"]}"' in (TOP / "supervisor/util/version.h").read_text()
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_kernel_is_where_bootc_looks(image):
    names = image.members("bootable").getnames()
    versions = {name.split("/")[3] for name in names if name.startswith("usr/lib/modules/") and name.count("/") > 2}
    version, = versions
    assert image.config["config"]["Labels"]["ostree.linux"] == version
    assert {f"usr/lib/modules/{version}/vmlinuz", f"usr/lib/modules/{version}/initramfs.img"} <= set(names)
    assert not [name for name in names if name.split("/")[0] not in ("usr", "etc")]


def test_archive_is_what_boots_as_a_container(image, tmp_path):
    """image/boot lays image/ours over image/rootfs; these two are layers of the archive, byte for byte."""
    rootfs = pathlib.Path(call(IMAGE / "rootfs").stdout.strip())
    ours = tmp_path / "ours"
    call(IMAGE / "ours", ours)
    for name, tree in (("base", rootfs), ("ours", ours)):
        seen = set()
        with image.members(name) as members:
            for member in members:
                path = tree / member.name
                if member.name.startswith("usr/lib/anchorhold/templates/"):
                    continue
                there = path.lstat()
                seen.add(member.name)
                assert stat.S_IMODE(there.st_mode) == member.mode or path.is_symlink(), member.name
                assert (there.st_uid, there.st_gid) == (member.uid, member.gid), member.name
                assert member.mtime == 0, member.name
                if member.issym():
                    assert os.readlink(path) == member.linkname
                elif member.isreg():
                    assert members.extractfile(member).read() == path.read_bytes(), member.name
        expected = {os.path.relpath(os.path.join(folder, entry), tree) for folder, folders, files in os.walk(tree) for entry in folders + files}
        assert seen == expected
    assert "usr/lib/anchorhold/templates/base/manifest.json.sig" in image.members("ours").getnames()


def test_same_inputs_give_the_same_image(image, tmp_path):
    """The small layers made twice, the large ones from the cache: make image-reproduce makes all of them twice."""
    again = TOP / "build" / "image-again"
    try:
        os.utime(TOP / "units" / "anchord.service")             # times of the sources do not matter
        call(IMAGE / "oci", "--no-lock", again, umask=0o077)
        assert (again / "digest").read_text().strip() == image.digest
        for name in ("anchorhold.oci", "anchorhold.spdx.json"):
            assert call("cmp", again / name, image.folder / name, check=False).returncode == 0
    finally:
        shutil.rmtree(again, ignore_errors=True)


def test_packages_that_differ_from_the_lock_are_refused(tmp_path):
    there = tmp_path / "tree"
    shutil.copytree(IMAGE, there / "image", symlinks=True)
    shutil.copytree(TOP / "rootfs-overlay" / "usr/lib/ostree", there / "rootfs-overlay" / "usr/lib/ostree")
    for name in ("build", "supervisor/util"):
        (there / name).mkdir(parents=True)
    shutil.copy(TOP / "build" / "template-base.packages", there / "build")
    shutil.copy(TOP / "supervisor/util/version.h", there / "supervisor/util")
    for name, text in (("rootfs", call(IMAGE / "rootfs").stdout), ("bootable", call(IMAGE / "bootable").stdout)):
        shutil.copy(f"{text.strip()}.packages", there / "image" / "lock" / f"{name}.lock")
    lock = there / "image" / "lock" / "rootfs.lock"
    assert call(there / "image" / "lockfiles", "check", "--strict", "rootfs", "bootable").returncode == 0
    lock.write_text(re.sub(r"^bash \S+", "bash 0.1", lock.read_text(), flags=re.M))
    refused = call(there / "image" / "oci", check=False)
    assert refused.returncode == 1 and "changed: bash 0.1 → " in refused.stderr and "make relock" in refused.stderr
    assert not (there / "build" / "image").exists()
    taken = call(there / "image" / "lockfiles", "write", "rootfs")
    assert "changed: bash 0.1 → " in taken.stderr
    assert call(there / "image" / "lockfiles", "check", "--strict", "rootfs").returncode == 0


# What is in it.

def licence_words(expression):
    return set(re.findall(r"[A-Za-z0-9.+-]+", expression)) - {"AND", "OR", "WITH"}


def test_sbom_lists_what_the_archive_holds(image):
    sbom = json.loads((image.folder / "anchorhold.spdx.json").read_text())
    packages = {package["SPDXID"]: package for package in sbom["packages"]}
    status = image.members("bootable").extractfile("usr/lib/sysimage/dpkg/status").read().decode()
    installed = {tuple(re.search(rf"^{field}: (.*)$", paragraph, re.M).group(1) for field in ("Package", "Version"))
                 for paragraph in status.split("\n\n") if "\nStatus: install ok installed" in paragraph}
    assert len(installed) > 150
    manifest = json.loads(image.members("ours").extractfile("usr/lib/anchorhold/templates/base/manifest.json").read())
    guests = {(package["name"], package["version"]): package for package in manifest["packages"]}
    listed = {(package["name"], package["versionInfo"]): package for package in sbom["packages"] if "externalRefs" in package}
    assert listed.keys() == installed | guests.keys()

    archives = {tuple(line.split()[:2]): line.split()[3] for name in ("rootfs", "bootable")
                for line in pathlib.Path(f"{call(IMAGE / name).stdout.strip()}.packages").read_text().splitlines()}
    for key, package in listed.items():
        digests = {each["algorithm"]: each["checksumValue"] for each in package["checksums"]}
        if key in installed:
            assert digests["SHA256"] == archives[key], key
        elif "sha256" in guests[key]:
            assert digests["SHA256"] == guests[key]["sha256"], key
        else:
            assert f"sha512-{base64.b64encode(bytes.fromhex(digests['SHA512'])).decode()}" == guests[key]["integrity"]
        assert package["licenseDeclared"] != "NOASSERTION", key
    root = next(package for package in sbom["packages"] if package.get("primaryPackagePurpose") == "OPERATING-SYSTEM")
    assert root["checksums"] == [{"algorithm": "SHA256", "checksumValue": image.digest}]
    assert packages.keys() == {relation["relatedSpdxElement"] for relation in sbom["relationships"]}


def test_sbom_is_spdx(image):
    """What the specification (2.3) demands of each element, as far as this document uses it."""
    sbom = json.loads((image.folder / "anchorhold.spdx.json").read_text())
    assert (sbom["spdxVersion"], sbom["dataLicense"], sbom["SPDXID"]) == ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sbom["creationInfo"]["created"]) and sbom["creationInfo"]["creators"]
    assert image.digest in sbom["documentNamespace"] and "#" not in sbom["documentNamespace"]
    ids = [package["SPDXID"] for package in sbom["packages"]] + ["SPDXRef-DOCUMENT"]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", each) for each in ids)
    extracted = {each["licenseId"]: each for each in sbom["hasExtractedLicensingInfos"]}
    used = set()
    for package in sbom["packages"]:
        assert package["name"] and package["downloadLocation"] == "NOASSERTION" and package["filesAnalyzed"] is False
        declared = package["licenseDeclared"]
        assert declared.count("(") == declared.count(")") and declared
        words = licence_words(declared)
        used |= {word for word in words if word.startswith("LicenseRef-")}
        for word in words - {"NOASSERTION"}:
            assert word in extracted or re.fullmatch(r"[A-Z0-9a-z][A-Za-z0-9.-]*", word) and not word.startswith("LicenseRef-"), (package["name"], word)
    assert used == extracted.keys() and all(each["extractedText"] for each in extracted.values())
    for relation in sbom["relationships"]:
        assert relation["spdxElementId"] in ids and relation["relatedSpdxElement"] in ids
        assert relation["relationshipType"] in ("DESCRIBES", "CONTAINS")
    assert [relation["relationshipType"] for relation in sbom["relationships"]].count("DESCRIBES") == 1


def test_sums_are_signed(image, tmp_path):
    call("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=image.folder)
    key = call(IMAGE / "sign", "--public").stdout.strip()
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", key, "-rawin", "-sigfile", image.folder / "SHA256SUMS.sig", "-in"]
    assert call(*verify, image.folder / "SHA256SUMS", check=False).returncode == 0
    (tmp_path / "sums").write_text((image.folder / "SHA256SUMS").read_text().replace("0", "1", 1))
    assert call(*verify, tmp_path / "sums", check=False).returncode != 0


# Who may replace a host's image: skopeo of the image, with the policy of the image, in a view of the image's trees.

class Skopeo:
    SCRIPT = """
        for folder in run tmp var; do mount -t tmpfs tmpfs "$TREE/$folder"; done
        mkdir "$TREE/run/in" "$TREE/run/out" "$TREE/var/tmp"
        mount --bind "$1" "$TREE/run/in"
        mount -t proc proc "$TREE/proc"
        shift
        exec chroot "$TREE" env -i PATH=/usr/bin HOME=/tmp skopeo "$@"
    """

    def __init__(self, tmp_path):
        self.ours = tmp_path / "ours"
        call(IMAGE / "ours", self.ours)

    def copy(self, folder, source):
        return call(IMAGE / "lib" / "with-layers", call(IMAGE / "rootfs").stdout.strip(), call(IMAGE / "bootable").stdout.strip(), self.ours,
                    "--", "bash", "-euc", self.SCRIPT, "skopeo", folder, "copy", source, "dir:/run/out", check=False)


@pytest.fixture(scope="module")
def skopeo(tmp_path_factory):
    return Skopeo(tmp_path_factory.mktemp("skopeo"))


@pytest.fixture
def copy_of_image(image, tmp_path):
    """The signed image with links for its blobs, to be spoilt."""
    folder = tmp_path / "image"
    shutil.copytree(image.folder / "signed", folder, copy_function=lambda source, target: (
        shutil.copy if pathlib.Path(source).name in ("manifest.json", "signature-1") else os.link)(source, target))
    return folder


def test_signed_image_is_accepted(image, skopeo):
    done = skopeo.copy(image.folder / "signed", "dir:/run/in")
    assert done.returncode == 0, done.stderr


def refused(skopeo, folder, *words, source="dir:/run/in"):
    done = skopeo.copy(folder, source)
    assert done.returncode != 0 and "Source image rejected" in done.stderr and any(word in done.stderr for word in words), done.stderr


def test_unsigned_image_is_rejected(copy_of_image, skopeo):
    (copy_of_image / "signature-1").unlink()
    refused(skopeo, copy_of_image, "signature was required, but no signature exists")


def test_image_signed_with_another_key_is_rejected(copy_of_image, skopeo, tmp_path):
    key = tmp_path / "other.key"
    call("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
    call(IMAGE / "sign-image", copy_of_image, env={**os.environ, "SIGNING_KEY": str(key)})
    refused(skopeo, copy_of_image, "invalid signature", "cryptographic signature verification failed")


def test_image_changed_after_signing_is_rejected(copy_of_image, skopeo):
    manifest = json.loads((copy_of_image / "manifest.json").read_text())
    manifest["annotations"] = {"a": "b"}
    (copy_of_image / "manifest.json").write_text(json.dumps(manifest))
    refused(skopeo, copy_of_image, "digest")
    # the control: signed again by the right key it is accepted
    call(IMAGE / "sign-image", copy_of_image)
    assert skopeo.copy(copy_of_image, "dir:/run/in").returncode == 0


def test_image_of_another_name_is_rejected(copy_of_image, skopeo):
    call(IMAGE / "sign-image", "--identity", "io.anchorhold/other", copy_of_image)
    refused(skopeo, copy_of_image, "io.anchorhold/other")


def test_archive_which_cannot_carry_a_signature_is_rejected(image, skopeo):
    refused(skopeo, image.folder, "rejected by policy", source="oci-archive:/run/in/anchorhold.oci")


# Another base.

@pytest.mark.parametrize("base", ["", "registry.example/debian-bootc", "registry.example/debian-bootc:latest", "x@sha256:abc",
                                  f"x@sha512:{64 * '0'}", f"x:latest@sha256:{64 * '0'} --privileged"])
def test_floating_base_is_refused(base):
    refusal = call(IMAGE / "derived", "--prepare", base, check=False)
    assert refusal.returncode == 1 and "must be an image with its digest" in refusal.stderr


def test_derived_image_has_the_same_payload(image):
    """A base with a digest is taken; what would be laid over it is what the archive lays over its own."""
    context = pathlib.Path(call(IMAGE / "derived", "--prepare", f"registry.example/debian-bootc@sha256:{64 * '0'}").stdout.strip())
    try:
        assert "bootc container lint --fatal-warnings" in (context / "Containerfile").read_text()
        listed = {line.split("#")[0].strip() for line in (IMAGE / "rootfs.packages").read_text().splitlines()} - {""}
        assert set((context / "packages").read_text().split()) == listed - {"systemd-resolved"}
        with image.members("ours") as members:
            for member in members:
                if member.isreg() and member.name.startswith(("usr/bin/", "usr/libexec/", "usr/lib/systemd/", "usr/lib/anchorhold/")):
                    assert (context / "payload" / member.name).read_bytes() == members.extractfile(member).read(), member.name
    finally:
        shutil.rmtree(context)
