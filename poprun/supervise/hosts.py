"""The hosts of an attempt: a decision is told to all, or to the host of an instance."""

from collections.abc import Iterator, Sequence

from poprun.host.host_link import HostLink


class Hosts:
    """The links to the hosts, which have all instances of the job among them."""

    def __init__(self, links: Sequence[HostLink]) -> None:
        self._links = list(links)

    def __iter__(self) -> Iterator[HostLink]:
        return iter(self._links)

    def put(self, link: HostLink) -> None:
        """Take in a host, in the place of a lost one that had its instances."""
        others = [h for h in self._links if {*h.ranks}.isdisjoint(link.ranks)]
        self._links = [*others, link]

    def tell(self, kind: int, *values: int) -> None:
        for host in self._links:
            host.tell(kind, *values)

    def of(self, rank: int) -> HostLink:
        return next(host for host in self._links if rank in host.ranks)
