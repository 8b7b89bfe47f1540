"""The types of the calls of groups.

What is reduced or exchanged is an array, or in groups of replicas also a list with an
array for each local replica; the result is of the same type. async_op=True returns a
handle of it. all_gather and gather also take arrays of several dtypes, whose types no
checker can tell apart: they are typed for arrays of one dtype.
"""

from collections.abc import Sequence
from typing import (
    Any,
    Generic,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
from numpy.typing import DTypeLike, NDArray

from popdist.engine.handle import Handle

S = TypeVar("S", bound=np.generic)
# Any stands for the shapes and dtypes that the caller's own array has.
Array = TypeVar("Array", bound=np.ndarray[Any, Any])
Arrays = TypeVar("Arrays", bound=np.ndarray[Any, Any] | list[Any])
Out = TypeVar("Out", bound=np.ndarray[Any, Any] | Sequence[Any])
Given = TypeVar("Given")
Rows: TypeAlias = NDArray[S] | Sequence[NDArray[S]]
# For each group the rows of its root, where that is here.
RowsOfGroups: TypeAlias = NDArray[S] | Sequence[Rows[S] | None]

No: TypeAlias = Literal[False]
Yes: TypeAlias = Literal[True]

# The keywords of a call that returns its result at once.
class Now(TypedDict, total=False):
    async_op: No
    name: str | None

# Those of one that returns a handle of it.
class Later(TypedDict, total=False):
    async_op: Required[Yes]
    name: str | None

# With `out`, which may be left out.
class NowTo(Now, Generic[Given], total=False):
    out: Given | None

class LaterTo(Later, Generic[Given], total=False):
    out: Given | None

# With `out`, which the result is then.
class NowInto(Now, Generic[Given]):
    out: Given

class LaterInto(Later, Generic[Given]):
    out: Given

class ReducedNowTo(NowTo[Given], Generic[Given], total=False):
    algorithm: str | None
    reproducible: bool

class ReducedLaterTo(LaterTo[Given], Generic[Given], total=False):
    algorithm: str | None
    reproducible: bool

class CommonCalls:
    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: type[np.float32] = ...
    ) -> NDArray[np.float32]: ...
    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: type[S] | np.dtype[S]
    ) -> NDArray[S]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]: ...
    @overload
    def all_reduce(
        self, x: Arrays, op: str = "sum", **how: Unpack[ReducedNowTo[Arrays]]
    ) -> Arrays: ...
    @overload
    def all_reduce(
        self, x: Arrays, op: str = "sum", **how: Unpack[ReducedLaterTo[Arrays]]
    ) -> Handle[Arrays]: ...
    @overload
    def grouped_all_reduce(
        self,
        arrays: Sequence[Arrays],
        op: str = "sum",
        **how: Unpack[ReducedNowTo[Sequence[Arrays]]],
    ) -> list[Arrays]: ...
    @overload
    def grouped_all_reduce(
        self,
        arrays: Sequence[Arrays],
        op: str = "sum",
        **how: Unpack[ReducedLaterTo[Sequence[Arrays]]],
    ) -> Handle[list[Arrays]]: ...
    @overload
    def broadcast(
        self, x: Arrays, root: int = 0, **how: Unpack[NowTo[Arrays]]
    ) -> Arrays: ...
    @overload
    def broadcast(
        self, x: Arrays, root: int = 0, **how: Unpack[LaterTo[Arrays]]
    ) -> Handle[Arrays]: ...
    @overload
    def reduce_scatter(
        self, x: Arrays, op: str = "sum", **how: Unpack[NowTo[Arrays]]
    ) -> Arrays: ...
    @overload
    def reduce_scatter(
        self, x: Arrays, op: str = "sum", **how: Unpack[LaterTo[Arrays]]
    ) -> Handle[Arrays]: ...
    @overload
    def all_to_all(self, x: Arrays, **how: Unpack[NowTo[Arrays]]) -> Arrays: ...
    @overload
    def all_to_all(
        self, x: Arrays, **how: Unpack[LaterTo[Arrays]]
    ) -> Handle[Arrays]: ...
    @overload
    def barrier(self, **how: Unpack[Now]) -> None: ...
    @overload
    def barrier(self, **how: Unpack[Later]) -> Handle[None]: ...

