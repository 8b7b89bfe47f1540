"""The types of the calls of groups.

What is reduced or exchanged is an array, or in groups of replicas also a list with an
array for each local replica; the result is of the same type. async_op=True returns a
handle of it. all_gather and gather also take arrays of several dtypes, whose types no
checker can tell apart: they are typed for arrays of one dtype.
"""

from collections.abc import Sequence
from typing import (
    Any,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from popdist.engine.handle import Handle

S = TypeVar("S", bound=np.generic)
# Any stands for the shapes and dtypes that the caller's own array has.
Array = TypeVar("Array", bound=np.ndarray[Any, Any])
Arrays = TypeVar("Arrays", bound=np.ndarray[Any, Any] | list[Any])
Out = TypeVar("Out", bound=np.ndarray[Any, Any] | Sequence[Any])
Rows: TypeAlias = NDArray[S] | Sequence[NDArray[S]]
# For each group the rows of its root, where that is here.
RowsOfGroups: TypeAlias = NDArray[S] | Sequence[Rows[S] | None]

No: TypeAlias = Literal[False]
Yes: TypeAlias = Literal[True]

class Now(TypedDict, total=False):
    async_op: No
    name: str | None

class Later(TypedDict, total=False):
    async_op: Required[Yes]
    name: str | None

class CommonCalls:
    @overload
    def all_reduce(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: Arrays | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        **how: Unpack[Now],
    ) -> Arrays: ...
    @overload
    def all_reduce(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: Arrays | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        **how: Unpack[Later],
    ) -> Handle[Arrays]: ...
    @overload
    def grouped_all_reduce(
        self,
        arrays: Sequence[Arrays],
        op: str = "sum",
        *,
        out: Sequence[Arrays] | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        **how: Unpack[Now],
    ) -> list[Arrays]: ...
    @overload
    def grouped_all_reduce(
        self,
        arrays: Sequence[Arrays],
        op: str = "sum",
        *,
        out: Sequence[Arrays] | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        **how: Unpack[Later],
    ) -> Handle[list[Arrays]]: ...
    @overload
    def broadcast(
        self, x: Arrays, root: int = 0, *, out: Arrays | None = None, **how: Unpack[Now]
    ) -> Arrays: ...
    @overload
    def broadcast(
        self,
        x: Arrays,
        root: int = 0,
        *,
        out: Arrays | None = None,
        **how: Unpack[Later],
    ) -> Handle[Arrays]: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: Arrays | None = None,
        **how: Unpack[Now],
    ) -> Arrays: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: Arrays | None = None,
        **how: Unpack[Later],
    ) -> Handle[Arrays]: ...
    @overload
    def all_to_all(
        self, x: Arrays, *, out: Arrays | None = None, **how: Unpack[Now]
    ) -> Arrays: ...
    @overload
    def all_to_all(
        self, x: Arrays, *, out: Arrays | None = None, **how: Unpack[Later]
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
        *,
        out: NDArray[S] | None = None,
        **how: Unpack[Now],
    ) -> NDArray[S] | None: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: NDArray[S] | None = None,
        **how: Unpack[Later],
    ) -> Handle[NDArray[S] | None]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: None = None, **how: Unpack[Now]
    ) -> list[NDArray[S]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: None = None, **how: Unpack[Later]
    ) -> Handle[list[NDArray[S]]]: ...
    @overload
    def all_gather(self, x: Rows[S], *, out: Out, **how: Unpack[Now]) -> Out: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: Out, **how: Unpack[Later]
    ) -> Handle[Out]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: None = None, **how: Unpack[Now]
    ) -> list[NDArray[S]] | None: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: None = None, **how: Unpack[Later]
    ) -> Handle[list[NDArray[S]] | None]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: Out, **how: Unpack[Now]
    ) -> Out | None: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: Out, **how: Unpack[Later]
    ) -> Handle[Out | None]: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, *, out: None = None, **how: Unpack[Now]
    ) -> NDArray[S]: ...
    @overload
    def scatter(
        self,
        x: Rows[S] | None,
        root: int = 0,
        *,
        out: None = None,
        **how: Unpack[Later],
    ) -> Handle[NDArray[S]]: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, *, out: Out, **how: Unpack[Now]
    ) -> Out: ...
    @overload
    def scatter(
        self, x: Rows[S] | None, root: int = 0, *, out: Out, **how: Unpack[Later]
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
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: None = None,
        **how: Unpack[Now],
    ) -> list[NDArray[S] | None]: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: None = None,
        **how: Unpack[Later],
    ) -> Handle[list[NDArray[S] | None]]: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: Out,
        **how: Unpack[Now],
    ) -> Out: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: Out,
        **how: Unpack[Later],
    ) -> Handle[Out]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: None = None, **how: Unpack[Now]
    ) -> list[list[NDArray[S]]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: None = None, **how: Unpack[Later]
    ) -> Handle[list[list[NDArray[S]]]]: ...
    @overload
    def all_gather(self, x: Rows[S], *, out: Out, **how: Unpack[Now]) -> Out: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: Out, **how: Unpack[Later]
    ) -> Handle[Out]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: None = None, **how: Unpack[Now]
    ) -> list[list[NDArray[S]] | None]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: None = None, **how: Unpack[Later]
    ) -> Handle[list[list[NDArray[S]] | None]]: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: Out, **how: Unpack[Now]
    ) -> Out: ...
    @overload
    def gather(
        self, x: Rows[S], root: int = 0, *, out: Out, **how: Unpack[Later]
    ) -> Handle[Out]: ...
    @overload
    def scatter(
        self,
        x: RowsOfGroups[S] | None,
        root: int = 0,
        *,
        out: None = None,
        **how: Unpack[Now],
    ) -> list[NDArray[S]]: ...
    @overload
    def scatter(
        self,
        x: RowsOfGroups[S] | None,
        root: int = 0,
        *,
        out: None = None,
        **how: Unpack[Later],
    ) -> Handle[list[NDArray[S]]]: ...
    @overload
    def scatter(
        self, x: RowsOfGroups[S] | None, root: int = 0, *, out: Out, **how: Unpack[Now]
    ) -> Out: ...
    @overload
    def scatter(
        self,
        x: RowsOfGroups[S] | None,
        root: int = 0,
        *,
        out: Out,
        **how: Unpack[Later],
    ) -> Handle[Out]: ...
