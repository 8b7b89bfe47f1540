"""The result of every collective, to the bit: the slow and exact specification.

A collective's inputs are one array (L, n) for each member, with one row for each of
its L replicas. Replicas are numbered in the order of the rows, member after member.

Reductions are made in the accumulation type: float32 for float16 and bfloat16, which
are rounded only once, at the end; for all others their own. Integers wrap around.
numpy obeys the flags of its process that flush subnormal numbers to zero, and the
engine does not: the two agree where these are not set.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from popdist.engine.spec.dtypes import DType, accumulation, code_of, reduction_code_of

# The type of its elements is known only when running.
Array = npt.NDArray[Any]

ALGORITHMS = ("direct", "oneshot", "arena", "ring")

# The ring cuts its shares at multiples of this: of float32, at cache lines.
_SHARE_UNIT = 16


def _lesser(a: Array, b: Array) -> Array:
    """Return the minimum of IEEE 754-2019: a NaN wins, and -0.0 is less than 0.0."""
    if a.dtype.kind != "f":
        return np.where(b < a, b, a)
    # Only a NaN differs from itself.
    return np.where((b < a) | (b != b) | ((b == a) & np.signbit(b)), b, a)


def _greater(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.where(b > a, b, a)
    return np.where((b > a) | (b != b) | ((b == a) & np.signbit(a)), b, a)


# For bool, sum is OR and prod is AND in numpy, and so are these two.
_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "min": _lesser,
    "max": _greater,
    "prod": np.multiply,
    "mean": np.add,
}


@np.errstate(all="ignore")
def tree(rows: Sequence[Array] | Array, op: str) -> Array:
    """Combine rows pairwise: six as ((0+1)+(2+3)) + (4+5).

    The left half is the largest power of two that leaves something for the right,
    so that every full node is a power of two wide and begins at a multiple of it.
    """
    if len(rows) == 1:
        return rows[0]
    half = 1 << ((len(rows) - 1).bit_length() - 1)
    return _COMBINE[op](tree(rows[:half], op), tree(rows[half:], op))


@np.errstate(all="ignore")
def ring(rows: Sequence[Array] | Array, op: str, share: int) -> Array:
    """Combine one row for each member as a ring does, in rounds of N shares.

    Share k starts at member k and goes round. Each member combines its own elements, as
    the left operand, with the share that it receives.
    """
    size, length = len(rows), len(rows[0])
    total = np.empty_like(rows[0])
    for begin in range(0, length, size * share):
        end = min(begin + size * share, length)
        for k in range(size):
            span = _share(begin, end, size, k)
            partial = rows[k][span]
            for hop in range(1, size):
                partial = _COMBINE[op](rows[(k + hop) % size][span], partial)
            total[span] = partial
    return total


def _share(begin: int, end: int, size: int, k: int) -> slice:
    """Return share k of a round that is cut into `size`. The last may be empty."""
    share = -(-(end - begin) // size)
    width = -(-share // _SHARE_UNIT) * _SHARE_UNIT
    return slice(min(begin + k * width, end), min(begin + (k + 1) * width, end))


def all_reduce(
    inputs: Sequence[Array],
    op: str = "sum",
    *,
    algorithm: str = "direct",
    share: int | None = None,
) -> Array:
    """Return the row that every replica gets.

    Args:
        share: The most elements of a share, for the ring only.
    """
    dtype = inputs[0].dtype
    reduction_code_of(op, code_of(dtype))
    members = [_widened(rows, dtype) for rows in inputs]
    rows = np.concatenate(members)
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"The algorithm is {algorithm!r}, but must be {', '.join(ALGORITHMS)}."
        )
    if algorithm != "ring":
        # One order for all of them, whatever the split into members.
        total = tree(rows, op)
    elif share is None or share < 1:
        raise ValueError(f"The ring's share is {share}, but must be 1 or more.")
    else:
        total = ring([tree(own, op) for own in members], op, share)
    if op == "mean":
        total = _divided(total, len(rows))
    return _narrowed(total, dtype)


@np.errstate(all="ignore")
def _widened(rows: Array, dtype: DType) -> Array:
    """Return a member's rows in the accumulation type."""
    if rows.dtype != dtype:
        raise TypeError(
            f"One member's array is {dtype}, another's {rows.dtype}. Convert them to "
            "the same dtype with astype first."
        )
    if dtype == np.bool_:
        # Whatever byte is not 0 is true, and becomes 1.
        truth: Array = np.ascontiguousarray(rows).view(np.uint8) != 0
        return truth
    return rows.astype(accumulation(dtype))


@np.errstate(all="ignore")
def _divided(total: Array, count: int) -> Array:
    """Return total / count, truncated towards zero for integers."""
    quotient: Array
    if total.dtype.kind == "f":
        quotient = total / total.dtype.type(count)
        return quotient
    # Wide enough for the count too. The remainder of fmod has the sign of the total, so
    # the difference lies nearer to zero, cannot overflow and divides without a rest.
    wide = np.dtype(np.uint64 if total.dtype.kind == "u" else np.int64)
    dividend, divisor = total.astype(wide), wide.type(count)
    quotient = (dividend - np.fmod(dividend, divisor)) // divisor
    return quotient.astype(total.dtype)


@np.errstate(all="ignore")
def _narrowed(total: Array, dtype: DType) -> Array:
    """Return a reduced row in its own type, every NaN quiet, positive and empty."""
    if total.dtype.kind == "f":
        total = np.where(np.isnan(total), total.dtype.type(np.nan), total)
    return total.astype(dtype)


def reduce_scatter(inputs: Sequence[Array], op: str = "sum") -> list[Array]:
    """Return for each member its replicas' shares of the reduced row, (L, n/R).

    In the tree's order only, so that it equals a share of the all_reduce's result.
    """
    shares = _shares(all_reduce(inputs, op), _count(inputs))
    return _dealt(shares, inputs)


def all_gather(inputs: Sequence[Sequence[Array] | Array]) -> Array:
    """Return the rows of all replicas in a row. They may differ in length."""
    return np.concatenate([row for rows in inputs for row in rows])


def gather(inputs: Sequence[Sequence[Array] | Array]) -> Array:
    """Return the root's result, which equals the result of all_gather."""
    return all_gather(inputs)


def broadcast(inputs: Sequence[Array], root: int) -> Array:
    """Return the row of replica `root`, which every replica gets."""
    row: Array = np.concatenate(inputs)[root]
    return row


def scatter(inputs: Sequence[Array], root: int) -> list[Array]:
    """Return for each member its replicas' shares of the root's row, (L, n/R)."""
    return _dealt(_shares(broadcast(inputs, root), _count(inputs)), inputs)


def all_to_all(inputs: Sequence[Array]) -> list[Array]:
    """Return for each member its replicas' rows, (L, n).

    Share s of replica r's row is what was share r of replica s's.
    """
    count = _count(inputs)
    shares = np.stack([_shares(row, count) for row in np.concatenate(inputs)])
    received = shares.swapaxes(0, 1).reshape(count, -1)
    return _dealt(received, inputs)


def _count(inputs: Sequence[Array]) -> int:
    return sum(len(rows) for rows in inputs)


def _shares(row: Array, count: int) -> Array:
    if len(row) % count:
        raise ValueError(
            f"A row of {len(row)} elements cannot be cut into {count} equal shares, "
            f"one for each replica. Make its length a multiple of {count}."
        )
    return row.reshape(count, -1)


def _dealt(rows: Array, inputs: Sequence[Array]) -> list[Array]:
    """Share out one row for each replica among the members that own them."""
    return np.split(rows, np.cumsum([len(owned) for owned in inputs])[:-1])
