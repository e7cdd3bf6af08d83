# SPDX-License-Identifier: LGPL-2.1-or-later
# Shared by image/boot, image/exec and image/stop: where a running boot is described.
# shellcheck shell=bash
#
# A boot NAME has
#   $BOOTS/NAME.lock     held by its monitor for as long as that lives, so that whoever gets it knows
#                        that everything else here is left over
#   $BOOTS/NAME/monitor  pid of the monitor (SIGTERM ends the boot)
#   $BOOTS/NAME/leader   pid of the container's PID 1, in the caller's pid namespace
#   $BOOTS/NAME/cgroup   its cgroup's folder
#   $BOOTS/NAME/ready    exists once the system is up: its state ("running", "degraded")
#   $BOOTS/NAME/state    the folder of what outlives the boot (etc and var)
#   $BOOTS/NAME/vm       exists if it is a virtual machine; then, instead of leader and cgroup: qemu (its pid), qmp (a socket),
#                        exec.N, the sockets of the ports that take commands, and machine, the pid of image/lib/vm: SIGUSR1 cuts the power
#   $BOOTS/NAME/forget   exists if that folder is to be removed with the boot

BOOTS=/run/anchorhold-boot

# The folder that cgroup2 is mounted on, wherever this machine has it: the whole of it, if a part is mounted as well. mountinfo escapes a space as \040.
cgroup2_mount() {
        printf '%b' "$(awk '{ for (i = 7; i <= NF; i++) if ($i == "-") { if ($(i + 1) == "cgroup2") print $4 != "/", $5; break } }' \
                /proc/self/mountinfo | sort -s -n -k 1,1 | head -n 1 | cut -d ' ' -f 2)"
}

# remove_cgroup DIR: ends what still runs below DIR, and removes the whole tree.
remove_cgroup() {
        local dir=$1 tries=0
        [ -d "$dir" ] || return 0
        [ ! -w "$dir/cgroup.kill" ] || echo 1 >"$dir/cgroup.kill" || true
        while [ -d "$dir" ] && ((tries++ < 100)); do
                find "$dir" -depth -type d -exec rmdir -- {} + 2>/dev/null || sleep 0.05
        done
        [ ! -d "$dir" ] || printf 'boot: cgroup %s cannot be removed\n' "$dir" >&2
}

# forget_boot NAME: removes what a boot left; its lock is held by the caller.
forget_boot() {
        local run=$BOOTS/$1
        if [ -d "$run" ]; then
                [ ! -s "$run/cgroup" ] || remove_cgroup "$(<"$run/cgroup")"
                if [ -e "$run/forget" ] && [ -s "$run/state" ]; then
                        rm -rf --one-file-system -- "$(<"$run/state")"
                fi
                rm -rf -- "$run"
        fi
}

# boot_field NAME FIELD: one line of a boot's description; fails with a reason when it is not running.
boot_field() {
        [ -s "$BOOTS/$1/$2" ] || die "no boot named $1 is running"
        cat "$BOOTS/$1/$2"
}
