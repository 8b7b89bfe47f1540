"""The distribution of a group's members over hosts."""

from collections.abc import Sequence
from itertools import accumulate

# All members of a group of so many hear of what happens to one; of larger groups only
# the leaders of the hosts, and others ask.
_MOST_TOLD = 64


class Layout:
    """The members of a group by their hosts, as one of them sees them.

    Hosts are numbered in the order of their first members. The first member of each is
    its leader.
    """

    def __init__(
        self, rank: int, instances: Sequence[int], hosts: Sequence[int]
    ) -> None:
        """Number the hosts.

        Args:
            hosts: On which host each member is, by any number.
        """
        self.rank, self.instances = rank, tuple(instances)
        numbers: dict[int, int] = {}
        # The host of each member, and the members of each host.
        self.host_of = [numbers.setdefault(host, len(numbers)) for host in hosts]
        self.members = [
            tuple(r for r, other in enumerate(self.host_of) if other == host)
            for host in range(len(numbers))
        ]
        self.host = self.host_of[rank]
        self.local_ranks = self.members[self.host]
        self.local_rank = self.local_ranks.index(rank)
        self.leaders = [ranks[0] for ranks in self.members]
        # With whom this member exchanges its part of a reduction: on each host the
        # member with its place there, or the leader where there is none.
        place = self.local_rank
        self.counterparts = [
            ranks[place if place < len(ranks) else 0] for ranks in self.members
        ]
        self.is_leader = rank == self.leaders[self.host]
        # Whether the members of each host have successive ranks.
        self.in_blocks = self.host_of == sorted(self.host_of)
        others = [r for r, host in enumerate(self.host_of) if host != self.host]
        all_are_told = len(self.instances) <= _MOST_TOLD
        told = others if all_are_told else self.leaders
        # Whether this member is told which members of other hosts leave the group.
        self.is_told = all_are_told or self.is_leader
        # The members on other hosts that get this member's messages.
        self.reachable = [r for r in told if self.host_of[r] != self.host]

    def broadcast_tree(self, root: int) -> tuple[int | None, list[int]]:
        """Return the member that sends a broadcast to this host, and own targets.

        Hosts form a binomial tree: its leader sends on what a host receives, and the
        root sends to as many hosts as their number has bits. The source is None on the
        host of the root.
        """
        hosts, root_host = len(self.leaders), self.host_of[root]
        # From the root's host on. The parent's number is without the lowest bit.
        number = (self.host - root_host) % hosts
        lowest = number & -number or 1 << hosts.bit_length()

        def sender(of: int) -> int:
            return self.leaders[(of + root_host) % hosts] if of else root

        steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
        targets = [sender(number + step) for step in steps if number + step < hosts]
        source = sender(number - lowest) if number else None
        return source, targets if self.rank == sender(number) else []

    def begins(self, lengths: Sequence[int]) -> list[int]:
        """Return where each host's part of an array of members' parts begins, and ends.

        For members in blocks.
        """
        each = [sum(lengths[r] for r in ranks) for ranks in self.members]
        return list(accumulate(each, initial=0))
