"""The types of the calls of groups.

What is reduced or exchanged is an array, or in groups of replicas also a list with an
array for each local replica; the result is of the same type. async_op=True returns a
handle of it. all_gather and gather also take arrays of several dtypes, whose types no
checker can tell apart: they are typed for arrays of one dtype.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from popdist.engine.handle import Handle

S = TypeVar("S", bound=np.generic)
# Any stands for the shapes and dtypes that the caller's own array has.
Array = TypeVar("Array", bound=np.ndarray[Any, Any])
Arrays = TypeVar("Arrays", bound=np.ndarray[Any, Any] | list[Any])
Out = TypeVar("Out", bound=np.ndarray[Any, Any] | Sequence[Any])
Rows: TypeAlias = NDArray[S] | Sequence[NDArray[S]]

Now: TypeAlias = Literal[False]
Later: TypeAlias = Literal[True]

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
        async_op: Now = False,
        name: str | None = None,
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
        async_op: Later,
        name: str | None = None,
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
        async_op: Now = False,
        name: str | None = None,
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
        async_op: Later,
        name: str | None = None,
    ) -> Handle[list[Arrays]]: ...
    @overload
    def broadcast(
        self,
        x: Arrays,
        root: int = 0,
        *,
        out: Arrays | None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> Arrays: ...
    @overload
    def broadcast(
        self,
        x: Arrays,
        root: int = 0,
        *,
        out: Arrays | None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Arrays]: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: Arrays | None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> Arrays: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: Arrays | None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Arrays]: ...
    @overload
    def all_to_all(
        self,
        x: Arrays,
        *,
        out: Arrays | None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> Arrays: ...
    @overload
    def all_to_all(
        self,
        x: Arrays,
        *,
        out: Arrays | None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Arrays]: ...
    @overload
    def barrier(self, *, async_op: Now = False, name: str | None = None) -> None: ...
    @overload
    def barrier(self, *, async_op: Later, name: str | None = None) -> Handle[None]: ...

class GroupCalls(CommonCalls):
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: NDArray[S] | None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> NDArray[S] | None: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: NDArray[S] | None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[NDArray[S] | None]: ...
    @overload
    def all_gather(
        self,
        x: Rows[S],
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> list[NDArray[S]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: None = None, async_op: Later, name: str | None = None
    ) -> Handle[list[NDArray[S]]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: Out, async_op: Now = False, name: str | None = None
    ) -> Out: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: Out, async_op: Later, name: str | None = None
    ) -> Handle[Out]: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> list[NDArray[S]] | None: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[list[NDArray[S]] | None]: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: Out,
        async_op: Now = False,
        name: str | None = None,
    ) -> Out | None: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: Out,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Out | None]: ...
    @overload
    def scatter(
        self,
        x: Rows[S] | None,
        root: int = 0,
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> NDArray[S]: ...
    @overload
    def scatter(
        self,
        x: Rows[S] | None,
        root: int = 0,
        *,
        out: None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[NDArray[S]]: ...
    @overload
    def scatter(
        self,
        x: Rows[S] | None,
        root: int = 0,
        *,
        out: Out,
        async_op: Now = False,
        name: str | None = None,
    ) -> Out: ...
    @overload
    def scatter(
        self,
        x: Rows[S] | None,
        root: int = 0,
        *,
        out: Out,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Out]: ...
    @overload
    def send(self, x: NDArray[Any], dest: int, *, async_op: Now = False) -> None: ...
    @overload
    def send(self, x: NDArray[Any], dest: int, *, async_op: Later) -> Handle[None]: ...
    @overload
    def recv(self, out: Array, source: int, *, async_op: Now = False) -> Array: ...
    @overload
    def recv(self, out: Array, source: int, *, async_op: Later) -> Handle[Array]: ...

class ReplicaGroupsCalls(CommonCalls):
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> list[NDArray[S] | None]: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[list[NDArray[S] | None]]: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: Out,
        async_op: Now = False,
        name: str | None = None,
    ) -> Out: ...
    @overload
    def reduce(
        self,
        x: Rows[S],
        op: str = "sum",
        root: int = 0,
        *,
        out: Out,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Out]: ...
    @overload
    def all_gather(
        self,
        x: Rows[S],
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> list[list[NDArray[S]]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: None = None, async_op: Later, name: str | None = None
    ) -> Handle[list[list[NDArray[S]]]]: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: Out, async_op: Now = False, name: str | None = None
    ) -> Out: ...
    @overload
    def all_gather(
        self, x: Rows[S], *, out: Out, async_op: Later, name: str | None = None
    ) -> Handle[Out]: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> list[list[NDArray[S]] | None]: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[list[list[NDArray[S]] | None]]: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: Out,
        async_op: Now = False,
        name: str | None = None,
    ) -> Out: ...
    @overload
    def gather(
        self,
        x: Rows[S],
        root: int = 0,
        *,
        out: Out,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Out]: ...
    @overload
    def scatter(
        self,
        x: NDArray[S] | Sequence[NDArray[S] | Sequence[NDArray[S]] | None] | None,
        root: int = 0,
        *,
        out: None = None,
        async_op: Now = False,
        name: str | None = None,
    ) -> list[NDArray[S]]: ...
    @overload
    def scatter(
        self,
        x: NDArray[S] | Sequence[NDArray[S] | Sequence[NDArray[S]] | None] | None,
        root: int = 0,
        *,
        out: None = None,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[list[NDArray[S]]]: ...
    @overload
    def scatter(
        self,
        x: NDArray[S] | Sequence[NDArray[S] | Sequence[NDArray[S]] | None] | None,
        root: int = 0,
        *,
        out: Out,
        async_op: Now = False,
        name: str | None = None,
    ) -> Out: ...
    @overload
    def scatter(
        self,
        x: NDArray[S] | Sequence[NDArray[S] | Sequence[NDArray[S]] | None] | None,
        root: int = 0,
        *,
        out: Out,
        async_op: Later,
        name: str | None = None,
    ) -> Handle[Out]: ...
