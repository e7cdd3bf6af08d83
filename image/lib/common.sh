# SPDX-License-Identifier: LGPL-2.1-or-later
# Shared by the scripts in image/: where things are cached, how a step is shown, where packages come from.
# shellcheck shell=bash

set -euo pipefail
umask 022

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
CACHE=${CACHE:-/var/cache/anchorhold}
SUITE=trixie

# What a signature of the image says that it is, wherever a site keeps its copy.
# shellcheck disable=SC2034
IMAGE_IDENTITY=io.anchorhold/host

# Where the root begins on a disk for UEFI (image/disk --efi), in MiB; what is before it is the partition that the firmware reads.
# shellcheck disable=SC2034
EFI_ROOT_MIB=512

die() {
        printf '%s: %s\n' "${0##*/}" "$*" >&2
        exit 1
}

# need_root WHAT: ends, unless it is root that asks for WHAT. Without this, the first that says so is unshare, and not why.
need_root() {
        [ "$(id -u)" = 0 ] || die "only root can $1: it takes namespaces and mounts of its own. Run it as root, for example with sudo"
}

# step LABEL COMMAND...: runs COMMAND with its output in a log file, shows one line with the elapsed
# time, and at least every five seconds a sign of life; on failure shows the end of the log.
step() {
        local label=$1 log start=$SECONDS pid rc=0 shown=0
        shift
        log=$(mktemp "${TMPDIR:-/tmp}/anchorhold-step.XXXXXX")
        "$@" >"$log" 2>&1 </dev/null &
        pid=$!
        while kill -0 "$pid" 2>/dev/null; do
                sleep 0.2
                if ((SECONDS - start >= shown + 5)); then
                        shown=$((SECONDS - start))
                        printf '  … %s (%d s)\n' "$label" "$shown" >&2
                fi
        done
        wait "$pid" || rc=$?
        if ((rc)); then
                printf '  ✗ %s failed with status %d after %d s; the end of its output:\n' \
                        "$label" "$rc" $((SECONDS - start)) >&2
                tail -n 40 "$log" >&2
                printf '  (all of it: %s)\n' "$log" >&2
                return "$rc"
        fi
        rm -f "$log"
        printf '  ✓ %s (%d s)\n' "$label" $((SECONDS - start)) >&2
}

# Prints apt source lines for $SUITE, its updates and its security archive, built from the addresses
# that this machine's own apt configuration uses.
apt_sources() {
        local main security
        main=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
                awk '$2 !~ /-/ { print $1; exit }')
        security=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
                awk '$2 ~ /-security$/ { print $1; exit }')
        [ -n "$main" ] || die "no Debian mirror in this machine's apt configuration (run apt-get update)"
        printf 'deb %s %s main\n' "$main" "$SUITE"
        printf 'deb %s %s-updates main\n' "$main" "$SUITE"
        if [ -n "$security" ]; then
                printf 'deb %s %s-security main\n' "$security" "$SUITE"
        fi
}

# digest_of FILE...: one SHA-256 over the given files' contents, in the order given (first 16 digits).
digest_of() {
        sha256sum -- "$@" | awk '{ print $1 }' | sha256sum | cut -c1-16
}

# What dpkg shall not unpack where nobody reads manual pages or changes the language.
TRIM=(
        --dpkgopt='path-exclude=/usr/share/man/*'
        --dpkgopt='path-exclude=/usr/share/doc/*'
        --dpkgopt='path-include=/usr/share/doc/*/copyright'
        --dpkgopt='path-exclude=/usr/share/locale/*'
        --dpkgopt='path-exclude=/usr/share/info/*'
)

# packages_of FILE: the names in a package list, separated by commas, without its comments.
packages_of() {
        sed 's/#.*//' "$1" | awk 'NF { print $1 }' | paste -sd,
}

# tree_key FILE...: what a Debian tree in the cache is named by: the files that say how it is made.
tree_key() {
        { cat -- "$@" "$TOP/image/lib/record-packages" && declare -f debian_root && declare -p TRIM; } |
                sha256sum | cut -c1-16
}

# debian_root ROOT LIST [MMDEBSTRAP-OPTION...]: makes ROOT, a Debian tree with the packages of the list
# file LIST, and ROOT.packages, what exactly went in.
debian_root() {
        local root=$1 list=$2 sources
        shift 2
        sources=$(mktemp "$CACHE/sources.XXXXXX")
        apt_sources >"$sources"
        rm -rf -- "$root"
        mmdebstrap --variant=minbase --mode=root --format=directory --skip=output/dev \
                --include="$(packages_of "$list")" \
                --customize-hook="'$TOP/image/lib/record-packages' '$root.packages' \"\$1\"" \
                "$@" "$SUITE" "$root" - <"$sources"
        rm -f "$sources"

        # Of this machine or of one boot, not of the tree; mmdebstrap copies them in, or apt leaves them.
        rm -f "$root"/etc/{hostname,resolv.conf,machine-id,.updated} "$root/var/lib/dbus/machine-id"
        rm -rf "${root:?}"/{dev,run,tmp}/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
}

# once DIR LABEL COMMAND...: makes DIR with COMMAND DIR.tmp unless it is there; one process at a time.
# A DIR.tmp.packages is kept as DIR.packages.
once() {
        local dir=$1 label=$2
        shift 2
        [ ! -d "$dir" ] || return 0
        need_root "make the $label"
        mkdir -p "${dir%/*}"
        (
                exec 9>"${dir%/*}/.${dir##*/}.lock"
                flock 9
                [ ! -d "$dir" ] || exit 0
                rm -rf -- "$dir.tmp"
                step "$label" "$@" "$dir.tmp" 9>&-
                [ ! -f "$dir.tmp.packages" ] || mv -- "$dir.tmp.packages" "$dir.packages"
                mv -T -- "$dir.tmp" "$dir"
        )
}

# make_erofs FILE TREE: the same tree gives the same file.
make_erofs() {
        "$TOP/image/in-buildroot" mkfs.erofs -zlz4hc -T0 -U 00000000-0000-0000-0000-000000000000 --quiet "$1" "$2"
}