class GroupCalls(CommonCalls):
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        **how: Unpack[NowTo[NDArray[S]]],
    ) -> NDArray[S] | None: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        **how: Unpack[LaterTo[NDArray[S]]],
    ) -> Handle[NDArray[S] | None]: ...
    @overload
    def all_gather(
        self, x: Rows[S], **how: Unpack[NowTo[None]]
    ) -> list[NDArray[S]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], **how: Unpack[LaterTo[None]]
    ) -> Handle[list[NDArray[S]]]: ...
    @overload
    def all_gather(self, x: Rows[S], **how: Unpack[NowInto[Out]]) -> Out: ...
    @overload
    def all_gather(self, x: Rows[S], **how: Unpack[LaterInto[Out]]) -> Handle[Out]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[NowTo[None]]
    ) -> list[NDArray[S]] | None: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[LaterTo[None]]
    ) -> Handle[list[NDArray[S]] | None]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[NowInto[Out]]
    ) -> Out | None: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[LaterInto[Out]]
    ) -> Handle[Out | None]: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, **how: Unpack[NowTo[None]]
    ) -> NDArray[S]: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, **how: Unpack[LaterTo[None]]
    ) -> Handle[NDArray[S]]: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, **how: Unpack[NowInto[Out]]
    ) -> Out: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, **how: Unpack[LaterInto[Out]]
    ) -> Handle[Out]: ...
    @overload
    def send(self, x: NDArray[Any], dest: int, *, async_op: No = False) -> None: ...
    @overload
    def send(self, x: NDArray[Any], dest: int, *, async_op: Yes) -> Handle[None]: ...
    @overload
    def recv(self, out: Array, source: int, *, async_op: No = False) -> Array: ...
    @overload
    def recv(self, out: Array, source: int, *, async_op: Yes) -> Handle[Array]: ...

class ReplicaGroupsCalls(CommonCalls):
    @overload
    def reduce(
        self, x: Rows[S], op: str = "sum", root: int = 0, **how: Unpack[NowTo[None]]
    ) -> list[NDArray[S] | None]: ...
    @overload
    def reduce(
        self, x: Rows[S], op: str = "sum", root: int = 0, **how: Unpack[LaterTo[None]]
    ) -> Handle[list[NDArray[S] | None]]: ...
    @overload
    def reduce(
        self, x: Rows[S], op: str = "sum", root: int = 0, **how: Unpack[NowInto[Out]]
    ) -> Out: ...
    @overload
    def reduce(
        self, x: Rows[S], op: str = "sum", root: int = 0, **how: Unpack[LaterInto[Out]]
    ) -> Handle[Out]: ...
    @overload
    def all_gather(
        self, x: Rows[S], **how: Unpack[NowTo[None]]
    ) -> list[list[NDArray[S]]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], **how: Unpack[LaterTo[None]]
    ) -> Handle[list[list[NDArray[S]]]]: ...
    @overload
    def all_gather(self, x: Rows[S], **how: Unpack[NowInto[Out]]) -> Out: ...
    @overload
    def all_gather(self, x: Rows[S], **how: Unpack[LaterInto[Out]]) -> Handle[Out]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[NowTo[None]]
    ) -> list[list[NDArray[S]] | None]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[LaterTo[None]]
    ) -> Handle[list[list[NDArray[S]] | None]]: ...
    @overload
    def gather(self, x: Rows[S], root: int = 0, **how: Unpack[NowInto[Out]]) -> Out: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, **how: Unpack[LaterInto[Out]]
    ) -> Handle[Out]: ...
    @overload
    def scatter(
        self, x: RowsOfGroups[S] | None, root: int = 0, **how: Unpack[NowTo[None]]
    ) -> list[NDArray[S]]: ...
    @overload
    def scatter(
        self, x: RowsOfGroups[S] | None, root: int = 0, **how: Unpack[LaterTo[None]]
    ) -> Handle[list[NDArray[S]]]: ...
    @overload
    def scatter(
        self, x: RowsOfGroups[S] | None, root: int = 0, **how: Unpack[NowInto[Out]]
    ) -> Out: ...
    @overload
    def scatter(
        self, x: RowsOfGroups[S] | None, root: int = 0, **how: Unpack[LaterInto[Out]]
    ) -> Handle[Out]: ...
