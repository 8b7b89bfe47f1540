"""The request of a member for a call, described so that members can compare it."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from popdist.engine.spec.operations import display_name


class Kind(IntEnum):
    """The operation of a call."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
    ADD_PROCESS_SET = 7
    REMOVE_PROCESS_SET = 8
    # Any operation of a group, which the label describes.
    ANY = 9

    @property
    def text(self) -> str:
        """Its name in errors and in the names of calls."""
        return self.name.lower().replace("_process_set", " of a process set")


# The common name of unnamed calls of any operation, which are matched with each other.
UNNAMED = "\0"

# A tensor's dtype and shape.
Layout = tuple[str, tuple[int, ...]]


class Request(NamedTuple):
    """A member's request for a call. Usually the requests of all members are equal."""

    kind: Kind
    # None for a call that is matched by its number among the calls of its kind.
    name: str | None
    # Several for a grouped call.
    tensors: tuple[Layout, ...] = ()
    # A number of horovod's: Average, Sum, ...
    op: int = 0
    # The member that broadcasts its tensors.
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    # The name of the operation, for a call of any operation.
    label: str = ""
    # The rows for each member (alltoall), the ranks of a process set, or the time in
    # nanoseconds (join).
    counts: tuple[int, ...] = ()

    @property
    def template(self) -> "Request":
        """The request without what may change when a call is repeated."""
        return self._replace(counts=()) if self.counts else self

    def title(self, name: str) -> str:
        """Return the call's title in errors, if it is matched by this name."""
        if self.kind is Kind.ANY:
            return display_name(None if self.name == UNNAMED else self.name)
        return f"{self.kind.text} {name!r}"

    def describe(self) -> str:
        """Return the operation, the tensors and the name of a call of any operation."""
        tensors = "".join([f" of {dtype} {shape}" for dtype, shape in self.tensors])
        name = "" if self.name == UNNAMED else f" named {display_name(self.name)}"
        return f"{self.label}{tensors}{name}"

    @classmethod
    def decode(cls, fields: Sequence[Any]) -> "Request":
        """Return a request from its template in JSON, which has lists for tuples."""
        kind, name, tensors, *rest, _ = fields
        layouts = tuple([(dtype, tuple(shape)) for dtype, shape in tensors])
        return cls(Kind(kind), name, layouts, *rest)


def find_mismatch(
    name: str, requests: tuple[Request | None, ...], ranks: tuple[int, ...]
) -> str | None:
    """Return how the requests for one call differ, in a sentence; None if they match.

    Args:
        name: The call's name.
        requests: One for each member; None for one that has joined.
        ranks: The numbers of the members.
    """
    present = [(r, q) for r, q in zip(ranks, requests, strict=True) if q is not None]
    first_rank, first = present[0]
    if len(present) < len(requests) and first.kind not in _WITH_JOINED:
        absent = next(r for r, q in zip(ranks, requests, strict=True) if q is None)
        return (
            f"{first.title(name)} cannot be made, because rank {absent} has "
            "joined: only allreduce and barrier can. Call join() after it on all ranks."
        )
    if problem := _own_problem(first):
        return f"{first.title(name)} {problem}"
    for rank, request in present[1:]:
        if request != first and first.kind is Kind.ANY:
            return (
                f"Tensor layouts did not match on all instances: instance {first_rank} "
                f"came to {first.describe()}, but instance {rank} came to "
                f"{request.describe()}. All instances must make the same calls in the "
                "same order."
            )
        if request != first and (difference := _difference(first, request)):
            feature, value, other_value = difference
            return (
                f"The ranks' {feature} differ in {first.title(name)}: rank "
                f"{first_rank} has {value}, but rank {rank} has {other_value}. All "
                "ranks must make the same call."
            )
    return None


_WITH_JOINED = (Kind.ALLREDUCE, Kind.BARRIER, Kind.JOIN)
# Their tensors may differ in the first dimension.
_UNEVEN = (Kind.ALLGATHER, Kind.ALLTOALL)


def _own_problem(request: Request) -> str | None:
    """Return why a request can never be made, as a sentence's end; None if it can."""
    if request.kind in (*_UNEVEN, Kind.REDUCESCATTER) and any(
        not shape for _, shape in request.tensors
    ):
        return "has a tensor without dimensions, but needs a first one. Reshape it."
    return None


def _difference(first: Request, other: Request) -> tuple[str, object, object] | None:
    """Return the first feature in which two requests differ, with both values."""
    pairs = zip(_features(first), _features(other), strict=False)
    for (feature, compared, value), (_, other_compared, other_value) in pairs:
        if compared != other_compared:
            return feature, value, other_value
    return None


def _features(request: Request) -> Iterator[tuple[str, object, object]]:
    """Yield features that must be equal: name, value to compare, value to show."""
    kind = request.kind
    yield "operations", kind, kind.text
    number = len(request.tensors)
    yield "numbers of tensors", number, number
    for dtype, shape in request.tensors:
        yield "dtypes", dtype, dtype
        alike = (len(shape), shape[1:]) if kind in _UNEVEN else shape
        yield "shapes", alike, list(shape)
    yield "reduction operations", request.op, request.op
    yield "root ranks", request.root, request.root
    scales = request.prescale, request.postscale
    yield "scale factors", scales, scales
    if kind is not Kind.ALLTOALL:
        yield "ranks of the process set", request.counts, list(request.counts)
