"""Turns tensors and arguments into requests, and requests into handles."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from popdist.engine.rows import find_overlapping
from popdist.negotiation.call_requests import Kind, Layout, Request
from popdist.negotiation.calls import Call

from ..basics import HorovodBasics
from ..exceptions import internal_errors
from ..process_sets import ProcessSet
from .carrier import Carrier, TableCall, TensorCall, rows_in
from .library import TensorLibrary
from .reduce_ops import Adasum, Average, ReduceOp, Reduction, check_reducible

# The modules of all frameworks have the same ranks and process sets.
BASICS = HorovodBasics(Carrier)

# A tensor of whatever framework.
Tensor = Any


class CallArguments(NamedTuple):
    """The arguments of a call, except for its tensors."""

    kind: Kind
    name: str | None
    process_set: ProcessSet
    # Of an allreduce or a reducescatter.
    reduction: Reduction = Reduction(Average)
    # Of a broadcast.
    root_rank: int = 0
    # Of an alltoall: the number of rows for each rank, a tensor or a sequence; None
    # for equal numbers.
    splits: Any = None


class HorovodHandle:
    """A call that may be under way. poll() and synchronize() take it."""

    def __init__(self, call: Call, *, only_first: bool = False) -> None:
        self._call = call
        self._only_first = only_first

    def first(self) -> "HorovodHandle":
        """Return a handle of the same call whose result is the first of this one's."""
        return HorovodHandle(self._call, only_first=True)

    def poll(self) -> bool:
        """Return whether the call is over. Never blocks."""
        return self._call.handle.test()

    def wait(self) -> Any:
        """Block until the call is over, and return its result."""
        with internal_errors():
            # Any, because calls have results of all types.
            result: Any = self._call.handle.wait()
        return result[0] if self._only_first else result

    __call__ = wait

    def __repr__(self) -> str:
        state = "done" if self.poll() else "under way"
        return f"<HorovodHandle: {self._call.name!r}, {state}>"


def submit(process_set: ProcessSet, call: Call, now: bool) -> HorovodHandle:
    """Request a call in a process set.

    Args:
        now: Whether the caller waits for it at once.
    """
    negotiator = BASICS.negotiator(process_set)
    with internal_errors(), negotiator.lock:
        if negotiator.is_under_way(call.request.name):
            raise ValueError(
                f"A call named {call.name!r} is under way on this rank, and two of one "
                "name cannot be told apart. Wait for it with synchronize(), or use "
                "another name."
            )
        negotiator.submit(call, wait=now)
    return HorovodHandle(call)


class TableReduction:
    """An allreduce of tensors, again and again, where tables say: one of each dtype."""

    def __init__(
        self,
        tensors: Sequence[tuple[str, tuple[int, ...] | None]],
        name: str | None,
        reduction: Reduction,
        process_set: ProcessSet,
    ) -> None:
        """Describe the call.

        Args:
            tensors: The dtype and shape of each; None for one that differs from call
                to call.
            reduction: Without scale factors; an average is one of floats.
        """
        self._dtypes = [dtype for dtype, _ in tensors]
        self._kinds = [*dict.fromkeys(self._dtypes)]
        layouts = [(dtype, shape) for dtype, shape in tensors if shape is not None]
        self._is_known = len(layouts) == len(tensors)
        full = None if name is None else f"{Kind.ALLREDUCE.text}.{name}"
        op = int(reduction.op)
        self._request = Request(Kind.ALLREDUCE, full, tuple(layouts), op)
        self._process_set = process_set

    def __call__(self, *tables: bytes) -> None:
        """Make the call, and return when it is over.

        Args:
            tables: One of each dtype, in the order in which these come first.
        """
        of_dtype = dict(zip(self._kinds, tables, strict=True))
        request = self._request
        if not self._is_known:
            rows = zip(self._dtypes, rows_in(of_dtype, self._dtypes), strict=True)
            layouts = tuple([(dtype, source.shape) for dtype, (source, _) in rows])
            request = request._replace(tensors=layouts)
        submit(self._process_set, TableCall(request, of_dtype), True).wait()


