# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the daemons have of memory and descriptors: after bad input of any kind as much as before, to within a tenth."""

from waiting import wait_for

# And a socket of each that whoever is root may connect to.
DAEMONS = {"anchord": "api.sock", "anchor-auditd": "audit.sock", "anchor-egressd": "egress.sock", "anchor-secretd": "secret-api.sock"}


class Daemons:
    """Resident memory and open descriptors of each.

    Not counted are their own connections to auditd: each has up to eight, opened one by one as names of runs happen to choose them
    (audit-client.c). auditd holds a pidfd of its peer for each, and that tells whose it is.
    """

    def __init__(self, host):
        self.host = host
        self.pids = self.running()

    def running(self):
        return {name: self.host.property(f"{name}.service", "MainPID") for name in DAEMONS}

    def measure(self):
        script = "; ".join(f"echo {name} $(grep ^VmRSS: /proc/{pid}/status) $(ls /proc/{pid}/fd | wc -l)" for name, pid in self.pids.items())
        lines = [line.split() for line in self.host.run(script).stdout.splitlines()]
        peers = self.host.run(f"cat /proc/{self.pids['anchor-auditd']}/fdinfo/* | grep ^Pid:", check=False).stdout.split()
        lanes = {name: peers.count(pid) for name, pid in self.pids.items()}
        lanes["anchor-auditd"] = 2 * sum(lanes.values())
        return {name: (int(rss), int(fds) - lanes[name]) for name, _, rss, _, fds in lines}

    def grown(self, before):
        """Those that have more than a tenth more of something, with both numbers."""
        now = self.measure()
        return {name: (before[name], now[name]) for name in before
                if any(b > a * 1.1 for a, b in zip(before[name], now[name]))}

    def await_as_before(self, before, seconds=30):
        """Until none has more than a tenth more; nor was one started anew meanwhile."""
        wait_for(lambda: not self.grown(before), seconds, lambda: str(self.grown(before)))
        assert self.running() == self.pids
