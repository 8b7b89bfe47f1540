"""The distribution of a group's members over hosts."""

from collections.abc import Sequence

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
        self.is_leader = rank == self.leaders[self.host]
        others = [r for r, host in enumerate(self.host_of) if host != self.host]
        all_are_told = len(self.instances) <= _MOST_TOLD
        told = others if all_are_told else self.leaders
        # Whether this member is told which members of other hosts leave the group.
        self.is_told = all_are_told or self.is_leader
        # The members on other hosts that get this member's messages.
        self.reachable = [r for r in told if self.host_of[r] != self.host]
