import ctypes
import platform
from typing import Any

import numpy as np
import pytest

from popdist.engine import _core
from popdist.engine.spec import reference
from popdist.engine.spec.dtypes import REDUCTIONS, code_of
from tests.popdist.engine.members import SMALL, Me, group_of, results
from tests.popdist.engine.samples import DTYPES, FLOATS, Array, same, sample

LEVELS = _core.simd_levels()


def test_every_processor_has_a_baseline_and_names_the_rest() -> None:
    assert LEVELS[0] == "baseline"
    assert set(LEVELS) <= {"baseline", "avx2", "avx512", "neon"}


def at_any_element(x: Array) -> Array:
    """Return an equal array that begins one element behind a line of the cache."""
    memory = np.empty(x.size + 65, x.dtype)
    begin = -memory.ctypes.data % 64 // x.itemsize + 1
    held = memory[begin : begin + x.size].reshape(x.shape)
    held[...] = x
    return held


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_level_gives_the_references_bits(
    level: str, dtype: np.dtype[Any]
) -> None:
    ops = [op for op in REDUCTIONS if dtype.kind != "b" or op != "mean"]
    group = group_of("alone", 0, 1, replicas=(5,), simd=level, tuning=SMALL)

    # About every width of a register, and longer than what is added up at once.
    for length in [1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 127, 129, 9001]:
        x = at_any_element(sample(length, (5, length), dtype))
        for op in ops:
            row = reference.all_reduce([x], op)
            assert same(group.all_reduce(x, op), np.stack([row] * 5)), (op, length)
    group.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_every_level_hands_rows_to_other_members(
    level: str, dtype: np.dtype[Any]
) -> None:
    rows = (2, 1)
    inputs = {
        n: [
            at_any_element(sample([r, n], (count, n), dtype))
            for r, count in enumerate(rows)
        ]
        for n in (33, 20001)
    }

    def member(me: Me) -> Any:
        group = me.join(replicas=rows, simd=level)
        share = group.transport.member.comm.ring_share(code_of(dtype))
        found = {}
        # A new group tries the other way to store from its 16th block to its 24th: in
        # turn, so that each algorithm comes by then, with one block a call or more.
        for _ in range(18):
            for n, x in inputs.items():
                for how in ("oneshot", "direct", "ring"):
                    y = group.all_reduce(x[me.rank], algorithm=how)
                    found[n, how, y.tobytes()] = y
        return share, found

    for rank, (share, found) in enumerate(results(2, member)):
        # The same bits in every call, whichever way they went.
        assert len(found) == 2 * 3
        for (n, how, _), y in found.items():
            row = reference.all_reduce(inputs[n], algorithm=how, share=share)
            assert same(y, np.stack([row] * rows[rank])), (n, how)


def flush_to_zero() -> None:
    """Let this thread's processor treat subnormal numbers as 0, as -ffast-math does."""
    # Where in what fegetenv() stores the control register is, and its bits for it.
    place, bits = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}[platform.machine()]
    libm = ctypes.CDLL("libm.so.6")
    environment = (ctypes.c_char * 64)()
    libm.fegetenv(environment)
    ctypes.c_uint32.from_buffer(environment, place).value |= bits
    libm.fesetenv(environment)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_subnormals_are_kept_whatever_the_process_does_with_them(
    level: str, dtype: np.dtype[Any]
) -> None:
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    tiny = np.arange(1, 1001).astype(bits).view(dtype)
    inputs = [tiny[None], np.stack([-tiny[::-1], tiny])]

    def member(me: Me) -> Any:
        group = me.join(replicas=(1, 2), simd=level)
        flush_to_zero()
        # The processor obeys: this would be 1.5e-45 or more otherwise.
        assert np.float32(1e-40) * np.float32(0.5) == 0
        found = [
            (op, group.all_reduce(inputs[me.rank], op, algorithm=how))
            for op in ("sum", "mean", "min", "max")
            for how in ("oneshot", "direct")
        ]
        assert np.float32(1e-40) * np.float32(0.5) == 0
        return found

    for rank, told in enumerate(results(2, member)):
        for op, found in told:
            row = reference.all_reduce(inputs, op)
            assert row.view(bits).any()
            assert same(found, np.stack([row] * (rank + 1))), op