class TensorCalls:
    """Requests calls with the tensors of one framework."""

    def __init__(self, library: TensorLibrary) -> None:
        self._library = library

    def begin(
        self,
        arguments: CallArguments,
        tensors: Sequence[Tensor],
        finish: Callable[[list[Tensor]], object] = list,
        *,
        in_place: bool = False,
        now: bool = False,
    ) -> HorovodHandle:
        """Request a call. Its result is what `finish` makes of a list of tensors.

        The result of an alltoall of one tensor is a tensor, and numbers of received
        rows.

        Args:
            arguments: The call's arguments.
            tensors: The tensors.
            finish: Makes the result of an allgather or a reducescatter.
            in_place: Overwrite the tensors of an allreduce or a broadcast.
            now: Whether the caller waits for the call at once.
        """
        kind, op, library = arguments.kind, arguments.reduction.op, self._library
        if kind is Kind.REDUCESCATTER and op is Adasum:
            raise NotImplementedError(
                "reducescatter cannot use Adasum. Use Sum, Average, Min, Max or "
                "Product."
            )
        reduces = kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER)
        sources = self._readable(tensors, op if reduces else None)
        request = self._request(arguments, sources)
        targets: list[Tensor] = []
        if kind is Kind.ALLTOALL:

            def finish(results: list[Tensor]) -> tuple[Tensor, Tensor]:
                return results[0], library.int32(call.received)

        elif in_place:
            targets = self._targets_in_place(sources)
            finish = partial(self._written_back, tensors)
        elif kind in (Kind.ALLREDUCE, Kind.BROADCAST):
            targets = library.new_like(sources)
        call = TensorCall(library, request, sources, targets, finish)
        return submit(arguments.process_set, call, now)

    def overwrite(
        self,
        tensors: Sequence[Tensor],
        root_rank: int,
        process_set: ProcessSet,
        name: str | None = None,
    ) -> None:
        """Overwrite tensors with those of one rank."""
        arguments = CallArguments(
            Kind.BROADCAST, name, process_set, root_rank=root_rank
        )
        self.begin(arguments, tensors, in_place=True, now=True).wait()

    def _checked_splits(self, splits: Tensor) -> Sequence[int]:
        dtype = self._library.name_of(splits)
        if "int" not in dtype:
            raise ValueError(
                f"splits is a tensor of {dtype}, but must be of int32 or int64."
            )
        numbers: Sequence[int] = splits.tolist()
        return numbers

    def _readable(
        self, tensors: Sequence[Tensor], op: ReduceOp | None = None
    ) -> list[Tensor]:
        """Return tensors in one piece each, checked; with `op`, to be reduced by it."""
        try:
            self._library.check(tensors)
        except TypeError as error:
            # Horovod has one error for all that cannot be a tensor of a call.
            raise ValueError(str(error)) from None
        if op is not None:
            for dtype in {self._library.name_of(tensor) for tensor in tensors}:
                check_reducible(dtype, op)
        return [self._library.framework.readable(tensor) for tensor in tensors]

    def _request(self, arguments: CallArguments, tensors: Sequence[Tensor]) -> Request:
        kind, name, process_set, reduction, root_rank, splits = arguments
        name_of = self._library.name_of
        layouts: tuple[Layout, ...] = tuple(
            [(name_of(tensor), tuple(tensor.shape)) for tensor in tensors]
        )
        if reduction.op is Adasum:
            _check_power_of_two(process_set)
        root = 0
        counts: tuple[int, ...] = ()
        if kind is Kind.BROADCAST:
            root = _member_of(root_rank, process_set)
        elif kind is Kind.ALLTOALL:
            if splits is not None and hasattr(splits, "dtype"):
                splits = self._checked_splits(splits)
            counts = _counts(tensors[0], splits, len(_ranks_of(process_set)))
        # As Horovod names calls: by their kind, too.
        full = None if name is None else f"{kind.text}.{name}"
        scales = float(reduction.prescale), float(reduction.postscale)
        op = int(reduction.op)
        return Request(kind, full, layouts, op, root, *scales, counts=counts)

    def _targets_in_place(self, sources: list[Tensor]) -> list[Tensor]:
        """Return where results are written: the sources, where they do not overlap."""
        framework = self._library.framework
        address_of, extent_of = framework.address_of, framework.extent_of
        spans = sorted([(address_of(source), source.nbytes) for source in sources])
        if all(
            begin + nbytes <= following
            for (begin, nbytes), (following, _) in pairwise(spans)
        ):
            return sources
        extents = [[extent_of(source)] for source in sources]
        overlapping = find_overlapping(extents, extents)
        return [
            self._library.new(source.shape, source) if index in overlapping else source
            for index, source in enumerate(sources)
        ]

    def _written_back(
        self, tensors: Sequence[Tensor], results: list[Tensor]
    ) -> list[Tensor]:
        """Write results to tensors that are not in one piece; return the tensors."""
        extent_of = self._library.framework.extent_of
        for tensor, result in zip(tensors, results, strict=True):
            if result is not tensor and extent_of(result) != extent_of(tensor):
                self._library.framework.copy(result, tensor)
        return list(tensors)


def _ranks_of(process_set: ProcessSet) -> list[int]:
    """Return the ranks of a process set in which this rank can make calls.

    Raises:
        ValueError: It cannot.
    """
    BASICS.negotiator(process_set)
    return process_set.ranks or []


def _member_of(root_rank: int, process_set: ProcessSet) -> int:
    """Return the index of a rank in a process set.

    Raises:
        ValueError: It is not in it.
    """
    ranks = _ranks_of(process_set)
    if root_rank not in ranks:
        raise ValueError(
            f"root_rank is {root_rank!r}, but the process set has the ranks {ranks}. "
            "Give one of them."
        )
    return ranks.index(root_rank)


def _check_power_of_two(process_set: ProcessSet) -> None:
    """Raise NotImplementedError unless Adasum can combine so many ranks."""
    size = len(_ranks_of(process_set))
    if size.bit_count() != 1:
        raise NotImplementedError(
            f"Adasum combines ranks in pairs, so it needs a power of two of them, but "
            f"the process set has {size}. Use op=Sum or op=Average."
        )


def _counts(tensor: Tensor, splits: Sequence[int] | None, size: int) -> tuple[int, ...]:
    rows = tensor.shape[0] if tensor.ndim else 0
    if splits is None:
        if rows % size:
            raise ValueError(
                f"The tensor has {rows} rows, which {size} ranks cannot share equally. "
                "Give splits: how many rows each rank gets."
            )
        return (rows // size,) * size
    counts = tuple(int(count) for count in splits)
    if len(counts) != size or min(counts) < 0 or sum(counts) > rows:
        raise ValueError(
            f"splits is {list(counts)}, but must have {size} numbers of 0 or more, one "
            f"for each rank, with a sum of at most {rows}, the number of the tensor's "
            "rows."
        )
    return counts
