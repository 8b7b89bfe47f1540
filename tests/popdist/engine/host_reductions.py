"""The core's two steps of a reduction of several hosts, without MPI between them."""

from collections.abc import Sequence

from popdist.engine import _core
from popdist.engine.rows import Rows
from popdist.engine.shm.transport import ShmTransport
from popdist.engine.spec.dtypes import accumulation_code_of, name_of
from popdist.engine.spec.tree import nodes_of, nodes_of_parts


class HostReductions:
    """Reduces a host's replicas to nodes of the job's tree, and completes nodes."""

    def __init__(self, transport: ShmTransport) -> None:
        self._member, self._replicas = transport.member, transport.replicas
        # By the number of the first replica.
        self._splits: dict[int, _core.Split] = {}

    def reduce_to_nodes(
        self,
        source: Rows,
        target: Rows,
        reduction: int,
        lengths: Sequence[int],
        base: int,
        *,
        name: int = 0,
    ) -> None:
        """Reduce the replicas of this group, a part of a larger job's, to their nodes.

        They are those from number `base` on. Of each node of spec.tree.nodes_of(),
        member i gets lengths[i] elements, after those of the members before it. The
        target has a row for each node, in the accumulation type: a node is not yet
        rounded, nor divided for a mean.
        """
        rank, size = self._member.rank, len(self._replicas)
        if len(lengths) != size or sum(lengths) != source.count or min(lengths) < 0:
            raise ValueError(
                f"The lengths are {list(lengths)}, but must be a number of elements "
                f"for each of {size} members, and {source.count} in all."
            )
        nodes = len(list(nodes_of(base, base + sum(self._replicas))))
        _check_nodes("target", target, source.dtype, lengths[rank], nodes)
        if base not in self._splits:
            self._splits[base] = _core.Split(rank, self._replicas, base)
        self._member.call(
            self._member.comm.reduce_to_nodes,
            self._splits[base],
            [(source.count, source.addresses, None)],
            [source.shape],
            source.dtype,
            reduction,
            name,
            lengths,
            target.addresses,
        )

    def complete_nodes(
        self, nodes: Rows, target: Rows, reduction: int, parts: Sequence[int]
    ) -> None:
        """Reduce the nodes of all parts of a job to the result.

        Not collective: no other member takes part.

        Args:
            nodes: A row for each node of the parts, in their order.
            target: Each row gets the result.
            parts: How many replicas each part has.
        """
        count = len(list(nodes_of_parts(parts)))
        _check_nodes("source", nodes, target.dtype, target.count, count)
        self._member.call(
            self._member.comm.complete_nodes,
            parts,
            target.dtype,
            reduction,
            target.count,
            nodes.addresses,
            target.addresses,
        )


def _check_nodes(which: str, rows: Rows, dtype: int, count: int, nodes: int) -> None:
    accumulated = accumulation_code_of(dtype)
    if (rows.dtype, rows.count, len(rows.addresses)) != (accumulated, count, nodes):
        raise ValueError(
            f"The {which} has {len(rows.addresses)} rows of {rows.count} "
            f"{name_of(rows.dtype)}, but must have {nodes} of {count} "
            f"{name_of(accumulated)}: one for each node."
        )
