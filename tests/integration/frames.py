# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest sends by IPv6 or under another address is refused at once where the machine's kernel can answer a frame, and dropped in silence where it cannot
(docs/network.md). Which of both a test expects the kernel says, and not what the product made of it."""

RULES = """
add table netdev asked
add chain netdev asked c { type filter hook ingress device "lo" priority filter; policy accept; }
add rule netdev asked c ether type ip6 %s
"""


def are_answered(host):
    """Asked in a namespace of its own. Without that kind of rule, a kernel calls it unknown; that it drops is the control."""
    def load(verdict):
        return host.run(["unshare", "--net", "--", "nft", "-f", "-"], input=RULES % verdict, check=False)

    dropping, answering = load("drop"), load("reject with icmpx admin-prohibited")
    assert dropping.returncode == 0, dropping.stderr
    assert answering.returncode == 0 or "No such file or directory" in answering.stderr, answering.stderr
    return answering.returncode == 0 and host.run(["test", "-e", "/proc/sys/net/ipv6/conf/all"], check=False).returncode == 0
